//! The state of a candidate and the events it emits: a state machine without I/O, clock or async.

use crate::ending::Ending;
use crate::event::{ElectionState, EventKind};
use crate::lease::AcquireStatus;
use crate::token::Token;

/// An input of a [`CandidateState`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CandidateInput {
    /// The status of the acquisition changed.
    StatusChanged(AcquireStatus),
    /// A term began.
    TermStarted(Token),
    /// The term is over.
    TermEnded(Ending),
    /// The lease cannot be acquired.
    Failed(String),
    /// The campaign was stopped.
    Stopped,
}

/// The state of one candidate for one role: a state machine that takes inputs and returns the events to emit.
///
/// ```
/// use tenure_core::election::{CandidateState, CandidateInput};
/// use tenure_core::lease::AcquireStatus;
/// use tenure::{ElectionState, Token};
///
/// let mut state = CandidateState::default();
/// state.step(CandidateInput::StatusChanged(AcquireStatus::Requesting));
/// let events = state.step(CandidateInput::TermStarted(Token::new(42).ok_or("too large")?));
/// let events: Vec<&str> = events.iter().map(|(_, kind)| kind.name()).collect();
/// assert_eq!(events, ["election.state_changed", "election.leadership_acquired"]);
/// assert_eq!(state.current(), ElectionState::Leader);
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug)]
pub struct CandidateState {
    current: ElectionState,
    term: Option<Token>,
    /// The error last reported, so that it is reported once.
    last_error: Option<String>,
}

impl Default for CandidateState {
    fn default() -> Self {
        Self { current: ElectionState::Follower, term: None, last_error: None }
    }
}

impl CandidateState {
    /// The current state.
    pub fn current(&self) -> ElectionState {
        self.current
    }

    /// Applies an input. Returns the events to emit, in order, each with the token of its term.
    pub fn step(&mut self, input: CandidateInput) -> Vec<(Option<Token>, EventKind)> {
        let mut events = Vec::new();
        match input {
            // A leader has no acquisition whose status could matter.
            CandidateInput::StatusChanged(_) if self.current == ElectionState::Leader => {}
            CandidateInput::StatusChanged(AcquireStatus::Requesting) => {
                self.change_state(ElectionState::Candidate, &mut events)
            }
            CandidateInput::StatusChanged(AcquireStatus::Held { .. }) => {
                self.last_error = None;
                self.change_state(ElectionState::Follower, &mut events);
            }
            CandidateInput::StatusChanged(AcquireStatus::Blocked { why }) => {
                self.change_state(ElectionState::Follower, &mut events);
                self.report_failure(why, &mut events);
            }
            CandidateInput::Failed(why) => {
                self.change_state(ElectionState::Follower, &mut events);
                self.report_failure(Some(why), &mut events);
            }
            CandidateInput::TermStarted(token) => {
                self.last_error = None;
                // Every leader is a candidate first, however quickly it acquired the lease.
                self.change_state(ElectionState::Candidate, &mut events);
                self.term = Some(token);
                self.change_state(ElectionState::Leader, &mut events);
                events.push((self.term, EventKind::LeadershipAcquired));
            }
            CandidateInput::TermEnded(reason) => self.end_term(&reason, &mut events),
            CandidateInput::Stopped => self.change_state(ElectionState::Follower, &mut events),
        }
        events
    }

    fn end_term(&mut self, reason: &Ending, events: &mut Vec<(Option<Token>, EventKind)>) {
        if self.current == ElectionState::Leader {
            self.change_state(ElectionState::Follower, events);
            events.push((self.term.take(), EventKind::LeadershipLost { reason: reason.clone() }));
        }
    }

    fn change_state(&mut self, to: ElectionState, events: &mut Vec<(Option<Token>, EventKind)>) {
        let from = std::mem::replace(&mut self.current, to);
        if from != to {
            events.push((self.term, EventKind::StateChanged { from, to }));
        }
    }

    fn report_failure(&mut self, why: Option<String>, events: &mut Vec<(Option<Token>, EventKind)>) {
        if why.is_some() && why != self.last_error {
            self.last_error.clone_from(&why);
            events.extend(why.map(|cause| (None, EventKind::ElectionFailed { error: cause })));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::{Loss, ReleaseReason};
    use crate::name::InstanceId;

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    fn behind() -> CandidateInput {
        CandidateInput::StatusChanged(AcquireStatus::Held { holder: InstanceId::new("bob").unwrap() })
    }

    fn words(events: Vec<(Option<Token>, EventKind)>) -> Vec<String> {
        let text = |kind: EventKind| match kind {
            EventKind::StateChanged { from, to } => format!("{} → {}", from.as_str(), to.as_str()),
            EventKind::LeadershipAcquired => "leadership acquired".to_owned(),
            EventKind::LeadershipLost { reason } => format!("leadership lost ({})", reason.as_str()),
            EventKind::ElectionFailed { error } => format!("election failed: {error}"),
            other => panic!("not an event of an election: {other:?}"),
        };
        let word = |(token, kind): (Option<Token>, EventKind)| match token {
            Some(token) => format!("{} {token}", text(kind)),
            None => text(kind),
        };
        events.into_iter().map(word).collect()
    }

    #[test]
    fn every_state_change_is_emitted_before_its_consequence() {
        let mut state = CandidateState::default();
        assert_eq!(
            words(state.step(CandidateInput::StatusChanged(AcquireStatus::Requesting))),
            ["follower → candidate"]
        );
        assert_eq!(words(state.step(behind())), ["candidate → follower"]);
        assert_eq!(
            words(state.step(CandidateInput::StatusChanged(AcquireStatus::Requesting))),
            ["follower → candidate"]
        );
        assert_eq!(
            words(state.step(CandidateInput::TermStarted(token(7)))),
            ["candidate → leader 7", "leadership acquired 7"]
        );
        let lost = Ending::Lost(Loss::Missing);
        let events = words(state.step(CandidateInput::TermEnded(lost)));
        assert_eq!(events, ["leader → follower 7", "leadership lost (missing) 7"]);
        assert_eq!(words(state.step(CandidateInput::TermEnded(Ending::GivenUp))), [""; 0], "a term is lost only once");
    }

    #[test]
    fn a_leader_was_a_candidate_first() {
        let mut state = CandidateState::default();
        state.step(behind());
        let events = words(state.step(CandidateInput::TermStarted(token(7))));
        assert_eq!(events, ["follower → candidate", "candidate → leader 7", "leadership acquired 7"]);
    }

    #[test]
    fn an_error_is_reported_once_and_makes_the_candidate_a_follower() {
        let mut state = CandidateState::default();
        state.step(CandidateInput::StatusChanged(AcquireStatus::Requesting));
        let down =
            || CandidateInput::StatusChanged(AcquireStatus::Blocked { why: Some("the store is down".to_owned()) });
        assert_eq!(words(state.step(down())), ["candidate → follower", "election failed: the store is down"]);
        assert_eq!(words(state.step(down())), [""; 0]);
        state.step(behind());
        assert_eq!(words(state.step(down())), ["election failed: the store is down"], "reported again after recovery");
    }

    #[test]
    fn stopping_always_ends_as_a_follower() {
        for leads in [false, true] {
            let mut state = CandidateState::default();
            state.step(CandidateInput::StatusChanged(AcquireStatus::Requesting));
            if leads {
                state.step(CandidateInput::TermStarted(token(7)));
                let reason = Ending::Released(ReleaseReason::Shutdown);
                assert_eq!(words(state.step(CandidateInput::TermEnded(reason)))[1], "leadership lost (shutdown) 7");
            }
            state.step(CandidateInput::Stopped);
            assert_eq!(state.current(), ElectionState::Follower);
        }
    }
}
