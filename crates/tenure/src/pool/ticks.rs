//! Ticks that keep their phase, whoever holds the target.
//!
//! The mark of the last tick stands beside the lease, in the store's time. A tick is claimed before it is given out, and a target is given
//! away only between ticks; so a move from one instance to another neither skips a tick nor repeats one. One whose holder died in the
//! middle of it is not repeated.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::due::{next_due, phase};
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
            match self.term.note(RECORD, due.as_micros().to_string()).await {
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
