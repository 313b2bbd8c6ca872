//! The campaign of a candidate: acquire, lead, and campaign again.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::backoff::Backoff;
use tokio::sync::{mpsc, oneshot, watch};

use super::leaders::METADATA_RECORD;
use super::registry::CampaignGuard;
use super::{BackoffReason, CampaignBackoff, CandidateInput, CandidateState};
use crate::event::{ElectionState, Event};
use crate::keeper::{AcquireError, AcquireMode, Command, Heartbeat, ListenerGuard, PendingCall};
use crate::lease::{Ending, LeaseSettings, ReleaseReason};
use crate::name::LeaseName;
use crate::store::MembershipRequest;
use crate::tenure::{RunError, Tenure, Term, TermHandle};
use crate::token::Token;

/// The longest backoff between two attempts to publish the leader.
const MAX_PUBLISH_BACKOFF: Duration = Duration::from_secs(60);

/// The role of a candidate and its settings.
pub(super) struct CandidateConfig {
    pub(super) role: String,
    pub(super) name: LeaseName,
    pub(super) settings: LeaseSettings,
    pub(super) start_jitter: Duration,
    pub(super) metadata: Option<String>,
    pub(super) heartbeat: Arc<Heartbeat>,
}

/// A candidate of this process, with its state as others see it.
pub(super) struct LocalCandidate {
    pub(super) tenure: Tenure,
    pub(super) config: CandidateConfig,
    /// Removed with the candidate, after its last event.
    _listeners: Vec<ListenerGuard>,
    pub(super) state: watch::Sender<ElectionState>,
    /// The current term.
    pub(super) term: Mutex<Option<TermHandle>>,
}

impl LocalCandidate {
    pub(super) fn new(tenure: Tenure, config: CandidateConfig, listeners: Vec<ListenerGuard>) -> Self {
        let state = watch::Sender::new(ElectionState::Follower);
        Self { tenure, config, _listeners: listeners, state, term: Mutex::default() }
    }

    pub(super) fn term(&self) -> Option<TermHandle> {
        self.term.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_term(&self, term: Option<TermHandle>) {
        *self.term.lock().unwrap_or_else(PoisonError::into_inner) = term;
    }

    /// Leaves the list of candidates, unless another campaign of this process uses the same group. The reply is not
    /// awaited: if the request fails, the heartbeat expires soon.
    fn leave(&self) {
        let group = &self.config.heartbeat.group;
        if !self.tenure.elections().has_group(group) {
            let request = MembershipRequest::Leave { group: group.clone(), instance: self.tenure.instance().clone() };
            let (reply, _) = oneshot::channel();
            let limit = self.config.settings.attempt_timeout();
            self.tenure.keeper().send(Command::Call(PendingCall {
                request: request.into(),
                timeout: limit,
                is_work: true,
                reply,
            }));
        }
    }
}

/// A running campaign. However it ends, even dropped at any point, it reports its end.
pub(super) struct Campaign {
    guard: Option<CampaignGuard>,
    candidate: Arc<LocalCandidate>,
    kind: CampaignKind,
    state: CandidateState,
}

impl Campaign {
    pub(super) fn new(guard: CampaignGuard) -> Self {
        let (candidate, kind) = (guard.candidate.clone(), guard.kind);
        Self { guard: Some(guard), candidate, kind, state: CandidateState::default() }
    }

    pub(super) fn begin_term(&mut self, term: &TermHandle) {
        self.candidate.set_term(Some(term.clone()));
        self.apply(CandidateInput::TermStarted(term.token()));
    }

    /// Reports to the watchers of the candidate's state, and to the event streams and listeners of the `Tenure`.
    pub(super) fn apply(&mut self, input: CandidateInput) {
        let candidate = &self.candidate;
        if matches!(input, CandidateInput::TermEnded(_)) {
            candidate.set_term(None);
        }
        for (token, kind) in self.state.step(input) {
            let (instance, lease) = (candidate.tenure.instance().clone(), Some(candidate.config.name.clone()));
            candidate.tenure.keeper().emit(Event { instance, lease, token, kind });
        }
        let now = self.state.current();
        candidate.state.send_if_modified(|state| std::mem::replace(state, now) != now);
    }
}

impl Drop for Campaign {
    fn drop(&mut self) {
        self.apply(CandidateInput::TermEnded(Ending::Released(ReleaseReason::Voluntary)));
        self.apply(CandidateInput::Stopped);
        self.guard = None;
        self.candidate.leave();
    }
}

/// How many terms a campaign is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum CampaignKind {
    /// Every term, one after another.
    EveryTerm,
    /// One term, acquired within the timeout.
    OneTerm { mode: AcquireMode, timeout: Option<Duration> },
}

/// Receives the reason to stop a campaign.
pub(super) type StopReceiver = watch::Receiver<Option<ReleaseReason>>;

/// How a campaign ended.
pub(super) enum CampaignOutcome<E> {
    /// It was stopped.
    Stopped,
    /// The keeper has ended.
    ShutDown,
    /// The work failed.
    Failed(E),
}

/// Campaigns until stopped, and runs the work in every term.
pub(super) async fn run_campaign<W, F, E>(
    guard: CampaignGuard,
    mut stop: StopReceiver,
    work: &mut W,
) -> CampaignOutcome<E>
where
    W: FnMut(TermHandle) -> F,
    F: Future<Output = Result<(), E>>,
{
    // Dropped last, when nothing of the term is left.
    let mut campaign = Campaign::new(guard);
    let settings = campaign.candidate.config.settings;
    let mut pause = campaign.candidate.config.start_jitter.mul_f64(fastrand::f64());
    let mut backoff = CampaignBackoff::default();
    loop {
        if sleep_or_stop(pause, &mut stop).await {
            return CampaignOutcome::Stopped;
        }
        let won = tokio::select! {
            biased;
            _ = wait_for_stop(&mut stop) => return CampaignOutcome::Stopped,
            won = acquire_term(&mut campaign) => won,
        };
        let reason = match won {
            Err(AcquireError::ShutDown) => return CampaignOutcome::ShutDown,
            Err(error) => {
                campaign.apply(CandidateInput::Failed(error.to_string()));
                BackoffReason::AcquireFailed
            }
            Ok(term) => {
                let began = Instant::now();
                match run_term(&mut campaign, term, &mut stop, work).await {
                    LeadOutcome::Stopped => return CampaignOutcome::Stopped,
                    LeadOutcome::Failed(error) => return CampaignOutcome::Failed(error),
                    LeadOutcome::Resigned | LeadOutcome::SteppedDown => BackoffReason::Resigned,
                    LeadOutcome::Lost => BackoffReason::Lost { led_for: began.elapsed() },
                    // A further request would only be refused: the keeper has ended.
                    LeadOutcome::ShutDown => return CampaignOutcome::ShutDown,
                }
            }
        };
        pause = backoff.next_delay(reason, &settings, fastrand::f64());
    }
}

/// Sleeps. Returns whether the campaign was stopped meanwhile.
async fn sleep_or_stop(span: Duration, stop: &mut StopReceiver) -> bool {
    tokio::time::timeout(span, wait_for_stop(stop)).await.is_ok() || stop.borrow().is_some()
}

/// Waits until the campaign is stopped, or the sender is gone.
async fn wait_for_stop(stop: &mut StopReceiver) -> ReleaseReason {
    stop.wait_for(Option::is_some).await.ok().and_then(|reason| *reason).unwrap_or(ReleaseReason::Voluntary)
}

/// Waits until the lease is acquired or cannot be, and reports the status meanwhile.
pub(super) async fn acquire_term(campaign: &mut Campaign) -> Result<Term, AcquireError> {
    let (status_sender, mut statuses) = mpsc::unbounded_channel();
    let config = &campaign.candidate.config;
    let mut request = campaign.candidate.tenure.lease(&config.name).settings(config.settings);
    let mode = match campaign.kind {
        CampaignKind::EveryTerm => AcquireMode::Wait,
        CampaignKind::OneTerm { mode, timeout } => {
            if let Some(timeout) = timeout {
                request = request.timeout(timeout);
            }
            mode
        }
    };
    let mut asking = std::pin::pin!(request.acquire_as_candidate(mode, status_sender, config.heartbeat.clone()));
    loop {
        tokio::select! {
            biased;
            Some(status) = statuses.recv() => campaign.apply(CandidateInput::StatusChanged(status)),
            won = &mut asking => return won,
        }
    }
}

enum LeadOutcome<E> {
    Stopped,
    Resigned,
    SteppedDown,
    Lost,
    ShutDown,
    Failed(E),
}

/// Runs one term, from the grant until nothing of it is left.
async fn run_term<W, F, E>(campaign: &mut Campaign, term: Term, stop: &mut StopReceiver, work: &mut W) -> LeadOutcome<E>
where
    W: FnMut(TermHandle) -> F,
    F: Future<Output = Result<(), E>>,
{
    let handle = (*term).clone();
    let candidate = campaign.candidate.clone();
    campaign.begin_term(&handle);
    let working = handle.run(async {
        tokio::select! {
            done = work(handle.clone()) => done,
            // Concurrent with the work, which does not wait for it.
            never = publish_metadata(&candidate, &handle) => match never {},
        }
    });
    let (ended, ending) = tokio::select! {
        done = working => match done {
            Ok(()) => (LeadOutcome::Resigned, Ending::Released(ReleaseReason::Voluntary)),
            Err(RunError::Work(error)) => (LeadOutcome::Failed(error), Ending::Released(ReleaseReason::Voluntary)),
            Err(RunError::Released(ReleaseReason::Shutdown)) => {
                (LeadOutcome::ShutDown, Ending::Released(ReleaseReason::Shutdown))
            }
            // A leader that was asked to step down lets others lead for a while.
            Err(RunError::Released(reason)) => (LeadOutcome::SteppedDown, Ending::Released(reason)),
            Err(RunError::Lost(lost)) => (LeadOutcome::Lost, Ending::Lost(lost.reason)),
        },
        reason = wait_for_stop(stop) => (LeadOutcome::Stopped, Ending::Released(reason)),
    };
    // The work has ended. Report it before the release, so that no caller sees a leader during the release.
    let reason = match &ending {
        Ending::Released(reason) => *reason,
        _ => ReleaseReason::Voluntary,
    };
    campaign.apply(CandidateInput::TermEnded(ending));
    // A loss was reported above; here it matters only that the term is over.
    let _ = term.release_with_reason(reason).await;
    ended
}

/// Publishes the metadata of this leader, which also announces the leader to observers. It retries during the whole
/// term, with growing backoff: nothing depends on it.
pub(super) async fn publish_metadata(candidate: &LocalCandidate, term: &TermHandle) -> Infallible {
    let record = candidate.config.metadata.clone().unwrap_or_default().into_bytes();
    let (backoff, mut failures) = (Backoff::new(candidate.config.settings.attempt_timeout(), MAX_PUBLISH_BACKOFF), 0);
    while term.publish(METADATA_RECORD, record.clone()).await.is_err() {
        failures += 1;
        tokio::time::sleep(backoff.after(failures)).await;
    }
    std::future::pending().await
}

impl std::fmt::Debug for LocalCandidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token: Option<Token> = self.term().map(|term| term.token());
        write!(f, "{} of {} ({}, {token:?})", self.tenure.instance(), self.config.name, self.state.borrow().as_str())
    }
}
