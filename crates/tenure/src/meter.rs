//! How long things take, counted in steps: cheap to write down, and counts of many instances can be added up.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::Moment;

/// The upper ends of all steps but the last, which has none.
pub const STEPS: [Duration; 16] = [
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(300),
];

const COUNTS: usize = STEPS.len() + 1;

/// The longest span of the last while. It falls again: a span counts for one window at least, and for two at most.
///
/// One thread records, any may read.
///
/// ```
/// use std::time::Duration;
/// use tenure::meter::{RECENT_WINDOW, RecentMax};
/// use tenure::time::Moment;
///
/// let (lag, start) = (RecentMax::default(), Moment::ZERO);
/// lag.record(start, Duration::from_secs(2));
/// lag.record(start + RECENT_WINDOW, Duration::from_millis(1));
/// assert_eq!(lag.read(start + RECENT_WINDOW), Duration::from_secs(2));
/// assert_eq!(lag.read(start + RECENT_WINDOW * 2), Duration::from_millis(1));
/// assert_eq!(lag.read(start + RECENT_WINDOW * 3), Duration::ZERO);
/// ```
#[derive(Debug, Default)]
pub struct RecentMax {
    window: AtomicU64,
    now: AtomicU64,
    before: AtomicU64,
}

/// The window of [`RecentMax`].
pub const RECENT_WINDOW: Duration = Duration::from_secs(30);

impl RecentMax {
    /// Counts a span that ends now.
    pub fn record(&self, now: Moment, span: Duration) {
        let window = window_of(now);
        let last = self.window.load(Ordering::Relaxed);
        if window != last {
            let before = if window == last + 1 { self.now.load(Ordering::Relaxed) } else { 0 };
            self.before.store(before, Ordering::Relaxed);
            self.now.store(0, Ordering::Relaxed);
            self.window.store(window, Ordering::Relaxed);
        }
        self.now.fetch_max(u64::try_from(span.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The longest of this window and the last.
    pub fn read(&self, now: Moment) -> Duration {
        let (latest, before) = (self.now.load(Ordering::Relaxed), self.before.load(Ordering::Relaxed));
        Duration::from_micros(match window_of(now).saturating_sub(self.window.load(Ordering::Relaxed)) {
            0 => latest.max(before),
            1 => latest,
            _ => 0,
        })
    }
}

fn window_of(now: Moment) -> u64 {
    now.since(Moment::ZERO).as_secs() / RECENT_WINDOW.as_secs()
}

/// Spans that are written down as they come, from any thread.
///
/// ```
/// use std::time::Duration;
/// use tenure::meter::Meter;
///
/// let meter = Meter::default();
/// (1..=99).for_each(|_| meter.record(Duration::from_millis(4)));
/// meter.record(Duration::from_secs(4));
/// let read = meter.read();
/// assert_eq!(read.count(), 100);
/// assert!(read.quantile(0.5) <= Some(Duration::from_millis(5)));
/// assert!(read.quantile(0.995) > Some(Duration::from_secs(2)));
/// ```
#[derive(Debug, Default)]
pub struct Meter {
    counts: [AtomicU64; COUNTS],
    micros: AtomicU64,
}

impl Meter {
    /// Writes a span down.
    pub fn record(&self, span: Duration) {
        let step = STEPS.partition_point(|end| *end < span);
        if let Some(count) = self.counts.get(step) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.micros.fetch_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// All that was written down so far.
    pub fn read(&self) -> Spans {
        let counts = std::array::from_fn(|step| self.counts.get(step).map_or(0, |count| count.load(Ordering::Relaxed)));
        Spans { counts, micros: self.micros.load(Ordering::Relaxed) }
    }
}

/// Spans that were counted: how many fell into each [step](STEPS), and how long all were together.
///
/// They are written as words and read back, of whichever instance:
///
/// ```
/// use tenure::meter::{Meter, Spans};
///
/// let meter = Meter::default();
/// meter.record(std::time::Duration::from_millis(7));
/// let spans = meter.read();
/// assert_eq!(spans.to_string().parse(), Ok(spans));
/// assert!("7".parse::<Spans>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    counts: [u64; COUNTS],
    micros: u64,
}

impl Spans {
    /// How many.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// How long all were together.
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.micros)
    }

    /// How many fell into each step; the last has no upper end.
    pub fn steps(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        self.counts.iter().enumerate().map(|(step, count)| (STEPS.get(step).copied(), *count))
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let add = |step: usize| self.at(step).saturating_add(other.at(step));
        Self { counts: std::array::from_fn(add), micros: self.micros.saturating_add(other.micros) }
    }

    /// What came after an earlier reading. A meter that was begun anew has nothing before.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        if (0..COUNTS).any(|step| self.at(step) < earlier.at(step)) {
            return *self;
        }
        let less = |step: usize| self.at(step) - earlier.at(step);
        Self { counts: std::array::from_fn(less), micros: self.micros.saturating_sub(earlier.micros) }
    }

    /// The span that this part of all is not longer than, as well as steps can tell. `None` when there are none.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let wanted = (part.clamp(0.0, 1.0) * count as f64).ceil().max(1.0);
        let (mut below, mut from) = (0.0, Duration::ZERO);
        for (step, inside) in self.counts.iter().enumerate() {
            let inside = *inside as f64;
            // Nobody knows how far beyond the last end.
            let end = STEPS.get(step).copied().unwrap_or(from);
            if below + inside >= wanted {
                return Some(from + (end - from).mul_f64((wanted - below) / inside));
            }
            below += inside;
            from = end;
        }
        Some(from)
    }

    fn at(&self, step: usize) -> u64 {
        self.counts.get(step).copied().unwrap_or(0)
    }
}

impl fmt::Display for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.micros)?;
        self.counts.iter().try_for_each(|count| write!(f, ",{count}"))
    }
}

/// What is no such counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these are no counted spans")]
pub struct NoSpans;

impl FromStr for Spans {
    type Err = NoSpans;

    fn from_str(text: &str) -> Result<Self, NoSpans> {
        let mut numbers = text.split(',').map(|number| number.parse::<u64>().map_err(|_| NoSpans));
        let micros = numbers.next().ok_or(NoSpans)??;
        let counts = numbers.collect::<Result<Vec<_>, _>>()?.try_into().map_err(|_| NoSpans)?;
        Ok(Self { counts, micros })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_meter_that_was_begun_anew_has_nothing_before() {
        let (old, new) = (Meter::default(), Meter::default());
        (0..3).for_each(|_| old.record(Duration::from_secs(1)));
        new.record(Duration::from_secs(1));
        assert_eq!(new.read().since(&old.read()), new.read());
        assert_eq!(old.read().since(&new.read()).count(), 2);
    }

    proptest! {
        #[test]
        fn quantiles_are_right_to_a_step(mut millis in proptest::collection::vec(0_u64..250_000, 1..200), part in 0.0..1.0_f64) {
            let meter = Meter::default();
            millis.iter().for_each(|span| meter.record(Duration::from_millis(*span)));
            millis.sort_unstable();
            let at = ((part * millis.len() as f64).ceil() as usize).clamp(1, millis.len()) - 1;
            let exact = Duration::from_millis(millis[at]);
            let step = |span: Duration| STEPS.partition_point(|end| *end < span);
            let told = meter.read().quantile(part).unwrap();
            prop_assert_eq!(step(told.max(Duration::from_nanos(1))), step(exact), "{:?} for {:?}", told, exact);
        }

        #[test]
        fn what_is_no_counts_is_refused(text in ".*") {
            if let Ok(spans) = text.parse::<Spans>() {
                prop_assert_eq!(spans.to_string().parse(), Ok(spans));
            }
        }
    }
}
