//! No two terms of a lease have work running at the same time.
//!
//! Work of a stopped process does nothing and does not count. After the process resumes, its work counts again from its
//! first action. By then it must have ended if other work has begun.

use std::collections::{BTreeMap, BTreeSet};

use super::Invariant;
use crate::observation::{LeaseIndex, Observation, TermId};
use crate::promise::Promise;
use crate::timeline::SimTime;

#[derive(Debug, Default)]
pub(super) struct OneWorker {
    running: BTreeMap<LeaseIndex, BTreeSet<TermId>>,
    /// When each term was granted.
    granted: BTreeMap<TermId, SimTime>,
    /// Work that was running when its process was stopped and that has not acted since.
    dormant: BTreeSet<TermId>,
    /// Exempt overlaps: their start and the fault that exempts them.
    exempt_overlaps: BTreeMap<LeaseIndex, (SimTime, &'static str)>,
}

impl OneWorker {
    fn end(&mut self, now: SimTime, term: TermId, promise: &mut Promise) {
        if let Some(running) = self.running.get_mut(&term.lease) {
            running.remove(&term);
        }
        self.dormant.remove(&term);
        self.measure(now, term.lease, promise);
    }

    /// Records the length of an exempt overlap once it is over.
    fn measure(&mut self, now: SimTime, lease: LeaseIndex, promise: &mut Promise) {
        if self.active(lease).len() < 2
            && let Some((since, cause)) = self.exempt_overlaps.remove(&lease)
        {
            promise.measure(cause, now.since(since));
        }
    }

    fn active(&self, lease: LeaseIndex) -> Vec<TermId> {
        let running = self.running.get(&lease).into_iter().flatten();
        running.filter(|term| !self.dormant.contains(term)).copied().collect()
    }
}

impl Invariant for OneWorker {
    fn name(&self) -> &'static str {
        "no two terms of a lease have work running"
    }

    fn observe(&mut self, now: SimTime, seen: &Observation, promise: &mut Promise) -> Result<(), String> {
        match seen {
            Observation::Granted(term) => drop(self.granted.entry(*term).or_insert(now)),
            Observation::WorkStarted(term) | Observation::Acted { term, .. } => {
                self.running.entry(term.lease).or_default().insert(*term);
                self.dormant.remove(term);
                let active = self.active(term.lease);
                if active.len() > 1 {
                    let exemption =
                        |term: &TermId| promise.exemption(now, term, self.granted.get(term).copied().unwrap_or(now));
                    let Some(cause) = active.iter().find_map(exemption) else {
                        let others: Vec<String> = active.iter().map(TermId::to_string).collect();
                        return Err(format!("{term} works while other work is running: {}", others.join("; ")));
                    };
                    self.exempt_overlaps.entry(term.lease).or_insert((now, cause));
                }
            }
            Observation::WorkEnded(term) => self.end(now, *term, promise),
            Observation::Stopped(process) => {
                let terms = self.running.values().flatten().filter(|term| term.process == *process);
                self.dormant.extend(terms.copied());
                let leases: Vec<LeaseIndex> = self.running.keys().copied().collect();
                leases.into_iter().for_each(|lease| self.measure(now, lease, promise));
            }
            Observation::Crashed(process) => {
                let terms: Vec<TermId> =
                    self.running.values().flatten().filter(|term| term.process == *process).copied().collect();
                terms.into_iter().for_each(|term| self.end(now, term, promise));
            }
            _ => {}
        }
        Ok(())
    }
}
