//! The way to the store: a connection and a subscription, made and replaced beside the keeper's loop, which never waits
//! for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

use super::roster::{Outgoing, Tag};
use crate::store::{Connection, Entry, ErrorKind, Heard, Outcome, Store, StoreError};
use crate::time::Moment;

/// How many requests travel together at most.
const BATCH: usize = 512;

/// The first and the longest pause between two attempts to enter.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A connection that is lost sooner than this may not have worked at all.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// The pause after an error that somebody has to do something about.
const HOPELESS_PAUSE: Duration = Duration::from_secs(5);

/// By how much a store may miss the limit of a request.
const GRACE: Duration = Duration::from_millis(250);

/// How long subscribing may take.
const SUBSCRIBE_WITHIN: Duration = Duration::from_secs(5);

/// What the tasks beside the loop have to say.
pub(super) enum Inside {
    Entered { link: u64, result: Result<Arc<dyn Connection>, StoreError> },
    Outcomes { link: u64, tags: Vec<Tag>, outcomes: Vec<Outcome> },
    Closed { link: u64 },
    Heard(Heard),
    Deaf(StoreError),
}

/// The connection, or the attempt to get one.
pub(super) struct Link {
    store: Arc<dyn Store>,
    inside: UnboundedSender<Inside>,
    /// Counts connections, so that what comes from one that was given up is known.
    number: u64,
    state: State,
    /// How often in a row it did not work.
    failures: u32,
    up_since: Moment,
    /// Whoever listens is told to listen anew, once there is somebody.
    listens: Option<Arc<Notify>>,
}

enum State {
    Down {
        retry_at: Moment,
    },
    Entering {
        _attempt: JoinSet<()>,
    },
    /// Dropping the tasks drops what they hold of the connection, which closes it.
    Up {
        connection: Arc<dyn Connection>,
        tasks: JoinSet<()>,
    },
}

impl Link {
    pub(super) fn new(store: Arc<dyn Store>, inside: UnboundedSender<Inside>) -> Self {
        let state = State::Down { retry_at: Moment::ZERO };
        Self { store, inside, number: 0, state, failures: 0, up_since: Moment::ZERO, listens: None }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    /// Whether this is the number of the present connection or attempt.
    pub(super) fn is_current(&self, link: u64) -> bool {
        self.number == link
    }

    /// When to try again, while there is nothing.
    pub(super) fn retry_at(&self) -> Option<Moment> {
        match self.state {
            State::Down { retry_at } => Some(retry_at),
            State::Entering { .. } | State::Up { .. } => None,
        }
    }

    /// Tries to enter the store, beside the loop.
    pub(super) fn enter(&mut self, entry: Entry, limit: Duration) {
        self.number += 1;
        let (store, inside, link) = (self.store.clone(), self.inside.clone(), self.number);
        let mut attempt = JoinSet::new();
        let panicked = StoreError::new(ErrorKind::Unavailable, format!("{}: entering has panicked", store.location()));
        attempt.spawn(async move {
            let mut report = Report { inside, news: Some(Inside::Entered { link, result: Err(panicked) }) };
            let result = match tokio::time::timeout(limit, store.enter(entry)).await {
                Ok(result) => result,
                Err(_) => {
                    let why = format!("{}: could not be entered within {limit:?}", store.location());
                    Err(StoreError::new(ErrorKind::Unreachable, why))
                }
            };
            report.news = Some(Inside::Entered { link, result });
        });
        self.state = State::Entering { _attempt: attempt };
    }

    /// A connection has entered: use it.
    pub(super) fn up(&mut self, now: Moment, connection: Arc<dyn Connection>) {
        self.up_since = now;
        let mut tasks = JoinSet::new();
        let (inside, link, watched) = (self.inside.clone(), self.number, connection.clone());
        tasks.spawn(async move {
            watched.closed().await;
            let _ = inside.send(Inside::Closed { link });
        });
        self.state = State::Up { connection, tasks };
        // Not before the first entry: whoever listens is taken for somebody who may hold leases.
        match &self.listens {
            // What has ended one connection may have ended the other, too, without a word.
            Some(anew) => anew.notify_one(),
            None => {
                let anew = self.listens.insert(Arc::default());
                tokio::spawn(listen(self.store.clone(), self.inside.clone(), anew.clone()));
            }
        }
    }

    /// Entering has failed: try again later.
    pub(super) fn failed(&mut self, now: Moment, error: &StoreError) {
        self.failures = self.failures.saturating_add(1);
        let longest = if error.is_retryable() { self.pause() } else { HOPELESS_PAUSE };
        self.state = State::Down { retry_at: now + jittered(longest) };
    }

    /// Something was answered: this is a connection that works, once it has lasted. A read-only replica answers every
    /// read, and ends the connection at the first write.
    pub(super) fn works(&mut self, now: Moment) {
        if now.since(self.up_since) >= SHORT_LIFE {
            self.failures = 0;
        }
    }

    /// How much longer than at first an attempt may take.
    pub(super) fn patience(&self) -> u32 {
        1 << self.failures.min(5)
    }

    /// Gives the connection up, with everything on its way. Another is tried at once, unless this one never worked.
    pub(super) fn give_up(&mut self, now: Moment) {
        self.number += 1;
        let short_lived = now.since(self.up_since) < SHORT_LIFE;
        self.failures = if short_lived { self.failures.saturating_add(1) } else { 0 };
        let pause = if self.failures > 1 { jittered(self.pause()) } else { Duration::ZERO };
        self.state = State::Down { retry_at: now + pause };
    }

    fn pause(&self) -> Duration {
        FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE)
    }

    /// Sends requests, in order.
    pub(super) fn send(&mut self, now: Moment, outbox: &mut Vec<Outgoing>) {
        let State::Up { connection, tasks } = &mut self.state else { return };
        while tasks.try_join_next().is_some() {}
        while !outbox.is_empty() {
            let batch = outbox.drain(..outbox.len().min(BATCH));
            let mut requests = Vec::with_capacity(batch.len());
            let mut tags = Vec::with_capacity(batch.len());
            let mut give_up_at = now;
            for outgoing in batch {
                give_up_at = give_up_at.max(outgoing.give_up_at);
                requests.push(outgoing.request);
                tags.push(outgoing.tag);
            }
            let limit = give_up_at.since(now).max(Duration::from_millis(1));
            let (connection, inside, link) = (connection.clone(), self.inside.clone(), self.number);
            tasks.spawn(async move {
                let mut report = Report { inside, news: Some(Inside::Closed { link }) };
                let count = requests.len();
                // A store that keeps to the limit itself says more; one that does not must not hold us up.
                let outcomes = tokio::time::timeout(limit + GRACE, connection.submit(requests, limit)).await;
                let outcomes = outcomes.unwrap_or_else(|_| {
                    let error = StoreError::new(ErrorKind::Unreachable, format!("no answer within {limit:?}"));
                    vec![Outcome::Unknown(error); count]
                });
                report.news = Some(Inside::Outcomes { link, tags, outcomes });
            });
        }
    }

    /// How many tasks are still at work, the one that watches the connection not counted.
    pub(super) fn is_quiet(&mut self) -> bool {
        match &mut self.state {
            State::Up { tasks, .. } => {
                while tasks.try_join_next().is_some() {}
                tasks.len() <= 1
            }
            State::Down { .. } | State::Entering { .. } => true,
        }
    }
}

/// What a task has to say when it ends, however it ends: also when a store panics. Of a task that was given up nobody
/// hears, since it has the number of a link that was.
struct Report {
    inside: UnboundedSender<Inside>,
    news: Option<Inside>,
}

impl Drop for Report {
    fn drop(&mut self) {
        if let Some(news) = self.news.take() {
            // The keeper outlives its tasks.
            let _ = self.inside.send(news);
        }
    }
}

/// Not in step with everybody else who has lost the same server.
fn jittered(longest: Duration) -> Duration {
    longest.mul_f64(0.5 + 0.5 * fastrand::f64())
}

/// Hears announcements, for as long as the keeper lives.
async fn listen(store: Arc<dyn Store>, inside: UnboundedSender<Inside>, anew: Arc<Notify>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let subscribed = tokio::time::timeout(SUBSCRIBE_WITHIN, store.subscribe()).await;
        match subscribed {
            Ok(Ok(mut subscription)) => {
                let since = tokio::time::Instant::now();
                // Whatever was announced before we listened was missed.
                let mut delivered = inside.send(Inside::Heard(Heard::Gap));
                while delivered.is_ok() {
                    let heard = tokio::select! {
                        heard = subscription.next() => heard,
                        () = anew.notified() => {
                            // The old one goes on until there is another: whoever counts those who listen must find us.
                            match tokio::time::timeout(SUBSCRIBE_WITHIN, store.subscribe()).await {
                                Ok(Ok(another)) => subscription = another,
                                _ => continue,
                            }
                            Heard::Gap
                        }
                    };
                    delivered = match heard {
                        Heard::Closed => break,
                        heard => inside.send(Inside::Heard(heard)),
                    };
                }
                if delivered.is_err() {
                    return;
                }
                if since.elapsed() >= SHORT_LIFE {
                    pause = FIRST_PAUSE;
                }
            }
            Ok(Err(error)) => {
                if inside.send(Inside::Deaf(error)).is_err() {
                    return;
                }
            }
            Err(_) => {}
        }
        // A store that is entered again can be heard again, too.
        tokio::select! {
            () = tokio::time::sleep(jittered(pause)) => {}
            () = anew.notified() => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
