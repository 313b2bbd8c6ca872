//! When a target is due: pure functions, so that ticks are the same in a program and in the simulator.

use std::time::Duration;

use crate::placement::TargetScore;
use crate::time::ServerTime;

/// The estimates of the store's time by two instances differ by less than this.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(10);

/// The phase of a target's ticks within every interval, in microseconds.
pub fn phase(target: &str, interval: Duration) -> u64 {
    TargetScore::of(target).spread(micros(interval))
}

/// When the next tick is due: the first after the last one, or the latest of the missed ones.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::pool::next_due;
/// use tenure::time::ServerTime;
///
/// let second = |n: u64| ServerTime::from_micros(n * 1_000_000);
/// let due = |now, last| next_due(second(now), second(last), Duration::from_secs(5), 0);
/// assert_eq!(due(12, 10), second(15));
/// assert_eq!(due(33, 10), second(30)); // four were missed: one tick makes up for them
/// ```
pub fn next_due(now: ServerTime, last: ServerTime, interval: Duration, phase: u64) -> ServerTime {
    let grid = SlotGrid { step: micros(interval), phase };
    let latest = grid.slot(now);
    // A mark in the future, from a clock that was ahead, delays the next tick by at most one interval.
    let last = grid.slot(last).min(latest + 1);
    grid.start(if last >= latest { last + 1 } else { latest })
}

/// The tick that counts as the last one for a holder that starts to tick. A mark off this interval's grid is from
/// another interval: no tick of this one was missed, and the next is at least a millisecond after the mark, because due
/// times are reported in milliseconds. A mark far in the future, from before the clock was set back, is ignored.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::pool::last_tick;
/// use tenure::time::ServerTime;
///
/// let second = |n: u64| ServerTime::from_micros(n * 1_000_000);
/// let last = |mark| last_tick(second(33), second(mark), Duration::from_secs(5), 0);
/// assert_eq!(last(20), second(20)); // two were missed since then
/// assert_eq!(last(19), second(30)); // a mark of another interval: no tick of this one was missed
/// ```
pub fn last_tick(now: ServerTime, last: ServerTime, interval: Duration, phase: u64) -> ServerTime {
    let grid = SlotGrid { step: micros(interval), phase };
    if last > now + interval + MAX_CLOCK_SKEW {
        return grid.start(grid.slot(now));
    }
    if grid.start(grid.slot(last)) == last {
        return last;
    }
    grid.start(grid.slot(now.max(last + Duration::from_millis(1))))
}

/// A grid of slots of one length.
struct SlotGrid {
    step: u64,
    phase: u64,
}

impl SlotGrid {
    fn slot(&self, time: ServerTime) -> u64 {
        time.as_micros().saturating_sub(self.phase) / self.step
    }

    fn start(&self, slot: u64) -> ServerTime {
        ServerTime::from_micros(slot.saturating_mul(self.step).saturating_add(self.phase))
    }
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
        assert_eq!(due(10_000, 10_000), 10_300, "the first tick is the next slot");
        assert_eq!(due(10_300, 10_300), 11_300);
        assert_eq!(due(11_299, 10_300), 11_300);
        assert_eq!(due(11_300, 10_300), 11_300, "due now");
        assert_eq!(due(11_450, 10_300), 11_300, "a little late");
    }

    #[test]
    fn one_tick_replaces_all_missed_ticks() {
        assert_eq!(due(19_900, 10_300), 19_300);
        assert_eq!(due(19_900, 19_300), 20_300);
    }

    #[test]
    fn a_mark_from_the_future_is_not_waited_for() {
        assert_eq!(due(10_000, 99_300), 11_300);
        assert_eq!(due(10_000, 10_300), 11_300, "the next one was claimed already");
    }

    #[test]
    fn a_changed_interval_starts_from_now() {
        let due = |now: u64, last: u64| {
            let begun = last_tick(at(now), at(last), SECOND * 5, 2_000_000);
            (next_due(at(now), begun, SECOND * 5, 2_000_000), next_due(at(17_000), begun, SECOND * 5, 2_000_000))
        };
        assert_eq!(due(10_000, 9_300), (at(12_000), at(17_000)));
        assert_eq!(due(14_000, 9_300), (at(17_000), at(17_000)), "the tick of 12 s was not missed");
        assert_eq!(due(14_000, 7_000), (at(12_000), at(17_000)), "the tick of 12 s was missed");
        assert_eq!(due(14_000, 99_900), (at(17_000), at(17_000)), "a mark from the future is ignored");
        assert_eq!(due(14_000, 16_900), (at(17_000), at(17_000)), "the next tick is after the mark");
        let (now, last) = (ServerTime::from_micros(10_299_500), ServerTime::from_micros(10_299_400));
        let begun = last_tick(now, last, SECOND, 300_000);
        assert_eq!(next_due(now, begun, SECOND, 300_000), at(11_300), "not twice in a millisecond");
    }

    #[test]
    fn a_clock_set_back_does_not_stop_ticks() {
        // Like the loop that waits for ticks: repeatedly, at whatever time it is then.
        let (mut last, mut dues) = (at(99_300), Vec::new());
        for now in (10_000..14_000).step_by(50) {
            last = last_tick(at(now), last, SECOND, 300_000);
            let due = next_due(at(now), last, SECOND, 300_000);
            if due <= at(now) {
                dues.push(now);
                last = due;
            }
        }
        assert_eq!(dues, [10_300, 11_300, 12_300, 13_300]);
        assert_eq!(last_tick(at(10_000), at(15_300), SECOND, 300_000), at(15_300), "our clock is behind the mark");
    }

    #[test]
    fn targets_do_not_fire_together() {
        let phases: std::collections::BTreeSet<u64> =
            (0..1_000).map(|n| phase(&format!("endpoint-{n}"), SECOND) / 10_000).collect();
        assert!(phases.len() > 95, "{}", phases.len());
    }
}
