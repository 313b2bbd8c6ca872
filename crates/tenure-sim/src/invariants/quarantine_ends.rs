//! A closed namespace opens again: it is never closed for longer than the longest ttl, and not at all once all has
//! been calm for that long.

use super::Invariant;
use crate::observation::Observation;
use crate::promise::Promise;
use crate::timeline::TrueTime;

#[derive(Debug, Default)]
pub(super) struct QuarantineEnds {
    /// By when the namespace must be open for good.
    open_by: Option<TrueTime>,
}

impl Invariant for QuarantineEnds {
    fn name(&self) -> &'static str {
        "a quarantine ends"
    }

    fn observe(&mut self, now: TrueTime, seen: &Observation, _promise: &mut Promise) -> Result<(), String> {
        match seen {
            Observation::Calm { within } => self.open_by = self.open_by.or(Some(now + *within)),
            Observation::Closed { remaining, max_ttl } => {
                if remaining > max_ttl {
                    return Err(format!("closed for {remaining:?} with a longest ttl of {max_ttl:?}"));
                }
                if self.open_by.is_some_and(|open_by| now > open_by) {
                    return Err(format!("still closed for {remaining:?}, long after the last fault"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
