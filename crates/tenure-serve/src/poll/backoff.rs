//! Backoff for a target that fails: fewer and fewer polls until it succeeds. Pure.

use std::time::Duration;

/// Number of consecutive failures after which a target is polled less.
const BACKOFF_AFTER_FAILURES: u32 = 5;

/// A target that exhausts its holder counts as having failed at least this often.
const EXHAUSTED_FAILURES: u32 = BACKOFF_AFTER_FAILURES + 3;

/// Longest pause for a target that exhausts its holder and has no backoff of its own.
const EXHAUSTED_MAX_PAUSE: Duration = Duration::from_secs(60);

/// Backoff state of a target. The longest pause is a setting of its session. Without one there is no backoff, except
/// for a target that exhausts its holder.
///
/// ```
/// use std::time::Duration;
/// use tenure_serve::poll::backoff::PollBackoff;
///
/// let (interval, max_pause) = (Duration::from_secs(5), Some(Duration::from_secs(60)));
/// let polls = |max_pause| {
///     let mut backoff = PollBackoff::default();
///     let is_polled = |_: &u32| backoff.is_due(interval, max_pause) && { backoff.record(false); true };
///     (0..20).filter(is_polled).count()
/// };
/// assert_eq!(polls(max_pause), 9); // five at once, and then ever fewer
/// assert_eq!(polls(None), 20);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollBackoff {
    failures: u32,
    /// Number of ticks to skip.
    skip: u32,
}

impl PollBackoff {
    /// Returns whether the target is polled at this tick.
    pub fn is_due(&mut self, interval: Duration, max_pause: Option<Duration>) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if let Some(max_pause) = max_pause.filter(|_| self.failures >= BACKOFF_AFTER_FAILURES) {
            self.skip = pause(self.failures + 1, interval, max_pause) - 1;
        }
        true
    }

    /// Continues the backoff of another instance, from its number of consecutive failures and the time since the last
    /// one.
    pub fn resume(failures: u32, ago: Duration, interval: Duration, max_pause: Option<Duration>) -> Self {
        let passed = u32::try_from(ago.as_micros() / interval.as_micros().max(1)).unwrap_or(u32::MAX);
        let skip = match max_pause {
            Some(max_pause) if failures > BACKOFF_AFTER_FAILURES => {
                (pause(failures, interval, max_pause) - 1).saturating_sub(passed)
            }
            _ => 0,
        };
        Self { failures, skip }
    }

    /// Records that the target needed more resources than this instance has. It is polled less from now on.
    pub fn record_exhausted(&mut self, interval: Duration, max_pause: Option<Duration>) {
        self.failures = self.failures.saturating_add(1).max(EXHAUSTED_FAILURES);
        self.skip = pause(self.failures, interval, max_pause.unwrap_or(EXHAUSTED_MAX_PAUSE)) - 1;
    }

    /// Returns the number of consecutive failures.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Records the outcome of a poll.
    pub fn record(&mut self, well: bool) {
        *self = if well { Self::default() } else { Self { failures: self.failures.saturating_add(1), ..*self } };
    }
}

/// Returns the number of ticks between two polls after this many consecutive failures.
fn pause(failures: u32, interval: Duration, max_pause: Duration) -> u32 {
    let most = u32::try_from(max_pause.as_micros() / interval.as_micros().max(1)).unwrap_or(u32::MAX);
    1_u32.checked_shl(failures.saturating_sub(BACKOFF_AFTER_FAILURES)).unwrap_or(u32::MAX).min(most.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Option<Duration> = Some(Duration::from_secs(60));

    fn polls(interval: Duration, max_pause: Option<Duration>, ticks: u32) -> usize {
        let mut backoff = PollBackoff::default();
        let is_polled = |_: &u32| {
            let due = backoff.is_due(interval, max_pause);
            if due {
                backoff.record(false);
            }
            due
        };
        (0..ticks).filter(is_polled).count()
    }

    #[test]
    fn a_silent_target_is_polled_once_a_minute_and_a_rare_one_at_every_tick() {
        let day = Duration::from_secs(86_400);
        // A week of seconds.
        let count = polls(Duration::from_secs(1), MINUTE, 604_800);
        assert!((10_080..10_100).contains(&count), "{count}");
        assert_eq!(polls(day, MINUTE, 30), 30);
        assert_eq!(polls(Duration::from_millis(100), MINUTE, 5), 5);
    }

    #[test]
    fn a_backoff_can_be_disabled_or_extended() {
        let second = Duration::from_secs(1);
        assert_eq!(polls(second, None, 1_000), 1_000);
        let hour = polls(second, Some(Duration::from_secs(3_600)), 604_800);
        assert!((168..190).contains(&hour), "{hour}");
    }

    #[test]
    fn a_backoff_continues_with_the_next_holder() {
        let interval = Duration::from_secs(1);
        let mut backoff = PollBackoff::default();
        let mut last = 0;
        for tick in 0..200_u64 {
            // Hand over at every tick.
            let mut next = PollBackoff::resume(backoff.failures(), Duration::from_secs(tick - last), interval, MINUTE);
            let (here, there) = (backoff.is_due(interval, MINUTE), next.is_due(interval, MINUTE));
            if backoff.failures() > 0 {
                assert_eq!(here, there, "at {tick}: {backoff:?} {next:?}");
            }
            if here {
                backoff.record(false);
                last = tick + 1;
            }
        }
        assert_eq!(PollBackoff::resume(0, Duration::ZERO, interval, MINUTE), PollBackoff::default());
    }

    #[test]
    fn a_target_that_exhausts_its_holder_is_backed_off_at_once() {
        let interval = Duration::from_secs(1);
        for max_pause in [MINUTE, None] {
            let mut backoff = PollBackoff::default();
            backoff.record_exhausted(interval, max_pause);
            assert!((0..7).all(|_| !backoff.is_due(interval, max_pause)));
            assert!(backoff.is_due(interval, max_pause));
            backoff.record(true);
            assert!(backoff.is_due(interval, max_pause));
        }
    }
}
