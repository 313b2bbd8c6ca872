//! Exit statuses and the errors that lead to them.

use tenure::election::ElectionError;
use tenure::store::{ErrorKind, StoreError};
use tenure::{AcquireError, ConnectError, RequestError};
use thiserror::Error;

use crate::duration::format_duration;

/// The command succeeded.
pub const DONE: u8 = 0;
/// The answer is no.
pub const NO: u8 = 1;
/// Wrong usage.
pub const USAGE: u8 = 64;
/// The store is unreachable, or refuses.
pub const UNAVAILABLE: u8 = 69;
/// Internal error.
pub const SOFTWARE: u8 = 70;
/// The system refuses: an address to listen on, a thread, an open file.
pub const OS_ERROR: u8 = 71;
/// The program cannot write the folder of the embedded store, or a file of the user.
pub const CANNOT_WRITE: u8 = 73;
/// Not leader.
pub const NOT_LEADER: u8 = 75;
/// The lease was lost while the command was running.
pub const LEASE_LOST: u8 = 76;

/// Reason why a command failed.
#[derive(Debug, Error)]
pub enum CliError {
    /// Invalid arguments or settings.
    #[error("{0}")]
    Usage(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store did not reply: the change may have been made.
    #[error("{0}")]
    Unknown(String),
    /// The store grants no lease at present.
    #[error("{0}")]
    Refused(String),
    /// Another instance leads, and the time to wait for it has passed.
    #[error("{0}")]
    NotLeader(String),
    /// The program cannot listen on the address.
    #[error("{0}")]
    Listen(String),
    /// The program cannot write the folder of the embedded store, or a file of the user.
    #[error("{0}")]
    CannotWrite(String),
    /// A system call failed.
    #[error("{action}: {error}")]
    System {
        /// The failed action, such as `cannot write`.
        action: String,
        /// The cause.
        error: std::io::Error,
    },
}

impl CliError {
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::Store(error) if error.kind() == ErrorKind::Address => USAGE,
            Self::Store(_) | Self::Unknown(_) | Self::Refused(_) => UNAVAILABLE,
            Self::NotLeader(_) => NOT_LEADER,
            Self::Listen(_) => OS_ERROR,
            Self::CannotWrite(_) => CANNOT_WRITE,
            Self::System { .. } => SOFTWARE,
        }
    }

    /// Returns a converter for `map_err`, with the failed action.
    pub fn system(action: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::System { action: action.into(), error }
    }
}

impl From<ConnectError> for CliError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Store(error) => Self::Store(error),
            error => Self::Usage(error.to_string()),
        }
    }
}

impl From<RequestError> for CliError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Name(error) => Self::Usage(error.to_string()),
            RequestError::Store(error) => Self::Store(error),
            error => Self::Unknown(error.to_string()),
        }
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
            // Without a reply of the store the program does not know whether there is a holder.
            AcquireError::TimedOut { holder: None, waited, .. } => Self::Store(StoreError::new(
                ErrorKind::Unreachable,
                format!("no reply within {}", format_duration(waited)),
            )),
            AcquireError::Quarantined(_) => Self::Refused(error.to_string()),
            AcquireError::Name(_) | AcquireError::Settings(_) | AcquireError::Election(_) => {
                Self::Usage(error.to_string())
            }
            other => Self::NotLeader(other.to_string()),
        }
    }
}
