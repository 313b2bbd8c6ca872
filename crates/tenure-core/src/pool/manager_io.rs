//! What comes out of a pool's manager: plain data.

use std::time::Duration;

use thiserror::Error;

use super::TargetName;
use crate::ending::ReleaseReason;
use crate::event::EventKind;
use crate::name::{InstanceId, LeaseName};
use crate::store::{Quarantine, Request, StoreError};

/// Identifies a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId(pub(super) u64);

/// What the executor must do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolOutput {
    /// Send a request, and report [`answered`](super::PoolManager::answered).
    Query {
        /// The query.
        id: QueryId,
        /// The request.
        request: Request,
        /// Whether work waits for it. Other requests come after those.
        is_work: bool,
    },
    /// Send a request, and do not wait for the reply.
    Send(Request),
    /// Try to acquire the lease of a target, and report [`granted`](super::PoolManager::granted), when a worker has been
    /// started, or [`refused`](super::PoolManager::refused).
    Claim {
        /// The target.
        target: TargetName,
        /// Its lease.
        name: LeaseName,
    },
    /// Tell callers that wait for a target that it was not acquired.
    ClaimFailed {
        /// The target.
        target: TargetName,
        /// Why.
        error: TargetError,
    },
    /// Pass a command on to the worker of a target. It reports [`term_ended`](super::PoolManager::term_ended) when its
    /// term and its work have ended.
    Worker {
        /// The target.
        target: TargetName,
        /// The command.
        command: WorkerCommand,
    },
    /// Publish the record of this instance, changed by [`update_record`](super::PoolManager::update_record).
    UpdateRecord,
    /// Tell which instances count as present.
    Live(Vec<InstanceId>),
    /// Emit an event of this instance.
    Emit(EventKind),
    /// Count how long a hand-over took.
    HandedOver(Duration),
    /// Count how long it took to take a target over.
    TakenOver(Duration),
}

/// A command to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerCommand {
    /// Let running work finish, then release the target.
    Release(ReleaseReason),
    /// Let running work finish, then hand the target over to an instance.
    HandOver(InstanceId, ReleaseReason),
    /// Release the target now, without waiting for running work.
    Stop(ReleaseReason),
}

/// Why a target was not acquired or not released.
///
/// ```
/// use tenure::Tenure;
/// use tenure::pool::TargetError;
///
/// # async fn poll(_: tenure::pool::Target, term: tenure::TermHandle) -> Result<(), tenure::WorkError> {
/// #     term.draining().await;
/// #     Ok(())
/// # }
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let pool = tenure.pool("poll").targets(["eu-1"]).run(poll).start()?;
/// match pool.try_acquire("eu-1").await {
///     Ok(term) => println!("held under token {}", term.token()),
///     Err(TargetError::Held { holder, .. }) => println!("{holder} holds it"),
///     Err(TargetError::Store(error)) if error.is_retryable() => println!("try again later: {error}"),
///     Err(error) => return Err(error.into()),
/// }
/// assert_eq!(pool.release("us-1").await, Err(TargetError::NotATarget));
/// # pool.stop().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The pool has no such target. Nothing was changed.
    #[error("not a target of this pool")]
    NotATarget,
    /// Another instance holds it. Nothing was changed; a retry later is safe.
    #[error("held by {holder}{}", remaining.map(|left| format!(" for another {left:?} without renewal")).unwrap_or_default())]
    Held {
        /// Its holder.
        holder: InstanceId,
        /// How long it is held without renewal, if known.
        remaining: Option<Duration>,
    },
    /// This instance does not hold it, so it cannot release it. Nothing was changed.
    #[error("not held by this instance")]
    NotHeld,
    /// This instance hands over its targets and claims none. Nothing was changed.
    #[error("this instance is draining")]
    Draining,
    /// The namespace is in quarantine. Nothing was changed; a retry later is safe.
    #[error("{0}")]
    Quarantined(Quarantine),
    /// The store could not be reached or refused the request. The target may be granted all the same, and is held then;
    /// a retry is safe.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The pool has stopped. Nothing was changed.
    #[error("the pool has stopped")]
    Stopped,
}
