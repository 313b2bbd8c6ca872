//! Errors of a store, and what they mean for a request.

use std::fmt;

use thiserror::Error;

use super::Reply;

/// An error of the store or of the connection to it. It is never the loss of a lease, and the loss of a lease is never
/// an error.
///
/// Messages say what happened, on what, and what to do; they carry no secrets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{kind}: {message}")]
pub struct StoreError {
    kind: ErrorKind,
    message: String,
}

/// What an error means for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store could not be reached or did not reply in time. A retry is safe.
    Unreachable,
    /// The store is up and cannot serve just now (loading, busy, out of memory). A retry is safe.
    Unavailable,
    /// The store refuses in its present configuration (password, permissions, a key of another type). A retry will not
    /// help.
    Configuration,
    /// This build cannot use the address. A retry will not help.
    Address,
    /// The store contains something that Tenure did not write. A retry will not help.
    Corrupt,
}

impl StoreError {
    /// Creates an error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Adds a hint on another possible cause.
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

    /// Whether the same request may succeed later although nothing is reconfigured.
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

/// The outcome of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The store replied.
    Answered(Reply),
    /// The store did not carry out the request and never will.
    Failed(StoreError),
    /// The store may have carried out the request, or may do so later. Every request is safe to repeat.
    Unknown(StoreError),
}
