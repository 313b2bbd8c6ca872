//! How long it takes until targets are with somebody else.

use std::collections::HashMap;
use std::time::Instant;

use super::Target;
use crate::meter::Meter;
use crate::name::InstanceId;

/// How long it took until targets were with somebody else, since this instance was started.
#[derive(Debug, Default)]
pub struct PoolMeters {
    /// From deciding that one is given away until its next holder has it, by those who gave.
    pub handovers: Meter,
    /// From missing its holder until somebody else has it, by those who took.
    pub takeovers: Meter,
}

/// What is on its way, and since when.
#[derive(Debug, Default)]
pub(super) struct Stopwatch {
    giving: HashMap<Target, Instant>,
    missed: HashMap<InstanceId, Instant>,
}

/// Those who are missed are remembered up to so many: after that nobody waits for their targets.
const REMEMBERED: usize = 1_000;

impl Stopwatch {
    pub(super) fn gives(&mut self, target: &Target) {
        self.giving.insert(target.clone(), Instant::now());
    }

    pub(super) fn gave(&mut self, target: &Target, handed_over: bool, meters: &PoolMeters) {
        if let Some(since) = self.giving.remove(target).filter(|_| handed_over) {
            meters.handovers.record(since.elapsed());
        }
    }

    pub(super) fn misses(&mut self, instance: &InstanceId) {
        if self.missed.len() >= REMEMBERED {
            self.missed.clear();
        }
        self.missed.insert(instance.clone(), Instant::now());
    }

    pub(super) fn took_from(&mut self, instance: &InstanceId, meters: &PoolMeters) {
        if let Some(since) = self.missed.get(instance) {
            meters.takeovers.record(since.elapsed());
        }
    }
}
