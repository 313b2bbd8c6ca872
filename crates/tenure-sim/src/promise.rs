//! Which faults are outside the promise, for how long, and what was measured meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::faults::Fault;
use crate::observation::Observation;
use crate::timeline::TrueTime;

/// What is promised at the moment. DESIGN's table: crashes, stops, partitions, stalls, restarts with or without the
/// last writes, and flushes that somebody notices are inside; a machine whose clocks were frozen, a server clock that
/// is set, an outsider's deletion, and a flush that nobody is there to notice are outside.
#[derive(Debug)]
pub struct Promise {
    longest_ttl: Duration,
    suspended_until: TrueTime,
    measurements: Measurements,
}

/// What was measured: how often, and the longest.
pub type Measurements = BTreeMap<&'static str, (u64, Duration)>;

impl Promise {
    /// A promise for leases of at most this length.
    pub fn new(longest_ttl: Duration) -> Self {
        Self { longest_ttl, suspended_until: TrueTime::default(), measurements: Measurements::new() }
    }

    /// Takes in what happened to the promise itself.
    pub fn observe(&mut self, now: TrueTime, seen: &Observation) {
        // A term that was granted before is over one ttl later, noticed or not.
        let window = self.longest_ttl + self.longest_ttl / 10;
        let mut suspend = |span: Duration| self.suspended_until = self.suspended_until.max(now + span);
        match seen {
            Observation::Fault(Fault::Freeze { span, .. }) => suspend(*span + window),
            Observation::Fault(Fault::ServerClockStep { .. } | Fault::OutsiderDeletes { .. })
            | Observation::FoundedOpen => suspend(window),
            _ => {}
        }
    }

    /// Whether overlapping work is measured and not judged just now.
    pub fn is_suspended(&self, now: TrueTime) -> bool {
        now < self.suspended_until
    }

    /// Notes how long something outside the promise lasted.
    pub fn measure(&mut self, what: &'static str, span: Duration) {
        let (count, longest) = self.measurements.entry(what).or_default();
        *count += 1;
        *longest = (*longest).max(span);
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
