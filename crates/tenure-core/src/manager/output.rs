//! What goes into the manager and what comes out of it: plain data.

use std::sync::Arc;
use std::time::Duration;

use crate::ending::Ending;
use crate::event::Event;
use crate::lease::{AcquireStatus, Attempt, LeaseSettings, Permission};
use crate::name::{Group, InstanceId, LeaseName};
use crate::store::{Announcement, AttachRequest, Holding, MembershipRequest, Outcome, Quarantine, Request, StoreError};
use crate::time::Moment;
use crate::token::Token;

use super::Heartbeat;

slotmap::new_key_type! {
    /// Identifies one driven lease. The id of a lease that is gone finds nothing.
    pub struct LeaseId;
}

/// Identifies a caller that acquires a lease. The executor chooses it, and never twice the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

/// Identifies a store request on behalf of a caller. The executor chooses it, and never twice the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Identifies a connection, or the attempt to make one. What is reported of an earlier one has no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub(super) u64);

/// Whether to wait for a lease that another instance holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireMode {
    /// One attempt.
    Try,
    /// Wait until it is granted.
    Wait,
}

/// A caller's request for a lease.
#[derive(Clone, Debug)]
pub struct AcquireRequest {
    /// The caller.
    pub waiter: WaiterId,
    /// The lease.
    pub name: LeaseName,
    /// Its settings.
    pub settings: Arc<LeaseSettings>,
    /// Whether to wait.
    pub mode: AcquireMode,
    /// How long to wait at most.
    pub timeout: Option<Duration>,
    /// Sent with every claim and every renewal.
    pub heartbeat: Option<Arc<Heartbeat>>,
    /// Whether the caller wants to know the status of the acquisition.
    pub wants_status: bool,
}

/// Why a lease was not acquired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireRefusal {
    /// Another instance holds it, or another caller of this process.
    Held {
        /// The holder.
        holder: InstanceId,
        /// How long it holds the lease without renewal, if known.
        remaining: Option<Duration>,
    },
    /// The store grants nothing for now.
    Quarantined(Quarantine),
    /// This process only observes.
    Observer,
    /// The caller's timeout has passed.
    TimedOut {
        /// How long the caller waited.
        waited: Duration,
        /// The holder, if one was seen.
        holder: Option<InstanceId>,
        /// The error of the store, if that was the obstacle.
        because: Option<StoreError>,
    },
    /// The store could not be reached, or refuses for a reason that waiting does not fix.
    Store(StoreError),
    /// The manager is shutting down.
    ShutDown,
}

/// A store request on behalf of a caller.
#[derive(Clone, Debug)]
pub struct StoreCall {
    /// Identifies the call.
    pub id: CallId,
    /// The request.
    pub request: Request,
    /// How long the caller waits for the reply.
    pub timeout: Duration,
    /// Whether work waits for it. Calls that only observe come after those.
    pub is_work: bool,
}

/// Whether requests reach the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionChange {
    /// A connection has attached.
    Attached,
    /// There is no connection.
    Lost(StoreError),
}

/// What a holder may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The token; `None` when the term is over.
    pub token: Option<Token>,
    /// D; zero when the term cannot be relied on.
    pub deadline: Moment,
    /// When the term began.
    pub acquired_at: Moment,
    /// When it was last renewed.
    pub renewed_at: Moment,
}

/// What the executor must do, in order.
#[derive(Debug)]
pub enum Output {
    /// Connect and attach, and report [`attached`](super::LeaseManager::attached) within the timeout. The subscription to
    /// announcements is to be made anew, too, once it has attached.
    Attach {
        /// The attempt.
        link: LinkId,
        /// What to send.
        request: Box<AttachRequest>,
        /// When to give up.
        timeout: Duration,
    },
    /// Send these requests together, in order, and report [`answered`](super::LeaseManager::answered).
    Send(Batch),
    /// Close the connection, with a reset. Nothing of it is to be reported any more.
    Disconnect,
    /// Tell what became of the connection.
    Connection(ConnectionChange),
    /// Pass an announcement on to those who subscribe to it, or watch a lease.
    Announced(Announcement),
    /// Tell them that announcements may have been missed.
    MissedAnnouncements,
    /// Give a term to the caller that waited for it. If it no longer waits, release the term.
    Granted {
        /// The caller.
        waiter: WaiterId,
        /// The lease.
        lease: LeaseId,
    },
    /// Tell a caller that it does not get the lease.
    Refused {
        /// The caller.
        waiter: WaiterId,
        /// Why.
        refusal: AcquireRefusal,
    },
    /// Tell a caller how the acquisition stands.
    Status {
        /// The caller.
        waiter: WaiterId,
        /// The status.
        status: AcquireStatus,
    },
    /// A term has begun. It ends with [`TermEnded`](Self::TermEnded).
    TermBegan {
        /// The lease.
        lease: LeaseId,
        /// Its name.
        name: LeaseName,
        /// Its settings.
        settings: Arc<LeaseSettings>,
    },
    /// Tell the holder what it may rely on.
    TermUpdated {
        /// The lease.
        lease: LeaseId,
        /// What it may rely on.
        validity: Validity,
    },
    /// Record why work is about to be cancelled. The first cause of a term counts.
    TermCause {
        /// The lease.
        lease: LeaseId,
        /// The cause.
        cause: Ending,
    },
    /// Pass a permission on to the work. If it is to stop and no work is running, report
    /// [`work_ended`](super::LeaseManager::work_ended) at once; otherwise when it has ended.
    Permit {
        /// The lease.
        lease: LeaseId,
        /// The permission.
        permission: Permission,
    },
    /// Let no more work start, and report [`work_ended`](super::LeaseManager::work_ended) when none is running: the lease
    /// is released then.
    Drain {
        /// The lease.
        lease: LeaseId,
    },
    /// A term is over, with its work and its release.
    TermEnded {
        /// The lease.
        lease: LeaseId,
        /// How it ended.
        ending: Ending,
        /// Whether no reply to the release came before the lease expired.
        is_release_unknown: bool,
    },
    /// Pass the outcome of a call on to its caller.
    Replied {
        /// The call.
        call: CallId,
        /// Its outcome.
        outcome: Outcome,
    },
    /// Emit an event to the listeners.
    Emit(Event),
    /// Count the round-trip time of a renewal.
    Renewed(Duration),
}

/// Requests to be sent together, and the recipients of their replies.
#[derive(Debug)]
pub struct Batch {
    /// The connection.
    pub link: LinkId,
    /// The requests, in order.
    pub requests: Vec<Request>,
    /// The recipients, to be passed back with the outcomes.
    pub recipients: Recipients,
    /// When to give up: the outcome of what is not answered by then is unknown.
    pub timeout: Duration,
}

/// The recipients of the replies to a batch.
#[derive(Debug)]
pub struct Recipients(pub(super) Vec<ReplyTo>);

/// A request to be sent, and the recipient of its reply.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) request: Request,
    pub(super) give_up_at: Moment,
    pub(super) reply_to: ReplyTo,
}

/// The recipient of a reply.
#[derive(Debug)]
pub(super) enum ReplyTo {
    Lease(LeaseId, Attempt),
    Caller(CallId),
    /// A caller that no work depends on.
    LowPriority(CallId),
    /// A caller that publishes a result of this term.
    Publication(Box<Holding>, CallId),
    /// No caller waits for the reply.
    Unawaited(Unawaited),
}

/// The purpose of a request whose reply no caller waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unawaited {
    /// To say in this group that this instance is there.
    Heartbeat(Group),
    /// To record or announce what happened.
    Record,
    /// To read, or to keep lists in order.
    Upkeep,
}

impl Unawaited {
    pub(super) fn of(request: &Request) -> Self {
        match request {
            Request::Membership(MembershipRequest::Heartbeat { group, .. }) => Self::Heartbeat(group.clone()),
            Request::Log(_) | Request::Announce(_) => Self::Record,
            Request::Membership(_) | Request::Lease(_) | Request::Document(_) => Self::Upkeep,
        }
    }
}

impl ReplyTo {
    /// The call that waits for the reply, if one does.
    pub(super) fn call(&self) -> Option<CallId> {
        match self {
            Self::Caller(call) | Self::LowPriority(call) | Self::Publication(_, call) => Some(*call),
            Self::Lease(..) | Self::Unawaited(_) => None,
        }
    }
}
