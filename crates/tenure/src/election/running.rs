//! The elections that are started on one `Tenure`, for whoever wants to do something as leader.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::campaign::Office;

/// By role: an election may have any key.
#[derive(Clone, Default)]
pub(crate) struct Elections(Arc<Mutex<HashMap<String, Vec<Weak<Office>>>>>);

impl Elections {
    pub(super) fn add(&self, office: &Arc<Office>) {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.entry(office.role.clone()).or_default().push(Arc::downgrade(office));
    }

    pub(super) fn remove(&self, office: &Arc<Office>) {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(offices) = running.get_mut(&office.role) {
            if let Some(at) = offices.iter().position(|other| other.ptr_eq(&Arc::downgrade(office))) {
                offices.swap_remove(at);
            }
            if offices.is_empty() {
                running.remove(&office.role);
            }
        }
    }

    /// Those of this role, or `None` when there are none.
    pub(super) fn running(&self, role: &str) -> Option<Vec<Arc<Office>>> {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let offices: Vec<_> = running.get(role)?.iter().filter_map(Weak::upgrade).collect();
        (!offices.is_empty()).then_some(offices)
    }
}
