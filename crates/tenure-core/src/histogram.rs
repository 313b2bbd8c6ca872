//! Histograms of durations: cheap to record, and the counts of many instances can be added.
//!
//! Written for Prometheus, each bucket includes the ones below it:
//!
//! ```
//! use std::time::Duration;
//! use tenure::histogram::Histogram;
//!
//! let polls = Histogram::default();
//! polls.record(Duration::from_millis(7));
//! let mut total = 0;
//! for (bound, count) in polls.snapshot().buckets() {
//!     total += count;
//!     let bound = bound.map_or("+Inf".to_owned(), |bound| bound.as_secs_f64().to_string());
//!     println!("poll_seconds_bucket{{le=\"{bound}\"}} {total}");
//! }
//! assert_eq!(total, 1);
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Moment;

/// The upper bounds of all buckets but the last, which has none.
///
/// ```
/// use std::time::Duration;
/// use tenure::histogram::{BUCKET_BOUNDS, Histogram};
///
/// let histogram = Histogram::default();
/// histogram.record(Duration::from_millis(7)); // above 5 ms, and at most 10 ms
/// let counts: Vec<u64> = histogram.snapshot().buckets().map(|(_, count)| count).collect();
/// assert_eq!(counts.len(), BUCKET_BOUNDS.len() + 1);
/// assert_eq!((BUCKET_BOUNDS[3], counts[3]), (Duration::from_millis(10), 1));
/// ```
pub const BUCKET_BOUNDS: [Duration; 16] = [
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

const BUCKET_COUNT: usize = BUCKET_BOUNDS.len() + 1;

/// The largest recent duration. It falls again: a duration counts for one window at least, and for two at most.
///
/// One thread records, any may read.
///
/// ```
/// use std::time::Duration;
/// use tenure::histogram::{RECENT_MAX_WINDOW, RecentMax};
/// use tenure::time::Moment;
///
/// let (lag, start) = (RecentMax::default(), Moment::ZERO);
/// lag.record(start, Duration::from_secs(2));
/// lag.record(start + RECENT_MAX_WINDOW, Duration::from_millis(1));
/// assert_eq!(lag.read(start + RECENT_MAX_WINDOW), Duration::from_secs(2));
/// assert_eq!(lag.read(start + RECENT_MAX_WINDOW * 2), Duration::from_millis(1));
/// assert_eq!(lag.read(start + RECENT_MAX_WINDOW * 3), Duration::ZERO);
/// ```
#[derive(Debug, Default)]
#[doc(hidden)]
pub struct RecentMax {
    window: AtomicU64,
    now: AtomicU64,
    before: AtomicU64,
}

/// The window of [`RecentMax`].
#[doc(hidden)]
pub const RECENT_MAX_WINDOW: Duration = Duration::from_secs(30);

impl RecentMax {
    /// Records a duration that ends now.
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

    /// The largest duration of this window and the last.
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
    now.since(Moment::ZERO).as_secs() / RECENT_MAX_WINDOW.as_secs()
}

/// A histogram of durations, recorded from any thread.
///
/// ```
/// use std::time::Duration;
/// use tenure::histogram::Histogram;
///
/// let histogram = Histogram::default();
/// (1..=99).for_each(|_| histogram.record(Duration::from_millis(4)));
/// histogram.record(Duration::from_secs(4));
/// let snapshot = histogram.snapshot();
/// assert_eq!(snapshot.count(), 100);
/// assert!(snapshot.quantile(0.5) <= Some(Duration::from_millis(5)));
/// assert!(snapshot.quantile(0.995) > Some(Duration::from_secs(2)));
/// ```
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BUCKET_COUNT],
    sum_micros: AtomicU64,
}

impl Histogram {
    /// Records a duration.
    pub fn record(&self, span: Duration) {
        let step = BUCKET_BOUNDS.partition_point(|end| *end < span);
        if let Some(count) = self.counts.get(step) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_micros.fetch_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Everything recorded so far.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let counts = std::array::from_fn(|step| self.counts.get(step).map_or(0, |count| count.load(Ordering::Relaxed)));
        HistogramSnapshot { counts, sum_micros: self.sum_micros.load(Ordering::Relaxed) }
    }
}

/// The counts of a histogram: the number of durations in each [bucket](BUCKET_BOUNDS), and their sum.
///
/// ```
/// use std::time::Duration;
/// use tenure::histogram::Histogram;
///
/// let (one, other) = (Histogram::default(), Histogram::default());
/// one.record(Duration::from_millis(7));
/// other.record(Duration::from_millis(9));
/// let both = one.snapshot().merge(&other.snapshot());
/// assert_eq!((both.count(), both.sum()), (2, Duration::from_millis(16)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistogramSnapshot {
    counts: [u64; BUCKET_COUNT],
    sum_micros: u64,
}

impl HistogramSnapshot {
    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The sum of all durations.
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_micros)
    }

    /// The number of durations in each bucket, with its upper bound; the last bucket has none.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        self.counts.iter().enumerate().map(|(step, count)| (BUCKET_BOUNDS.get(step).copied(), *count))
    }

    /// The sum of both snapshots.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Self {
        let add = |step: usize| self.at(step).saturating_add(other.at(step));
        Self { counts: std::array::from_fn(add), sum_micros: self.sum_micros.saturating_add(other.sum_micros) }
    }

    /// What was recorded after an earlier snapshot. If the histogram was restarted since, that is everything.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        if (0..BUCKET_COUNT).any(|step| self.at(step) < earlier.at(step)) {
            return *self;
        }
        let less = |step: usize| self.at(step) - earlier.at(step);
        Self { counts: std::array::from_fn(less), sum_micros: self.sum_micros.saturating_sub(earlier.sum_micros) }
    }

    /// An estimate of this quantile, as precise as the buckets allow. `None` when nothing was recorded.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let wanted = (part.clamp(0.0, 1.0) * count as f64).ceil().max(1.0);
        let (mut below, mut from) = (0.0, Duration::ZERO);
        for (step, inside) in self.counts.iter().enumerate() {
            let inside = *inside as f64;
            // The last bucket has no upper bound to interpolate to.
            let end = BUCKET_BOUNDS.get(step).copied().unwrap_or(from);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_restarted_histogram_counts_from_zero() {
        let (old, new) = (Histogram::default(), Histogram::default());
        (0..3).for_each(|_| old.record(Duration::from_secs(1)));
        new.record(Duration::from_secs(1));
        assert_eq!(new.snapshot().since(&old.snapshot()), new.snapshot());
        assert_eq!(old.snapshot().since(&new.snapshot()).count(), 2);
    }

    proptest! {
        #[test]
        fn quantiles_fall_into_the_right_bucket(mut millis in proptest::collection::vec(0_u64..250_000, 1..200), part in 0.0..1.0_f64) {
            let histogram = Histogram::default();
            millis.iter().for_each(|span| histogram.record(Duration::from_millis(*span)));
            millis.sort_unstable();
            let at = ((part * millis.len() as f64).ceil() as usize).clamp(1, millis.len()) - 1;
            let exact = Duration::from_millis(millis[at]);
            let step = |span: Duration| BUCKET_BOUNDS.partition_point(|end| *end < span);
            let estimate = histogram.snapshot().quantile(part).unwrap();
            prop_assert_eq!(step(estimate.max(Duration::from_nanos(1))), step(exact), "{:?} for {:?}", estimate, exact);
        }
    }
}
