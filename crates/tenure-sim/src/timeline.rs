//! Simulated time and the event queue.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt;
use std::time::Duration;

/// True time of the world. Processes cannot read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SimTime(u64);

impl SimTime {
    /// Nanoseconds since the world began.
    pub fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time this much earlier, but not before the world began.
    pub fn earlier_by(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The time since `earlier`, or zero if it is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for SimTime {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:11.6}", self.0 as f64 / 1e9)
    }
}

/// A queue of events in order of time. Events at the same time keep the order in which they were scheduled.
#[derive(Debug)]
pub struct Timeline<E> {
    now: SimTime,
    scheduled: u64,
    queue: BinaryHeap<Scheduled<E>>,
}

#[derive(Debug)]
struct Scheduled<E> {
    at: SimTime,
    order: u64,
    event: E,
}

impl<E> Default for Timeline<E> {
    fn default() -> Self {
        Self { now: SimTime::default(), scheduled: 0, queue: BinaryHeap::new() }
    }
}

impl<E> Timeline<E> {
    /// The time of the last event taken.
    pub fn now(&self) -> SimTime {
        self.now
    }

    /// Schedules an event at a time, or now if that time has passed.
    pub fn schedule(&mut self, at: SimTime, event: E) {
        self.scheduled += 1;
        self.queue.push(Scheduled { at: at.max(self.now), order: self.scheduled, event });
    }

    /// Takes the next event up to the given end.
    pub fn next(&mut self, end: SimTime) -> Option<E> {
        if self.queue.peek().is_none_or(|next| next.at > end) {
            self.now = end;
            return None;
        }
        let next = self.queue.pop()?;
        self.now = next.at;
        Some(next.event)
    }
}

impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap returns the greatest element first, so the earliest event must be the greatest.
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Scheduled<E> {}
