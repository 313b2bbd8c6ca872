//! Points in time: one kind for this process, one for the store.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point on this process's [lease clock](super::LeaseClock), in nanoseconds since the clock's own beginning.
///
/// Arithmetic saturates: a deadline that cannot be represented is the end of time, never a wrapped-around past.
///
/// ```
/// use std::time::Duration;
/// use tenure::time::Moment;
///
/// let start = Moment::from_nanos(500);
/// assert_eq!((start + Duration::from_nanos(5)).since(start), Duration::from_nanos(5));
/// assert_eq!(start + Duration::MAX, Moment::END);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The beginning of the clock.
    pub const ZERO: Self = Self(0);
    /// The last moment that can be represented, some 584 years after the first.
    pub const END: Self = Self(u64::MAX);

    /// The moment this many nanoseconds after the clock's beginning.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's beginning.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time since `earlier`, zero when `earlier` is not earlier.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Moment {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(saturating_nanos(span)))
    }
}

impl std::ops::Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(saturating_nanos(span)))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", self.0 as f64 / 1e9)
    }
}

/// A point on this process's *steady* clock: boot time alone, in nanoseconds since the clock's own beginning.
///
/// The lease clock may run ahead of true time when the wall clock is set. That ends one's own term early and is safe.
/// When waiting for *another holder's* term to end, a clock that runs ahead is dangerous, and this one does not.
///
/// ```
/// use std::time::Duration;
/// use tenure::time::{LeaseClock, SystemClock};
///
/// let seen = SystemClock.read().steady; // when the store said that another holder has 5 s left
/// let retry_at = seen + Duration::from_secs(5);
/// assert!(retry_at.since(SystemClock.read().steady) <= Duration::from_secs(5));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SteadyMoment(u64);

impl SteadyMoment {
    /// The beginning of the clock.
    pub const ZERO: Self = Self(0);

    /// The point this many nanoseconds after the clock's beginning.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The time since `earlier`, zero when `earlier` is not earlier.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for SteadyMoment {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(saturating_nanos(span)))
    }
}

/// One reading of both local clocks, taken together.
///
/// ```
/// use std::time::Duration;
/// use tenure::time::{LeaseClock, ManualClock, Now};
///
/// let clock = ManualClock::default();
/// let Now { moment, steady } = clock.read();
/// clock.advance(Duration::from_secs(30));
/// assert_eq!(clock.read().moment.since(moment), Duration::from_secs(30)); // how much of one's own ttl has passed
/// assert_eq!(clock.read().steady.since(steady), Duration::from_secs(30)); // how long another holder was waited for
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The lease clock, which never runs slow: for one's own deadlines.
    pub moment: Moment,
    /// The steady clock, which never runs fast: for waiting until another holder's lease has ended.
    pub steady: SteadyMoment,
}

impl Now {
    /// A reading of clocks that have never been set: both show the same time.
    pub const fn undisturbed(moment: Moment) -> Self {
        Self { moment, steady: SteadyMoment(moment.0) }
    }
}

/// The store's own time, in microseconds since the Unix epoch.
///
/// It is the store's wall clock and may jump; nothing here compares it with a [`Moment`] except to *detect* such jumps.
///
/// ```
/// use tenure::Tenure;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("import").acquire().await?;
/// lease.publish("position", "row 17").await?;
/// let record = tenure.read("import", "position").await?.ok_or("not published")?;
/// let now = tenure.admin().namespace().await?.server; // by the same clock
/// println!("{:?} old, written {} µs after 1970", now.since(record.at), record.at.as_micros());
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServerTime(u64);

impl ServerTime {
    /// The server time this many microseconds after the Unix epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The time since `earlier`, zero when `earlier` is not earlier.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for ServerTime {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)))
    }
}

fn saturating_nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate_at_both_ends() {
        assert_eq!(Moment::END + Duration::from_nanos(1), Moment::END);
        assert_eq!(Moment::ZERO - Duration::MAX, Moment::ZERO);
        assert_eq!(Moment::ZERO.since(Moment::END), Duration::ZERO);
        assert_eq!(ServerTime::from_micros(1) + Duration::MAX, ServerTime::from_micros(u64::MAX));
    }
}
