//! When a target is due: pure, so that ticks are the same in a program and in the simulator.

use std::time::Duration;

use crate::placement::TargetScore;
use crate::time::ServerTime;

/// Where in every interval a target's ticks are, in microseconds.
pub fn phase(target: &str, interval: Duration) -> u64 {
    TargetScore::of(target).spread(micros(interval))
}

/// When the next tick is due: the first after the last one, or the latest of those that were missed.
///
/// ```
/// use std::time::Duration;
/// use tenure::pool::next_due;
/// use tenure::time::ServerTime;
///
/// let second = |n: u64| ServerTime::from_micros(n * 1_000_000);
/// let due = |now, last| next_due(second(now), second(last), Duration::from_secs(5), 0);
/// assert_eq!(due(12, 10), second(15));
/// assert_eq!(due(33, 10), second(30)); // four were missed: one makes up for them
/// ```
pub fn next_due(now: ServerTime, last: ServerTime, interval: Duration, phase: u64) -> ServerTime {
    let step = micros(interval);
    let slot = |time: u64| time.saturating_sub(phase) / step;
    let start = |slot: u64| slot.saturating_mul(step).saturating_add(phase);
    let now = now.as_micros();
    let latest = slot(now);
    // A mark from the future, by a clock that was ahead, is not waited for longer than an interval.
    let last = slot(last.as_micros()).min(latest + 1);
    ServerTime::from_micros(start(if last >= latest { last + 1 } else { latest }))
}

fn micros(interval: Duration) -> u64 {
    u64::try_from(interval.as_micros()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> ServerTime {
        ServerTime::from_micros(millis * 1_000)
    }

    fn due(now: u64, last: u64) -> u64 {
        next_due(at(now), at(last), SECOND, 300_000).as_micros() / 1_000
    }

    #[test]
    fn ticks_keep_their_phase() {
        assert_eq!(due(10_000, 10_000), 10_300, "the first is the next");
        assert_eq!(due(10_300, 10_300), 11_300);
        assert_eq!(due(11_299, 10_300), 11_300);
        assert_eq!(due(11_300, 10_300), 11_300, "due now");
        assert_eq!(due(11_450, 10_300), 11_300, "a little late");
    }

    #[test]
    fn what_was_missed_is_made_up_for_by_one() {
        assert_eq!(due(19_900, 10_300), 19_300);
        assert_eq!(due(19_900, 19_300), 20_300);
    }

    #[test]
    fn a_mark_from_the_future_is_not_waited_for() {
        assert_eq!(due(10_000, 99_300), 11_300);
        assert_eq!(due(10_000, 10_300), 11_300, "the next one was claimed already");
    }

    #[test]
    fn another_interval_goes_on_from_there() {
        let due = next_due(at(10_000), at(9_300), SECOND * 5, 2_000_000);
        assert_eq!(due, at(12_000));
    }

    #[test]
    fn targets_do_not_fire_together() {
        let phases: std::collections::BTreeSet<u64> =
            (0..1_000).map(|n| phase(&format!("endpoint-{n}"), SECOND) / 10_000).collect();
        assert!(phases.len() > 95, "{}", phases.len());
    }
}
