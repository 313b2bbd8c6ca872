//! The decisions of one instance about all targets of a pool: a state machine without I/O, clock or async. It tracks
//! the known holder of every target and claims the targets that placement assigns to this instance.

mod home;
mod offers;
mod succession;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::ending::{Ending, Loss, ReleaseReason};
use crate::name::InstanceId;
use crate::placement::{self, InstanceLoad, MoveReason, Presence, Ranking, TargetScore};
use crate::store::LiveInstance;
use crate::time::Moment;

use super::io::{EngineSettings, PoolAction, PoolInput, TargetName};
use super::membership::Membership;
use super::table::{Successor, TargetEntry, TargetState, TargetTable};
use home::TargetHome;

/// An instance moves at most this fraction of its targets at once to rebalance.
const MOVES_PER_ROUND_DIVISOR: usize = 10;

/// How long an instance that is back after an outage has to claim its former targets.
const RECLAIM_WINDOW: Duration = Duration::from_secs(1);

/// Every so many rounds, the reconciler checks all targets, even if the published counts say that none is unheld.
const RECONCILE_FULL_EVERY: u32 = 10;

/// The limit of claims in flight, and of targets queried at once, so that urgent requests do not queue behind all of
/// them.
const MAX_CLAIMS_IN_FLIGHT: usize = 512;

/// How long a target seen as unheld may be claimed without another query. Later, another instance may hold it, and a
/// query costs less than a claim.
const UNHELD_FRESH_FOR: Duration = Duration::from_millis(200);

/// The limit, in claim delays, for which an instance without room leaves unheld targets to instances that are claiming
/// them.
const MAX_CLAIM_DELAYS: u32 = 10;

/// The assumed total cost of one heartbeat in one read, and the longest wait that follows from it.
const READ_COST_PER_HEARTBEAT: Duration = Duration::from_micros(50);
const MAX_READ_SPACING: Duration = Duration::from_secs(1);

/// Added to the expiry of a lease: stores count in milliseconds.
const EXPIRY_MARGIN: Duration = Duration::from_millis(2);

/// The placement of this instance among the others.
#[derive(Debug)]
struct OwnPlacement {
    quota: usize,
    ranking: Ranking,
    /// Whether any instance may take targets.
    any_eligible: bool,
}

/// The engine of one instance in a pool.
#[derive(Debug)]
pub struct Engine {
    pub(super) me: InstanceId,
    settings: EngineSettings,
    weight: u32,
    pub(super) targets: TargetTable,
    membership: Membership,
    /// Targets to claim as soon as fewer claims are in flight: first those that no other instance ranks higher for,
    /// then by claim time.
    claim_queue: BTreeSet<(bool, Moment, TargetName)>,
    /// Whether the holders of some of these are being queried.
    rechecking: bool,
    /// When another instance was last seen to have taken an unheld target.
    last_taken_at: Moment,
    draining: bool,
    able: bool,
    is_reconciler: bool,
    /// The quota and the rankings of this instance; `None` after a change.
    own_placement: Option<OwnPlacement>,
    /// Since when nothing has changed, and since when the pool may be unbalanced.
    quiet_since: Moment,
    unsettled_since: Option<Moment>,
    next_read: Moment,
    /// When heartbeats were last requested.
    last_read_at: Moment,
    next_reconcile: Moment,
    /// Number of reconcile rounds.
    reconcile_rounds: u32,
    /// Whether heartbeats are being read, and whether to read them again afterwards. Reads never overlap, because the
    /// order of two overlapping reads is unknown.
    reading: bool,
    read_again: bool,
    /// Whether a read of heartbeats was requested in order to rebalance.
    balancing: bool,
    /// Number of rebalancing moves still in flight.
    moves_in_flight: usize,
    /// When to plan again which instances take over the targets of instances that are gone.
    plan_at: Option<Moment>,
    actions: Vec<PoolAction>,
}

impl Engine {
    /// The engine of an instance that has just started.
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

    /// Applies an input and returns the actions to take.
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

    /// When to call [`step`](Self::step) again at the latest.
    pub fn next_wake(&self) -> Option<Moment> {
        let target = self.targets.next_due();
        let reconcile = self.is_reconciler.then_some(self.next_reconcile);
        let balance = self.unsettled_since.filter(|_| !self.balancing).map(|since| self.balance_at(since));
        [target, Some(self.next_read), reconcile, balance, self.plan_at].into_iter().flatten().min()
    }

    /// Number of targets held.
    pub fn held(&self) -> usize {
        self.targets.held() + self.targets.releasing()
    }

    /// Whether no target is held or being claimed.
    pub fn is_empty(&self) -> bool {
        self.held() == 0 && self.targets.claiming() == 0
    }

    /// The loads of all instances that count as present, this instance last.
    pub fn loads(&self, now: Moment) -> Vec<InstanceLoad> {
        let mut loads = self.membership.loads(now, |instance| self.targets.held_by(instance));
        // Targets being handed over count for their receiver.
        loads.iter_mut().for_each(|load| load.held += self.targets.promised_to(&load.instance));
        loads.push(InstanceLoad {
            instance: self.me.clone(),
            weight: self.weight,
            held: self.targets.held(),
            presence: match (self.draining, self.able) {
                (true, _) => Presence::Draining,
                (false, false) => Presence::Unable,
                // The other instances offer us nothing, either.
                (false, true) if self.membership.is_waiting(now, &self.me) => Presence::Capped,
                (false, true) => Presence::Ready,
            },
        });
        loads
    }

    /// Instances in crash backoff, with the remaining time and their number of crashes.
    pub fn crash_backoffs(&self, now: Moment) -> Vec<(InstanceId, Duration, u32)> {
        self.membership.crash_backoffs(now)
    }

    /// Whether this instance is handing over all its targets.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether this instance can work.
    pub fn is_able(&self) -> bool {
        self.able
    }

    /// Whether a claim of a target is in flight.
    pub fn is_claiming(&self, target: &str) -> bool {
        self.targets.state(target) == Some(&TargetState::Claiming)
    }

    /// The holder of a target, as far as known.
    pub fn holder(&self, target: &str) -> Option<&InstanceId> {
        match self.targets.state(target)? {
            TargetState::Held | TargetState::Releasing { .. } => Some(&self.me),
            TargetState::HeldByOther { holder } => Some(holder),
            TargetState::Unknown | TargetState::Unheld { .. } | TargetState::Claiming => None,
        }
    }

    // The set of targets.

    fn set_targets(&mut self, now: Moment, targets: &BTreeSet<TargetName>) {
        let gone = self.targets.iter().filter(|(known, entry)| entry.wanted && !targets.contains(*known));
        let gone: Vec<TargetName> = gone.map(|(target, _)| target.clone()).collect();
        for target in &gone {
            self.release(target, ReleaseReason::Removed);
            match self.targets.get_mut(target) {
                // Wait for a request in flight first: a claim that is granted after all is released then.
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
            // Not too often, however many instances are late.
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

    /// After a failed read, decide nothing by an earlier one.
    fn handle_read_failed(&mut self, now: Moment) {
        self.finish_read(now);
        if std::mem::take(&mut self.balancing) {
            self.quiet_since = now;
            self.unsettled_since = Some(now);
        }
    }

    // The holders of targets.

    fn update_holders(&mut self, now: Moment, holders: Vec<(TargetName, Option<InstanceId>)>) {
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

    fn update_holder(&mut self, now: Moment, target: &TargetName, held: Option<(InstanceId, Option<Moment>)>) {
        if self.is_outdated(target) {
            return;
        }
        match held {
            None => self.confirm_unheld(now, target),
            Some((holder, ends)) => {
                let is_quiet = !self.holder_announces(&holder);
                let is_stale_own = holder == self.me;
                let is_theirs = self.mark_held(now, target, holder);
                // The store still names us, for a term that we lost. So no other instance has held the target since, and
                // we stay the first to claim it.
                if !is_stale_own {
                    self.set_last_holder(target, None);
                }
                // No announcement will report its expiry.
                if is_theirs && is_quiet {
                    self.mark_orphaned(now, target, ends);
                }
            }
        }
    }

    /// The store reports that the target is unheld.
    fn confirm_unheld(&mut self, now: Moment, target: &TargetName) {
        let (mut believed, mut offered) = (false, self.unaccepted_receiver(now, target));
        if let Some(entry) = self.targets.get(target)
            && let TargetState::HeldByOther { holder } = entry.state()
        {
            // Other instances believe it is held. They query the targets of dead instances themselves.
            believed = self.membership.is_alive(holder);
            // A target we handed over, checked after the accept window: its receiver has not accepted it.
            let is_ours = entry.last_holder.as_ref() == Some(&self.me) && *holder != self.me;
            offered = offered.or_else(|| Some(holder.clone()).filter(|_| is_ours));
        }
        self.mark_unheld(now, target);
        // After an outage of all instances none could have taken it, and its former holder claims it itself.
        if self.membership.outage_grace_until(now).is_some() {
            return;
        }
        // An instance that leaves will not make sure that another one takes it.
        if self.is_reconciler && believed || self.is_evacuating() && offered.is_some() {
            self.actions.push(PoolAction::AnnounceUnheld(target.clone()));
        }
        if let Some(receiver) = offered {
            self.membership.record_declined(now, receiver.clone());
            self.own_placement = None;
            self.actions.push(PoolAction::Forget { instance: receiver, target: target.clone() });
            // Its receiver is not awaited any longer.
            self.schedule_claim(now, target);
        }
    }

    /// Queries the holders of these targets. Announcements from now on are newer than the reply.
    fn query_holders(&mut self, targets: Vec<TargetName>) {
        for target in &targets {
            if let Some(entry) = self.targets.get_mut(target) {
                entry.heard = false;
            }
        }
        self.actions.push(PoolAction::QueryHolders(targets));
    }

    /// Queries the holder of this target, and for how long it holds it.
    fn inspect(&mut self, target: TargetName) {
        if let Some(entry) = self.targets.get_mut(&target) {
            entry.heard = false;
        }
        self.actions.push(PoolAction::Inspect(target));
    }

    /// Whether a target was announced since its last query, so that the reply may be out of date. If so, queries it
    /// again.
    fn is_outdated(&mut self, target: &TargetName) -> bool {
        let outdated = self.targets.get(target).is_some_and(|entry| entry.heard);
        if outdated {
            self.inspect(target.clone());
        }
        outdated
    }

    /// Whether a holder announces what happens to its targets. An absent instance does not, nor does an earlier process
    /// with our instance id.
    fn holder_announces(&self, holder: &InstanceId) -> bool {
        *holder != self.me && self.membership.is_announcing(holder)
    }

    /// Records the holder of a target. Finds out how long it holds it, unless the holder will announce its release.
    fn mark_held_and_watch(&mut self, now: Moment, target: &TargetName, holder: InstanceId) {
        let (tells, is_foreign) =
            (self.holder_announces(&holder), self.membership.is_alive(&holder) && holder != self.me);
        if !self.mark_held(now, target, holder) || self.targets.has_due(target) {
            return;
        }
        if tells {
            // The receiver of our handover has accepted the target.
            self.set_last_holder(target, None);
        } else if is_foreign {
            // It is alive and renews its leases but announces nothing; query all its targets together now and then.
            self.targets.set_due(target, Some(now + self.settings.read_every));
        } else {
            self.inspect(target.clone());
        }
    }

    /// Records the holder of a target. Returns whether the target then counts as held by it.
    fn mark_held(&mut self, now: Moment, target: &TargetName, holder: InstanceId) -> bool {
        match self.targets.state(target) {
            None | Some(TargetState::Held | TargetState::Releasing { .. } | TargetState::Claiming) => false,
            Some(TargetState::HeldByOther { holder: before }) if *before == holder => {
                self.record_accepted(now, target);
                true
            }
            // The store keeps it for us and we missed the announcement, or an earlier process with our id held it.
            Some(_) if holder == self.me && !self.draining => {
                self.claim(target);
                false
            }
            Some(_) => {
                let is_alive = self.membership.is_alive(&holder);
                self.record_move(now, target, None, &holder);
                self.targets.set_state(target, TargetState::HeldByOther { holder });
                // The holder before does not matter any more.
                self.set_last_holder(target, None);
                self.targets.set_due(target, None);
                if let Some(entry) = self.targets.get_mut(target).filter(|_| is_alive) {
                    entry.orphan = None;
                }
                true
            }
        }
    }

    fn set_last_holder(&mut self, target: &TargetName, last: Option<InstanceId>) {
        if let Some(entry) = self.targets.get_mut(target) {
            entry.last_holder = last;
        }
    }

    fn mark_unheld(&mut self, now: Moment, target: &TargetName) {
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

    fn mark_heard(&mut self, target: &TargetName) {
        if let Some(entry) = self.targets.get_mut(target) {
            entry.heard = true;
        }
    }

    fn handle_released(&mut self, now: Moment, target: &TargetName) {
        if matches!(
            self.targets.state(target),
            Some(TargetState::HeldByOther { .. } | TargetState::Unknown | TargetState::Unheld { .. })
        ) {
            if let Some(TargetState::HeldByOther { holder }) = self.targets.state(target) {
                let holder = holder.clone();
                self.remember_home(now, target, &holder);
            }
            self.mark_unheld(now, target);
            // Released on purpose: no instance is awaited, and the target is unheld as of now, whatever its state was.
            self.set_last_holder(target, None);
            self.targets.set_state(target, TargetState::Unheld { since: now, seen: now });
            self.schedule_claim(now, target);
        }
    }

    fn handle_handed_over(&mut self, now: Moment, target: &TargetName, to: InstanceId) {
        if to == self.me {
            self.record_move(now, target, None, &to);
            if matches!(
                self.targets.state(target),
                Some(TargetState::HeldByOther { .. } | TargetState::Unknown | TargetState::Unheld { .. })
            ) {
                // The giver has recorded the reason.
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
        // It is unknown for how long they have been unheld.
        for target in self.targets.in_state(|state| matches!(state, TargetState::Unheld { .. })) {
            self.targets.set_state(&target, TargetState::Unknown);
        }
        let others =
            self.targets.in_state(|state| matches!(state, TargetState::HeldByOther { .. } | TargetState::Unknown));
        if !others.is_empty() {
            self.query_holders(others);
        }
    }

    // The targets of this instance.

    fn schedule_claim(&mut self, now: Moment, target: &TargetName) {
        let turn = self.claim_at(now, target);
        self.targets.set_due(target, turn);
    }

    fn schedule_claims(&mut self, now: Moment) {
        for target in self.targets.in_state(|state| matches!(state, TargetState::Unheld { .. })) {
            self.schedule_claim(now, &target);
        }
    }

    /// When to claim an unheld target: at once when no other instance ranks higher, or when we held it last.
    fn claim_at(&mut self, now: Moment, target: &TargetName) -> Option<Moment> {
        // An instance that cannot work claims a target only if no other can: it may be able again soon.
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
            // The last holder has not had the time to claim it again.
            Some(last) if membership.awaited_until(now, last).is_some() => membership.awaited_until(now, last)?,
            // The last holder is back, and has as many targets to claim as we have.
            Some(last) if membership.is_alive(last) && membership.outage_grace_until(now).is_some() => {
                since.max(membership.joined_at(last).unwrap_or(since)) + longest.max(RECLAIM_WINDOW)
            }
            Some(last) if membership.is_alive(last) && !membership.is_waiting(now, last) => since + longest,
            // We were away and do not know its last holder, which claims it when it is back.
            None if membership.outage_grace_until(now).is_some() => {
                membership.any_awaited_until(now).unwrap_or(since + longest.max(RECLAIM_WINDOW))
            }
            _ if successor == Some(Successor::Us) => since,
            _ if successor == Some(Successor::Other) => since + self.delay_behind_successor(now, score),
            _ if has_room => since + placement::claim_delay(self.own_placement(now).ranking.rank(score), true, longest),
            // Instances with room go first, as long as they keep claiming.
            _ => {
                since.max(self.last_taken_at).min(since + longest * MAX_CLAIM_DELAYS)
                    + placement::claim_delay(0, false, longest)
            }
        })
    }

    fn claim_now(&mut self, target: &TargetName) {
        if !self.draining
            && matches!(
                self.targets.state(target),
                Some(TargetState::Unknown | TargetState::Unheld { .. } | TargetState::HeldByOther { .. })
            )
        {
            self.claim(target);
        }
    }

    fn claim(&mut self, target: &TargetName) {
        if let Some(entry) = self.targets.get_mut(target) {
            entry.heard = false;
            self.targets.set_state(target, TargetState::Claiming);
            self.targets.set_due(target, None);
            self.actions.push(PoolAction::Claim(target.clone()));
        }
    }

    fn handle_granted(&mut self, now: Moment, target: &TargetName) {
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

    fn handle_refused(&mut self, now: Moment, target: &TargetName, holder: InstanceId, remaining: Option<Duration>) {
        if self.end_claim(target) {
            self.last_taken_at = now;
            // Our own instance holds it: a retry is of no use before that term has ended.
            if holder == self.me {
                self.targets.set_state(target, TargetState::HeldByOther { holder: holder.clone() });
            }
            self.update_holder(now, target, Some((holder, remaining.map(|left| now + left))));
        }
    }

    fn handle_failed(&mut self, now: Moment, target: &TargetName, retry_after: Duration) {
        if self.end_claim(target) {
            self.targets.set_state(target, TargetState::Unheld { since: now + retry_after, seen: now });
            self.schedule_claim(now, target);
        }
    }

    /// Ends an unsuccessful claim. Returns whether the target is still wanted.
    fn end_claim(&mut self, target: &TargetName) -> bool {
        let asked = self.targets.get(target).filter(|entry| *entry.state() == TargetState::Claiming);
        let Some(wanted) = asked.map(|entry| entry.wanted) else { return false };
        if wanted {
            self.targets.set_state(target, TargetState::Unknown);
        } else {
            self.targets.forget(target);
        }
        wanted
    }

    fn handle_term_ended(&mut self, now: Moment, target: &TargetName, ending: &Ending) {
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
                // An acceptance is not announced, so check it after the accept window.
                let at = now + self.settings.accept_window + EXPIRY_MARGIN;
                self.targets.set_due(target, Some(at));
            }
            (_, Ending::Released(_)) => {
                self.targets.set_state(target, TargetState::Unknown);
                self.set_last_holder(target, None);
                self.mark_unheld(now, target);
            }
            // Another instance may hold it now. If none does, we claim it again.
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

    fn release(&mut self, target: &TargetName, reason: ReleaseReason) {
        if self.targets.state(target) == Some(&TargetState::Held) {
            self.targets.set_state(target, TargetState::Releasing { to: None });
            self.actions.push(PoolAction::Release { target: target.clone(), reason });
        }
    }

    fn hand_over(&mut self, now: Moment, target: &TargetName, to: InstanceId, reason: MoveReason) {
        if self.targets.state(target) == Some(&TargetState::Held) {
            let reason = if self.home_instance(now, target) == Some(&to) { MoveReason::HandBack } else { reason };
            self.targets.set_state(target, TargetState::Releasing { to: Some(to.clone()) });
            self.actions.push(PoolAction::HandOver { target: target.clone(), to, reason });
        }
    }

    // Rebalancing.

    fn mark_unsettled(&mut self, now: Moment) {
        self.quiet_since = now;
        self.own_placement = None;
        if self.held() > 0 {
            self.unsettled_since.get_or_insert(now);
        }
    }

    /// When to rebalance: after a quiet period, or when there has been none for too long.
    fn balance_at(&self, unsettled_since: Moment) -> Moment {
        (self.quiet_since + self.settings.settle).min(unsettled_since + self.settings.max_settle)
    }

    /// Rebalances by a new read of heartbeats, not by an old one.
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

    /// The minimum time between two reads, whatever is announced. When all instances join at once, each reads the
    /// heartbeats of all.
    fn read_spacing(&self) -> Duration {
        let others = u32::try_from(self.membership.count()).unwrap_or(u32::MAX).min(1_000);
        (READ_COST_PER_HEARTBEAT * others * others).min(MAX_READ_SPACING)
    }

    /// Ends a read. Returns whether another one was requested meanwhile, and starts it.
    fn finish_read(&mut self, now: Moment) -> bool {
        self.reading = false;
        let again = std::mem::take(&mut self.read_again);
        if again {
            self.read_instances(now);
        }
        again
    }

    /// Hands over the targets above the quota, a few at a time.
    fn rebalance(&mut self, now: Moment) {
        self.unsettled_since = None;
        let budget = (self.held() / MOVES_PER_ROUND_DIVISOR).max(1);
        let moves = self.planned_moves(now, budget);
        // The rest follows when these have been handed over.
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
        // Without an eligible instance, a draining instance releases its targets. One that cannot work keeps them: it
        // may be able again before another joins.
        if self.draining && !self.loads(now).iter().any(InstanceLoad::is_eligible) {
            for target in self.targets.in_state(|state| *state == TargetState::Held) {
                self.release(&target, ReleaseReason::Shutdown);
            }
        }
    }

    /// The targets to hand over, and their receivers.
    pub(super) fn planned_moves(&self, now: Moment, budget: usize) -> Vec<(TargetName, InstanceId)> {
        let (names, scores): (Vec<&TargetName>, Vec<TargetScore>) = self
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
        let is_given = |(_, to): &(TargetName, InstanceId)| {
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
                // This instance is the last of the loads.
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
            // The instances present now decide the placement.
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
        // The instances present and able now decide the placement.
        self.read_instances(now);
    }

    // Timers.

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
                        // Claimed without a query: the reply to a claim says as much.
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
            // By the published counts no target is unheld: then a check now and then is enough.
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

    /// Sends queued claims, as long as not too many are in flight.
    fn send_claims(&mut self, now: Moment) {
        let mut doubtful = Vec::new();
        while self.targets.claiming() + doubtful.len() < MAX_CLAIMS_IN_FLIGHT {
            let Some((waited, at, target)) = self.claim_queue.pop_first() else { break };
            let Some(TargetState::Unheld { seen, .. }) = self.targets.state(&target) else { continue };
            let fresh = now.since(*seen) <= UNHELD_FRESH_FOR;
            // Computed again: there may be no room left, or an instance to wait for.
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
                // In case no reply comes.
                self.targets.set_due(target, Some(now + self.settings.read_every));
            }
            self.query_holders(doubtful);
        }
    }
}
