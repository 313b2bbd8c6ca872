//! How the program ends.

use tenure::AcquireError;
use tenure::election::ElectionError;
use tenure::store::{ErrorKind, StoreError};
use thiserror::Error;

use crate::duration::format_duration;

/// Done.
pub const DONE: u8 = 0;
/// The answer is no.
pub const NO: u8 = 1;
/// Wrong usage.
pub const USAGE: u8 = 64;
/// The store cannot be reached, or refuses.
pub const UNAVAILABLE: u8 = 69;
/// Something that should not happen.
pub const SOFTWARE: u8 = 70;
/// The address cannot be listened on.
pub const CANNOT_LISTEN: u8 = 71;
/// The folder of the embedded store, or a file of the user's, cannot be written.
pub const CANNOT_WRITE: u8 = 73;
/// Not leader.
pub const NOT_LEADER: u8 = 75;
/// The lease was lost while the command was running.
pub const LEASE_LOST: u8 = 76;

/// Why a command could not be carried out.
#[derive(Debug, Error)]
pub enum CliError {
    /// The user asked for something that cannot be.
    #[error("{0}")]
    Usage(String),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store grants nothing for now.
    #[error("{0}")]
    Refused(String),
    /// Somebody else leads, and was not to be waited for any longer.
    #[error("{0}")]
    NotLeader(String),
    /// The address cannot be listened on.
    #[error("{0}")]
    Listen(String),
    /// The folder of the embedded store, or a file of the user's, cannot be written.
    #[error("{0}")]
    CannotWrite(String),
    /// The system.
    #[error("{action}: {error}")]
    System {
        /// What was tried.
        action: String,
        /// What came of it.
        error: std::io::Error,
    },
}

impl CliError {
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::Store(error) if error.kind() == ErrorKind::Address => USAGE,
            Self::Store(_) | Self::Refused(_) => UNAVAILABLE,
            Self::NotLeader(_) => NOT_LEADER,
            Self::Listen(_) => CANNOT_LISTEN,
            Self::CannotWrite(_) => CANNOT_WRITE,
            Self::System { .. } => SOFTWARE,
        }
    }

    /// For `map_err`: what was tried.
    pub fn system(action: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::System { action: action.into(), error }
    }
}

impl From<ElectionError> for CliError {
    fn from(error: ElectionError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<AcquireError> for CliError {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Store(error) | AcquireError::TimedOut { because: Some(error), .. } => Self::Store(error),
            // Without an answer of the store it is not known whether there is a holder.
            AcquireError::TimedOut { holder: None, waited, .. } => Self::Store(StoreError::new(
                ErrorKind::Unreachable,
                format!("no answer within {}", format_duration(waited)),
            )),
            AcquireError::Quarantined(_) => Self::Refused(error.to_string()),
            AcquireError::Name(_) | AcquireError::Settings(_) | AcquireError::Election(_) => {
                Self::Usage(error.to_string())
            }
            other => Self::NotLeader(other.to_string()),
        }
    }
}
