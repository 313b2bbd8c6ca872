//! Events seen from outside: the only input of the invariants.

use std::fmt;
use std::time::Duration;

use tenure_core::EventKind;
use tenure_core::Token;
use tenure_core::ending::Loss;
use tenure_core::time::Moment;

use crate::faults::Fault;

/// A process, by its index in the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(pub usize);

/// A lease, by its index in the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseIndex(pub usize);

/// One term, as its process identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TermId {
    /// The process that holds the term.
    pub process: ProcessId,
    /// The lease.
    pub lease: LeaseIndex,
    /// The token of the term.
    pub token: Token,
}

impl fmt::Display for TermId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} lease {} token {}", self.process.0, self.lease.0, self.token)
    }
}

/// One observed event.
#[derive(Clone, Debug)]
pub enum Observation {
    /// The store granted a term. After a hand-over the process is the receiver.
    Granted(TermId),
    /// The store applied a renewal, release or hand-over that names this term.
    RequestApplied {
        /// The term that the request names.
        term: TermId,
        /// The token that the lease had.
        current: Option<Token>,
        /// Whether the request ended the term.
        ended: bool,
    },
    /// The store accepted a publication.
    Published {
        /// The term that the publication names.
        term: TermId,
        /// Whether that term held the lease in the store at that moment, by holder and token, and had not expired.
        is_current: bool,
        /// Whether the observed grants and renewals cover that moment.
        is_alive: bool,
    },
    /// A process attached and reported the highest token that it remembers.
    Attached {
        /// That token.
        high_water: Option<Token>,
    },
    /// An operator revoked the current term of a lease.
    Revoked(LeaseIndex),
    /// The store grants no lease for this long.
    Quarantined {
        /// Remaining time of the quarantine.
        remaining: Duration,
        /// The longest time that any lease could be relied on when the quarantine began, as far as the process that
        /// began it knew.
        at_most: Duration,
    },
    /// A process sent a renewal.
    RenewSent(TermId),
    /// A process sent a request that ends a term.
    ReleaseSent(TermId),
    /// A term began because the previous holder named its successor, or because the previous holder made no progress.
    Transferred {
        /// Whether the previous holder handed the lease over.
        handed_over: bool,
    },
    /// A candidate reported an election event.
    ElectionReported {
        /// The candidate.
        process: ProcessId,
        /// The role.
        lease: LeaseIndex,
        /// The term that the event is about.
        token: Option<Token>,
        /// The kind of event.
        event: EventKind,
    },
    /// A machine reported the loss of its term.
    Lost(TermId, Loss),
    /// A machine permitted work to start.
    MayStart(TermId),
    /// Work started.
    WorkStarted(TermId),
    /// Work performed an action.
    Acted {
        /// The term of the action.
        term: TermId,
        /// Time of the process's own clock.
        local: Moment,
        /// End of the term's validity, computed from the times at which requests were sent.
        valid_until: Moment,
    },
    /// Work whose check had passed before its process was stopped acted after the process resumed.
    ActedLate(TermId),
    /// Work ended.
    WorkEnded(TermId),
    /// A process was stopped: none of its code runs.
    Stopped(ProcessId),
    /// A process resumed.
    Resumed(ProcessId),
    /// A process died, and its work with it.
    Crashed(ProcessId),
    /// A fault happened.
    Fault(Fault),
    /// A new process initialised a lost namespace without a quarantine, or with one that was too short, because no
    /// process with a memory of it was attached.
    BootstrappedTooSoon,
    /// The store lost the last grant. A process that had not heard of its ttl noticed the loss first, and began a
    /// quarantine that is too short for it.
    LostGrantUnknown,
    /// No fault happens for this long. By then every lease must be held or have been held; then the storm goes on.
    Lull {
        /// The bound.
        within: Duration,
    },
    /// No fault happens any more. Every lease must have work running within this time.
    Calm {
        /// The bound.
        within: Duration,
    },
}
