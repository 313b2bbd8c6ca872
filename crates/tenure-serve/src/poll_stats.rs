//! Poll counters and latencies that can be added up. Pure.

use std::fmt;
use std::str::FromStr;

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
/// assert_eq!(told.to_string().parse::<PollStats>(), Ok(told));
/// assert_eq!(told.plus(&told).to_json()["polls"], 20);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

impl fmt::Display for PollStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{},{};{}", self.ok, self.failed, self.refused, self.failovers, self.latency)
    }
}

/// Invalid poll statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not valid poll statistics")]
pub struct InvalidPollStats;

impl FromStr for PollStats {
    type Err = InvalidPollStats;

    fn from_str(text: &str) -> Result<Self, InvalidPollStats> {
        let (counts, latency) = text.split_once(';').ok_or(InvalidPollStats)?;
        let counts: Vec<u64> =
            counts.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| InvalidPollStats)?;
        // Any program can write a heartbeat; no instance polls this often.
        if counts.iter().any(|count| *count > MAX_COUNT) {
            return Err(InvalidPollStats);
        }
        let [ok, failed, refused, failovers] = counts.try_into().map_err(|_| InvalidPollStats)?;
        Ok(Self { ok, failed, refused, failovers, latency: latency.parse().map_err(|_| InvalidPollStats)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implausible_counts_are_invalid() {
        let stats = PollStats { ok: MAX_COUNT, ..PollStats::default() };
        assert_eq!(stats.to_string().parse(), Ok(stats));
        for bad in [PollStats { ok: MAX_COUNT + 1, ..stats }, PollStats { failovers: u64::MAX, ..stats }] {
            assert_eq!(bad.to_string().parse::<PollStats>(), Err(InvalidPollStats));
        }
        assert_eq!(stats.plus(&PollStats { failed: u64::MAX, ..stats }).to_json()["polls"], u64::MAX);
    }
}
