//! Who else is there, as one instance sees it: whom it counts on, whom it waits for, and whom it offers nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::fleet::{Conduct, HeldBack, InstanceRecord, Roll, Seen};
use crate::name::InstanceId;
use crate::placement::{FULL_WEIGHT, Peer, Presence};
use crate::store::Member;
use crate::time::Moment;

use super::signal::EngineSettings;

/// An instance that did not take what it was offered is offered nothing for this many settle windows.
const SULKING: u32 = 20;

/// A store that is back is reached again within this.
const REUNION: Duration = Duration::from_secs(5);

/// An instance that is restarted within this time gets back what it had.
pub(super) const RETURN_WITHIN: Duration = Duration::from_secs(600);

/// An instance that crashes within this time of being given work has crashed soon.
const SOON: Duration = Duration::from_secs(60);

/// Within this time whoever is given something has told everybody else that it has it.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// What a reading of heartbeats has changed.
#[derive(Debug)]
pub(super) struct Turnout {
    /// Who was there and is not any more.
    pub(super) went: Vec<InstanceId>,
    /// Whether somebody has come.
    pub(super) came: bool,
    /// Whether somebody holds, weighs or says something else than before.
    pub(super) changed: bool,
    /// Whether other instances are offered nothing, or waited for, than before.
    pub(super) exceptions_changed: bool,
    /// Whether other instances wait for their share than before.
    pub(super) others_wait: bool,
    /// Whether heartbeats were never read before.
    pub(super) first: bool,
}

/// The others.
#[derive(Debug)]
pub(super) struct Company {
    me: InstanceId,
    pool: String,
    settle: Duration,
    forgiveness: Duration,
    doubt_every: Duration,
    roll: Roll,
    /// Whose heartbeats were listed, late or not.
    listed: BTreeSet<InstanceId>,
    /// Whether heartbeats were read at all: before that nobody knows who else is there.
    called: bool,
    /// Who was there before an outage, with how many targets, and until when it counts.
    ghosts: BTreeMap<InstanceId, (usize, Moment)>,
    /// When we last lost something: we may have been away. And when heartbeats were first read after that.
    lost_at: Option<Moment>,
    back_at: Option<Moment>,
    /// When heartbeats were last read.
    called_at: Moment,
    /// Who has just come, and when that was seen.
    came: BTreeMap<InstanceId, Moment>,
    /// Who has vanished how often.
    conduct: Conduct,
    /// Since when instances were seen to have work.
    works_since: BTreeMap<InstanceId, Moment>,
    /// Instances with a name of their own that are gone: the name, and since when.
    gone: BTreeMap<InstanceId, (String, Moment)>,
    /// When instances were last seen that were there to stay.
    stayed_at: BTreeMap<InstanceId, Moment>,
    /// Instances that were restarted: an earlier one had the same name.
    returned: BTreeSet<InstanceId>,
    /// Whose heartbeats are late and have not ended: they may be back.
    late: BTreeSet<InstanceId>,
    /// Instances that were started while an earlier one of the same explicit name was listed: the earlier ones that may be dead, and from when
    /// on the heartbeat is late that was listed then.
    suspects: BTreeMap<InstanceId, BTreeMap<InstanceId, Moment>>,
    /// Since when no earlier instance of our name is suspected, and when to see what the others say of it.
    cleared_at: Option<Moment>,
    review_at: Option<Moment>,
    /// Who did not take what it was offered, or has a habit of vanishing, and until when it is offered nothing.
    stuck: BTreeMap<InstanceId, Moment>,
    /// How much those hold to whom we gave something, whatever they last said, and until when that counts.
    given: BTreeMap<InstanceId, (usize, Moment)>,
}

impl Company {
    pub(super) fn new(me: InstanceId, pool: &str, settings: &EngineSettings) -> Self {
        Self {
            me,
            pool: pool.to_owned(),
            settle: settings.settle,
            forgiveness: settings.forgiveness,
            doubt_every: settings.doubt_every,
            roll: Roll::default(),
            listed: BTreeSet::new(),
            called: false,
            ghosts: BTreeMap::new(),
            lost_at: None,
            back_at: None,
            called_at: Moment::ZERO,
            came: BTreeMap::new(),
            conduct: Conduct::default(),
            works_since: BTreeMap::new(),
            gone: BTreeMap::new(),
            stayed_at: BTreeMap::new(),
            returned: BTreeSet::new(),
            late: BTreeSet::new(),
            suspects: BTreeMap::new(),
            cleared_at: None,
            review_at: None,
            stuck: BTreeMap::new(),
            given: BTreeMap::new(),
        }
    }

    /// Takes in a reading of all heartbeats, knowing who was seen to hold how much.
    pub(super) fn call(
        &mut self,
        now: Moment,
        members: Vec<Member>,
        seen_to_hold: impl Fn(&InstanceId) -> usize,
    ) -> Turnout {
        let said = self.peers(now, &seen_to_hold).into_iter();
        let before: BTreeMap<InstanceId, usize> = said
            .map(|peer| (peer.held.max(seen_to_hold(&peer.instance)), peer.instance))
            .map(|(held, id)| (id, held))
            .collect();
        let names = self.explicit_names();
        let waited = self.waiting(now);
        let listed: BTreeSet<InstanceId> = members.iter().map(|member| member.instance.clone()).collect();
        if self.lost_at.is_some_and(|lost| lost >= self.called_at) {
            self.back_at = Some(now);
        }
        self.called_at = now;
        let records =
            members.iter().filter_map(|member| Some((&member.instance, InstanceRecord::decode(&member.record)?)));
        let records: BTreeMap<InstanceId, InstanceRecord> =
            records.filter(|(_, record)| record.is_named).map(|(id, record)| (id.clone(), record)).collect();
        let mut call = self.roll.call(now, members);
        let first = !std::mem::replace(&mut self.called, true);
        call.went.retain(|id| *id != self.me);
        for id in &call.came {
            self.suspect_earlier(id);
        }
        for id in &call.went {
            let own_name = names.get(id).cloned().filter(|name| !self.is_shared(&names, name, id));
            if let Some(name) = &own_name {
                self.gone.insert(id.clone(), (name.clone(), now));
            }
            // Whoever was given something just now has not said so itself yet.
            let had_work = before.get(id).is_some_and(|held| *held > 0);
            let crashed_soon = self.works_since.remove(id).map_or(had_work, |since| now.since(since) < SOON);
            if let Some((held, until)) = before.get(id).zip(self.forgives(now)) {
                self.ghosts.insert(id.clone(), (*held, until));
            } else if let Some(name) = own_name.filter(|_| crashed_soon && listed.contains(id)) {
                // Whoever leaves as it should leaves no heartbeat behind.
                self.conduct.vanished(now, &name);
                self.late.insert(id.clone());
            }
        }
        self.remember_earlier(now, &records);
        self.gone.retain(|_, (_, since)| now.since(*since) < RETURN_WITHIN);
        self.stayed_at.retain(|_, at| now.since(*at) < RETURN_WITHIN * 2);
        let staying: Vec<InstanceId> =
            self.roll.alive().map(|(id, _)| id.clone()).filter(|id| self.stays(id)).collect();
        self.stayed_at.extend(staying.into_iter().map(|id| (id, now)));
        for (id, seen) in self.roll.alive() {
            let works = seen.record.as_ref().is_some_and(|record| record.held.get(&self.pool) > Some(&0));
            if works && *id != self.me {
                // For how long those have worked that were there before us, we do not know.
                self.works_since.entry(id.clone()).or_insert(if first { Moment::ZERO } else { now });
            }
        }
        self.late.retain(|id| listed.contains(id));
        self.listed = listed;
        let exceptions = self.exceptions();
        self.came.retain(|_, came| *came + REUNION > now);
        for id in &call.came {
            self.came.insert(id.clone(), now);
            self.ghosts.remove(id);
            self.stuck.remove(id);
        }
        let cleared = self.clear();
        let begin = call.came.iter().filter(|id| !self.suspects.contains_key(*id)).chain(&cleared);
        let (begin, names) = (begin.cloned().collect::<Vec<_>>(), self.explicit_names());
        for id in &begin {
            self.begins(now, &names, id);
        }
        self.learn_own_wait(now);
        self.returned.retain(|id| self.roll.is_alive(id));
        self.stuck.retain(|_, until| *until > now);
        // One that was restarted does not come back for what it had.
        let (gone, roll) = (&self.gone, &self.roll);
        let is_replaced = |id: &InstanceId| {
            let name = gone.get(id).map(|(name, _)| name.as_str());
            name.is_some() && roll.alive().any(|(_, seen)| explicit_name(seen) == name)
        };
        self.ghosts.retain(|id, (_, until)| *until > now && !is_replaced(id));
        self.given.retain(|_, (_, until)| *until > now);
        Turnout {
            went: call.went,
            came: !call.came.is_empty(),
            changed: call.changed,
            exceptions_changed: self.exceptions() != exceptions,
            others_wait: self.waiting(now) != waited,
            first,
        }
    }

    /// The instances that are offered nothing, or waited for.
    fn exceptions(&self) -> BTreeSet<InstanceId> {
        self.stuck.keys().chain(self.ghosts.keys()).chain(self.suspects.keys()).cloned().collect()
    }

    /// The instances that count as alive and have explicit names.
    fn explicit_names(&self) -> BTreeMap<InstanceId, String> {
        let name = |(id, seen): (&InstanceId, &Seen)| Some((id.clone(), explicit_name(seen)?.to_owned()));
        self.roll.alive().filter_map(name).collect()
    }

    /// Whether another live instance has this name, too: then nothing follows from what one of them does.
    fn is_shared(&self, names: &BTreeMap<InstanceId, String>, name: &str, id: &InstanceId) -> bool {
        let suspects = |one: &InstanceId, other: &InstanceId| {
            self.suspects.get(one).is_some_and(|suspects| suspects.contains_key(other))
        };
        let is_other = |other: &InstanceId| other != id && !suspects(id, other) && !suspects(other, id);
        names.iter().any(|(other, known)| known == name && is_other(other))
    }

    /// An instance has come while earlier ones of its name are listed. They are dead, or share the name: their next heartbeats tell.
    fn suspect_earlier(&mut self, id: &InstanceId) {
        let Some(seen) = self.roll.get(id) else { return };
        let (Some(name), Some(record)) = (explicit_name(seen), &seen.record) else { return };
        let is_earlier =
            |earlier: &InstanceRecord| earlier.started_at < record.started_at && !earlier.is_leaving(&self.pool);
        let earlier: BTreeMap<InstanceId, Moment> = self
            .roll
            .alive()
            .filter(|(_, seen)| explicit_name(seen) == Some(name) && seen.record.as_ref().is_some_and(is_earlier))
            .map(|(id, seen)| (id.clone(), seen.late_at))
            .collect();
        if !earlier.is_empty() {
            self.suspects.insert(id.clone(), earlier);
        }
    }

    /// Remembers instances that were late when they were first seen: a later one of the same name was restarted.
    fn remember_earlier(&mut self, now: Moment, listed: &BTreeMap<InstanceId, InstanceRecord>) {
        for (id, earlier) in listed.iter().filter(|(id, _)| !self.roll.is_alive(id)) {
            let is_earlier =
                |record: &InstanceRecord| record.name != earlier.name || record.started_at > earlier.started_at;
            if self.roll.alive().filter_map(|(id, _)| listed.get(id)).all(is_earlier) {
                self.gone.entry(id.clone()).or_insert_with(|| (earlier.name.clone(), now));
            }
        }
    }

    /// Forgets suspects that are gone, or have sent a heartbeat. Returns the instances that suspect no other any more.
    fn clear(&mut self) -> Vec<InstanceId> {
        let roll = &self.roll;
        let may_be_dead = |id: &InstanceId, late_at: Moment| {
            // The replies of two readings differ by less than one attempt takes, in the time that they were on their way.
            let slack = |seen: &Seen| seen.record.as_ref().map_or(Duration::ZERO, |record| record.heartbeat_every / 5);
            roll.get(id).is_some_and(|seen| seen.late_at <= late_at + slack(seen))
        };
        self.suspects.retain(|id, _| roll.is_alive(id));
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

    /// An instance takes part from now on, or waits for its share if an earlier one of its name has crashed.
    fn begins(&mut self, now: Moment, names: &BTreeMap<InstanceId, String>, id: &InstanceId) {
        let name = names.get(id).filter(|name| !self.is_shared(names, name, id));
        if self.gone.remove(id).is_none() && name.is_some_and(|name| self.is_gone(name)) {
            self.returned.insert(id.clone());
        }
        if self.late.remove(id) {
            name.iter().for_each(|name| self.conduct.was_late(name));
            return;
        }
        if *id == self.me {
            self.cleared_at = Some(now);
            // By then every other instance has seen what we saw, and has said so.
            self.review_at = name.map(|_| now + self.doubt_every + TOLD_WITHIN);
            return;
        }
        let trusted = name.map(|name| self.conduct.trusted_from(now, name, self.settle));
        if let Some(until) = trusted.filter(|from| *from > now) {
            self.stuck.insert(id.clone(), until);
        }
    }

    /// Learns from the others how often earlier instances of our name have crashed: we wait as long as they expect us to.
    fn learn_own_wait(&mut self, now: Moment) {
        self.review_at = self.review_at.filter(|at| *at > now);
        let Some(cleared_at) = self.cleared_at.filter(|_| !self.suspects.contains_key(&self.me)) else { return };
        let others = self.roll.alive().filter(|(id, _)| **id != self.me);
        let said = HeldBack::of_all(others.filter_map(|(_, seen)| seen.record.as_ref()));
        if let Some(said) = said.get(&self.me) {
            self.stuck.insert(self.me.clone(), cleared_at + Conduct::wait(said.crashes, self.settle));
        }
    }

    /// Everybody else who counts as there, for whoever knows how much each was seen to hold.
    pub(super) fn peers(&self, now: Moment, seen_to_hold: impl Fn(&InstanceId) -> usize) -> Vec<Peer> {
        let others = self.roll.alive().filter(|(id, _)| **id != self.me);
        let mut peers: Vec<Peer> = others.filter_map(|(id, seen)| self.peer(now, id, seen, &seen_to_hold)).collect();
        // What they had is kept for them, and nothing is given to them.
        let ghosts = self.ghosts.iter().filter(|(id, (_, until))| *until > now && !self.roll.is_alive(id));
        peers.extend(ghosts.map(|(id, (held, _))| Peer {
            held: *held,
            presence: Presence::Apart,
            ..Peer::new(id.clone())
        }));
        peers
    }

    fn peer(&self, now: Moment, id: &InstanceId, seen: &Seen, held: impl Fn(&InstanceId) -> usize) -> Option<Peer> {
        let instance = id.clone();
        let Some(record) = &seen.record else {
            // A program that is not Tenure's takes what it likes, and hears of nothing that it is given.
            return Some(Peer { instance, weight: FULL_WEIGHT, held: held(id), presence: Presence::Apart });
        };
        // Of whoever has nothing to do with this pool nothing is expected.
        let held = (*record.held.get(&self.pool)?).max(self.given(now, id));
        let presence = match () {
            _ if record.is_leaving(&self.pool) => Presence::Draining,
            // What it holds is its own until its leases expire.
            _ if self.is_suspect(id) => Presence::Apart,
            _ if record.is_unable(&self.pool) => Presence::Unable,
            _ if self.waits(now, id) => Presence::Stuck,
            _ => Presence::Ready,
        };
        Some(Peer { instance, weight: record.weight_in(&self.pool), held, presence })
    }

    /// Whether an instance may be dead: a later one has its name, and it has sent no heartbeat since that came.
    fn is_suspect(&self, id: &InstanceId) -> bool {
        self.suspects.values().any(|suspects| suspects.contains_key(id))
    }

    /// Whether an instance is offered nothing for a while.
    pub(super) fn waits(&self, now: Moment, id: &InstanceId) -> bool {
        self.suspects.contains_key(id) || self.stuck.get(id).is_some_and(|until| *until > now)
    }

    /// When an instance need not wait any more, or when to see whether we have to.
    pub(super) fn next_pardon(&self) -> Option<Moment> {
        self.stuck.values().copied().chain(self.review_at).min()
    }

    /// The instances that wait for their share because they crashed.
    fn waiting(&self, now: Moment) -> BTreeMap<InstanceId, u32> {
        self.held_back(now).into_iter().map(|(id, _, crashes)| (id, crashes)).collect()
    }

    /// The name of an instance, if it is its own.
    pub(super) fn own_name(&self, id: &InstanceId) -> Option<&str> {
        let record = self.roll.get(id).and_then(|seen| seen.record.as_ref());
        match record {
            Some(record) => Some(record.name.as_str()).filter(|_| record.is_named),
            None => self.gone.get(id).map(|(name, _)| name.as_str()),
        }
    }

    /// Whether an instance of this name is gone and may come back.
    fn is_gone(&self, name: &str) -> bool {
        self.gone.values().any(|(gone, _)| gone == name)
    }

    /// The one instance that has this name as its own.
    pub(super) fn named(&self, name: &str) -> Option<&InstanceId> {
        let mut all = self
            .roll
            .alive()
            .filter(|(_, seen)| seen.record.as_ref().is_some_and(|record| record.is_named && record.name == name));
        match (all.next(), all.next()) {
            (Some((id, _)), None) => Some(id),
            _ => None,
        }
    }

    /// Whether an instance has stopped, or is about to: what it has given away since then, it has given away for that reason.
    pub(super) fn had_stopped(&self, id: &InstanceId, by: Moment) -> bool {
        !self.stays(id) && self.stayed_at.get(id).is_none_or(|stayed| by >= *stayed)
    }

    /// Whether an instance is there to stay: neither gone nor leaving.
    fn stays(&self, id: &InstanceId) -> bool {
        self.roll.get(id).is_some_and(|seen| seen.record.as_ref().is_none_or(|record| !record.is_leaving(&self.pool)))
    }

    /// Whether an instance has left, or is about to: not one whose heartbeat ends by itself.
    pub(super) fn has_left(&self, id: &InstanceId) -> bool {
        match self.roll.get(id) {
            Some(_) => !self.stays(id),
            None => !self.listed.contains(id),
        }
    }

    /// Whether an instance has been restarted: an earlier one had its name.
    pub(super) fn has_returned(&self, id: &InstanceId) -> bool {
        self.returned.contains(id)
    }

    /// Instances that wait for their share because they crashed: for how long, and how often they did.
    pub(super) fn held_back(&self, now: Moment) -> Vec<(InstanceId, Duration, u32)> {
        let waits = |(id, until): (&InstanceId, &Moment)| {
            let crashes = self.own_name(id).map_or(0, |name| self.conduct.crashes(now, name));
            (*until > now && crashes > 0).then(|| (id.clone(), until.since(now), crashes))
        };
        self.stuck.iter().filter_map(waits).collect()
    }

    /// Whether heartbeats were read at all.
    pub(super) fn is_known(&self) -> bool {
        self.called
    }

    pub(super) fn is_alive(&self, instance: &InstanceId) -> bool {
        self.roll.is_alive(instance)
    }

    /// Whether it is there and says what becomes of what it holds; for others one has to look.
    pub(super) fn announces(&self, instance: &InstanceId) -> bool {
        self.roll.get(instance).is_some_and(|seen| seen.record.is_some())
    }

    pub(super) fn count(&self) -> usize {
        self.roll.alive().count()
    }

    /// When somebody is late who is not seen again by then.
    pub(super) fn next_doubt(&self) -> Option<Moment> {
        self.roll.next_doubt()
    }

    /// We have lost something: we, or everybody, may have been away.
    pub(super) fn lost(&mut self, now: Moment) {
        self.lost_at = Some(now);
    }

    /// Until when whoever is missing counts as there, when we ourselves have just been away.
    pub(super) fn forgives(&self, now: Moment) -> Option<Moment> {
        let reunion = self.back_at.map_or(Moment::ZERO, |back| back + REUNION);
        let until = (self.lost_at? + self.forgiveness).max(reunion);
        (until > now).then_some(until)
    }

    /// When it was seen to come, if that was just now.
    pub(super) fn came(&self, instance: &InstanceId) -> Option<Moment> {
        self.came.get(instance).copied()
    }

    /// Until when somebody is waited for who is not back from an outage.
    pub(super) fn waits_for(&self, now: Moment, instance: &InstanceId) -> Option<Moment> {
        self.ghosts.get(instance).map(|(_, until)| *until).filter(|until| *until > now)
    }

    /// Until when anybody is.
    pub(super) fn waits_for_anybody(&self, now: Moment) -> Option<Moment> {
        self.ghosts.values().map(|(_, until)| *until).filter(|until| *until > now).max()
    }

    /// It was given something, of which its heartbeat cannot tell yet.
    pub(super) fn gave(&mut self, now: Moment, receiver: &InstanceId) {
        let record = self.roll.get(receiver).and_then(|seen| seen.record.as_ref());
        let said = record.and_then(|record| record.held.get(&self.pool)).copied().unwrap_or(0);
        let held = said.max(self.given(now, receiver)) + 1;
        self.given.insert(receiver.clone(), (held, now + TOLD_WITHIN));
    }

    fn given(&self, now: Moment, receiver: &InstanceId) -> usize {
        self.given.get(receiver).filter(|(_, until)| *until > now).map_or(0, |(held, _)| *held)
    }

    /// It did not take what it was offered.
    pub(super) fn declined(&mut self, now: Moment, receiver: InstanceId) {
        self.given.remove(&receiver);
        self.stuck.insert(receiver, now + self.settle.saturating_mul(SULKING));
    }
}

/// The name that an instance was given. A host's name may be that of many: nothing follows from what one of them does.
fn explicit_name(seen: &Seen) -> Option<&str> {
    seen.record.as_ref().filter(|record| record.is_named).map(|record| record.name.as_str())
}
