//! Candidates report their state in order and work only while they report that they lead. In the calm exactly one
//! leads.

use std::collections::BTreeMap;

use tenure_core::EventKind;
use tenure_core::{ElectionState, Token};

use super::Invariant;
use crate::observation::{LeaseIndex, Observation, ProcessId};
use crate::promise::Promise;
use crate::timeline::SimTime;

#[derive(Debug)]
pub(super) struct ElectionEventOrder {
    leases: usize,
    calm: bool,
    candidates: BTreeMap<(ProcessId, LeaseIndex), ObservedCandidate>,
}

#[derive(Debug)]
struct ObservedCandidate {
    state: ElectionState,
    leads: Option<Token>,
}

impl ElectionEventOrder {
    pub(super) fn new(leases: usize) -> Self {
        Self { leases, calm: false, candidates: BTreeMap::new() }
    }
}

impl Invariant for ElectionEventOrder {
    fn name(&self) -> &'static str {
        "candidates report their state truthfully and in order"
    }

    fn observe(&mut self, _now: SimTime, seen: &Observation, _promise: &mut Promise) -> Result<(), String> {
        match seen {
            Observation::ElectionReported { process, lease, token, event } => {
                let initial = ObservedCandidate { state: ElectionState::Follower, leads: None };
                let candidate = self.candidates.entry((*process, *lease)).or_insert(initial);
                candidate.check(*token, event).map_err(|why| format!("{process:?} {lease:?} reports {event:?}: {why}"))
            }
            Observation::WorkStarted(term) => {
                let leads = self.candidates.get(&(term.process, term.lease)).and_then(|candidate| candidate.leads);
                if leads == Some(term.token) { Ok(()) } else { Err(format!("{term} works while {leads:?} leads")) }
            }
            Observation::Crashed(process) => {
                self.candidates.retain(|(of, _), _| of != process);
                Ok(())
            }
            Observation::Calm { .. } => {
                self.calm = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, _now: SimTime) -> Result<(), String> {
        for lease in (0..self.leases).map(LeaseIndex).filter(|_| self.calm) {
            let leading =
                self.candidates.iter().filter(|((_, of), candidate)| *of == lease && candidate.leads.is_some());
            let leading: Vec<ProcessId> = leading.map(|((process, _), _)| *process).collect();
            if leading.len() != 1 {
                return Err(format!("in the calm {leading:?} lead {lease:?}"));
            }
        }
        Ok(())
    }
}

impl ObservedCandidate {
    fn check(&mut self, token: Option<Token>, event: &EventKind) -> Result<(), String> {
        use ElectionState::{Candidate, Follower, Leader};
        match event {
            EventKind::StateChanged { from, to } => {
                let known = [(Follower, Candidate), (Candidate, Follower), (Candidate, Leader), (Leader, Follower)];
                if *from != self.state || !known.contains(&(*from, *to)) {
                    return Err(format!("it was {:?}", self.state));
                }
                self.state = *to;
            }
            EventKind::LeadershipAcquired => {
                if self.state != Leader || self.leads.is_some() || token.is_none() {
                    return Err(format!("with token {token:?} it was {self:?}"));
                }
                self.leads = token;
            }
            EventKind::LeadershipLost { .. } => {
                if self.state == Leader || self.leads.is_none() || self.leads != token {
                    return Err(format!("with token {token:?} it was {self:?}"));
                }
                self.leads = None;
            }
            _ => {}
        }
        Ok(())
    }
}
