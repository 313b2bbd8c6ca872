//! What one instance knows about every target: its state, when to act on it, and how many targets each instance holds.

use std::collections::{BTreeMap, BTreeSet};

use crate::name::InstanceId;
use crate::placement::TargetScore;
use crate::time::Moment;

use super::io::TargetName;

/// The state of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TargetState {
    /// Not queried yet.
    Unknown,
    /// No instance holds it: since when, and when that was last seen.
    Unheld { since: Moment, seen: Moment },
    /// A claim is in flight.
    Claiming,
    /// This instance holds it.
    Held,
    /// This instance holds it and is releasing it.
    Releasing { to: Option<InstanceId> },
    /// Another instance holds it.
    HeldByOther { holder: InstanceId },
}

/// The holder of a target before it moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Home {
    /// The instance that held it.
    pub(super) instance: InstanceId,
    /// Its name, which it keeps after a restart.
    pub(super) name: String,
    /// When it moved.
    pub(super) since: Moment,
}

/// A target whose holder is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Orphan {
    /// When its lease expires, once known.
    pub(super) ends: Option<Moment>,
    /// Which instance takes it over then, once planned.
    pub(super) successor: Option<Successor>,
}

/// The instance that takes over a target whose holder is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Successor {
    Us,
    Other,
}

/// A handed-over target that may not have been accepted yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingOffer {
    /// The instance that handed it over, as far as known. It checks that the receiver accepts, unless it leaves.
    pub(super) giver: Option<InstanceId>,
    /// When the accept window ends.
    pub(super) ends: Moment,
}

#[derive(Clone, Debug)]
pub(super) struct TargetEntry {
    pub(super) score: TargetScore,
    state: TargetState,
    /// Since when no instance has held it, also while it is being claimed.
    unheld_since: Option<Moment>,
    /// Its last holder, as far as known.
    pub(super) last_holder: Option<InstanceId>,
    /// The instance with an explicit name that held it before it moved, and to which it goes back after a restart.
    pub(super) home: Option<Home>,
    /// Whether an earlier instance of our name held it.
    pub(super) is_home: bool,
    /// What is known of the lease of a holder that is gone. `None` when the holder is present, or was not checked yet.
    pub(super) orphan: Option<Orphan>,
    /// The offer by which its holder got it.
    pub(super) offer: Option<PendingOffer>,
    /// When to act on it.
    due: Option<Moment>,
    /// Whether it is still a target. A removed target that is being claimed or released stays in the table until that
    /// is over.
    pub(super) wanted: bool,
    /// Whether it was announced since its last query.
    pub(super) heard: bool,
}

impl TargetEntry {
    pub(super) fn state(&self) -> &TargetState {
        &self.state
    }

    pub(super) fn unheld_since(&self) -> Option<Moment> {
        self.unheld_since
    }

    /// The instance that takes it over, if its holder is gone and that is planned.
    pub(super) fn successor(&self) -> Option<Successor> {
        self.orphan.and_then(|orphan| orphan.successor)
    }
}

/// All targets. The table derives its counts and due times from their states.
#[derive(Debug, Default)]
pub(super) struct TargetTable {
    entries: BTreeMap<TargetName, TargetEntry>,
    due: BTreeSet<(Moment, TargetName)>,
    held: usize,
    claiming: usize,
    releasing: usize,
    held_by_others: BTreeMap<InstanceId, usize>,
    promised: BTreeMap<InstanceId, usize>,
}

impl TargetTable {
    /// Adds a target in an unknown state.
    pub(super) fn add(&mut self, target: &TargetName) {
        let (score, state) = (TargetScore::of(target), TargetState::Unknown);
        let entry = TargetEntry {
            score,
            state,
            unheld_since: None,
            last_holder: None,
            home: None,
            is_home: false,
            orphan: None,
            offer: None,
            due: None,
            wanted: true,
            heard: false,
        };
        self.entries.insert(target.clone(), entry);
    }

    /// Removes a target.
    pub(super) fn forget(&mut self, target: &TargetName) {
        self.set_due(target, None);
        if let Some(entry) = self.entries.remove(target) {
            self.count(&entry.state, false);
        }
    }

    /// Sets the state of a target.
    pub(super) fn set_state(&mut self, target: &TargetName, state: TargetState) {
        if let Some(entry) = self.entries.get_mut(target) {
            match state {
                // `since` may be in the future: then the claim is retried then.
                TargetState::Unheld { since, seen } => drop(entry.unheld_since.get_or_insert(since.min(seen))),
                // While claiming or unknown, it counts as last seen.
                TargetState::Claiming | TargetState::Unknown => {}
                _ => entry.unheld_since = None,
            }
            entry.offer = None;
            let before = std::mem::replace(&mut entry.state, state.clone());
            self.count(&before, false);
            self.count(&state, true);
        }
    }

    /// Marks a target as unheld whose term this instance has lost. Its holder is unknown: it counts as unheld until a
    /// holder is seen.
    pub(super) fn mark_unheld(&mut self, target: &TargetName, since: Moment) {
        if let Some(entry) = self.entries.get_mut(target) {
            entry.unheld_since.get_or_insert(since);
        }
    }

    fn count(&mut self, state: &TargetState, more: bool) {
        match state {
            TargetState::Held => adjust(&mut self.held, more),
            TargetState::Claiming => adjust(&mut self.claiming, more),
            TargetState::HeldByOther { holder } => adjust_for(&mut self.held_by_others, holder, more),
            TargetState::Releasing { to } => {
                adjust(&mut self.releasing, more);
                to.iter().for_each(|to| adjust_for(&mut self.promised, to, more));
            }
            TargetState::Unknown | TargetState::Unheld { .. } => {}
        }
    }

    /// Sets when to act on a target, if at all.
    pub(super) fn set_due(&mut self, target: &TargetName, at: Option<Moment>) {
        if let Some(entry) = self.entries.get_mut(target) {
            if let Some(before) = entry.due.take() {
                self.due.remove(&(before, target.clone()));
            }
            entry.due = at;
            if let Some(at) = at {
                self.due.insert((at, target.clone()));
            }
        }
    }

    pub(super) fn has_due(&self, target: &TargetName) -> bool {
        self.get(target).is_some_and(|entry| entry.due.is_some())
    }

    /// When to act on any target next.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Removes and returns the due time of the target that has been due for longest, and the target.
    pub(super) fn pop_due(&mut self, now: Moment) -> Option<(Moment, TargetName)> {
        let (at, target) = self.due.first().filter(|(at, _)| *at <= now).cloned()?;
        self.set_due(&target, None);
        Some((at, target))
    }

    pub(super) fn get(&self, target: &str) -> Option<&TargetEntry> {
        self.entries.get(target)
    }

    pub(super) fn get_mut(&mut self, target: &str) -> Option<&mut TargetEntry> {
        self.entries.get_mut(target)
    }

    pub(super) fn state(&self, target: &str) -> Option<&TargetState> {
        self.get(target).map(TargetEntry::state)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&TargetName, &TargetEntry)> {
        self.entries.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&TargetName, &mut TargetEntry)> {
        self.entries.iter_mut()
    }

    /// All targets in these states.
    pub(super) fn in_state(&self, state: impl Fn(&TargetState) -> bool) -> Vec<TargetName> {
        self.iter().filter(|(_, entry)| state(&entry.state)).map(|(target, _)| target.clone()).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of targets held and not being released.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Number of targets being released.
    pub(super) fn releasing(&self) -> usize {
        self.releasing
    }

    /// Number of those being handed over to this instance.
    pub(super) fn promised_to(&self, instance: &InstanceId) -> usize {
        self.promised.get(instance).copied().unwrap_or(0)
    }

    /// Number of targets being claimed.
    pub(super) fn claiming(&self) -> usize {
        self.claiming
    }

    /// Number of targets that another instance was seen to hold.
    pub(super) fn held_by(&self, instance: &InstanceId) -> usize {
        self.held_by_others.get(instance).copied().unwrap_or(0)
    }
}

fn adjust(count: &mut usize, more: bool) {
    *count = if more { *count + 1 } else { *count - 1 };
}

/// Adjusts the count of one instance. Counts of zero are removed.
fn adjust_for(counts: &mut BTreeMap<InstanceId, usize>, instance: &InstanceId, more: bool) {
    let count = counts.entry(instance.clone()).or_default();
    adjust(count, more);
    if *count == 0 {
        counts.remove(instance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_due_times_follow_target_states() {
        let (mut table, target) = (TargetTable::default(), TargetName::from("eu-1"));
        let (bob, soon) = (InstanceId::foreign("bob"), Moment::from_nanos(5));
        table.add(&target);
        for state in [
            TargetState::Claiming,
            TargetState::Held,
            TargetState::Releasing { to: None },
            TargetState::HeldByOther { holder: bob.clone() },
        ] {
            table.set_state(&target, state.clone());
            let counts = [table.claiming(), table.held(), table.releasing(), table.held_by(&bob)];
            assert_eq!(counts.iter().sum::<usize>(), 1, "{state:?} counts once: {counts:?}");
        }
        table.set_due(&target, Some(soon));
        table.set_due(&target, Some(soon + std::time::Duration::from_nanos(1)));
        assert_eq!(table.pop_due(soon), None, "the due time was set again");
        table.forget(&target);
        assert_eq!((table.held_by(&bob), table.next_due(), table.len()), (0, None, 0));
    }

    #[test]
    fn a_target_is_unheld_until_an_instance_is_seen_to_hold_it() {
        let (mut table, target) = (TargetTable::default(), TargetName::from("eu-1"));
        let (lost, later) = (Moment::from_nanos(5), Moment::from_nanos(9));
        table.add(&target);
        table.set_state(&target, TargetState::Held);
        table.set_state(&target, TargetState::Unknown);
        table.mark_unheld(&target, lost);
        for state in [
            TargetState::Unknown,
            TargetState::Unheld { since: later, seen: later },
            TargetState::Claiming,
            TargetState::Unknown,
        ] {
            table.set_state(&target, state.clone());
            assert_eq!(table.get(&target).and_then(TargetEntry::unheld_since), Some(lost), "{state:?}");
        }
        table.set_state(&target, TargetState::HeldByOther { holder: InstanceId::foreign("bob") });
        assert_eq!(table.get(&target).and_then(TargetEntry::unheld_since), None);
    }
}
