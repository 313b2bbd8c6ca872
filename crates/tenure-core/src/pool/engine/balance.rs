//! When this instance gives targets away, which ones, and to which instances.
//!
//! | input | effect |
//! |---|---|
//! | an instance or a target comes, goes or moves | wait for a quiet period, at most for the longest settle time |
//! | the period has passed | read the heartbeats, then hand over the surplus, a tenth at a time |
//! | this instance gains or loses a target during this read, as after an outage | wait for another quiet period |
//! | the last of these has moved, and there is still a surplus | read and hand over again |
//! | this instance drains or cannot work | hand over everything at once, to instances that can take it |
//! | no instance can take anything | a draining instance releases; one that cannot work keeps what it holds |

use super::home::TargetHome;
use super::{Engine, EngineSettings};
use crate::ending::ReleaseReason;
use crate::name::InstanceId;
use crate::placement::{self, InstanceLoad, MoveReason, Ranking, TargetScore};
use crate::pool::io::TargetName;
use crate::pool::table::TargetState;
use crate::time::Moment;

/// An instance moves at most this fraction of its targets at once to rebalance.
const MOVES_PER_ROUND_DIVISOR: usize = 10;

/// The placement of this instance among the others.
#[derive(Debug)]
pub(super) struct OwnPlacement {
    pub(super) quota: usize,
    pub(super) ranking: Ranking,
    /// Whether any instance may take targets.
    pub(super) any_eligible: bool,
}

/// When to rebalance.
#[derive(Debug)]
pub(super) struct Balance {
    /// Since when nothing has changed, and since when the pool may be unbalanced.
    quiet_since: Moment,
    unsettled_since: Option<Moment>,
    /// Whether heartbeats are being read in order to rebalance.
    awaits_read: Option<RebalanceRead>,
    /// Number of rebalancing moves still in flight.
    moves_in_flight: usize,
}

/// A read of heartbeats in order to rebalance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RebalanceRead {
    /// This instance holds what it held when the read began.
    Current,
    /// It has gained or lost targets since. A read can take as long as an outage, and then targets move for a while.
    Disturbed,
}

impl Balance {
    pub(super) fn new() -> Self {
        Self { quiet_since: Moment::ZERO, unsettled_since: None, awaits_read: None, moves_in_flight: 0 }
    }

    /// When to rebalance: after a quiet period, or when there has been none for too long.
    pub(super) fn due(&self, settings: &EngineSettings) -> Option<Moment> {
        let unsettled_since = self.unsettled_since.filter(|_| self.awaits_read.is_none())?;
        Some((self.quiet_since + settings.settle).min(unsettled_since + settings.max_settle))
    }

    /// Records a change. An instance that holds nothing has nothing to give away.
    fn disturb(&mut self, now: Moment, holds: bool) {
        self.quiet_since = now;
        if holds {
            self.mark_unbalanced(now);
        }
    }

    /// Records that this instance may hold too much.
    pub(super) fn mark_unbalanced(&mut self, now: Moment) {
        self.unsettled_since.get_or_insert(now);
    }

    /// Waits for another quiet period: nothing could be decided.
    pub(super) fn restart(&mut self, now: Moment) {
        self.quiet_since = now;
        self.unsettled_since = Some(now);
    }

    fn begin_read(&mut self) {
        self.unsettled_since = None;
        self.awaits_read = Some(RebalanceRead::Current);
    }

    /// Ends the wait for a read, if there was one.
    pub(super) fn take_read(&mut self) -> Option<RebalanceRead> {
        self.awaits_read.take()
    }

    /// Records that this instance has gained or lost a target. Moves by others disturb no read: they are announced.
    pub(super) fn record_own_change(&mut self) {
        self.awaits_read = self.awaits_read.map(|_| RebalanceRead::Disturbed);
    }

    fn begin_moves(&mut self, moves: usize) {
        self.unsettled_since = None;
        self.moves_in_flight = moves;
    }

    /// Records the end of a move. Returns whether it was the last one.
    pub(super) fn finish_move(&mut self) -> bool {
        self.moves_in_flight = self.moves_in_flight.saturating_sub(1);
        self.moves_in_flight == 0
    }
}

impl Engine {
    pub(super) fn mark_unsettled(&mut self, now: Moment) {
        self.own_placement = None;
        let holds = self.held() > 0;
        self.balance.disturb(now, holds);
    }

    /// Rebalances by a new read of heartbeats, not by an old one.
    pub(super) fn read_then_rebalance(&mut self, now: Moment) {
        self.balance.begin_read();
        self.read_instances(now);
    }

    /// Hands over the targets above the quota, a few at a time.
    pub(super) fn rebalance(&mut self, now: Moment) {
        let budget = (self.held() / MOVES_PER_ROUND_DIVISOR).max(1);
        let moves = self.planned_moves(now, budget);
        // The rest follows when these have been handed over.
        self.balance.begin_moves(moves.len());
        let reason = MoveReason::Surplus { held: self.held(), quota: self.own_quota(now) };
        for (target, to) in moves {
            self.hand_over(now, &target, to, reason);
        }
    }

    /// Whether this instance should hold nothing.
    pub(super) fn is_evacuating(&self) -> bool {
        self.draining || !self.able
    }

    pub(super) fn evacuate(&mut self, now: Moment) {
        let reason = if self.draining { MoveReason::Draining } else { MoveReason::Unable };
        for (target, to) in self.planned_moves(now, usize::MAX) {
            self.hand_over(now, &target, to, reason);
        }
        // Without an eligible instance, a draining instance releases its targets. One that cannot work keeps them: it
        // may be able again before another joins.
        if self.draining && !self.loads(now).iter().any(InstanceLoad::is_eligible) {
            for target in self.targets.in_state(|state| *state == TargetState::Held) {
                self.release(&target, ReleaseReason::Shutdown);
            }
        }
    }

    /// The targets to hand over, and their receivers.
    pub(in crate::pool) fn planned_moves(&self, now: Moment, budget: usize) -> Vec<(TargetName, InstanceId)> {
        let (names, scores): (Vec<&TargetName>, Vec<TargetScore>) = self
            .targets
            .iter()
            .filter(|(_, entry)| *entry.state() == TargetState::Held)
            .map(|(target, entry)| (target, entry.score))
            .unzip();
        let loads = self.loads(now);
        let quotas = placement::quotas(&loads, self.unheld_count(&loads));
        let homes: Vec<TargetHome> = names.iter().map(|target| self.target_home(now, target)).collect();
        let preference = |target: usize, to: usize| homes[target].preference(&loads[to].instance);
        let moves = placement::plan_handoffs(&self.me, &loads, &quotas, &scores, preference);
        let handoff = |handoff: placement::Handoff| {
            Some(((*names.get(handoff.target)?).clone(), loads.get(handoff.to)?.instance.clone()))
        };
        let is_given = |(_, to): &(TargetName, InstanceId)| {
            self.settings.hand_back || self.is_evacuating() || !self.membership.was_restarted(to)
        };
        moves.into_iter().filter_map(handoff).filter(is_given).take(budget).collect()
    }

    pub(in crate::pool) fn unheld_count(&self, loads: &[InstanceLoad]) -> usize {
        let held = loads.iter().fold(0, |held: usize, load| held.saturating_add(load.held));
        self.targets.len().saturating_sub(held)
    }

    pub(super) fn own_quota(&mut self, now: Moment) -> usize {
        self.own_placement(now).quota
    }

    pub(super) fn own_placement(&mut self, now: Moment) -> &OwnPlacement {
        let place = match self.own_placement.take() {
            Some(place) => place,
            None => {
                let loads = self.loads(now);
                let quotas = placement::quotas(&loads, self.unheld_count(&loads));
                // This instance is the last of the loads.
                let quota = quotas.last().copied().unwrap_or(0);
                let any_eligible = loads.iter().any(InstanceLoad::is_eligible);
                OwnPlacement { quota, ranking: Ranking::new(&self.me, &loads), any_eligible }
            }
        };
        self.own_placement.insert(place)
    }

    pub(super) fn set_draining(&mut self, now: Moment, draining: bool) {
        if self.draining == draining {
            return;
        }
        self.draining = draining;
        self.own_placement = None;
        self.schedule_claims(now);
        if draining {
            // The instances present now decide the placement.
            self.read_instances(now);
        }
    }

    pub(super) fn set_able(&mut self, now: Moment, able: bool) {
        if self.able == able {
            return;
        }
        self.able = able;
        self.own_placement = None;
        self.schedule_claims(now);
        // The instances present and able now decide the placement.
        self.read_instances(now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pool::engine::tests::settings;

    fn at(secs: u64) -> Moment {
        Moment::ZERO + Duration::from_secs(secs)
    }

    #[test]
    fn a_rebalance_waits_for_a_quiet_period_and_not_for_ever() {
        let (mut balance, settings) = (Balance::new(), settings());
        balance.disturb(at(100), false);
        assert_eq!(balance.due(&settings), None, "nothing is held");
        for now in 100..128 {
            balance.disturb(at(now), true);
            assert_eq!(balance.due(&settings), Some((at(now) + settings.settle).min(at(100) + settings.max_settle)));
        }
        balance.begin_read();
        assert_eq!(balance.due(&settings), None, "the read decides");
        assert_eq!((balance.take_read(), balance.take_read()), (Some(RebalanceRead::Current), None));
        balance.restart(at(130));
        assert_eq!(balance.due(&settings), Some(at(130) + settings.settle), "a failed read decides nothing");
    }

    #[test]
    fn a_read_during_which_own_targets_changed_decides_nothing() {
        let (mut balance, settings) = (Balance::new(), settings());
        balance.disturb(at(100), true);
        balance.begin_read();
        balance.disturb(at(140), true);
        assert_eq!(balance.take_read(), Some(RebalanceRead::Current), "others have moved a target");
        balance.begin_read();
        balance.record_own_change();
        balance.disturb(at(150), true);
        assert_eq!(balance.take_read(), Some(RebalanceRead::Disturbed));
        balance.restart(at(150));
        assert_eq!(balance.due(&settings), Some(at(150) + settings.settle));
    }

    #[test]
    fn the_next_moves_follow_the_last_one() {
        let mut balance = Balance::new();
        balance.begin_moves(2);
        assert!(!balance.finish_move());
        assert!(balance.finish_move());
        assert!(balance.finish_move(), "a release that was not a move");
    }
}
