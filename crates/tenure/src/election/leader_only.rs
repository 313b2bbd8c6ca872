//! Work that only the leader does.

use std::future::Future;
use std::sync::OnceLock;

use thiserror::Error;

use super::builder::ElectionError;
use crate::keeper::AcquireError;
use crate::lease::ReleaseReason;
use crate::name::InstanceId;
use crate::store::StoreError;
use crate::tenure::{Lost, RunError, Tenure};

/// Why the work was not done, or not completed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LeaderOnlyError {
    /// This process does not lead. The work did not begin.
    #[error("not leader{}", LeaderSuffix(leader.as_ref()))]
    NotLeader {
        /// The leader, if known.
        leader: Option<InstanceId>,
    },
    /// The leadership was lost, and the work was dropped: it may be incomplete.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The leader stepped down while the work ran, and the work was dropped: it may be incomplete.
    #[error("the leadership was released ({0}) before the work was done")]
    Released(ReleaseReason),
    /// The store could not be reached or refused the request. The work did not begin.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The role is not a valid name, or its settings are not valid.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// Tenure was shut down. The work did not begin.
    #[error("tenure was shut down")]
    ShutDown,
    /// The function names no [`Tenure`], and none is [installed](install). The work did not begin.
    #[error("no Tenure is installed: call tenure::install(…) at the start, or give the function a parameter `tenure`")]
    NotInstalled,
}

impl From<RunError> for LeaderOnlyError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Lost(lost) => Self::Lost(lost),
            RunError::Released(reason) => Self::Released(reason),
            RunError::Work(never) => match never {},
        }
    }
}

/// ": api-1 is", or nothing.
struct LeaderSuffix<'a>(Option<&'a InstanceId>);

impl std::fmt::Display for LeaderSuffix<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |leader| write!(f, ": {leader} is"))
    }
}

impl Tenure {
    /// Runs the work if this process leads the role. Otherwise does nothing.
    ///
    /// If an [`Election`](super::Election) of that role is started on this `Tenure`, or
    /// [led](super::ElectionBuilder::lead), it decides. Otherwise this call acquires the leadership, keeps it while the
    /// work runs, and releases it. Then the work runs at most once at a time, but once for every call.
    ///
    /// ```
    /// use tenure::Tenure;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// assert_eq!(tenure.run_as_leader("aggregation", async { 42 }).await, Ok(42));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the work was not done, or not completed.
    ///
    /// # Cancel safety
    /// As safe as the work itself, which is dropped; the lease is released in the background.
    pub async fn run_as_leader<W: Future>(&self, role: &str, work: W) -> Result<W::Output, LeaderOnlyError> {
        if let Some(candidates) = self.elections().for_role(role) {
            let leading = candidates.iter().find_map(|candidate| candidate.term().filter(crate::TermHandle::is_valid));
            let term = leading.ok_or(LeaderOnlyError::NotLeader { leader: None })?;
            return Ok(term.run_infallible(work).await?);
        }
        let leadership = self.election(role).try_acquire().await.map_err(|error| match error {
            AcquireError::Held { holder, .. } => LeaderOnlyError::NotLeader { leader: Some(holder) },
            AcquireError::Store(error) | AcquireError::TimedOut { because: Some(error), .. } => {
                LeaderOnlyError::Store(error)
            }
            AcquireError::ShutDown => LeaderOnlyError::ShutDown,
            AcquireError::Name(error) => LeaderOnlyError::Election(error.into()),
            AcquireError::Settings(error) => LeaderOnlyError::Election(error.into()),
            AcquireError::Election(error) => LeaderOnlyError::Election(error),
            AcquireError::Quarantined(_) | AcquireError::TimedOut { .. } | AcquireError::Observer => {
                LeaderOnlyError::NotLeader { leader: None }
            }
        })?;
        let done = leadership.run_infallible(work).await;
        // A loss was reported by then.
        let _ = leadership.release().await;
        Ok(done?)
    }
}

static INSTALLED: OnceLock<Tenure> = OnceLock::new();

/// Sets the `Tenure` of every `#[leader_only]` function that names none. Returns whether this was the first call; later
/// calls change nothing.
///
/// ```
/// use tenure::{Tenure, leader_only};
///
/// #[leader_only("aggregation")]
/// async fn aggregate() -> u32 {
///     17
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// tenure::install(Tenure::connect("memory:").await?);
/// assert_eq!(aggregate().await, Some(17));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn install(tenure: Tenure) -> bool {
    INSTALLED.set(tenure).is_ok()
}

/// Runs the work of a `#[leader_only]` function that names no [`Tenure`].
#[doc(hidden)]
pub async fn run_as_leader_installed<W: Future>(role: &str, work: W) -> Result<W::Output, LeaderOnlyError> {
    match INSTALLED.get() {
        Some(tenure) => tenure.run_as_leader(role, work).await,
        None => {
            // A function that returns an `Option` cannot say it otherwise, and a job that never runs must not be silent.
            report(role, &LeaderOnlyError::NotInstalled);
            Err(LeaderOnlyError::NotInstalled)
        }
    }
}

#[cfg(feature = "tracing")]
fn report(role: &str, error: &LeaderOnlyError) {
    tracing::error!(event = "election.failed", role, %error);
}

#[cfg(not(feature = "tracing"))]
fn report(role: &str, error: &LeaderOnlyError) {
    eprintln!("election.failed role={role} error={error:?}");
}
