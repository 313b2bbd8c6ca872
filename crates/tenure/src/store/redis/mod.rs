//! Leases on Redis or Valkey.
//!
//! A script on the server (`scripts/*.lua`) makes every decision, in one step. The [ledger](super::Ledger) defines what
//! the scripts decide, and the conformance suite holds them to it. The lease itself is a plain key, written with `SET …
//! NX PX`, as programs without Tenure write theirs: they respect our leases and we respect theirs.
//!
//! Tenure manages its own connections. A connection that does not reply in time is closed with a reset, so that data
//! still in its local buffers is not sent late. The caller then attaches again. Data already sent may arrive at any
//! time; the scripts detect that it is late.
//!
//! ```no_run
//! use tenure::Tenure;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let tenure = Tenure::builder("redis://tenure:secret@cache.internal:6379/3").namespace("staging").connect().await?;
//! let lease = tenure.lease("report").acquire().await?; // the key `staging:lease:report` in database 3
//! lease.release().await?;
//! # Ok(())
//! # }
//! ```

mod address;
mod commands;
mod connection;
mod failure;
mod keys;
mod replies;
mod scripts;
mod subscription;
#[cfg(feature = "tls")]
mod tls;

use std::fmt;
use std::sync::Arc;

use address::Address;
pub use address::Credentials;
use connection::RedisConnection;
use keys::RedisKeys;
use subscription::RedisSubscription;

use super::{AttachRequest, BoxFuture, Connection, Keyspace, Store, StoreError, Subscription};

/// A Redis or Valkey server, 6.2 or later.
///
/// ```no_run
/// use tenure::store::redis::RedisStore;
/// use tenure::store::{AttachRequest, Keyspace, Store};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::open("redis://localhost", &Keyspace::default().namespace("staging")?)?;
/// let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?;
/// println!("{:?}", connection.attached());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    address: Address,
    keys: RedisKeys,
}

impl RedisStore {
    /// Opens the server at `redis://[user:password@]host[:port][/database]`, or with the feature `tls` at
    /// `rediss://…[?ca=FILE&cert=FILE&key=FILE&server-name=NAME]`. It does not connect yet.
    ///
    /// # Errors
    /// When the URL is not of that form.
    pub fn open(url: &str, keyspace: &Keyspace) -> Result<Self, StoreError> {
        let address = Address::parse(url)?;
        let keys = RedisKeys::new(keyspace, address.database());
        Ok(Self { address, keys })
    }

    /// Requests credentials before each connection, instead of using those in the URL: for tokens that expire.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tenure::Tenure;
    /// use tenure::store::Keyspace;
    /// use tenure::store::redis::{Credentials, RedisStore};
    ///
    /// # fn token() -> String { String::new() }
    /// let store = RedisStore::open("redis://cache.internal", &Keyspace::default())?
    ///     .credentials(|| async { Ok(Credentials::new("tenure", token())) });
    /// let tenure = Tenure::with_store(Arc::new(store));
    /// # Ok::<(), tenure::store::StoreError>(())
    /// ```
    #[must_use]
    pub fn credentials<F, Fut>(mut self, provider: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, StoreError>> + Send + 'static,
    {
        self.address.credentials = Some(Arc::new(move || Box::pin(provider())));
        self
    }

    /// Uses this TLS configuration for `rediss://`, instead of the files that the URL names: own roots, own verifier,
    /// own keys.
    ///
    /// # Errors
    /// When the URL is not `rediss://`.
    #[cfg(feature = "tls")]
    pub fn tls_config(mut self, config: Arc<rustls::ClientConfig>) -> Result<Self, StoreError> {
        let Some(tls) = self.address.tls.take() else {
            let message = format!("{}: TLS is for rediss:// only", self.address.location);
            return Err(StoreError::new(super::ErrorKind::Address, message));
        };
        self.address.tls = Some(tls.with_config(config));
        Ok(self)
    }
}

impl Store for RedisStore {
    fn attach(&self, request: AttachRequest) -> BoxFuture<'_, Result<Arc<dyn Connection>, StoreError>> {
        Box::pin(async move {
            let connection = RedisConnection::attach(&self.address, self.keys.clone(), &request).await?;
            Ok(Arc::new(connection) as Arc<dyn Connection>)
        })
    }

    fn subscribe(&self) -> BoxFuture<'_, Result<Box<dyn Subscription>, StoreError>> {
        Box::pin(async move {
            let subscription = RedisSubscription::open(&self.address, &self.keys).await?;
            Ok(Box::new(subscription) as Box<dyn Subscription>)
        })
    }

    fn location(&self) -> &str {
        &self.address.location
    }

    fn warnings(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(connection::warnings(&self.address))
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisStore({})", self.address.location)
    }
}
