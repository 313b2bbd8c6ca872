//! Where the leases that are being driven are kept, by number and by name.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;

use super::shared::Shared;
use super::{Claim, Heartbeat, LeaseId};
use crate::lease::{Ending, Lease, Loss, ReleaseReason};
use crate::name::LeaseName;
use crate::time::Moment;

/// One lease being driven.
pub(super) struct Entry {
    pub(super) lease: Lease,
    pub(super) shared: Arc<Shared>,
    /// Until the lease is granted and work may start: who waits for it.
    pub(super) claim: Option<Box<Claim>>,
    /// Sent with every claim and every renewal.
    pub(super) heartbeat: Option<Arc<Heartbeat>>,
    /// Why somebody wished to let go of it.
    pub(super) wished: Option<ReleaseReason>,
    /// The one wake-up in the queue that counts.
    pub(super) queued: Moment,
    /// When its work was over; the end of time while it may not be.
    pub(super) demoted: Moment,
}

impl Drop for Entry {
    /// A keeper that ends, however it ends, leaves nobody waiting.
    fn drop(&mut self) {
        if !self.shared.is_over() {
            self.shared.end(Ending::Lost(Loss::Unreachable));
        }
    }
}

/// All leases being driven. There is at most one of each name.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Only ids are stored; names stand in the leases themselves.
    by_name: HashTable<LeaseId>,
    hasher: RandomState,
}

struct Slot {
    /// Counts the leases that were here, so that an id of an earlier one leads nowhere.
    generation: u32,
    entry: Option<Entry>,
}

impl Slots {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, entry: Entry) -> LeaseId {
        let hash = self.hasher.hash_one(entry.lease.name());
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, entry: None });
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let Some(slot) = self.slots.get_mut(index as usize) else { return LeaseId(u64::MAX) };
        slot.entry = Some(entry);
        let id = LeaseId::new(index, slot.generation);
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.by_name.insert_unique(hash, id, |id| name_of(slots, *id).map_or(0, |name| hasher.hash_one(name)));
        id
    }

    pub(super) fn peek(&self, id: LeaseId) -> Option<&Entry> {
        let slot = self.slots.get(id.index())?;
        if slot.generation == id.generation() { slot.entry.as_ref() } else { None }
    }

    pub(super) fn get(&mut self, id: LeaseId) -> Option<&mut Entry> {
        let slot = self.slots.get_mut(id.index())?;
        if slot.generation == id.generation() { slot.entry.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, id: LeaseId) -> Option<Entry> {
        self.get(id)?;
        let hash = self.hasher.hash_one(name_of(&self.slots, id)?);
        if let Ok(found) = self.by_name.find_entry(hash, |other| *other == id) {
            found.remove();
        }
        let slot = self.slots.get_mut(id.index())?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(u32::try_from(id.index()).unwrap_or(u32::MAX));
        slot.entry.take()
    }

    pub(super) fn find(&self, name: &LeaseName) -> Option<LeaseId> {
        let hash = self.hasher.hash_one(name);
        self.by_name.find(hash, |id| name_of(&self.slots, *id) == Some(name)).copied()
    }

    /// Those that there are now. Any of them may be gone by the time it is looked at.
    pub(super) fn ids(&self) -> Vec<LeaseId> {
        let id = |(index, slot): (usize, &Slot)| {
            slot.entry.as_ref().map(|_| LeaseId::new(u32::try_from(index).unwrap_or(u32::MAX), slot.generation))
        };
        self.slots.iter().enumerate().filter_map(id).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.slots.iter().filter_map(|slot| slot.entry.as_ref())
    }
}

fn name_of(slots: &[Slot], id: LeaseId) -> Option<&LeaseName> {
    slots.get(id.index())?.entry.as_ref().map(|entry| entry.lease.name())
}
