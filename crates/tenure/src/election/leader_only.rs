//! Work that only the leader does.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use thiserror::Error;

use super::builder::{ElectionBuilder, ElectionError};
use super::campaign::LocalCandidate;
use crate::keeper::AcquireError;
use crate::lease::ReleaseReason;
use crate::name::{InstanceId, LeaseName};
use crate::store::{Quarantine, StoreError};
use crate::tenure::{Lost, RunError, Tenure, TermHandle};

/// Why the work was not done, or not completed.
///
/// ```
/// use tenure::Tenure;
/// use tenure::election::LeaderOnlyError;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let store = tenure::store::open("memory:", &tenure::store::Keyspace::default())?;
/// # let other = Tenure::with_store(store.clone()).connect().await?;
/// # let tenure = Tenure::with_store(store).connect().await?;
/// let leadership = other.election("aggregation").acquire().await?; // another instance leads
/// match tenure.run_as_leader("aggregation", async |_| 42).await {
///     Ok(total) => println!("{total}"),
///     Err(LeaderOnlyError::NotLeader { leader }) => assert_eq!(leader.as_ref(), Some(other.instance())),
///     Err(LeaderOnlyError::Lost(lost)) => println!("stopped half-way: {lost}"),
///     Err(error) => return Err(error.into()),
/// }
/// # drop(leadership);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    /// The store is in quarantine and grants nothing for now. The work did not begin; a later retry is safe.
    #[error("cannot lead: {0}")]
    Quarantined(Quarantine),
    /// This [`Tenure`] was opened as an [observer](crate::TenureBuilder::observer). The work did not begin.
    #[error("cannot lead: this instance only observes")]
    Observer,
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
    /// Runs the work if this process leads the role. Otherwise does nothing. The work gets its term, with the token.
    ///
    /// If an [`Election`](super::Election) of that role is started on this `Tenure`, or
    /// [led](super::ElectionBuilder::lead), it decides. Otherwise this call acquires the leadership, keeps it while the
    /// work runs, and releases it. Then the work runs at most once at a time, but once for every call. The lease has the
    /// default ttl of 30 s; see [`ElectionBuilder::run_as_leader`](super::ElectionBuilder::run_as_leader) for another.
    ///
    /// ```
    /// use tenure::Tenure;
    ///
    /// # #[cfg(feature = "memory")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let total = tenure.run_as_leader("aggregation", async |term| format!("42 in term {}", term.token())).await?;
    /// assert!(total.starts_with("42"));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the work was not done, or not completed.
    ///
    /// # Cancel safety
    /// As safe as the work itself, which is dropped; the lease is released in the background.
    pub async fn run_as_leader<W, F>(&self, role: &str, work: W) -> Result<F::Output, LeaderOnlyError>
    where
        W: FnOnce(TermHandle) -> F,
        F: Future,
    {
        self.election(role).run_as_leader(work).await
    }

    /// Whether this process leads the role, by an election that is started or led on this `Tenure`. Computed from the
    /// deadline at every call, without a request to the store.
    pub fn is_leader(&self, role: &str) -> bool {
        self.elections().for_role(role).is_some_and(|candidates| leading_term(&candidates).is_some())
    }
}

impl ElectionBuilder {
    /// Like [`Tenure::run_as_leader`], with the settings of this builder for a leadership that the call acquires.
    ///
    /// # Errors
    /// When the work was not done, or not completed.
    ///
    /// # Cancel safety
    /// As safe as the work itself, which is dropped; the lease is released in the background.
    pub async fn run_as_leader<W, F>(self, work: W) -> Result<F::Output, LeaderOnlyError>
    where
        W: FnOnce(TermHandle) -> F,
        F: Future,
    {
        let candidates = self.tenure().elections().for_role(self.role()).map(|candidates| self.matching(candidates));
        if let Some(candidates) = candidates.filter(|candidates| !candidates.is_empty()) {
            let term = leading_term(&candidates).ok_or(LeaderOnlyError::NotLeader { leader: None })?;
            return Ok(term.run_infallible(work(term.clone())).await?);
        }
        let leadership = self.try_acquire().await.map_err(|error| match error {
            AcquireError::Held { holder, .. } => LeaderOnlyError::NotLeader { leader: Some(holder) },
            AcquireError::Store(error) | AcquireError::TimedOut { because: Some(error), .. } => {
                LeaderOnlyError::Store(error)
            }
            AcquireError::ShutDown => LeaderOnlyError::ShutDown,
            AcquireError::Name(error) => LeaderOnlyError::Election(error.into()),
            AcquireError::Settings(error) => LeaderOnlyError::Election(error.into()),
            AcquireError::Election(error) => LeaderOnlyError::Election(error),
            AcquireError::Quarantined(quarantine) => LeaderOnlyError::Quarantined(quarantine),
            AcquireError::Observer => LeaderOnlyError::Observer,
            AcquireError::TimedOut { holder, .. } => LeaderOnlyError::NotLeader { leader: holder },
        })?;
        let done = leadership.run_infallible(work((*leadership).clone())).await;
        // A loss was reported by then.
        let _ = leadership.release().await;
        Ok(done?)
    }
}

impl ElectionBuilder {
    /// The candidates that decide for this builder: all of the role, whatever their keys are; or those of the same lease,
    /// if this builder names another one than the role's own.
    fn matching(&self, candidates: Vec<Arc<LocalCandidate>>) -> Vec<Arc<LocalCandidate>> {
        let is_default = LeaseName::role(self.role()).ok().as_ref() == self.lease_name();
        candidates.into_iter().filter(|one| is_default || Some(&one.config.name) == self.lease_name()).collect()
    }
}

/// The term of the candidate that leads, if one does.
fn leading_term(candidates: &[Arc<LocalCandidate>]) -> Option<TermHandle> {
    candidates.iter().find_map(|candidate| candidate.term().filter(TermHandle::is_valid))
}

static INSTALLED: OnceLock<Tenure> = OnceLock::new();

/// Sets the `Tenure` of every `#[leader_only]` function that names none. Returns whether this was the first call; later
/// calls change nothing.
///
/// ```
/// # #[cfg(all(feature = "macros", feature = "memory"))] {
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
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn install(tenure: Tenure) -> bool {
    INSTALLED.set(tenure).is_ok()
}

/// Runs the work of a `#[leader_only]` function, on its `Tenure` or on the [installed](install) one.
#[doc(hidden)]
pub async fn run_leader_only<W, F>(
    tenure: Option<&Tenure>,
    role: &str,
    ttl: Option<Duration>,
    work: W,
) -> Result<F::Output, LeaderOnlyError>
where
    W: FnOnce(TermHandle) -> F,
    F: Future,
{
    let Some(tenure) = tenure.or_else(|| INSTALLED.get()) else {
        // A function that returns an `Option` cannot say it otherwise, and a job that never runs must not be silent.
        report(role, &LeaderOnlyError::NotInstalled);
        return Err(LeaderOnlyError::NotInstalled);
    };
    let election = tenure.election(role);
    match ttl {
        Some(ttl) => election.ttl(ttl).run_as_leader(work).await,
        None => election.run_as_leader(work).await,
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
