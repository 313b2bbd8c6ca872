//! The heartbeats of this instance in the fleet. The manager sends them beside the renewals, so that work that blocks the
//! program does not make the instance look dead.

use std::sync::Arc;
use std::time::Duration;

use crate::name::{Group, InstanceId};
use crate::store::{MembershipRequest, Outcome};
use crate::time::Moment;

/// The record that an instance publishes about itself.
#[derive(Debug)]
pub struct Heartbeat {
    /// The group of instances.
    pub group: Group,
    /// How long the record is valid.
    pub ttl: Duration,
    /// The record.
    pub record: Vec<u8>,
}

impl Heartbeat {
    /// The request that publishes the record.
    pub(super) fn request(&self, instance: &InstanceId) -> MembershipRequest {
        let (group, ttl, record) = (self.group.clone(), self.ttl, self.record.clone());
        MembershipRequest::Heartbeat { group, instance: instance.clone(), ttl, record }
    }

    /// The request that removes an instance from the group.
    pub(super) fn leave_request(&self, instance: &InstanceId) -> MembershipRequest {
        MembershipRequest::Leave { group: self.group.clone(), instance: instance.clone() }
    }
}

/// Sends a heartbeat at an interval.
#[derive(Debug)]
pub(super) struct HeartbeatTimer {
    heartbeat: Arc<Heartbeat>,
    every: Duration,
    next: Moment,
    /// Since when each heartbeat has failed.
    failing_since: Option<Moment>,
}

impl HeartbeatTimer {
    /// Creates a timer whose first heartbeat is due at once.
    pub(super) fn new(heartbeat: Arc<Heartbeat>, every: Duration) -> Self {
        Self { heartbeat, every, next: Moment::ZERO, failing_since: None }
    }

    /// When the next heartbeat is due.
    pub(super) fn due(&self) -> Moment {
        self.next
    }

    /// Makes the next heartbeat due now.
    pub(super) fn fire_now(&mut self) {
        self.next = Moment::ZERO;
    }

    /// Records the outcome of a heartbeat. Returns whether they have failed for so long that none is valid.
    pub(super) fn record_outcome(&mut self, now: Moment, group: &Group, outcome: &Outcome) -> bool {
        if *group != self.heartbeat.group {
            return false;
        }
        match outcome {
            Outcome::Answered(_) => self.failing_since = None,
            Outcome::Failed(_) => _ = self.failing_since.get_or_insert(now),
            Outcome::Unknown(_) => {}
        }
        self.failing_since.is_some_and(|since| now >= since + self.heartbeat.ttl)
    }

    /// The heartbeat, if it is due.
    pub(super) fn take_due(
        &mut self,
        now: Moment,
        instance: &InstanceId,
        rng: &mut fastrand::Rng,
    ) -> Option<MembershipRequest> {
        if now < self.next {
            return None;
        }
        // Jitter, so that instances do not beat in lockstep.
        self.next = now + self.every.mul_f64(0.9 + 0.1 * rng.f64());
        Some(self.heartbeat.request(instance))
    }

    /// The request that removes the heartbeat.
    pub(super) fn leave_request(&self, instance: &InstanceId) -> MembershipRequest {
        self.heartbeat.leave_request(instance)
    }
}
