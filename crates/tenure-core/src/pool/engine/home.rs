//! Where targets belong that moved because their holder stopped: they go back when an instance of the same name
//! restarts.
//!
//! A deploy restarts one instance after the other. Each is recognised by its explicit name, and each target moves at
//! most once away and once back.

use super::Engine;
use crate::name::InstanceId;
use crate::pool::io::TargetName;
use crate::pool::membership::HAND_BACK_WINDOW;
use crate::pool::table::{Home, TargetState};
use crate::time::Moment;

/// Where a target belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TargetHome {
    /// With any instance.
    Anywhere,
    /// With this other instance, which is back.
    With(InstanceId),
    /// With the instance that holds it, which is this one.
    Here,
}

impl TargetHome {
    /// The preference for moving this target, rather than others, to this receiver.
    pub(super) fn preference(&self, receiver: &InstanceId) -> u8 {
        match self {
            Self::With(home) if home == receiver => 3,
            Self::Anywhere => 2,
            Self::With(_) => 1,
            // It has moved away and back: once is enough.
            Self::Here => 0,
        }
    }
}

impl Engine {
    /// Records that a target has another holder.
    pub(super) fn record_move(&mut self, now: Moment, target: &TargetName, from: Option<&InstanceId>, to: &InstanceId) {
        let holder = self.targets.get(target).and_then(|entry| match entry.state() {
            TargetState::HeldByOther { holder } => Some(holder.clone()),
            _ => entry.last_holder.clone(),
        });
        if let Some(from) = from.cloned().or(holder).filter(|from| from != to) {
            self.remember_home(now, target, &from);
        }
        let name = self.membership.own_name(to);
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

    /// Remembers where a target was that lost its holder, unless it was away from home already.
    pub(super) fn remember_home(&mut self, now: Moment, target: &TargetName, from: &InstanceId) {
        if self.home_name(now, target).is_some() {
            return;
        }
        let name = self.membership.own_name(from).map(str::to_owned);
        if let Some(entry) = self.targets.get_mut(target) {
            entry.home = name.map(|name| Home { name, instance: from.clone(), since: now });
        }
    }

    /// The name of the instance that a target is away from: that instance held it until it stopped, a short time ago.
    fn home_name(&self, now: Moment, target: &TargetName) -> Option<&str> {
        let home = self.targets.get(target)?.home.as_ref()?;
        let is_recent = now.since(home.since) < HAND_BACK_WINDOW;
        (is_recent && self.membership.had_stopped(&home.instance, home.since)).then_some(home.name.as_str())
    }

    /// The instance that a target goes back to, if it is present.
    pub(super) fn home_instance(&self, now: Moment, target: &TargetName) -> Option<&InstanceId> {
        self.membership.instance_named(self.home_name(now, target)?)
    }

    /// Where a target that this instance holds belongs.
    pub(super) fn target_home(&self, now: Moment, target: &TargetName) -> TargetHome {
        let is_home = self.targets.get(target).is_some_and(|entry| entry.is_home);
        match self.home_instance(now, target) {
            _ if is_home => TargetHome::Here,
            Some(home) if *home == self.me => TargetHome::Here,
            Some(home) => TargetHome::With(home.clone()),
            None => TargetHome::Anywhere,
        }
    }

    /// Marks a granted target as one that an earlier instance of our name held: it moves away only after the others.
    pub(super) fn mark_home(&mut self, target: &TargetName) {
        if let Some(entry) = self.targets.get_mut(target) {
            entry.is_home = true;
        }
    }
}
