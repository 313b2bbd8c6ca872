//! The campaigns running on one `Tenure`, for callers that want to run work as leader.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::campaign::{CampaignKind, LocalCandidate};
use crate::name::Group;

/// Campaigns by role: an election may have any key.
#[derive(Clone, Default)]
pub(crate) struct CampaignRegistry(Arc<Mutex<HashMap<String, Vec<RegistryEntry>>>>);

struct RegistryEntry {
    candidate: Weak<LocalCandidate>,
    /// `false` for a campaign for one term, which belongs to its caller alone.
    every_term: bool,
}

impl CampaignRegistry {
    /// Returns the candidates that decide whether this process leads the role, or `None` when there are none.
    pub(super) fn for_role(&self, role: &str) -> Option<Vec<Arc<LocalCandidate>>> {
        let entries = self.lock();
        let every_term = entries.get(role)?.iter().filter(|entry| entry.every_term);
        let candidates: Vec<_> = every_term.filter_map(|entry| entry.candidate.upgrade()).collect();
        (!candidates.is_empty()).then_some(candidates)
    }

    /// Whether any candidate sends heartbeats in this group.
    pub(super) fn has_group(&self, group: &Group) -> bool {
        let beats =
            |entry: &RegistryEntry| entry.candidate.upgrade().is_some_and(|o| o.config.heartbeat.group == *group);
        self.lock().values().flatten().any(beats)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<RegistryEntry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a campaign registered until dropped.
pub(super) struct CampaignGuard {
    pub(super) candidate: Arc<LocalCandidate>,
    pub(super) kind: CampaignKind,
}

impl CampaignGuard {
    pub(super) fn register(candidate: &Arc<LocalCandidate>, kind: CampaignKind) -> Self {
        let entry =
            RegistryEntry { candidate: Arc::downgrade(candidate), every_term: matches!(kind, CampaignKind::EveryTerm) };
        candidate.tenure.elections().lock().entry(candidate.config.role.clone()).or_default().push(entry);
        Self { candidate: candidate.clone(), kind }
    }
}

impl Drop for CampaignGuard {
    fn drop(&mut self) {
        let candidate = &self.candidate;
        let mut running = candidate.tenure.elections().lock();
        if let Some(entries) = running.get_mut(&candidate.config.role) {
            if let Some(at) = entries.iter().position(|entry| entry.candidate.ptr_eq(&Arc::downgrade(candidate))) {
                entries.swap_remove(at);
            }
            if entries.is_empty() {
                running.remove(&candidate.config.role);
            }
        }
    }
}
