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

/// A line of a trace: who, and what.
impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = |what: String| format!("{:<11}{what}", "store");
        let by = |process: ProcessId, what: String| format!("{:<11}{what}", format!("process {}", process.0));
        let term = |term: &TermId, what: &str| {
            by(term.process, format!("{what} (lease {}, token {})", term.lease.0, term.token))
        };
        let line = match self {
            Self::Granted(id) => {
                store(format!("grants lease {} to process {} with token {}", id.lease.0, id.process.0, id.token))
            }
            Self::RequestApplied { term: id, ended, .. } => {
                let what = if *ended { "ends" } else { "renews" };
                store(format!("{what} token {} of lease {}, held by process {}", id.token, id.lease.0, id.process.0))
            }
            Self::Published { term: id, is_current, is_alive } => {
                let doubt = if *is_current && *is_alive { "" } else { ", which is over" };
                store(format!("accepts a publication of token {} of lease {}{doubt}", id.token, id.lease.0))
            }
            Self::Attached { high_water: Some(token) } => {
                store(format!("is attached to, with a memory of token {token}"))
            }
            Self::Attached { high_water: None } => store("is attached to, without a memory".to_owned()),
            Self::Revoked(lease) => store(format!("revokes lease {} for an operator", lease.0)),
            Self::Quarantined { remaining, at_most } => {
                store(format!("is in quarantine for {remaining:.3?}, which may last {at_most:.3?}"))
            }
            Self::Transferred { handed_over: true } => store("has handed a lease over".to_owned()),
            Self::Transferred { handed_over: false } => store("has taken a lease from a stalled holder".to_owned()),
            Self::RenewSent(id) => term(id, "sends a renewal"),
            Self::ReleaseSent(id) => term(id, "sends a release or hand-over"),
            Self::ElectionReported { process, lease, token, event } => {
                let token = token.map_or_else(String::new, |token| format!(", token {token}"));
                by(*process, format!("emits {} (lease {}{token})", event.name(), lease.0))
            }
            Self::Lost(id, loss) => term(id, &format!("has lost its term, {loss}")),
            Self::MayStart(id) => term(id, "may start work"),
            Self::WorkStarted(id) => term(id, "starts work"),
            Self::Acted { term: id, local, valid_until } => {
                term(id, &format!("acts, {:.3?} before the end of its validity", valid_until.since(*local)))
            }
            Self::ActedLate(id) => term(id, "acts after it was stopped, although its check is old"),
            Self::WorkEnded(id) => term(id, "ends work"),
            Self::Stopped(process) => by(*process, "is stopped".to_owned()),
            Self::Resumed(process) => by(*process, "goes on".to_owned()),
            Self::Crashed(process) => by(*process, "dies".to_owned()),
            Self::Fault(fault) => format!("{:<11}{}: {fault:?}", "FAULT", fault.name()),
            Self::BootstrappedTooSoon => store("begins anew, since no process with a memory is attached".to_owned()),
            Self::LostGrantUnknown => store("begins a quarantine that does not know of its last grant".to_owned()),
            Self::Lull { within } => format!("{:<11}for {within:.3?} no fault happens", "LULL"),
            Self::Calm { within } => {
                format!("{:<11}no fault happens any more; work must run within {within:.3?}", "CALM")
            }
        };
        f.write_str(&line)
    }
}
