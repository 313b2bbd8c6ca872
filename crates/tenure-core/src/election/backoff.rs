//! How long a candidate waits before it campaigns again: a pure function of how the last attempt ended.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::lease::LeaseSettings;

/// The backoff after an error that waiting does not fix.
const ERROR_BACKOFF: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(30));

/// How a candidate's last attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackoffReason {
    /// The candidate could not acquire the lease because of an error.
    AcquireFailed,
    /// The candidate led and resigned: other candidates go first.
    Resigned,
    /// The candidate led and lost the lease.
    Lost {
        /// How long it led.
        led_for: Duration,
    },
}

/// How long a candidate waits before it campaigns again: zero, unless several attempts in a row have failed.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::election::{BackoffReason, CampaignBackoff};
/// use tenure::lease::LeaseSettings;
///
/// let (mut backoff, settings) = (CampaignBackoff::default(), LeaseSettings::default());
/// let flapped = BackoffReason::Lost { led_for: Duration::from_secs(1) };
/// let pauses = [(); 4].map(|()| backoff.next_delay(flapped, &settings, 1.0).as_secs());
/// assert_eq!(pauses, [0, 4, 8, 16]);
/// ```
#[derive(Debug, Default)]
pub struct CampaignBackoff {
    failures: u32,
}

impl CampaignBackoff {
    /// Returns the time to wait. `chance` is a random number between 0 and 1, so that candidates do not retry in step.
    pub fn next_delay(&mut self, reason: BackoffReason, settings: &LeaseSettings, chance: f64) -> Duration {
        match reason {
            BackoffReason::AcquireFailed => {
                self.failures = self.failures.saturating_add(1);
                ERROR_BACKOFF.jittered(self.failures, chance)
            }
            BackoffReason::Resigned => {
                self.failures = 0;
                settings.renew_every()
            }
            BackoffReason::Lost { led_for } if led_for >= settings.renew_every() => {
                self.failures = 0;
                Duration::ZERO
            }
            // A candidate that keeps losing its terms lets others lead for a while.
            BackoffReason::Lost { .. } => {
                self.failures = self.failures.saturating_add(1);
                match self.failures {
                    1 => Duration::ZERO,
                    failures => Backoff::new(settings.attempt_timeout(), settings.ttl()).jittered(failures, chance),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_short_terms_back_off() {
        let (settings, mut backoff) = (LeaseSettings::default(), CampaignBackoff::default());
        let mut lost = |after: u64| {
            backoff.next_delay(BackoffReason::Lost { led_for: Duration::from_secs(after) }, &settings, 1.0)
        };
        assert_eq!(lost(60), Duration::ZERO, "a loss after a long term needs no backoff");
        let pauses: Vec<u64> = (0..6).map(|_| lost(1).as_secs()).collect();
        assert_eq!(pauses, [0, 4, 8, 16, 30, 30]);
        assert_eq!(lost(60), Duration::ZERO, "a long term resets the backoff");
        assert_eq!(lost(1), Duration::ZERO);
    }

    #[test]
    fn failed_attempts_back_off_up_to_the_maximum() {
        let (settings, mut backoff) = (LeaseSettings::default(), CampaignBackoff::default());
        let pauses: Vec<u64> =
            (0..6).map(|_| backoff.next_delay(BackoffReason::AcquireFailed, &settings, 1.0).as_secs()).collect();
        assert_eq!(pauses, [2, 4, 8, 16, 30, 30]);
        assert!(
            backoff.next_delay(BackoffReason::AcquireFailed, &settings, 0.0) >= Duration::from_secs(15),
            "the jitter takes at most half of the backoff"
        );
        assert_eq!(backoff.next_delay(BackoffReason::Resigned, &settings, 1.0), settings.renew_every());
        assert_eq!(backoff.next_delay(BackoffReason::AcquireFailed, &settings, 1.0).as_secs(), 2);
    }
}
