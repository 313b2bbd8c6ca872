//! Leading as one future: term after term, until told to stop.

use std::fmt;
use std::future::Future;
use std::pin::pin;

use thiserror::Error;
use tokio::sync::watch;

use super::ElectionError;
use super::campaign::{CampaignKind, CampaignOutcome, run_campaign};
use super::registry::CampaignGuard;
use super::{Election, ElectionEvent};
use crate::lease::ReleaseReason;
use crate::tenure::TermHandle;

/// What [`lead`](super::ElectionBuilder::lead) gives: lead [until](Self::until) something happens.
#[must_use = "nobody leads until this is awaited"]
pub struct Lead<W> {
    election: Result<Election, ElectionError>,
    work: W,
}

impl<W> Lead<W> {
    pub(super) fn new(election: Result<Election, ElectionError>, work: W) -> Self {
        Self { election, work }
    }

    /// Registers a listener; see [`Election::on`].
    ///
    /// # Errors
    /// When the process can have no more threads.
    pub fn on(self, listener: impl Fn(&ElectionEvent) + Send + 'static) -> std::io::Result<Self> {
        if let Ok(election) = &self.election {
            election.on(listener)?;
        }
        Ok(self)
    }

    /// Leads until the future ends; then the work is dropped, the lease let go of, and all is done.
    ///
    /// # Errors
    /// When the election cannot be held like this, when the work has failed, or when Tenure was shut down.
    ///
    /// # Cancel safety
    /// Safe: the work is dropped, and the lease let go of in the background.
    pub async fn until<F, E>(self, shutdown: impl Future) -> Result<(), LeadError<E>>
    where
        W: FnMut(TermHandle) -> F,
        F: Future<Output = Result<(), E>>,
    {
        let Self { election, mut work } = self;
        let election = election?;
        let (stop, stopped) = watch::channel(None);
        let guard = CampaignGuard::register(&election.0.candidate, CampaignKind::EveryTerm);
        let mut leading = pin!(run_campaign(guard, stopped, &mut work));
        let outcome = tokio::select! {
            outcome = &mut leading => outcome,
            _ = shutdown => {
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

/// Why leading has ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LeadError<E> {
    /// The election cannot be held like this.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// The work has failed. The lease was let go of.
    #[error("the leader's work has failed: {0}")]
    Work(#[source] E),
    /// This [`Tenure`](crate::Tenure) was shut down.
    #[error("tenure was shut down")]
    ShutDown,
}
