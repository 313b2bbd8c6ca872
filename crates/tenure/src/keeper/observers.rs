//! Observers: callers that watch a lease without acquiring it. They are notified when to read it again.

use std::collections::HashMap;
use std::sync::Weak;

use tokio::sync::Notify;

use crate::name::LeaseName;

/// All observers, by lease. Dropped observers are removed at the next notification.
#[derive(Default)]
pub(super) struct Observers {
    by_name: HashMap<LeaseName, Vec<Weak<Notify>>>,
    /// Number of names from which names without observers are swept.
    sweep_at: usize,
}

/// Fewer names are not worth a sweep.
const MIN_SWEEP_LEN: usize = 64;

impl Observers {
    pub(super) fn add(&mut self, name: LeaseName, observer: Weak<Notify>) {
        if self.by_name.len() >= self.sweep_at.max(MIN_SWEEP_LEN) {
            self.by_name.retain(|_, observers| observers.iter().any(|observer| observer.strong_count() > 0));
            self.sweep_at = self.by_name.len() * 2;
        }
        let observers = self.by_name.entry(name).or_default();
        observers.retain(|observer| observer.strong_count() > 0);
        observers.push(observer);
    }

    /// Notifies the observers of this lease that it may have changed.
    pub(super) fn notify(&mut self, name: &LeaseName) {
        if let Some(observers) = self.by_name.get_mut(name) {
            notify(observers);
            if observers.is_empty() {
                self.by_name.remove(name);
            }
        }
    }

    /// Notifies all observers, because any lease may have changed.
    pub(super) fn notify_all(&mut self) {
        self.by_name.retain(|_, observers| {
            notify(observers);
            !observers.is_empty()
        });
    }
}

fn notify(observers: &mut Vec<Weak<Notify>>) {
    observers.retain(|observer| match observer.upgrade() {
        Some(observer) => {
            observer.notify_one();
            true
        }
        None => false,
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn dropped_observers_are_forgotten_for_every_lease() {
        let mut observers = Observers::default();
        let stays = Arc::new(Notify::new());
        observers.add(LeaseName::role("stays").unwrap(), Arc::downgrade(&stays));
        for n in 0..10_000 {
            observers.add(LeaseName::role(&format!("role-{n}")).unwrap(), Arc::downgrade(&Arc::new(Notify::new())));
        }
        assert!(observers.by_name.len() <= MIN_SWEEP_LEN + 1, "{}", observers.by_name.len());
        assert!(observers.by_name.contains_key(&LeaseName::role("stays").unwrap()));
    }
}
