//! Heartbeats.

use rusqlite::{OptionalExtension, Result, params};

use super::Rows;
use super::columns::{from_time, group_column, instance, time};
use crate::name::{Group, InstanceId};
use crate::store::{MembershipRequest, Reply};
use crate::time::ServerTime;
use tenure_core::ledger::HeartbeatRecord;

impl Rows<'_> {
    pub(super) fn apply_to_membership(&mut self, now: ServerTime, request: &MembershipRequest) -> Result<Reply> {
        match request {
            MembershipRequest::Heartbeat { group, instance, .. } | MembershipRequest::Leave { group, instance } => {
                self.apply_to_instance(group, instance, now, request)
            }
            MembershipRequest::List { group } => self.list_instances(now, group),
            MembershipRequest::Adopt { .. } | MembershipRequest::Scan { .. } => {
                Ok(self.ledger.apply_to_membership(now, request, &mut self.announcements))
            }
        }
    }

    fn apply_to_instance(
        &mut self,
        group: &Group,
        instance: &InstanceId,
        now: ServerTime,
        request: &MembershipRequest,
    ) -> Result<Reply> {
        let member = (group.clone(), instance.clone());
        let row = [self.namespace, group_column(group), instance.as_str()];
        let found = self
            .tx
            .prepare_cached(
                "SELECT record, expires FROM members WHERE namespace = ?1 AND circle = ?2 AND instance = ?3",
            )?
            .query_row(row, |row| Ok(HeartbeatRecord { record: row.get(0)?, expires: time(row, 1)? }))
            .optional()?;
        self.ledger.instances.extend(found.map(|beat| (member.clone(), beat)));
        let reply = self.ledger.apply_to_membership(now, request, &mut self.announcements);
        match self.ledger.instances.remove(&member) {
            Some(beat) => self
                .tx
                .prepare_cached(
                    "INSERT OR REPLACE INTO members (namespace, circle, instance, record, expires)
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute(params![row[0], row[1], row[2], beat.record, from_time(beat.expires)])?,
            None => self
                .tx
                .prepare_cached("DELETE FROM members WHERE namespace = ?1 AND circle = ?2 AND instance = ?3")?
                .execute(row)?,
        };
        Ok(reply)
    }

    fn list_instances(&mut self, now: ServerTime, group: &Group) -> Result<Reply> {
        self.tx
            .prepare_cached("DELETE FROM members WHERE namespace = ?1 AND expires <= ?2")?
            .execute(params![self.namespace, from_time(now)])?;
        let mut statement = self
            .tx
            .prepare_cached("SELECT instance, record, expires FROM members WHERE namespace = ?1 AND circle = ?2")?;
        let found = statement.query_map([self.namespace, group_column(group)], |row| {
            Ok(((group.clone(), instance(row, 0)?), HeartbeatRecord { record: row.get(1)?, expires: time(row, 2)? }))
        })?;
        self.ledger.instances = found.collect::<Result<_>>()?;
        let list = MembershipRequest::List { group: group.clone() };
        let reply = self.ledger.apply_to_membership(now, &list, &mut self.announcements);
        self.ledger.instances.clear();
        Ok(reply)
    }
}
