//! What goes into the machine and what comes out of it: plain data.

use crate::event::Event;
use crate::lease::ReleaseReason;
use crate::name::InstanceId;
use crate::store::{Announcement, Continuity, Refusal, Reply, Request, StoreError};
use crate::time::Moment;
use crate::token::Token;

/// Which request a reply belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u64);

/// Which wake-up this is. One from an earlier epoch is out of date and changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Something that happened to a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Input {
    /// Look at the clock. Safe at any time; the first one sets the lease in motion.
    Tick,
    /// A wake-up that was asked for.
    Wake(Epoch),
    /// The store answered.
    Answered {
        /// Which request.
        attempt: Attempt,
        /// What it said.
        reply: Reply,
    },
    /// A request was not carried out and never will be.
    Failed {
        /// Which request.
        attempt: Attempt,
        /// Why.
        error: StoreError,
    },
    /// A request may or may not have been carried out.
    Unknown {
        /// Which request.
        attempt: Attempt,
        /// What happened.
        error: StoreError,
    },
    /// The connection is gone. Whatever was in flight has an unknown outcome.
    ConnectionLost,
    /// A new connection has entered the store.
    Attached(Continuity),
    /// Something was announced.
    Announced(Announcement),
    /// Announcements may have been missed.
    Recheck,
    /// Something else than a renewal was refused, because the term is over: a publication, say.
    Refused {
        /// The term that it was asked under.
        token: Token,
        /// Why.
        refusal: Refusal,
    },
    /// The work made progress.
    Progress,
    /// Nothing of this term's work is running any more. Answers [`Permission::MustCancel`] and
    /// [`Permission::MustBeGone`], at once when nothing was running; also said when work ends by itself.
    WorkEnded,
    /// What the user wants.
    Intent(Intent),
}

/// What a user can want of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Intent {
    /// Stop the work and let go.
    Release(ReleaseReason),
    /// Let the work in flight finish, start no more, then let go. When nothing is running, [`Input::WorkEnded`] follows
    /// at once.
    Drain(ReleaseReason),
    /// Stop the work and hand over to a named instance.
    HandOver(InstanceId),
    /// Let the work in flight finish, start no more, then hand over to a named instance; as for [`Drain`](Self::Drain).
    DrainTo(InstanceId, ReleaseReason),
}

/// Something to be done for a lease. In order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Send a request. Its answer comes back as an [`Input`] with the same attempt. Whoever sends it gives up at the
    /// moment named and then reports the outcome as unknown.
    Send {
        /// Which attempt.
        attempt: Attempt,
        /// What to send.
        request: Request,
        /// When to give up.
        give_up_at: Moment,
    },
    /// Enter the store again; the namespace is not what it was. Answered by [`Input::Attached`].
    Attach,
    /// What work may do has changed.
    Permit(Permission),
    /// The term may be relied on until this moment.
    Deadline(Moment),
    /// Come back at this moment with [`Input::Wake`]. Earlier wake-ups are out of date and need not be cancelled.
    Wake {
        /// When.
        at: Moment,
        /// What to come back with.
        epoch: Epoch,
    },
    /// Tell whoever listens.
    Emit(Event),
}

/// What work may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Permission {
    /// Nothing yet: there is no term.
    None,
    /// Work may start and run.
    MayStart {
        /// The term.
        token: Token,
    },
    /// Work that runs may go on; none may start. Starts are kept for later, not skipped.
    HoldStarts {
        /// The term.
        token: Token,
    },
    /// Work must be cancelled now and be gone by the moment named. Said again when that moment moves.
    MustCancel {
        /// When it must be gone.
        gone_by: Moment,
    },
    /// Nothing may run any more.
    MustBeGone,
}

/// What can be hoped for while a lease is pursued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireStatus {
    /// Nobody is known to have it, and it is being asked for.
    Requesting,
    /// Somebody else has it.
    Held {
        /// Who.
        holder: InstanceId,
    },
    /// The store cannot be asked, or grants nothing for now.
    Blocked {
        /// Why, when that is known.
        why: Option<String>,
    },
}

/// A lease as its user sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseState {
    /// Nothing is known yet, or the term is over.
    Unknown,
    /// The lease is ours.
    Owned,
    /// The lease is somebody else's.
    Other,
    /// The lease was ours when we last heard; no new work starts until we hear again.
    Uncertain,
}

impl LeaseState {
    /// The word for interfaces.
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
