//! Clocks that run too fast or too slow, jump, and freeze.

use std::time::Duration;

use tenure_core::time::{MergedClock, Now, ServerTime};

use crate::timeline::SimTime;

/// Reading of the server's clock when the world begins.
const SERVER_EPOCH_MICROS: u64 = 1_700_000_000_000_000;

/// The two clocks of one machine, merged by the same code that merges the real ones.
#[derive(Debug)]
pub struct LocalClock {
    rate_ppm: i64,
    anchor: SimTime,
    boot_at_anchor: i64,
    wall_shift: i64,
    frozen: bool,
    merged: MergedClock,
}

impl LocalClock {
    /// Creates a clock that runs this many millionths too fast.
    pub fn new(now: SimTime, rate_ppm: i64) -> Self {
        Self {
            rate_ppm,
            anchor: now,
            boot_at_anchor: 0,
            wall_shift: 0,
            frozen: false,
            merged: MergedClock::starting_at(0, 0),
        }
    }

    /// Reads the lease clock and the steady clock.
    pub fn read(&self, now: SimTime) -> Now {
        let boot = self.boot(now);
        self.merged.read(boot, boot.saturating_add(self.wall_shift))
    }

    /// True time that passes while this clock's boot time advances by `span`.
    pub fn sim_span(&self, span: Duration) -> Duration {
        scale(span, 1_000_000, 1_000_000 + self.rate_ppm)
    }

    /// Sets the wall clock forward or back.
    pub fn step_wall(&mut self, shift_nanos: i64) {
        self.wall_shift = self.wall_shift.saturating_add(shift_nanos);
    }

    /// Stops every clock of the machine, as a hypervisor can.
    pub fn freeze(&mut self, now: SimTime) {
        self.boot_at_anchor = self.boot(now);
        self.anchor = now;
        self.frozen = true;
    }

    /// Resumes the clocks from where they stopped.
    pub fn thaw(&mut self, now: SimTime) {
        self.anchor = now;
        self.frozen = false;
    }

    fn boot(&self, now: SimTime) -> i64 {
        if self.frozen {
            return self.boot_at_anchor;
        }
        let elapsed = scale(now.since(self.anchor), 1_000_000 + self.rate_ppm, 1_000_000);
        self.boot_at_anchor.saturating_add(i64::try_from(elapsed.as_nanos()).unwrap_or(i64::MAX))
    }
}

/// The store's clock: wall time with its own rate, which can be stepped.
#[derive(Debug)]
pub struct SimServerClock {
    rate_ppm: i64,
    shift_micros: i64,
}

impl SimServerClock {
    /// Creates a clock that runs this many millionths too fast.
    pub fn new(rate_ppm: i64) -> Self {
        Self { rate_ppm, shift_micros: 0 }
    }

    /// Reads the clock.
    pub fn read(&self, now: SimTime) -> ServerTime {
        let elapsed = scale(Duration::from_nanos(now.as_nanos()), 1_000_000 + self.rate_ppm, 1_000_000);
        let micros = SERVER_EPOCH_MICROS.saturating_add(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX));
        ServerTime::from_micros(micros.saturating_add_signed(self.shift_micros))
    }

    /// Sets the clock forward or back.
    pub fn step(&mut self, shift_micros: i64) {
        self.shift_micros = self.shift_micros.saturating_add(shift_micros);
    }
}

fn scale(span: Duration, numerator: i64, denominator: i64) -> Duration {
    let (numerator, denominator) = (numerator.max(1) as u128, denominator.max(1) as u128);
    Duration::from_nanos(u64::try_from(span.as_nanos() * numerator / denominator).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use tenure_core::time::Moment;

    use super::*;

    #[test]
    fn a_frozen_clock_stands_still_and_a_wall_clock_step_back_is_ignored() {
        let second = Duration::from_secs(1);
        let start = SimTime::default();
        let mut clock = LocalClock::new(start, 0);
        clock.step_wall(-3_600_000_000_000);
        assert_eq!(clock.read(start + second).moment.since(Moment::ZERO), second);
        clock.freeze(start + second);
        assert_eq!(clock.read(start + second * 60).moment.since(Moment::ZERO), second);
        clock.thaw(start + second * 60);
        assert_eq!(clock.read(start + second * 61).moment.since(Moment::ZERO), second * 2);
    }
}
