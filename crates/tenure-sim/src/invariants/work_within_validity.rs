//! No work acts after the validity of its guard, which the world computes from the times at which requests were sent.

use super::Invariant;
use crate::observation::Observation;
use crate::promise::Promise;
use crate::timeline::SimTime;

#[derive(Debug, Default)]
pub(super) struct WorkWithinValidity;

impl Invariant for WorkWithinValidity {
    fn name(&self) -> &'static str {
        "no work after its guard's validity"
    }

    fn observe(&mut self, _now: SimTime, seen: &Observation, promise: &mut Promise) -> Result<(), String> {
        match seen {
            Observation::Acted { term, local, valid_until } if local >= valid_until => {
                Err(format!("{term} acted {:?} after its validity", local.since(*valid_until)))
            }
            Observation::ActedLate(_) => {
                promise.count("actions whose check had passed before a stop");
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
