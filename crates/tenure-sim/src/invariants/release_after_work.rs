//! A process releases a lease only after its work has ended, and starts no work of a new term before that.

use std::collections::BTreeSet;

use super::Invariant;
use crate::observation::{Observation, TermId};
use crate::promise::Promise;
use crate::timeline::SimTime;

#[derive(Debug, Default)]
pub(super) struct ReleaseAfterWork {
    running: BTreeSet<TermId>,
}

impl Invariant for ReleaseAfterWork {
    fn name(&self) -> &'static str {
        "a lease is released after its work"
    }

    fn observe(&mut self, _now: SimTime, seen: &Observation, _promise: &mut Promise) -> Result<(), String> {
        match seen {
            Observation::WorkStarted(term) => {
                let earlier = self.running.iter().find(|other| {
                    other.process == term.process && other.lease == term.lease && other.token != term.token
                });
                if let Some(earlier) = earlier {
                    return Err(format!("work of {term} started while {earlier} was not joined"));
                }
                self.running.insert(*term);
            }
            Observation::WorkEnded(term) => {
                self.running.remove(term);
            }
            Observation::Crashed(process) => self.running.retain(|term| term.process != *process),
            Observation::ReleaseSent(term) if self.running.contains(term) => {
                return Err(format!("{term} was released while its work was running"));
            }
            _ => {}
        }
        Ok(())
    }
}
