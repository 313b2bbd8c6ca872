//! Results of requests to a pool.

use std::time::{Duration, SystemTime};

use thiserror::Error;

use super::TargetName;
use crate::lease::LeaseState;
use crate::name::InstanceId;
use crate::store::{Quarantine, StoreError};
use crate::token::Token;

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

/// What one instance knows about a target and its lease.
///
/// ```
/// use tenure::Tenure;
/// use tenure::lease::LeaseState;
///
/// # async fn poll(_: tenure::pool::Target, term: tenure::TermHandle) -> Result<(), tenure::WorkError> {
/// #     term.draining().await;
/// #     Ok(())
/// # }
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let pool = tenure.pool("poll").targets(["eu-1"]).run(poll).start()?;
/// # while pool.owned().is_empty() { tokio::time::sleep(std::time::Duration::from_millis(5)).await; }
/// let info = pool.lease_info("eu-1").await.ok_or("not a target")?;
/// assert_eq!((info.state, info.holder.as_ref()), (LeaseState::Owned, Some(tenure.instance())));
/// if info.holder != info.preferred {
///     println!("{} should move to {:?}", info.target, info.preferred);
/// }
/// # pool.stop().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetInfo {
    /// The target.
    pub target: TargetName,
    /// The lease, as this instance sees it: `Owned` or `Uncertain` when it holds it, `Other` when another instance
    /// does, `Unknown` when no holder is known.
    pub state: LeaseState,
    /// Its holder, as far as known.
    pub holder: Option<InstanceId>,
    /// The token of the term, if this instance holds it.
    pub token: Option<Token>,
    /// When the term began, if this instance holds it.
    pub acquired_at: Option<SystemTime>,
    /// When it was last renewed, if this instance holds it.
    pub last_renewed_at: Option<SystemTime>,
    /// The instance that should hold it.
    pub preferred: Option<InstanceId>,
    /// For how long it has been unheld, if it is.
    pub unheld_for: Option<Duration>,
}

/// The result of stopping a pool.
///
/// ```
/// use tenure::Tenure;
///
/// # async fn poll(_: tenure::pool::Target, term: tenure::TermHandle) -> Result<(), tenure::WorkError> {
/// #     term.draining().await;
/// #     Ok(())
/// # }
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let pool = tenure.pool("poll").targets(["eu-1"]).run(poll).start()?;
/// # while pool.owned().is_empty() { tokio::time::sleep(std::time::Duration::from_millis(5)).await; }
/// let report = pool.stop().await; // this instance is the only one
/// assert_eq!(report.not_handed_over.iter().map(|target| &**target).collect::<Vec<_>>(), ["eu-1"]);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopReport {
    /// Targets that no other instance accepted: they were released, or their leases expire within the ttl.
    pub not_handed_over: Vec<TargetName>,
}
