//! Requests about membership.

use std::time::Duration;

use redis::Cmd;

use super::{CommandEncoder, Commands, cmd, flag, millis};
use crate::name::{Group, InstanceId};
use crate::store::redis::scripts::Script;
use crate::store::{Announcement, MembershipRequest};

impl CommandEncoder {
    pub(super) fn encode_membership_request(&self, request: &MembershipRequest) -> Commands {
        let keys = &self.keys;
        match request {
            MembershipRequest::Heartbeat { group, instance, ttl, record } => {
                let mut beat = self.instance_script(Script::Heartbeat, group, instance);
                self.add_heartbeat_args(&mut beat, group, instance, *ttl, record);
                // The index is in another hash slot. It comes first: an entry without a heartbeat is harmless.
                let mut indexed = self.evalsha(Script::IndexInstance, &[&keys.instance_index(group)]);
                indexed.arg(millis(*ttl)).arg(instance.as_str());
                Commands { before: Some(indexed), last: beat }
            }
            MembershipRequest::Leave { group, instance } => {
                let mut leave = self.instance_script(Script::Leave, group, instance);
                let left = Announcement::Left { group: group.clone(), instance: instance.clone() };
                leave.arg(left.encode()).arg(&keys.channel);
                let indexed = cmd("ZREM").arg(keys.instance_index(group)).arg(instance.as_str()).take();
                Commands { before: Some(indexed), last: leave }
            }
            MembershipRequest::List { group } => {
                let mut command = self.evalsha(Script::Instances, &[&keys.instance_index(group)]);
                let (before, after) = keys.instance_record_affixes(group);
                command.arg(keys.heartbeat_prefix(group)).arg(before).arg(after);
                command.into()
            }
            MembershipRequest::Adopt { group, name } => {
                // The expiry is unknown: listing the instances checks whether the heartbeat still exists.
                let indexed = cmd("ZADD").arg(keys.instance_index(group)).arg("+inf").arg(name).take();
                let joined = Announcement::Joined { group: group.clone(), instance: InstanceId::foreign(name) };
                let announced = cmd("PUBLISH").arg(&keys.channel).arg(joined.encode()).take();
                Commands { before: Some(indexed), last: announced }
            }
            MembershipRequest::Scan { cursor } => self.scan(keys.heartbeat_prefix(&Group::FLEET), *cursor).into(),
        }
    }

    pub(super) fn add_heartbeat_args(
        &self,
        command: &mut Cmd,
        group: &Group,
        instance: &InstanceId,
        ttl: Duration,
        record: &[u8],
    ) {
        let joined = Announcement::Joined { group: group.clone(), instance: instance.clone() };
        command.arg(millis(ttl)).arg(record).arg(flag(group.prefix().is_some()));
        command.arg(joined.encode()).arg(&self.keys.channel);
    }

    /// A script about an instance.
    fn instance_script(&self, script: Script, group: &Group, instance: &InstanceId) -> Cmd {
        self.evalsha(script, &[&self.keys.heartbeat(group, instance), &self.keys.instance_record(group, instance)])
    }
}
