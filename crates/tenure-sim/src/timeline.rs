//! The world's own time, and the queue of what happens next.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt;
use std::time::Duration;

/// True time: what a clock on the wall of the world would show. No process can read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SimTime(u64);

impl SimTime {
    /// Nanoseconds since the world began.
    pub fn as_nanos(self) -> u64 {
        self.0
    }

    /// So much earlier, but not before the world began.
    pub fn earlier_by(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The time since `earlier`, zero when it is not earlier.
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

/// What happens next, in order of time; things at the same time happen in the order they were scheduled.
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
    /// The time of the event that was taken last.
    pub fn now(&self) -> SimTime {
        self.now
    }

    /// Lets something happen at a time, or now if that has passed.
    pub fn schedule(&mut self, at: SimTime, event: E) {
        self.scheduled += 1;
        self.queue.push(Scheduled { at: at.max(self.now), order: self.scheduled, event });
    }

    /// Takes the next event that happens before the end.
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
        // The heap gives the greatest first, so the earliest must be the greatest.
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
