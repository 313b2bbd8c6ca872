//! Which faults are outside the promise, for how long, and what was measured meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::faults::Fault;
use crate::observation::Observation;
use crate::timeline::TrueTime;

/// What is promised at the moment. Crashes, stops, partitions, stalls, restarts with or without the
/// last writes, and flushes that somebody notices are inside; a machine whose clocks were frozen, a server clock that
/// is set, an outsider's deletion, and a loss that a newcomer without memory deals with alone are outside.
#[derive(Debug)]
pub struct Promise {
    ttl: Duration,
    suspended_until: TrueTime,
    /// What an overlap that begins now is put down to.
    cause: &'static str,
    measurements: Measurements,
}

/// What was measured: how often, and the longest, in ttls.
pub type Measurements = BTreeMap<&'static str, (u64, f64)>;

impl Promise {
    /// A promise for leases of this length.
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, suspended_until: TrueTime::default(), cause: "", measurements: Measurements::new() }
    }

    /// Takes in what happened to the promise itself.
    pub fn observe(&mut self, now: TrueTime, seen: &Observation) {
        let (cause, lasts) = match seen {
            Observation::Fault(Fault::Freeze { span, .. }) => ("overlap after frozen clocks", *span),
            Observation::Fault(Fault::ServerClockStep { .. }) => ("overlap after a server clock step", Duration::ZERO),
            Observation::Fault(Fault::OutsiderDeletes { .. }) => ("overlap after an outsider's delete", Duration::ZERO),
            Observation::FoundedTooSoon => ("overlap after a newcomer founded a lost namespace", Duration::ZERO),
            _ => return,
        };
        // A term that was granted before is over one ttl later, noticed or not.
        let window = lasts + self.ttl + self.ttl / 10;
        self.suspended_until = self.suspended_until.max(now + window);
        self.cause = cause;
    }

    /// What overlapping work is put down to, and so measured and not judged, just now.
    pub fn excuse(&self, now: TrueTime) -> Option<&'static str> {
        (now < self.suspended_until).then_some(self.cause)
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
