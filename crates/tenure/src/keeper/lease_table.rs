//! The table of driven leases, by id and by name.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use slotmap::SlotMap;

use super::shared::SharedTerm;
use super::{Heartbeat, LeaseId, Waiter};
use crate::lease::{Ending, Lease, Loss, ReleaseReason};
use crate::name::LeaseName;
use crate::time::Moment;

/// One driven lease.
pub(super) struct LeaseEntry {
    pub(super) lease: Lease,
    pub(super) shared: Arc<SharedTerm>,
    /// The caller that waits, until the lease is granted and work may start.
    pub(super) waiter: Option<Box<Waiter>>,
    /// Sent with every claim and every renewal.
    pub(super) heartbeat: Option<Arc<Heartbeat>>,
    /// The reason of the release, if the program requested one.
    pub(super) release_reason: Option<ReleaseReason>,
    /// The one wake-up in the queue that is current.
    pub(super) queued: Moment,
    /// When its work ended; [`Moment::END`] while it may still run.
    pub(super) demoted: Moment,
}

impl Drop for LeaseEntry {
    /// Ends the term, so that a keeper that ends for any reason leaves no caller waiting.
    fn drop(&mut self) {
        if !self.shared.is_over() {
            self.shared.end(Ending::Lost(Loss::Unreachable), false);
        }
    }
}

/// All driven leases, at most one of each name.
#[derive(Default)]
pub(super) struct LeaseTable {
    entries: SlotMap<LeaseId, LeaseEntry>,
    /// Only ids are stored; the names are in the leases.
    by_name: HashTable<LeaseId>,
    hasher: RandomState,
}

impl LeaseTable {
    /// The number of leases.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn insert(&mut self, entry: LeaseEntry) -> LeaseId {
        let hash = self.hasher.hash_one(entry.lease.name());
        let id = self.entries.insert(entry);
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.by_name.insert_unique(hash, id, |id| name_of(entries, *id).map_or(0, |name| hasher.hash_one(name)));
        id
    }

    pub(super) fn peek(&self, id: LeaseId) -> Option<&LeaseEntry> {
        self.entries.get(id)
    }

    pub(super) fn get(&mut self, id: LeaseId) -> Option<&mut LeaseEntry> {
        self.entries.get_mut(id)
    }

    pub(super) fn remove(&mut self, id: LeaseId) -> Option<LeaseEntry> {
        let hash = self.hasher.hash_one(name_of(&self.entries, id)?);
        if let Ok(found) = self.by_name.find_entry(hash, |other| *other == id) {
            found.remove();
        }
        self.entries.remove(id)
    }

    pub(super) fn find(&self, name: &LeaseName) -> Option<LeaseId> {
        let hash = self.hasher.hash_one(name);
        self.by_name.find(hash, |id| name_of(&self.entries, *id) == Some(name)).copied()
    }

    /// The ids of the current leases. Any of them may be gone by the time it is looked up.
    pub(super) fn ids(&self) -> Vec<LeaseId> {
        self.entries.keys().collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LeaseEntry> {
        self.entries.values()
    }
}

fn name_of(entries: &SlotMap<LeaseId, LeaseEntry>, id: LeaseId) -> Option<&LeaseName> {
    entries.get(id).map(|entry| entry.lease.name())
}
