//! A candidate that campaigns in the background. The program queries it or listens to it.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::watch;

use super::campaign::{CampaignKind, CampaignOutcome, LocalCandidate, run_campaign};
use super::candidates::candidates;
use super::leaders::leader_of;
use super::registry::CampaignGuard;
use super::{Candidate, ElectionBuilder, Leader};
use crate::event::ElectionState;
use crate::lease::ReleaseReason;
use crate::name::{InstanceId, LeaseName, LeaseRef};
use crate::store::StoreError;
use crate::tenure::{EventStream, Tenure, TermHandle};

/// A candidate for a role. Clones are the same candidate. It stops when the last clone is dropped.
///
/// ```
/// use std::time::Duration;
/// use tenure::{ElectionState, Tenure};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let election = tenure.election("cleanup").on_event(|event| println!("{event}")).build()?;
/// election.start();
/// let term = election.wait_for_leadership(Duration::from_secs(10)).await?;
/// assert!(election.is_leader() && term.is_valid());
/// election.stop().await;
/// assert_eq!(election.state(), ElectionState::Follower);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Election(pub(super) Arc<ElectionInner>);

pub(super) struct ElectionInner {
    pub(super) candidate: Arc<LocalCandidate>,
    campaign: Mutex<Option<CampaignHandle>>,
}

/// A running campaign, or the last one.
#[derive(Clone)]
struct CampaignHandle {
    stop: Arc<watch::Sender<Option<ReleaseReason>>>,
    done: watch::Receiver<bool>,
}

impl CampaignHandle {
    fn is_running(&self) -> bool {
        self.stop.borrow().is_none() && !*self.done.borrow() && self.done.has_changed().is_ok()
    }

    async fn wait_until_done(mut self) {
        // A campaign whose task is gone is done, too.
        let _ = self.done.wait_for(|done| *done).await;
    }
}

impl Election {
    pub(super) fn new(candidate: LocalCandidate) -> Self {
        Self(Arc::new(ElectionInner { candidate: Arc::new(candidate), campaign: Mutex::default() }))
    }

    /// Starts a campaign in the background. Does nothing while one is running. After a [stop](Self::stop), the new
    /// campaign begins when the old one has ended.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(&self) {
        let mut slot = self.0.campaign.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.as_ref().is_some_and(CampaignHandle::is_running) {
            return;
        }
        let before = slot.take();
        let (stop, stopped) = watch::channel(None);
        let (end, done) = watch::channel(false);
        let guard = CampaignGuard::register(&self.0.candidate, CampaignKind::EveryTerm);
        tokio::spawn(async move {
            if let Some(before) = before {
                before.wait_until_done().await;
            }
            // No work runs here: the callers and listeners do it.
            let mut hold = |_: TermHandle| std::future::pending::<Result<(), Infallible>>();
            match run_campaign(guard, stopped, &mut hold).await {
                CampaignOutcome::Stopped | CampaignOutcome::ShutDown => {}
                CampaignOutcome::Failed(never) => match never {},
            }
            end.send_replace(true);
        });
        *slot = Some(CampaignHandle { stop: Arc::new(stop), done });
    }

    /// Stops the campaign: drops the term's work and releases the lease. Returns when all of that is done.
    ///
    /// # Cancel safety
    /// Safe: it continues in the background.
    pub async fn stop(&self) {
        let campaign = self.0.campaign.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(campaign) = campaign {
            campaign.stop.send_replace(Some(ReleaseReason::Shutdown));
            campaign.wait_until_done().await;
        }
    }

    /// Whether this candidate leads, computed from the deadline at every call.
    pub fn is_leader(&self) -> bool {
        self.term().is_some()
    }

    /// The current term, while this candidate leads.
    pub fn term(&self) -> Option<TermHandle> {
        self.0.candidate.term().filter(TermHandle::is_valid)
    }

    /// The state of this candidate, computed: a candidate with a valid term is the leader, and one whose term has
    /// expired is a follower, whatever was reported so far.
    pub fn state(&self) -> ElectionState {
        if self.is_leader() {
            return ElectionState::Leader;
        }
        match *self.0.candidate.state.borrow() {
            ElectionState::Leader => ElectionState::Follower,
            state => state,
        }
    }

    /// Watches the state of this candidate.
    pub fn watch(&self) -> ElectionWatch {
        ElectionWatch(self.0.candidate.state.subscribe())
    }

    /// The id of this instance.
    pub fn id(&self) -> &InstanceId {
        self.0.candidate.tenure.instance()
    }

    /// The name of the lease that is the leadership.
    pub fn name(&self) -> &LeaseName {
        &self.0.candidate.config.name
    }

    /// The role.
    pub fn role(&self) -> &str {
        &self.0.candidate.config.role
    }

    /// Looks up the leader in the store.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn current_leader(&self) -> Result<Option<Leader>, StoreError> {
        leader_of(&self.0.candidate.tenure, &self.0.candidate.config.name).await
    }

    /// Lists the candidates for this role, leading or not, by their heartbeats.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn candidates(&self) -> Result<Vec<Candidate>, StoreError> {
        candidates(&self.0.candidate.tenure, self.0.candidate.config.heartbeat.group.clone()).await
    }

    /// Waits until this candidate leads.
    ///
    /// # Errors
    /// When it does not lead within the timeout.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn wait_for_leadership(&self, timeout: Duration) -> Result<TermHandle, NotLeader> {
        let mut state = self.0.candidate.state.subscribe();
        let leads = async {
            loop {
                if let Some(term) = self.term() {
                    return term;
                }
                // This candidate owns the sender, so the channel never closes.
                let _ = state.changed().await;
            }
        };
        tokio::time::timeout(timeout, leads)
            .await
            .map_err(|_| NotLeader { role: self.role().to_owned(), waited: timeout })
    }

    /// Subscribes to all events of this role in this process from now on. A listener is given to the
    /// [builder](ElectionBuilder::on_event).
    pub fn events(&self) -> EventStream {
        self.0.candidate.tenure.events().lease(self.name())
    }
}

impl Drop for ElectionInner {
    fn drop(&mut self) {
        if let Some(campaign) = self.campaign.get_mut().unwrap_or_else(PoisonError::into_inner) {
            campaign.stop.send_replace(Some(ReleaseReason::Shutdown));
        }
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Election({:?})", self.0.candidate)
    }
}

/// The state of a candidate as it changes.
///
/// ```
/// use tenure::{ElectionState, Tenure};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let election = tenure.election("cleanup").build()?;
/// let mut watch = election.watch();
/// assert_eq!(watch.current(), ElectionState::Follower);
/// election.start();
/// while let Some(state) = watch.changed().await {
///     println!("{}", state.as_str());
///     # if state == ElectionState::Leader { break; }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ElectionWatch(watch::Receiver<ElectionState>);

impl ElectionWatch {
    /// The state as last reported.
    pub fn current(&self) -> ElectionState {
        *self.0.borrow()
    }

    /// Waits until the state differs from that of the last call. It may skip short-lived states. Returns `None` when
    /// the election is gone.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn changed(&mut self) -> Option<ElectionState> {
        self.0.changed().await.ok()?;
        Some(*self.0.borrow_and_update())
    }
}

/// This candidate does not lead.
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let store = tenure::store::open("memory:", &tenure::store::Keyspace::default())?;
/// # let other = Tenure::with_store(store.clone()).connect().await?;
/// # let tenure = Tenure::with_store(store).connect().await?;
/// let leadership = other.election("cleanup").acquire().await?; // another instance leads
/// let election = tenure.election("cleanup").build()?;
/// election.start();
/// let error = election.wait_for_leadership(Duration::from_millis(20)).await.unwrap_err();
/// assert_eq!(error.to_string(), "not leader of cleanup after 20ms");
/// # drop(leadership);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("not leader of {role} after {waited:?}")]
#[non_exhaustive]
pub struct NotLeader {
    /// The role.
    pub role: String,
    /// How long the caller waited.
    pub waited: Duration,
}

impl Tenure {
    /// Sets up an election for a role, by its label or by the whole name of its lease. The key of the role `cleanup` is
    /// `leader:cleanup`.
    pub fn election(&self, role: impl Into<LeaseRef>) -> ElectionBuilder {
        ElectionBuilder::new(self.clone(), role.into())
    }
}
