//! Sessions: small documents in the store that describe the work, one target each.

use std::time::Duration;

use thiserror::Error;

use super::Tenure;
use crate::name::LeaseName;
use crate::store::{DELETED_SESSIONS, Reply, Request, SESSIONS, StoreError};

impl Tenure {
    /// The ids of all sessions.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn session_ids(&self) -> Result<Vec<String>, StoreError> {
        match self.call(Request::IndexList { index: SESSIONS.to_owned() }).await? {
            Reply::Index(ids) => Ok(ids),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// The key of a session in the store.
    pub fn session_key(&self, id: &str) -> String {
        format!("{}{id}", self.keyspace.session())
    }

    /// Reads these sessions, in the same order; `None` for each that does not exist.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn read_sessions(&self, ids: Vec<String>) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        match self.call(Request::ReadSessions { ids }).await? {
            Reply::Sessions(sessions) => Ok(sessions),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Writes a session, or deletes it with `None`, if it still has the value `seen` or already has the new one. The
    /// change is announced to every instance.
    ///
    /// ```
    /// use tenure::{SessionError, Tenure};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// tenure.write_session("eu-1", None, Some(b"every 5s")).await?;
    /// let late = tenure.write_session("eu-1", None, Some(b"every 9s")).await;
    /// assert!(matches!(late, Err(SessionError::Changed(Some(now))) if now == b"every 5s"));
    /// tenure.write_session("eu-1", Some(b"every 5s"), None).await?;
    /// assert!(tenure.session_ids().await?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the session has another value by now, or the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The session may or may not be written.
    pub async fn write_session(&self, id: &str, seen: Option<&[u8]>, value: Option<&[u8]>) -> Result<(), SessionError> {
        self.change_session(id, seen, value, false).await
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
    pub async fn create_session(&self, id: &str, value: &[u8]) -> Result<(), SessionError> {
        self.change_session(id, None, Some(value), true).await
    }

    async fn change_session(
        &self,
        id: &str,
        seen: Option<&[u8]>,
        value: Option<&[u8]>,
        fresh: bool,
    ) -> Result<(), SessionError> {
        let (seen, value) = (seen.map(<[u8]>::to_vec), value.map(<[u8]>::to_vec));
        match self.call(Request::WriteSession { id: id.to_owned(), expected: seen, value, fresh }).await? {
            Reply::Done => Ok(()),
            Reply::Conflict(now) => Err(SessionError::Changed(now)),
            Reply::InUse => Err(SessionError::Leftovers),
            other => Err(SessionError::Store(self.unexpected_reply(&other))),
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
    pub async fn purge_deleted_sessions(
        &self,
        lease: impl Fn(&str) -> Option<LeaseName>,
        logs: &[&str],
        idle_for: Duration,
    ) -> Result<usize, StoreError> {
        let Reply::Index(gone) = self.call(Request::IndexList { index: DELETED_SESSIONS.to_owned() }).await? else {
            return Ok(0);
        };
        let mut cleared = 0;
        for session in gone {
            let is_cleared = match lease(&session) {
                Some(name) => self.purge_session(&session, name, logs, idle_for).await,
                // A session that cannot have a lease has left no data.
                None => {
                    let (index, announced) = (DELETED_SESSIONS.to_owned(), false);
                    self.call(Request::IndexRemove { index, entry: session, announced }).await.map(|_| true)
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
    pub async fn purge_session(
        &self,
        session: &str,
        lease: LeaseName,
        logs: &[&str],
        idle_for: Duration,
    ) -> Result<bool, StoreError> {
        let (session, logs) = (session.to_owned(), logs.iter().map(|log| (*log).to_owned()).collect());
        let reply = self.call(Request::Forget { name: lease, logs, idle_for, session }).await?;
        Ok(reply == Reply::Done)
    }
}

/// Why a session was not written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The session does not have the value its writer has seen. Contains the current value, if any.
    #[error("cannot write the session: it was changed meanwhile; read it again")]
    Changed(Option<Vec<u8>>),
    /// A deleted session with this id has left data: its results, or a holder that has not released it. See
    /// [`purge_session`](Tenure::purge_session).
    #[error("cannot create the session: data of a deleted session with this id is left; purge it first")]
    Leftovers,
    /// The store could not be reached or refused the request.
    #[error(transparent)]
    Store(#[from] StoreError),
}
