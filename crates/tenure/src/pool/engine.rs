//! What one instance does about all targets of a pool: a state machine without I/O, clock or async. It knows of every target who
//! holds it, as far as it was told, and asks for those that it should have; placement says which.

mod home;
mod offers;
mod succession;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::lease::{Ending, Loss, ReleaseReason};
use crate::name::InstanceId;
use crate::placement::{self, InstanceLoad, MoveReason, Presence, Ranking, TargetScore};
use crate::store::LiveInstance;
use crate::time::Moment;

use super::io::{EngineSettings, PoolAction, PoolInput, Target};
use super::membership::Membership;
use super::table::{Successor, TargetEntry, TargetState, TargetTable};
use home::TargetHome;

/// How many of its targets an instance gives away at once for balance, as a fraction.
const MOVES_PER_ROUND_DIVISOR: usize = 10;

/// How long whoever is back after an outage has for asking for what it had.
const RECLAIM_WINDOW: Duration = Duration::from_secs(1);

/// How many rounds of a scout there are for one in which it looks at everything, whatever the others say.
const RECONCILE_FULL_EVERY: u32 = 10;

/// How many claims are on their way at once, and how many targets are looked at in one go: what is urgent must not be behind all of them.
const MAX_CLAIMS_IN_FLIGHT: usize = 512;

/// What was seen to be unheld may be claimed for this long. After that somebody else may have it, and a look costs less than a claim.
const UNHELD_FRESH_FOR: Duration = Duration::from_millis(200);

/// For how many graces whoever has no room leaves unheld targets to those who are taking them, at most.
const MAX_CLAIM_DELAYS: u32 = 10;

/// What one heartbeat in one reading may cost, with everything around it, and how long one waits for that at most.
const READ_COST_PER_HEARTBEAT: Duration = Duration::from_micros(50);
const MAX_READ_SPACING: Duration = Duration::from_secs(1);

/// Just after a lease has expired: stores count in milliseconds.
const EXPIRY_MARGIN: Duration = Duration::from_millis(2);

/// Where this instance stands among the others.
#[derive(Debug)]
struct OwnPlacement {
    quota: usize,
    ranking: Ranking,
    /// Whether there is an instance that takes what it should have.
    any_eligible: bool,
}

/// What one instance does about a pool.
#[derive(Debug)]
pub struct Engine {
    pub(super) me: InstanceId,
    settings: EngineSettings,
    weight: u32,
    pub(super) targets: TargetTable,
    membership: Membership,
    /// What is to be asked for as soon as not too much is on its way: what suits nobody better first, and then by when its turn came.
    claim_queue: BTreeSet<(bool, Moment, Target)>,
    /// Whether some of these are being looked at.
    rechecking: bool,
    /// When somebody was last seen to have taken what nobody held.
    last_taken_at: Moment,
    draining: bool,
    able: bool,
    is_reconciler: bool,
    /// What this instance should hold, and whom a target suits better, until something changes.
    own_placement: Option<OwnPlacement>,
    /// Since when it has been quiet, and since when it has not been balanced.
    quiet_since: Moment,
    unsettled_since: Option<Moment>,
    next_read: Moment,
    /// When heartbeats were last asked for.
    last_read_at: Moment,
    next_reconcile: Moment,
    /// How often was scouted.
    reconcile_rounds: u32,
    /// Whether heartbeats are being read, and whether they are to be read once more after that: of two readings nobody knows which is the later.
    reading: bool,
    read_again: bool,
    /// Whether a reading of heartbeats was asked for to balance by.
    balancing: bool,
    /// How many of what was given away for balance are still on their way.
    moves_in_flight: usize,
    /// When it is decided again who takes over what instances held that are gone.
    plan_at: Option<Moment>,
    actions: Vec<PoolAction>,
}

impl Engine {
    /// An instance that has just come.
    pub fn new(me: InstanceId, pool: &str, weight: u32, settings: EngineSettings) -> Self {
        Self {
            membership: Membership::new(me.clone(), pool, &settings),
            me,
            settings,
            weight,
            targets: TargetTable::default(),
            claim_queue: BTreeSet::new(),
            rechecking: false,
            last_taken_at: Moment::ZERO,
            draining: false,
            able: true,
            is_reconciler: false,
            own_placement: None,
            quiet_since: Moment::ZERO,
            unsettled_since: None,
            next_read: Moment::ZERO,
            last_read_at: Moment::ZERO,
            next_reconcile: Moment::ZERO,
            reconcile_rounds: 0,
            reading: false,
            read_again: false,
            balancing: false,
            moves_in_flight: 0,
            plan_at: None,
            actions: Vec::new(),
        }
    }

    /// Takes in what happened, and returns what is to be done.
    pub fn step(&mut self, now: Moment, input: PoolInput) -> Vec<PoolAction> {
        match input {
            PoolInput::Targets(targets) => self.set_targets(now, &targets),
            PoolInput::Instances(members) => self.update_instances(now, members),
            PoolInput::ReadFailed => self.handle_read_failed(now),
            PoolInput::Holders(holders) => self.update_holders(now, holders),
            PoolInput::Report { target, held } => self.update_holder(now, &target, held),
            PoolInput::PreviouslyHeld { instance, targets } => self.handle_previously_held(now, &instance, targets),
            PoolInput::Released(target) => {
                self.mark_heard(&target);
                self.handle_released(now, &target);
            }
            PoolInput::Unheld(target) => self.mark_unheld(now, &target),
            PoolInput::HandedOver { target, to } => {
                self.mark_heard(&target);
                self.handle_handed_over(now, &target, to);
            }
            PoolInput::ClaimNow(target) => self.claim_now(&target),
            PoolInput::FleetChanged => {
                self.next_read = self.next_read.min(now.max(self.last_read_at + self.read_spacing()))
            }
            PoolInput::Gap => self.handle_gap(now),
            PoolInput::Granted(target) => self.handle_granted(now, &target),
            PoolInput::HandedBack(target) => self.mark_home(&target),
            PoolInput::Refused { target, holder, remaining } => self.handle_refused(now, &target, holder, remaining),
            PoolInput::Failed { target, retry_after } => self.handle_failed(now, &target, retry_after),
            PoolInput::TermEnded { target, ending } => self.handle_term_ended(now, &target, &ending),
            PoolInput::Drain => self.set_draining(now, true),
            PoolInput::Undrain => self.set_draining(now, false),
            PoolInput::Able(able) => self.set_able(now, able),
            PoolInput::Reconciler(is_reconciler) => self.is_reconciler = is_reconciler,
            PoolInput::Tick => {}
        }
        self.run_timers(now);
        std::mem::take(&mut self.actions)
    }

    /// When to come back at the latest.
    pub fn next_wake(&self) -> Option<Moment> {
        let target = self.targets.next_due();
        let reconcile = self.is_reconciler.then_some(self.next_reconcile);
        let balance = self.unsettled_since.filter(|_| !self.balancing).map(|since| self.balance_at(since));
        [target, Some(self.next_read), reconcile, balance, self.plan_at].into_iter().flatten().min()
    }

    /// How many targets are held.
    pub fn held(&self) -> usize {
        self.targets.held() + self.targets.releasing()
    }

    /// Whether nothing is held and nothing is being asked for.
    pub fn is_empty(&self) -> bool {
        self.held() == 0 && self.targets.claiming() == 0
    }

    /// Who counts as there, this instance last.
    pub fn loads(&self, now: Moment) -> Vec<InstanceLoad> {
        let mut loads = self.membership.loads(now, |instance| self.targets.held_by(instance));
        // What is on its way is as good as there.
        loads.iter_mut().for_each(|load| load.held += self.targets.promised_to(&load.instance));
        loads.push(InstanceLoad {
            instance: self.me.clone(),
            weight: self.weight,
            held: self.targets.held(),
            presence: match (self.draining, self.able) {
                (true, _) => Presence::Draining,
                (false, false) => Presence::Unable,
                // The others offer us nothing, either.
                (false, true) if self.membership.is_waiting(now, &self.me) => Presence::Capped,
                (false, true) => Presence::Ready,
            },
        });
        loads
    }

    /// Instances that wait for their share because they crashed: for how long, and how often they did.
    pub fn crash_backoffs(&self, now: Moment) -> Vec<(InstanceId, Duration, u32)> {
        self.membership.crash_backoffs(now)
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
    pub fn is_claiming(&self, target: &str) -> bool {
        self.targets.state(target) == Some(&TargetState::Claiming)
    }

    /// Who holds a target, as far as is known.
    pub fn holder(&self, target: &str) -> Option<&InstanceId> {
        match self.targets.state(target)? {
            TargetState::Held | TargetState::Releasing { .. } => Some(&self.me),
            TargetState::HeldByOther { holder } => Some(holder),
            TargetState::Unknown | TargetState::Unheld { .. } | TargetState::Claiming => None,
        }
    }

    // What there is.

    fn set_targets(&mut self, now: Moment, targets: &BTreeSet<Target>) {
        let gone = self.targets.iter().filter(|(known, entry)| entry.wanted && !targets.contains(*known));
        let gone: Vec<Target> = gone.map(|(target, _)| target.clone()).collect();
        for target in &gone {
            self.release(target, ReleaseReason::Removed);
            match self.targets.get_mut(target) {
                // What is on its way comes to an end first: a claim that is granted after all is let go of then.
                Some(entry) if matches!(entry.state(), TargetState::Claiming | TargetState::Releasing { .. }) => {
                    entry.wanted = false
                }
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
            self.mark_unsettled(now);
        }
        if !new.is_empty() {
            self.query_holders(new);
        }
    }

    fn update_instances(&mut self, now: Moment, members: Vec<LiveInstance>) {
        let targets = &self.targets;
        let update = self.membership.update(now, members, |instance| targets.held_by(instance));
        self.actions.extend(update.left.iter().cloned().map(PoolAction::QueryHeldIndex));
        let moved = update.joined || !update.left.is_empty();
        if moved {
            self.mark_unsettled(now);
        }
        if moved || update.changed || update.exceptions_changed {
            self.own_placement = None;
        }
        if update.is_first || update.exceptions_changed {
            self.schedule_claims(now);
        }
        if moved || update.exceptions_changed {
            self.plan_succession(now);
        }
        if moved || update.changed {
            self.watch_offers(now);
        }
        if update.backoffs_changed {
            self.actions.push(PoolAction::PublishRecord);
        }
        self.next_read = now + self.settings.read_every;
        if let Some(pardon) = self.membership.next_backoff_end() {
            self.next_read = self.next_read.min(pardon);
        }
        if let Some(doubt) = self.membership.next_late_at() {
            // Not too often, however many there are to be doubted.
            self.next_read = self.next_read.min(doubt.max(now + self.settings.late_recheck_every));
        }
        let begun_before = self.finish_read(now);
        if self.is_evacuating() {
            self.balancing = false;
            self.evacuate(now);
        } else if self.balancing && !begun_before {
            self.balancing = false;
            self.rebalance(now);
        } else if self.held() > self.own_quota(now) {
            self.unsettled_since.get_or_insert(now);
        }
    }

    /// Nothing is decided by what was read before.
    fn handle_read_failed(&mut self, now: Moment) {
        self.finish_read(now);
        if std::mem::take(&mut self.balancing) {
            self.quiet_since = now;
            self.unsettled_since = Some(now);
        }
    }

    // Who holds what.

    fn update_holders(&mut self, now: Moment, holders: Vec<(Target, Option<InstanceId>)>) {
        self.rechecking = false;
        for (target, holder) in holders {
            if self.is_outdated(&target) {
                continue;
            }
            match holder {
                None => self.confirm_unheld(now, &target),
                Some(holder) => {
                    if holder != self.me && matches!(self.targets.state(&target), Some(TargetState::Unheld { .. })) {
                        self.last_taken_at = now;
                    }
                    self.mark_held_and_watch(now, &target, holder);
                }
            }
        }
    }

    fn update_holder(&mut self, now: Moment, target: &Target, held: Option<(InstanceId, Option<Moment>)>) {
        if self.is_outdated(target) {
            return;
        }
        match held {
            None => self.confirm_unheld(now, target),
            Some((holder, ends)) => {
                let is_quiet = !self.holder_announces(&holder);
                let is_theirs = self.mark_held(now, target, holder);
                self.set_last_holder(target, None);
                // No announcement will say when it has expired.
                if is_theirs && is_quiet {
                    self.mark_orphaned(now, target, ends);
                }
            }
        }
    }

    /// Nobody holds it, says the store.
    fn confirm_unheld(&mut self, now: Moment, target: &Target) {
        let (mut believed, mut offered) = (false, self.unaccepted_receiver(now, target));
        if let Some(entry) = self.targets.get(target)
            && let TargetState::HeldByOther { holder } = entry.state()
        {
            // The others take it for held. What the dead held they look at themselves.
            believed = self.membership.is_alive(holder);
            // What we gave away, looked at after the window: whoever does not have it did not want it.
            let is_ours = entry.last_holder.as_ref() == Some(&self.me) && *holder != self.me;
            offered = offered.or_else(|| Some(holder.clone()).filter(|_| is_ours));
        }
        self.mark_unheld(now, target);
        // We were all away: then nobody could have taken it, and whoever had it asks for it itself.
        if self.membership.outage_grace_until(now).is_some() {
            return;
        }
        // Whoever leaves will not see to it that somebody takes it.
        if self.is_reconciler && believed || self.is_evacuating() && offered.is_some() {
            self.actions.push(PoolAction::AnnounceUnheld(target.clone()));
        }
        if let Some(receiver) = offered {
            self.membership.record_declined(now, receiver.clone());
            self.own_placement = None;
            self.actions.push(PoolAction::Forget { instance: receiver, target: target.clone() });
            // It is not waited for any longer.
            self.schedule_claim(now, target);
        }
    }

    /// Sees who holds these. What is heard from now on is newer than the answer.
    fn query_holders(&mut self, targets: Vec<Target>) {
        for target in &targets {
            if let Some(entry) = self.targets.get_mut(target) {
                entry.heard = false;
            }
        }
        self.actions.push(PoolAction::QueryHolders(targets));
    }

    /// Sees who holds this one, and for how long.
    fn inspect(&mut self, target: Target) {
        if let Some(entry) = self.targets.get_mut(&target) {
            entry.heard = false;
        }
        self.actions.push(PoolAction::Inspect(target));
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
    fn holder_announces(&self, holder: &InstanceId) -> bool {
        *holder != self.me && self.membership.is_announcing(holder)
    }

    /// Somebody holds it, and for how long is to be found out, unless it will be told.
    fn mark_held_and_watch(&mut self, now: Moment, target: &Target, holder: InstanceId) {
        let (tells, is_foreign) =
            (self.holder_announces(&holder), self.membership.is_alive(&holder) && holder != self.me);
        if !self.mark_held(now, target, holder) || self.targets.has_due(target) {
            return;
        }
        if tells {
            // What we gave away was taken up.
            self.set_last_holder(target, None);
        } else if is_foreign {
            // It lives and renews what it holds; one has to look now and then, at all of it in one go.
            self.targets.set_due(target, Some(now + self.settings.read_every));
        } else {
            self.inspect(target.clone());
        }
    }

    /// Somebody holds it. Whether that leaves it theirs.
    fn mark_held(&mut self, now: Moment, target: &Target, holder: InstanceId) -> bool {
        match self.targets.state(target) {
            None | Some(TargetState::Held | TargetState::Releasing { .. } | TargetState::Claiming) => false,
            Some(TargetState::HeldByOther { holder: before }) if *before == holder => {
                self.record_accepted(now, target);
                true
            }
            // It is kept for us, and we have not heard of it; or an earlier life of this process held it.
            Some(_) if holder == self.me && !self.draining => {
                self.claim(target);
                false
            }
            Some(_) => {
                let is_alive = self.membership.is_alive(&holder);
                self.record_move(now, target, None, &holder);
                self.targets.set_state(target, TargetState::HeldByOther { holder });
                // Whoever had it before is not what matters any more.
                self.set_last_holder(target, None);
                self.targets.set_due(target, None);
                if let Some(entry) = self.targets.get_mut(target).filter(|_| is_alive) {
                    entry.orphan = None;
                }
                true
            }
        }
    }

    fn set_last_holder(&mut self, target: &Target, last: Option<InstanceId>) {
        if let Some(entry) = self.targets.get_mut(target) {
            entry.last_holder = last;
        }
    }

    fn mark_unheld(&mut self, now: Moment, target: &Target) {
        let since = match self.targets.state(target) {
            None | Some(TargetState::Held | TargetState::Releasing { .. } | TargetState::Claiming) => return,
            Some(TargetState::Unheld { since, .. }) => *since,
            Some(TargetState::HeldByOther { holder }) => {
                let holder = holder.clone();
                self.set_last_holder(target, Some(holder));
                now
            }
            Some(TargetState::Unknown) => now,
        };
        let known = matches!(self.targets.state(target), Some(TargetState::Unheld { .. }));
        self.targets.set_state(target, TargetState::Unheld { since, seen: now });
        if !known {
            self.mark_unsettled(now);
        }
        self.schedule_claim(now, target);
    }

    fn mark_heard(&mut self, target: &Target) {
        if let Some(entry) = self.targets.get_mut(target) {
            entry.heard = true;
        }
    }

    fn handle_released(&mut self, now: Moment, target: &Target) {
        if matches!(
            self.targets.state(target),
            Some(TargetState::HeldByOther { .. } | TargetState::Unknown | TargetState::Unheld { .. })
        ) {
            if let Some(TargetState::HeldByOther { holder }) = self.targets.state(target) {
                let holder = holder.clone();
                self.remember_home(now, target, &holder);
            }
            self.mark_unheld(now, target);
            // Let go of on purpose: nobody is waited for, and whatever it was before, it is free as of now.
            self.set_last_holder(target, None);
            self.targets.set_state(target, TargetState::Unheld { since: now, seen: now });
            self.schedule_claim(now, target);
        }
    }

    fn handle_handed_over(&mut self, now: Moment, target: &Target, to: InstanceId) {
        if to == self.me {
            self.record_move(now, target, None, &to);
            if matches!(
                self.targets.state(target),
                Some(TargetState::HeldByOther { .. } | TargetState::Unknown | TargetState::Unheld { .. })
            ) {
                // Whoever gives it has said why.
                self.set_last_holder(target, None);
                self.claim(target);
            }
            return;
        }
        self.record_offer(now, target, to);
        self.mark_unsettled(now);
    }

    fn handle_gap(&mut self, now: Moment) {
        self.next_read = now;
        // Nobody knows for how long.
        for target in self.targets.in_state(|state| matches!(state, TargetState::Unheld { .. })) {
            self.targets.set_state(&target, TargetState::Unknown);
        }
        let others =
            self.targets.in_state(|state| matches!(state, TargetState::HeldByOther { .. } | TargetState::Unknown));
        if !others.is_empty() {
            self.query_holders(others);
        }
    }

    // What is ours.

    fn schedule_claim(&mut self, now: Moment, target: &Target) {
        let turn = self.claim_at(now, target);
        self.targets.set_due(target, turn);
    }

    fn schedule_claims(&mut self, now: Moment) {
        for target in self.targets.in_state(|state| matches!(state, TargetState::Unheld { .. })) {
            self.schedule_claim(now, &target);
        }
    }

    /// When to ask for a target that nobody holds: at once when it suits nobody better, or when we held it last.
    fn claim_at(&mut self, now: Moment, target: &Target) -> Option<Moment> {
        // One that cannot work takes what no other can: it may be able soon.
        if self.draining || !self.membership.is_initialized() || !self.able && self.own_placement(now).any_eligible {
            return None;
        }
        let has_room = self.has_room(now);
        let (longest, membership) = (self.settings.max_claim_delay, &self.membership);
        let entry = self.targets.get(target)?;
        let TargetState::Unheld { since, .. } = entry.state() else { return None };
        let (since, score, successor) = (*since, entry.score, entry.successor());
        Some(match &entry.last_holder {
            Some(last) if *last == self.me => since,
            // Whoever held it has not had the time to ask for it again.
            Some(last) if membership.awaited_until(now, last).is_some() => membership.awaited_until(now, last)?,
            // It is back, and has as much to ask for as we have.
            Some(last) if membership.is_alive(last) && membership.outage_grace_until(now).is_some() => {
                since.max(membership.joined_at(last).unwrap_or(since)) + longest.max(RECLAIM_WINDOW)
            }
            Some(last) if membership.is_alive(last) && !membership.is_waiting(now, last) => since + longest,
            // We were away, and nobody knows who held it: whoever did asks for it when it is back.
            None if membership.outage_grace_until(now).is_some() => {
                membership.any_awaited_until(now).unwrap_or(since + longest.max(RECLAIM_WINDOW))
            }
            _ if successor == Some(Successor::Us) => since,
            _ if successor == Some(Successor::Other) => since + self.delay_behind_successor(now, score),
            _ if has_room => since + placement::claim_delay(self.own_placement(now).ranking.rank(score), true, longest),
            // Those who have room come first, as long as they come.
            _ => {
                since.max(self.last_taken_at).min(since + longest * MAX_CLAIM_DELAYS)
                    + placement::claim_delay(0, false, longest)
            }
        })
    }

    fn claim_now(&mut self, target: &Target) {
        if !self.draining
            && matches!(
                self.targets.state(target),
                Some(TargetState::Unknown | TargetState::Unheld { .. } | TargetState::HeldByOther { .. })
            )
        {
            self.claim(target);
        }
    }

    fn claim(&mut self, target: &Target) {
        if let Some(entry) = self.targets.get_mut(target) {
            entry.heard = false;
            self.targets.set_state(target, TargetState::Claiming);
            self.targets.set_due(target, None);
            self.actions.push(PoolAction::Claim(target.clone()));
        }
    }

    fn handle_granted(&mut self, now: Moment, target: &Target) {
        let me = self.me.clone();
        self.record_move(now, target, None, &me);
        let Some(entry) = self.targets.get_mut(target) else { return };
        let wanted = entry.wanted;
        let last = entry.last_holder.replace(self.me.clone()).filter(|last| *last != self.me);
        entry.orphan = None;
        self.targets.set_state(target, TargetState::Held);
        if let Some(instance) = last {
            self.actions.push(PoolAction::RecordTakeover { target: target.clone(), from: instance.clone() });
            self.actions.push(PoolAction::Forget { instance, target: target.clone() });
        }
        self.actions.push(PoolAction::PublishRecord);
        if !wanted {
            self.release(target, ReleaseReason::Removed);
        } else if self.is_evacuating() {
            self.evacuate(now);
        } else if self.held() > self.own_quota(now) {
            self.mark_unsettled(now);
        }
    }

    fn handle_refused(&mut self, now: Moment, target: &Target, holder: InstanceId, remaining: Option<Duration>) {
        if self.end_claim(target) {
            self.last_taken_at = now;
            // By ourselves: then asking again is of no use before it has ended.
            if holder == self.me {
                self.targets.set_state(target, TargetState::HeldByOther { holder: holder.clone() });
            }
            self.update_holder(now, target, Some((holder, remaining.map(|left| now + left))));
        }
    }

    fn handle_failed(&mut self, now: Moment, target: &Target, retry_after: Duration) {
        if self.end_claim(target) {
            self.targets.set_state(target, TargetState::Unheld { since: now + retry_after, seen: now });
            self.schedule_claim(now, target);
        }
    }

    /// A claim has come to nothing. Whether the target is still wanted.
    fn end_claim(&mut self, target: &Target) -> bool {
        let asked = self.targets.get(target).filter(|entry| *entry.state() == TargetState::Claiming);
        let Some(wanted) = asked.map(|entry| entry.wanted) else { return false };
        if wanted {
            self.targets.set_state(target, TargetState::Unknown);
        } else {
            self.targets.forget(target);
        }
        wanted
    }

    fn handle_term_ended(&mut self, now: Moment, target: &Target, ending: &Ending) {
        let Some(entry) = self.targets.get(target) else { return };
        let (left, to) = match entry.state() {
            TargetState::Releasing { to } => (true, to.clone()),
            TargetState::Held => (false, None),
            _ => return,
        };
        let wanted = entry.wanted;
        if left {
            self.moves_in_flight = self.moves_in_flight.saturating_sub(1);
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
                self.membership.record_given(now, &to);
                let me = self.me.clone();
                self.record_move(now, target, Some(&me), &to);
                self.targets.set_state(target, TargetState::HeldByOther { holder: to });
                self.set_last_holder(target, Some(self.me.clone()));
                // Whether it was taken up, nobody says.
                let at = now + self.settings.accept_window + EXPIRY_MARGIN;
                self.targets.set_due(target, Some(at));
            }
            (_, Ending::Released(_)) => {
                self.targets.set_state(target, TargetState::Unknown);
                self.set_last_holder(target, None);
                self.mark_unheld(now, target);
            }
            // Whoever has it now, or nobody: then it is ours again.
            _ => {
                self.targets.set_state(target, TargetState::Unknown);
                if !matches!(ending, Ending::Lost(Loss::Taken { .. })) {
                    self.targets.mark_unheld(target, now);
                }
                self.membership.record_loss(now);
                self.inspect(target.clone());
            }
        }
        self.actions.push(PoolAction::PublishRecord);
        if left && self.moves_in_flight == 0 && !self.is_evacuating() && self.held() > self.own_quota(now) {
            self.read_then_rebalance(now);
        } else {
            self.mark_unsettled(now);
        }
    }

    fn release(&mut self, target: &Target, reason: ReleaseReason) {
        if self.targets.state(target) == Some(&TargetState::Held) {
            self.targets.set_state(target, TargetState::Releasing { to: None });
            self.actions.push(PoolAction::Release { target: target.clone(), reason });
        }
    }

    fn hand_over(&mut self, now: Moment, target: &Target, to: InstanceId, reason: MoveReason) {
        if self.targets.state(target) == Some(&TargetState::Held) {
            let reason = if self.home_instance(now, target) == Some(&to) { MoveReason::HandBack } else { reason };
            self.targets.set_state(target, TargetState::Releasing { to: Some(to.clone()) });
            self.actions.push(PoolAction::HandOver { target: target.clone(), to, reason });
        }
    }

    // Balance.

    fn mark_unsettled(&mut self, now: Moment) {
        self.quiet_since = now;
        self.own_placement = None;
        if self.held() > 0 {
            self.unsettled_since.get_or_insert(now);
        }
    }

    /// When to move something for balance: after a while of quiet, or when that has not come for too long.
    fn balance_at(&self, unsettled_since: Moment) -> Moment {
        (self.quiet_since + self.settings.settle).min(unsettled_since + self.settings.max_settle)
    }

    /// Balances by what is so now, not by what was read a while ago.
    fn read_then_rebalance(&mut self, now: Moment) {
        self.unsettled_since = None;
        self.balancing = true;
        self.read_instances(now);
    }

    fn read_instances(&mut self, now: Moment) {
        self.last_read_at = now;
        self.next_read = now + self.settings.read_every;
        if self.reading {
            self.read_again = true;
        } else {
            self.reading = true;
            self.actions.push(PoolAction::ReadInstances);
        }
    }

    /// How long after a reading the next may follow, whatever is announced: when everybody comes at once, everybody reads of everybody.
    fn read_spacing(&self) -> Duration {
        let others = u32::try_from(self.membership.count()).unwrap_or(u32::MAX).min(1_000);
        (READ_COST_PER_HEARTBEAT * others * others).min(MAX_READ_SPACING)
    }

    /// A reading is over. Returns whether another was wanted meanwhile, and is begun.
    fn finish_read(&mut self, now: Moment) -> bool {
        self.reading = false;
        let again = std::mem::take(&mut self.read_again);
        if again {
            self.read_instances(now);
        }
        again
    }

    /// Gives away what is held beyond the share, a little at a time.
    fn rebalance(&mut self, now: Moment) {
        self.unsettled_since = None;
        let budget = (self.held() / MOVES_PER_ROUND_DIVISOR).max(1);
        let moves = self.planned_moves(now, budget);
        // The rest follows when these have left.
        self.moves_in_flight = moves.len();
        let reason = MoveReason::Surplus { held: self.held(), quota: self.own_quota(now) };
        for (target, to) in moves {
            self.hand_over(now, &target, to, reason);
        }
    }

    /// Whether this instance should hold nothing.
    fn is_evacuating(&self) -> bool {
        self.draining || !self.able
    }

    fn evacuate(&mut self, now: Moment) {
        let reason = if self.draining { MoveReason::Draining } else { MoveReason::Unable };
        for (target, to) in self.planned_moves(now, usize::MAX) {
            self.hand_over(now, &target, to, reason);
        }
        // With no instance to take them, they are released; but one that cannot work keeps them: it may be able again before
        // another comes.
        if self.draining && !self.loads(now).iter().any(InstanceLoad::is_eligible) {
            for target in self.targets.in_state(|state| *state == TargetState::Held) {
                self.release(&target, ReleaseReason::Shutdown);
            }
        }
    }

    /// What is to be given away, and to whom.
    pub(super) fn planned_moves(&self, now: Moment, budget: usize) -> Vec<(Target, InstanceId)> {
        let (names, scores): (Vec<&Target>, Vec<TargetScore>) = self
            .targets
            .iter()
            .filter(|(_, entry)| *entry.state() == TargetState::Held)
            .map(|(target, entry)| (target, entry.score))
            .unzip();
        let loads = self.loads(now);
        let quotas = placement::quotas(&loads, self.unheld_count(&loads));
        let homes: Vec<TargetHome> = names.iter().map(|target| self.target_home(now, target)).collect();
        let preference = |target: usize, to: usize| homes[target].preference(&loads[to].instance);
        let moves = placement::plan_handoffs(&self.me, &loads, &quotas, &scores, preference);
        let handoff = |handoff: placement::Handoff| {
            Some(((*names.get(handoff.target)?).clone(), loads.get(handoff.to)?.instance.clone()))
        };
        let is_given = |(_, to): &(Target, InstanceId)| {
            self.settings.hand_back || self.is_evacuating() || !self.membership.was_restarted(to)
        };
        moves.into_iter().filter_map(handoff).filter(is_given).take(budget).collect()
    }

    pub(super) fn unheld_count(&self, loads: &[InstanceLoad]) -> usize {
        let held = loads.iter().fold(0, |held: usize, load| held.saturating_add(load.held));
        self.targets.len().saturating_sub(held)
    }

    fn own_quota(&mut self, now: Moment) -> usize {
        self.own_placement(now).quota
    }

    fn own_placement(&mut self, now: Moment) -> &OwnPlacement {
        let place = match self.own_placement.take() {
            Some(place) => place,
            None => {
                let loads = self.loads(now);
                let quotas = placement::quotas(&loads, self.unheld_count(&loads));
                // This instance stands last among its peers.
                let quota = quotas.last().copied().unwrap_or(0);
                let any_eligible = loads.iter().any(InstanceLoad::is_eligible);
                OwnPlacement { quota, ranking: Ranking::new(&self.me, &loads), any_eligible }
            }
        };
        self.own_placement.insert(place)
    }

    fn has_room(&mut self, now: Moment) -> bool {
        self.held() + self.targets.claiming() < self.own_quota(now)
    }

    fn set_draining(&mut self, now: Moment, draining: bool) {
        if self.draining == draining {
            return;
        }
        self.draining = draining;
        self.own_placement = None;
        self.schedule_claims(now);
        if draining {
            // Who is there now decides who gets what.
            self.read_instances(now);
        }
    }

    fn set_able(&mut self, now: Moment, able: bool) {
        if self.able == able {
            return;
        }
        self.able = able;
        self.own_placement = None;
        self.schedule_claims(now);
        // Who is there now, and able, decides who gets what.
        self.read_instances(now);
    }

    // Time.

    fn run_timers(&mut self, now: Moment) {
        if self.plan_at.is_some_and(|at| at <= now) {
            self.plan_succession(now);
        }
        let mut ended = Vec::new();
        while let Some((at, target)) = self.targets.pop_due(now) {
            match self.targets.state(&target) {
                Some(TargetState::Unheld { since, .. }) => drop(self.claim_queue.insert((at > *since, at, target))),
                Some(TargetState::HeldByOther { holder }) => {
                    let holder = holder.clone();
                    let successor = self.targets.get(&target).and_then(TargetEntry::successor);
                    if successor == Some(Successor::Us) && !self.membership.is_alive(&holder) {
                        // Claimed without a look: a claim says as much.
                        self.set_last_holder(&target, Some(holder));
                        self.targets.set_state(&target, TargetState::Unheld { since: at, seen: now });
                        self.claim_queue.insert((false, at, target));
                    } else {
                        ended.push(target);
                    }
                }
                _ => {}
            }
        }
        if !ended.is_empty() {
            self.query_holders(ended);
        }
        self.send_claims(now);
        if now >= self.next_read {
            self.read_instances(now);
        }
        if let Some(since) = self.unsettled_since
            && !self.balancing
            && now >= self.balance_at(since)
        {
            self.read_then_rebalance(now);
        }
        if self.is_reconciler && now >= self.next_reconcile {
            self.next_reconcile = now + self.settings.reconcile_every;
            self.reconcile_rounds = self.reconcile_rounds.wrapping_add(1);
            // By what everybody says that it holds, nothing is missing: then now and then is enough.
            if self.unheld_count(&self.loads(now)) == 0 && !self.reconcile_rounds.is_multiple_of(RECONCILE_FULL_EVERY) {
                return;
            }
            let others =
                self.targets.in_state(|state| matches!(state, TargetState::HeldByOther { .. } | TargetState::Unknown));
            if !others.is_empty() {
                self.query_holders(others);
            }
        }
    }

    /// Asks for what is in line, as long as not too much is on its way.
    fn send_claims(&mut self, now: Moment) {
        let mut doubtful = Vec::new();
        while self.targets.claiming() + doubtful.len() < MAX_CLAIMS_IN_FLIGHT {
            let Some((waited, at, target)) = self.claim_queue.pop_first() else { break };
            let Some(TargetState::Unheld { seen, .. }) = self.targets.state(&target) else { continue };
            let fresh = now.since(*seen) <= UNHELD_FRESH_FOR;
            // Worked out again: there may be no room left, or somebody to be waited for.
            match self.claim_at(now, &target) {
                Some(turn) if turn <= now && fresh => self.claim(&target),
                Some(turn) if turn <= now && self.rechecking => {
                    self.claim_queue.insert((waited, at, target));
                    break;
                }
                Some(turn) if turn <= now => doubtful.push(target),
                later => self.targets.set_due(&target, later),
            }
        }
        if !doubtful.is_empty() {
            self.rechecking = true;
            for target in &doubtful {
                // Should there be no answer.
                self.targets.set_due(target, Some(now + self.settings.read_every));
            }
            self.query_holders(doubtful);
        }
    }
}
