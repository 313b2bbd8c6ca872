//! How often a target is polled that does not answer: less and less, until it does. Pure.

use std::time::Duration;

/// A target that has failed this often in a row is polled less.
const PATIENCE: u32 = 5;

/// A target that exhausts its holder counts as having failed at least this often.
const EXHAUSTING: u32 = PATIENCE + 3;

/// The longest pause for a target that exhausts its holder and has no back-off of its own.
const EXHAUSTING_LONGEST: Duration = Duration::from_secs(60);

/// How a target has been doing. The longest pause is its session's; without one there is no back-off, except for a target
/// that exhausts its holder.
///
/// ```
/// use std::time::Duration;
/// use tenure_serve::poll::pace::Pace;
///
/// let (interval, longest) = (Duration::from_secs(5), Some(Duration::from_secs(60)));
/// let polls = |longest| {
///     let mut pace = Pace::default();
///     let is_polled = |_: &u32| pace.is_due(interval, longest) && { pace.went(false); true };
///     (0..20).filter(is_polled).count()
/// };
/// assert_eq!(polls(longest), 9); // five at once, and then ever fewer
/// assert_eq!(polls(None), 20);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    failures: u32,
    /// How many ticks are to be let pass.
    skip: u32,
}

impl Pace {
    /// Whether the target is polled at this tick.
    pub fn is_due(&mut self, interval: Duration, longest: Option<Duration>) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if let Some(longest) = longest.filter(|_| self.failures >= PATIENCE) {
            self.skip = pause(self.failures + 1, interval, longest) - 1;
        }
        true
    }

    /// How a target does that another instance has polled: how often it had failed in a row then, and how long ago that was.
    pub fn resume(failures: u32, ago: Duration, interval: Duration, longest: Option<Duration>) -> Self {
        let passed = u32::try_from(ago.as_micros() / interval.as_micros().max(1)).unwrap_or(u32::MAX);
        let skip = match longest {
            Some(longest) if failures > PATIENCE => (pause(failures, interval, longest) - 1).saturating_sub(passed),
            _ => 0,
        };
        Self { failures, skip }
    }

    /// It has cost more than this instance has: it is polled less at once.
    pub fn exhausts(&mut self, interval: Duration, longest: Option<Duration>) {
        self.failures = self.failures.saturating_add(1).max(EXHAUSTING);
        self.skip = pause(self.failures, interval, longest.unwrap_or(EXHAUSTING_LONGEST)) - 1;
    }

    /// How often it has failed in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// How it went.
    pub fn went(&mut self, well: bool) {
        *self = if well { Self::default() } else { Self { failures: self.failures.saturating_add(1), ..*self } };
    }
}

/// From one poll to the next, in ticks, of a target that has failed so often in a row.
fn pause(failures: u32, interval: Duration, longest: Duration) -> u32 {
    let most = u32::try_from(longest.as_micros() / interval.as_micros().max(1)).unwrap_or(u32::MAX);
    1_u32.checked_shl(failures.saturating_sub(PATIENCE)).unwrap_or(u32::MAX).min(most.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Option<Duration> = Some(Duration::from_secs(60));

    fn polls(interval: Duration, longest: Option<Duration>, ticks: u32) -> usize {
        let mut pace = Pace::default();
        let is_polled = |_: &u32| {
            let due = pace.is_due(interval, longest);
            if due {
                pace.went(false);
            }
            due
        };
        (0..ticks).filter(is_polled).count()
    }

    #[test]
    fn a_target_that_never_answers_is_polled_once_a_minute_and_a_slow_one_at_every_tick() {
        let day = Duration::from_secs(86_400);
        // A week of seconds.
        let count = polls(Duration::from_secs(1), MINUTE, 604_800);
        assert!((10_080..10_100).contains(&count), "{count}");
        assert_eq!(polls(day, MINUTE, 30), 30);
        assert_eq!(polls(Duration::from_millis(100), MINUTE, 5), 5);
    }

    #[test]
    fn a_back_off_can_be_switched_off_or_made_longer() {
        let second = Duration::from_secs(1);
        assert_eq!(polls(second, None, 1_000), 1_000);
        let hour = polls(second, Some(Duration::from_secs(3_600)), 604_800);
        assert!((168..190).contains(&hour), "{hour}");
    }

    #[test]
    fn a_back_off_goes_on_with_the_next_holder() {
        let interval = Duration::from_secs(1);
        let mut pace = Pace::default();
        let mut last = 0;
        for tick in 0..200_u64 {
            // Handed over at every tick.
            let mut next = Pace::resume(pace.failures(), Duration::from_secs(tick - last), interval, MINUTE);
            let (here, there) = (pace.is_due(interval, MINUTE), next.is_due(interval, MINUTE));
            if pace.failures() > 0 {
                assert_eq!(here, there, "at {tick}: {pace:?} {next:?}");
            }
            if here {
                pace.went(false);
                last = tick + 1;
            }
        }
        assert_eq!(Pace::resume(0, Duration::ZERO, interval, MINUTE), Pace::default());
    }

    #[test]
    fn a_target_that_exhausts_its_holder_is_backed_off_at_once() {
        let interval = Duration::from_secs(1);
        for longest in [MINUTE, None] {
            let mut pace = Pace::default();
            pace.exhausts(interval, longest);
            assert!((0..7).all(|_| !pace.is_due(interval, longest)));
            assert!(pace.is_due(interval, longest));
            pace.went(true);
            assert!(pace.is_due(interval, longest));
        }
    }
}
