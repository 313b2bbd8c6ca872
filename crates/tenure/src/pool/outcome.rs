//! Results of requests to a pool.

use std::time::{Duration, SystemTime};

use super::TargetName;
use crate::lease::LeaseState;
use crate::name::InstanceId;
use crate::token::Token;

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
