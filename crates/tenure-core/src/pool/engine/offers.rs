//! Whether a handed-over target is accepted. The giver checks that. When the giver leaves, every other instance does,
//! so that a dead receiver costs the accept window and no more.

use super::{EXPIRY_MARGIN, Engine};
use crate::name::InstanceId;
use crate::placement::{self, TargetScore};
use crate::pool::io::TargetName;
use crate::pool::table::{PendingOffer, TargetState};
use crate::time::Moment;

impl Engine {
    /// Records that a target was just handed over to another instance.
    pub(super) fn record_offer(&mut self, now: Moment, target: &TargetName, to: InstanceId) {
        let giver = match self.targets.state(target) {
            Some(TargetState::HeldByOther { holder }) if *holder != to => Some(holder.clone()),
            _ => None,
        };
        self.mark_held_and_watch(now, target, to.clone());
        let is_theirs =
            matches!(self.targets.state(target), Some(TargetState::HeldByOther { holder }) if *holder == to);
        if let Some(entry) = self.targets.get_mut(target).filter(|_| is_theirs) {
            entry.offer = Some(PendingOffer { giver, ends: now + self.settings.accept_window });
            self.watch_offer(now, target);
        }
    }

    /// Watches the offers of instances that have left or are about to: the instances that stay check them.
    pub(super) fn watch_offers(&mut self, now: Moment) {
        let offered = self.targets.iter().filter(|(_, entry)| entry.offer.is_some());
        for target in offered.map(|(target, _)| target.clone()).collect::<Vec<_>>() {
            self.watch_offer(now, &target);
        }
    }

    /// Checks an offer at the end of the accept window, unless the giver does. The highest-ranked instance checks
    /// first.
    fn watch_offer(&mut self, now: Moment, target: &TargetName) {
        if self.targets.has_due(target) {
            return;
        }
        let Some((offer, score)) = self.offer(now, target) else { return };
        if offer.giver.as_ref().is_some_and(|giver| !self.membership.has_left(giver)) {
            return;
        }
        let ends = offer.ends;
        let rank = self.own_placement(now).ranking.rank(score);
        let claim_delay = placement::claim_delay(rank, true, self.settings.max_claim_delay);
        self.targets.set_due(target, Some(ends.max(now) + EXPIRY_MARGIN + claim_delay));
    }

    /// The receiver of a target that was not accepted by the end of the accept window.
    pub(super) fn unaccepted_receiver(&self, now: Moment, target: &TargetName) -> Option<InstanceId> {
        let Some(TargetState::HeldByOther { holder }) = self.targets.state(target) else { return None };
        self.offer(now, target).filter(|(offer, _)| offer.ends <= now).map(|_| holder.clone())
    }

    /// The offer of a target, unless it is so old that the giver has checked it.
    fn offer(&self, now: Moment, target: &TargetName) -> Option<(&PendingOffer, TargetScore)> {
        let entry = self.targets.get(target)?;
        let offer = entry.offer.as_ref().filter(|offer| now.since(offer.ends) < self.settings.read_every)?;
        Some((offer, entry.score))
    }

    /// Records the store's report that the receiver of a target holds it.
    pub(super) fn record_accepted(&mut self, now: Moment, target: &TargetName) {
        if let Some(entry) = self.targets.get_mut(target) {
            entry.offer = entry.offer.take().filter(|offer| offer.ends > now);
        }
    }
}
