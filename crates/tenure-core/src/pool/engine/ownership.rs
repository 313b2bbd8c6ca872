//! Which instance holds which target, as far as this instance knows.
//!
//! | input | effect |
//! |---|---|
//! | the store names a holder that announces its moves | it holds the target |
//! | the store names a holder that does not, or is gone | it holds it until its lease expires, which is queried |
//! | the store names this instance | claim it: it was handed over, or an earlier process held it |
//! | the store names none; a release is announced | the target is unheld |
//! | a hand-over is announced | its receiver holds it, if it accepts; this instance claims what it receives |
//! | an announcement comes between a query and its reply | the reply may be out of date: ask again |
//! | announcements were missed | ask for the holders of everything that others hold |
//! | a term of this instance has ended | its receiver holds the target, or it is unheld, or the store is asked |

use super::{EXPIRY_MARGIN, Engine};
use crate::ending::{Ending, Loss, ReleaseReason};
use crate::name::InstanceId;
use crate::placement::MoveReason;
use crate::pool::io::{PoolAction, TargetName};
use crate::pool::table::TargetState;
use crate::time::Moment;

impl Engine {
    pub(super) fn update_holders(&mut self, now: Moment, holders: Vec<(TargetName, Option<InstanceId>)>) {
        self.claims.is_rechecking = false;
        for (target, holder) in holders {
            if self.is_outdated(&target) {
                continue;
            }
            match holder {
                None => self.confirm_unheld(now, &target),
                Some(holder) => {
                    if holder != self.me && matches!(self.targets.state(&target), Some(TargetState::Unheld { .. })) {
                        self.claims.last_taken_at = now;
                    }
                    self.mark_held_and_watch(now, &target, holder);
                }
            }
        }
    }

    pub(super) fn update_holder(
        &mut self,
        now: Moment,
        target: &TargetName,
        held: Option<(InstanceId, Option<Moment>)>,
    ) {
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
        if self.reconcile.is_reconciler && believed || self.is_evacuating() && offered.is_some() {
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
    pub(super) fn query_holders(&mut self, targets: Vec<TargetName>) {
        for target in &targets {
            if let Some(entry) = self.targets.get_mut(target) {
                entry.heard = false;
            }
        }
        self.actions.push(PoolAction::QueryHolders(targets));
    }

    /// Queries the holder of this target, and for how long it holds it.
    pub(super) fn inspect(&mut self, target: TargetName) {
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
    pub(super) fn mark_held_and_watch(&mut self, now: Moment, target: &TargetName, holder: InstanceId) {
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

    pub(super) fn set_last_holder(&mut self, target: &TargetName, last: Option<InstanceId>) {
        if let Some(entry) = self.targets.get_mut(target) {
            entry.last_holder = last;
        }
    }

    pub(super) fn mark_unheld(&mut self, now: Moment, target: &TargetName) {
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

    pub(super) fn mark_heard(&mut self, target: &TargetName) {
        if let Some(entry) = self.targets.get_mut(target) {
            entry.heard = true;
        }
    }

    pub(super) fn handle_released(&mut self, now: Moment, target: &TargetName) {
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

    pub(super) fn handle_handed_over(&mut self, now: Moment, target: &TargetName, to: InstanceId) {
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

    pub(super) fn handle_gap(&mut self, now: Moment) {
        self.reads.schedule(now);
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

    pub(super) fn handle_term_ended(&mut self, now: Moment, target: &TargetName, ending: &Ending) {
        let Some(entry) = self.targets.get(target) else { return };
        let (left, to) = match entry.state() {
            TargetState::Releasing { to } => (true, to.clone()),
            TargetState::Held => (false, None),
            _ => return,
        };
        let wanted = entry.wanted;
        if !left {
            self.balance.record_own_change();
        }
        let is_last_move = left && self.balance.finish_move();
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
        if is_last_move && !self.is_evacuating() && self.held() > self.own_quota(now) {
            self.read_then_rebalance(now);
        } else {
            self.mark_unsettled(now);
        }
    }

    pub(super) fn release(&mut self, target: &TargetName, reason: ReleaseReason) {
        if self.targets.state(target) == Some(&TargetState::Held) {
            self.targets.set_state(target, TargetState::Releasing { to: None });
            self.actions.push(PoolAction::Release { target: target.clone(), reason });
        }
    }

    pub(super) fn hand_over(&mut self, now: Moment, target: &TargetName, to: InstanceId, reason: MoveReason) {
        if self.targets.state(target) == Some(&TargetState::Held) {
            let reason = if self.home_instance(now, target) == Some(&to) { MoveReason::HandBack } else { reason };
            self.targets.set_state(target, TargetState::Releasing { to: Some(to.clone()) });
            self.actions.push(PoolAction::HandOver { target: target.clone(), to, reason });
        }
    }
}
