//! One piece of work, done by the leader and by nobody else.

use std::future::Future;
use std::sync::OnceLock;

use thiserror::Error;

use super::builder::ElectionError;
use crate::keeper::AcquireError;
use crate::name::InstanceId;
use crate::store::StoreError;
use crate::tenure::{Lost, Tenure};

/// Why a piece of work was not done, or not to its end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LeaderOnlyError {
    /// Somebody else leads. Nothing was begun.
    #[error("not leader{}", LeaderSuffix(leader.as_ref()))]
    NotLeader {
        /// Who does, when that is known.
        leader: Option<InstanceId>,
    },
    /// The leadership was lost, and the work dropped.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The store could not be asked. Nothing was begun.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The role is not acceptable.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// Tenure was shut down. Nothing was begun.
    #[error("tenure was shut down")]
    ShutDown,
}

/// ": api-1 is", or nothing.
struct LeaderSuffix<'a>(Option<&'a InstanceId>);

impl std::fmt::Display for LeaderSuffix<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |leader| write!(f, ": {leader} is"))
    }
}

impl Tenure {
    /// Does something if this process leads the role, and nothing otherwise.
    ///
    /// While an [`Election`](super::Election) of that role is started on this `Tenure`, or [led](super::ElectionBuilder::lead), it decides. Without one the leadership is
    /// asked for, kept while the work runs, and let go of: one at a time, but as often as anybody calls.
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
    /// When it was not done, or not to its end.
    ///
    /// # Cancel safety
    /// As safe as the work itself, which is dropped; the lease is let go of in the background.
    pub async fn run_as_leader<W: Future>(&self, role: &str, work: W) -> Result<W::Output, LeaderOnlyError> {
        if let Some(candidates) = self.elections().for_role(role) {
            let leading = candidates.iter().find_map(|candidate| candidate.term().filter(crate::TermHandle::is_valid));
            let term = leading.ok_or(LeaderOnlyError::NotLeader { leader: None })?;
            return Ok(term.run(work).await?);
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
        let done = leadership.run(work).await;
        // A loss has been told by then.
        let _ = leadership.release().await;
        Ok(done?)
    }
}

static INSTALLED: OnceLock<Tenure> = OnceLock::new();

/// Makes this the store of every `#[leader_only]` function that names none. Returns whether it was the first: there is one.
pub fn install(tenure: Tenure) -> bool {
    INSTALLED.set(tenure).is_ok()
}

/// What was [installed](install).
///
/// # Panics
/// When nothing was: that is a mistake in the program.
#[expect(clippy::expect_used, reason = "documented: a program that forgets it is told at its first call")]
pub fn installed() -> Tenure {
    INSTALLED.get().expect("call tenure::install(…) before a #[leader_only] function, or give it `store = …`").clone()
}
