//! This instance's place in the fleet: a heartbeat that is sent now and then, from the keeper's thread, so that work which blocks the
//! program does not make it look dead.

use std::sync::Arc;
use std::time::Duration;

use super::Heartbeat;
use crate::name::InstanceId;
use crate::store::Request;
use crate::time::Moment;

/// A heartbeat that goes on.
pub(super) struct HeartbeatTimer {
    heartbeat: Arc<Heartbeat>,
    every: Duration,
    next: Moment,
}

impl HeartbeatTimer {
    /// Begins at once.
    pub(super) fn new(heartbeat: Arc<Heartbeat>, every: Duration) -> Self {
        Self { heartbeat, every, next: Moment::ZERO }
    }

    /// When the next is due.
    pub(super) fn due(&self) -> Moment {
        self.next
    }

    /// The next is due now.
    pub(super) fn fire_now(&mut self) {
        self.next = Moment::ZERO;
    }

    /// The heartbeat, if it is due.
    pub(super) fn take_due(&mut self, now: Moment, instance: &InstanceId) -> Option<Request> {
        if now < self.next {
            return None;
        }
        // Not all in step.
        self.next = now + self.every.mul_f64(0.9 + 0.1 * fastrand::f64());
        let Heartbeat { group, ttl, record } = &*self.heartbeat;
        let (group, ttl, record) = (group.clone(), *ttl, record.clone());
        Some(Request::Heartbeat { group, instance: instance.clone(), ttl, record })
    }

    /// The goodbye.
    pub(super) fn leave_request(&self, instance: &InstanceId) -> Request {
        Request::Leave { group: self.heartbeat.group.clone(), instance: instance.clone() }
    }
}
