//! How long moves take.

use std::collections::BTreeMap;
use std::time::Duration;

use super::TargetName;
use crate::name::InstanceId;
use crate::time::Moment;

/// The limit of missing instances to remember. Beyond it, all start times of takeovers are dropped.
const MAX_MISSED_INSTANCES: usize = 1_000;

/// The start times of moves in flight.
#[derive(Debug, Default)]
pub(super) struct MoveTimer {
    handovers: BTreeMap<TargetName, Moment>,
    takeovers: BTreeMap<InstanceId, Moment>,
}

impl MoveTimer {
    pub(super) fn start_handover(&mut self, now: Moment, target: &TargetName) {
        self.handovers.insert(target.clone(), now);
    }

    /// The time since the decision to hand a target over.
    pub(super) fn finish_handover(&mut self, now: Moment, target: &TargetName) -> Option<Duration> {
        self.handovers.remove(target).map(|since| now.since(since))
    }

    pub(super) fn start_takeover(&mut self, now: Moment, instance: &InstanceId) {
        if self.takeovers.len() >= MAX_MISSED_INSTANCES {
            self.takeovers.clear();
        }
        self.takeovers.insert(instance.clone(), now);
    }

    /// The time since an instance was found missing. It may have held more targets.
    pub(super) fn finish_takeover(&self, now: Moment, instance: &InstanceId) -> Option<Duration> {
        self.takeovers.get(instance).map(|since| now.since(*since))
    }
}
