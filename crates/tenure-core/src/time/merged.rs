//! Merges two clocks into one that is never slower than either.

use std::sync::atomic::{AtomicI64, Ordering};

use super::{Moment, Now, SteadyMoment};

/// Differences below this are the noise of reading two clocks one after the other, and are not counted.
///
/// The merged clock may lag the faster of the two by twice this much, which the fixed slack of every
/// [deadline](super::deadline) covers.
const MAX_READ_NOISE_NANOS: i64 = 500_000;

/// Merges boot time and wall time into the lease clock: each reading advances by the larger of the two elapsed times. A
/// wall clock that is set back is ignored.
///
/// Pure: both readings are arguments, so the simulator runs the same code. It stores one offset per clock, each of
/// which only grows, so readers on many threads need no lock.
///
/// ```
/// use tenure_core::time::MergedClock;
///
/// const SECOND: i64 = 1_000_000_000;
/// let clock = MergedClock::starting_at(0, 1_700_000_000 * SECOND);
/// // One second of boot time; meanwhile an operator set the wall clock an hour ahead.
/// let now = clock.read(SECOND, (1_700_000_000 + 3_600) * SECOND);
/// assert_eq!(now.moment.as_nanos(), 3_600_000_000_000);
/// assert_eq!(now.steady.since(tenure::time::SteadyMoment::ZERO).as_secs(), 1);
/// ```
#[derive(Debug)]
pub struct MergedClock {
    started_at_boot: i64,
    boot_offset: AtomicI64,
    wall_offset: AtomicI64,
}

impl MergedClock {
    /// A clock that reads zero for these two readings (nanoseconds of boot time, nanoseconds since the Unix epoch).
    pub fn starting_at(boot: i64, wall: i64) -> Self {
        Self {
            started_at_boot: boot,
            boot_offset: AtomicI64::new(boot.saturating_neg()),
            wall_offset: AtomicI64::new(wall.saturating_neg()),
        }
    }

    /// The merged time for a pair of readings taken together.
    pub fn read(&self, boot: i64, wall: i64) -> Now {
        let by_boot = boot.saturating_add(self.boot_offset.load(Ordering::Acquire));
        let by_wall = wall.saturating_add(self.wall_offset.load(Ordering::Acquire));
        let lead = by_wall.saturating_sub(by_boot);
        let now = if lead > MAX_READ_NOISE_NANOS {
            // The wall clock went ahead: time passed that boot time did not see, or an operator set the clock. Counting
            // it is safe in both cases.
            self.boot_offset.fetch_max(by_wall.saturating_sub(boot), Ordering::AcqRel);
            by_wall
        } else {
            if lead < -MAX_READ_NOISE_NANOS {
                // The wall clock fell behind (set back, slewed): from here on it counts from its new reading.
                self.wall_offset.fetch_max(by_boot.saturating_sub(wall), Ordering::AcqRel);
            }
            by_boot
        };
        let nanos = |signed: i64| u64::try_from(signed).unwrap_or(0);
        Now {
            moment: Moment::from_nanos(nanos(now)),
            steady: SteadyMoment::from_nanos(nanos(boot.saturating_sub(self.started_at_boot))),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn a_backward_wall_step_is_ignored_and_later_forward_time_still_counts() {
        let clock = MergedClock::starting_at(0, 0);
        assert_eq!(clock.read(1_000 * MS, -3_600_000 * MS).moment.as_nanos(), 1_000_000_000);
        // From the new wall reading on, a forward gap counts again.
        assert_eq!(clock.read(2_000 * MS, -3_600_000 * MS + 5_000 * MS).moment.as_nanos(), 6_000_000_000);
    }

    #[test]
    fn reading_noise_does_not_make_the_clock_run_fast() {
        let clock = MergedClock::starting_at(0, 0);
        let mut now = Moment::ZERO;
        for step in 1..=1_000_000_i64 {
            let noise = if step % 2 == 0 { 400_000 } else { -400_000 };
            now = clock.read(step * 1_000, step * 1_000 + noise).moment;
        }
        assert!(now.as_nanos() < 1_003_000_000, "{now}");
    }

    proptest! {
        /// For any two readings, the merged clock moved by at least the larger of both elapsed times (less the noise).
        #[test]
        fn never_slower_than_either_clock(steps in prop::collection::vec((0_i64..5_000, -100_000_i64..100_000), 1..60)) {
            let clock = MergedClock::starting_at(0, 0);
            let (mut boot, mut wall) = (0_i64, 0_i64);
            let mut seen = vec![(0_i64, 0_i64, 0_i64)];
            for (elapsed, shift) in steps {
                boot += elapsed * MS;
                wall += (elapsed + shift) * MS;
                let now = clock.read(boot, wall).moment.as_nanos() as i64;
                for &(earlier, earlier_boot, earlier_wall) in &seen {
                    prop_assert!(now >= earlier, "went back");
                    let elapsed = (boot - earlier_boot).max(wall - earlier_wall);
                    prop_assert!(now - earlier >= elapsed - 2 * MAX_READ_NOISE_NANOS);
                }
                seen.push((now, boot, wall));
            }
        }
    }
}
