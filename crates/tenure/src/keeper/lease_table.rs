//! The table of driven leases, by id and by name.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;

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
    rows: Vec<TableRow>,
    free: Vec<u32>,
    /// Only ids are stored; the names are in the leases.
    by_name: HashTable<LeaseId>,
    hasher: RandomState,
}

struct TableRow {
    /// Counts the leases that used this row, so that the id of an earlier one finds nothing.
    generation: u32,
    entry: Option<LeaseEntry>,
}

impl LeaseTable {
    /// The number of leases.
    pub(super) fn len(&self) -> usize {
        self.rows.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, entry: LeaseEntry) -> LeaseId {
        let hash = self.hasher.hash_one(entry.lease.name());
        let index = self.free.pop().unwrap_or_else(|| {
            self.rows.push(TableRow { generation: 0, entry: None });
            u32::try_from(self.rows.len() - 1).unwrap_or(u32::MAX)
        });
        let Some(row) = self.rows.get_mut(index as usize) else { return LeaseId(u64::MAX) };
        row.entry = Some(entry);
        let id = LeaseId::new(index, row.generation);
        let (rows, hasher) = (&self.rows, &self.hasher);
        self.by_name.insert_unique(hash, id, |id| name_of(rows, *id).map_or(0, |name| hasher.hash_one(name)));
        id
    }

    pub(super) fn peek(&self, id: LeaseId) -> Option<&LeaseEntry> {
        let row = self.rows.get(id.index())?;
        if row.generation == id.generation() { row.entry.as_ref() } else { None }
    }

    pub(super) fn get(&mut self, id: LeaseId) -> Option<&mut LeaseEntry> {
        let row = self.rows.get_mut(id.index())?;
        if row.generation == id.generation() { row.entry.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, id: LeaseId) -> Option<LeaseEntry> {
        self.get(id)?;
        let hash = self.hasher.hash_one(name_of(&self.rows, id)?);
        if let Ok(found) = self.by_name.find_entry(hash, |other| *other == id) {
            found.remove();
        }
        let row = self.rows.get_mut(id.index())?;
        row.generation = row.generation.wrapping_add(1);
        self.free.push(u32::try_from(id.index()).unwrap_or(u32::MAX));
        row.entry.take()
    }

    pub(super) fn find(&self, name: &LeaseName) -> Option<LeaseId> {
        let hash = self.hasher.hash_one(name);
        self.by_name.find(hash, |id| name_of(&self.rows, *id) == Some(name)).copied()
    }

    /// The ids of the current leases. Any of them may be gone by the time it is looked up.
    pub(super) fn ids(&self) -> Vec<LeaseId> {
        let id = |(index, row): (usize, &TableRow)| {
            row.entry.as_ref().map(|_| LeaseId::new(u32::try_from(index).unwrap_or(u32::MAX), row.generation))
        };
        self.rows.iter().enumerate().filter_map(id).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LeaseEntry> {
        self.rows.iter().filter_map(|row| row.entry.as_ref())
    }
}

fn name_of(rows: &[TableRow], id: LeaseId) -> Option<&LeaseName> {
    rows.get(id.index())?.entry.as_ref().map(|entry| entry.lease.name())
}
