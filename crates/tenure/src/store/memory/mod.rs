//! A store for one process: the [ledger](super::Ledger) behind a lock, with switches for the faults of real stores.
//!
//! ```
//! use std::sync::Arc;
//! use tenure::store::memory::MemoryStore;
//! use tenure::{AcquireError, Tenure};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let store = Arc::new(MemoryStore::default());
//! let one = Tenure::with_store(store.clone()).connect().await?; // two instances in one test
//! let two = Tenure::with_store(store).connect().await?;
//! let lease = one.lease("report").acquire().await?;
//! let refused = two.lease("report").try_acquire().await;
//! assert!(matches!(refused, Err(AcquireError::Held { holder, .. }) if holder == *one.instance()));
//! # drop(lease);
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod faults;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{broadcast, watch};

use faults::Delivery;
pub use faults::{MemoryFaults, Snapshot, Survival};

use super::{
    Announcement, AttachRequest, Attached, BoxFuture, Connection, ErrorKind, Generation, Ledger, Outcome, Request,
    ServerInfo, ServerRun, Store, StoreError, Subscription, SubscriptionItem,
};
use crate::time::{LeaseClock, Moment, ServerTime, SystemClock};

/// How many announcements a slow subscriber may fall behind before it receives a gap instead.
const MAX_UNREAD_ANNOUNCEMENTS: usize = 1_024;

/// A store that lives in this process and ends with it. Clones share their contents.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tenure::store::{AttachRequest, Store, memory::MemoryStore};
/// use tenure::time::ManualClock;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let clock = Arc::new(ManualClock::default());
/// let store = MemoryStore::with_clock(clock.clone());
/// let connection = store.attach(AttachRequest { max_ttl: Duration::from_secs(30), ..AttachRequest::new(fastrand::u64(..)) }).await?;
/// assert!(connection.attached().minted);
/// # Ok::<(), tenure::store::StoreError>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn LeaseClock>,
    state: Mutex<State>,
}

struct State {
    ledger: Ledger,
    announcements: broadcast::Sender<Announcement>,
    run: u64,
    /// Whether an instance that may acquire leases has attached to this run.
    has_served: bool,
    /// When it last restarted. `None` before the first restart: nothing can have been lost before the first start.
    restarted: Option<Moment>,
    /// The server's clock is the lease clock plus this.
    epoch_micros: u64,
    /// Connections up to this one are closed.
    cut_before: watch::Sender<u64>,
    connections: u64,
    faults: faults::FaultPlan,
    late: Vec<LateBatch>,
}

/// Requests that the caller has given up on and that have not arrived yet.
struct LateBatch {
    due: Moment,
    connection: u64,
    generation: Generation,
    requests: Vec<Request>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }
}

impl MemoryStore {
    /// Creates an empty store that runs on the given clock.
    pub fn with_clock(clock: Arc<dyn LeaseClock>) -> Self {
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let state = State {
            ledger: Ledger::default(),
            announcements: broadcast::Sender::new(MAX_UNREAD_ANNOUNCEMENTS),
            run: 1,
            has_served: false,
            restarted: None,
            epoch_micros: u64::try_from(unix.as_micros()).unwrap_or(0),
            cut_before: watch::Sender::new(0),
            connections: 0,
            faults: faults::FaultPlan::default(),
            late: Vec::new(),
        };
        Self { shared: Arc::new(Shared { clock, state: Mutex::new(state) }) }
    }

    /// The switches for faults.
    pub fn faults(&self) -> MemoryFaults {
        MemoryFaults::new(self.clone())
    }

    /// The state, after every request that has arrived until now is carried out.
    fn state(&self) -> MutexGuard<'_, State> {
        // The ledger is consistent between any two requests, so a panic elsewhere leaves nothing half done.
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.shared.clock.now();
        let (due, late): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.late).into_iter().partition(|batch| batch.due <= now);
        state.late = late;
        // A batch that arrives while the server is down is lost.
        let off = state.faults.down;
        for batch in due.into_iter().filter(|_| !off) {
            for request in &batch.requests {
                state.carry_out(now, batch.connection, batch.generation, request);
            }
        }
        state
    }

    fn attach_now(&self, request: &AttachRequest) -> MemoryConnection {
        let mut state = self.state();
        let now = self.shared.clock.now();
        let server = ServerInfo {
            now: state.server_time(now),
            run: ServerRun(u128::from(state.run)),
            uptime: state.restarted.map_or(Duration::MAX, |restarted| now.since(restarted)),
            subscribers: state.announcements.receiver_count(),
            has_served: state.has_served,
        };
        let mut announcements = Vec::new();
        let attached = state.ledger.attach(&server, request, &mut announcements);
        state.announce(announcements);
        state.has_served |= !request.observer;
        state.connections += 1;
        MemoryConnection { store: self.clone(), number: state.connections, attached }
    }
}

impl State {
    fn server_time(&self, now: Moment) -> ServerTime {
        ServerTime::from_micros(self.epoch_micros.saturating_add(now.as_nanos() / 1_000))
    }

    fn carry_out(&mut self, now: Moment, connection: u64, generation: Generation, request: &Request) -> Outcome {
        if connection <= *self.cut_before.borrow() {
            return Outcome::Failed(unreachable("the connection was closed; attach again"));
        }
        let mut announcements = Vec::new();
        let reply = self.ledger.apply(self.server_time(now), generation, request, &mut announcements);
        self.announce(announcements);
        Outcome::Answered(reply)
    }

    fn announce(&self, announcements: Vec<Announcement>) {
        for announcement in announcements {
            // Having no subscribers is not an error.
            let _ = self.announcements.send(announcement);
        }
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryStore")
    }
}

impl Store for MemoryStore {
    fn attach(&self, request: AttachRequest) -> BoxFuture<'_, Result<Arc<dyn Connection>, StoreError>> {
        Box::pin(async move {
            let delay = self.state().faults.delay;
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            if self.state().faults.down {
                return Err(unreachable("the server is switched off"));
            }
            Ok(Arc::new(self.attach_now(&request)) as Arc<dyn Connection>)
        })
    }

    fn subscribe(&self) -> BoxFuture<'_, Result<Box<dyn Subscription>, StoreError>> {
        Box::pin(async move {
            let state = self.state();
            if state.faults.down {
                return Err(unreachable("the server is switched off"));
            }
            Ok(Box::new(MemorySubscription { receiver: state.announcements.subscribe() }) as Box<dyn Subscription>)
        })
    }

    fn location(&self) -> &str {
        "memory:"
    }
}

#[derive(Debug)]
struct MemoryConnection {
    store: MemoryStore,
    number: u64,
    attached: Attached,
}

impl Connection for MemoryConnection {
    fn attached(&self) -> &Attached {
        &self.attached
    }

    fn submit(&self, batch: Vec<Request>, timeout: Duration) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let clock = &self.store.shared.clock;
            let delay = self.store.state().faults.delay;
            if delay >= timeout {
                let count = batch.len();
                self.store.state().late.push(LateBatch {
                    due: clock.now() + delay,
                    connection: self.number,
                    generation: self.attached.generation,
                    requests: batch,
                });
                tokio::time::sleep(timeout).await;
                return vec![Outcome::Unknown(no_answer(timeout)); count];
            }
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            let outcomes: Vec<Outcome> = {
                let mut state = self.store.state();
                let now = clock.now();
                let mut carry_out = |request: &Request| match state.faults.next_delivery() {
                    Delivery::Deliver => state.carry_out(now, self.number, self.attached.generation, request),
                    Delivery::LoseRequest => Outcome::Unknown(no_answer(timeout)),
                    Delivery::LoseReply => {
                        state.carry_out(now, self.number, self.attached.generation, request);
                        Outcome::Unknown(no_answer(timeout))
                    }
                    Delivery::Refuse => Outcome::Failed(unreachable("the server is switched off")),
                };
                batch.iter().map(&mut carry_out).collect()
            };
            if outcomes.iter().any(|outcome| matches!(outcome, Outcome::Unknown(_))) {
                tokio::time::sleep(timeout).await;
            }
            outcomes
        })
    }

    fn closed(&self) -> BoxFuture<'_, ()> {
        let mut cut_before = self.store.state().cut_before.subscribe();
        Box::pin(async move {
            // The store outlives its connections, so the channel does not end first.
            let _ = cut_before.wait_for(|cut_before| self.number <= *cut_before).await;
        })
    }
}

#[derive(Debug)]
struct MemorySubscription {
    receiver: broadcast::Receiver<Announcement>,
}

impl Subscription for MemorySubscription {
    fn next(&mut self) -> BoxFuture<'_, SubscriptionItem> {
        Box::pin(async move {
            match self.receiver.recv().await {
                Ok(announcement) => SubscriptionItem::Announced(announcement),
                Err(broadcast::error::RecvError::Lagged(_)) => SubscriptionItem::Gap,
                Err(broadcast::error::RecvError::Closed) => SubscriptionItem::Closed,
            }
        })
    }
}

fn unreachable(message: &str) -> StoreError {
    StoreError::new(ErrorKind::Unreachable, format!("memory: {message}"))
}

fn no_answer(timeout: Duration) -> StoreError {
    unreachable(&format!("no answer within {timeout:?}"))
}
