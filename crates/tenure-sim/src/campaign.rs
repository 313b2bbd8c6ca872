//! Runs many worlds on every core and sums up their results.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::mutation::SimMutation;
use crate::promise::Measurements;
use crate::world::{Violation, World, WorldOptions, WorldOutcome};

/// The results of many worlds.
#[derive(Debug, Default)]
pub struct Summary {
    /// Number of worlds run.
    pub worlds: u64,
    /// Simulated time that passed in them.
    pub simulated: Duration,
    /// Number of occurrences of each kind of event.
    pub counts: BTreeMap<&'static str, u64>,
    /// Effects of faults outside the promise, which are measured and not judged.
    pub measurements: Measurements,
    /// The lowest failing seed and its violation.
    pub failure: Option<(u64, Violation)>,
}

/// Runs the worlds of these seeds and stops at the first failure.
pub fn run(first: u64, count: u64, mutation: Option<SimMutation>, jobs: usize) -> Summary {
    run_each(first, count, jobs, |seed| World::run(seed, WorldOptions { mutation, ..WorldOptions::default() }))
}

/// Like [`run`], with any kind of world.
pub fn run_each(first: u64, count: u64, jobs: usize, world: impl Fn(u64) -> WorldOutcome + Sync) -> Summary {
    let next = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let summary = Mutex::new(Summary::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                let mut own = Summary::default();
                while !failed.load(Ordering::Relaxed) {
                    let offset = next.fetch_add(1, Ordering::Relaxed);
                    if offset >= count {
                        break;
                    }
                    let seed = first.wrapping_add(offset);
                    let outcome = world(seed);
                    own.worlds += 1;
                    own.simulated += outcome.simulated;
                    for (what, count) in outcome.counts {
                        *own.counts.entry(what).or_default() += count;
                    }
                    own.add_measurements(outcome.measurements);
                    if let Some(violation) = outcome.violation {
                        own.failure = Some((seed, violation));
                        failed.store(true, Ordering::Relaxed);
                    }
                }
                summary.lock().unwrap_or_else(PoisonError::into_inner).merge(own);
            });
        }
    });
    summary.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Summary {
    fn merge(&mut self, other: Self) {
        self.worlds += other.worlds;
        self.simulated += other.simulated;
        for (what, count) in other.counts {
            *self.counts.entry(what).or_default() += count;
        }
        self.add_measurements(other.measurements);
        self.failure = match (self.failure.take(), other.failure) {
            (Some(one), Some(two)) => Some(if one.0 <= two.0 { one } else { two }),
            (one, two) => one.or(two),
        };
    }

    fn add_measurements(&mut self, measurements: Measurements) {
        for (what, (count, longest)) in measurements {
            let entry = self.measurements.entry(what).or_default();
            entry.0 += count;
            entry.1 = entry.1.max(longest);
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} worlds, {:.0} simulated minutes", self.worlds, self.simulated.as_secs_f64() / 60.0)?;
        for (what, count) in &self.counts {
            writeln!(f, "  {count:>10}  {what}")?;
        }
        if !self.measurements.is_empty() {
            writeln!(f, "measured, not judged:")?;
        }
        for (what, (count, longest)) in &self.measurements {
            match longest {
                0.0 => writeln!(f, "  {count:>10}  {what}")?,
                longest => writeln!(f, "  {count:>10}  {what}, longest {longest:.2} ttl")?,
            }
        }
        Ok(())
    }
}
