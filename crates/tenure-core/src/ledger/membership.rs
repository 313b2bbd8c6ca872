//! Heartbeats of instances, and the indexes that make scans unnecessary.

use std::time::Duration;

use super::{HeartbeatRecord, Ledger};
use crate::name::{Group, InstanceId};
use crate::store::{Announcement, LiveInstance, Reply};
use crate::time::ServerTime;

impl Ledger {
    pub(super) fn beat(
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

    pub(super) fn leave(
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

    pub(super) fn list_instances(&mut self, now: ServerTime, group: &Group) -> Reply {
        self.instances.retain(|_, beat| beat.expires > now);
        let member = |((_, instance), beat): (&(Group, InstanceId), &HeartbeatRecord)| LiveInstance {
            instance: instance.clone(),
            record: beat.record.clone(),
            remaining: beat.expires.since(now),
        };
        Reply::Instances(self.instances.iter().filter(|((of, _), _)| of == group).map(member).collect())
    }

    pub(super) fn index_add(
        &mut self,
        index: &str,
        entry: &str,
        announced: bool,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        if self.indexes.entry(index.to_owned()).or_default().insert(entry.to_owned()) && announced {
            announcements.push(Announcement::IndexChanged { index: index.to_owned() });
        }
        Reply::Done
    }

    pub(super) fn index_remove(
        &mut self,
        index: &str,
        entry: &str,
        announced: bool,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        if self.indexes.get_mut(index).is_some_and(|entries| entries.remove(entry)) && announced {
            announcements.push(Announcement::IndexChanged { index: index.to_owned() });
        }
        Reply::Done
    }

    pub(super) fn index_list(&self, index: &str) -> Reply {
        Reply::Index(self.indexes.get(index).into_iter().flatten().cloned().collect())
    }
}
