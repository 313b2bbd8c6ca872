//! Keeps many leases at once: one thread per process and store, with a runtime, a timer and a connection of its own.
//!
//! User code cannot hold it up. It never logs, never calls back, and takes no lock that anybody else can hold; what
//! happened leaves through a bounded queue that drops and counts when nobody empties it. Work that blocks every thread
//! of the program's own runtime does not stop renewals.
//!
//! | file | what it is |
//! |---|---|
//! | `manager.rs` | all leases: which is looked at when, what is sent, who is told; no I/O, no clock |
//! | `thread.rs` | the loop around it |
//! | `link.rs` | the connection and the subscription, made and replaced beside the loop |
//! | `alarm.rs` | a timer that counts suspend |
//! | `heartbeat_timer.rs` | this instance's place in the fleet |
//! | `subscribers.rs` | who hears every announcement |
//! | `observers.rs` | who looks at a lease without wanting it |
//! | `server_clock.rs` | what the store's clock shows |
//! | `shared.rs` | what a holder sees of its term without asking |
//! | `event_queue.rs` | where events go |
//! | `store_calls.rs` | what is asked beside leases, and in which order |

mod alarm;
mod ended_terms;
mod event_queue;
mod heartbeat_timer;
mod lease_table;
mod link;
#[cfg(feature = "tracing")]
mod log_folding;
mod manager;
mod notes;
mod observers;
mod server_clock;
mod shared;
mod store_calls;
mod subscribers;
mod thread;
mod timers;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{Notify, mpsc, oneshot, watch};

pub(crate) use event_queue::{EventQueue, EventStreams, Listener};
pub(crate) use server_clock::{local_moment, server_time};
pub(crate) use shared::{SharedTerm, WorkStart};
pub(crate) use thread::{KeeperConfig, start};

use crate::election::ElectionError;
use crate::event::Event;
use crate::histogram::{Histogram, RecentMax};
use crate::lease::{AcquireStatus, Intent, LeaseSettings, ReleaseReason, SettingsError};
use crate::name::{Group, InstanceId, LeaseName, NameError};
use crate::store::{ErrorKind, Outcome, Quarantine, Request, StoreError, SubscriptionItem};
use crate::tenure::TermHandle;

/// One lease being driven. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeaseId(u64);

impl LeaseId {
    fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    fn index(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// One wish to have a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WaiterId(u64);

/// Whether to wait for a lease that somebody else has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcquireMode {
    Try,
    Wait,
}

/// Somebody who wants a lease.
pub(crate) struct Waiter {
    pub(crate) id: WaiterId,
    pub(crate) name: LeaseName,
    pub(crate) settings: Arc<LeaseSettings>,
    pub(crate) mode: AcquireMode,
    pub(crate) timeout: Option<Duration>,
    pub(crate) keeper: Arc<KeeperHandle>,
    pub(crate) reply: oneshot::Sender<Result<TermGuard, AcquireError>>,
    /// Who wants to know how it goes meanwhile.
    pub(crate) status_sender: Option<StatusSender>,
    /// Sent with every claim and every renewal.
    pub(crate) heartbeat: Option<Arc<Heartbeat>>,
}

/// What a candidate says about itself.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    pub(crate) group: Group,
    /// For how long it may be believed.
    pub(crate) ttl: Duration,
    pub(crate) record: Vec<u8>,
}

/// Somebody who is told whenever the outlook of a claim changes.
pub(crate) struct StatusSender {
    sender: mpsc::UnboundedSender<AcquireStatus>,
    last: Option<AcquireStatus>,
}

impl StatusSender {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<AcquireStatus>) {
        let (sender, heard) = mpsc::unbounded_channel();
        (Self { sender, last: None }, heard)
    }

    fn send(&mut self, status: AcquireStatus) {
        if self.last.as_ref() != Some(&status) {
            self.last = Some(status.clone());
            // Whoever looked on may have left.
            let _ = self.sender.send(status);
        }
    }
}

impl Waiter {
    /// Returns whether somebody still waits for it.
    fn grant(self, granted: TermGuard) -> bool {
        self.reply.send(Ok(granted)).is_ok()
    }

    fn refuse(self, error: AcquireError) {
        let _ = self.reply.send(Err(error));
    }
}

/// A term that somebody owns. Dropping it lets go of the lease.
pub(crate) struct TermGuard {
    handle: TermHandle,
    /// Why it is let go of when it is.
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
        // One that was told to stop is being let go of, or handed over, already.
        if !shared.is_over() && !shared.is_stopped() {
            shared.keeper.send(Command::Intent(shared.id(), Intent::Release(self.reason)));
        }
    }
}

/// How long what can wait does.
const DEFERRED_CALL_DELAY: Duration = Duration::from_millis(20);

/// Something asked of the store for a user.
pub(crate) struct StoreCall {
    pub(crate) request: Request,
    pub(crate) timeout: Duration,
    /// Whether work waits for it. Those who only look on are behind that.
    pub(crate) is_work: bool,
    pub(crate) reply: oneshot::Sender<Outcome>,
}

impl StoreCall {
    /// There was no connection in time.
    fn fail(self, because: Option<StoreError>) {
        let error = because
            .unwrap_or_else(|| StoreError::new(ErrorKind::Unreachable, "there is no connection to the store just now"));
        // Whoever asked may have given up.
        let _ = self.reply.send(Outcome::Failed(error));
    }
}

/// What users tell the keeper.
pub(crate) enum Command {
    Acquire(Waiter),
    GiveUp(WaiterId),
    Intent(LeaseId, Intent),
    WorkEnded(LeaseId),
    Progress(LeaseId),
    Call(StoreCall),
    /// Several things at once, in order.
    CallAll(Vec<StoreCall>),
    /// Somebody who looks at a lease wants to know when to look again.
    Observe(LeaseName, Weak<Notify>),
    /// Somebody wants to hear every announcement.
    Subscribe(mpsc::Sender<SubscriptionItem>),
    /// Takes a place in the fleet, or changes what is said of it.
    JoinFleet {
        heartbeat: Arc<Heartbeat>,
        every: Duration,
    },
    /// Leaves it.
    LeaveFleet,
    /// Something to be told to whoever hears events.
    Emit(Event),
    ShutDown,
}

/// How it stands with the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// Nobody knows yet.
    Pending,
    Attached,
    Lost(StoreError),
    /// The keeper has ended.
    Closed,
}

/// The way to the keeper, shared by everything that a user holds.
pub(crate) struct KeeperHandle {
    pub(crate) instance: InstanceId,
    pub(crate) location: String,
    commands: mpsc::UnboundedSender<Command>,
    pub(crate) connection_state: watch::Receiver<ConnectionState>,
    pub(crate) gauges: Arc<Gauges>,
    next_waiter_id: AtomicU64,
    /// What can wait for a moment.
    deferred_calls: Mutex<Vec<StoreCall>>,
    process: rustix::process::Pid,
}

impl KeeperHandle {
    /// Asks something that can wait for a moment, together with whatever else can: waking the keeper costs more than the question.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(crate) fn call_deferred(self: &Arc<Self>, call: StoreCall) {
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

    /// Asks what was to be asked soon.
    pub(crate) fn flush_deferred_calls(&self) {
        let store_calls = std::mem::take(&mut *self.deferred_calls.lock().unwrap_or_else(PoisonError::into_inner));
        if !store_calls.is_empty() {
            self.send(Command::CallAll(store_calls));
        }
    }

    /// Tells the keeper something. When it has ended, so has everything that this could be about.
    pub(crate) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    pub(crate) fn new_waiter_id(&self) -> WaiterId {
        WaiterId(self.next_waiter_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether this is a forked child, in which there is no keeper.
    pub(crate) fn is_forked(&self) -> bool {
        rustix::process::getpid() != self.process
    }
}

/// Numbers about the keeper.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) held: AtomicU64,
    pub(crate) lag: RecentMax,
    /// Whether events are kept out of the log.
    pub(crate) unlogged: AtomicBool,
    pub(crate) events_dropped: AtomicU64,
    pub(crate) notes_dropped: AtomicU64,
    /// Server time less the lease clock, in microseconds, as last seen.
    pub(crate) server_offset: AtomicI64,
    /// How many hear of everything, and how many of all but the routine.
    pub(crate) all_listeners: AtomicU64,
    pub(crate) notable_listeners: AtomicU64,
    /// From sending a renewal to its answer.
    pub(crate) renewals: Histogram,
}

/// Why a lease was not acquired.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Somebody else has it. Trying again is safe.
    #[error("the lease is held by {holder}{}", For(*remaining))]
    Held {
        /// Who has it: this very instance, when another task of this process has it or waits for it.
        holder: InstanceId,
        /// How long it is theirs without renewal, when that is known.
        remaining: Option<Duration>,
    },
    /// The store grants nothing for now. Trying again later is safe.
    #[error("no lease is granted: {0}")]
    Quarantined(Quarantine),
    /// This [`Tenure`](crate::Tenure) was opened to [observe](crate::TenureBuilder::observer).
    #[error("cannot acquire a lease: this instance only observes")]
    Observer,
    /// The limit passed. Trying again is safe.
    #[error("the lease was not to be had within {waited:?}{}{}", HeldBy(holder.as_ref()), Because(because.as_ref()))]
    TimedOut {
        /// How long was waited.
        waited: Duration,
        /// Who has it, when somebody was seen to.
        holder: Option<InstanceId>,
        /// What is wrong with the store, when that was in the way.
        because: Option<StoreError>,
    },
    /// The store could not be asked; [`StoreError::is_retryable`] says whether trying again may help.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The name is not acceptable.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The settings do not fit together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The election cannot be held like this.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// This [`Tenure`](crate::Tenure) was shut down.
    #[error("tenure was shut down")]
    ShutDown,
}

/// ": api-1 has it", or nothing.
struct HeldBy<'a>(Option<&'a InstanceId>);

impl fmt::Display for HeldBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |by| write!(f, ": {by} has it"))
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
