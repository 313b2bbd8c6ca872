//! Who counts as alive, as one instance sees it: a pure function of the heartbeats that it has read.
//!
//! A heartbeat can be believed for its ttl. But leases end before that, and nobody should take what is left of a dead instance
//! later than its leases end, so for placement an instance counts only while its heartbeat is not *late*: not longer past due than one
//! attempt to send it takes. One that is late after all, and lives, costs a few reads; its leases are its own as long as it renews them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::name::InstanceId;
use crate::store::Member;
use crate::time::Moment;

use super::{InstanceRecord, Status};

/// How an instance was last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What it says about itself. A program that is not Tenure's says nothing.
    pub record: Option<InstanceRecord>,
    /// From when on it is late, unless it is seen again.
    pub late_at: Moment,
}

impl Seen {
    /// Whether it says that it is leaving.
    pub fn is_draining(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.status == Status::Draining)
    }
}

/// What a reading has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RollCall {
    /// Who is there and was not.
    pub came: Vec<InstanceId>,
    /// Who was there and is gone, or late.
    pub went: Vec<InstanceId>,
    /// Whether anything else is different: what somebody holds, weighs, or that it leaves.
    pub changed: bool,
}

impl RollCall {
    /// Whether nothing has changed.
    pub fn is_quiet(&self) -> bool {
        self.came.is_empty() && self.went.is_empty() && !self.changed
    }
}

/// Who counts as alive.
///
/// ```
/// use std::time::Duration;
/// use tenure::InstanceId;
/// use tenure::fleet::{InstanceRecord, Roll};
/// use tenure::store::Member;
/// use tenure::time::Moment;
///
/// let record = InstanceRecord::new("api-1").encode();
/// let member = |remaining| Member { instance: InstanceId::new("api-1").unwrap(), record: record.clone(), remaining };
/// let mut roll = Roll::default();
/// let now = Moment::ZERO + Duration::from_secs(100);
/// assert_eq!(roll.call(now, vec![member(Duration::from_secs(29))]).came.len(), 1);
/// // Sent every ten seconds, and not for fifteen.
/// assert_eq!(roll.call(now + Duration::from_secs(14), vec![member(Duration::from_secs(15))]).went.len(), 1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Roll {
    alive: BTreeMap<InstanceId, Seen>,
}

impl Roll {
    /// Takes in a reading of all heartbeats.
    pub fn call(&mut self, now: Moment, members: Vec<Member>) -> RollCall {
        let alive: BTreeMap<InstanceId, Seen> = members
            .into_iter()
            .filter_map(|member| {
                let record = InstanceRecord::decode(&member.record);
                let late_in = late_in(record.as_ref(), member.remaining)?;
                Some((member.instance, Seen { record, late_at: now + late_in }))
            })
            .collect();
        let came = alive.keys().filter(|id| !self.alive.contains_key(*id)).cloned().collect();
        let went = self.alive.keys().filter(|id| !alive.contains_key(*id)).cloned().collect();
        let differs =
            |(id, seen): (&InstanceId, &Seen)| self.alive.get(id).is_some_and(|was| was.record != seen.record);
        let changed = alive.iter().any(differs);
        self.alive = alive;
        RollCall { came, went, changed }
    }

    /// Who counts as alive, by the last reading.
    pub fn alive(&self) -> impl Iterator<Item = (&InstanceId, &Seen)> {
        self.alive.iter()
    }

    /// How somebody was last seen who counts as alive.
    pub fn get(&self, instance: &InstanceId) -> Option<&Seen> {
        self.alive.get(instance)
    }

    /// Whether somebody counts as alive.
    pub fn is_alive(&self, instance: &InstanceId) -> bool {
        self.alive.contains_key(instance)
    }

    /// When somebody is late who is not seen again by then.
    pub fn next_doubt(&self) -> Option<Moment> {
        self.alive.values().map(|seen| seen.late_at).min()
    }
}

/// In how long an instance is late whose heartbeat has so much of its ttl left; `None` when it is already.
fn late_in(record: Option<&InstanceRecord>, remaining: Duration) -> Option<Duration> {
    let Some(InstanceRecord { heartbeat_every: every, heartbeat_ttl: ttl, .. }) = record else {
        // Nobody knows how often it beats: it can be believed for as long as it says.
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

    fn member(n: usize, remaining: u64, change: impl FnOnce(&mut InstanceRecord)) -> Member {
        let mut record = InstanceRecord::new(&format!("api-{n}"));
        record.started_at = std::time::UNIX_EPOCH;
        change(&mut record);
        let instance = InstanceId::new(&format!("api-{n}")).unwrap();
        Member { instance, record: record.encode(), remaining: secs(remaining) }
    }

    fn plain(n: usize, remaining: u64) -> Member {
        member(n, remaining, |_| {})
    }

    #[test]
    fn whoever_is_late_is_gone_although_its_heartbeat_is_there_and_comes_back_when_seen() {
        let mut roll = Roll::default();
        let now = Moment::ZERO + secs(100);
        let call = roll.call(now, vec![plain(1, 30), plain(2, 25)]);
        assert_eq!((call.came.len(), call.went.len()), (2, 0));
        assert_eq!(roll.next_doubt(), Some(now + secs(7)), "the second has been silent for five seconds");
        let call = roll.call(now + secs(8), vec![plain(1, 22), plain(2, 17)]);
        assert_eq!(call.went, [InstanceId::new("api-2").unwrap()]);
        let call = roll.call(now + secs(9), vec![plain(1, 30), plain(2, 30)]);
        assert_eq!(call.came, [InstanceId::new("api-2").unwrap()]);
    }

    #[test]
    fn what_an_instance_says_is_news_when_it_is_another() {
        let mut roll = Roll::default();
        let now = Moment::ZERO;
        roll.call(now, vec![plain(1, 30)]);
        assert!(roll.call(now + secs(1), vec![plain(1, 29)]).is_quiet());
        let holds = member(1, 29, |record| record.held = [("poll".to_owned(), 3)].into());
        assert!(roll.call(now + secs(2), vec![holds]).changed);
        let leaves = member(1, 29, |record| record.status = Status::Draining);
        assert!(roll.call(now + secs(2), vec![leaves]).changed);
        assert!(roll.alive().all(|(_, seen)| seen.is_draining()));
    }

    #[test]
    fn a_foreign_heartbeat_is_believed_for_its_ttl() {
        let mut roll = Roll::default();
        let foreign = |remaining| Member {
            instance: InstanceId::new("elsewhere").unwrap(),
            record: Vec::new(),
            remaining: secs(remaining),
        };
        roll.call(Moment::ZERO, vec![foreign(1)]);
        assert!(roll.is_alive(&InstanceId::new("elsewhere").unwrap()));
        assert_eq!(roll.call(Moment::ZERO, vec![foreign(0)]).went.len(), 1);
    }
}
