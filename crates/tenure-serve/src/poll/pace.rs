//! How often a target is polled that does not answer: less and less, until it does. Pure.

use std::time::Duration;

/// A target that has failed this often in a row is only looked at now and then.
const PATIENCE: u32 = 5;

/// A target that exhausts its holder counts as having failed at least this often.
const EXHAUSTING: u32 = PATIENCE + 3;

/// The longest between two looks, unless its interval is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How a target has been doing.
///
/// ```
/// use std::time::Duration;
/// use tenure_serve::poll::pace::{Pace, Poll};
///
/// let (mut pace, interval) = (Pace::default(), Duration::from_secs(5));
/// let fails = |pace: &mut Pace| match pace.next(interval) {
///     Poll::Skip => 0,
///     Poll::Whole | Poll::Light => { pace.went(false); 1 }
/// };
/// assert_eq!((0..20).map(|_| fails(&mut pace)).sum::<u32>(), 9); // five at once, and then ever fewer
/// while pace.next(interval) == Poll::Skip {}
/// pace.went(true);
/// assert_eq!(pace.next(interval), Poll::Whole);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    failures: u32,
    /// How many ticks are to be let pass.
    skip: u32,
}

/// What is done with a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Polled, and what it says is kept.
    Whole,
    /// Looked at: whether it answers at all.
    Light,
    /// Let pass.
    Skip,
}

impl Pace {
    /// What to do with the next tick.
    pub fn next(&mut self, interval: Duration) -> Poll {
        if self.failures < PATIENCE {
            return Poll::Whole;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return Poll::Skip;
        }
        self.skip = pause(self.failures + 1, interval) - 1;
        Poll::Light
    }

    /// How a target does that another instance has polled: how often it had failed in a row then, and how long ago that was.
    pub fn resume(failures: u32, ago: Duration, interval: Duration) -> Self {
        let passed = u32::try_from(ago.as_micros() / interval.as_micros().max(1)).unwrap_or(u32::MAX);
        let skip = if failures > PATIENCE { (pause(failures, interval) - 1).saturating_sub(passed) } else { 0 };
        Self { failures, skip }
    }

    /// It has cost more than this instance has: it is polled less at once.
    pub fn exhausts(&mut self, interval: Duration) {
        self.failures = self.failures.saturating_add(1).max(EXHAUSTING);
        self.skip = pause(self.failures, interval) - 1;
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

/// From one look to the next, in ticks, at a target that has failed so often in a row.
fn pause(failures: u32, interval: Duration) -> u32 {
    let most = u32::try_from(LONGEST_PAUSE.as_micros() / interval.as_micros().max(1)).unwrap_or(u32::MAX);
    1_u32.checked_shl(failures.saturating_sub(PATIENCE)).unwrap_or(u32::MAX).min(most.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_never_answers_is_looked_at_once_a_minute_and_a_slow_one_at_every_tick() {
        let looks = |interval: Duration, ticks: u32| {
            let mut pace = Pace::default();
            let looked = |_: &u32| {
                let looks = pace.next(interval) != Poll::Skip;
                if looks {
                    pace.went(false);
                }
                looks
            };
            (0..ticks).filter(looked).count()
        };
        let day = Duration::from_secs(86_400);
        // A week of seconds.
        let count = looks(Duration::from_secs(1), 604_800);
        assert!((10_080..10_100).contains(&count), "{count}");
        assert_eq!(looks(day, 30), 30);
        assert_eq!(looks(Duration::from_millis(100), 5), 5);
    }

    #[test]
    fn a_back_off_goes_on_with_the_next_holder() {
        let interval = Duration::from_secs(1);
        let mut pace = Pace::default();
        let mut last = 0;
        for tick in 0..200_u64 {
            // Handed over at every tick.
            let mut next = Pace::resume(pace.failures(), Duration::from_secs(tick - last), interval);
            let (here, there) = (pace.next(interval), next.next(interval));
            if pace.failures() > 0 {
                assert_eq!(here == Poll::Skip, there == Poll::Skip, "at {tick}: {pace:?} {next:?}");
            }
            if here != Poll::Skip {
                pace.went(false);
                last = tick + 1;
            }
        }
        assert_eq!(Pace::resume(0, Duration::ZERO, interval), Pace::default());
    }

    #[test]
    fn a_target_that_exhausts_its_holder_is_backed_off_at_once() {
        let interval = Duration::from_secs(1);
        let mut pace = Pace::default();
        pace.exhausts(interval);
        assert!((0..7).all(|_| pace.next(interval) == Poll::Skip));
        assert_eq!(pace.next(interval), Poll::Light);
        pace.went(true);
        assert_eq!(pace.next(interval), Poll::Whole);
    }
}
