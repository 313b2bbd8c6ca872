//! Whether what was handed over is taken up. The giver sees to that; when it leaves, every other instance does, so that a receiver
//! that is dead costs the accept window and no more.

use super::{AFTER_THE_END, Engine};
use crate::name::InstanceId;
use crate::placement::{self, TargetScore};
use crate::pool::signal::Target;
use crate::pool::table::{Fate, Offer};
use crate::time::Moment;

impl Engine {
    /// A target was handed over to another instance just now.
    pub(super) fn is_offered(&mut self, now: Moment, target: &Target, to: InstanceId) {
        let giver = match self.targets.fate(target) {
            Some(Fate::Theirs { holder }) if *holder != to => Some(holder.clone()),
            _ => None,
        };
        self.is_theirs_until(now, target, to.clone());
        let is_theirs = matches!(self.targets.fate(target), Some(Fate::Theirs { holder }) if *holder == to);
        if let Some(entry) = self.targets.get_mut(target).filter(|_| is_theirs) {
            entry.offer = Some(Offer { giver, ends: now + self.settings.accept_window });
            self.look_after_offer(now, target);
        }
    }

    /// Other instances have left, or are about to: what they have handed over is looked after by those that stay.
    pub(super) fn look_after_offers(&mut self, now: Moment) {
        let offered = self.targets.iter().filter(|(_, entry)| entry.offer.is_some());
        for target in offered.map(|(target, _)| target.clone()).collect::<Vec<_>>() {
            self.look_after_offer(now, &target);
        }
    }

    /// Comes back at the end of the accept window, unless the giver does: the instance that suits the target best first.
    fn look_after_offer(&mut self, now: Moment, target: &Target) {
        if self.targets.is_armed(target) {
            return;
        }
        let Some((offer, score)) = self.offer(now, target) else { return };
        if offer.giver.as_ref().is_some_and(|giver| !self.company.has_left(giver)) {
            return;
        }
        let ends = offer.ends;
        let rank = self.place(now).ranking.rank(score);
        let grace = placement::grace(rank, true, self.settings.longest_grace);
        self.targets.arm(target, Some(ends.max(now) + AFTER_THE_END + grace));
    }

    /// The receiver of a target that was not taken up when the accept window had ended.
    pub(super) fn was_not_taken_up(&self, now: Moment, target: &Target) -> Option<InstanceId> {
        let Some(Fate::Theirs { holder }) = self.targets.fate(target) else { return None };
        self.offer(now, target).filter(|(offer, _)| offer.ends <= now).map(|_| holder.clone())
    }

    /// The hand-over of a target, unless that was so long ago that the giver has seen what became of it.
    fn offer(&self, now: Moment, target: &Target) -> Option<(&Offer, TargetScore)> {
        let entry = self.targets.get(target)?;
        let offer = entry.offer.as_ref().filter(|offer| now.since(offer.ends) < self.settings.read_every)?;
        Some((offer, entry.score))
    }

    /// The store says that the receiver of a target holds it.
    pub(super) fn is_taken_up(&mut self, now: Moment, target: &Target) {
        if let Some(entry) = self.targets.get_mut(target) {
            entry.offer = entry.offer.take().filter(|offer| offer.ends > now);
        }
    }
}
