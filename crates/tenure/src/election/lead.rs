//! Leading as one future: term after term, until stopped.

use std::fmt;
use std::future::Future;
use std::pin::pin;

use thiserror::Error;
use tokio::sync::watch;

use super::Election;
use super::ElectionError;
use super::campaign::{CampaignKind, CampaignOutcome, run_campaign};
use super::registry::CampaignGuard;
use crate::lease::ReleaseReason;
use crate::tenure::{TermHandle, WorkError};

/// A campaign built by [`lead`](super::ElectionBuilder::lead), not yet started: run it with [`until`](Self::until).
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let (stop, stopped) = tokio::sync::oneshot::channel();
/// let lead = tenure.election("cleanup").lead(async |term| {
///     while term.wait(Duration::from_millis(10)).await {
///         println!("sweeping under token {}", term.token());
///     }
///     Ok(())
/// });
/// stop.send("maintenance")?; // by another task
/// lead.until(stopped).await?; // the lease is released by then
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the campaign does not start until `until` is awaited"]
pub struct Lead<W> {
    election: Result<Election, ElectionError>,
    work: W,
}

impl<W> Lead<W> {
    pub(super) fn new(election: Result<Election, ElectionError>, work: W) -> Self {
        Self { election, work }
    }

    /// Leads until `shutdown` completes. Then drops the work, releases the lease, and returns.
    ///
    /// # Errors
    /// When the settings of the election are not valid, when the work fails, or when Tenure was shut down.
    ///
    /// # Cancel safety
    /// Safe: the work is dropped, and the lease is released in the background.
    pub async fn until<F>(self, shutdown: impl Future) -> Result<(), LeadError>
    where
        W: FnMut(TermHandle) -> F,
        F: Future<Output = Result<(), WorkError>>,
    {
        // Its output is dropped at once: that of `watch::Receiver::wait_for` must not be held across an `await`.
        let shutdown = async { drop(shutdown.await) };
        let Self { election, mut work } = self;
        let election = election?;
        let (stop, stopped) = watch::channel(None);
        let guard = CampaignGuard::register(&election.0.candidate, CampaignKind::EveryTerm);
        let mut leading = pin!(run_campaign(guard, stopped, &mut work));
        let outcome = tokio::select! {
            outcome = &mut leading => outcome,
            () = shutdown => {
                stop.send_replace(Some(ReleaseReason::Shutdown));
                leading.await
            }
        };
        match outcome {
            CampaignOutcome::Stopped => Ok(()),
            CampaignOutcome::ShutDown => Err(LeadError::ShutDown),
            CampaignOutcome::Failed(error) => Err(LeadError::Work(error)),
        }
    }
}

impl<W> fmt::Debug for Lead<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lead({:?})", self.election)
    }
}

/// Why a campaign ended.
///
/// ```
/// use tenure::Tenure;
/// use tenure::election::LeadError;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let shutdown = std::future::pending::<()>();
/// match tenure.election("cleanup").lead(async |_| Err("disk full".into())).until(shutdown).await {
///     Ok(()) | Err(LeadError::ShutDown) => println!("stopped"),
///     Err(LeadError::Work(error)) => assert_eq!(error.to_string(), "disk full"), // another candidate may lead
///     Err(error) => return Err(error.into()), // settings to correct
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LeadError {
    /// The settings of the election are not valid. Nothing was sent.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// The work failed. The lease was released.
    #[error("the leader's work failed")]
    Work(#[source] WorkError),
    /// This [`Tenure`](crate::Tenure) was shut down.
    #[error("tenure was shut down")]
    ShutDown,
}
