//! The decisions of one instance about all targets of a pool: a state machine without I/O, clock or async. It tracks
//! the known holder of every target and claims the targets that placement assigns to this instance.
//!
//! | file | decides |
//! |---|---|
//! | `ownership.rs` | which instance holds which target |
//! | `claims.rs` | when to claim an unheld target |
//! | `balance.rs` | when to give targets away, which, and to which instance |
//! | `reads.rs` | when to read heartbeats; what follows from a join or a leave |
//! | `succession.rs` | which instances take over the targets of one that is gone |
//! | `offers.rs` | whether a handed-over target was accepted |
//! | `home.rs` | to which instance a target goes back after a restart |
//! | `reconcile.rs` | when to look for targets that no announcement has told of |
//!
//! What is known of the instances is in `membership.rs`, of the targets in `table.rs`.

mod balance;
mod claims;
mod home;
mod offers;
mod ownership;
mod reads;
mod reconcile;
mod succession;

use std::collections::BTreeSet;
use std::time::Duration;

use balance::{Balance, OwnPlacement};
use claims::Claims;
use reads::Reads;
use reconcile::Reconcile;

use super::io::{EngineSettings, PoolAction, PoolInput, TargetName};
use super::membership::Membership;
use super::table::{Successor, TargetEntry, TargetState, TargetTable};
use crate::ending::ReleaseReason;
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::name::InstanceId;
use crate::placement::{InstanceLoad, Presence};
use crate::time::Moment;

/// Added to the expiry of a lease: stores count in milliseconds.
const EXPIRY_MARGIN: Duration = Duration::from_millis(2);

/// The engine of one instance in a pool.
#[derive(Debug)]
pub struct Engine {
    pub(super) me: InstanceId,
    settings: EngineSettings,
    weight: u32,
    pub(super) targets: TargetTable,
    membership: Membership,
    draining: bool,
    able: bool,
    claims: Claims,
    balance: Balance,
    reads: Reads,
    reconcile: Reconcile,
    /// The quota and the rankings of this instance; `None` after a change.
    own_placement: Option<OwnPlacement>,
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
            draining: false,
            able: true,
            claims: Claims::new(),
            balance: Balance::new(),
            reads: Reads::new(),
            reconcile: Reconcile::new(),
            own_placement: None,
            plan_at: None,
            actions: Vec::new(),
        }
    }

    /// Plants a bug, for the simulator to find.
    #[cfg(feature = "mutations")]
    pub fn plant(&mut self, mutation: Mutation) {
        self.membership.mutations.plant(mutation);
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
            PoolInput::FleetChanged => self.read_soon(now),
            PoolInput::Gap => self.handle_gap(now),
            PoolInput::Granted(target) => self.handle_granted(now, &target),
            PoolInput::HandedBack(target) => self.mark_home(&target),
            PoolInput::Refused { target, holder, remaining } => self.handle_refused(now, &target, holder, remaining),
            PoolInput::Failed { target, retry_after } => self.handle_failed(now, &target, retry_after),
            PoolInput::TermEnded { target, ending } => self.handle_term_ended(now, &target, &ending),
            PoolInput::Drain => self.set_draining(now, true),
            PoolInput::Undrain => self.set_draining(now, false),
            PoolInput::Able(able) => self.set_able(now, able),
            PoolInput::Reconciler(is_reconciler) => self.reconcile.is_reconciler = is_reconciler,
            PoolInput::Tick => {}
        }
        self.run_timers(now);
        std::mem::take(&mut self.actions)
    }

    /// When to call [`step`](Self::step) again at the latest.
    pub fn next_wake(&self) -> Option<Moment> {
        let (target, read, reconcile) = (self.targets.next_due(), self.reads.next(), self.reconcile.next());
        let balance = self.balance.due(&self.settings);
        [target, Some(read), reconcile, balance, self.plan_at].into_iter().flatten().min()
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

    fn run_timers(&mut self, now: Moment) {
        if self.plan_at.is_some_and(|at| at <= now) {
            self.plan_succession(now);
        }
        let mut ended = Vec::new();
        while let Some((at, target)) = self.targets.pop_due(now) {
            match self.targets.state(&target) {
                Some(TargetState::Unheld { since, .. }) => drop(self.claims.queue.insert((at > *since, at, target))),
                Some(TargetState::HeldByOther { holder }) => {
                    let holder = holder.clone();
                    let successor = self.targets.get(&target).and_then(TargetEntry::successor);
                    if successor == Some(Successor::Us) && !self.membership.is_alive(&holder) {
                        // Claimed without a query: the reply to a claim says as much.
                        self.set_last_holder(&target, Some(holder));
                        self.targets.set_state(&target, TargetState::Unheld { since: at, seen: now });
                        self.claims.queue.insert((false, at, target));
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
        if now >= self.reads.next() {
            self.read_instances(now);
        }
        if self.balance.due(&self.settings).is_some_and(|at| now >= at) {
            self.read_then_rebalance(now);
        }
        self.reconcile(now);
    }
}

#[cfg(test)]
mod tests;
