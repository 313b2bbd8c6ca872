//! Numbers of a pool: how long moves of targets take, and how often work fails.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use super::TargetName;
use crate::histogram::Histogram;
use crate::name::InstanceId;

/// Numbers of a pool on this instance, since it started.
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
