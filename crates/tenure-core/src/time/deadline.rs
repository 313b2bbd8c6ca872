//! Until when a lease may be relied on, and whether the store's clock can still be trusted.

use std::time::Duration;

use super::{Moment, ServerTime};

/// The fixed part of the safety margin of every deadline: rounding to milliseconds and clock noise.
pub const FIXED_SLACK: Duration = Duration::from_millis(2);

/// The largest difference in *rate* between this machine's clock and the store's that a lease allows for.
///
/// One percent by default. Fast clock slewing can exceed that; raise it where clocks are corrected in large strides.
///
/// ```
/// use std::time::Duration;
/// use tenure::lease::LeaseSettings;
/// use tenure::time::ClockTolerance;
///
/// let tolerance = ClockTolerance::from_ppm(50_000); // five percent
/// assert_eq!(tolerance.of(Duration::from_secs(30)), Duration::from_millis(1_500)); // a term is relied on for less
/// let settings = LeaseSettings::builder().clock_tolerance(tolerance).renew_every(Duration::from_secs(9)).build()?;
/// assert_eq!(settings.clock_tolerance(), tolerance);
/// # Ok::<(), tenure::lease::SettingsError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClockTolerance {
    parts_per_million: u32,
}

impl ClockTolerance {
    /// The largest error that can be configured, ten percent.
    pub const MAX: Self = Self { parts_per_million: 100_000 };

    /// An error in parts per million, at most [`ClockTolerance::MAX`].
    pub fn from_ppm(parts_per_million: u32) -> Self {
        Self { parts_per_million: parts_per_million.min(Self::MAX.parts_per_million) }
    }

    /// How much a clock may be off after `span`.
    pub fn of(self, span: Duration) -> Duration {
        let nanos = span.as_nanos().saturating_mul(u128::from(self.parts_per_million)) / 1_000_000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Default for ClockTolerance {
    fn default() -> Self {
        Self { parts_per_million: 10_000 }
    }
}

/// The moment D up to which a lease of length `ttl` may be relied on, counted from when its request was *sent*.
///
/// The server starts counting when the request arrives, which is never before it was sent, so D passes here before the
/// lease can end there. How long the reply took does not matter.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::time::{ClockTolerance, Moment, deadline};
///
/// let d = deadline(Moment::ZERO, Duration::from_secs(30), ClockTolerance::default());
/// assert_eq!(d.since(Moment::ZERO), Duration::from_millis(29_698));
/// ```
pub fn deadline(sent: Moment, ttl: Duration, error: ClockTolerance) -> Moment {
    sent + ttl.saturating_sub(error.of(ttl)).saturating_sub(FIXED_SLACK)
}

/// One reading of the store's clock: the time it reported, and the local moments around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerReading {
    /// The time the store reported.
    pub server: ServerTime,
    /// When the request left.
    pub sent: Moment,
    /// When the reply arrived.
    pub received: Moment,
}

impl ServerReading {
    /// Whether the store's clock and ours disagree about the time since `earlier` by more than rates and round trips
    /// can explain. Then one of them jumped, and lease lengths cannot be trusted.
    pub fn jumped_since(&self, earlier: &Self, error: ClockTolerance) -> bool {
        let shortest = self.sent.since(earlier.received);
        let longest = self.received.since(earlier.sent);
        if self.server < earlier.server {
            // Back by more than a rounding error, or forward by less than can have passed.
            return earlier.server.since(self.server) > FIXED_SLACK || shortest > FIXED_SLACK;
        }
        let server = self.server.since(earlier.server);
        server + error.of(shortest) + FIXED_SLACK < shortest || server > longest + error.of(longest) + FIXED_SLACK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(server_ms: u64, sent_ms: u64, received_ms: u64) -> ServerReading {
        let at = |ms| Moment::ZERO + Duration::from_millis(ms);
        ServerReading {
            server: ServerTime::from_micros(server_ms * 1_000),
            sent: at(sent_ms),
            received: at(received_ms),
        }
    }

    #[test]
    fn a_deadline_never_overflows() {
        let d = deadline(Moment::END, Duration::MAX, ClockTolerance::MAX);
        assert_eq!(d, Moment::END);
        assert_eq!(deadline(Moment::ZERO, Duration::from_millis(1), ClockTolerance::default()), Moment::ZERO);
    }

    #[test]
    fn server_clock_steps_are_distinguished_from_slow_replies() {
        let error = ClockTolerance::default();
        let base = reading(1_000_000, 0, 10);
        let cases = [
            ("as expected", reading(1_010_005, 10_000, 10_010), false),
            ("rates differ by one percent", reading(1_010_090, 10_000, 10_010), false),
            ("a reply that took two seconds explains two seconds", reading(1_012_000, 10_000, 12_000), false),
            ("forward by a second", reading(1_011_005, 10_000, 10_010), true),
            ("back by a second", reading(1_009_005, 10_000, 10_010), true),
            ("back before the last reading", reading(999_000, 10_000, 10_010), true),
            ("stands still", reading(1_000_000, 10_000, 10_010), true),
            ("same millisecond, read twice", reading(1_000_000, 10, 11), false),
        ];
        for (case, later, jumped) in cases {
            assert_eq!(later.jumped_since(&base, error), jumped, "{case}");
        }
    }
}
