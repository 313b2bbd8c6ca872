//! Fleet totals: the statistics of every instance, added up period by period, across changes of the aggregator. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::poll_stats::PollStats;

/// Number of periods without a report after which an instance is forgotten. If it reports again, all its counts are
/// counted again.
const FORGET_AFTER_PERIODS: u64 = 100;

/// Statistics of the fleet since the first aggregation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    since: Timestamp,
    at: Timestamp,
    instances: usize,
    total: PollStats,
    last: PollStats,
    period: Duration,
    /// Last reported statistics of each instance, and the number of periods since.
    counted: BTreeMap<String, (PollStats, u64)>,
}

impl Totals {
    /// Creates empty totals.
    pub fn new(now: Timestamp) -> Self {
        Self {
            since: now,
            at: now,
            instances: 0,
            total: PollStats::default(),
            last: PollStats::default(),
            period: Duration::ZERO,
            counted: BTreeMap::new(),
        }
    }

    /// Adds the statistics since the last call, as reported by each instance.
    pub fn add(&mut self, now: Timestamp, told: &BTreeMap<String, PollStats>) {
        self.last = PollStats::default();
        for (_, silent) in self.counted.values_mut() {
            *silent = silent.saturating_add(1);
        }
        for (instance, stats) in told {
            let before = self.counted.insert(instance.clone(), (*stats, 0)).map(|(before, _)| before);
            self.last = self.last.plus(&stats.since(&before.unwrap_or_default()));
        }
        self.counted.retain(|_, (_, silent)| *silent <= FORGET_AFTER_PERIODS);
        self.total = self.total.plus(&self.last);
        self.period = now.duration_since(self.at).try_into().unwrap_or_default();
        (self.at, self.instances) = (now, told.len());
    }

    /// Returns the totals of the fleet.
    pub fn total(&self) -> &PollStats {
        &self.total
    }

    /// Returns the JSON of the API.
    pub fn to_json(&self) -> Value {
        let mut last = self.last.to_json();
        let seconds = self.period.as_secs_f64();
        if seconds > 0.0 {
            last["pollsPerSecond"] = json!(self.last.ok.saturating_add(self.last.failed) as f64 / seconds);
        }
        json!({
            "since": self.since.to_string(),
            "at": self.at.to_string(),
            "periodMs": u64::try_from(self.period.as_millis()).unwrap_or(u64::MAX),
            "instances": self.instances,
            "total": self.total.to_json(),
            "lastPeriod": last,
        })
    }

    /// Returns the stored form, for the next aggregator.
    pub fn to_record(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the result of [`to_record`](Self::to_record); returns `None` for anything else.
    pub fn read(kept: &[u8]) -> Option<Self> {
        serde_json::from_slice(kept).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stats(ok: u64) -> PollStats {
        PollStats { ok, ..PollStats::default() }
    }

    proptest! {
        /// Instances join, count, stop reporting for a while and are replaced, and the aggregator changes: nothing
        /// reported is counted twice or lost.
        #[test]
        fn reported_stats_are_counted_once(periods in proptest::collection::vec(
            proptest::collection::vec((0_usize..4, 0_u64..50, any::<bool>()), 0..4), 1..60,
        )) {
            let mut now = Timestamp::UNIX_EPOCH;
            let mut totals = Totals::new(now);
            let (mut lives, mut counts) = ([0_u32; 4], BTreeMap::<String, u64>::new());
            let mut told_last: BTreeMap<String, u64> = BTreeMap::new();
            for period in periods {
                let mut told = BTreeMap::new();
                for (who, more, restarts) in period {
                    if restarts {
                        lives[who] += 1;
                    }
                    let name = format!("api-{who}-{}", lives[who]);
                    let count = counts.entry(name.clone()).or_default();
                    *count += more;
                    told.insert(name.clone(), stats(*count));
                    told_last.insert(name, *count);
                }
                now += Duration::from_secs(10);
                totals.add(now, &told);
                // Another aggregator continues.
                totals = Totals::read(totals.to_record().as_bytes()).unwrap();
                prop_assert_eq!(totals.total().ok, told_last.values().sum::<u64>());
            }
        }

        #[test]
        fn invalid_records_are_refused(kept in ".*") {
            let _ = Totals::read(kept.as_bytes());
        }
    }
}
