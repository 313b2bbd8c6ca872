//! The link to the store: a connection and a subscription, made and replaced beside the keeper's loop, which never
//! waits for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

use super::manager::{Outgoing, ReplyTo};
use crate::store::{AttachRequest, Connection, ErrorKind, Outcome, Store, StoreError, SubscriptionItem};
use crate::time::Moment;

/// Largest number of requests in one batch.
const MAX_BATCH_LEN: usize = 512;

/// First and longest backoff between two attempts to attach. No work begins until the longest one has passed after an
/// outage, so it is short.
const MIN_BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// A connection that is lost sooner than this may never have worked.
const MIN_HEALTHY_LIFETIME: Duration = Duration::from_secs(1);

/// The backoff after an error that needs an operator.
const FATAL_ERROR_BACKOFF: Duration = Duration::from_secs(5);

/// By how much a store may exceed the timeout of a request.
const SUBMIT_GRACE: Duration = Duration::from_millis(250);

/// The timeout for subscribing.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Reports from the tasks beside the loop.
pub(super) enum LinkEvent {
    Attached { link: u64, result: Result<Arc<dyn Connection>, StoreError> },
    Outcomes { link: u64, recipients: Vec<ReplyTo>, outcomes: Vec<Outcome> },
    Closed { link: u64 },
    Heard(SubscriptionItem),
    SubscribeFailed(StoreError),
}

/// The connection, or the attempt to make one.
pub(super) struct StoreLink {
    store: Arc<dyn Store>,
    events: UnboundedSender<LinkEvent>,
    /// Counts connections, so that reports from an abandoned one are recognised.
    link_id: u64,
    state: LinkState,
    /// The number of failures in a row.
    failures: u32,
    up_since: Moment,
    /// Tells the subscription task to subscribe anew; set once that task exists.
    listener_wake: Option<Arc<Notify>>,
}

enum LinkState {
    Down {
        retry_at: Moment,
    },
    Attaching {
        _attempt: JoinSet<()>,
    },
    /// Dropping the tasks drops their handles of the connection, which closes it.
    Up {
        connection: Arc<dyn Connection>,
        tasks: JoinSet<()>,
    },
}

impl StoreLink {
    pub(super) fn new(store: Arc<dyn Store>, events: UnboundedSender<LinkEvent>) -> Self {
        let state = LinkState::Down { retry_at: Moment::ZERO };
        Self { store, events, link_id: 0, state, failures: 0, up_since: Moment::ZERO, listener_wake: None }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, LinkState::Up { .. })
    }

    /// Whether this is the id of the current connection or attempt.
    pub(super) fn is_current(&self, link: u64) -> bool {
        self.link_id == link
    }

    /// When to retry, while there is no connection or attempt.
    pub(super) fn retry_at(&self) -> Option<Moment> {
        match self.state {
            LinkState::Down { retry_at } => Some(retry_at),
            LinkState::Attaching { .. } | LinkState::Up { .. } => None,
        }
    }

    /// Starts an attempt to attach to the store, beside the loop.
    pub(super) fn attach(&mut self, entry: AttachRequest, timeout: Duration) {
        self.link_id += 1;
        let (store, events, link) = (self.store.clone(), self.events.clone(), self.link_id);
        let mut attempt = JoinSet::new();
        let panicked = StoreError::new(
            ErrorKind::Unavailable,
            format!("{}: the store panicked while attaching", store.location()),
        );
        attempt.spawn(async move {
            let mut report = ReportOnDrop { events, event: Some(LinkEvent::Attached { link, result: Err(panicked) }) };
            let result = match tokio::time::timeout(timeout, store.attach(entry)).await {
                Ok(result) => result,
                Err(_) => {
                    let why = format!("{}: cannot attach within {timeout:?}", store.location());
                    Err(StoreError::new(ErrorKind::Unreachable, why))
                }
            };
            report.event = Some(LinkEvent::Attached { link, result });
        });
        self.state = LinkState::Attaching { _attempt: attempt };
    }

    /// Starts to use a connection that has attached.
    pub(super) fn connected(&mut self, now: Moment, connection: Arc<dyn Connection>) {
        self.up_since = now;
        let mut tasks = JoinSet::new();
        let (events, link, watched) = (self.events.clone(), self.link_id, connection.clone());
        tasks.spawn(async move {
            watched.closed().await;
            let _ = events.send(LinkEvent::Closed { link });
        });
        self.state = LinkState::Up { connection, tasks };
        // Not before the first attach: the store counts a subscriber as an instance that may hold leases.
        match &self.listener_wake {
            // What ended one connection may have ended the other, too, without notice.
            Some(wake) => wake.notify_one(),
            None => {
                let wake = self.listener_wake.insert(Arc::default());
                tokio::spawn(listen(self.store.clone(), self.events.clone(), wake.clone()));
            }
        }
    }

    /// Schedules a retry after a failed attach.
    pub(super) fn attach_failed(&mut self, now: Moment, error: &StoreError) {
        self.failures = self.failures.saturating_add(1);
        let longest = if error.is_retryable() { self.backoff() } else { FATAL_ERROR_BACKOFF };
        self.state = LinkState::Down { retry_at: now + jittered(longest) };
    }

    /// Resets the failures after a reply on a connection that has lasted. A read-only replica replies to every read,
    /// and closes the connection at the first write.
    pub(super) fn confirm_working(&mut self, now: Moment) {
        if now.since(self.up_since) >= MIN_HEALTHY_LIFETIME {
            self.failures = 0;
        }
    }

    /// The factor by which the timeout of an attempt has grown.
    pub(super) fn timeout_factor(&self) -> u32 {
        1 << self.failures.min(5)
    }

    /// Abandons the connection and everything in flight. Retries at once, unless this connection never worked.
    pub(super) fn disconnect(&mut self, now: Moment) {
        self.link_id += 1;
        let short_lived = now.since(self.up_since) < MIN_HEALTHY_LIFETIME;
        self.failures = if short_lived { self.failures.saturating_add(1) } else { 0 };
        let backoff = if self.failures > 1 { jittered(self.backoff()) } else { Duration::ZERO };
        self.state = LinkState::Down { retry_at: now + backoff };
    }

    fn backoff(&self) -> Duration {
        MIN_BACKOFF.saturating_mul(1 << self.failures.min(16)).min(MAX_BACKOFF)
    }

    /// Sends requests, in order, in batches.
    pub(super) fn send(&mut self, now: Moment, outbox: &mut Vec<Outgoing>) {
        let LinkState::Up { connection, tasks } = &mut self.state else { return };
        while tasks.try_join_next().is_some() {}
        while !outbox.is_empty() {
            let batch = outbox.drain(..outbox.len().min(MAX_BATCH_LEN));
            let mut requests = Vec::with_capacity(batch.len());
            let mut recipients = Vec::with_capacity(batch.len());
            let mut give_up_at = now;
            for outgoing in batch {
                give_up_at = give_up_at.max(outgoing.give_up_at);
                requests.push(outgoing.request);
                recipients.push(outgoing.reply_to);
            }
            let timeout = give_up_at.since(now).max(Duration::from_millis(1));
            let (connection, events, link) = (connection.clone(), self.events.clone(), self.link_id);
            tasks.spawn(async move {
                let mut report = ReportOnDrop { events, event: Some(LinkEvent::Closed { link }) };
                let count = requests.len();
                // A store that keeps the timeout itself gives a better error; one that does not must not block us.
                let outcomes = tokio::time::timeout(timeout + SUBMIT_GRACE, connection.submit(requests, timeout)).await;
                let outcomes = outcomes.unwrap_or_else(|_| {
                    let error = StoreError::new(ErrorKind::Unreachable, format!("no answer within {timeout:.0?}"));
                    vec![Outcome::Unknown(error); count]
                });
                report.event = Some(LinkEvent::Outcomes { link, recipients, outcomes });
            });
        }
    }

    /// Whether no task is running, apart from the one that watches the connection.
    pub(super) fn is_idle(&mut self) -> bool {
        match &mut self.state {
            LinkState::Up { tasks, .. } => {
                while tasks.try_join_next().is_some() {}
                tasks.len() <= 1
            }
            LinkState::Down { .. } | LinkState::Attaching { .. } => true,
        }
    }
}

/// Sends a task's report when it ends for any reason, even when a store panics. The keeper ignores reports of an
/// abandoned task, which carry an old link id.
struct ReportOnDrop {
    events: UnboundedSender<LinkEvent>,
    event: Option<LinkEvent>,
}

impl Drop for ReportOnDrop {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            // The keeper outlives its tasks.
            let _ = self.events.send(event);
        }
    }
}

/// Adds jitter, so that instances that have lost the same server do not retry in lockstep.
fn jittered(longest: Duration) -> Duration {
    longest.mul_f64(0.5 + 0.5 * fastrand::f64())
}

/// Receives announcements, for as long as the keeper lives.
async fn listen(store: Arc<dyn Store>, events: UnboundedSender<LinkEvent>, wake: Arc<Notify>) {
    let mut backoff = MIN_BACKOFF;
    loop {
        let subscribed = tokio::time::timeout(SUBSCRIBE_TIMEOUT, store.subscribe()).await;
        match subscribed {
            Ok(Ok(mut subscription)) => {
                let since = tokio::time::Instant::now();
                // Announcements from before the subscription were missed.
                let mut delivered = events.send(LinkEvent::Heard(SubscriptionItem::Gap));
                while delivered.is_ok() {
                    let heard = tokio::select! {
                        heard = subscription.next() => heard,
                        () = wake.notified() => {
                            // Keep the old subscription until there is another: a count of subscribers must include us.
                            match tokio::time::timeout(SUBSCRIBE_TIMEOUT, store.subscribe()).await {
                                Ok(Ok(another)) => subscription = another,
                                _ => continue,
                            }
                            SubscriptionItem::Gap
                        }
                    };
                    delivered = match heard {
                        SubscriptionItem::Closed => break,
                        heard => events.send(LinkEvent::Heard(heard)),
                    };
                }
                if delivered.is_err() {
                    return;
                }
                if since.elapsed() >= MIN_HEALTHY_LIFETIME {
                    backoff = MIN_BACKOFF;
                }
            }
            Ok(Err(error)) => {
                if events.send(LinkEvent::SubscribeFailed(error)).is_err() {
                    return;
                }
            }
            Err(_) => {}
        }
        // A store that was attached again can probably be subscribed to again.
        tokio::select! {
            () = tokio::time::sleep(jittered(backoff)) => {}
            () = wake.notified() => {}
        }
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}
