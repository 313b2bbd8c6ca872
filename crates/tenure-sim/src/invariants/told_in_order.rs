//! Candidates tell where they stand in order, and work only while they have told that they lead; once all is calm, one leads.

use std::collections::BTreeMap;

use tenure::election::ElectionNews;
use tenure::{Standing, Token};

use super::Invariant;
use crate::observation::{LeaseId, Observation, ProcessId};
use crate::promise::Promise;
use crate::timeline::TrueTime;

#[derive(Debug)]
pub(super) struct ToldInOrder {
    leases: usize,
    calm: bool,
    candidates: BTreeMap<(ProcessId, LeaseId), Candidate>,
}

#[derive(Debug)]
struct Candidate {
    standing: Standing,
    leads: Option<Token>,
}

impl ToldInOrder {
    pub(super) fn new(leases: usize) -> Self {
        Self { leases, calm: false, candidates: BTreeMap::new() }
    }
}

impl Invariant for ToldInOrder {
    fn name(&self) -> &'static str {
        "candidates tell what is so, in order"
    }

    fn observe(&mut self, _now: TrueTime, seen: &Observation, _promise: &mut Promise) -> Result<(), String> {
        match seen {
            Observation::Told { process, lease, token, news } => {
                let nobody = Candidate { standing: Standing::Follower, leads: None };
                let candidate = self.candidates.entry((*process, *lease)).or_insert(nobody);
                candidate.tells(*token, news).map_err(|why| format!("{process:?} {lease:?} tells {news}: {why}"))
            }
            Observation::WorkStarted(term) => {
                let leads = self.candidates.get(&(term.process, term.lease)).and_then(|candidate| candidate.leads);
                if leads == Some(term.token) { Ok(()) } else { Err(format!("{term} works, and {leads:?} leads")) }
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

    fn finish(&mut self, _now: TrueTime) -> Result<(), String> {
        for lease in (0..self.leases).map(LeaseId).filter(|_| self.calm) {
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

impl Candidate {
    fn tells(&mut self, token: Option<Token>, news: &ElectionNews) -> Result<(), String> {
        use Standing::{Candidate, Follower, Leader};
        match news {
            ElectionNews::StateChanged { from, to } => {
                let known = [(Follower, Candidate), (Candidate, Follower), (Candidate, Leader), (Leader, Follower)];
                if *from != self.standing || !known.contains(&(*from, *to)) {
                    return Err(format!("it was {:?}", self.standing));
                }
                self.standing = *to;
            }
            ElectionNews::LeadershipAcquired => {
                if self.standing != Leader || self.leads.is_some() || token.is_none() {
                    return Err(format!("with token {token:?} it was {self:?}"));
                }
                self.leads = token;
            }
            ElectionNews::LeadershipLost { .. } => {
                if self.standing == Leader || self.leads.is_none() || self.leads != token {
                    return Err(format!("with token {token:?} it was {self:?}"));
                }
                self.leads = None;
            }
            _ => {}
        }
        Ok(())
    }
}
