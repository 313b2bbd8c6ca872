//! Heartbeats of instances.

use std::time::Duration;

use super::{HeartbeatRecord, Ledger};
use crate::name::{Group, InstanceId};
use crate::store::{Announcement, LiveInstance, MembershipRequest, Reply};
use crate::time::ServerTime;

impl Ledger {
    /// Carries out one request of this group.
    pub fn apply_to_membership(
        &mut self,
        now: ServerTime,
        request: &MembershipRequest,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        match request {
            MembershipRequest::Heartbeat { group, instance, ttl, record } => {
                self.beat(now, group, instance, *ttl, record, announcements)
            }
            MembershipRequest::Leave { group, instance } => self.leave(now, group, instance, announcements),
            MembershipRequest::List { group } => self.list_instances(now, group),
            // Only Tenure writes to this store, so every instance is in its index already.
            MembershipRequest::Adopt { .. } | MembershipRequest::Scan { .. } => Reply::Done,
        }
    }

    fn beat(
        &mut self,
        now: ServerTime,
        group: &Group,
        instance: &InstanceId,
        ttl: Duration,
        record: &[u8],
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        let beat = HeartbeatRecord { record: record.to_vec(), expires: now + ttl };
        let before = self.instances.insert((group.clone(), instance.clone()), beat);
        if before.is_none_or(|before| before.expires <= now) {
            announcements.push(Announcement::Joined { group: group.clone(), instance: instance.clone() });
        }
        Reply::Done
    }

    fn leave(
        &mut self,
        now: ServerTime,
        group: &Group,
        instance: &InstanceId,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        if self.instances.remove(&(group.clone(), instance.clone())).is_some_and(|beat| beat.expires > now) {
            announcements.push(Announcement::Left { group: group.clone(), instance: instance.clone() });
        }
        Reply::Done
    }

    fn list_instances(&mut self, now: ServerTime, group: &Group) -> Reply {
        self.instances.retain(|_, beat| beat.expires > now);
        let member = |((_, instance), beat): (&(Group, InstanceId), &HeartbeatRecord)| LiveInstance {
            instance: instance.clone(),
            record: beat.record.clone(),
            remaining: beat.expires.since(now),
        };
        Reply::Instances(self.instances.iter().filter(|((of, _), _)| of == group).map(member).collect())
    }
}
