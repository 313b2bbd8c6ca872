//! Poll counters and latencies that can be added up. Pure.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure::histogram::HistogramSnapshot;

/// Larger counts are invalid.
const MAX_COUNT: u64 = 1 << 53;

/// Poll statistics.
///
/// ```
/// use tenure_serve::poll_stats::PollStats;
///
/// let told = PollStats { ok: 9, failed: 1, ..PollStats::default() };
/// assert_eq!(PollStats::read(&told.to_record()), Some(told));
/// assert_eq!(told.plus(&told).to_json()["polls"], 20);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PollStats {
    /// Successful polls.
    pub ok: u64,
    /// Failed polls.
    pub failed: u64,
    /// Results refused because their term had ended.
    pub refused: u64,
    /// Sessions taken over from a holder that did not release them.
    pub failovers: u64,
    /// Latency of polls.
    pub latency: HistogramSnapshot,
}

impl PollStats {
    /// Returns the sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            ok: self.ok.saturating_add(other.ok),
            failed: self.failed.saturating_add(other.failed),
            refused: self.refused.saturating_add(other.refused),
            failovers: self.failovers.saturating_add(other.failovers),
            latency: self.latency.merge(&other.latency),
        }
    }

    /// Returns the difference to an earlier snapshot of the same instance.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            ok: self.ok.saturating_sub(earlier.ok),
            failed: self.failed.saturating_sub(earlier.failed),
            refused: self.refused.saturating_sub(earlier.refused),
            failovers: self.failovers.saturating_sub(earlier.failovers),
            latency: self.latency.since(&earlier.latency),
        }
    }

    /// Returns the JSON of the API.
    pub fn to_json(&self) -> Value {
        let millis = |part: f64| self.latency.quantile(part).map(|span| span.as_micros() as f64 / 1_000.0);
        json!({
            "polls": self.ok.saturating_add(self.failed),
            "failures": self.failed,
            "refused": self.refused,
            "failovers": self.failovers,
            "latencyMs": {"p50": millis(0.5), "p90": millis(0.9), "p99": millis(0.99)},
        })
    }
}

impl PollStats {
    /// Returns the stored form, for [`read`](Self::read).
    pub fn to_record(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the result of [`to_record`](Self::to_record); returns `None` for anything else.
    pub fn read(record: &str) -> Option<Self> {
        let stats: Self = serde_json::from_str(record).ok()?;
        // Any program can write a heartbeat; no instance polls this often.
        let counts = [stats.ok, stats.failed, stats.refused, stats.failovers];
        counts.iter().all(|count| *count <= MAX_COUNT).then_some(stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implausible_counts_are_invalid() {
        let stats = PollStats { ok: MAX_COUNT, ..PollStats::default() };
        assert_eq!(PollStats::read(&stats.to_record()), Some(stats));
        for bad in [PollStats { ok: MAX_COUNT + 1, ..stats }, PollStats { failovers: u64::MAX, ..stats }] {
            assert_eq!(PollStats::read(&bad.to_record()), None);
        }
        assert_eq!(stats.plus(&PollStats { failed: u64::MAX, ..stats }).to_json()["polls"], u64::MAX);
    }
}
