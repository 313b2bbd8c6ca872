//! The store's clock, estimated from the times in its replies.

use std::time::Duration;

use crate::time::{Moment, ServerTime};

/// How long an observation counts although later ones differ. Limited because clocks drift apart.
const OBSERVATION_VALID_FOR: Duration = Duration::from_secs(5);

/// A clock that is off by more than this was set.
const CLOCK_STEP_MICROS: i64 = 1_000_000;

/// The store's clock minus the lease clock.
///
/// A reply is read some time after the store wrote its time into it, and later still in a batch. The best of several
/// observations is therefore the one in which the store's clock is furthest ahead.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServerClock {
    /// In microseconds.
    offset: i64,
    observed_at: Option<Moment>,
}

impl ServerClock {
    /// Records a time that the store has reported.
    pub(super) fn observe(&mut self, now: Moment, server: ServerTime) {
        let offset = signed(server.as_micros()) - signed(now.as_nanos() / 1_000);
        let is_better = offset >= self.offset || self.offset - offset > CLOCK_STEP_MICROS;
        if is_better || self.observed_at.is_none_or(|at| now.since(at) > OBSERVATION_VALID_FOR) {
            *self = Self { offset, observed_at: Some(now) };
        }
    }

    /// The offset, in microseconds.
    pub(super) fn offset(&self) -> i64 {
        self.offset
    }

    /// The time of the store's clock at this moment.
    pub(super) fn at(&self, moment: Moment) -> ServerTime {
        server_time(moment, self.offset)
    }
}

/// The time of the store's clock at this moment, with this offset in microseconds.
pub fn server_time(moment: Moment, offset: i64) -> ServerTime {
    let micros = signed(moment.as_nanos() / 1_000).saturating_add(offset);
    ServerTime::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// The moment at which the store's clock shows this time, with this offset in microseconds.
pub fn local_moment(server: ServerTime, offset: i64) -> Moment {
    let micros = signed(server.as_micros()).saturating_sub(offset);
    Moment::from_nanos(u64::try_from(micros).unwrap_or(0).saturating_mul(1_000))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_replies_do_not_move_the_clock_back_and_a_clock_step_does() {
        let at = |millis: u64| Moment::from_nanos(millis * 1_000_000);
        let server = |millis: i64| ServerTime::from_micros(u64::try_from((1_000_000 + millis) * 1_000).unwrap());
        let mut clock = ServerClock::default();
        clock.observe(at(100), server(99));
        assert_eq!(clock.at(at(200)), server(199), "a millisecond in transit");
        clock.observe(at(140), server(100));
        assert_eq!(clock.at(at(200)), server(199), "the first of a batch, read with the last");
        clock.observe(at(150), ServerTime::from_micros(server(150).as_micros() - 500));
        assert!(clock.at(at(200)) > server(199), "a better observation");
        clock.observe(at(160), server(160 - 5_000));
        assert_eq!(clock.at(at(200)), server(200 - 5_000), "set back");
        clock.observe(at(20_000), server(15_000 - 3));
        assert_eq!(clock.at(at(20_000)), server(15_000 - 3), "a better observation expires");
        assert_eq!(local_moment(clock.at(at(7)), clock.offset()), at(7));
    }
}
