//! When this instance reads the heartbeats of all instances, and what follows from a read.
//!
//! | input | effect |
//! |---|---|
//! | an instance has joined or left | read soon, with a minimum time between two reads |
//! | announcements were missed, a drain, ability changed | read now |
//! | the time of the next read has come; before a rebalance | read now |
//! | a read is in flight | read again when it is finished: the order of two overlapping reads is unknown |
//! | a read has failed | decide nothing by an earlier one |

use std::time::Duration;

use super::Engine;
use super::balance::RebalanceRead;
use crate::mutation::Mutation;
use crate::pool::io::PoolAction;
use crate::store::LiveInstance;
use crate::time::Moment;

/// The assumed total cost of one heartbeat in one read, and the longest wait that follows from it.
const READ_COST_PER_HEARTBEAT: Duration = Duration::from_micros(50);
const MAX_READ_SPACING: Duration = Duration::from_secs(1);

/// The reads of heartbeats.
#[derive(Debug)]
pub(super) struct Reads {
    next: Moment,
    /// When heartbeats were last requested.
    last_at: Moment,
    in_flight: bool,
    again: bool,
}

impl Reads {
    /// The first read is due at once.
    pub(super) fn new() -> Self {
        Self { next: Moment::ZERO, last_at: Moment::ZERO, in_flight: false, again: false }
    }

    /// When to read next.
    pub(super) fn next(&self) -> Moment {
        self.next
    }

    /// Schedules the next read.
    pub(super) fn schedule(&mut self, at: Moment) {
        self.next = at;
    }

    fn bring_forward(&mut self, at: Moment) {
        self.next = self.next.min(at);
    }

    fn bring_forward_spaced(&mut self, now: Moment, spacing: Duration) {
        self.bring_forward(now.max(self.last_at + spacing));
    }

    /// Begins a read. Returns whether to send it now: otherwise it follows the one in flight.
    fn begin(&mut self, now: Moment, every: Duration) -> bool {
        self.last_at = now;
        self.next = now + every;
        self.again = self.in_flight;
        !std::mem::replace(&mut self.in_flight, true)
    }

    /// Ends a read. Returns whether another one was requested meanwhile.
    fn finish(&mut self) -> bool {
        self.in_flight = false;
        std::mem::take(&mut self.again)
    }
}

impl Engine {
    pub(super) fn update_instances(&mut self, now: Moment, members: Vec<LiveInstance>) {
        let targets = &self.targets;
        let update = self.membership.update(now, members, |instance| targets.held_by(instance));
        self.actions.extend(update.left.iter().cloned().map(PoolAction::QueryHeldIndex));
        let moved = update.joined || !update.left.is_empty();
        if moved {
            self.mark_unsettled(now);
        }
        if moved || update.changed || update.exceptions_changed {
            self.own_placement = None;
        }
        if update.is_first || update.exceptions_changed {
            self.schedule_claims(now);
        }
        if moved || update.exceptions_changed {
            self.plan_succession(now);
        }
        if moved || update.changed {
            self.watch_offers(now);
        }
        if update.backoffs_changed {
            self.actions.push(PoolAction::PublishRecord);
        }
        self.reads.schedule(now + self.settings.read_every);
        if let Some(pardon) = self.membership.next_backoff_end() {
            self.reads.bring_forward(pardon);
        }
        if let Some(doubt) = self.membership.next_late_at() {
            // Not too often, however many instances are late.
            self.reads.bring_forward(doubt.max(now + self.settings.late_recheck_every));
        }
        let is_outdated = self.finish_read(now);
        if self.is_evacuating() {
            self.balance.take_read();
            self.evacuate(now);
        } else if !is_outdated && let Some(read) = self.balance.take_read() {
            match read {
                RebalanceRead::Current => self.rebalance(now),
                RebalanceRead::Disturbed if !self.membership.mutations.has(Mutation::RebalanceByOldRead) => {
                    self.balance.restart(now);
                }
                RebalanceRead::Disturbed => self.rebalance(now),
            }
        } else if self.held() > self.own_quota(now) {
            self.balance.mark_unbalanced(now);
        }
    }

    /// After a failed read, decide nothing by an earlier one.
    pub(super) fn handle_read_failed(&mut self, now: Moment) {
        self.finish_read(now);
        if self.balance.take_read().is_some() {
            self.balance.restart(now);
        }
    }

    pub(super) fn read_instances(&mut self, now: Moment) {
        if self.reads.begin(now, self.settings.read_every) {
            self.actions.push(PoolAction::ReadInstances);
        }
    }

    /// Reads the heartbeats soon, because an instance has joined or left. When all instances join at once, each reads the
    /// heartbeats of all, so two reads have a minimum time between them.
    pub(super) fn read_soon(&mut self, now: Moment) {
        let others = u32::try_from(self.membership.count()).unwrap_or(u32::MAX).min(1_000);
        self.reads.bring_forward_spaced(now, (READ_COST_PER_HEARTBEAT * others * others).min(MAX_READ_SPACING));
    }

    /// Ends a read. Returns whether another one was requested meanwhile, and starts it.
    fn finish_read(&mut self, now: Moment) -> bool {
        let is_outdated = self.reads.finish();
        if is_outdated {
            self.read_instances(now);
        }
        is_outdated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn reads_never_overlap_and_a_request_meanwhile_leads_to_one_more() {
        let (mut reads, every) = (Reads::new(), Duration::from_secs(10));
        assert!(reads.begin(at(0), every));
        assert!(!reads.begin(at(1), every) && !reads.begin(at(2), every));
        assert!(reads.finish(), "one of them is sent now");
        assert!(reads.begin(at(3), every));
        assert!(!reads.finish());
        assert_eq!(reads.next(), at(3) + every);
    }

    #[test]
    fn a_read_because_of_an_announcement_keeps_its_distance_from_the_last_one() {
        let (mut reads, every) = (Reads::new(), Duration::from_secs(10));
        reads.begin(at(0), every);
        reads.bring_forward_spaced(at(1), Duration::from_millis(500));
        assert_eq!(reads.next(), at(500));
        reads.bring_forward_spaced(at(700), Duration::from_millis(500));
        assert_eq!(reads.next(), at(500), "never later");
        reads.schedule(at(9_000));
        reads.bring_forward_spaced(at(700), Duration::from_millis(500));
        assert_eq!(reads.next(), at(700));
    }
}
