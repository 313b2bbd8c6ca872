//! The campaigns that are under way on one `Tenure`, for whoever wants to do something as leader.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::campaign::{Ambition, Office};
use crate::name::Group;

/// By role: an election may have any key.
#[derive(Clone, Default)]
pub(crate) struct Elections(Arc<Mutex<HashMap<String, Vec<Entry>>>>);

struct Entry {
    office: Weak<Office>,
    /// A term that was asked for by itself is for whoever asked for it.
    for_all: bool,
}

impl Elections {
    /// Those that decide who leads this role here, or `None` when there are none.
    pub(super) fn deciding(&self, role: &str) -> Option<Vec<Arc<Office>>> {
        let entries = self.lock();
        let for_all = entries.get(role)?.iter().filter(|entry| entry.for_all);
        let offices: Vec<_> = for_all.filter_map(|entry| entry.office.upgrade()).collect();
        (!offices.is_empty()).then_some(offices)
    }

    /// Whether any of them beats in this group.
    pub(super) fn any_in(&self, group: &Group) -> bool {
        let beats = |entry: &Entry| entry.office.upgrade().is_some_and(|o| o.bid.heartbeat.group == *group);
        self.lock().values().flatten().any(beats)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Entry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A campaign that is under way until this is dropped.
pub(super) struct Running {
    pub(super) office: Arc<Office>,
    pub(super) ambition: Ambition,
}

impl Running {
    pub(super) fn begin(office: &Arc<Office>, ambition: Ambition) -> Self {
        let entry = Entry { office: Arc::downgrade(office), for_all: matches!(ambition, Ambition::EveryTerm) };
        office.tenure.elections().lock().entry(office.bid.role.clone()).or_default().push(entry);
        Self { office: office.clone(), ambition }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let office = &self.office;
        let mut running = office.tenure.elections().lock();
        if let Some(entries) = running.get_mut(&office.bid.role) {
            if let Some(at) = entries.iter().position(|entry| entry.office.ptr_eq(&Arc::downgrade(office))) {
                entries.swap_remove(at);
            }
            if entries.is_empty() {
                running.remove(&office.bid.role);
            }
        }
    }
}
