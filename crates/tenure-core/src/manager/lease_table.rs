//! The table of driven leases, by id and by name.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::HashTable;
use slotmap::SlotMap;
use xxhash_rust::xxh3::Xxh3Builder;

use crate::ending::ReleaseReason;
use crate::lease::{Lease, LeaseSettings};
use crate::name::LeaseName;
use crate::time::Moment;

use super::waiters::Waiter;
use super::{Heartbeat, LeaseId};

/// One driven lease.
#[derive(Debug)]
pub(super) struct LeaseEntry {
    pub(super) lease: Lease,
    /// The caller that waits, until the lease is granted and work may start.
    pub(super) waiter: Option<Box<Waiter>>,
    /// When the term began. Zero before that.
    pub(super) acquired_at: Moment,
    /// The one wake-up in the queue that is current.
    pub(super) queued: Moment,
    /// When its work ended; [`Moment::END`] while it may still run.
    pub(super) demoted: Moment,
    /// The reason of the release, if the program requested one.
    pub(super) release_reason: Option<ReleaseReason>,
    /// Whether the work was told to stop, and whether its time to do so has passed.
    pub(super) is_stopped: bool,
    pub(super) must_be_gone: bool,
}

impl LeaseEntry {
    pub(super) fn new(lease: Lease, waiter: Waiter) -> Self {
        Self {
            lease,
            waiter: Some(Box::new(waiter)),
            acquired_at: Moment::ZERO,
            queued: Moment::END,
            demoted: Moment::END,
            release_reason: None,
            is_stopped: false,
            must_be_gone: false,
        }
    }

    /// Whether a term has begun. Until then no work can run.
    pub(super) fn has_begun(&self) -> bool {
        self.acquired_at != Moment::ZERO
    }

    /// Whether work may still run although the lease may have another holder. There is nothing left to release.
    pub(super) fn is_overdue(&self) -> bool {
        self.must_be_gone && self.demoted == Moment::END
    }

    pub(super) fn settings(&self) -> &Arc<LeaseSettings> {
        self.lease.settings()
    }
}

/// All driven leases, at most one of each name.
pub(super) struct LeaseTable {
    entries: SlotMap<LeaseId, LeaseEntry>,
    /// The heartbeats that are sent with every claim and every renewal of a lease. Few leases have one.
    heartbeats: BTreeMap<LeaseId, Arc<Heartbeat>>,
    /// Only ids are stored; the names are in the leases.
    by_name: HashTable<LeaseId>,
    hasher: Xxh3Builder,
}

impl fmt::Debug for LeaseTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.entries.iter()).finish()
    }
}

impl LeaseTable {
    /// An empty table. Names are chosen outside, so they are hashed with a seed that is not known there.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            entries: SlotMap::with_key(),
            heartbeats: BTreeMap::new(),
            by_name: HashTable::new(),
            hasher: Xxh3Builder::new().with_seed(seed),
        }
    }

    /// The number of leases.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn insert(&mut self, entry: LeaseEntry) -> LeaseId {
        let hash = self.hasher.hash_one(entry.lease.name());
        let heartbeat = entry.waiter.as_ref().and_then(|waiter| waiter.request.heartbeat.clone());
        let id = self.entries.insert(entry);
        self.heartbeats.extend(heartbeat.map(|heartbeat| (id, heartbeat)));
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

    /// The heartbeat of a lease, if it has one.
    pub(super) fn heartbeat(&self, id: LeaseId) -> Option<&Arc<Heartbeat>> {
        self.heartbeats.get(&id)
    }

    /// Sends no heartbeat with a lease any more.
    pub(super) fn take_heartbeat(&mut self, id: LeaseId) -> Option<Arc<Heartbeat>> {
        self.heartbeats.remove(&id)
    }

    pub(super) fn remove(&mut self, id: LeaseId) -> Option<LeaseEntry> {
        let hash = self.hasher.hash_one(name_of(&self.entries, id)?);
        if let Ok(found) = self.by_name.find_entry(hash, |other| *other == id) {
            found.remove();
        }
        self.heartbeats.remove(&id);
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
