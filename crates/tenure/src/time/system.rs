//! The real lease clock of this machine.

use std::sync::OnceLock;

use rustix::time::{ClockId, Timespec, clock_gettime};

use super::{LeaseClock, MergedClock, Now};

/// How far apart the two boot-time readings around a wall-clock reading may be before the pair is read again.
const MAX_READ_GAP_NANOS: i64 = 100_000;

/// The lease clock: the larger of elapsed `CLOCK_BOOTTIME` and elapsed forward wall time.
///
/// All values share one beginning per process, so a [`Moment`](super::Moment) can be compared wherever it was read.
///
/// ```
/// use tenure::time::{LeaseClock, SystemClock};
///
/// let before = SystemClock.now();
/// assert!(SystemClock.now() >= before);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl LeaseClock for SystemClock {
    fn read(&self) -> Now {
        static CLOCK: OnceLock<MergedClock> = OnceLock::new();
        let (boot, wall) = read_both();
        CLOCK.get_or_init(|| MergedClock::starting_at(boot, wall)).read(boot, wall)
    }
}

/// Both clocks as of the same instant: a thread that is descheduled between the readings must not look like a jump.
fn read_both() -> (i64, i64) {
    let mut before = nanos(clock_gettime(ClockId::Boottime));
    for _ in 0..3 {
        let wall = nanos(clock_gettime(ClockId::Realtime));
        let after = nanos(clock_gettime(ClockId::Boottime));
        if after - before <= MAX_READ_GAP_NANOS {
            return (after, wall);
        }
        before = after;
    }
    // On a machine this busy, count the gap: too early is safe.
    let wall = nanos(clock_gettime(ClockId::Realtime));
    (before, wall)
}

fn nanos(time: Timespec) -> i64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_on_many_threads_never_go_back() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut last = SystemClock.now();
                    for _ in 0..50_000 {
                        let now = SystemClock.now();
                        assert!(now >= last);
                        last = now;
                    }
                });
            }
        });
    }
}
