//! A quarantine ends. It never lasts longer than the longest ttl that could still be relied on when it began, as far as
//! the process that began it knew. After a calm of that length there is no quarantine.

use super::Invariant;
use crate::observation::Observation;
use crate::promise::Promise;
use crate::timeline::SimTime;

#[derive(Debug, Default)]
pub(super) struct QuarantineEnds {
    /// Time by which the last quarantine must have ended.
    open_by: Option<SimTime>,
}

impl Invariant for QuarantineEnds {
    fn name(&self) -> &'static str {
        "a quarantine ends"
    }

    fn observe(&mut self, now: SimTime, seen: &Observation, _promise: &mut Promise) -> Result<(), String> {
        match seen {
            Observation::Calm { within } => self.open_by = self.open_by.or(Some(now + *within)),
            Observation::Quarantined { remaining, at_most } => {
                if remaining > at_most {
                    return Err(format!("a quarantine of {remaining:?}, although {at_most:?} could be relied on"));
                }
                if self.open_by.is_some_and(|open_by| now > open_by) {
                    return Err(format!("still a quarantine of {remaining:?}, long after the last fault"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
