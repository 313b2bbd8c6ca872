//! A candidate for a role, like one in a program's election: it reports its state and backs off.

use std::time::Duration;

use tenure_core::election::{BackoffReason, CampaignBackoff, CandidateInput, CandidateState};
use tenure_core::ending::{Ending, ReleaseReason};
use tenure_core::lease::{AcquireStatus, LeaseSettings};
use tenure_core::time::Moment;
use tenure_core::{EventKind, Token};

/// Election events, each with the term that it is about.
pub type ElectionEvents = Vec<(Option<Token>, EventKind)>;

/// One candidate.
#[derive(Debug, Default)]
pub struct SimCandidate {
    candidacy: CandidateState,
    backoff: CampaignBackoff,
    last_status: Option<AcquireStatus>,
    /// Start of its leadership.
    since: Option<Moment>,
    /// The reason for the loss of its term.
    loss: Option<Ending>,
}

impl SimCandidate {
    /// Handles a change in the status of its acquisition.
    pub fn on_status(&mut self, status: AcquireStatus) -> ElectionEvents {
        if self.last_status.as_ref() == Some(&status) {
            return ElectionEvents::new();
        }
        self.last_status = Some(status.clone());
        self.candidacy.step(CandidateInput::StatusChanged(status))
    }

    /// Handles the permission to work, which is repeated after every uncertainty.
    pub fn on_may_start(&mut self, token: Token, local: Moment) -> ElectionEvents {
        if self.since.is_some() {
            return ElectionEvents::new();
        }
        self.since = Some(local);
        self.candidacy.step(CandidateInput::TermStarted(token))
    }

    /// Records the loss of the term. The instruction to stop work follows.
    pub fn on_lost(&mut self, ending: Ending) {
        self.loss = Some(ending);
    }

    /// Handles the instruction to stop work.
    pub fn on_must_stop(&mut self, local: Moment) -> (ElectionEvents, Option<BackoffReason>) {
        let Some(since) = self.since.take() else { return (ElectionEvents::new(), None) };
        let backoff_reason = match &self.loss {
            Some(_) => BackoffReason::Lost { led_for: local.since(since) },
            None => BackoffReason::Resigned,
        };
        let ending = self.loss.take().unwrap_or(Ending::Released(ReleaseReason::Voluntary));
        (self.candidacy.step(CandidateInput::TermEnded(ending)), Some(backoff_reason))
    }

    /// Time to leave the role to other candidates.
    pub fn backoff(&mut self, backoff_reason: BackoffReason, settings: &LeaseSettings, chance: f64) -> Duration {
        self.last_status = None;
        self.backoff.next_delay(backoff_reason, settings, chance)
    }
}
