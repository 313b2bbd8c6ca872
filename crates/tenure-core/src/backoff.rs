//! How long to wait before trying again: a delay that doubles, and jitter.

use std::time::Duration;

/// A delay that doubles with each failure in a row, up to a limit.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::backoff::Backoff;
///
/// let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
/// assert_eq!([1, 2, 3, 4].map(|failures| backoff.after(failures).as_secs()), [1, 2, 4, 5]);
/// assert_eq!(backoff.jittered(3, 0.0), Duration::from_secs(2)); // at least half of it
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failure.
    pub first: Duration,
    /// The longest delay.
    pub longest: Duration,
}

impl Backoff {
    /// A backoff between these two delays.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The delay after this many failures in a row.
    pub fn after(self, failures: u32) -> Duration {
        self.first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(self.longest)
    }

    /// The delay after this many failures in a row, with [jitter](jittered).
    pub fn jittered(self, failures: u32, chance: f64) -> Duration {
        jittered(self.after(failures), chance)
    }
}

/// Between half of a delay and all of it, so that instances that have failed together do not retry in lockstep. `chance`
/// is a random number between 0 and 1.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::backoff::jittered;
///
/// assert_eq!(jittered(Duration::from_secs(4), 0.5), Duration::from_secs(3));
/// ```
pub fn jittered(longest: Duration, chance: f64) -> Duration {
    longest.mul_f64(0.5 + 0.5 * chance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_is_bounded_however_many_failures_there_are() {
        let backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        assert_eq!(backoff.after(0), backoff.first);
        assert_eq!(backoff.after(1), backoff.first);
        assert_eq!(backoff.after(u32::MAX), backoff.longest);
        let longest = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!(longest.after(40), Duration::MAX);
    }
}
