//! The names of keys: the namespace prefix of all of them, and the configurable prefixes.

use crate::name::{NameError, check_prefix};

/// The index of all sessions.
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
/// use tenure::store::{AttachRequest, Keyspace, Outcome, Reply, Request, SESSIONS, open};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let tenure = Tenure::with_store(store.clone()).connect().await?;
/// tenure.sessions().create("eu-1", b"every 5s").await?;
///
/// let connection = store.attach(AttachRequest { observer: true, ..AttachRequest::default() }).await?;
/// let list = Request::IndexList { index: SESSIONS.to_owned() };
/// let outcomes = connection.submit(vec![list], Duration::from_secs(1)).await;
/// assert_eq!(outcomes, [Outcome::Answered(Reply::Index(vec!["eu-1".to_owned()]))]);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const SESSIONS: &str = "sessions";

/// The index of all roles that ever had a leader.
pub(crate) const ROLES: &str = "roles";

/// The index of deleted sessions of which records may be left.
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
/// use tenure::store::{AttachRequest, DELETED_SESSIONS, Keyspace, Outcome, Reply, Request, open};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let tenure = Tenure::with_store(store.clone()).connect().await?;
/// tenure.sessions().create("eu-1", b"every 5s").await?;
/// tenure.sessions().write("eu-1", Some(b"every 5s"), None).await?; // deletes it
///
/// let connection = store.attach(AttachRequest { observer: true, ..AttachRequest::default() }).await?;
/// let list = Request::IndexList { index: DELETED_SESSIONS.to_owned() };
/// let outcomes = connection.submit(vec![list], Duration::from_secs(1)).await;
/// assert_eq!(outcomes, [Outcome::Answered(Reply::Index(vec!["eu-1".to_owned()]))]);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const DELETED_SESSIONS: &str = "gone";

/// The keys of one deployment.
///
/// Two deployments with different namespaces can share a store and never interfere.
///
/// ```
/// use tenure::store::Keyspace;
///
/// let keyspace = Keyspace::default().namespace("staging")?;
/// assert!(Keyspace::default().namespace("a{b").is_err());
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyspace {
    prefix: String,
    node: String,
    session: String,
}

impl Default for Keyspace {
    fn default() -> Self {
        Self { prefix: String::new(), node: "poll:node:".to_owned(), session: "session:".to_owned() }
    }
}

impl Keyspace {
    /// Puts `NAME:` before every key.
    ///
    /// # Errors
    /// When the name is empty, too long, or has a character that is not allowed. Braces are not allowed: a hash tag
    /// belongs in the prefix of a lease.
    pub fn namespace(mut self, name: &str) -> Result<Self, NameError> {
        crate::name::check("namespace", name)?;
        self.prefix = format!("{name}:");
        Ok(self)
    }

    /// Sets the prefix of heartbeat keys, `poll:node:` by default.
    ///
    /// # Errors
    /// When the prefix is empty, too long, or has a character that is not allowed.
    pub fn node_prefix(mut self, prefix: &str) -> Result<Self, NameError> {
        check_prefix(prefix)?;
        self.node = prefix.to_owned();
        Ok(self)
    }

    /// Sets the prefix of session keys, `session:` by default.
    ///
    /// # Errors
    /// When the prefix is empty, too long, or has a character that is not allowed.
    pub fn session_prefix(mut self, prefix: &str) -> Result<Self, NameError> {
        check_prefix(prefix)?;
        self.session = prefix.to_owned();
        Ok(self)
    }

    /// The prefix of every key: empty, or the namespace and a colon.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The prefix of heartbeats, namespace included.
    pub fn node(&self) -> String {
        format!("{}{}", self.prefix, self.node)
    }

    /// The prefix of sessions, namespace included.
    pub fn session(&self) -> String {
        format!("{}{}", self.prefix, self.session)
    }
}
