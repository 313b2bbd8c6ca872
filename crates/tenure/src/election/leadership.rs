//! Leadership of one term.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::CandidateInput;
use super::Election;
use super::campaign::{Campaign, CampaignKind, LocalCandidate, acquire_term, publish_metadata};
use super::registry::CampaignGuard;
use crate::keeper::{AcquireError, AcquireMode};
use crate::lease::{Ending, ReleaseReason};
use crate::tenure::{ReleaseError, Term, TermHandle};

/// One term as leader, acquired with [`ElectionBuilder::acquire`](super::ElectionBuilder::acquire). It is renewed until
/// it is [released](Self::release) or dropped. The methods of a term are on its [`TermHandle`].
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let leadership = tenure.election("migration").try_acquire().await?;
/// for step in ["tables", "indexes"] {
///     leadership.require(Duration::from_secs(5))?; // a method of `TermHandle`
///     println!("{step}, under token {}", leadership.token());
/// }
/// leadership.release().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping it releases the leadership"]
pub struct Leadership {
    // Dropped in this order: the reporter of the end, the lease, and then the campaign.
    end_reporter: EndReporter,
    term: Term,
    campaign: Arc<Mutex<Campaign>>,
}

/// Reports the end of a term once: when it is lost, or when it is released.
struct EndReporter {
    campaign: Arc<Mutex<Campaign>>,
    term: TermHandle,
    watcher: Option<AbortHandle>,
}

impl Drop for EndReporter {
    fn drop(&mut self) {
        if let Some(watcher) = &self.watcher {
            watcher.abort();
        }
        let ending = self.term.ending().unwrap_or(Ending::Released(ReleaseReason::Voluntary));
        self.campaign.lock().unwrap_or_else(PoisonError::into_inner).apply(CandidateInput::TermEnded(ending));
    }
}

impl Leadership {
    pub(super) async fn acquire(
        election: Election,
        mode: AcquireMode,
        timeout: Option<Duration>,
    ) -> Result<Self, AcquireError> {
        let kind = CampaignKind::OneTerm { mode, timeout };
        let mut campaign = Campaign::new(CampaignGuard::register(&election.0.candidate, kind));
        let term = match acquire_term(&mut campaign).await {
            Ok(term) => term,
            Err(error) => {
                campaign.apply(CandidateInput::Failed(error.to_string()));
                return Err(error);
            }
        };
        let handle = (*term).clone();
        campaign.begin_term(&handle);
        let campaign = Arc::new(Mutex::new(campaign));
        // Without a runtime there is no watcher: then the end is reported at the release.
        let watching = watch_term(Arc::downgrade(&campaign), election.0.candidate.clone(), handle.clone());
        let watcher = Handle::try_current().ok().map(|runtime| runtime.spawn(watching).abort_handle());
        Ok(Self { end_reporter: EndReporter { campaign: campaign.clone(), term: handle, watcher }, term, campaign })
    }

    /// Stops the work, waits until it has ended, and releases the leadership.
    ///
    /// # Errors
    /// When the term was lost before its release, or the outcome is unknown; see [`ReleaseError`].
    ///
    /// # Cancel safety
    /// Safe: it continues in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let Self { end_reporter, term, campaign } = self;
        // Report the end before the release, so that no caller sees a leader during the release.
        drop(end_reporter);
        let released = term.release().await;
        drop(campaign);
        released
    }
}

/// Publishes the leader's metadata, and reports the loss of the term.
async fn watch_term(campaign: Weak<Mutex<Campaign>>, candidate: Arc<LocalCandidate>, term: TermHandle) {
    let ending = tokio::select! {
        ending = term.cancelled() => ending,
        never = publish_metadata(&candidate, &term) => match never {},
    };
    if let Some(campaign) = campaign.upgrade() {
        campaign.lock().unwrap_or_else(PoisonError::into_inner).apply(CandidateInput::TermEnded(ending));
    }
}

impl Deref for Leadership {
    type Target = TermHandle;

    fn deref(&self) -> &TermHandle {
        &self.term
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leadership({:?})", self.term)
    }
}
