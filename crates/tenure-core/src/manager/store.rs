//! What comes from the store: connections, replies and announcements.

use super::output::{ReplyTo, Unawaited};
use super::{AcquireMode, AcquireRefusal, ConnectionChange, LeaseId, LeaseManager, LinkId, Output, Recipients};
use crate::event::{Event, EventKind};
use crate::lease::Input;
use crate::store::{Announcement, Attached, ErrorKind, Holding, Outcome, Refusal, Reply, StoreError};
use crate::time::{Moment, Now};

/// Why the store is attached again when a reply shows it.
pub(super) const DATA_CHANGED: &str = "the store's data has changed";

impl LeaseManager {
    /// Handles a connection that has attached to the store, or an attempt that failed.
    pub fn attached(&mut self, now: Now, link: LinkId, result: Result<&Attached, StoreError>) {
        if !self.is_current(link) {
            return;
        }
        match result {
            Ok(attached) => self.connected(now, attached),
            Err(error) => self.attach_failed(now, error),
        }
    }

    fn connected(&mut self, now: Now, attached: &Attached) {
        let continuity = self.knowledge.attached(now.moment, attached);
        self.link.connected(now.moment);
        self.attach_error = None;
        self.reported_loss = None;
        self.outputs.push(Output::Connection(ConnectionChange::Attached));
        self.emit_kind(EventKind::StoreAttached);
        if let Some(quarantine) = attached.quarantine {
            self.emit_kind(EventKind::StoreQuarantined(quarantine));
        }
        if let Some(error) = &attached.publish_error {
            self.report_silence(error.clone());
        }
        self.outputs.push(Output::MissedAnnouncements);
        if let Some(heartbeat_timer) = &mut self.heartbeat_timer {
            heartbeat_timer.fire_now();
        }
        self.outbox.connected();
        for id in self.leases.ids() {
            self.step(now, id, Input::Attached(continuity));
        }
        self.outbox.send_calls(now.moment);
    }

    /// Handles a failed attach. Holders keep their leases while these last. Waiters are refused if a retry cannot help;
    /// those that only try are refused in any case.
    fn attach_failed(&mut self, now: Now, error: StoreError) {
        self.link.attach_failed(now.moment, &error, &mut self.rng);
        self.attach_error = Some(error.clone());
        let can_retry = error.is_retryable();
        if !can_retry {
            self.refuse_queued(&AcquireRefusal::Store(error.clone()));
        }
        for id in self.leases.ids() {
            if self.waits(id, |mode| mode == AcquireMode::Try || !can_retry) {
                self.refuse(now, id, AcquireRefusal::Store(error.clone()));
            }
            self.update_status(id);
        }
        self.emit_loss(&error);
        self.outputs.push(Output::Connection(ConnectionChange::Lost(error)));
    }

    /// Whether a caller waits for this lease, in such a way.
    fn waits(&self, id: LeaseId, is_wanted: impl FnOnce(AcquireMode) -> bool) -> bool {
        let waiter = self.leases.peek(id).and_then(|entry| entry.waiter.as_ref());
        waiter.is_some_and(|waiter| is_wanted(waiter.request.mode))
    }

    /// Handles the end of a connection.
    pub fn closed(&mut self, now: Now, link: LinkId) {
        if self.is_current(link) {
            self.drop_link(now, "the connection was closed");
        }
    }

    /// Abandons the connection, if there is one, because it is of no use any more.
    pub(super) fn drop_link(&mut self, now: Now, why: &str) {
        if let Some(error) = self.disconnect(now, why) {
            self.outputs.push(Output::Connection(ConnectionChange::Lost(error)));
        }
    }

    /// Attaches again by another connection. Callers are told only if that fails.
    pub(super) fn replace_link(&mut self, now: Now, why: &str) {
        let _ = self.disconnect(now, why);
    }

    fn disconnect(&mut self, now: Now, why: &str) -> Option<StoreError> {
        if !self.link.is_up() {
            return None;
        }
        self.link.disconnect(now.moment, &mut self.rng);
        self.outputs.push(Output::Disconnect);
        self.outbox.connection_lost(now.moment, &mut self.outputs);
        let error = StoreError::new(ErrorKind::Unreachable, format!("{why}, before the lease was granted"));
        for id in self.leases.ids() {
            self.step(now, id, Input::ConnectionLost);
            // `try_acquire` is one attempt. If it was granted after all, the lease is released.
            if self.waits(id, |mode| mode == AcquireMode::Try) {
                self.refuse(now, id, AcquireRefusal::Store(error.clone()));
            }
        }
        let error = StoreError::new(ErrorKind::Unreachable, format!("{}: {why}", self.config.location));
        self.emit_loss(&error);
        Some(error)
    }

    /// Emits that the store cannot be reached, once for each kind of error.
    fn emit_loss(&mut self, error: &StoreError) {
        if self.reported_loss.replace(error.kind()) != Some(error.kind()) {
            self.emit_kind(EventKind::StoreLost { error: error.to_string() });
        }
    }

    /// Handles the replies to a batch, in order.
    pub fn answered(
        &mut self,
        now: Now,
        link: LinkId,
        recipients: Recipients,
        outcomes: impl IntoIterator<Item = Outcome>,
    ) {
        if !self.is_current(link) {
            return;
        }
        self.outbox.batch_answered();
        let (mut is_usable, mut is_answered) = (true, false);
        for (reply_to, outcome) in recipients.0.into_iter().zip(outcomes) {
            is_usable &= !matches!(outcome, Outcome::Unknown(_));
            is_answered |= matches!(outcome, Outcome::Answered(_));
            self.deliver(now, reply_to, outcome);
        }
        if !is_usable {
            self.drop_link(now, "a reply did not arrive in time");
        } else if is_answered {
            self.link.confirm_working(now.moment);
        }
    }

    fn deliver(&mut self, now: Now, reply_to: ReplyTo, outcome: Outcome) {
        if let Outcome::Answered(reply) = &outcome {
            self.knowledge.learn(now.moment, reply);
            if self.knowledge.take_unknown_quarantine(reply) {
                self.reattach = Some(DATA_CHANGED);
            }
            self.refresh_doubtful_ttls(now);
        }
        self.outbox.call_answered(now.moment, &reply_to);
        match reply_to {
            ReplyTo::Unawaited(purpose) => self.report_refusal(now.moment, purpose, &outcome),
            ReplyTo::Caller(call) | ReplyTo::LowPriority(call) => self.outputs.push(Output::Replied { call, outcome }),
            ReplyTo::Publication(holding, call) => {
                let refusal = match &outcome {
                    Outcome::Answered(Reply::Refused(refusal)) => Some(refusal.clone()),
                    _ => None,
                };
                self.outputs.push(Output::Replied { call, outcome });
                if let Some(refusal) = refusal {
                    self.publication_refused(now, &holding, refusal);
                }
            }
            ReplyTo::Lease(id, attempt) => {
                let refusal = self.refusal(id, &outcome);
                let input = match outcome {
                    Outcome::Answered(reply) => Input::Answered { attempt, reply },
                    Outcome::Failed(error) => Input::Failed { attempt, error },
                    Outcome::Unknown(error) => Input::Unknown { attempt, error },
                };
                let is_renewal = matches!(&input, Input::Answered { reply: Reply::Renewed { .. }, .. });
                self.step(now, id, input);
                if is_renewal {
                    let round_trip = self.lease(id).and_then(|lease| lease.last_round_trip());
                    self.outputs.extend(round_trip.map(Output::Renewed));
                }
                if let Some(refusal) = refusal {
                    self.refuse(now, id, refusal);
                }
            }
        }
    }

    /// The refusal for the waiter of this lease, if the outcome decides it.
    fn refusal(&self, id: LeaseId, outcome: &Outcome) -> Option<AcquireRefusal> {
        let mode = self.leases.peek(id)?.waiter.as_ref()?.request.mode;
        match (outcome, mode) {
            (Outcome::Failed(error), _) if !error.is_retryable() => Some(AcquireRefusal::Store(error.clone())),
            (Outcome::Failed(error) | Outcome::Unknown(error), AcquireMode::Try) => {
                Some(AcquireRefusal::Store(error.clone()))
            }
            (Outcome::Answered(Reply::Held(held)), AcquireMode::Try) => {
                Some(AcquireRefusal::Held { holder: held.holder.clone(), remaining: held.remaining })
            }
            (Outcome::Answered(Reply::Quarantined(quarantine)), AcquireMode::Try) => {
                Some(AcquireRefusal::Quarantined(*quarantine))
            }
            (Outcome::Answered(Reply::TokensExhausted), _) => {
                let message = "no larger token is left for this lease";
                Some(AcquireRefusal::Store(StoreError::new(ErrorKind::Corrupt, message)))
            }
            _ => None,
        }
    }

    /// Reports that requests without a caller are refused for good: once for each purpose, and heartbeats again after
    /// one was accepted. Of the other purposes some requests may be accepted while others are refused. Heartbeats of the
    /// fleet that have failed for as long as one is valid are refused, too, although a retry may help: a full disk.
    fn report_refusal(&mut self, now: Moment, purpose: Unawaited, outcome: &Outcome) {
        let has_lapsed = match (&purpose, &mut self.heartbeat_timer) {
            (Unawaited::Heartbeat(group), Some(timer)) => timer.record_outcome(now, group, outcome),
            _ => false,
        };
        match outcome {
            Outcome::Answered(_) if matches!(purpose, Unawaited::Heartbeat(_)) => drop(self.refused.remove(&purpose)),
            Outcome::Failed(error) if (has_lapsed || !error.is_retryable()) && self.refused.insert(purpose) => {
                self.emit_kind(EventKind::StoreRefused { error: error.to_string() });
            }
            Outcome::Answered(_) | Outcome::Failed(_) | Outcome::Unknown(_) => {}
        }
    }

    /// Ends a term whose publication was refused: it is over, even if no renewal has been refused yet.
    fn publication_refused(&mut self, now: Now, holding: &Holding, refusal: Refusal) {
        let owner = match &refusal {
            Refusal::Taken { holder } => Some(holder.clone()),
            _ => None,
        };
        let (instance, lease, token) = (self.config.instance.clone(), Some(holding.name.clone()), Some(holding.token));
        self.outputs.push(Output::Emit(Event { instance, lease, token, kind: EventKind::PublishRefused { owner } }));
        if let Some(id) = self.find(&holding.name) {
            self.step(now, id, Input::Refused { token: holding.token, refusal });
        }
    }

    /// Handles an announcement.
    pub fn announced(&mut self, now: Now, announcement: Announcement) {
        if self.knowledge.learn_announcement(&announcement) {
            self.reattach = Some("the store has lost its data");
            return;
        }
        self.refresh_doubtful_ttls(now);
        if announcement == Announcement::Reopened {
            self.recheck(now);
        }
        self.outputs.push(Output::Announced(announcement.clone()));
        // A publication does not change who holds the lease.
        if !matches!(announcement, Announcement::Published { .. })
            && let Some(id) = announcement.lease().and_then(|name| self.find(name))
        {
            self.step(now, id, Input::Announced(announcement));
        }
    }

    /// Handles a subscription that was made, or that has lost announcements.
    pub fn announcements_missed(&mut self, now: Now) {
        self.silence_reported = false;
        self.recheck(now);
    }

    /// Handles a failed subscription.
    pub fn subscribe_failed(&mut self, error: &StoreError) {
        // A store that is down is reported by the connection.
        if !error.is_retryable() {
            self.report_silence(error.to_string());
        }
    }

    /// Reports, once, that announcements cannot be received.
    fn report_silence(&mut self, error: String) {
        if !std::mem::replace(&mut self.silence_reported, true) {
            self.emit_kind(EventKind::StoreSilent { error });
        }
    }

    /// Rechecks everything, because announcements may have been missed.
    fn recheck(&mut self, now: Now) {
        self.refresh_ttls(now.moment);
        self.outputs.push(Output::MissedAnnouncements);
        for id in self.leases.ids() {
            if self.waits(id, |_| true) {
                self.step(now, id, Input::Recheck);
            }
        }
    }

    fn refresh_doubtful_ttls(&mut self, now: Now) {
        if self.knowledge.take_ttl_doubt() {
            self.refresh_ttls(now.moment);
        }
    }
}
