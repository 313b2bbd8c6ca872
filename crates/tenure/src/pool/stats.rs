//! Numbers of a pool: how long moves of targets take, and how often work fails.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use super::TargetName;
use crate::histogram::Histogram;
use crate::name::InstanceId;

/// Numbers of a pool on this instance, since it started.
///
/// ```
/// use std::sync::atomic::Ordering;
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let pool = tenure.pool("poll").targets(["eu-1"]).run(async |_, _| Err("no route".into())).start()?;
/// # while pool.stats().work_errors.load(Ordering::Relaxed) == 0 {
/// #     tokio::time::sleep(std::time::Duration::from_millis(5)).await;
/// # }
/// let stats = pool.stats();
/// assert_eq!(stats.work_errors.load(Ordering::Relaxed), 1); // it is restarted after a backoff
/// println!("half of all handovers took at most {:?}", stats.handovers.snapshot().quantile(0.5));
/// # pool.stop().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct PoolStats {
    /// From the decision to hand a target over until its next holder has it, measured by the giver.
    pub handovers: Histogram,
    /// From the detection of a missing holder until the next one has its target, measured by the next holder.
    pub takeovers: Histogram,
    /// How often work returned an error.
    pub work_errors: AtomicU64,
    /// How often work panicked.
    pub work_panics: AtomicU64,
}

/// The start times of moves in flight.
#[derive(Debug, Default)]
pub(super) struct MoveTimer {
    handover_started: HashMap<TargetName, Instant>,
    takeover_started: HashMap<InstanceId, Instant>,
}

/// The limit of missing instances to remember. Beyond it, all start times of takeovers are dropped.
const MAX_MISSED_INSTANCES: usize = 1_000;

impl MoveTimer {
    pub(super) fn start_handover(&mut self, target: &TargetName) {
        self.handover_started.insert(target.clone(), Instant::now());
    }

    pub(super) fn finish_handover(&mut self, target: &TargetName, handed_over: bool, stats: &PoolStats) {
        if let Some(since) = self.handover_started.remove(target).filter(|_| handed_over) {
            stats.handovers.record(since.elapsed());
        }
    }

    pub(super) fn start_takeover(&mut self, instance: &InstanceId) {
        if self.takeover_started.len() >= MAX_MISSED_INSTANCES {
            self.takeover_started.clear();
        }
        self.takeover_started.insert(instance.clone(), Instant::now());
    }

    pub(super) fn finish_takeover(&mut self, instance: &InstanceId, stats: &PoolStats) {
        if let Some(since) = self.takeover_started.get(instance) {
            stats.takeovers.record(since.elapsed());
        }
    }
}
