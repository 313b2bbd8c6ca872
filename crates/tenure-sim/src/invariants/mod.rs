//! The invariants, one per file.
//!
//! An invariant sees [observations](Observation) and nothing else. A fault outside the promise opens a *window* (see
//! [`Promise`]). Violations in that window are measured and not judged.

mod election_event_order;
mod held_within_bound;
mod loss_is_final;
mod one_worker;
mod only_own_lease;
mod publications_fenced;
mod quarantine_ends;
mod release_after_work;
mod tokens_increase;
mod work_within_validity;

use std::time::Duration;

use crate::observation::Observation;
use crate::promise::Promise;
use crate::timeline::SimTime;

/// A property that must hold throughout a world.
pub trait Invariant {
    /// Name of the invariant.
    fn name(&self) -> &'static str;

    /// Checks an observation.
    ///
    /// # Errors
    /// A description of the violation.
    fn observe(&mut self, now: SimTime, seen: &Observation, promise: &mut Promise) -> Result<(), String>;

    /// Checks what should have happened by the end.
    ///
    /// # Errors
    /// A description of what is missing.
    fn finish(&mut self, _now: SimTime) -> Result<(), String> {
        Ok(())
    }
}

/// Creates all invariants for a world with this many leases, whose work pauses for at most `longest_pause` in the calm.
pub fn all(leases: usize, longest_pause: Duration) -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(one_worker::OneWorker::default()),
        Box::new(tokens_increase::TokensIncrease::default()),
        Box::new(work_within_validity::WorkWithinValidity),
        Box::new(publications_fenced::PublicationsFenced::default()),
        Box::new(only_own_lease::OnlyOwnLease),
        Box::new(release_after_work::ReleaseAfterWork::default()),
        Box::new(loss_is_final::LossIsFinal::default()),
        Box::new(held_within_bound::HeldWithinBound::new(leases, longest_pause)),
        Box::new(election_event_order::ElectionEventOrder::new(leases)),
        Box::new(quarantine_ends::QuarantineEnds::default()),
    ]
}
