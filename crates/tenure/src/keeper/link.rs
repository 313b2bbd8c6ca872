//! The link to the store: a connection and a subscription, made and replaced beside the keeper's loop, which never
//! waits for them. The manager decides when.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backoff::Backoff;
use tenure_core::manager::{Batch, LinkId, Recipients};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

use crate::store::{AttachRequest, Connection, ErrorKind, Outcome, Store, StoreError, SubscriptionItem};

/// By how much a store may exceed the timeout of a request.
const SUBMIT_GRACE: Duration = Duration::from_millis(250);

/// The timeout for subscribing, and the backoff after a failure.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(5);
const SUBSCRIBE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

/// A subscription that ends sooner than this may never have worked.
const MIN_HEALTHY_LIFETIME: Duration = Duration::from_secs(1);

/// Reports from the tasks beside the loop.
pub(super) enum LinkEvent {
    Attached { link: LinkId, result: Result<Arc<dyn Connection>, StoreError> },
    Outcomes { link: LinkId, recipients: Recipients, outcomes: Vec<Outcome> },
    Closed { link: LinkId },
    Heard(SubscriptionItem),
    SubscribeFailed(StoreError),
}

/// The connection, or the attempt to make one.
pub(super) struct StoreLink {
    store: Arc<dyn Store>,
    events: UnboundedSender<LinkEvent>,
    link: LinkId,
    state: LinkState,
    /// Tells the subscription task to subscribe anew; set once that task exists.
    listener_wake: Option<Arc<Notify>>,
}

enum LinkState {
    Down,
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
        Self { store, events, link: LinkId::default(), state: LinkState::Down, listener_wake: None }
    }

    /// Starts an attempt to attach to the store, beside the loop.
    pub(super) fn attach(&mut self, link: LinkId, request: AttachRequest, timeout: Duration) {
        self.link = link;
        let (store, events) = (self.store.clone(), self.events.clone());
        let mut attempt = JoinSet::new();
        let panicked = StoreError::new(
            ErrorKind::Unavailable,
            format!("{}: the store panicked while attaching", store.location()),
        );
        attempt.spawn(async move {
            let mut report = ReportOnDrop { events, event: Some(LinkEvent::Attached { link, result: Err(panicked) }) };
            let result = match tokio::time::timeout(timeout, store.attach(request)).await {
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
    pub(super) fn connected(&mut self, connection: Arc<dyn Connection>) {
        let mut tasks = JoinSet::new();
        let (events, link, watched) = (self.events.clone(), self.link, connection.clone());
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

    /// Abandons the connection and everything in flight.
    pub(super) fn disconnect(&mut self) {
        self.state = LinkState::Down;
    }

    /// Sends a batch.
    pub(super) fn send(&mut self, batch: Batch) {
        let LinkState::Up { connection, tasks } = &mut self.state else { return };
        while tasks.try_join_next().is_some() {}
        let Batch { link, requests, recipients, timeout } = batch;
        let (connection, events) = (connection.clone(), self.events.clone());
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

/// Receives announcements, for as long as the keeper lives.
async fn listen(store: Arc<dyn Store>, events: UnboundedSender<LinkEvent>, wake: Arc<Notify>) {
    let mut failures = 0;
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
                    failures = 0;
                }
            }
            Ok(Err(error)) => {
                if events.send(LinkEvent::SubscribeFailed(error)).is_err() {
                    return;
                }
            }
            Err(_) => {}
        }
        failures += 1;
        // A store that was attached again can probably be subscribed to again.
        tokio::select! {
            () = tokio::time::sleep(SUBSCRIBE_BACKOFF.jittered(failures, fastrand::f64())) => {}
            () = wake.notified() => {}
        }
    }
}
