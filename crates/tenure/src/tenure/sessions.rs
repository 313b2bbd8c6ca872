//! Sessions: small documents in the store that describe the work, one target each.

use std::time::Duration;

use thiserror::Error;

use super::{RequestError, Tenure};
use crate::name::LeaseName;
use crate::store::{DELETED_SESSIONS, Reply, Request, SESSIONS, StoreError};

/// The sessions of a store: [`Tenure::sessions`] returns it. Clones are cheap.
///
/// A session is a small document that describes one target. Writes are conditional, so that no change is lost.
///
/// ```
/// use tenure::{SessionError, Tenure};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let sessions = Tenure::connect("memory:").await?.sessions();
/// sessions.write("eu-1", None, Some(b"every 5s")).await?;
/// let late = sessions.write("eu-1", None, Some(b"every 9s")).await;
/// assert!(matches!(late, Err(SessionError::Changed(Some(now))) if now == b"every 5s"));
/// sessions.write("eu-1", Some(b"every 5s"), None).await?;
/// assert!(sessions.ids().await?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sessions(pub(crate) Tenure);

impl Sessions {
    /// The ids of all sessions.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn ids(&self) -> Result<Vec<String>, StoreError> {
        match self.0.call(Request::IndexList { index: SESSIONS.to_owned() }).await? {
            Reply::Index(ids) => Ok(ids),
            other => Err(self.0.unexpected_reply(&other)),
        }
    }

    /// The key of a session in the store.
    pub fn key(&self, id: &str) -> String {
        format!("{}{id}", self.0.keyspace.session())
    }

    /// Reads these sessions, in the same order; `None` for each that does not exist.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn read(&self, ids: Vec<String>) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        match self.0.call(Request::ReadSessions { ids }).await? {
            Reply::Sessions(sessions) => Ok(sessions),
            other => Err(self.0.unexpected_reply(&other)),
        }
    }

    /// Writes a session, or deletes it with `None`, if it still has the value `seen` or already has the new one. The
    /// change is announced to every instance.
    ///
    /// # Errors
    /// When the session has another value by now, or the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The session may or may not be written.
    pub async fn write(&self, id: &str, seen: Option<&[u8]>, value: Option<&[u8]>) -> Result<(), SessionError> {
        self.change(id, seen, value, false).await
    }

    /// Creates a session, if none exists with this id and no data of a deleted one is left. The new session is
    /// announced to every instance.
    ///
    /// # Errors
    /// When the session exists, when data of a deleted session is [left](SessionError::Leftovers), or when the store
    /// cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The session may or may not be created.
    pub async fn create(&self, id: &str, value: &[u8]) -> Result<(), SessionError> {
        self.change(id, None, Some(value), true).await
    }

    async fn change(
        &self,
        id: &str,
        seen: Option<&[u8]>,
        value: Option<&[u8]>,
        fresh: bool,
    ) -> Result<(), SessionError> {
        let (seen, value) = (seen.map(<[u8]>::to_vec), value.map(<[u8]>::to_vec));
        match self.0.write(Request::WriteSession { id: id.to_owned(), expected: seen, value, fresh }).await? {
            Reply::Done => Ok(()),
            Reply::Conflict(now) => Err(SessionError::Changed(now)),
            Reply::InUse => Err(SessionError::Leftovers),
            other => Err(SessionError::Request(self.0.unexpected_reply(&other).into())),
        }
    }

    /// Purges the data of deleted sessions: the last terms, records and logs of their leases. Tokens keep increasing.
    /// Data that is in use, or was until just now, is left for a later purge. Returns the number of sessions purged.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Some sessions may have been purged.
    pub async fn purge_deleted(
        &self,
        lease: impl Fn(&str) -> Option<LeaseName>,
        logs: &[&str],
        idle_for: Duration,
    ) -> Result<usize, RequestError> {
        let Reply::Index(gone) = self.0.call(Request::IndexList { index: DELETED_SESSIONS.to_owned() }).await? else {
            return Ok(0);
        };
        let mut cleared = 0;
        for session in gone {
            let is_cleared = match lease(&session) {
                Some(name) => self.purge(&session, name, logs, idle_for).await,
                // A session that cannot have a lease has left no data.
                None => {
                    let (index, announced) = (DELETED_SESSIONS.to_owned(), false);
                    self.0.write(Request::IndexRemove { index, entry: session, announced }).await.map(|_| true)
                }
            };
            match is_cleared {
                Ok(is_cleared) => cleared += usize::from(is_cleared),
                Err(error) if error.is_retryable() => return Err(error),
                // Data that another program has corrupted stays; the other sessions do not wait for it.
                Err(_) => {}
            }
        }
        Ok(cleared)
    }

    /// Purges the data of one deleted session with this lease. Returns whether no data is left: `false` while the
    /// session exists, its lease is held, or its last term began less than `idle_for` ago.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The session may or may not have been purged.
    pub async fn purge(
        &self,
        session: &str,
        lease: LeaseName,
        logs: &[&str],
        idle_for: Duration,
    ) -> Result<bool, RequestError> {
        let (session, logs) = (session.to_owned(), logs.iter().map(|log| (*log).to_owned()).collect());
        let reply = self.0.write(Request::Forget { name: lease, logs, idle_for, session }).await?;
        Ok(reply == Reply::Done)
    }
}

/// Why a session was not written.
///
/// ```
/// use tenure::{SessionError, Tenure};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let sessions = Tenure::connect("memory:").await?.sessions();
/// # sessions.create("eu-1", b"every 5s").await?;
/// let mut seen = None;
/// loop {
///     match sessions.write("eu-1", seen.as_deref(), Some(b"every 9s")).await {
///         Ok(()) => break,
///         Err(SessionError::Changed(now)) => seen = now, // decide again, by the value it has now
///         Err(error) => return Err(error.into()),
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The session does not have the value its writer has seen. Contains the current value, if any.
    #[error("cannot write the session: it was changed meanwhile; read it again")]
    Changed(Option<Vec<u8>>),
    /// A deleted session with this id has left data: its results, or a holder that has not released it. See
    /// [`purge`](Sessions::purge).
    #[error("cannot create the session: data of a deleted session with this id is left; purge it first")]
    Leftovers,
    /// The request was not carried out, or its outcome is [unknown](RequestError::Unknown).
    #[error(transparent)]
    Request(#[from] RequestError),
}
