//! When this instance claims an unheld target, and what follows from the reply.
//!
//! | the target was last held by | this instance claims it |
//! |---|---|
//! | this instance | at once |
//! | an instance that is awaited after an outage | when it is not awaited any more |
//! | an instance that is back after an outage | when it had the time to claim what it held |
//! | an instance that is present | after the longest claim delay |
//! | an instance that is gone | at once, if the plan says so; behind the successor otherwise |
//! | no known instance | by rank, if it has room; after the instances with room otherwise |
//!
//! A draining instance claims nothing, and one that cannot work only what no other instance can take.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Engine;
use crate::ending::ReleaseReason;
use crate::name::InstanceId;
use crate::placement;
use crate::pool::io::{PoolAction, TargetName};
use crate::pool::table::{Successor, TargetState};
use crate::time::Moment;

/// How long an instance that is back after an outage has to claim its former targets.
const RECLAIM_WINDOW: Duration = Duration::from_secs(1);

/// The limit of claims in flight, and of targets queried at once, so that urgent requests do not queue behind all of
/// them.
const MAX_CLAIMS_IN_FLIGHT: usize = 512;

/// How long a target seen as unheld may be claimed without another query. Later, another instance may hold it, and a
/// query costs less than a claim.
const UNHELD_FRESH_FOR: Duration = Duration::from_millis(200);

/// The limit, in claim delays, for which an instance without room leaves unheld targets to instances that are claiming
/// them.
const MAX_CLAIM_DELAYS: u32 = 10;

/// The claims that are due.
#[derive(Debug)]
pub(super) struct Claims {
    /// Targets to claim as soon as fewer claims are in flight: first those that no other instance ranks higher for,
    /// then by claim time.
    pub(super) queue: BTreeSet<(bool, Moment, TargetName)>,
    /// Whether the holders of some of these are being queried.
    pub(super) is_rechecking: bool,
    /// When another instance was last seen to have taken an unheld target.
    pub(super) last_taken_at: Moment,
}

impl Claims {
    pub(super) fn new() -> Self {
        Self { queue: BTreeSet::new(), is_rechecking: false, last_taken_at: Moment::ZERO }
    }
}

impl Engine {
    pub(super) fn schedule_claim(&mut self, now: Moment, target: &TargetName) {
        let turn = self.claim_at(now, target);
        self.targets.set_due(target, turn);
    }

    pub(super) fn schedule_claims(&mut self, now: Moment) {
        for target in self.targets.in_state(|state| matches!(state, TargetState::Unheld { .. })) {
            self.schedule_claim(now, &target);
        }
    }

    /// When to claim an unheld target: at once when no other instance ranks higher, or when we held it last.
    fn claim_at(&mut self, now: Moment, target: &TargetName) -> Option<Moment> {
        // An instance that cannot work claims a target only if no other can: it may be able again soon.
        if self.draining || !self.membership.is_initialized() || !self.able && self.own_placement(now).any_eligible {
            return None;
        }
        let has_room = self.has_room(now);
        let (longest, membership) = (self.settings.max_claim_delay, &self.membership);
        let entry = self.targets.get(target)?;
        let TargetState::Unheld { since, .. } = entry.state() else { return None };
        let (since, score, successor) = (*since, entry.score, entry.successor());
        Some(match &entry.last_holder {
            Some(last) if *last == self.me => since,
            // The last holder has not had the time to claim it again.
            Some(last) if membership.awaited_until(now, last).is_some() => membership.awaited_until(now, last)?,
            // The last holder is back, and has as many targets to claim as we have.
            Some(last) if membership.is_alive(last) && membership.outage_grace_until(now).is_some() => {
                since.max(membership.joined_at(last).unwrap_or(since)) + longest.max(RECLAIM_WINDOW)
            }
            Some(last) if membership.is_alive(last) && !membership.is_waiting(now, last) => since + longest,
            // We were away and do not know its last holder, which claims it when it is back.
            None if membership.outage_grace_until(now).is_some() => {
                membership.any_awaited_until(now).unwrap_or(since + longest.max(RECLAIM_WINDOW))
            }
            _ if successor == Some(Successor::Us) => since,
            _ if successor == Some(Successor::Other) => since + self.delay_behind_successor(now, score),
            _ if has_room => since + placement::claim_delay(self.own_placement(now).ranking.rank(score), true, longest),
            // Instances with room go first, as long as they keep claiming.
            _ => {
                since.max(self.claims.last_taken_at).min(since + longest * MAX_CLAIM_DELAYS)
                    + placement::claim_delay(0, false, longest)
            }
        })
    }

    pub(super) fn claim_now(&mut self, target: &TargetName) {
        if !self.draining
            && matches!(
                self.targets.state(target),
                Some(TargetState::Unknown | TargetState::Unheld { .. } | TargetState::HeldByOther { .. })
            )
        {
            self.claim(target);
        }
    }

    pub(super) fn claim(&mut self, target: &TargetName) {
        if let Some(entry) = self.targets.get_mut(target) {
            entry.heard = false;
            self.targets.set_state(target, TargetState::Claiming);
            self.targets.set_due(target, None);
            self.actions.push(PoolAction::Claim(target.clone()));
        }
    }

    pub(super) fn handle_granted(&mut self, now: Moment, target: &TargetName) {
        let me = self.me.clone();
        self.record_move(now, target, None, &me);
        let Some(entry) = self.targets.get_mut(target) else { return };
        let wanted = entry.wanted;
        let last = entry.last_holder.replace(self.me.clone()).filter(|last| *last != self.me);
        entry.orphan = None;
        self.targets.set_state(target, TargetState::Held);
        self.balance.record_own_change();
        if let Some(instance) = last {
            self.actions.push(PoolAction::RecordTakeover { target: target.clone(), from: instance.clone() });
            self.actions.push(PoolAction::Forget { instance, target: target.clone() });
        }
        self.actions.push(PoolAction::PublishRecord);
        if !wanted {
            self.release(target, ReleaseReason::Removed);
        } else if self.is_evacuating() {
            self.evacuate(now);
        } else if self.held() > self.own_quota(now) {
            self.mark_unsettled(now);
        }
    }

    pub(super) fn handle_refused(
        &mut self,
        now: Moment,
        target: &TargetName,
        holder: InstanceId,
        remaining: Option<Duration>,
    ) {
        if self.end_claim(target) {
            self.claims.last_taken_at = now;
            // Our own instance holds it: a retry is of no use before that term has ended.
            if holder == self.me {
                self.targets.set_state(target, TargetState::HeldByOther { holder: holder.clone() });
            }
            self.update_holder(now, target, Some((holder, remaining.map(|left| now + left))));
        }
    }

    pub(super) fn handle_failed(&mut self, now: Moment, target: &TargetName, retry_after: Duration) {
        if self.end_claim(target) {
            self.targets.set_state(target, TargetState::Unheld { since: now + retry_after, seen: now });
            self.schedule_claim(now, target);
        }
    }

    /// Ends an unsuccessful claim. Returns whether the target is still wanted.
    fn end_claim(&mut self, target: &TargetName) -> bool {
        let asked = self.targets.get(target).filter(|entry| *entry.state() == TargetState::Claiming);
        let Some(wanted) = asked.map(|entry| entry.wanted) else { return false };
        if wanted {
            self.targets.set_state(target, TargetState::Unknown);
        } else {
            self.targets.forget(target);
        }
        wanted
    }

    /// Sends queued claims, as long as not too many are in flight.
    pub(super) fn send_claims(&mut self, now: Moment) {
        let mut doubtful = Vec::new();
        while self.targets.claiming() + doubtful.len() < MAX_CLAIMS_IN_FLIGHT {
            let Some((waited, at, target)) = self.claims.queue.pop_first() else { break };
            let Some(TargetState::Unheld { seen, .. }) = self.targets.state(&target) else { continue };
            let fresh = now.since(*seen) <= UNHELD_FRESH_FOR;
            // Computed again: there may be no room left, or an instance to wait for.
            match self.claim_at(now, &target) {
                Some(turn) if turn <= now && fresh => self.claim(&target),
                Some(turn) if turn <= now && self.claims.is_rechecking => {
                    self.claims.queue.insert((waited, at, target));
                    break;
                }
                Some(turn) if turn <= now => doubtful.push(target),
                later => self.targets.set_due(&target, later),
            }
        }
        if !doubtful.is_empty() {
            self.claims.is_rechecking = true;
            for target in &doubtful {
                // In case no reply comes.
                self.targets.set_due(target, Some(now + self.settings.read_every));
            }
            self.query_holders(doubtful);
        }
    }

    fn has_room(&mut self, now: Moment) -> bool {
        self.held() + self.targets.claiming() < self.own_quota(now)
    }
}
