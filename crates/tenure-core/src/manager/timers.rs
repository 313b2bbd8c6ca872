//! A queue of wake-up times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Moment;

/// Moments and their keys, the earliest first.
#[derive(Debug)]
pub(super) struct Timers<K: Ord>(BinaryHeap<Reverse<(Moment, K)>>);

impl<K: Ord + Copy> Timers<K> {
    pub(super) fn new() -> Self {
        Self(BinaryHeap::new())
    }

    pub(super) fn add(&mut self, at: Moment, what: K) {
        self.0.push(Reverse((at, what)));
    }

    pub(super) fn next(&self) -> Option<Moment> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes an entry that is due.
    pub(super) fn pop_due(&mut self, now: Moment) -> Option<(Moment, K)> {
        if self.next()? > now {
            return None;
        }
        self.0.pop().map(|Reverse(due)| due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_timers_pop_in_order_and_the_others_stay() {
        let mut timers = Timers::new();
        for (at, what) in [(30, 'c'), (10, 'a'), (20, 'b')] {
            timers.add(Moment::from_nanos(at), what);
        }
        let due = |timers: &mut Timers<char>| timers.pop_due(Moment::from_nanos(20)).map(|(_, what)| what);
        assert_eq!([due(&mut timers), due(&mut timers), due(&mut timers)], [Some('a'), Some('b'), None]);
        assert_eq!(timers.next(), Some(Moment::from_nanos(30)));
    }
}
