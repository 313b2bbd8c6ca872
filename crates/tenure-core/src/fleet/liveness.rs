//! Which instances count as alive, as one instance sees it: a pure function of the heartbeats it has read.
//!
//! A heartbeat is valid for its ttl. But leases expire earlier, and the targets of a dead instance should be taken over
//! when its leases expire. So for placement an instance counts only while its heartbeat is not *late*: overdue by more
//! than one attempt to send it takes. An instance that is late but alive costs a few reads; it keeps its leases as long
//! as it renews them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::name::InstanceId;
use crate::store::LiveInstance;
use crate::time::Moment;

use super::{InstanceRecord, InstanceStatus};

/// An instance as last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceLiveness {
    /// The record it published. `None` for a program that is not Tenure's.
    pub record: Option<InstanceRecord>,
    /// When it becomes late, unless it is seen again.
    pub late_at: Moment,
}

impl InstanceLiveness {
    /// Whether it is leaving.
    pub fn is_draining(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.status == InstanceStatus::Draining)
    }
}

/// The changes found by a read of heartbeats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipDelta {
    /// Instances that are new.
    pub joined: Vec<InstanceId>,
    /// Instances that are gone or late.
    pub left: Vec<InstanceId>,
    /// Whether anything else has changed: the count, weight or status of an instance.
    pub changed: bool,
}

impl MembershipDelta {
    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.joined.is_empty() && self.left.is_empty() && !self.changed
    }
}

/// The instances that count as alive.
///
/// ```
/// use std::time::Duration;
/// use tenure::InstanceId;
/// use tenure_core::fleet::{InstanceRecord, Liveness};
/// use tenure::store::LiveInstance;
/// use tenure::time::Moment;
///
/// let record = InstanceRecord::new("api-1", std::time::SystemTime::now()).encode();
/// let member = |remaining| LiveInstance { instance: InstanceId::new("api-1").unwrap(), record: record.clone(), remaining };
/// let mut liveness = Liveness::default();
/// let now = Moment::ZERO + Duration::from_secs(100);
/// assert_eq!(liveness.update(now, vec![member(Duration::from_secs(29))]).joined.len(), 1);
/// // Sent every ten seconds, but not for the last fifteen.
/// assert_eq!(liveness.update(now + Duration::from_secs(14), vec![member(Duration::from_secs(15))]).left.len(), 1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Liveness {
    alive: BTreeMap<InstanceId, InstanceLiveness>,
}

impl Liveness {
    /// Applies a read of all heartbeats.
    pub fn update(&mut self, now: Moment, members: Vec<LiveInstance>) -> MembershipDelta {
        let alive: BTreeMap<InstanceId, InstanceLiveness> = members
            .into_iter()
            .filter_map(|member| {
                let record = InstanceRecord::decode(&member.record);
                let time_until_late = time_until_late(record.as_ref(), member.remaining)?;
                Some((member.instance, InstanceLiveness { record, late_at: now + time_until_late }))
            })
            .collect();
        let joined = alive.keys().filter(|id| !self.alive.contains_key(*id)).cloned().collect();
        let left = self.alive.keys().filter(|id| !alive.contains_key(*id)).cloned().collect();
        let differs = |(id, seen): (&InstanceId, &InstanceLiveness)| {
            self.alive.get(id).is_some_and(|was| was.record != seen.record)
        };
        let changed = alive.iter().any(differs);
        self.alive = alive;
        MembershipDelta { joined, left, changed }
    }

    /// The instances that count as alive, by the last read.
    pub fn alive(&self) -> impl Iterator<Item = (&InstanceId, &InstanceLiveness)> {
        self.alive.iter()
    }

    /// An instance that counts as alive, as last seen.
    pub fn get(&self, instance: &InstanceId) -> Option<&InstanceLiveness> {
        self.alive.get(instance)
    }

    /// Whether an instance counts as alive.
    pub fn is_alive(&self, instance: &InstanceId) -> bool {
        self.alive.contains_key(instance)
    }

    /// When the next instance becomes late, unless it is seen again by then.
    pub fn next_late_at(&self) -> Option<Moment> {
        self.alive.values().map(|seen| seen.late_at).min()
    }
}

/// The time until an instance is late, from the remaining ttl of its heartbeat. `None` when it is late already.
fn time_until_late(record: Option<&InstanceRecord>, remaining: Duration) -> Option<Duration> {
    let Some(InstanceRecord { heartbeat_every: every, heartbeat_ttl: ttl, .. }) = record else {
        // Its heartbeat interval is unknown, so its heartbeat counts until it expires.
        return Some(remaining).filter(|remaining| !remaining.is_zero());
    };
    let allowed = *every + *every / 5;
    let age = ttl.saturating_sub(remaining);
    allowed.checked_sub(age).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn member(n: usize, remaining: u64, change: impl FnOnce(&mut InstanceRecord)) -> LiveInstance {
        let mut record = InstanceRecord::new(&format!("api-{n}"), std::time::UNIX_EPOCH);
        change(&mut record);
        let instance = InstanceId::new(&format!("api-{n}")).unwrap();
        LiveInstance { instance, record: record.encode(), remaining: secs(remaining) }
    }

    fn plain(n: usize, remaining: u64) -> LiveInstance {
        member(n, remaining, |_| {})
    }

    #[test]
    fn a_late_instance_is_not_alive_until_its_next_heartbeat() {
        let mut liveness = Liveness::default();
        let now = Moment::ZERO + secs(100);
        let delta = liveness.update(now, vec![plain(1, 30), plain(2, 25)]);
        assert_eq!((delta.joined.len(), delta.left.len()), (2, 0));
        assert_eq!(liveness.next_late_at(), Some(now + secs(7)), "the second has been silent for five seconds");
        let delta = liveness.update(now + secs(8), vec![plain(1, 22), plain(2, 17)]);
        assert_eq!(delta.left, [InstanceId::new("api-2").unwrap()]);
        let delta = liveness.update(now + secs(9), vec![plain(1, 30), plain(2, 30)]);
        assert_eq!(delta.joined, [InstanceId::new("api-2").unwrap()]);
    }

    #[test]
    fn a_changed_record_is_a_change() {
        let mut liveness = Liveness::default();
        let now = Moment::ZERO;
        liveness.update(now, vec![plain(1, 30)]);
        assert!(liveness.update(now + secs(1), vec![plain(1, 29)]).is_empty());
        let holds = member(1, 29, |record| record.held = [("poll".to_owned(), 3)].into());
        assert!(liveness.update(now + secs(2), vec![holds]).changed);
        let leaves = member(1, 29, |record| record.status = InstanceStatus::Draining);
        assert!(liveness.update(now + secs(2), vec![leaves]).changed);
        assert!(liveness.alive().all(|(_, seen)| seen.is_draining()));
    }

    #[test]
    fn a_foreign_heartbeat_counts_for_its_ttl() {
        let mut liveness = Liveness::default();
        let foreign = |remaining| LiveInstance {
            instance: InstanceId::new("elsewhere").unwrap(),
            record: Vec::new(),
            remaining: secs(remaining),
        };
        liveness.update(Moment::ZERO, vec![foreign(1)]);
        assert!(liveness.is_alive(&InstanceId::new("elsewhere").unwrap()));
        assert_eq!(liveness.update(Moment::ZERO, vec![foreign(0)]).left.len(), 1);
    }
}
