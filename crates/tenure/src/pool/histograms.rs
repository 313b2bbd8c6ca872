//! How long it takes until targets are with somebody else.

use std::collections::HashMap;
use std::time::Instant;

use super::Target;
use crate::histogram::Histogram;
use crate::name::InstanceId;

/// How long it took until targets were with somebody else, since this instance was started.
#[derive(Debug, Default)]
pub struct PoolHistograms {
    /// From deciding that one is given away until its next holder has it, by those who gave.
    pub handovers: Histogram,
    /// From missing its holder until somebody else has it, by those who took.
    pub takeovers: Histogram,
}

/// What is on its way, and since when.
#[derive(Debug, Default)]
pub(super) struct MoveTimer {
    handover_started: HashMap<Target, Instant>,
    takeover_started: HashMap<InstanceId, Instant>,
}

/// Those who are missed are remembered up to so many: after that nobody waits for their targets.
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
