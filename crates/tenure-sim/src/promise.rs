//! Which faults are outside the promise, for which lease and process and for how long, and what was measured meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::faults::Fault;
use crate::observation::{LeaseIndex, Observation, ProcessId, TermId};
use crate::timeline::SimTime;

/// What is promised at the moment. Crashes, stops, partitions, stalls, restarts with or without the
/// last writes, and flushes that a process notices are inside; a machine whose clocks were frozen, a server clock that
/// is set, an outsider's deletion, and a loss that a newcomer without memory deals with alone are outside.
///
/// Each of the four excuses an overlap only with a term that it concerns: one that was granted before it, and of the frozen
/// process, or of the lease that was deleted.
#[derive(Debug)]
pub struct Promise {
    ttl: Duration,
    exemptions: Vec<Exemption>,
    measurements: Measurements,
}

/// What was measured: how often, and the longest, in ttls.
pub type Measurements = BTreeMap<&'static str, (u64, f64)>;

/// A fault outside the promise.
#[derive(Debug)]
struct Exemption {
    cause: &'static str,
    /// The process concerned; all when there is none.
    process: Option<ProcessId>,
    /// The lease concerned; all when there is none.
    lease: Option<LeaseIndex>,
    /// Only terms that were granted by then are concerned.
    granted_by: SimTime,
    until: SimTime,
}

impl Promise {
    /// A promise; what is measured is counted in this ttl.
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, exemptions: Vec::new(), measurements: Measurements::new() }
    }

    /// Takes in what happened to the promise itself. No term is relied on for longer than `longest_ttl`.
    pub fn observe(&mut self, now: SimTime, seen: &Observation, longest_ttl: Duration) {
        let all_terms = (None, None);
        let (cause, (process, lease), lasts) = match seen {
            Observation::Fault(Fault::Freeze { process, span }) => {
                ("overlap after frozen clocks", (Some(*process), None), *span)
            }
            Observation::Fault(Fault::ServerClockStep { .. }) => {
                ("overlap after a server clock step", all_terms, Duration::ZERO)
            }
            Observation::Fault(Fault::ForeignDelete { lease }) => {
                ("overlap after an outsider's delete", (None, Some(*lease)), Duration::ZERO)
            }
            Observation::BootstrappedTooSoon => {
                ("overlap after a newcomer founded a lost namespace", all_terms, Duration::ZERO)
            }
            _ => return,
        };
        // A term that was granted before is over one ttl later, noticed or not.
        let until = now + lasts + longest_ttl + longest_ttl / 10;
        self.exemptions.retain(|exemption| exemption.until > now);
        self.exemptions.push(Exemption { cause, process, lease, granted_by: now + lasts, until });
    }

    /// What it is put down to, and so measured and not judged, that work of this term, granted then, overlaps other work.
    pub fn exemption(&self, now: SimTime, term: &TermId, granted_at: SimTime) -> Option<&'static str> {
        let concerns = |exemption: &&Exemption| {
            exemption.until > now
                && exemption.process.is_none_or(|process| process == term.process)
                && exemption.lease.is_none_or(|lease| lease == term.lease)
                && granted_at <= exemption.granted_by
        };
        self.exemptions.iter().rev().find(concerns).map(|exemption| exemption.cause)
    }

    /// Notes how long something lasted.
    pub fn measure(&mut self, what: &'static str, span: Duration) {
        let (count, longest) = self.measurements.entry(what).or_default();
        *count += 1;
        *longest = longest.max(span.as_secs_f64() / self.ttl.as_secs_f64());
    }

    /// Notes that something outside the promise happened.
    pub fn count(&mut self, what: &'static str) {
        self.measure(what, Duration::ZERO);
    }

    /// Everything measured.
    pub fn into_measurements(self) -> Measurements {
        self.measurements
    }
}
