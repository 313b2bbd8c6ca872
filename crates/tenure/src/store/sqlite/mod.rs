//! Leases in a file that the processes of one host share: no server, nothing to configure.
//!
//! The [ledger](super::Ledger) itself decides what a request does: a transaction loads the rows that the request needs,
//! the ledger decides, and the changes are written back. Every process sees a write at once or, if the writer dies in
//! the middle of it, never.
//!
//! ```no_run
//! use tenure::Tenure;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let tenure = Tenure::connect("sqlite:/var/lib/my-app/jobs.db").await?; // in every process of this host
//! let lease = tenure.lease("report").acquire().await?;
//! lease.release().await?;
//! # Ok(())
//! # }
//! ```

mod companions;
mod connection;
mod failure;
mod file;
mod host;
mod rows;
mod subscription;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use connection::SqliteConnection;
use file::{DatabaseFile, Observed};
use host::Host;
use subscription::SqliteSubscription;

use super::{AttachRequest, BoxFuture, Connection, ErrorKind, Keyspace, Store, StoreError, Subscription};

/// A file with leases.
///
/// Ttls are counted on the host's boot-time clock: setting the wall clock has no effect. A reboot ends every process,
/// and so every lease. Several hosts cannot share such a file; use Redis for that.
///
/// ```
/// use tenure::store::sqlite::SqliteStore;
/// use tenure::store::{AttachRequest, Keyspace, Store};
///
/// # let directory = std::env::temp_dir().join(format!("tenure-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory)?;
/// # let path = directory.join("jobs.db");
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let store = SqliteStore::open(path.to_str().ok_or("not text")?, &Keyspace::default())?;
/// let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?;
/// assert!(connection.attached().minted);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SqliteStore {
    config: FileConfig,
}

/// The location of the leases.
#[derive(Clone)]
struct FileConfig {
    path: PathBuf,
    namespace: String,
    location: String,
    host: Arc<Host>,
    /// What was last seen of a file that could not be used.
    observed: Arc<Mutex<Observed>>,
}

impl SqliteStore {
    /// Opens the file at this path. The first attach creates it.
    ///
    /// # Errors
    /// When there is no path, or the host does not report its boot id.
    pub fn open(path: &str, keyspace: &Keyspace) -> Result<Self, StoreError> {
        let host = Host::current().map_err(|error| {
            StoreError::new(ErrorKind::Configuration, format!("sqlite:{path}: this host has no boot id: {error}"))
        })?;
        Self::on_host(path, keyspace, host)
    }

    fn on_host(path: &str, keyspace: &Keyspace, host: Host) -> Result<Self, StoreError> {
        if path.is_empty() || path == ":memory:" {
            let message = "an SQLite store needs a path, as in `sqlite:jobs.db`; for one process alone use `memory:`";
            return Err(StoreError::new(ErrorKind::Address, message));
        }
        if let Some(rest) = path.strip_prefix("//").filter(|rest| !rest.starts_with('/')) {
            let message = format!(
                "sqlite:{path}: `sqlite:` takes a path, not a URL; use `sqlite:{rest}` for this directory, or `sqlite:/{rest}` for the root"
            );
            return Err(StoreError::new(ErrorKind::Address, message));
        }
        // The store keeps using this file even if the program changes its directory later.
        let absolute = std::path::absolute(path)
            .map_err(|error| StoreError::new(ErrorKind::Address, format!("sqlite:{path}: {error}")))?;
        Ok(Self {
            config: FileConfig {
                path: absolute,
                namespace: keyspace.prefix().to_owned(),
                location: format!("sqlite:{path}"),
                host: Arc::new(host),
                observed: Arc::default(),
            },
        })
    }
}

impl FileConfig {
    /// Opens the file to read its announcements.
    fn open_for_subscription(&self, until: Instant) -> Result<DatabaseFile, StoreError> {
        DatabaseFile::open_for_subscription(&self.path, until)
    }

    fn open(&self, until: Instant) -> Result<DatabaseFile, StoreError> {
        // Opening may wait for other processes; other tasks must not wait for us meanwhile.
        let mut observed = *self.observed();
        let opened = DatabaseFile::open(&self.path, &self.host, until, &mut observed);
        *self.observed() = observed;
        opened
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for SqliteStore {
    fn attach(&self, request: AttachRequest) -> BoxFuture<'_, Result<Arc<dyn Connection>, StoreError>> {
        Box::pin(async move {
            let connection = SqliteConnection::attach(self.config.clone(), request).await?;
            Ok(Arc::new(connection) as Arc<dyn Connection>)
        })
    }

    fn subscribe(&self) -> BoxFuture<'_, Result<Box<dyn Subscription>, StoreError>> {
        Box::pin(async move {
            let subscription = SqliteSubscription::open(self.config.clone()).await?;
            Ok(Box::new(subscription) as Box<dyn Subscription>)
        })
    }

    fn location(&self) -> &str {
        &self.config.location
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqliteStore({})", self.config.location)
    }
}
