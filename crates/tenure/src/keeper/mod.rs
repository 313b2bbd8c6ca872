//! Keeps many leases at once: one thread per process and store, with its own runtime, timer and connection.
//!
//! User code cannot delay it. It never logs, never calls back, and takes no lock that another thread can hold.
//! Events leave through a bounded queue, which drops and counts them when no listener reads. Work that blocks every
//! thread of the program's own runtime does not stop renewals.
//!
//! What to do is decided by the lease manager in `tenure-core`.
//!
//! | file | contents |
//! |---|---|
//! | `thread.rs` | the loop that passes inputs to the manager and executes its outputs |
//! | `link.rs` | the connection and the subscription, made and replaced beside the loop |
//! | `alarm.rs` | a timer that counts suspend |
//! | `subscribers.rs` | the subscribers to all announcements |
//! | `observers.rs` | the observers of single leases |
//! | `shared.rs` | the state of a term that its holder reads without a message to the keeper |
//! | `event_queue.rs` | the queue of events |
//! | `listeners.rs` | the callbacks of the program |
//! | `log_folding.rs` | fewer lines for many failures at once |

mod alarm;
mod event_queue;
mod link;
mod listeners;
#[cfg(feature = "tracing")]
mod log_folding;
mod observers;
mod shared;
mod subscribers;
mod thread;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tenure_core::manager::{AcquireRefusal, ConnectionChange};
use thiserror::Error;
use tokio::sync::{Notify, mpsc, oneshot, watch};

pub(crate) use event_queue::{EventQueue, EventStreams};
pub(crate) use listeners::{Callback, ListenerId, Listeners};
pub(crate) use shared::{SharedTerm, WorkStart};
pub(crate) use tenure_core::manager::{AcquireMode, Heartbeat, LeaseId, WaiterId, server_time};
pub(crate) use thread::{KeeperConfig, start};

use crate::election::ElectionError;
use crate::event::Event;
use crate::histogram::{Histogram, RecentMax};
use crate::lease::{AcquireStatus, Intent, LeaseSettings, ReleaseReason, SettingsError};
use crate::name::{InstanceId, LeaseName, NameError};
use crate::store::{Outcome, Quarantine, Request, StoreError, SubscriptionItem};
use crate::tenure::TermHandle;

/// A caller that acquires a lease.
pub(crate) struct PendingAcquire {
    pub(crate) waiter: WaiterId,
    pub(crate) name: LeaseName,
    pub(crate) settings: Arc<LeaseSettings>,
    pub(crate) mode: AcquireMode,
    pub(crate) timeout: Option<Duration>,
    /// Sent with every claim and every renewal.
    pub(crate) heartbeat: Option<Arc<Heartbeat>>,
    pub(crate) reply: oneshot::Sender<Result<TermGuard, AcquireError>>,
    /// Receives the status of the acquisition meanwhile, whenever it changes.
    pub(crate) status_sender: Option<StatusSender>,
}

/// Sends the status of an acquisition.
pub(crate) type StatusSender = mpsc::UnboundedSender<AcquireStatus>;

/// A term with an owner in the program. Dropping it releases the lease.
pub(crate) struct TermGuard {
    handle: TermHandle,
    /// The reason given when the lease is released.
    pub(crate) reason: ReleaseReason,
}

impl TermGuard {
    fn new(shared: Arc<SharedTerm>) -> Self {
        Self { handle: TermHandle(shared), reason: ReleaseReason::Voluntary }
    }

    pub(crate) fn handle(&self) -> &TermHandle {
        &self.handle
    }
}

impl Drop for TermGuard {
    fn drop(&mut self) {
        let shared = &self.handle.0;
        // A stopped term is already being released or handed over.
        if !shared.is_over() && !shared.is_stopped() {
            shared.keeper.send(Command::Intent(shared.id(), Intent::Release(self.reason)));
        }
    }
}

/// How long a shutdown waits for a log that blocks.
const LAST_EVENTS_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a deferred call waits.
const DEFERRED_CALL_DELAY: Duration = Duration::from_millis(20);

/// A caller that sends a request to the store.
pub(crate) struct PendingCall {
    pub(crate) request: Request,
    pub(crate) timeout: Duration,
    /// Whether work waits for it. Calls that only observe come after those.
    pub(crate) is_work: bool,
    pub(crate) reply: oneshot::Sender<Outcome>,
}

/// Messages to the keeper.
pub(crate) enum Command {
    Acquire(PendingAcquire),
    GiveUp(WaiterId),
    Intent(LeaseId, Intent),
    WorkEnded(LeaseId),
    Progress(LeaseId),
    Call(PendingCall),
    /// Several calls at once, in order.
    CallAll(Vec<PendingCall>),
    /// An observer of a lease wants to be notified when to read it again.
    Observe(LeaseName, Weak<Notify>),
    /// A subscriber wants every announcement.
    Subscribe(mpsc::Sender<SubscriptionItem>),
    /// Joins the fleet, or changes the record of this instance.
    JoinFleet {
        heartbeat: Arc<Heartbeat>,
        every: Duration,
    },
    /// Leaves the fleet.
    LeaveFleet,
    /// Emits an event to the log, streams and listeners.
    Emit(Event),
    /// Removes a listener after the events emitted by now.
    RemoveListener(ListenerId),
    ShutDown,
}

/// The state of the connection to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// Not known yet.
    Pending,
    Attached,
    Lost(StoreError),
    /// The keeper has ended.
    Closed,
}

impl From<ConnectionChange> for ConnectionState {
    fn from(change: ConnectionChange) -> Self {
        match change {
            ConnectionChange::Attached => Self::Attached,
            ConnectionChange::Lost(error) => Self::Lost(error),
        }
    }
}

/// The sending side of the keeper, shared by all handles of the program.
pub(crate) struct KeeperHandle {
    pub(crate) instance: InstanceId,
    pub(crate) location: String,
    commands: mpsc::UnboundedSender<Command>,
    pub(crate) connection_state: watch::Receiver<ConnectionState>,
    pub(crate) gauges: Arc<Gauges>,
    listeners: Arc<Listeners>,
    next_waiter_id: AtomicU64,
    /// Calls that can wait for a moment.
    deferred_calls: Mutex<Vec<PendingCall>>,
    process: rustix::process::Pid,
}

impl KeeperHandle {
    /// Sends a call that can wait for a moment, together with others: waking the keeper costs more than the request.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(crate) fn call_deferred(self: &Arc<Self>, call: PendingCall) {
        let is_first = {
            let mut deferred_calls = self.deferred_calls.lock().unwrap_or_else(PoisonError::into_inner);
            deferred_calls.push(call);
            deferred_calls.len() == 1
        };
        if is_first {
            let keeper = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(DEFERRED_CALL_DELAY).await;
                keeper.flush_deferred_calls();
            });
        }
    }

    /// Sends the deferred calls now.
    pub(crate) fn flush_deferred_calls(&self) {
        let deferred_calls = std::mem::take(&mut *self.deferred_calls.lock().unwrap_or_else(PoisonError::into_inner));
        if !deferred_calls.is_empty() {
            self.send(Command::CallAll(deferred_calls));
        }
    }

    /// Sends a command to the keeper. If the keeper has ended, so has everything that the command could concern.
    pub(crate) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    /// Emits an event to the log, streams and listeners. When the keeper has ended, only listeners still get it: the
    /// end of a term that the shutdown caused.
    pub(crate) fn emit(&self, event: Event) {
        if let Err(unsent) = self.commands.send(Command::Emit(event))
            && let Command::Emit(event) = unsent.0
        {
            self.listeners.dispatch_late(event);
        }
    }

    /// Waits until the keeper has ended and its last events were dispatched: to the log, to streams, and to the queue
    /// of listeners. A log that blocks is waited for a little.
    pub(crate) async fn ended(&self) {
        let mut connection_state = self.connection_state.clone();
        // A keeper thread that ended without reporting it is closed, too.
        let _ = connection_state.wait_for(|connection_state| *connection_state == ConnectionState::Closed).await;
        let _ = tokio::time::timeout(LAST_EVENTS_TIMEOUT, self.listeners.finished()).await;
    }

    /// Calls a listener for every event from now on, until the returned guard is dropped.
    pub(crate) fn listen(self: &Arc<Self>, callback: Callback) -> io::Result<ListenerGuard> {
        Ok(ListenerGuard { id: self.listeners.add(callback)?, keeper: Arc::downgrade(self) })
    }

    pub(crate) fn new_waiter_id(&self) -> WaiterId {
        WaiterId(self.next_waiter_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether this is a forked child, which has no keeper.
    pub(crate) fn is_forked(&self) -> bool {
        rustix::process::getpid() != self.process
    }
}

/// A listener, which is removed when this is dropped. It still gets the events that were emitted before.
pub(crate) struct ListenerGuard {
    id: ListenerId,
    keeper: Weak<KeeperHandle>,
}

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.upgrade()
            && keeper.commands.send(Command::RemoveListener(self.id)).is_err()
        {
            keeper.listeners.remove_late(self.id);
        }
    }
}

/// Gauges and counters of the keeper.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) held: AtomicU64,
    pub(crate) lag: RecentMax,
    /// Whether the store refuses the heartbeats of this instance.
    pub(crate) heartbeats_refused: AtomicBool,
    /// Whether events are kept out of the log.
    pub(crate) unlogged: AtomicBool,
    pub(crate) events_dropped: AtomicU64,
    pub(crate) notes_dropped: AtomicU64,
    /// Server time minus the lease clock, in microseconds, as last seen.
    pub(crate) server_offset: AtomicI64,
    /// Number of listeners to all events, and to all but routine events.
    pub(crate) all_listeners: AtomicU64,
    pub(crate) notable_listeners: AtomicU64,
    /// From sending a renewal to its reply.
    pub(crate) renewals: Histogram,
}

/// Why a lease was not acquired.
///
/// ```
/// use std::time::Duration;
/// use tenure::{AcquireError, Tenure};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let store = tenure::store::open("memory:", &tenure::store::Keyspace::default())?;
/// # let other = Tenure::with_store(store.clone()).connect().await?;
/// # let tenure = Tenure::with_store(store).connect().await?;
/// let lease = other.lease("report").acquire().await?; // another instance holds it
/// match tenure.lease("report").timeout(Duration::from_millis(20)).acquire().await {
///     Ok(lease) => lease.release().await?,
///     Err(AcquireError::TimedOut { holder, .. }) => assert_eq!(holder.as_ref(), Some(other.instance())),
///     Err(AcquireError::Quarantined(quarantine)) => println!("try again in {:?}", quarantine.remaining),
///     Err(AcquireError::Store(error)) if error.is_retryable() => println!("try again later: {error}"),
///     Err(error) => return Err(error.into()), // a name or a setting to correct
/// }
/// # drop(lease);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Another instance holds the lease. A retry is safe.
    #[error("the lease is held by {holder}{}", For(*remaining))]
    Held {
        /// The holder. It is this very instance when another task of this process holds the lease or waits for it.
        holder: InstanceId,
        /// How long the lease lasts without renewal, if known.
        remaining: Option<Duration>,
    },
    /// The store is in quarantine and grants nothing for now. A later retry is safe.
    #[error("{0}")]
    Quarantined(Quarantine),
    /// This [`Tenure`](crate::Tenure) was opened as an [observer](crate::TenureBuilder::observer).
    #[error("cannot acquire a lease: this instance only observes")]
    Observer,
    /// The timeout passed. A retry is safe.
    #[error("lease not acquired within {}{}{}", Rounded(*waited), HeldBy(holder.as_ref()), Because(because.as_ref()))]
    TimedOut {
        /// How long the caller waited.
        waited: Duration,
        /// The holder, if one was seen.
        holder: Option<InstanceId>,
        /// The error of the store, if that was the obstacle.
        because: Option<StoreError>,
    },
    /// The store could not be reached; [`StoreError::is_retryable`] says whether a retry may help.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The name is not valid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The settings do not fit together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The election cannot run with these settings.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// This [`Tenure`](crate::Tenure) was shut down.
    #[error("tenure was shut down")]
    ShutDown,
}

impl From<AcquireRefusal> for AcquireError {
    fn from(refusal: AcquireRefusal) -> Self {
        match refusal {
            AcquireRefusal::Held { holder, remaining } => Self::Held { holder, remaining },
            AcquireRefusal::Quarantined(quarantine) => Self::Quarantined(quarantine),
            AcquireRefusal::Observer => Self::Observer,
            AcquireRefusal::TimedOut { waited, holder, because } => Self::TimedOut { waited, holder, because },
            AcquireRefusal::Store(error) => Self::Store(error),
            AcquireRefusal::ShutDown => Self::ShutDown,
        }
    }
}

/// A duration in whole milliseconds, as far as it has any.
struct Rounded(Duration);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = Duration::from_millis(self.0.as_secs_f64().mul_add(1_000.0, 0.5) as u64);
        write!(f, "{:?}", if self.0 < Duration::from_millis(1) { self.0 } else { millis })
    }
}

/// ": held by api-1", or nothing.
struct HeldBy<'a>(Option<&'a InstanceId>);

impl fmt::Display for HeldBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |by| write!(f, ": held by {by}"))
    }
}

/// ": the store …", or nothing.
struct Because<'a>(Option<&'a StoreError>);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |error| write!(f, ": {error}"))
    }
}

/// " for 3s", or nothing.
struct For(Option<Duration>);

impl fmt::Display for For {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(span) => write!(f, " for {span:.1?}"),
            None => Ok(()),
        }
    }
}
