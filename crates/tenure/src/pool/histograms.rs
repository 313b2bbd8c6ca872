//! How long moves of targets take.

use std::collections::HashMap;
use std::time::Instant;

use super::Target;
use crate::histogram::Histogram;
use crate::name::InstanceId;

/// How long moves of targets took, since this instance started.
#[derive(Debug, Default)]
pub struct PoolHistograms {
    /// From the decision to hand a target over until its next holder has it, measured by the giver.
    pub handovers: Histogram,
    /// From the detection of a missing holder until the next one has its target, measured by the next holder.
    pub takeovers: Histogram,
}

/// The start times of moves in flight.
#[derive(Debug, Default)]
pub(super) struct MoveTimer {
    handover_started: HashMap<Target, Instant>,
    takeover_started: HashMap<InstanceId, Instant>,
}

/// The limit of missing instances to remember. Beyond it, all start times of takeovers are dropped.
const MAX_MISSED_INSTANCES: usize = 1_000;

impl MoveTimer {
    pub(super) fn start_handover(&mut self, target: &Target) {
        self.handover_started.insert(target.clone(), Instant::now());
    }

    pub(super) fn finish_handover(&mut self, target: &Target, handed_over: bool, histograms: &PoolHistograms) {
        if let Some(since) = self.handover_started.remove(target).filter(|_| handed_over) {
            histograms.handovers.record(since.elapsed());
        }
    }

    pub(super) fn start_takeover(&mut self, instance: &InstanceId) {
        if self.takeover_started.len() >= MAX_MISSED_INSTANCES {
            self.takeover_started.clear();
        }
        self.takeover_started.insert(instance.clone(), Instant::now());
    }

    pub(super) fn finish_takeover(&mut self, instance: &InstanceId, histograms: &PoolHistograms) {
        if let Some(since) = self.takeover_started.get(instance) {
            histograms.takeovers.record(since.elapsed());
        }
    }
}
