//! A renewal, release or hand-over never touches another term's lease.

use super::Invariant;
use crate::observation::Observation;
use crate::promise::Promise;
use crate::timeline::SimTime;

#[derive(Debug, Default)]
pub(super) struct OnlyOwnLease;

impl Invariant for OnlyOwnLease {
    fn name(&self) -> &'static str {
        "a request about a term touches only that term"
    }

    fn observe(&mut self, _now: SimTime, seen: &Observation, _promise: &mut Promise) -> Result<(), String> {
        match seen {
            Observation::RequestApplied { term, current, .. } if *current != Some(term.token) => {
                Err(format!("a request of {term} was applied while the token was {current:?}"))
            }
            _ => Ok(()),
        }
    }
}
