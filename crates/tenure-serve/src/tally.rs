//! What came of polling, in numbers that can be added up. Pure.

use std::fmt;
use std::str::FromStr;

use serde_json::{Value, json};
use tenure::meter::Spans;

/// More than this is no count.
const MOST: u64 = 1 << 53;

/// What came of polling.
///
/// ```
/// use tenure_serve::tally::Tally;
///
/// let told = Tally { ok: 9, failed: 1, ..Tally::default() };
/// assert_eq!(told.to_string().parse::<Tally>(), Ok(told));
/// assert_eq!(told.plus(&told).shown()["polls"], 20);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Polls that went well.
    pub ok: u64,
    /// Polls that did not.
    pub failed: u64,
    /// Results that came too late.
    pub refused: u64,
    /// Sessions taken over from whoever did not let go of them.
    pub failovers: u64,
    /// How long polls took.
    pub latency: Spans,
}

impl Tally {
    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            ok: self.ok.saturating_add(other.ok),
            failed: self.failed.saturating_add(other.failed),
            refused: self.refused.saturating_add(other.refused),
            failovers: self.failovers.saturating_add(other.failovers),
            latency: self.latency.plus(&other.latency),
        }
    }

    /// What came after an earlier one of the same instance.
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

    /// As people see it.
    pub fn shown(&self) -> Value {
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

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{},{};{}", self.ok, self.failed, self.refused, self.failovers, self.latency)
    }
}

/// What is no tally.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no tally")]
pub struct NoTally;

impl FromStr for Tally {
    type Err = NoTally;

    fn from_str(text: &str) -> Result<Self, NoTally> {
        let (counts, latency) = text.split_once(';').ok_or(NoTally)?;
        let counts: Vec<u64> = counts.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| NoTally)?;
        // Anybody can write a heartbeat; nobody polls as often as that.
        if counts.iter().any(|count| *count > MOST) {
            return Err(NoTally);
        }
        let [ok, failed, refused, failovers] = counts.try_into().map_err(|_| NoTally)?;
        Ok(Self { ok, failed, refused, failovers, latency: latency.parse().map_err(|_| NoTally)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_can_have_counted_is_no_tally() {
        let tally = Tally { ok: MOST, ..Tally::default() };
        assert_eq!(tally.to_string().parse(), Ok(tally));
        for bad in [Tally { ok: MOST + 1, ..tally }, Tally { failovers: u64::MAX, ..tally }] {
            assert_eq!(bad.to_string().parse::<Tally>(), Err(NoTally));
        }
        assert_eq!(tally.plus(&Tally { failed: u64::MAX, ..tally }).shown()["polls"], u64::MAX);
    }
}
