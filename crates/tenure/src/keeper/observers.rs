//! Those who look at a lease without wanting it: they are told when to look again.

use std::collections::HashMap;
use std::sync::Weak;

use tokio::sync::Notify;

use crate::name::LeaseName;

/// Everybody who looks, by what they look at. Whoever has left is forgotten when there is something to tell.
#[derive(Default)]
pub(super) struct Observers(HashMap<LeaseName, Vec<Weak<Notify>>>);

impl Observers {
    pub(super) fn add(&mut self, name: LeaseName, observer: Weak<Notify>) {
        let observers = self.0.entry(name).or_default();
        observers.retain(|observer| observer.strong_count() > 0);
        observers.push(observer);
    }

    /// Something may have happened to this lease.
    pub(super) fn tell(&mut self, name: &LeaseName) {
        if let Some(observers) = self.0.get_mut(name) {
            tell(observers);
            if observers.is_empty() {
                self.0.remove(name);
            }
        }
    }

    /// Anything may have happened.
    pub(super) fn tell_all(&mut self) {
        self.0.retain(|_, observers| {
            tell(observers);
            !observers.is_empty()
        });
    }
}

fn tell(observers: &mut Vec<Weak<Notify>>) {
    observers.retain(|observer| match observer.upgrade() {
        Some(observer) => {
            observer.notify_one();
            true
        }
        None => false,
    });
}
