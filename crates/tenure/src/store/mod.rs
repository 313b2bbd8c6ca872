//! The trait that every store implements, and the stores themselves.
//!
//! A client *attaches* to a store before it sends any request: [`Store::attach`] is the only way to a [`Connection`].
//! So no request can reach a store whose data may have been lost since this process last saw it. A connection takes
//! [batches of requests](Request) and returns an [`Outcome`] for each. *Unknown* is an outcome of its own: the store
//! may still carry out a request that was sent and not answered. Every request is safe to repeat.
//!
//! Ttls are sent as relative times. No reply of a store promises anything about the future. The holder relies on its
//! own deadline, counted from the moment it *sent* its request.
//!
//! ```
//! use std::time::Duration;
//! use tenure::store::{AttachRequest, Keyspace, LeaseRequest, Outcome, Reply, open};
//!
//! # #[cfg(feature = "memory")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let store = open("memory:", &Keyspace::default())?;
//! let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?;
//! for outcome in connection.submit(vec![LeaseRequest::InspectNamespace.into()], Duration::from_secs(1)).await {
//!     match outcome {
//!         Outcome::Answered(Reply::Namespace(report)) => println!("generation {:?}", report.generation),
//!         Outcome::Answered(other) => println!("{other:?}"),
//!         Outcome::Failed(error) => println!("not done: {error}"),
//!         Outcome::Unknown(error) => println!("perhaps done: {error}"),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod keyspace;
#[cfg(feature = "memory")]
pub mod memory;
mod open;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use keyspace::Keyspace;
pub use open::open;
#[doc(inline)]
pub use tenure_core::ledger::{Ledger, ServerInfo};
#[cfg(any(feature = "redis", feature = "sqlite"))]
pub(crate) use tenure_core::store::MAX_TERM_NOTES;
#[cfg(any(feature = "redis", feature = "sqlite"))]
pub(crate) use tenure_core::store::MAX_TTL;
pub(crate) use tenure_core::store::ROLES;
#[doc(inline)]
pub use tenure_core::store::{
    Announcement, Ask, AttachRequest, Attached, Claim, Continuity, DocumentId, DocumentRequest, EntryId, ErrorKind,
    Generation, Grant, Held, Holding, LeaseReport, LeaseRequest, Lineage, LiveInstance, LogEntry, LogRequest,
    MembershipRequest, NamespaceMemory, NamespaceReport, Outcome, ParseEntryIdError, PreviousTerm, PublishedRecord,
    Quarantine, QuarantineReason, RecordedEnd, Refusal, Reply, Request, ServerRun, StoreError, SubscriptionItem,
    TermNote, deleted_index,
};

/// A boxed future, so that stores are object-safe and can be chosen by URL at run time.
///
/// ```
/// use tenure::store::{AttachRequest, BoxFuture, Keyspace, Store, open};
///
/// fn is_reachable(store: &dyn Store) -> BoxFuture<'_, bool> {
///     let request = AttachRequest { observer: true, ..AttachRequest::new(fastrand::u64(..)) };
///     Box::pin(async move { store.attach(request).await.is_ok() })
/// }
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// assert!(is_reachable(&*store).await);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A backend that stores leases.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use tenure::Tenure;
/// use tenure::store::{AttachRequest, BoxFuture, Connection, Keyspace, Store, StoreError, Subscription, open};
///
/// /// Counts how often an instance attaches.
/// #[derive(Debug)]
/// struct CountingStore {
///     inner: Arc<dyn Store>,
///     attaches: AtomicU32,
/// }
///
/// impl Store for CountingStore {
///     fn attach(&self, request: AttachRequest) -> BoxFuture<'_, Result<Arc<dyn Connection>, StoreError>> {
///         self.attaches.fetch_add(1, Ordering::Relaxed);
///         self.inner.attach(request)
///     }
///
///     fn subscribe(&self) -> BoxFuture<'_, Result<Box<dyn Subscription>, StoreError>> {
///         self.inner.subscribe()
///     }
///
///     fn location(&self) -> &str {
///         self.inner.location()
///     }
/// }
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let inner = open("memory:", &Keyspace::default())?;
/// let store = Arc::new(CountingStore { inner, attaches: AtomicU32::new(0) });
/// let tenure = Tenure::with_store(store.clone()).connect().await?;
/// tenure.lease("report").acquire().await?.release().await?;
/// assert_eq!(store.attaches.load(Ordering::Relaxed), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Store: fmt::Debug + Send + Sync {
    /// Opens a connection and attaches to the namespace over it.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses; [`StoreError::kind`] says whether a retry can help.
    ///
    /// # Cancel safety
    /// Safe: an attach whose caller has stopped waiting is like a connection that was opened and dropped.
    fn attach(&self, request: AttachRequest) -> BoxFuture<'_, Result<Arc<dyn Connection>, StoreError>>;

    /// Subscribes to the namespace's announcements from now on, over a separate connection. Attach first: the store
    /// counts every subscriber that is already there as an instance that may hold leases.
    ///
    /// # Errors
    /// As for [`attach`](Self::attach).
    ///
    /// # Cancel safety
    /// Safe.
    fn subscribe(&self) -> BoxFuture<'_, Result<Box<dyn Subscription>, StoreError>>;

    /// The store's location without secrets, for logs and errors.
    fn location(&self) -> &str;

    /// What an operator should know about the store's configuration, one sentence each. Empty when the store cannot be
    /// asked.
    ///
    /// # Cancel safety
    /// Safe.
    fn warnings(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async { Vec::new() })
    }
}

/// One attached connection. When it fails, or a reply does not come in time, the caller drops it and attaches again.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tenure::store::{AttachRequest, Attached, BoxFuture, Connection, DocumentRequest, Keyspace, LeaseRequest, Outcome, Request, open};
///
/// /// Prints every batch. A store of your own returns it from `attach`.
/// #[derive(Debug)]
/// struct PrintingConnection(Arc<dyn Connection>);
///
/// impl Connection for PrintingConnection {
///     fn attached(&self) -> &Attached {
///         self.0.attached()
///     }
///
///     fn submit(&self, batch: Vec<Request>, timeout: Duration) -> BoxFuture<'_, Vec<Outcome>> {
///         println!("{batch:?}");
///         self.0.submit(batch, timeout)
///     }
///
///     fn closed(&self) -> BoxFuture<'_, ()> {
///         self.0.closed()
///     }
/// }
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let connection = PrintingConnection(store.attach(AttachRequest::new(fastrand::u64(..))).await?);
/// let outcomes = connection.submit(vec![LeaseRequest::InspectNamespace.into()], Duration::from_secs(1)).await;
/// assert!(matches!(outcomes[..], [Outcome::Answered(_)]));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Connection: fmt::Debug + Send + Sync {
    /// What the store found when this connection attached.
    fn attached(&self) -> &Attached;

    /// Sends a batch and waits at most `timeout` for the outcomes: one for each request, in the same order. The
    /// requests of a batch are independent; a refused one does not affect the others. Batches are sent in the order in
    /// which their futures are first polled.
    ///
    /// # Cancel safety
    /// The store may or may not carry out the requests of a dropped future: their outcome is unknown.
    fn submit(&self, batch: Vec<Request>, timeout: Duration) -> BoxFuture<'_, Vec<Outcome>>;

    /// Completes when the connection can carry no more requests, whichever side closed it. A request that fails by
    /// itself does not close a connection.
    ///
    /// # Cancel safety
    /// Safe.
    fn closed(&self) -> BoxFuture<'_, ()>;
}

/// A stream of announcements.
///
/// ```
/// use tenure::store::{BoxFuture, Subscription, SubscriptionItem};
///
/// /// Loses every announcement, to test that a program does not depend on them.
/// #[derive(Debug)]
/// struct LossySubscription(Box<dyn Subscription>);
///
/// impl Subscription for LossySubscription {
///     fn next(&mut self) -> BoxFuture<'_, SubscriptionItem> {
///         Box::pin(async move {
///             match self.0.next().await {
///                 SubscriptionItem::Announced(_) => SubscriptionItem::Gap,
///                 other => other,
///             }
///         })
///     }
/// }
///
/// # use tenure::store::{AttachRequest, Keyspace, open};
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// # let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?;
/// let mut subscription = LossySubscription(store.subscribe().await?);
/// # let change = tenure::store::DocumentRequest::IndexAdd { index: "a".to_owned(), entry: "b".to_owned(), announced: true };
/// # connection.submit(vec![change.into()], std::time::Duration::from_secs(1)).await;
/// assert_eq!(subscription.next().await, SubscriptionItem::Gap);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Subscription: fmt::Debug + Send {
    /// Returns the next item.
    ///
    /// # Cancel safety
    /// Safe: nothing is lost when the future is dropped.
    fn next(&mut self) -> BoxFuture<'_, SubscriptionItem>;
}
