//! In the calm, work on every lease begins within the bound and continues. In a lull of the storm, every lease is held
//! within the same bound.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Invariant;
use crate::observation::{LeaseIndex, Observation};
use crate::promise::Promise;
use crate::timeline::SimTime;

#[derive(Debug)]
pub(super) struct HeldWithinBound {
    leases: usize,
    /// Start of the calm and bound on recovery.
    calm: Option<(SimTime, Duration)>,
    /// Time of the last work on each lease since then.
    worked: BTreeMap<LeaseIndex, SimTime>,
    /// The longest pause in the work on a lease, once it has begun.
    longest_pause: Duration,
    /// End of the lull.
    lull: Option<SimTime>,
    /// The leases that were held during the lull.
    held: BTreeSet<LeaseIndex>,
}

impl HeldWithinBound {
    pub(super) fn new(leases: usize, longest_pause: Duration) -> Self {
        let (worked, held) = (BTreeMap::new(), BTreeSet::new());
        Self { leases, calm: None, worked, longest_pause, lull: None, held }
    }
}

impl Invariant for HeldWithinBound {
    fn name(&self) -> &'static str {
        "an unheld lease is held within the bound"
    }

    fn observe(&mut self, now: SimTime, seen: &Observation, promise: &mut Promise) -> Result<(), String> {
        if self.lull.is_some_and(|end| now >= end) {
            self.lull = None;
            let unheld: Vec<usize> =
                (0..self.leases).filter(|lease| !self.held.contains(&LeaseIndex(*lease))).collect();
            if !unheld.is_empty() {
                return Err(format!("leases {unheld:?} were not held in a lull"));
            }
        }
        match (seen, self.calm) {
            (Observation::Lull { within }, _) => {
                self.lull = Some(now + *within);
                self.held.clear();
            }
            (Observation::Fault(_), _) => self.lull = None,
            // Observed again when a holder is killed in the calm.
            (Observation::Calm { within }, _) => {
                self.calm = Some((now, *within));
                self.lull = None;
                self.worked.clear();
            }
            (Observation::Acted { term, .. }, Some((calm, within))) => match self.worked.insert(term.lease, now) {
                // Until the bound, the lease may be lost once more.
                Some(before) if now.since(before.max(calm + within)) > self.longest_pause => {
                    return Err(format!("{:?} had no work for {:?} in the calm", term.lease, now.since(before)));
                }
                Some(_) => {}
                None => promise.measure("recovery in the calm", now.since(calm)),
            },
            _ => {}
        }
        match seen {
            Observation::Granted(term) | Observation::RequestApplied { term, .. } | Observation::Acted { term, .. } => {
                self.held.insert(term.lease);
            }
            _ => {}
        }
        match self.calm {
            Some((calm, within)) if now.since(calm) > within => self.finish(now),
            _ => Ok(()),
        }
    }

    fn finish(&mut self, now: SimTime) -> Result<(), String> {
        let is_unheld = |lease: &usize| {
            self.worked.get(&LeaseIndex(*lease)).is_none_or(|worked| now.since(*worked) > self.longest_pause)
        };
        let unheld: Vec<usize> = (0..self.leases).filter(is_unheld).collect();
        if unheld.is_empty() {
            return Ok(());
        }
        Err(format!("leases {unheld:?} had no work in time after the last fault: {:?}", self.calm))
    }
}
