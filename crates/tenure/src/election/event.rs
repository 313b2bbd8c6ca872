//! The events of an election.

use std::fmt;
use std::time::SystemTime;

use crate::event::{ElectionState, EventKind};
use crate::lease::Ending;
use crate::token::Token;

/// An event of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ElectionEvent {
    /// The role.
    pub role: String,
    /// When, by this host's clock.
    pub at: SystemTime,
    /// The token of its term.
    pub token: Option<Token>,
    /// The kind of event.
    pub kind: ElectionEventKind,
}

impl fmt::Display for ElectionEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.token {
            Some(token) => write!(f, "{}: {} (term {token})", self.role, self.kind),
            None => write!(f, "{}: {}", self.role, self.kind),
        }
    }
}

/// The kind of an election event. A change of state is emitted before its consequence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ElectionEventKind {
    /// The candidate's state changed.
    StateChanged {
        /// The state before.
        from: ElectionState,
        /// The state now.
        to: ElectionState,
    },
    /// The candidate leads.
    LeadershipAcquired,
    /// The candidate no longer leads.
    LeadershipLost {
        /// Why.
        reason: Ending,
    },
    /// The candidate cannot campaign now.
    ElectionFailed {
        /// What went wrong.
        cause: String,
    },
}

impl fmt::Display for ElectionEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StateChanged { from, to } => write!(f, "{} → {}", from.as_str(), to.as_str()),
            Self::LeadershipAcquired => f.write_str("leadership acquired"),
            Self::LeadershipLost { reason } => write!(f, "leadership lost ({})", reason.as_str()),
            Self::ElectionFailed { cause } => write!(f, "election failed: {cause}"),
        }
    }
}

impl From<&ElectionEventKind> for EventKind {
    fn from(kind: &ElectionEventKind) -> Self {
        match kind {
            ElectionEventKind::StateChanged { from, to } => Self::StateChanged { from: *from, to: *to },
            ElectionEventKind::LeadershipAcquired => Self::LeadershipAcquired,
            ElectionEventKind::LeadershipLost { reason } => Self::LeadershipLost { reason: reason.as_str() },
            ElectionEventKind::ElectionFailed { cause } => Self::ElectionFailed { error: cause.clone() },
        }
    }
}
