//! What one instance does about all targets of a pool: a state machine without I/O, clock or async. It knows of every target who
//! holds it, as far as it was told, and asks for those that it should have; placement says which.

mod home;
mod offers;
mod succession;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::lease::{Ending, Loss, ReleaseReason};
use crate::name::InstanceId;
use crate::placement::{self, Peer, Presence, Ranking, Reason, TargetScore};
use crate::store::Member;
use crate::time::Moment;

use super::company::Company;
use super::signal::{Action, EngineSettings, Input, Target};
use super::table::{Entry, Fate, Successor, Table};
use home::Belongs;

/// How many of its targets an instance gives away at once for balance, as a fraction.
const BUDGET: usize = 10;

/// How long whoever is back after an outage has for asking for what it had.
const CATCHING_UP: Duration = Duration::from_secs(1);

/// How many rounds of a scout there are for one in which it looks at everything, whatever the others say.
const THOROUGH: u32 = 10;

/// How many claims are on their way at once, and how many targets are looked at in one go: what is urgent must not be behind all of them.
const AT_ONCE: usize = 512;

/// What was seen to be unheld may be claimed for this long. After that somebody else may have it, and a look costs less than a claim.
const FRESH: Duration = Duration::from_millis(200);

/// For how many graces whoever has no room leaves unheld targets to those who are taking them, at most.
const PATIENCE: u32 = 10;

/// What one heartbeat in one reading may cost, with everything around it, and how long one waits for that at most.
const EACH_READS_EACH: Duration = Duration::from_micros(50);
const LONGEST_BREATH: Duration = Duration::from_secs(1);

/// Just after a lease has expired: stores count in milliseconds.
const AFTER_THE_END: Duration = Duration::from_millis(2);

/// Where this instance stands among the others.
#[derive(Debug)]
struct Place {
    share: usize,
    ranking: Ranking,
    /// Whether there is an instance that takes what it should have.
    any_takes_part: bool,
}

/// What one instance does about a pool.
#[derive(Debug)]
pub struct Engine {
    pub(super) me: InstanceId,
    settings: EngineSettings,
    weight: u32,
    pub(super) targets: Table,
    company: Company,
    /// What is to be asked for as soon as not too much is on its way: what suits nobody better first, and then by when its turn came.
    line: BTreeSet<(bool, Moment, Target)>,
    /// Whether some of these are being looked at.
    looking: bool,
    /// When somebody was last seen to have taken what nobody held.
    taken_at: Moment,
    draining: bool,
    able: bool,
    scouts: bool,
    /// What this instance should hold, and whom a target suits better, until something changes.
    place: Option<Place>,
    /// Since when it has been quiet, and since when it has not been balanced.
    quiet_since: Moment,
    unsettled_since: Option<Moment>,
    next_read: Moment,
    /// When heartbeats were last asked for.
    read_at: Moment,
    next_scouting: Moment,
    /// How often was scouted.
    rounds: u32,
    /// Whether heartbeats are being read, and whether they are to be read once more after that: of two readings nobody knows which is the later.
    reading: bool,
    read_again: bool,
    /// Whether a reading of heartbeats was asked for to balance by.
    balancing: bool,
    /// How many of what was given away for balance are still on their way.
    giving: usize,
    /// When it is decided again who takes over what instances held that are gone.
    plan_at: Option<Moment>,
    actions: Vec<Action>,
}

impl Engine {
    /// An instance that has just come.
    pub fn new(me: InstanceId, pool: &str, weight: u32, settings: EngineSettings) -> Self {
        Self {
            company: Company::new(me.clone(), pool, &settings),
            me,
            settings,
            weight,
            targets: Table::default(),
            line: BTreeSet::new(),
            looking: false,
            taken_at: Moment::ZERO,
            draining: false,
            able: true,
            scouts: false,
            place: None,
            quiet_since: Moment::ZERO,
            unsettled_since: None,
            next_read: Moment::ZERO,
            read_at: Moment::ZERO,
            next_scouting: Moment::ZERO,
            rounds: 0,
            reading: false,
            read_again: false,
            balancing: false,
            giving: 0,
            plan_at: None,
            actions: Vec::new(),
        }
    }

    /// Takes in what happened, and returns what is to be done.
    pub fn step(&mut self, now: Moment, input: Input) -> Vec<Action> {
        match input {
            Input::Targets(targets) => self.targets_are(now, &targets),
            Input::Members(members) => self.members_are(now, members),
            Input::Unread => self.unread(now),
            Input::Holders(holders) => self.holders_are(now, holders),
            Input::Report { target, held } => self.reported(now, &target, held),
            Input::WasHeldBy { instance, targets } => self.was_held_by(now, &instance, targets),
            Input::Released(target) => {
                self.hears_of(&target);
                self.released(now, &target);
            }
            Input::Vacant(target) => self.is_free(now, &target),
            Input::HandedOver { target, to } => {
                self.hears_of(&target);
                self.handed_over(now, &target, to);
            }
            Input::Want(target) => self.wants(&target),
            Input::FleetChanged => self.next_read = self.next_read.min(now.max(self.read_at + self.breath())),
            Input::Gap => self.gap(now),
            Input::Granted(target) => self.granted(now, &target),
            Input::CameHome(target) => self.came_home(&target),
            Input::Refused { target, by, remaining } => self.refused(now, &target, by, remaining),
            Input::Failed { target, again_in } => self.failed(now, &target, again_in),
            Input::Over { target, ending } => self.over(now, &target, &ending),
            Input::Drain => self.drains(now, true),
            Input::Stay => self.drains(now, false),
            Input::Able(able) => self.set_able(now, able),
            Input::Scouts(scouts) => self.scouts = scouts,
            Input::Tick => {}
        }
        self.look_at_clock(now);
        std::mem::take(&mut self.actions)
    }

    /// When to come back at the latest.
    pub fn next_wake(&self) -> Option<Moment> {
        let target = self.targets.next_due();
        let scouting = self.scouts.then_some(self.next_scouting);
        let balance = self.unsettled_since.filter(|_| !self.balancing).map(|since| self.balance_at(since));
        [target, Some(self.next_read), scouting, balance, self.plan_at].into_iter().flatten().min()
    }

    /// How many targets are held.
    pub fn held(&self) -> usize {
        self.targets.mine() + self.targets.leaving()
    }

    /// Whether nothing is held and nothing is being asked for.
    pub fn is_empty(&self) -> bool {
        self.held() == 0 && self.targets.asked() == 0
    }

    /// Who counts as there, this instance last.
    pub fn peers(&self, now: Moment) -> Vec<Peer> {
        let mut peers = self.company.peers(now, |instance| self.targets.held_by(instance));
        // What is on its way is as good as there.
        peers.iter_mut().for_each(|peer| peer.held += self.targets.promised_to(&peer.instance));
        peers.push(Peer {
            instance: self.me.clone(),
            weight: self.weight,
            held: self.targets.mine(),
            presence: match (self.draining, self.able) {
                (true, _) => Presence::Draining,
                (false, false) => Presence::Unable,
                // The others offer us nothing, either.
                (false, true) if self.company.waits(now, &self.me) => Presence::Stuck,
                (false, true) => Presence::Ready,
            },
        });
        peers
    }

    /// Instances that wait for their share because they crashed: for how long, and how often they did.
    pub fn held_back(&self, now: Moment) -> Vec<(InstanceId, Duration, u32)> {
        self.company.held_back(now)
    }

    /// Whether this instance gives everything away.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether this instance can work.
    pub fn is_able(&self) -> bool {
        self.able
    }

    /// Whether a claim of a target is on its way.
    pub fn is_asking(&self, target: &str) -> bool {
        self.targets.fate(target) == Some(&Fate::Asked)
    }

    /// Who holds a target, as far as is known.
    pub fn holder(&self, target: &str) -> Option<&InstanceId> {
        match self.targets.fate(target)? {
            Fate::Mine | Fate::Leaving { .. } => Some(&self.me),
            Fate::Theirs { holder } => Some(holder),
            Fate::Unseen | Fate::Free { .. } | Fate::Asked => None,
        }
    }

    // What there is.

    fn targets_are(&mut self, now: Moment, targets: &BTreeSet<Target>) {
        let gone = self.targets.iter().filter(|(known, entry)| entry.wanted && !targets.contains(*known));
        let gone: Vec<Target> = gone.map(|(target, _)| target.clone()).collect();
        for target in &gone {
            self.lets_go(target, ReleaseReason::Removed);
            match self.targets.get_mut(target) {
                // What is on its way comes to an end first: a claim that is granted after all is let go of then.
                Some(entry) if matches!(entry.fate(), Fate::Asked | Fate::Leaving { .. }) => entry.wanted = false,
                _ => self.targets.forget(target),
            }
        }
        let mut new = Vec::new();
        for target in targets {
            match self.targets.get_mut(target) {
                Some(entry) => entry.wanted = true,
                None => {
                    self.targets.add(target);
                    new.push(target.clone());
                }
            }
        }
        if !new.is_empty() || !gone.is_empty() {
            self.disturbed(now);
        }
        if !new.is_empty() {
            self.look_at(new);
        }
    }

    fn members_are(&mut self, now: Moment, members: Vec<Member>) {
        let targets = &self.targets;
        let turnout = self.company.call(now, members, |instance| targets.held_by(instance));
        self.actions.extend(turnout.went.iter().cloned().map(Action::LookUp));
        let moved = turnout.came || !turnout.went.is_empty();
        if moved {
            self.disturbed(now);
        }
        if moved || turnout.changed || turnout.exceptions_changed {
            self.place = None;
        }
        if turnout.first || turnout.exceptions_changed {
            self.wait_for_our_turns(now);
        }
        if moved || turnout.exceptions_changed {
            self.plan_succession(now);
        }
        if moved || turnout.changed {
            self.look_after_offers(now);
        }
        if turnout.others_wait {
            self.actions.push(Action::Tell);
        }
        self.next_read = now + self.settings.read_every;
        if let Some(pardon) = self.company.next_pardon() {
            self.next_read = self.next_read.min(pardon);
        }
        if let Some(doubt) = self.company.next_doubt() {
            // Not too often, however many there are to be doubted.
            self.next_read = self.next_read.min(doubt.max(now + self.settings.doubt_every));
        }
        let begun_before = self.has_read(now);
        if self.gives_all_away() {
            self.balancing = false;
            self.give_all_away(now);
        } else if self.balancing && !begun_before {
            self.balancing = false;
            self.balance(now);
        } else if self.held() > self.share(now) {
            self.unsettled_since.get_or_insert(now);
        }
    }

    /// Nothing is decided by what was read before.
    fn unread(&mut self, now: Moment) {
        self.has_read(now);
        if std::mem::take(&mut self.balancing) {
            self.quiet_since = now;
            self.unsettled_since = Some(now);
        }
    }

    // Who holds what.

    fn holders_are(&mut self, now: Moment, holders: Vec<(Target, Option<InstanceId>)>) {
        self.looking = false;
        for (target, holder) in holders {
            if self.is_outdated(&target) {
                continue;
            }
            match holder {
                None => self.turns_out_free(now, &target),
                Some(holder) => {
                    if holder != self.me && matches!(self.targets.fate(&target), Some(Fate::Free { .. })) {
                        self.taken_at = now;
                    }
                    self.is_theirs_until(now, &target, holder);
                }
            }
        }
    }

    fn reported(&mut self, now: Moment, target: &Target, held: Option<(InstanceId, Option<Moment>)>) {
        if self.is_outdated(target) {
            return;
        }
        match held {
            None => self.turns_out_free(now, target),
            Some((holder, ends)) => {
                let is_quiet = !self.tells(&holder);
                let is_theirs = self.is_theirs(now, target, holder);
                self.held_last(target, None);
                // No announcement will say when it has expired.
                if is_theirs && is_quiet {
                    self.is_orphaned(now, target, ends);
                }
            }
        }
    }

    /// Nobody holds it, says the store.
    fn turns_out_free(&mut self, now: Moment, target: &Target) {
        let (mut believed, mut offered) = (false, self.was_not_taken_up(now, target));
        if let Some(entry) = self.targets.get(target)
            && let Fate::Theirs { holder } = entry.fate()
        {
            // The others take it for held. What the dead held they look at themselves.
            believed = self.company.is_alive(holder);
            // What we gave away, looked at after the window: whoever does not have it did not want it.
            let is_ours = entry.last.as_ref() == Some(&self.me) && *holder != self.me;
            offered = offered.or_else(|| Some(holder.clone()).filter(|_| is_ours));
        }
        self.is_free(now, target);
        // We were all away: then nobody could have taken it, and whoever had it asks for it itself.
        if self.company.forgives(now).is_some() {
            return;
        }
        // Whoever leaves will not see to it that somebody takes it.
        if self.scouts && believed || self.gives_all_away() && offered.is_some() {
            self.actions.push(Action::Proclaim(target.clone()));
        }
        if let Some(receiver) = offered {
            self.company.declined(now, receiver.clone());
            self.place = None;
            self.actions.push(Action::Forget { instance: receiver, target: target.clone() });
            // It is not waited for any longer.
            self.wait_for_our_turn(now, target);
        }
    }

    /// Sees who holds these. What is heard from now on is newer than the answer.
    fn look_at(&mut self, targets: Vec<Target>) {
        for target in &targets {
            if let Some(entry) = self.targets.get_mut(target) {
                entry.heard = false;
            }
        }
        self.actions.push(Action::LookAt(targets));
    }

    /// Sees who holds this one, and for how long.
    fn inspect(&mut self, target: Target) {
        if let Some(entry) = self.targets.get_mut(&target) {
            entry.heard = false;
        }
        self.actions.push(Action::Inspect(target));
    }

    /// Whether something was heard of a target since it was last looked at, so that the answer may be out of date: then it is looked at again.
    fn is_outdated(&mut self, target: &Target) -> bool {
        let outdated = self.targets.get(target).is_some_and(|entry| entry.heard);
        if outdated {
            self.inspect(target.clone());
        }
        outdated
    }

    /// Whether somebody says what becomes of what it holds. Whoever is not there does not, nor does an earlier life of this process.
    fn tells(&self, holder: &InstanceId) -> bool {
        *holder != self.me && self.company.announces(holder)
    }

    /// Somebody holds it, and for how long is to be found out, unless it will be told.
    fn is_theirs_until(&mut self, now: Moment, target: &Target, holder: InstanceId) {
        let (tells, is_foreign) = (self.tells(&holder), self.company.is_alive(&holder) && holder != self.me);
        if !self.is_theirs(now, target, holder) || self.targets.is_armed(target) {
            return;
        }
        if tells {
            // What we gave away was taken up.
            self.held_last(target, None);
        } else if is_foreign {
            // It lives and renews what it holds; one has to look now and then, at all of it in one go.
            self.targets.arm(target, Some(now + self.settings.read_every));
        } else {
            self.inspect(target.clone());
        }
    }

    /// Somebody holds it. Whether that leaves it theirs.
    fn is_theirs(&mut self, now: Moment, target: &Target, holder: InstanceId) -> bool {
        match self.targets.fate(target) {
            None | Some(Fate::Mine | Fate::Leaving { .. } | Fate::Asked) => false,
            Some(Fate::Theirs { holder: before }) if *before == holder => {
                self.is_taken_up(now, target);
                true
            }
            // It is kept for us, and we have not heard of it; or an earlier life of this process held it.
            Some(_) if holder == self.me && !self.draining => {
                self.claim(target);
                false
            }
            Some(_) => {
                let is_alive = self.company.is_alive(&holder);
                self.moved(now, target, None, &holder);
                self.targets.turns(target, Fate::Theirs { holder });
                // Whoever had it before is not what matters any more.
                self.held_last(target, None);
                self.targets.arm(target, None);
                if let Some(entry) = self.targets.get_mut(target).filter(|_| is_alive) {
                    entry.orphan = None;
                }
                true
            }
        }
    }

    fn held_last(&mut self, target: &Target, last: Option<InstanceId>) {
        if let Some(entry) = self.targets.get_mut(target) {
            entry.last = last;
        }
    }

    fn is_free(&mut self, now: Moment, target: &Target) {
        let since = match self.targets.fate(target) {
            None | Some(Fate::Mine | Fate::Leaving { .. } | Fate::Asked) => return,
            Some(Fate::Free { since, .. }) => *since,
            Some(Fate::Theirs { holder }) => {
                let holder = holder.clone();
                self.held_last(target, Some(holder));
                now
            }
            Some(Fate::Unseen) => now,
        };
        let known = matches!(self.targets.fate(target), Some(Fate::Free { .. }));
        self.targets.turns(target, Fate::Free { since, seen: now });
        if !known {
            self.disturbed(now);
        }
        self.wait_for_our_turn(now, target);
    }

    fn hears_of(&mut self, target: &Target) {
        if let Some(entry) = self.targets.get_mut(target) {
            entry.heard = true;
        }
    }

    fn released(&mut self, now: Moment, target: &Target) {
        if matches!(self.targets.fate(target), Some(Fate::Theirs { .. } | Fate::Unseen | Fate::Free { .. })) {
            if let Some(Fate::Theirs { holder }) = self.targets.fate(target) {
                let holder = holder.clone();
                self.leaves(now, target, &holder);
            }
            self.is_free(now, target);
            // Let go of on purpose: nobody is waited for, and whatever it was before, it is free as of now.
            self.held_last(target, None);
            self.targets.turns(target, Fate::Free { since: now, seen: now });
            self.wait_for_our_turn(now, target);
        }
    }

    fn handed_over(&mut self, now: Moment, target: &Target, to: InstanceId) {
        if to == self.me {
            self.moved(now, target, None, &to);
            if matches!(self.targets.fate(target), Some(Fate::Theirs { .. } | Fate::Unseen | Fate::Free { .. })) {
                // Whoever gives it has said why.
                self.held_last(target, None);
                self.claim(target);
            }
            return;
        }
        self.is_offered(now, target, to);
        self.disturbed(now);
    }

    fn gap(&mut self, now: Moment) {
        self.next_read = now;
        // Nobody knows for how long.
        for target in self.targets.names(|fate| matches!(fate, Fate::Free { .. })) {
            self.targets.turns(&target, Fate::Unseen);
        }
        let others = self.targets.names(|fate| matches!(fate, Fate::Theirs { .. } | Fate::Unseen));
        if !others.is_empty() {
            self.look_at(others);
        }
    }

    // What is ours.

    fn wait_for_our_turn(&mut self, now: Moment, target: &Target) {
        let turn = self.our_turn(now, target);
        self.targets.arm(target, turn);
    }

    fn wait_for_our_turns(&mut self, now: Moment) {
        for target in self.targets.names(|fate| matches!(fate, Fate::Free { .. })) {
            self.wait_for_our_turn(now, &target);
        }
    }

    /// When to ask for a target that nobody holds: at once when it suits nobody better, or when we held it last.
    fn our_turn(&mut self, now: Moment, target: &Target) -> Option<Moment> {
        // One that cannot work takes what no other can: it may be able soon.
        if self.draining || !self.company.is_known() || !self.able && self.place(now).any_takes_part {
            return None;
        }
        let has_room = self.has_room(now);
        let (longest, company) = (self.settings.longest_grace, &self.company);
        let entry = self.targets.get(target)?;
        let Fate::Free { since, .. } = entry.fate() else { return None };
        let (since, score, successor) = (*since, entry.score, entry.successor());
        Some(match &entry.last {
            Some(last) if *last == self.me => since,
            // Whoever held it has not had the time to ask for it again.
            Some(last) if company.waits_for(now, last).is_some() => company.waits_for(now, last)?,
            // It is back, and has as much to ask for as we have.
            Some(last) if company.is_alive(last) && company.forgives(now).is_some() => {
                since.max(company.came(last).unwrap_or(since)) + longest.max(CATCHING_UP)
            }
            Some(last) if company.is_alive(last) && !company.waits(now, last) => since + longest,
            // We were away, and nobody knows who held it: whoever did asks for it when it is back.
            None if company.forgives(now).is_some() => {
                company.waits_for_anybody(now).unwrap_or(since + longest.max(CATCHING_UP))
            }
            _ if successor == Some(Successor::Us) => since,
            _ if successor == Some(Successor::Other) => since + self.grace_behind_successor(now, score),
            _ if has_room => since + placement::grace(self.place(now).ranking.rank(score), true, longest),
            // Those who have room come first, as long as they come.
            _ => since.max(self.taken_at).min(since + longest * PATIENCE) + placement::grace(0, false, longest),
        })
    }

    fn wants(&mut self, target: &Target) {
        if !self.draining
            && matches!(self.targets.fate(target), Some(Fate::Unseen | Fate::Free { .. } | Fate::Theirs { .. }))
        {
            self.claim(target);
        }
    }

    fn claim(&mut self, target: &Target) {
        if let Some(entry) = self.targets.get_mut(target) {
            entry.heard = false;
            self.targets.turns(target, Fate::Asked);
            self.targets.arm(target, None);
            self.actions.push(Action::Claim(target.clone()));
        }
    }

    fn granted(&mut self, now: Moment, target: &Target) {
        let me = self.me.clone();
        self.moved(now, target, None, &me);
        let Some(entry) = self.targets.get_mut(target) else { return };
        let wanted = entry.wanted;
        let last = entry.last.replace(self.me.clone()).filter(|last| *last != self.me);
        entry.orphan = None;
        self.targets.turns(target, Fate::Mine);
        if let Some(instance) = last {
            self.actions.push(Action::Explain { target: target.clone(), from: instance.clone() });
            self.actions.push(Action::Forget { instance, target: target.clone() });
        }
        self.actions.push(Action::Tell);
        if !wanted {
            self.lets_go(target, ReleaseReason::Removed);
        } else if self.gives_all_away() {
            self.give_all_away(now);
        } else if self.held() > self.share(now) {
            self.disturbed(now);
        }
    }

    fn refused(&mut self, now: Moment, target: &Target, by: InstanceId, remaining: Option<Duration>) {
        if self.claim_is_over(target) {
            self.taken_at = now;
            // By ourselves: then asking again is of no use before it has ended.
            if by == self.me {
                self.targets.turns(target, Fate::Theirs { holder: by.clone() });
            }
            self.reported(now, target, Some((by, remaining.map(|left| now + left))));
        }
    }

    fn failed(&mut self, now: Moment, target: &Target, again_in: Duration) {
        if self.claim_is_over(target) {
            self.targets.turns(target, Fate::Free { since: now + again_in, seen: now });
            self.wait_for_our_turn(now, target);
        }
    }

    /// A claim has come to nothing. Whether the target is still wanted.
    fn claim_is_over(&mut self, target: &Target) -> bool {
        let asked = self.targets.get(target).filter(|entry| *entry.fate() == Fate::Asked);
        let Some(wanted) = asked.map(|entry| entry.wanted) else { return false };
        if wanted {
            self.targets.turns(target, Fate::Unseen);
        } else {
            self.targets.forget(target);
        }
        wanted
    }

    fn over(&mut self, now: Moment, target: &Target, ending: &Ending) {
        let Some(entry) = self.targets.get(target) else { return };
        let (left, to) = match entry.fate() {
            Fate::Leaving { to } => (true, to.clone()),
            Fate::Mine => (false, None),
            _ => return,
        };
        let wanted = entry.wanted;
        if left {
            self.giving = self.giving.saturating_sub(1);
        }
        let handed_over = matches!(
            ending,
            Ending::Released(
                ReleaseReason::HandedOver | ReleaseReason::Rebalance | ReleaseReason::StepDown | ReleaseReason::Unable
            )
        );
        match (to, ending) {
            _ if !wanted => self.targets.forget(target),
            (Some(to), _) if handed_over => {
                self.company.gave(now, &to);
                let me = self.me.clone();
                self.moved(now, target, Some(&me), &to);
                self.targets.turns(target, Fate::Theirs { holder: to });
                self.held_last(target, Some(self.me.clone()));
                // Whether it was taken up, nobody says.
                let at = now + self.settings.accept_window + AFTER_THE_END;
                self.targets.arm(target, Some(at));
            }
            (_, Ending::Released(_)) => {
                self.targets.turns(target, Fate::Unseen);
                self.held_last(target, None);
                self.is_free(now, target);
            }
            // Whoever has it now, or nobody: then it is ours again.
            _ => {
                self.targets.turns(target, Fate::Unseen);
                if !matches!(ending, Ending::Lost(Loss::Taken { .. })) {
                    self.targets.mark_unheld(target, now);
                }
                self.company.lost(now);
                self.inspect(target.clone());
            }
        }
        self.actions.push(Action::Tell);
        if left && self.giving == 0 && !self.gives_all_away() && self.held() > self.share(now) {
            self.read_to_balance(now);
        } else {
            self.disturbed(now);
        }
    }

    fn lets_go(&mut self, target: &Target, reason: ReleaseReason) {
        if self.targets.fate(target) == Some(&Fate::Mine) {
            self.targets.turns(target, Fate::Leaving { to: None });
            self.actions.push(Action::Release { target: target.clone(), reason });
        }
    }

    fn gives(&mut self, now: Moment, target: &Target, to: InstanceId, reason: Reason) {
        if self.targets.fate(target) == Some(&Fate::Mine) {
            let reason = if self.home_of(now, target) == Some(&to) { Reason::HandBack } else { reason };
            self.targets.turns(target, Fate::Leaving { to: Some(to.clone()) });
            self.actions.push(Action::HandOver { target: target.clone(), to, reason });
        }
    }

    // Balance.

    fn disturbed(&mut self, now: Moment) {
        self.quiet_since = now;
        self.place = None;
        if self.held() > 0 {
            self.unsettled_since.get_or_insert(now);
        }
    }

    /// When to move something for balance: after a while of quiet, or when that has not come for too long.
    fn balance_at(&self, unsettled_since: Moment) -> Moment {
        (self.quiet_since + self.settings.settle).min(unsettled_since + self.settings.longest_settle)
    }

    /// Balances by what is so now, not by what was read a while ago.
    fn read_to_balance(&mut self, now: Moment) {
        self.unsettled_since = None;
        self.balancing = true;
        self.read(now);
    }

    fn read(&mut self, now: Moment) {
        self.read_at = now;
        self.next_read = now + self.settings.read_every;
        if self.reading {
            self.read_again = true;
        } else {
            self.reading = true;
            self.actions.push(Action::ReadMembers);
        }
    }

    /// How long after a reading the next may follow, whatever is announced: when everybody comes at once, everybody reads of everybody.
    fn breath(&self) -> Duration {
        let others = u32::try_from(self.company.count()).unwrap_or(u32::MAX).min(1_000);
        (EACH_READS_EACH * others * others).min(LONGEST_BREATH)
    }

    /// A reading is over. Returns whether another was wanted meanwhile, and is begun.
    fn has_read(&mut self, now: Moment) -> bool {
        self.reading = false;
        let again = std::mem::take(&mut self.read_again);
        if again {
            self.read(now);
        }
        again
    }

    /// Gives away what is held beyond the share, a little at a time.
    fn balance(&mut self, now: Moment) {
        self.unsettled_since = None;
        let budget = (self.held() / BUDGET).max(1);
        let gifts = self.gifts(now, budget);
        // The rest follows when these have left.
        self.giving = gifts.len();
        let reason = Reason::Surplus { held: self.held(), share: self.share(now) };
        for (target, to) in gifts {
            self.gives(now, &target, to, reason);
        }
    }

    /// Whether this instance should hold nothing.
    fn gives_all_away(&self) -> bool {
        self.draining || !self.able
    }

    fn give_all_away(&mut self, now: Moment) {
        let reason = if self.draining { Reason::Draining } else { Reason::Unable };
        for (target, to) in self.gifts(now, usize::MAX) {
            self.gives(now, &target, to, reason);
        }
        // With no instance to take them, they are released; but one that cannot work keeps them: it may be able again before
        // another comes.
        if self.draining && !self.peers(now).iter().any(Peer::takes_part) {
            for target in self.targets.names(|fate| *fate == Fate::Mine) {
                self.lets_go(&target, ReleaseReason::Shutdown);
            }
        }
    }

    /// What is to be given away, and to whom.
    pub(super) fn gifts(&self, now: Moment, budget: usize) -> Vec<(Target, InstanceId)> {
        let (names, scores): (Vec<&Target>, Vec<TargetScore>) = self
            .targets
            .iter()
            .filter(|(_, entry)| *entry.fate() == Fate::Mine)
            .map(|(target, entry)| (target, entry.score))
            .unzip();
        let peers = self.peers(now);
        let shares = placement::shares(&peers, self.unheld(&peers));
        let homes: Vec<Belongs> = names.iter().map(|target| self.belongs(now, target)).collect();
        let preference = |target: usize, to: usize| homes[target].preference(&peers[to].instance);
        let gifts = placement::surrender(&self.me, &peers, &shares, &scores, preference);
        let gift =
            |gift: placement::Gift| Some(((*names.get(gift.target)?).clone(), peers.get(gift.to)?.instance.clone()));
        let is_given = |(_, to): &(Target, InstanceId)| {
            self.settings.hand_back || self.gives_all_away() || !self.company.has_returned(to)
        };
        gifts.into_iter().filter_map(gift).filter(is_given).take(budget).collect()
    }

    pub(super) fn unheld(&self, peers: &[Peer]) -> usize {
        let held = peers.iter().fold(0, |held: usize, peer| held.saturating_add(peer.held));
        self.targets.len().saturating_sub(held)
    }

    fn share(&mut self, now: Moment) -> usize {
        self.place(now).share
    }

    fn place(&mut self, now: Moment) -> &Place {
        let place = match self.place.take() {
            Some(place) => place,
            None => {
                let peers = self.peers(now);
                let shares = placement::shares(&peers, self.unheld(&peers));
                // This instance stands last among its peers.
                let share = shares.last().copied().unwrap_or(0);
                let any_takes_part = peers.iter().any(Peer::takes_part);
                Place { share, ranking: Ranking::new(&self.me, &peers), any_takes_part }
            }
        };
        self.place.insert(place)
    }

    fn has_room(&mut self, now: Moment) -> bool {
        self.held() + self.targets.asked() < self.share(now)
    }

    fn drains(&mut self, now: Moment, draining: bool) {
        if self.draining == draining {
            return;
        }
        self.draining = draining;
        self.place = None;
        self.wait_for_our_turns(now);
        if draining {
            // Who is there now decides who gets what.
            self.read(now);
        }
    }

    fn set_able(&mut self, now: Moment, able: bool) {
        if self.able == able {
            return;
        }
        self.able = able;
        self.place = None;
        self.wait_for_our_turns(now);
        // Who is there now, and able, decides who gets what.
        self.read(now);
    }

    // Time.

    fn look_at_clock(&mut self, now: Moment) {
        if self.plan_at.is_some_and(|at| at <= now) {
            self.plan_succession(now);
        }
        let mut ended = Vec::new();
        while let Some((at, target)) = self.targets.take_due(now) {
            match self.targets.fate(&target) {
                Some(Fate::Free { since, .. }) => drop(self.line.insert((at > *since, at, target))),
                Some(Fate::Theirs { holder }) => {
                    let holder = holder.clone();
                    let successor = self.targets.get(&target).and_then(Entry::successor);
                    if successor == Some(Successor::Us) && !self.company.is_alive(&holder) {
                        // Claimed without a look: a claim says as much.
                        self.held_last(&target, Some(holder));
                        self.targets.turns(&target, Fate::Free { since: at, seen: now });
                        self.line.insert((false, at, target));
                    } else {
                        ended.push(target);
                    }
                }
                _ => {}
            }
        }
        if !ended.is_empty() {
            self.look_at(ended);
        }
        self.take_turns(now);
        if now >= self.next_read {
            self.read(now);
        }
        if let Some(since) = self.unsettled_since
            && !self.balancing
            && now >= self.balance_at(since)
        {
            self.read_to_balance(now);
        }
        if self.scouts && now >= self.next_scouting {
            self.next_scouting = now + self.settings.scout_every;
            self.rounds = self.rounds.wrapping_add(1);
            // By what everybody says that it holds, nothing is missing: then now and then is enough.
            if self.unheld(&self.peers(now)) == 0 && !self.rounds.is_multiple_of(THOROUGH) {
                return;
            }
            let others = self.targets.names(|fate| matches!(fate, Fate::Theirs { .. } | Fate::Unseen));
            if !others.is_empty() {
                self.look_at(others);
            }
        }
    }

    /// Asks for what is in line, as long as not too much is on its way.
    fn take_turns(&mut self, now: Moment) {
        let mut doubtful = Vec::new();
        while self.targets.asked() + doubtful.len() < AT_ONCE {
            let Some((waited, at, target)) = self.line.pop_first() else { break };
            let Some(Fate::Free { seen, .. }) = self.targets.fate(&target) else { continue };
            let fresh = now.since(*seen) <= FRESH;
            // Worked out again: there may be no room left, or somebody to be waited for.
            match self.our_turn(now, &target) {
                Some(turn) if turn <= now && fresh => self.claim(&target),
                Some(turn) if turn <= now && self.looking => {
                    self.line.insert((waited, at, target));
                    break;
                }
                Some(turn) if turn <= now => doubtful.push(target),
                later => self.targets.arm(&target, later),
            }
        }
        if !doubtful.is_empty() {
            self.looking = true;
            for target in &doubtful {
                // Should there be no answer.
                self.targets.arm(target, Some(now + self.settings.read_every));
            }
            self.look_at(doubtful);
        }
    }
}
