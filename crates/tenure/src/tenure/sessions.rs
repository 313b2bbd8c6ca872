//! Sessions: small documents in the store that say what is to be worked on, one target each.

use std::time::Duration;

use thiserror::Error;

use super::Tenure;
use crate::name::LeaseName;
use crate::store::{DELETED_SESSIONS, Reply, Request, SESSIONS, StoreError};

impl Tenure {
    /// The ids of all sessions.
    ///
    /// # Errors
    /// When the store cannot be asked.
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

    /// What these sessions are, in the same order, if they are there.
    ///
    /// # Errors
    /// When the store cannot be asked.
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

    /// Makes a session what it should be, or nothing, if it still is what was seen of it, or is so already. Everybody is told.
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
    /// When it is something else by now, or the store cannot be asked.
    ///
    /// # Cancel safety
    /// It may or may not be written.
    pub async fn write_session(&self, id: &str, seen: Option<&[u8]>, value: Option<&[u8]>) -> Result<(), SessionError> {
        self.change_session(id, seen, value, false).await
    }

    /// Makes a session, if there is none with this id and nothing is left of one that was deleted. Everybody is told.
    ///
    /// # Errors
    /// When there is one; when something is [left](SessionError::Leftovers) of one; or when the store cannot be asked.
    ///
    /// # Cancel safety
    /// It may or may not be made.
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

    /// Clears away what is left of sessions that were deleted: the last terms, records and logs of their leases. Tokens go on growing all the
    /// same. What is or was in use until just now is left for another time. Returns of how many nothing is left.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// Some may have been cleared away.
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
                // What cannot have a lease has left nothing.
                None => {
                    let (index, announced) = (DELETED_SESSIONS.to_owned(), false);
                    self.call(Request::IndexRemove { index, entry: session, announced }).await.map(|_| true)
                }
            };
            match is_cleared {
                Ok(is_cleared) => cleared += usize::from(is_cleared),
                Err(error) if error.is_retryable() => return Err(error),
                // What an outsider has spoilt stays; the others do not wait for it.
                Err(_) => {}
            }
        }
        Ok(cleared)
    }

    /// Clears away what is left of one session that was deleted, under this lease. Returns whether nothing is left: not while the session is there, its
    /// lease is held, or its last term began less than `idle_for` ago.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// It may or may not have been cleared away.
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
    /// It is something else than its writer has seen: this, or nothing.
    #[error("the session was changed meanwhile; read it again")]
    Changed(Option<Vec<u8>>),
    /// Something is left of one with this id that was deleted: its results, or a holder that has not let go. See
    /// [`purge_session`](Tenure::purge_session).
    #[error("something is left of a session with this id that was deleted")]
    Leftovers,
    /// The store could not be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}
