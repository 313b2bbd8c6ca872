//! Errors of a store, and what they mean for a request.

use std::fmt;

use thiserror::Error;

use super::Reply;

/// An error of the store or of the connection to it. It is never the loss of a lease, and the loss of a lease is never
/// an error.
///
/// Messages say what happened, on what, and what to do; they carry no secrets.
///
/// ```
/// use tenure::store::memory::MemoryStore;
/// use tenure::store::{AttachRequest, ErrorKind, Store};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = MemoryStore::default();
/// store.faults().stop();
/// let error = store.attach(AttachRequest::new(fastrand::u64(..))).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Unreachable);
/// assert!(error.is_retryable());
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{kind}: {message}")]
pub struct StoreError {
    kind: ErrorKind,
    message: String,
}

/// What an error means for the caller.
///
/// ```
/// use tenure::store::{ErrorKind, Keyspace, open};
///
/// let error = open("redsi://localhost", &Keyspace::default()).unwrap_err();
/// match error.kind() {
///     ErrorKind::Unreachable | ErrorKind::Unavailable => println!("try again later: {error}"),
///     ErrorKind::Address => println!("correct the URL: {error}"),
///     _ => println!("an operator must fix the store: {error}"),
/// }
/// assert_eq!(error.kind().to_string(), "bad store address");
/// ```
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
    pub fn with_hint(mut self, hint: &str) -> Self {
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
///
/// ```
/// use std::time::Duration;
/// use tenure::store::memory::MemoryStore;
/// use tenure::store::{AttachRequest, Outcome, DocumentRequest, Store};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = MemoryStore::default();
/// let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?;
/// store.faults().lose_replies(1);
/// let add = DocumentRequest::IndexAdd { index: "roles".to_owned(), entry: "cleanup".to_owned(), announced: false };
/// loop {
///     match connection.submit(vec![add.clone().into()], Duration::from_millis(10)).await.remove(0) {
///         Outcome::Answered(reply) => break println!("{reply:?}"),
///         Outcome::Failed(error) => return Err(error.into()),
///         Outcome::Unknown(_) => println!("perhaps done; again"), // repeating it is safe
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The store replied.
    Answered(Reply),
    /// The store did not carry out the request and never will.
    Failed(StoreError),
    /// The store may have carried out the request, or may do so later. Every request is safe to repeat.
    Unknown(StoreError),
}
