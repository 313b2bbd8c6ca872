//! The heartbeats of this instance in the fleet. They are sent from the keeper's thread, so that work that blocks the
//! program does not make the instance look dead.

use std::sync::Arc;
use std::time::Duration;

use super::Heartbeat;
use crate::name::InstanceId;
use crate::store::MembershipRequest;
use crate::time::Moment;

/// Sends a heartbeat at an interval.
pub(super) struct HeartbeatTimer {
    heartbeat: Arc<Heartbeat>,
    every: Duration,
    next: Moment,
}

impl HeartbeatTimer {
    /// Creates a timer whose first heartbeat is due at once.
    pub(super) fn new(heartbeat: Arc<Heartbeat>, every: Duration) -> Self {
        Self { heartbeat, every, next: Moment::ZERO }
    }

    /// When the next heartbeat is due.
    pub(super) fn due(&self) -> Moment {
        self.next
    }

    /// Makes the next heartbeat due now.
    pub(super) fn fire_now(&mut self) {
        self.next = Moment::ZERO;
    }

    /// The heartbeat, if it is due.
    pub(super) fn take_due(&mut self, now: Moment, instance: &InstanceId) -> Option<MembershipRequest> {
        if now < self.next {
            return None;
        }
        // Jitter, so that instances do not beat in lockstep.
        self.next = now + self.every.mul_f64(0.9 + 0.1 * fastrand::f64());
        let Heartbeat { group, ttl, record } = &*self.heartbeat;
        let (group, ttl, record) = (group.clone(), *ttl, record.clone());
        Some(MembershipRequest::Heartbeat { group, instance: instance.clone(), ttl, record })
    }

    /// The request that removes the heartbeat.
    pub(super) fn leave_request(&self, instance: &InstanceId) -> MembershipRequest {
        MembershipRequest::Leave { group: self.heartbeat.group.clone(), instance: instance.clone() }
    }
}
