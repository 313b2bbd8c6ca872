//! The inputs and outputs of the state machine: plain data.

use crate::ending::ReleaseReason;
use crate::event::Event;
use crate::name::InstanceId;
use crate::store::{Announcement, Continuity, LeaseRequest, Refusal, Reply, StoreError};
use crate::time::Moment;
use crate::token::Token;

/// Identifies the request that a reply belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u64);

/// Identifies a wake-up. One with an earlier epoch is stale and has no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Something that happened to a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Check the clock. Safe at any time; the first one starts the lease.
    Tick,
    /// A wake-up requested with [`Action::Wake`].
    Wake(Epoch),
    /// The store replied.
    Answered {
        /// The request.
        attempt: Attempt,
        /// The reply.
        reply: Reply,
    },
    /// A request was not executed and never will be.
    Failed {
        /// The request.
        attempt: Attempt,
        /// The cause.
        error: StoreError,
    },
    /// A request may or may not have been executed.
    Unknown {
        /// The request.
        attempt: Attempt,
        /// The cause.
        error: StoreError,
    },
    /// The connection was lost. Every request in flight has an unknown outcome.
    ConnectionLost,
    /// A new connection has attached to the store.
    Attached(Continuity),
    /// An announcement arrived.
    Announced(Announcement),
    /// Announcements may have been missed.
    Recheck,
    /// The store refused a request other than a renewal because the term is over: a publication, for example.
    Refused {
        /// The term that the request named.
        token: Token,
        /// Why the store refused it.
        refusal: Refusal,
    },
    /// The work made progress.
    Progress,
    /// None of this term's work is running any more. The reply to [`Permission::MustCancel`] and
    /// [`Permission::MustBeGone`], sent at once when nothing was running. Also sent when work ends by itself.
    WorkEnded,
    /// The caller's intent.
    Intent(Intent),
}

/// What a caller can request of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Stop the work and release the lease.
    Release(ReleaseReason),
    /// Let the work in flight finish, start no more, then release the lease. When nothing is running,
    /// [`Input::WorkEnded`] follows at once.
    Drain(ReleaseReason),
    /// Stop the work and hand the lease over to a named instance.
    HandOver(InstanceId),
    /// Let the work in flight finish, start no more, then hand over to a named instance; as for [`Drain`](Self::Drain).
    DrainTo(InstanceId, ReleaseReason),
}

/// What the driver must do for a lease, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a request. Its outcome comes back as an [`Input`] with the same attempt. The driver gives up at
    /// `give_up_at` and then reports the outcome as unknown.
    Send {
        /// The attempt.
        attempt: Attempt,
        /// The request to send.
        request: LeaseRequest,
        /// When to give up.
        give_up_at: Moment,
    },
    /// Attach to the store again, because the namespace has changed. Answered by [`Input::Attached`].
    Attach,
    /// The permission of the work has changed.
    Permit(Permission),
    /// The term may be relied on until this moment.
    Deadline(Moment),
    /// Pass [`Input::Wake`] at this moment. Earlier wake-ups are stale and need not be cancelled.
    Wake {
        /// When.
        at: Moment,
        /// The epoch to pass with it.
        epoch: Epoch,
    },
    /// Emit an event to the listeners.
    Emit(Event),
}

/// What work may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Nothing yet: there is no term.
    None,
    /// Work may start and run.
    MayStart {
        /// The term.
        token: Token,
    },
    /// Running work may continue; none may start. Starts are deferred, not skipped.
    HoldStarts {
        /// The term.
        token: Token,
    },
    /// Work must be cancelled now and be gone by `gone_by`. Repeated when that moment moves.
    MustCancel {
        /// When it must be gone.
        gone_by: Moment,
    },
    /// Nothing may run any more.
    MustBeGone,
}

/// The status of an acquisition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireStatus {
    /// No holder is known, and a request is being sent.
    Requesting,
    /// Another instance holds the lease.
    Held {
        /// The holder.
        holder: InstanceId,
    },
    /// The store cannot be reached, or grants nothing for now.
    Blocked {
        /// The cause, if known.
        why: Option<String>,
    },
}

/// A lease as the caller sees it.
///
/// ```
/// use tenure::Tenure;
/// use tenure::lease::LeaseState;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("import").acquire().await?;
/// match lease.state() {
///     LeaseState::Owned => println!("begin the next step"),
///     LeaseState::Uncertain => println!("finish the step, and begin no other"),
///     LeaseState::Unknown | LeaseState::Other => println!("stop"),
/// }
/// assert_eq!(lease.state().as_str(), "owned");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseState {
    /// No reply yet, or the term is over.
    Unknown,
    /// This instance holds the lease.
    Owned,
    /// Another instance holds the lease.
    Other,
    /// This instance held the lease at the last reply. No new work starts until a renewal succeeds.
    Uncertain,
}

impl LeaseState {
    /// The name used in interfaces.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Owned => "owned",
            Self::Other => "other",
            Self::Uncertain => "uncertain",
        }
    }
}

impl std::fmt::Display for LeaseState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
