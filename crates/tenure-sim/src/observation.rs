//! What can be seen from outside: the only thing that invariants judge by.

use std::fmt;
use std::time::Duration;

use tenure::Token;
use tenure::election::ElectionEventKind;
use tenure::lease::Loss;
use tenure::time::Moment;

use crate::faults::Fault;

/// A process, by its place in the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(pub usize);

/// A lease, by its place in the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseIndex(pub usize);

/// One term, as whoever acts in it names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TermId {
    /// Who.
    pub process: ProcessId,
    /// Which lease.
    pub lease: LeaseIndex,
    /// Which term.
    pub token: Token,
}

impl fmt::Display for TermId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} lease {} token {}", self.process.0, self.lease.0, self.token)
    }
}

/// Something that was seen.
#[derive(Clone, Debug)]
pub enum Observation {
    /// The store granted a term (or made one by hand-over; then the process is the receiver).
    Granted(TermId),
    /// The store carried out a renewal, release or hand-over that names this term.
    RequestApplied {
        /// The term it names.
        term: TermId,
        /// The token the lease had.
        current: Option<Token>,
        /// Whether it was the end of the term.
        ended: bool,
    },
    /// The store accepted a publication.
    Published {
        /// The term it names.
        term: TermId,
        /// Whether that term had the lease in the store just then, by holder and token, and had not expired.
        is_current: bool,
        /// Whether it had been granted or renewed for that long, as was seen from outside.
        is_alive: bool,
    },
    /// A process has entered, and told the store of the highest token that it remembers.
    Attached {
        /// That token.
        high_water: Option<Token>,
    },
    /// An operator ended the current term of a lease.
    Revoked(LeaseIndex),
    /// Nothing is granted for this long.
    Quarantined {
        /// How long.
        remaining: Duration,
        /// The longest that could be relied on when it was begun, as far as those knew who began it.
        at_most: Duration,
    },
    /// A request to renew left its process.
    RenewSent(TermId),
    /// A request that ends a term left its process.
    ReleaseSent(TermId),
    /// A term began because its holder was named by the last one, or because the last one made no progress.
    Transferred {
        /// Whether the last one was asked for it.
        handed_over: bool,
    },
    /// A candidate told something about its election.
    ElectionReported {
        /// Who.
        process: ProcessId,
        /// Of which role.
        lease: LeaseIndex,
        /// The term it is about.
        token: Option<Token>,
        /// What.
        event: ElectionEventKind,
    },
    /// A machine said that its term is lost.
    Lost(TermId, Loss),
    /// A machine said that work may start.
    MayStart(TermId),
    /// Work started.
    WorkStarted(TermId),
    /// Work did something.
    Acted {
        /// The term it was done in.
        term: TermId,
        /// The process's own clock.
        local: Moment,
        /// Until when the term may be relied on, worked out from when requests were sent.
        valid_until: Moment,
    },
    /// Work whose check had passed before its process was stopped did something after it went on.
    ActedLate(TermId),
    /// Work ended.
    WorkEnded(TermId),
    /// A process was stopped; nothing of it runs.
    Stopped(ProcessId),
    /// A process goes on.
    Resumed(ProcessId),
    /// A process is gone, with everything it did.
    Crashed(ProcessId),
    /// A fault happened.
    Fault(Fault),
    /// A newcomer took a lost namespace for a new one, or closed it for too short a time, because nobody told it better.
    BootstrappedTooSoon,
    /// Nothing goes wrong for this long, and by then every lease must be held, or have been; then the storm goes on.
    Lull {
        /// The bound.
        within: Duration,
    },
    /// From now on nothing goes wrong, and every lease must be worked on within this time.
    Calm {
        /// The bound.
        within: Duration,
    },
}
