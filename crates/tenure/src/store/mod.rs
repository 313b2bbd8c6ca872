//! Where leases live: the trait that every store implements, and the stores themselves.
//!
//! A store is *attached* before anything is asked of it: [`Store::attach`] is the only way to a [`Connection`], so no
//! request can reach a store whose data may have been lost since this process last saw it. A connection takes
//! [batches of requests](Request) and answers each with an [`Outcome`], of which *unknown* is one of its own: a
//! request that was sent and not answered may still be carried out, and every request is safe to repeat.
//!
//! Lease lengths travel as relative times. Nothing a store answers is a promise about the future: the holder's own
//! deadline, counted from the moment it *sent* its request, is.

mod announcement;
mod attach;
mod error;
mod keyspace;
mod ledger;
#[cfg(feature = "memory")]
pub mod memory;
mod note;
mod open;
#[cfg(feature = "redis")]
pub mod redis;
mod reply;
mod request;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use announcement::{Announcement, SubscriptionItem};
pub use attach::{
    AttachRequest, Attached, Continuity, Generation, Lineage, NamespaceMemory, Quarantine, QuarantineReason, ServerRun,
};
pub use error::{ErrorKind, Outcome, StoreError};
#[cfg(feature = "keeper")]
pub(crate) use keyspace::ROLES;
pub use keyspace::{DELETED_SESSIONS, Keyspace, SESSIONS};
pub use ledger::{Ledger, ServerInfo};
pub use note::TermNote;
pub use open::open;
pub use reply::{
    EntryId, Grant, Held, LeaseReport, LiveInstance, LogEntry, NamespaceReport, ParseEntryIdError, PreviousTerm,
    PublishedRecord, RecordedEnd, Refusal, Reply,
};
pub use request::{Ask, Claim, ForeignKind, Holding, Request};

/// A boxed future, so that stores can stand behind one pointer and be chosen by URL at run time.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A place where leases live.
pub trait Store: fmt::Debug + Send + Sync {
    /// Opens a connection and enters the namespace over it.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses; [`StoreError::kind`] says whether trying again can help.
    ///
    /// # Cancel safety
    /// Safe: an entry that nobody waits for any more is like one that was made and dropped.
    fn attach(&self, request: AttachRequest) -> BoxFuture<'_, Result<Arc<dyn Connection>, StoreError>>;

    /// Hears the namespace's announcements from now on, over a connection of its own. Enter first: whoever listens
    /// already is taken for somebody who may hold leases.
    ///
    /// # Errors
    /// As for [`attach`](Self::attach).
    ///
    /// # Cancel safety
    /// Safe.
    fn subscribe(&self) -> BoxFuture<'_, Result<Box<dyn Subscription>, StoreError>>;

    /// Where the store is, without secrets, for logs and errors.
    fn location(&self) -> &str;

    /// What a person should know about how the store is set up, a sentence each. Nothing when it cannot be asked.
    ///
    /// # Cancel safety
    /// Safe.
    fn warnings(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async { Vec::new() })
    }
}

/// One connection that has attached. When it fails, or an answer does not come in time, it is dropped and the store is
/// attached again.
pub trait Connection: fmt::Debug + Send + Sync {
    /// What was found when this connection attached.
    fn attached(&self) -> &Attached;

    /// Sends a batch and waits at most `timeout` for the outcomes: one for each request, in the same order. Requests of
    /// a batch stand by themselves; one that is refused does not touch the others. Batches go out in the order in which
    /// their futures are first polled.
    ///
    /// # Cancel safety
    /// The requests of a dropped future may or may not be carried out: their outcome is unknown.
    fn submit(&self, batch: Vec<Request>, timeout: Duration) -> BoxFuture<'_, Vec<Outcome>>;

    /// Ends when nothing can be asked over this connection any more, whoever closed it. A request that fails by itself
    /// does not close a connection.
    ///
    /// # Cancel safety
    /// Safe.
    fn closed(&self) -> BoxFuture<'_, ()>;
}

/// A stream of announcements.
pub trait Subscription: fmt::Debug + Send {
    /// The next thing heard.
    ///
    /// # Cancel safety
    /// Safe: nothing is lost when the future is dropped.
    fn next(&mut self) -> BoxFuture<'_, SubscriptionItem>;
}
