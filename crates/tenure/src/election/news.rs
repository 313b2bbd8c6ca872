//! What happens in an election, as it is told.

use std::fmt;
use std::time::SystemTime;

use crate::event::{Happening, Standing};
use crate::lease::Ending;
use crate::token::Token;

/// Something that happened in an election.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ElectionEvent {
    /// The role.
    pub role: String,
    /// When, by this host's clock.
    pub at: SystemTime,
    /// The term that it is about.
    pub token: Option<Token>,
    /// What happened.
    pub news: ElectionNews,
}

impl fmt::Display for ElectionEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.token {
            Some(token) => write!(f, "{}: {} (term {token})", self.role, self.news),
            None => write!(f, "{}: {}", self.role, self.news),
        }
    }
}

/// What happened in an election. A change of state is told before what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ElectionNews {
    /// The candidate stands elsewhere.
    StateChanged {
        /// What it was.
        from: Standing,
        /// What it is.
        to: Standing,
    },
    /// The candidate leads.
    LeadershipAcquired,
    /// The candidate leads no more.
    LeadershipLost {
        /// Why.
        reason: Ending,
    },
    /// The leadership cannot be asked for just now.
    ElectionFailed {
        /// What went wrong.
        cause: String,
    },
}

impl fmt::Display for ElectionNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StateChanged { from, to } => write!(f, "{} → {}", from.word(), to.word()),
            Self::LeadershipAcquired => f.write_str("leadership acquired"),
            Self::LeadershipLost { reason } => write!(f, "leadership lost ({})", reason.word()),
            Self::ElectionFailed { cause } => write!(f, "election failed: {cause}"),
        }
    }
}

impl From<&ElectionNews> for Happening {
    fn from(news: &ElectionNews) -> Self {
        match news {
            ElectionNews::StateChanged { from, to } => Self::StateChanged { from: *from, to: *to },
            ElectionNews::LeadershipAcquired => Self::LeadershipAcquired,
            ElectionNews::LeadershipLost { reason } => Self::LeadershipLost { reason: reason.word() },
            ElectionNews::ElectionFailed { cause } => Self::ElectionFailed { error: cause.clone() },
        }
    }
}
