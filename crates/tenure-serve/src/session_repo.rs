//! Creates, changes and deletes sessions without lost updates: each write is conditional, and a conflicting change is
//! retried on the new version.

use std::time::Duration;

use tenure::{DocumentError, Documents, RequestError, Tenure};
use thiserror::Error;

use crate::keys::KeyPrefixes;
use crate::poll::poller::RESULTS_LOG;
use crate::session::{InvalidSession, Session};

/// Attempts of a conditional write.
const MAX_WRITE_ATTEMPTS: usize = 30;

/// Attempts, and the delay between them, of creating a session while a deleted one with its id is still held.
const MAX_CREATE_ATTEMPTS: usize = 100;
const CREATE_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Why a session was not created, changed or deleted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EditError {
    /// The session does not exist. Nothing was changed.
    #[error("no such session")]
    NotFound,
    /// Another session has this id. Nothing was changed.
    #[error("another session has this id")]
    AlreadyExists,
    /// A deleted session with this id is still held. Nothing was changed; a retry is safe.
    #[error("a session with this id was just deleted, and its last poll has not ended; try again in a moment")]
    StillHeld,
    /// The session is invalid. Nothing was changed.
    #[error(transparent)]
    Invalid(#[from] InvalidSession),
    /// Every attempt lost against a concurrent change. Nothing was changed; a retry is safe.
    #[error("concurrent changes to this session did not stop; try again")]
    Contended,
    /// A request to the store failed, or its outcome is unknown.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// The collection of the sessions, in which each is a document.
pub const COLLECTION: &str = "sessions";

/// The prefix of the keys of sessions by default.
pub const KEY_PREFIX: &str = "session:";

/// The documents of all sessions.
pub fn documents(tenure: &Tenure) -> Documents {
    tenure.documents(COLLECTION)
}

/// Reads the stored session with this id.
///
/// # Errors
/// When a request to the store fails.
///
/// # Cancel safety
/// Safe.
pub async fn read(tenure: &Tenure, id: &str) -> Result<Option<Vec<u8>>, RequestError> {
    Ok(documents(tenure).read(vec![id.to_owned()]).await?.into_iter().flatten().next())
}

/// Creates a session. Succeeds also if the same session exists. Removes the records of a deleted session with the same
/// id first, so that its results are not attributed to the new one. If that session is still held, waits for its
/// release.
///
/// # Errors
/// When another session has its id, a deleted one with its id stays held, or a request to the store fails.
///
/// # Cancel safety
/// The session may or may not be created.
pub async fn create(tenure: &Tenure, keys: &KeyPrefixes, session: &Session) -> Result<(), EditError> {
    let id = session.id.to_string();
    for _ in 0..MAX_CREATE_ATTEMPTS {
        match documents(tenure).create(&id, &session.to_bytes()).await {
            Ok(()) => return Ok(()),
            Err(DocumentError::Request(error)) => return Err(error.into()),
            Err(DocumentError::Leftovers) => {}
            Err(_) => return Err(EditError::AlreadyExists),
        }
        let Ok(lease) = keys.session(&id) else { break };
        if !documents(tenure).purge(&id, lease, &[RESULTS_LOG], Duration::ZERO).await? {
            tokio::time::sleep(CREATE_RETRY_DELAY).await;
        }
    }
    Err(EditError::StillHeld)
}

/// Changes a session and returns the new version.
///
/// # Errors
/// When it does not exist, the change is invalid, concurrent changes do not stop, or a request to the store fails.
///
/// # Cancel safety
/// The session may or may not be changed.
pub async fn change(
    tenure: &Tenure,
    id: &str,
    change: impl Fn(&Session) -> Result<Session, InvalidSession>,
) -> Result<Session, EditError> {
    let changed = |seen: &[u8]| change(&Session::read(id, seen)?).map(Some);
    write(tenure, id, changed).await?.ok_or(EditError::NotFound)
}

/// Deletes a session, readable or not.
///
/// # Errors
/// When it does not exist, concurrent changes do not stop, or a request to the store fails.
///
/// # Cancel safety
/// The session may or may not be deleted.
pub async fn delete(tenure: &Tenure, id: &str) -> Result<(), EditError> {
    write(tenure, id, |_| Ok(None)).await.map(drop)
}

/// Replaces the stored session with the changed one, and retries after each concurrent change.
async fn write(
    tenure: &Tenure,
    id: &str,
    change: impl Fn(&[u8]) -> Result<Option<Session>, InvalidSession>,
) -> Result<Option<Session>, EditError> {
    for _ in 0..MAX_WRITE_ATTEMPTS {
        let seen = read(tenure, id).await?.ok_or(EditError::NotFound)?;
        let session = change(&seen)?;
        match documents(tenure).write(id, Some(&seen), session.as_ref().map(Session::to_bytes).as_deref()).await {
            Ok(()) => return Ok(session),
            Err(DocumentError::Request(error)) => return Err(error.into()),
            Err(_) => {}
        }
    }
    Err(EditError::Contended)
}
