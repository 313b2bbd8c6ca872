//! Sessions made, changed and deleted so that nobody's change is lost: whoever comes second changes what the first has made of it.

use std::time::Duration;

use tenure::store::StoreError;
use tenure::{SessionError, Tenure};
use thiserror::Error;

use crate::keys::KeyPrefixes;
use crate::poll::poller::RESULTS_LOG;
use crate::session::{InvalidSession, Session};

/// How often a change is tried that somebody else comes before.
const MAX_WRITE_ATTEMPTS: usize = 30;

/// How often, and how long apart, it is looked whether a session is let go of that was deleted.
const MAX_CREATE_ATTEMPTS: usize = 100;
const CREATE_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Why a session was not made, changed or deleted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EditError {
    /// There is none.
    #[error("there is no such session")]
    NotFound,
    /// There is one already.
    #[error("there is a session with this id, and it is another")]
    AlreadyExists,
    /// There was one, which is still being let go of.
    #[error("a session with this id was deleted just now, and its last poll is not over; try again in a moment")]
    StillHeld,
    /// It cannot be like that.
    #[error(transparent)]
    Invalid(#[from] InvalidSession),
    /// Others were always first.
    #[error("others change this session all the time; try again")]
    Contended,
    /// The store could not be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What stands in the store under an id.
///
/// # Errors
/// When the store cannot be asked.
///
/// # Cancel safety
/// Safe.
pub async fn read(tenure: &Tenure, id: &str) -> Result<Option<Vec<u8>>, StoreError> {
    Ok(tenure.read_sessions(vec![id.to_owned()]).await?.into_iter().flatten().next())
}

/// Makes a session. One that is there and is the same in every way is as good. What is left of one with its id that was deleted is cleared away first, so that
/// none of its results are taken for those of the new one; if it is still held, it is let go of in a moment, and waited for.
///
/// # Errors
/// When there is another with its id, one that was deleted goes on being held, or the store cannot be asked.
///
/// # Cancel safety
/// It may or may not be made.
pub async fn create(tenure: &Tenure, keys: &KeyPrefixes, session: &Session) -> Result<(), EditError> {
    let id = session.id.to_string();
    for _ in 0..MAX_CREATE_ATTEMPTS {
        match tenure.create_session(&id, &session.to_bytes()).await {
            Ok(()) => return Ok(()),
            Err(SessionError::Store(error)) => return Err(error.into()),
            Err(SessionError::Leftovers) => {}
            Err(_) => return Err(EditError::AlreadyExists),
        }
        let Ok(lease) = keys.session(&id) else { break };
        if !tenure.purge_session(&id, lease, &[RESULTS_LOG], Duration::ZERO).await? {
            tokio::time::sleep(CREATE_RETRY_DELAY).await;
        }
    }
    Err(EditError::StillHeld)
}

/// Changes a session, and returns it as it is then.
///
/// # Errors
/// When there is none, it cannot be like that, others change it all the time, or the store cannot be asked.
///
/// # Cancel safety
/// It may or may not be changed.
pub async fn change(
    tenure: &Tenure,
    id: &str,
    change: impl Fn(&Session) -> Result<Session, InvalidSession>,
) -> Result<Session, EditError> {
    let changed = |seen: &[u8]| change(&Session::read(id, seen)?).map(Some);
    write(tenure, id, changed).await?.ok_or(EditError::NotFound)
}

/// Deletes a session; also one that cannot be polled.
///
/// # Errors
/// When there is none, others change it all the time, or the store cannot be asked.
///
/// # Cancel safety
/// It may or may not be deleted.
pub async fn delete(tenure: &Tenure, id: &str) -> Result<(), EditError> {
    write(tenure, id, |_| Ok(None)).await.map(drop)
}

/// Makes what there is into what it should be, again for as long as somebody else was first.
async fn write(
    tenure: &Tenure,
    id: &str,
    change: impl Fn(&[u8]) -> Result<Option<Session>, InvalidSession>,
) -> Result<Option<Session>, EditError> {
    for _ in 0..MAX_WRITE_ATTEMPTS {
        let seen = read(tenure, id).await?.ok_or(EditError::NotFound)?;
        let session = change(&seen)?;
        match tenure.write_session(id, Some(&seen), session.as_ref().map(Session::to_bytes).as_deref()).await {
            Ok(()) => return Ok(session),
            Err(SessionError::Store(error)) => return Err(error.into()),
            Err(_) => {}
        }
    }
    Err(EditError::Contended)
}
