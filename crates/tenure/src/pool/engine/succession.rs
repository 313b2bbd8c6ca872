//! Who takes over what instances held that are gone: settled while their leases still run, so that each instance claims its
//! own part at the moment when a lease expires.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{AFTER_THE_END, Engine};
use crate::name::InstanceId;
use crate::placement::{self, TargetScore};
use crate::pool::signal::{Action, Target};
use crate::pool::table::{Fate, Successor};
use crate::time::Moment;

/// How long after a target turns out to be one of an instance that is gone it is decided who takes it over: there may be more.
const PLAN_AFTER: Duration = Duration::from_millis(50);

impl Engine {
    /// The holder of a target is gone, and its lease ends then, if that is known.
    pub(super) fn is_orphaned(&mut self, now: Moment, target: &Target, ends: Option<Moment>) {
        if let Some(entry) = self.targets.get_mut(target) {
            let orphan = entry.orphan.get_or_insert_default();
            orphan.ends = ends;
            if orphan.successor.is_none() {
                self.plan_at.get_or_insert(now + PLAN_AFTER);
            }
        }
        self.wait_for_its_end(now, target);
    }

    /// An instance that is gone held these.
    pub(super) fn was_held_by(&mut self, now: Moment, instance: &InstanceId, targets: Vec<Target>) {
        let mut held = Vec::new();
        for target in targets {
            match self.targets.fate(&target) {
                // Its holder is this instance by now, or there is no such target any more.
                Some(Fate::Mine | Fate::Leaving { .. }) | None => {
                    self.actions.push(Action::Forget { instance: instance.clone(), target });
                }
                Some(Fate::Free { .. } | Fate::Asked) => {}
                Some(Fate::Unseen | Fate::Theirs { .. }) => held.push(target),
            }
        }
        for target in &held {
            if self.targets.fate(target) == Some(&Fate::Unseen) {
                self.targets.turns(target, Fate::Theirs { holder: instance.clone() });
            }
            let is_theirs = matches!(self.targets.fate(target), Some(Fate::Theirs { holder }) if holder == instance);
            if let Some(entry) = self.targets.get_mut(target).filter(|_| is_theirs) {
                entry.orphan.get_or_insert_default();
            }
        }
        // What it was taken to hold, and what is not on its list: it was released or handed over, and we have not heard of it.
        let listed: BTreeSet<&Target> = held.iter().collect();
        let is_theirs = |fate: &Fate| matches!(fate, Fate::Theirs { holder } if holder == instance);
        let moved = self.targets.names(is_theirs).into_iter().filter(|target| !listed.contains(target));
        let moved: Vec<Target> = moved.filter(|target| !self.targets.is_armed(target)).collect();
        if !moved.is_empty() {
            self.look_at(moved);
        }
        self.plan_succession(now);
        // Those that are ours to take come first: their ends must be known before they come.
        let is_ours =
            |target: &Target| self.targets.get(target).is_some_and(|entry| entry.successor() == Some(Successor::Us));
        held.sort_by_key(|target| !is_ours(target));
        held.into_iter().for_each(|target| self.inspect(target));
    }

    /// Decides who takes over what instances held that are gone, before their leases end: each takes its own part then, and
    /// no instance has to see first what the others leave.
    pub(super) fn plan_succession(&mut self, now: Moment) {
        self.plan_at = None;
        let (company, me) = (&self.company, &self.me);
        let is_gone = |holder: &InstanceId| holder != me && !company.is_alive(holder);
        let mut orphans = Vec::new();
        for (target, entry) in self.targets.iter_mut().filter(|(_, entry)| entry.orphan.is_some()) {
            let is_orphan = match entry.fate() {
                Fate::Theirs { holder } => is_gone(holder),
                // What is asked for already has its place in the plan.
                Fate::Free { .. } | Fate::Asked => entry.last.as_ref().is_some_and(is_gone),
                Fate::Unseen | Fate::Mine | Fate::Leaving { .. } => false,
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
        let peers = self.peers(now);
        let shares = placement::shares(&peers, self.unheld(&peers));
        let scores: Vec<TargetScore> = orphans.iter().map(|(_, score)| *score).collect();
        let successors = placement::successors(&peers, &shares, &scores);
        // After an outage those who were there come first.
        let is_outage = self.company.forgives(now).is_some();
        // This instance stands last among its peers.
        let own = peers.len() - 1;
        for ((target, _), at) in orphans.into_iter().zip(successors) {
            let successor = at.map(|at| if at == own { Successor::Us } else { Successor::Other });
            if let Some(orphan) = self.targets.get_mut(&target).and_then(|entry| entry.orphan.as_mut()) {
                orphan.successor = successor.filter(|_| !is_outage);
            }
            match self.targets.fate(&target) {
                Some(Fate::Theirs { .. }) => self.wait_for_its_end(now, &target),
                Some(Fate::Free { .. }) => self.wait_for_our_turn(now, &target),
                _ => {}
            }
        }
    }

    /// Comes back when the lease of a holder that is gone has ended: at once if this instance takes it over, after the one
    /// that does otherwise.
    fn wait_for_its_end(&mut self, now: Moment, target: &Target) {
        let Some(entry) = self.targets.get(target) else { return };
        // When it ends may not be known yet: then something else is waited for.
        let Some(ends) = entry.orphan.and_then(|orphan| orphan.ends) else { return };
        let (successor, score) = (entry.successor(), entry.score);
        let grace = match successor {
            Some(Successor::Other) => self.grace_behind_successor(now, score),
            Some(Successor::Us) | None => Duration::ZERO,
        };
        self.targets.arm(target, Some(ends + AFTER_THE_END + grace));
    }

    /// How long the instance that takes a target over has for it before this one does.
    pub(super) fn grace_behind_successor(&mut self, now: Moment, score: TargetScore) -> Duration {
        let rank = self.place(now).ranking.rank(score);
        placement::grace(rank + 1, true, self.settings.longest_grace)
    }
}
