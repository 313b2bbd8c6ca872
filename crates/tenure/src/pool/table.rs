//! What one instance knows of every target: how it stands with it, when to do something about it, and how many are whose.

use std::collections::{BTreeMap, BTreeSet};

use crate::name::InstanceId;
use crate::placement::TargetScore;
use crate::time::Moment;

use super::signal::Target;

/// How it stands with a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nobody has looked yet.
    Unseen,
    /// Nobody holds it: since when, and when that was last seen.
    Free { since: Moment, seen: Moment },
    /// A claim is on its way.
    Asked,
    /// It is ours.
    Mine,
    /// It is ours, and being let go of.
    Leaving { to: Option<InstanceId> },
    /// Somebody else holds it.
    Theirs { holder: InstanceId },
}

/// Where a target was before it moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Home {
    /// The instance that held it.
    pub(super) instance: InstanceId,
    /// Its name, which it has again after a restart.
    pub(super) name: String,
    /// When it moved.
    pub(super) since: Moment,
}

/// A target whose holder is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Orphan {
    /// When its lease ends, once that is known.
    pub(super) ends: Option<Moment>,
    /// Who takes it over then, once that is decided.
    pub(super) successor: Option<Successor>,
}

/// Who takes over a target of an instance that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Successor {
    Us,
    Other,
}

/// A target that was handed over, and may not have been taken up yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// The instance that handed it over, as far as we know: it sees whether the receiver takes it up, unless it leaves.
    pub(super) giver: Option<InstanceId>,
    /// When the accept window ends.
    pub(super) ends: Moment,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) score: TargetScore,
    fate: Fate,
    /// Since when nobody has held it, if nobody does: also while it is asked for.
    unheld_since: Option<Moment>,
    /// Who held it last, as far as we know.
    pub(super) last: Option<InstanceId>,
    /// The instance with a name of its own that held it before it moved, to which it goes back after a restart.
    pub(super) home: Option<Home>,
    /// Whether an earlier life of this instance held it.
    pub(super) is_home: bool,
    /// What is known of the end of a holder that is gone; `None` when its holder is there, or was not looked for yet.
    pub(super) orphan: Option<Orphan>,
    /// The hand-over that made it its holder's.
    pub(super) offer: Option<Offer>,
    /// When to do something about it.
    due: Option<Moment>,
    /// Whether it is a target at all: one that is being asked for or let go of stays until that is over.
    pub(super) wanted: bool,
    /// Whether something was heard of it since it was last looked at.
    pub(super) heard: bool,
}

impl Entry {
    pub(super) fn fate(&self) -> &Fate {
        &self.fate
    }

    pub(super) fn unheld_since(&self) -> Option<Moment> {
        self.unheld_since
    }

    /// Who takes it over, if its holder is gone and that is decided.
    pub(super) fn successor(&self) -> Option<Successor> {
        self.orphan.and_then(|orphan| orphan.successor)
    }
}

/// All targets. Counts and due times follow from what becomes of them.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: BTreeMap<Target, Entry>,
    due: BTreeSet<(Moment, Target)>,
    mine: usize,
    asked: usize,
    leaving: usize,
    theirs: BTreeMap<InstanceId, usize>,
    promised: BTreeMap<InstanceId, usize>,
}

impl Table {
    /// A target of which nothing is known.
    pub(super) fn add(&mut self, target: &Target) {
        let (score, fate) = (TargetScore::of(target), Fate::Unseen);
        let entry = Entry {
            score,
            fate,
            unheld_since: None,
            last: None,
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

    /// It is no target any more.
    pub(super) fn forget(&mut self, target: &Target) {
        self.arm(target, None);
        if let Some(entry) = self.entries.remove(target) {
            self.count(&entry.fate, false);
        }
    }

    /// How it stands with a target from now on.
    pub(super) fn turns(&mut self, target: &Target, fate: Fate) {
        if let Some(entry) = self.entries.get_mut(target) {
            match fate {
                // Since may be in the future: then it is tried again.
                Fate::Free { since, seen } => drop(entry.unheld_since.get_or_insert(since.min(seen))),
                // What is asked for or not known is as it was last seen.
                Fate::Asked | Fate::Unseen => {}
                _ => entry.unheld_since = None,
            }
            entry.offer = None;
            let before = std::mem::replace(&mut entry.fate, fate.clone());
            self.count(&before, false);
            self.count(&fate, true);
        }
    }

    /// Its holder, this instance, has lost it, and which instance holds it is not known: it counts as unheld until one is seen to.
    pub(super) fn mark_unheld(&mut self, target: &Target, since: Moment) {
        if let Some(entry) = self.entries.get_mut(target) {
            entry.unheld_since.get_or_insert(since);
        }
    }

    fn count(&mut self, fate: &Fate, more: bool) {
        match fate {
            Fate::Mine => step(&mut self.mine, more),
            Fate::Asked => step(&mut self.asked, more),
            Fate::Theirs { holder } => step_of(&mut self.theirs, holder, more),
            Fate::Leaving { to } => {
                step(&mut self.leaving, more);
                to.iter().for_each(|to| step_of(&mut self.promised, to, more));
            }
            Fate::Unseen | Fate::Free { .. } => {}
        }
    }

    /// When to do something about a target, if at all.
    pub(super) fn arm(&mut self, target: &Target, at: Option<Moment>) {
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

    pub(super) fn is_armed(&self, target: &Target) -> bool {
        self.get(target).is_some_and(|entry| entry.due.is_some())
    }

    /// When something is next to be done about any of them.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The target about which something has been to be done for longest, and since when.
    pub(super) fn take_due(&mut self, now: Moment) -> Option<(Moment, Target)> {
        let (at, target) = self.due.first().filter(|(at, _)| *at <= now).cloned()?;
        self.arm(&target, None);
        Some((at, target))
    }

    pub(super) fn get(&self, target: &str) -> Option<&Entry> {
        self.entries.get(target)
    }

    pub(super) fn get_mut(&mut self, target: &str) -> Option<&mut Entry> {
        self.entries.get_mut(target)
    }

    pub(super) fn fate(&self, target: &str) -> Option<&Fate> {
        self.get(target).map(Entry::fate)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Target, &Entry)> {
        self.entries.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&Target, &mut Entry)> {
        self.entries.iter_mut()
    }

    /// All with which it stands like this.
    pub(super) fn names(&self, fate: impl Fn(&Fate) -> bool) -> Vec<Target> {
        self.iter().filter(|(_, entry)| fate(&entry.fate)).map(|(target, _)| target.clone()).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many are ours to keep.
    pub(super) fn mine(&self) -> usize {
        self.mine
    }

    /// How many are ours and being let go of.
    pub(super) fn leaving(&self) -> usize {
        self.leaving
    }

    /// How many of these are for somebody.
    pub(super) fn promised_to(&self, instance: &InstanceId) -> usize {
        self.promised.get(instance).copied().unwrap_or(0)
    }

    /// How many are being asked for.
    pub(super) fn asked(&self) -> usize {
        self.asked
    }

    /// How many somebody else was seen to hold.
    pub(super) fn held_by(&self, instance: &InstanceId) -> usize {
        self.theirs.get(instance).copied().unwrap_or(0)
    }
}

fn step(count: &mut usize, more: bool) {
    *count = if more { *count + 1 } else { *count - 1 };
}

/// The same for one of many, of which those that count nothing are not kept.
fn step_of(counts: &mut BTreeMap<InstanceId, usize>, instance: &InstanceId, more: bool) {
    let count = counts.entry(instance.clone()).or_default();
    step(count, more);
    if *count == 0 {
        counts.remove(instance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_due_times_follow_from_what_becomes_of_targets() {
        let (mut table, target) = (Table::default(), Target::from("eu-1"));
        let (bob, soon) = (InstanceId::foreign("bob"), Moment::from_nanos(5));
        table.add(&target);
        for fate in [Fate::Asked, Fate::Mine, Fate::Leaving { to: None }, Fate::Theirs { holder: bob.clone() }] {
            table.turns(&target, fate.clone());
            let counts = [table.asked(), table.mine(), table.leaving(), table.held_by(&bob)];
            assert_eq!(counts.iter().sum::<usize>(), 1, "{fate:?} counts once: {counts:?}");
        }
        table.arm(&target, Some(soon));
        table.arm(&target, Some(soon + std::time::Duration::from_nanos(1)));
        assert_eq!(table.take_due(soon), None, "armed anew");
        table.forget(&target);
        assert_eq!((table.held_by(&bob), table.next_due(), table.len()), (0, None, 0));
    }

    #[test]
    fn a_target_is_unheld_until_an_instance_is_seen_to_hold_it() {
        let (mut table, target) = (Table::default(), Target::from("eu-1"));
        let (lost, later) = (Moment::from_nanos(5), Moment::from_nanos(9));
        table.add(&target);
        table.turns(&target, Fate::Mine);
        table.turns(&target, Fate::Unseen);
        table.mark_unheld(&target, lost);
        for fate in [Fate::Unseen, Fate::Free { since: later, seen: later }, Fate::Asked, Fate::Unseen] {
            table.turns(&target, fate.clone());
            assert_eq!(table.get(&target).and_then(Entry::unheld_since), Some(lost), "{fate:?}");
        }
        table.turns(&target, Fate::Theirs { holder: InstanceId::foreign("bob") });
        assert_eq!(table.get(&target).and_then(Entry::unheld_since), None);
    }
}
