//! Which instances take over the targets of instances that are gone. It is decided while their leases still run, so
//! that each instance claims its own part at the moment a lease expires.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{EXPIRY_MARGIN, Engine};
use crate::name::InstanceId;
use crate::placement::{self, TargetScore};
use crate::pool::io::{PoolAction, TargetName};
use crate::pool::table::{Successor, TargetState};
use crate::time::Moment;

/// The delay from finding a target of an instance that is gone to the plan: there may be more such targets.
const PLAN_SUCCESSION_DELAY: Duration = Duration::from_millis(50);

impl Engine {
    /// Records that the holder of a target is gone, and when its lease expires, if known.
    pub(super) fn mark_orphaned(&mut self, now: Moment, target: &TargetName, ends: Option<Moment>) {
        if let Some(entry) = self.targets.get_mut(target) {
            let orphan = entry.orphan.get_or_insert_default();
            orphan.ends = ends;
            if orphan.successor.is_none() {
                self.plan_at.get_or_insert(now + PLAN_SUCCESSION_DELAY);
            }
        }
        self.schedule_expiry(now, target);
    }

    /// Handles the list of targets that an instance held before it was gone.
    pub(super) fn handle_previously_held(&mut self, now: Moment, instance: &InstanceId, targets: Vec<TargetName>) {
        let mut held = Vec::new();
        for target in targets {
            match self.targets.state(&target) {
                // This instance holds it by now, or it is not a target any more.
                Some(TargetState::Held | TargetState::Releasing { .. }) | None => {
                    self.actions.push(PoolAction::Forget { instance: instance.clone(), target });
                }
                Some(TargetState::Unheld { .. } | TargetState::Claiming) => {}
                Some(TargetState::Unknown | TargetState::HeldByOther { .. }) => held.push(target),
            }
        }
        for target in &held {
            if self.targets.state(target) == Some(&TargetState::Unknown) {
                self.targets.set_state(target, TargetState::HeldByOther { holder: instance.clone() });
            }
            let is_theirs =
                matches!(self.targets.state(target), Some(TargetState::HeldByOther { holder }) if holder == instance);
            if let Some(entry) = self.targets.get_mut(target).filter(|_| is_theirs) {
                entry.orphan.get_or_insert_default();
            }
        }
        // Targets we believed it held that are not on its list: they were released or handed over, and we missed the
        // announcement.
        let listed: BTreeSet<&TargetName> = held.iter().collect();
        let is_theirs =
            |state: &TargetState| matches!(state, TargetState::HeldByOther { holder } if holder == instance);
        let moved = self.targets.in_state(is_theirs).into_iter().filter(|target| !listed.contains(target));
        let moved: Vec<TargetName> = moved.filter(|target| !self.targets.has_due(target)).collect();
        if !moved.is_empty() {
            self.query_holders(moved);
        }
        self.plan_succession(now);
        // Query those that we take over first: their expiry must be known before it comes.
        let is_ours = |target: &TargetName| {
            self.targets.get(target).is_some_and(|entry| entry.successor() == Some(Successor::Us))
        };
        held.sort_by_key(|target| !is_ours(target));
        held.into_iter().for_each(|target| self.inspect(target));
    }

    /// Plans which instances take over the targets of instances that are gone, before their leases expire. Each then
    /// takes its own part, and no instance has to see first what the others leave.
    pub(super) fn plan_succession(&mut self, now: Moment) {
        self.plan_at = None;
        let (membership, me) = (&self.membership, &self.me);
        let is_gone = |holder: &InstanceId| holder != me && !membership.is_alive(holder);
        let mut orphans = Vec::new();
        for (target, entry) in self.targets.iter_mut().filter(|(_, entry)| entry.orphan.is_some()) {
            let is_orphan = match entry.state() {
                TargetState::HeldByOther { holder } => is_gone(holder),
                // A target that is already being claimed keeps its place in the plan.
                TargetState::Unheld { .. } | TargetState::Claiming => entry.last_holder.as_ref().is_some_and(is_gone),
                TargetState::Unknown | TargetState::Held | TargetState::Releasing { .. } => false,
            };
            if is_orphan && entry.wanted {
                orphans.push((target.clone(), entry.score));
            } else {
                entry.orphan = None;
            }
        }
        if orphans.is_empty() {
            return;
        }
        let loads = self.loads(now);
        let quotas = placement::quotas(&loads, self.unheld_count(&loads));
        let scores: Vec<TargetScore> = orphans.iter().map(|(_, score)| *score).collect();
        let successors = placement::successors(&loads, &quotas, &scores);
        // After an outage the former holders go first.
        let is_outage = self.membership.outage_grace_until(now).is_some();
        // This instance is the last of the loads.
        let own = loads.len() - 1;
        for ((target, _), at) in orphans.into_iter().zip(successors) {
            let successor = at.map(|at| if at == own { Successor::Us } else { Successor::Other });
            if let Some(orphan) = self.targets.get_mut(&target).and_then(|entry| entry.orphan.as_mut()) {
                orphan.successor = successor.filter(|_| !is_outage);
            }
            match self.targets.state(&target) {
                Some(TargetState::HeldByOther { .. }) => self.schedule_expiry(now, &target),
                Some(TargetState::Unheld { .. }) => self.schedule_claim(now, &target),
                _ => {}
            }
        }
    }

    /// Schedules a check when the lease of a holder that is gone has expired: at once if this instance takes it over,
    /// otherwise after the successor's turn.
    fn schedule_expiry(&mut self, now: Moment, target: &TargetName) {
        let Some(entry) = self.targets.get(target) else { return };
        // Its expiry may not be known yet: then a pending query will report it.
        let Some(ends) = entry.orphan.and_then(|orphan| orphan.ends) else { return };
        let (successor, score) = (entry.successor(), entry.score);
        let claim_delay = match successor {
            Some(Successor::Other) => self.delay_behind_successor(now, score),
            Some(Successor::Us) | None => Duration::ZERO,
        };
        self.targets.set_due(target, Some(ends + EXPIRY_MARGIN + claim_delay));
    }

    /// How long the successor of a target has to claim it before this instance does.
    pub(super) fn delay_behind_successor(&mut self, now: Moment, score: TargetScore) -> Duration {
        let rank = self.own_placement(now).ranking.rank(score);
        placement::claim_delay(rank + 1, true, self.settings.max_claim_delay)
    }
}
