//! The clock trait, and a manual clock for tests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Moment, Now};

/// A clock whose readings never go back and that keeps counting while the machine sleeps.
///
/// `SystemClock` is the real one. Decisions in this crate take a [`Now`] as an argument and
/// never read a clock themselves; the clock is read at the edge.
///
/// ```
/// use std::time::Duration;
/// use tenure::time::{LeaseClock, ManualClock, Moment};
///
/// fn is_over(clock: &dyn LeaseClock, deadline: Moment) -> bool {
///     clock.now() >= deadline
/// }
///
/// let clock = ManualClock::default(); // `SystemClock`, outside tests
/// let deadline = clock.now() + Duration::from_secs(30);
/// assert!(!is_over(&clock, deadline));
/// clock.advance(Duration::from_secs(30));
/// assert!(is_over(&clock, deadline));
/// ```
pub trait LeaseClock: Send + Sync {
    /// Reads both clocks together.
    fn read(&self) -> Now;

    /// The current moment.
    fn now(&self) -> Moment {
        self.read().moment
    }
}

/// A clock that moves only when [`advance`](Self::advance) is called.
///
/// ```
/// use std::time::Duration;
/// use tenure::time::{LeaseClock, ManualClock};
///
/// let clock = ManualClock::default();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(30));
/// assert_eq!(clock.now().since(before), Duration::from_secs(30));
/// ```
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Moves the clock forward.
    pub fn advance(&self, span: Duration) {
        let target = self.now() + span;
        self.0.fetch_max(target.as_nanos(), Ordering::AcqRel);
    }
}

impl LeaseClock for ManualClock {
    fn read(&self) -> Now {
        Now::undisturbed(Moment::from_nanos(self.0.load(Ordering::Acquire)))
    }
}
