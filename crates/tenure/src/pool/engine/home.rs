//! Where targets belong that moved because their holder stopped: back with it, when an instance of the same name starts again.
//!
//! A deploy restarts one instance after the other. Each is found again by its explicit name, and each target moves at most once
//! away and once back.

use super::Engine;
use crate::name::InstanceId;
use crate::pool::company::RETURN_WITHIN;
use crate::pool::signal::Target;
use crate::pool::table::{Fate, Home};
use crate::time::Moment;

/// Where a target belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Belongs {
    /// Nowhere in particular.
    Anywhere,
    /// With this instance, which is back.
    With(InstanceId),
    /// Here.
    Here,
}

impl Belongs {
    /// How much rather it is given to this receiver than other targets are.
    pub(super) fn preference(&self, receiver: &InstanceId) -> u8 {
        match self {
            Self::With(home) if home == receiver => 3,
            Self::Anywhere => 2,
            Self::With(_) => 1,
            // It has been away and back: once is enough.
            Self::Here => 0,
        }
    }
}

impl Engine {
    /// A target has another holder.
    pub(super) fn moved(&mut self, now: Moment, target: &Target, from: Option<&InstanceId>, to: &InstanceId) {
        let holder = self.targets.get(target).and_then(|entry| match entry.fate() {
            Fate::Theirs { holder } => Some(holder.clone()),
            _ => entry.last.clone(),
        });
        if let Some(from) = from.cloned().or(holder).filter(|from| from != to) {
            self.leaves(now, target, &from);
        }
        let name = self.company.own_name(to);
        let is_back = self
            .targets
            .get(target)
            .and_then(|entry| entry.home.as_ref())
            .is_some_and(|home| Some(home.name.as_str()) == name);
        if let Some(entry) = self.targets.get_mut(target) {
            entry.is_home = false;
            if is_back {
                entry.home = None;
            }
        }
    }

    /// A target has lost its holder. Where it was is remembered, unless it was away from home already.
    pub(super) fn leaves(&mut self, now: Moment, target: &Target, from: &InstanceId) {
        if self.away_from(now, target).is_some() {
            return;
        }
        let name = self.company.own_name(from).map(str::to_owned);
        if let Some(entry) = self.targets.get_mut(target) {
            entry.home = name.map(|name| Home { name, instance: from.clone(), since: now });
        }
    }

    /// The name of the instance that a target is away from: it held the target until it stopped, a short time ago.
    fn away_from(&self, now: Moment, target: &Target) -> Option<&str> {
        let home = self.targets.get(target)?.home.as_ref()?;
        let is_recent = now.since(home.since) < RETURN_WITHIN;
        (is_recent && self.company.had_stopped(&home.instance, home.since)).then_some(home.name.as_str())
    }

    /// The instance that a target goes back to, if it is there.
    pub(super) fn home_of(&self, now: Moment, target: &Target) -> Option<&InstanceId> {
        self.company.named(self.away_from(now, target)?)
    }

    /// Where a target belongs that this instance holds.
    pub(super) fn belongs(&self, now: Moment, target: &Target) -> Belongs {
        let is_home = self.targets.get(target).is_some_and(|entry| entry.is_home);
        match self.home_of(now, target) {
            _ if is_home => Belongs::Here,
            Some(home) if *home == self.me => Belongs::Here,
            Some(home) => Belongs::With(home.clone()),
            None => Belongs::Anywhere,
        }
    }

    /// A target that was granted is one that an earlier life of this instance had: it is given away after the others.
    pub(super) fn came_home(&mut self, target: &Target) {
        if let Some(entry) = self.targets.get_mut(target) {
            entry.is_home = true;
        }
    }
}
