//! Who else is there, as one instance sees it: whom it counts on, whom it waits for, and whom it offers nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::fleet::{Conduct, Roll, Seen};
use crate::name::InstanceId;
use crate::placement::{FULL_WEIGHT, Peer, Presence};
use crate::store::Member;
use crate::time::Moment;

use super::signal::EngineSettings;

/// An instance that did not take what it was offered is offered nothing for this many settle windows.
const SULKING: u32 = 20;

/// A store that is back is reached again within this.
const REUNION: Duration = Duration::from_secs(5);

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
    /// Whether somebody is not left out any more, or not waited for.
    pub(super) pardoned: bool,
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
    roll: Roll,
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
    /// Whose heartbeats are late and have not ended: they may be back.
    late: BTreeSet<InstanceId>,
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
            roll: Roll::default(),
            called: false,
            ghosts: BTreeMap::new(),
            lost_at: None,
            back_at: None,
            called_at: Moment::ZERO,
            came: BTreeMap::new(),
            conduct: Conduct::default(),
            late: BTreeSet::new(),
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
        let before: BTreeMap<InstanceId, usize> =
            self.peers(now, seen_to_hold).into_iter().map(|peer| (peer.instance, peer.held)).collect();
        let name = |seen: &Seen| seen.record.as_ref().map(|record| record.name.clone());
        let names: BTreeMap<InstanceId, Option<String>> =
            self.roll.alive().map(|(id, seen)| (id.clone(), name(seen))).collect();
        let listed: BTreeSet<InstanceId> = members.iter().map(|member| member.instance.clone()).collect();
        if self.lost_at.is_some_and(|lost| lost >= self.called_at) {
            self.back_at = Some(now);
        }
        self.called_at = now;
        let mut call = self.roll.call(now, members);
        let first = !std::mem::replace(&mut self.called, true);
        call.went.retain(|id| *id != self.me);
        for id in &call.went {
            if let Some((held, until)) = before.get(id).zip(self.forgives(now)) {
                self.ghosts.insert(id.clone(), (*held, until));
            } else if let Some(Some(name)) = names.get(id).filter(|_| listed.contains(id)) {
                // Whoever leaves as it should leaves no heartbeat behind.
                self.conduct.vanished(now, name);
                self.late.insert(id.clone());
            }
        }
        self.late.retain(|id| listed.contains(id));
        let known: BTreeSet<InstanceId> = self.stuck.keys().chain(self.ghosts.keys()).cloned().collect();
        self.came.retain(|_, came| *came + REUNION > now);
        for id in &call.came {
            self.came.insert(id.clone(), now);
            self.ghosts.remove(id);
            self.stuck.remove(id);
            let name = self.roll.get(id).and_then(name);
            if self.late.remove(id) {
                name.iter().for_each(|name| self.conduct.was_late(name));
                continue;
            }
            let trusted = name.map(|name| self.conduct.trusted_from(now, &name, self.settle));
            if let Some(until) = trusted.filter(|from| *from > now && *id != self.me) {
                self.stuck.insert(id.clone(), until);
            }
        }
        self.stuck.retain(|_, until| *until > now);
        self.ghosts.retain(|_, (_, until)| *until > now);
        self.given.retain(|_, (_, until)| *until > now);
        let pardoned = known.iter().any(|id| !self.stuck.contains_key(id) && !self.ghosts.contains_key(id));
        Turnout { went: call.went, came: !call.came.is_empty(), changed: call.changed, pardoned, first }
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
        let presence = match self.stuck.get(id) {
            _ if record.is_leaving(&self.pool) => Presence::Draining,
            _ if record.is_unable(&self.pool) => Presence::Unable,
            Some(until) if *until > now => Presence::Stuck,
            _ => Presence::Ready,
        };
        Some(Peer { instance, weight: record.weight_in(&self.pool), held, presence })
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
