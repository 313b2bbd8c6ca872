//! Ticks that keep their phase, whoever holds the target.
//!
//! The mark of the last tick stands beside the lease, in the store's time. A tick is claimed before it is given out, and a target is given
//! away only between ticks; so a move from one instance to another neither skips a tick nor repeats one. One whose holder died in the
//! middle of it is not repeated.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::placement::TargetScore;
use crate::store::{Outcome, Reply, Request};
use crate::tenure::{PublishError, TermHandle, ask};
use crate::time::ServerTime;

/// The record beside the lease.
const RECORD: &str = "due";

/// How long is slept at a stretch: clocks may be set meanwhile.
const NAP: Duration = Duration::from_secs(60);

impl TermHandle {
    /// Ticks at this interval, at least a millisecond. The phase is the target's own, so that targets do not fire together, and stays
    /// the same whoever holds it.
    pub fn every(&self, interval: Duration) -> Ticks {
        Ticks { term: self.clone(), interval: interval.max(Duration::from_millis(1)), last: None }
    }
}

/// Ticks of a target.
#[derive(Debug)]
pub struct Ticks {
    term: TermHandle,
    interval: Duration,
    /// The last tick that was claimed, by us or by whoever held the target before. `None` before that was read.
    last: Option<ServerTime>,
}

/// One tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick(ServerTime);

impl Tick {
    /// When it was due, by the store's clock.
    pub fn due(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.0.as_micros())
    }

    /// The same in milliseconds since 1970.
    pub fn due_millis(&self) -> u64 {
        self.0.as_micros() / 1_000
    }
}

impl Ticks {
    /// Waits until the next tick is due, and claims it. `None` when the lease is to be let go of, is over or is about to be: end
    /// the work then. Ticks that were missed are made up for by one, at once.
    ///
    /// # Cancel safety
    /// A tick that was claimed just then is not given out again.
    pub async fn next(&mut self) -> Option<Tick> {
        let last = match self.last {
            Some(last) => last,
            // Where nobody has ever ticked, the first is the next.
            None => *self.last.insert(self.read().await?.unwrap_or_else(|| self.term.server_time())),
        };
        let phase = phase(self.term.name().label(), self.interval);
        let due = loop {
            if self.term.is_leaving() {
                return None;
            }
            let now = self.term.server_time();
            let due = next_due(now, last, self.interval, phase);
            let left = Duration::from_micros(due.as_micros().saturating_sub(now.as_micros()));
            if left.is_zero() {
                break due;
            }
            tokio::select! {
                () = tokio::time::sleep(left.min(NAP)) => {}
                () = self.term.leaving() => return None,
            }
        };
        self.claim(due).await?;
        self.last = Some(due);
        Some(Tick(due))
    }

    /// The mark that whoever held the target before has left. Asked until it is known, or nothing more should be begun.
    async fn read(&self) -> Option<Option<ServerTime>> {
        let shared = &self.term.0;
        let limit = shared.settings.attempt_timeout();
        loop {
            let read = Request::Read { name: shared.name.clone(), record: RECORD.to_owned() };
            if let Outcome::Answered(Reply::Record(found)) = ask(&shared.door, read, limit).await {
                let mark = found.and_then(|record| String::from_utf8(record.value).ok()?.parse().ok());
                return Some(mark.map(ServerTime::from_micros));
            }
            tokio::select! {
                () = tokio::time::sleep(limit) => {}
                () = self.term.leaving() => return None,
            }
        }
    }

    /// Writes the mark, under the token. While the store cannot be asked the tick waits, and nothing is begun.
    async fn claim(&self, due: ServerTime) -> Option<()> {
        loop {
            match self.term.publish(RECORD, due.as_micros().to_string()).await {
                Ok(()) => return Some(()),
                Err(PublishError::Refused(_)) => return None,
                Err(PublishError::Store(_)) => tokio::select! {
                    () = tokio::time::sleep(self.term.0.settings.attempt_timeout()) => {}
                    () = self.term.leaving() => return None,
                },
            }
        }
    }
}

/// Where in every interval a target's ticks are, in microseconds.
fn phase(target: &str, interval: Duration) -> u64 {
    TargetScore::of(target).spread(micros(interval))
}

/// When the next tick is due: the first after the last one, or the latest of those that were missed.
fn next_due(now: ServerTime, last: ServerTime, interval: Duration, phase: u64) -> ServerTime {
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
