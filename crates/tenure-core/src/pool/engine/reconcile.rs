//! The rounds of the reconciler, one instance that looks for unheld targets which no announcement has told of.

use std::time::Duration;

use super::Engine;
use crate::pool::table::TargetState;
use crate::time::Moment;

/// Every so many rounds, the reconciler checks all targets, even if the published counts say that none is unheld.
const FULL_ROUND_EVERY: u32 = 10;

/// The rounds of this instance, if it is the reconciler.
#[derive(Debug)]
pub(super) struct Reconcile {
    pub(super) is_reconciler: bool,
    next: Moment,
    rounds: u32,
}

impl Reconcile {
    pub(super) fn new() -> Self {
        Self { is_reconciler: false, next: Moment::ZERO, rounds: 0 }
    }

    /// When the next round is due.
    pub(super) fn next(&self) -> Option<Moment> {
        self.is_reconciler.then_some(self.next)
    }

    /// Begins a round that is due. Returns whether it checks everything, whatever the published counts say.
    fn begin_round(&mut self, now: Moment, every: Duration) -> Option<bool> {
        self.next().filter(|at| *at <= now)?;
        self.next = now + every;
        self.rounds = self.rounds.wrapping_add(1);
        Some(self.rounds.is_multiple_of(FULL_ROUND_EVERY))
    }
}

impl Engine {
    /// Asks for the holders of all targets of others, if a round is due and any target may be unheld.
    pub(super) fn reconcile(&mut self, now: Moment) {
        let Some(is_full) = self.reconcile.begin_round(now, self.settings.reconcile_every) else { return };
        // By the published counts no target is unheld: then a check now and then is enough.
        if !is_full && self.unheld_count(&self.loads(now)) == 0 {
            return;
        }
        let is_other = |state: &TargetState| matches!(state, TargetState::HeldByOther { .. } | TargetState::Unknown);
        let others = self.targets.in_state(is_other);
        if !others.is_empty() {
            self.query_holders(others);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tenth_round_checks_everything() {
        let (mut reconcile, every, mut now) = (Reconcile::new(), Duration::from_secs(10), Moment::ZERO);
        assert_eq!(reconcile.begin_round(now, every), None, "another instance is the reconciler");
        reconcile.is_reconciler = true;
        for round in 1..=20 {
            assert_eq!(reconcile.begin_round(now, every), Some(round % FULL_ROUND_EVERY == 0), "round {round}");
            assert_eq!(reconcile.begin_round(now, every), None, "not before its time");
            now = now + every;
        }
    }
}
