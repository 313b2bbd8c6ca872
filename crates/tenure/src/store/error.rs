//! What can go wrong between us and a store, and what that says about the request.

use std::fmt;

use thiserror::Error;

use super::Reply;

/// An error of the store or of the way to it. It is never the loss of a lease, and the loss of a lease is never one.
///
/// Messages say what happened, on what, and what to do; they carry no secrets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{kind}: {message}")]
pub struct StoreError {
    kind: ErrorKind,
    message: String,
}

/// What an error means for whoever asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store could not be reached or did not answer in time. Trying again is safe.
    Unreachable,
    /// The store is up and cannot serve just now (loading, busy, out of memory). Trying again is safe.
    Unavailable,
    /// The store refuses as it is set up (password, permissions, a key of another type). Trying again will not help.
    Configuration,
    /// The address is not one that this build can use. Trying again will not help.
    Address,
    /// The store holds something that Tenure did not write there. Trying again will not help.
    Corrupt,
}

impl StoreError {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The same with a word on what else it may be.
    #[cfg(feature = "redis")]
    pub(super) fn with_hint(mut self, hint: &str) -> Self {
        self.message.push_str("; ");
        self.message.push_str(hint);
        self
    }

    /// What the error means.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same request may succeed later without anybody changing anything.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Unreachable | ErrorKind::Unavailable)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "store unreachable",
            Self::Unavailable => "store unavailable",
            Self::Configuration => "store misconfigured",
            Self::Address => "bad store address",
            Self::Corrupt => "unreadable store contents",
        })
    }
}

/// What became of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The store answered.
    Answered(Reply),
    /// The request was not carried out and never will be.
    Failed(StoreError),
    /// The request may have been carried out, or may be later. Every request is safe to repeat.
    Unknown(StoreError),
}
