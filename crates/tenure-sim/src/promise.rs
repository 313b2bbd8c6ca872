//! Decides which faults are outside the promise, for which lease, process and period, and records what was measured
//! meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::faults::Fault;
use crate::observation::{LeaseIndex, Observation, ProcessId, TermId};
use crate::timeline::SimTime;

/// The guarantees that hold at the moment.
///
/// Inside the promise: crashes, stops, partitions, stalls, restarts with or without the last writes, and flushes that a
/// process notices. Outside: a machine whose clocks were frozen, a server clock that is set, a deletion by a foreign
/// program, an eviction, a data loss that a process without memory handles alone, and a grant that is lost before other
/// processes have heard of its ttl.
///
/// Each of these six exempts an overlap only with a term that it affects: one that was granted before the fault and
/// belongs to the frozen process or to the deleted or evicted lease.
#[derive(Debug)]
pub struct Promise {
    ttl: Duration,
    exemptions: Vec<Exemption>,
    measurements: Measurements,
}

/// Measured effects: their number, and the longest one in ttls.
pub type Measurements = BTreeMap<&'static str, (u64, f64)>;

/// A fault outside the promise.
#[derive(Debug)]
struct Exemption {
    cause: &'static str,
    /// The affected process; `None` means all.
    process: Option<ProcessId>,
    /// The affected lease; `None` means all.
    lease: Option<LeaseIndex>,
    /// Only terms granted by then are affected.
    granted_by: SimTime,
    until: SimTime,
}

impl Promise {
    /// Creates a promise without exemptions. Measurements are in units of this ttl.
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, exemptions: Vec::new(), measurements: Measurements::new() }
    }

    /// Records faults that change the promise. No term is relied on for longer than `longest_ttl`.
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
                ("overlap after a foreign delete", (None, Some(*lease)), Duration::ZERO)
            }
            // What is known of a holder that was taken over is gone with the term of its successor.
            Observation::Fault(Fault::EvictTerm { lease }) => {
                ("overlap after an eviction of a term", (None, Some(*lease)), Duration::ZERO)
            }
            Observation::LostGrantUnknown => {
                ("overlap after a grant was lost whose ttl was not known to others", all_terms, Duration::ZERO)
            }
            Observation::BootstrappedTooSoon => {
                ("overlap after a process without memory initialised a lost namespace", all_terms, Duration::ZERO)
            }
            _ => return,
        };
        // A term that was granted before is over one ttl later, even if its holder does not notice.
        let until = now + lasts + longest_ttl + longest_ttl / 10;
        self.exemptions.retain(|exemption| exemption.until > now);
        self.exemptions.push(Exemption { cause, process, lease, granted_by: now + lasts, until });
    }

    /// The fault that exempts an overlap of this term, granted at that time, from judgement. The overlap is then only
    /// measured.
    pub fn exemption(&self, now: SimTime, term: &TermId, granted_at: SimTime) -> Option<&'static str> {
        let concerns = |exemption: &&Exemption| {
            exemption.until > now
                && exemption.process.is_none_or(|process| process == term.process)
                && exemption.lease.is_none_or(|lease| lease == term.lease)
                && granted_at <= exemption.granted_by
        };
        self.exemptions.iter().rev().find(concerns).map(|exemption| exemption.cause)
    }

    /// Records how long an effect lasted.
    pub fn measure(&mut self, what: &'static str, span: Duration) {
        let (count, longest) = self.measurements.entry(what).or_default();
        *count += 1;
        *longest = longest.max(span.as_secs_f64() / self.ttl.as_secs_f64());
    }

    /// Counts an event outside the promise.
    pub fn count(&mut self, what: &'static str) {
        self.measure(what, Duration::ZERO);
    }

    /// All measurements.
    pub fn into_measurements(self) -> Measurements {
        self.measurements
    }
}
