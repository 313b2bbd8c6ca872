//! Once nothing goes wrong any more, every lease is held and worked on within the bound.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Invariant;
use crate::observation::{LeaseId, Observation};
use crate::promise::Promise;
use crate::timeline::TrueTime;

#[derive(Debug)]
pub(super) struct HeldWithinBound {
    leases: usize,
    /// Since when all is calm, and how long recovery may take.
    calm: Option<(TrueTime, Duration)>,
    worked: BTreeMap<LeaseId, TrueTime>,
}

impl HeldWithinBound {
    pub(super) fn new(leases: usize) -> Self {
        Self { leases, calm: None, worked: BTreeMap::new() }
    }
}

impl Invariant for HeldWithinBound {
    fn name(&self) -> &'static str {
        "a free name is held within the bound"
    }

    fn observe(&mut self, now: TrueTime, seen: &Observation, promise: &mut Promise) -> Result<(), String> {
        match (seen, self.calm) {
            // Said again when a holder is killed in the calm.
            (Observation::Calm { within }, _) => {
                self.calm = Some((now, *within));
                self.worked.clear();
            }
            (Observation::Acted { term, .. }, Some((calm, _))) => {
                self.worked.entry(term.lease).or_insert_with(|| {
                    promise.measure("recovery once all is calm", now.since(calm));
                    now
                });
            }
            _ => {}
        }
        match self.calm {
            Some((calm, within)) if now.since(calm) > within => self.finish(now),
            _ => Ok(()),
        }
    }

    fn finish(&mut self, _now: TrueTime) -> Result<(), String> {
        if self.worked.len() < self.leases { Err(self.missing()) } else { Ok(()) }
    }
}

impl HeldWithinBound {
    fn missing(&self) -> String {
        let dark: Vec<usize> = (0..self.leases).filter(|lease| !self.worked.contains_key(&LeaseId(*lease))).collect();
        format!("leases {dark:?} are not worked on in time after the last fault: {:?}", self.calm)
    }
}
