//! A lost term is never renewed and never works again.

use std::collections::BTreeSet;

use super::Invariant;
use crate::observation::{Observation, TermId};
use crate::promise::Promise;
use crate::timeline::SimTime;

#[derive(Debug, Default)]
pub(super) struct LossIsFinal {
    lost: BTreeSet<TermId>,
}

impl Invariant for LossIsFinal {
    fn name(&self) -> &'static str {
        "a loss is final"
    }

    fn observe(&mut self, _now: SimTime, seen: &Observation, _promise: &mut Promise) -> Result<(), String> {
        match seen {
            Observation::Lost(term, _) => {
                self.lost.insert(*term);
            }
            // A restarted process does not remember its losses. A token may then repeat within the stated limit.
            Observation::Crashed(process) => self.lost.retain(|term| term.process != *process),
            Observation::RenewSent(term) | Observation::MayStart(term) | Observation::WorkStarted(term)
                if self.lost.contains(term) =>
            {
                return Err(format!("{term} was lost, but then: {seen:?}"));
            }
            _ => {}
        }
        Ok(())
    }
}
