//! The membership of a pool as one instance sees it: which instances are present, which it waits for, and which it
//! offers nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::fleet::{CrashBackoff, CrashHistory, InstanceLiveness, InstanceRecord, Liveness};
use crate::mutation::{Mutation, Mutations};
use crate::name::InstanceId;
use crate::placement::{FULL_WEIGHT, InstanceLoad, Presence};
use crate::store::LiveInstance;
use crate::time::Moment;

use super::io::EngineSettings;

/// An instance that did not accept an offer is offered nothing for this many settle windows.
const DECLINED_FOR_SETTLE_WINDOWS: u32 = 20;

/// Instances reconnect to a recovered store within this time.
const REJOIN_WINDOW: Duration = Duration::from_secs(5);

/// An instance that restarts within this time gets its targets back.
pub(super) const HAND_BACK_WINDOW: Duration = Duration::from_secs(600);

/// A crash within this time after an instance got work counts as early.
const EARLY_CRASH_WINDOW: Duration = Duration::from_secs(60);

/// An instance that received a target has published its new count within this time.
const MAX_REPORT_DELAY: Duration = Duration::from_secs(1);

/// The changes found by a read of heartbeats.
#[derive(Debug)]
pub(super) struct MembershipUpdate {
    /// Instances that have left.
    pub(super) left: Vec<InstanceId>,
    /// Whether an instance has joined.
    pub(super) joined: bool,
    /// Whether an instance's count, weight or status has changed.
    pub(super) changed: bool,
    /// Whether the set of instances that are awaited or offered nothing has changed.
    pub(super) exceptions_changed: bool,
    /// Whether the set of instances in crash backoff has changed.
    pub(super) backoffs_changed: bool,
    /// Whether this was the first read.
    pub(super) is_first: bool,
}

/// The other instances.
#[derive(Debug)]
pub(super) struct Membership {
    me: InstanceId,
    pool: String,
    settle: Duration,
    outage_grace: Duration,
    pub(super) mutations: Mutations,
    late_recheck_every: Duration,
    liveness: Liveness,
    /// The instances whose heartbeats were listed, late or not.
    listed: BTreeSet<InstanceId>,
    /// Whether heartbeats were ever read: before that the membership is unknown.
    has_read: bool,
    /// Instances that were present before an outage, with their number of targets, and until when they count.
    awaited: BTreeMap<InstanceId, (usize, Moment)>,
    /// When we last lost a term, because we may have been away, and when heartbeats were first read after that.
    lost_at: Option<Moment>,
    recovered_at: Option<Moment>,
    /// When heartbeats were last read.
    read_at: Moment,
    /// Instances that have just joined, and when that was seen.
    joined_at: BTreeMap<InstanceId, Moment>,
    /// How often instances have crashed.
    crash_history: CrashHistory,
    /// Since when instances were seen to have work.
    working_since: BTreeMap<InstanceId, Moment>,
    /// Instances with explicit names that are gone: the name, and since when.
    departed: BTreeMap<InstanceId, (String, Moment)>,
    /// When instances were last seen that were neither gone nor leaving.
    last_staying_at: BTreeMap<InstanceId, Moment>,
    /// Instances that were restarted: an earlier one had the same name.
    restarted: BTreeSet<InstanceId>,
    /// Instances whose heartbeats are late but not expired: they may be back.
    late: BTreeSet<InstanceId>,
    /// Instances that started while an earlier one of the same explicit name was listed. For each: the earlier ones
    /// that may be dead, and when the heartbeat listed then becomes late.
    suspects: BTreeMap<InstanceId, BTreeMap<InstanceId, Moment>>,
    /// Since when no earlier instance of our name is suspect, and when to read what the others publish about it.
    cleared_at: Option<Moment>,
    review_at: Option<Moment>,
    /// Instances that did not accept an offer or are in crash backoff, and until when they are offered nothing.
    capped_until: BTreeMap<InstanceId, Moment>,
    /// The counts of instances that we handed targets to, whatever they last published, and until when these apply.
    recently_given: BTreeMap<InstanceId, (usize, Moment)>,
}

impl Membership {
    pub(super) fn new(me: InstanceId, pool: &str, settings: &EngineSettings) -> Self {
        Self {
            me,
            pool: pool.to_owned(),
            settle: settings.settle,
            outage_grace: settings.outage_grace,
            mutations: Mutations::default(),
            late_recheck_every: settings.late_recheck_every,
            liveness: Liveness::default(),
            listed: BTreeSet::new(),
            has_read: false,
            awaited: BTreeMap::new(),
            lost_at: None,
            recovered_at: None,
            read_at: Moment::ZERO,
            joined_at: BTreeMap::new(),
            crash_history: CrashHistory::default(),
            working_since: BTreeMap::new(),
            departed: BTreeMap::new(),
            last_staying_at: BTreeMap::new(),
            restarted: BTreeSet::new(),
            late: BTreeSet::new(),
            suspects: BTreeMap::new(),
            cleared_at: None,
            review_at: None,
            capped_until: BTreeMap::new(),
            recently_given: BTreeMap::new(),
        }
    }

    /// Applies a read of all heartbeats. `seen_to_hold` returns the number of targets that an instance was seen to
    /// hold.
    pub(super) fn update(
        &mut self,
        now: Moment,
        members: Vec<LiveInstance>,
        seen_to_hold: impl Fn(&InstanceId) -> usize,
    ) -> MembershipUpdate {
        let said = self.loads(now, &seen_to_hold).into_iter();
        let before: BTreeMap<InstanceId, usize> = said
            .map(|load| (load.held.max(seen_to_hold(&load.instance)), load.instance))
            .map(|(held, id)| (id, held))
            .collect();
        let names = self.explicit_names();
        let waited = self.crash_counts(now);
        let listed: BTreeSet<InstanceId> = members.iter().map(|member| member.instance.clone()).collect();
        if self.lost_at.is_some_and(|lost| lost >= self.read_at) {
            self.recovered_at = Some(now);
        }
        self.read_at = now;
        let records =
            members.iter().filter_map(|member| Some((&member.instance, InstanceRecord::decode(&member.record)?)));
        let records: BTreeMap<InstanceId, InstanceRecord> =
            records.filter(|(_, record)| record.is_named).map(|(id, record)| (id.clone(), record)).collect();
        let mut delta = self.liveness.update(now, members);
        let is_first = !std::mem::replace(&mut self.has_read, true);
        delta.left.retain(|id| *id != self.me);
        for id in &delta.joined {
            self.suspect_earlier(id);
        }
        for id in &delta.left {
            let own_name = names.get(id).cloned().filter(|name| !self.is_name_shared(&names, name, id));
            if let Some(name) = &own_name {
                self.departed.insert(id.clone(), (name.clone(), now));
            }
            // An instance that has just received a target has not published it yet.
            let had_work = before.get(id).is_some_and(|held| *held > 0);
            let crashed_soon =
                self.working_since.remove(id).map_or(had_work, |since| now.since(since) < EARLY_CRASH_WINDOW);
            if let Some((held, until)) = before.get(id).zip(self.outage_grace_until(now)) {
                self.awaited.insert(id.clone(), (*held, until));
            } else if let Some(name) = own_name {
                // An instance that leaves regularly removes its heartbeat.
                if !listed.contains(id) {
                    self.crash_history.forgive(&name);
                } else if crashed_soon {
                    self.crash_history.record_crash(now, &name);
                    self.late.insert(id.clone());
                }
            }
        }
        self.remember_earlier(now, &records);
        self.departed.retain(|_, (_, since)| now.since(*since) < HAND_BACK_WINDOW);
        self.last_staying_at.retain(|_, at| now.since(*at) < HAND_BACK_WINDOW * 2);
        let staying: Vec<InstanceId> =
            self.liveness.alive().map(|(id, _)| id.clone()).filter(|id| self.is_staying(id)).collect();
        self.last_staying_at.extend(staying.into_iter().map(|id| (id, now)));
        for (id, seen) in self.liveness.alive() {
            let works = seen.record.as_ref().is_some_and(|record| record.held.get(&self.pool) > Some(&0));
            if works && *id != self.me {
                // We do not know for how long instances have worked that joined before us.
                self.working_since.entry(id.clone()).or_insert(if is_first { Moment::ZERO } else { now });
            }
        }
        self.late.retain(|id| listed.contains(id));
        self.listed = listed;
        let exceptions = self.exceptions();
        self.joined_at.retain(|_, came| *came + REJOIN_WINDOW > now);
        for id in &delta.joined {
            self.joined_at.insert(id.clone(), now);
            self.awaited.remove(id);
            self.capped_until.remove(id);
        }
        let cleared = self.clear_suspects();
        let begin = delta.joined.iter().filter(|id| !self.suspects.contains_key(*id)).chain(&cleared);
        let (begin, names) = (begin.cloned().collect::<Vec<_>>(), self.explicit_names());
        for id in &begin {
            self.admit(now, &names, id);
        }
        self.learn_own_backoff(now);
        self.restarted.retain(|id| self.liveness.is_alive(id));
        self.capped_until.retain(|_, until| *until > now);
        // An instance that was restarted under its name does not come back for its targets.
        let (departed, liveness) = (&self.departed, &self.liveness);
        let is_replaced = |id: &InstanceId| {
            let name = departed.get(id).map(|(name, _)| name.as_str());
            name.is_some() && liveness.alive().any(|(_, seen)| explicit_name(seen) == name)
        };
        self.awaited.retain(|id, (_, until)| *until > now && !is_replaced(id));
        self.recently_given.retain(|_, (_, until)| *until > now);
        MembershipUpdate {
            left: delta.left,
            joined: !delta.joined.is_empty(),
            changed: delta.changed,
            exceptions_changed: self.exceptions() != exceptions,
            backoffs_changed: self.crash_counts(now) != waited,
            is_first,
        }
    }

    /// The instances that are offered nothing, or awaited.
    fn exceptions(&self) -> BTreeSet<InstanceId> {
        self.capped_until.keys().chain(self.awaited.keys()).chain(self.suspects.keys()).cloned().collect()
    }

    /// The explicit names of the instances that count as alive.
    fn explicit_names(&self) -> BTreeMap<InstanceId, String> {
        let name = |(id, seen): (&InstanceId, &InstanceLiveness)| Some((id.clone(), explicit_name(seen)?.to_owned()));
        self.liveness.alive().filter_map(name).collect()
    }

    /// Whether another live instance has this name, too. Then the behaviour of one says nothing about the other.
    fn is_name_shared(&self, names: &BTreeMap<InstanceId, String>, name: &str, id: &InstanceId) -> bool {
        let suspects = |one: &InstanceId, other: &InstanceId| {
            self.suspects.get(one).is_some_and(|suspects| suspects.contains_key(other))
        };
        let is_other = |other: &InstanceId| other != id && !suspects(id, other) && !suspects(other, id);
        names.iter().any(|(other, known)| known == name && is_other(other))
    }

    /// Suspects the earlier instances of a new instance's name. They are dead, or share the name: their next heartbeats
    /// will tell.
    fn suspect_earlier(&mut self, id: &InstanceId) {
        let Some(seen) = self.liveness.get(id) else { return };
        let (Some(name), Some(record)) = (explicit_name(seen), &seen.record) else { return };
        let is_earlier =
            |earlier: &InstanceRecord| earlier.started_at < record.started_at && !earlier.is_leaving(&self.pool);
        let earlier: BTreeMap<InstanceId, Moment> = self
            .liveness
            .alive()
            .filter(|(_, seen)| explicit_name(seen) == Some(name) && seen.record.as_ref().is_some_and(is_earlier))
            .map(|(id, seen)| (id.clone(), seen.late_at))
            .collect();
        if !earlier.is_empty() {
            self.suspects.insert(id.clone(), earlier);
        }
    }

    /// Remembers instances that were already late when first seen: a later one of the same name was restarted.
    fn remember_earlier(&mut self, now: Moment, listed: &BTreeMap<InstanceId, InstanceRecord>) {
        for (id, earlier) in listed.iter().filter(|(id, _)| !self.liveness.is_alive(id)) {
            let is_earlier =
                |record: &InstanceRecord| record.name != earlier.name || record.started_at > earlier.started_at;
            if self.liveness.alive().filter_map(|(id, _)| listed.get(id)).all(is_earlier) {
                self.departed.entry(id.clone()).or_insert_with(|| (earlier.name.clone(), now));
            }
        }
    }

    /// Drops suspects that are gone or have sent a heartbeat. Returns the instances that have no suspects left.
    fn clear_suspects(&mut self) -> Vec<InstanceId> {
        let liveness = &self.liveness;
        let may_be_dead = |id: &InstanceId, late_at: Moment| {
            // The transit times of two replies differ by less than the timeout of one attempt.
            let slack = |seen: &InstanceLiveness| {
                seen.record.as_ref().map_or(Duration::ZERO, |record| record.heartbeat_every / 5)
            };
            liveness.get(id).is_some_and(|seen| seen.late_at <= late_at + slack(seen))
        };
        self.suspects.retain(|id, _| liveness.is_alive(id));
        let mut cleared = Vec::new();
        for (id, suspects) in &mut self.suspects {
            suspects.retain(|suspect, late_at| may_be_dead(suspect, *late_at));
            if suspects.is_empty() {
                cleared.push(id.clone());
            }
        }
        self.suspects.retain(|_, suspects| !suspects.is_empty());
        cleared
    }

    /// Admits an instance, or puts it into crash backoff if an earlier one of its name has crashed.
    fn admit(&mut self, now: Moment, names: &BTreeMap<InstanceId, String>, id: &InstanceId) {
        let name = names.get(id).filter(|name| !self.is_name_shared(names, name, id));
        if self.departed.remove(id).is_none() && name.is_some_and(|name| self.has_departed(name)) {
            self.restarted.insert(id.clone());
        }
        if self.late.remove(id) {
            name.iter().for_each(|name| self.crash_history.retract_crash(name));
            return;
        }
        if *id == self.me {
            self.cleared_at = Some(now);
            // By then every other instance has seen what we saw, and has published it.
            self.review_at = name.map(|_| now + self.late_recheck_every + MAX_REPORT_DELAY);
            return;
        }
        let trusted = name.map(|name| self.crash_history.eligible_at(now, name, self.settle));
        if let Some(until) = trusted.filter(|from| *from > now) {
            self.capped_until.insert(id.clone(), until);
        }
    }

    /// Learns from the other instances how often earlier instances of our name have crashed: we wait as long as they
    /// expect us to.
    fn learn_own_backoff(&mut self, now: Moment) {
        self.review_at = self.review_at.filter(|at| *at > now);
        let Some(cleared_at) = self.cleared_at.filter(|_| !self.suspects.contains_key(&self.me)) else { return };
        let others = self.liveness.alive().filter(|(id, _)| **id != self.me);
        let said = CrashBackoff::from_records(others.filter_map(|(_, seen)| seen.record.as_ref()));
        if let Some(said) = said.get(&self.me) {
            self.capped_until.insert(self.me.clone(), cleared_at + CrashHistory::delay(said.crashes, self.settle));
        }
    }

    /// The loads of all other instances that count as present. `seen_to_hold` returns the number of targets that an
    /// instance was seen to hold.
    pub(super) fn loads(&self, now: Moment, seen_to_hold: impl Fn(&InstanceId) -> usize) -> Vec<InstanceLoad> {
        let others = self.liveness.alive().filter(|(id, _)| **id != self.me);
        let mut loads: Vec<InstanceLoad> =
            others.filter_map(|(id, seen)| self.load(now, id, seen, &seen_to_hold)).collect();
        // Their targets are kept for them, and they are offered nothing.
        let awaited = self.awaited.iter().filter(|(id, (_, until))| *until > now && !self.liveness.is_alive(id));
        loads.extend(awaited.map(|(id, (held, _))| InstanceLoad {
            held: *held,
            presence: Presence::Excluded,
            ..InstanceLoad::new(id.clone())
        }));
        loads
    }

    fn load(
        &self,
        now: Moment,
        id: &InstanceId,
        seen: &InstanceLiveness,
        held: impl Fn(&InstanceId) -> usize,
    ) -> Option<InstanceLoad> {
        let instance = id.clone();
        let Some(record) = &seen.record else {
            // A program that is not Tenure's takes any target it likes, and does not learn of handovers.
            return Some(InstanceLoad { instance, weight: FULL_WEIGHT, held: held(id), presence: Presence::Excluded });
        };
        // An instance that is not in this pool has no load here.
        let held = (*record.held.get(&self.pool)?).max(self.given_count(now, id));
        let presence = match () {
            _ if record.is_leaving(&self.pool) => Presence::Draining,
            // It keeps its targets until its leases expire.
            _ if self.is_suspect(id) => Presence::Excluded,
            _ if record.is_unable(&self.pool) => Presence::Unable,
            _ if self.is_waiting(now, id) => Presence::Capped,
            _ => Presence::Ready,
        };
        Some(InstanceLoad { instance, weight: record.weight_in(&self.pool), held, presence })
    }

    /// Whether an instance may be dead: a later one has its name, and it has sent no heartbeat since that joined.
    fn is_suspect(&self, id: &InstanceId) -> bool {
        self.suspects.values().any(|suspects| suspects.contains_key(id))
    }

    /// Whether an instance is offered nothing for a while.
    pub(super) fn is_waiting(&self, now: Moment, id: &InstanceId) -> bool {
        self.suspects.contains_key(id) || self.capped_until.get(id).is_some_and(|until| *until > now)
    }

    /// When the next backoff ends, or when to check whether we are in one.
    pub(super) fn next_backoff_end(&self) -> Option<Moment> {
        self.capped_until.values().copied().chain(self.review_at).min()
    }

    /// The instances in crash backoff, with their number of crashes.
    fn crash_counts(&self, now: Moment) -> BTreeMap<InstanceId, u32> {
        self.crash_backoffs(now).into_iter().map(|(id, _, crashes)| (id, crashes)).collect()
    }

    /// The explicit name of an instance, if it has one.
    pub(super) fn own_name(&self, id: &InstanceId) -> Option<&str> {
        let record = self.liveness.get(id).and_then(|seen| seen.record.as_ref());
        match record {
            Some(record) => Some(record.name.as_str()).filter(|_| record.is_named),
            None => self.departed.get(id).map(|(name, _)| name.as_str()),
        }
    }

    /// Whether an instance of this name is gone and may come back.
    fn has_departed(&self, name: &str) -> bool {
        self.departed.values().any(|(departed, _)| departed == name)
    }

    /// The only live instance with this explicit name.
    pub(super) fn instance_named(&self, name: &str) -> Option<&InstanceId> {
        let mut all = self
            .liveness
            .alive()
            .filter(|(_, seen)| seen.record.as_ref().is_some_and(|record| record.is_named && record.name == name));
        match (all.next(), all.next()) {
            (Some((id, _)), None) => Some(id),
            _ => None,
        }
    }

    /// Whether an instance had stopped, or was about to, by a time: that is then the reason for its handovers.
    pub(super) fn had_stopped(&self, id: &InstanceId, by: Moment) -> bool {
        !self.is_staying(id) && self.last_staying_at.get(id).is_none_or(|stayed| by >= *stayed)
    }

    /// Whether an instance is staying: neither gone nor leaving.
    fn is_staying(&self, id: &InstanceId) -> bool {
        self.liveness
            .get(id)
            .is_some_and(|seen| seen.record.as_ref().is_none_or(|record| !record.is_leaving(&self.pool)))
    }

    /// Whether an instance has left or is about to. `false` for one whose heartbeat is only late.
    pub(super) fn has_left(&self, id: &InstanceId) -> bool {
        match self.liveness.get(id) {
            Some(_) => !self.is_staying(id),
            None => !self.listed.contains(id),
        }
    }

    /// Whether an instance was restarted: an earlier one had its name.
    pub(super) fn was_restarted(&self, id: &InstanceId) -> bool {
        self.restarted.contains(id)
    }

    /// Instances in crash backoff, with the remaining time and their number of crashes.
    pub(super) fn crash_backoffs(&self, now: Moment) -> Vec<(InstanceId, Duration, u32)> {
        let waits = |(id, until): (&InstanceId, &Moment)| {
            let crashes = self.own_name(id).map_or(0, |name| self.crash_history.crashes(now, name));
            (*until > now && crashes > 0).then(|| (id.clone(), until.since(now), crashes))
        };
        self.capped_until.iter().filter_map(waits).collect()
    }

    /// Whether heartbeats were ever read.
    pub(super) fn is_initialized(&self) -> bool {
        self.has_read
    }

    pub(super) fn is_alive(&self, instance: &InstanceId) -> bool {
        self.liveness.is_alive(instance)
    }

    /// Whether an instance is present and announces what happens to its targets. The targets of others have to be
    /// queried.
    pub(super) fn is_announcing(&self, instance: &InstanceId) -> bool {
        self.liveness.get(instance).is_some_and(|seen| seen.record.is_some())
    }

    pub(super) fn count(&self) -> usize {
        self.liveness.alive().count()
    }

    /// When the next instance becomes late, unless it is seen again by then.
    pub(super) fn next_late_at(&self) -> Option<Moment> {
        self.liveness.next_late_at()
    }

    /// Records the loss of a term: we, or all instances, may have been away.
    pub(super) fn record_loss(&mut self, now: Moment) {
        self.lost_at = Some(now);
    }

    /// Until when missing instances count as present, when we ourselves have just been away: for a while after the end of
    /// the outage, because the others need longer than we did to connect and to send a heartbeat.
    pub(super) fn outage_grace_until(&self, now: Moment) -> Option<Moment> {
        let recovered_at = self.recovered_at.filter(|_| !self.mutations.has(Mutation::OutageFromLoss));
        let since = recovered_at.max(self.lost_at)?;
        let until = since + self.outage_grace;
        (until > now).then_some(until)
    }

    /// When an instance was seen to join, if that was just now.
    pub(super) fn joined_at(&self, instance: &InstanceId) -> Option<Moment> {
        self.joined_at.get(instance).copied()
    }

    /// Until when an instance is awaited that is not back from an outage.
    pub(super) fn awaited_until(&self, now: Moment, instance: &InstanceId) -> Option<Moment> {
        self.awaited.get(instance).map(|(_, until)| *until).filter(|until| *until > now)
    }

    /// Until when any instance is awaited.
    pub(super) fn any_awaited_until(&self, now: Moment) -> Option<Moment> {
        self.awaited.values().map(|(_, until)| *until).filter(|until| *until > now).max()
    }

    /// Counts a target handed to an instance, which its heartbeat cannot show yet.
    pub(super) fn record_given(&mut self, now: Moment, receiver: &InstanceId) {
        let record = self.liveness.get(receiver).and_then(|seen| seen.record.as_ref());
        let said = record.and_then(|record| record.held.get(&self.pool)).copied().unwrap_or(0);
        let held = said.max(self.given_count(now, receiver)) + 1;
        self.recently_given.insert(receiver.clone(), (held, now + MAX_REPORT_DELAY));
    }

    fn given_count(&self, now: Moment, receiver: &InstanceId) -> usize {
        self.recently_given.get(receiver).filter(|(_, until)| *until > now).map_or(0, |(held, _)| *held)
    }

    /// Records that an instance did not accept an offer.
    pub(super) fn record_declined(&mut self, now: Moment, receiver: InstanceId) {
        self.recently_given.remove(&receiver);
        self.capped_until.insert(receiver, now + self.settle.saturating_mul(DECLINED_FOR_SETTLE_WINDOWS));
    }
}

/// The explicit name of an instance. Many instances may share a host's name, so one says nothing about another.
fn explicit_name(seen: &InstanceLiveness) -> Option<&str> {
    seen.record.as_ref().filter(|record| record.is_named).map(|record| record.name.as_str())
}
