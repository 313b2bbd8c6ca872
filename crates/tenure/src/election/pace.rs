//! How long a candidate waits before it asks again: a pure function of what became of it.

use std::time::Duration;

use crate::lease::LeaseSettings;

/// The first and the longest pause after something that waiting does not mend.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What became of asking for an office.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setback {
    /// It could not even be asked for.
    NotAsked,
    /// The candidate led and gave the office up: others come first.
    Resigned,
    /// The candidate led for so long, and lost the office.
    Lost {
        /// How long it led.
        after: Duration,
    },
}

/// How long a candidate waits before it asks again: nothing, unless it has had setbacks in a row.
///
/// ```
/// use std::time::Duration;
/// use tenure::election::{Pace, Setback};
/// use tenure::lease::LeaseSettings;
///
/// let (mut pace, settings) = (Pace::default(), LeaseSettings::default());
/// let flapped = Setback::Lost { after: Duration::from_secs(1) };
/// let pauses = [(); 4].map(|()| pace.pause(flapped, &settings, 1.0).as_secs());
/// assert_eq!(pauses, [0, 4, 8, 16]);
/// ```
#[derive(Debug, Default)]
pub struct Pace {
    setbacks: u32,
}

impl Pace {
    /// How long to wait. `chance` is between 0 and 1: candidates must not move in step.
    pub fn pause(&mut self, setback: Setback, settings: &LeaseSettings, chance: f64) -> Duration {
        let growing =
            |first: Duration, times: u32| first.saturating_mul(1 << times.min(10)).mul_f64(0.5 + 0.5 * chance);
        match setback {
            Setback::NotAsked => {
                self.setbacks = self.setbacks.saturating_add(1);
                growing(FIRST_PAUSE, self.setbacks - 1).min(LONGEST_PAUSE)
            }
            Setback::Resigned => {
                self.setbacks = 0;
                settings.renew_every()
            }
            Setback::Lost { after } if after >= settings.renew_every() => {
                self.setbacks = 0;
                Duration::ZERO
            }
            // Somebody who keeps losing what it wins leaves it to others for a while.
            Setback::Lost { .. } => {
                self.setbacks = self.setbacks.saturating_add(1);
                match self.setbacks {
                    1 => Duration::ZERO,
                    times => growing(settings.attempt_timeout(), times - 1).min(settings.ttl()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_keeps_losing_what_it_wins_leaves_it_to_others() {
        let (settings, mut pace) = (LeaseSettings::default(), Pace::default());
        let mut lost = |after: u64| pace.pause(Setback::Lost { after: Duration::from_secs(after) }, &settings, 1.0);
        assert_eq!(lost(60), Duration::ZERO, "an honest loss costs nothing");
        let pauses: Vec<u64> = (0..6).map(|_| lost(1).as_secs()).collect();
        assert_eq!(pauses, [0, 4, 8, 16, 30, 30]);
        assert_eq!(lost(60), Duration::ZERO, "all is forgiven");
        assert_eq!(lost(1), Duration::ZERO);
    }

    #[test]
    fn what_cannot_be_asked_for_is_asked_for_less_and_less() {
        let (settings, mut pace) = (LeaseSettings::default(), Pace::default());
        let pauses: Vec<u64> = (0..6).map(|_| pace.pause(Setback::NotAsked, &settings, 1.0).as_secs()).collect();
        assert_eq!(pauses, [2, 4, 8, 16, 30, 30]);
        assert!(
            pace.pause(Setback::NotAsked, &settings, 0.0) >= Duration::from_secs(15),
            "not in step, and not at once"
        );
        assert_eq!(pace.pause(Setback::Resigned, &settings, 1.0), settings.renew_every());
        assert_eq!(pace.pause(Setback::NotAsked, &settings, 1.0).as_secs(), 2);
    }
}
