//! How often a target is polled that does not answer: less and less, until it does. Pure.

use std::time::Duration;

/// A target that has failed this often in a row is only looked at now and then.
const PATIENCE: u32 = 5;

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
        let most = u32::try_from(LONGEST_PAUSE.as_micros() / interval.as_micros().max(1)).unwrap_or(u32::MAX);
        let pause = 1_u32.checked_shl(self.failures - PATIENCE + 1).unwrap_or(u32::MAX).min(most.max(1));
        self.skip = pause - 1;
        Poll::Light
    }

    /// How it went.
    pub fn went(&mut self, well: bool) {
        *self = if well { Self::default() } else { Self { failures: self.failures.saturating_add(1), ..*self } };
    }
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
}
