//! Driving leases: passing inputs to them and carrying out their actions, from the first request to the end.

use std::time::Duration;

use super::lease_table::LeaseEntry;
use super::output::{Outgoing, ReplyTo};
use super::store::DATA_CHANGED;
use super::waiters::Waiter;
use super::{AcquireMode, LeaseId, LeaseManager, Output, Validity};
use crate::ending::{Ending, ReleaseReason};
use crate::event::{Event, EventKind};
use crate::lease::{AcquireStatus, Action, Input, Lease, Permission};
use crate::name::LeaseKind;
use crate::store::{DocumentRequest, LeaseRequest, LogRequest, MembershipRequest, ROLES, TermNote};
use crate::time::{Moment, Now};
use crate::token::Token;

/// Wake-ups of held leases are rounded to this fraction of their ttl, so that renewals share a batch.
const WAKE_UPS_PER_TTL: u32 = 2_000;
const MAX_WAKE_UP_GRANULARITY: Duration = Duration::from_millis(10);

impl LeaseManager {
    /// Starts to drive a lease for a waiter.
    pub(super) fn drive(&mut self, now: Now, waiter: Waiter) {
        let (name, settings) = (waiter.request.name.clone(), waiter.request.settings.clone());
        let ended_term = self.ended_terms.take(&name);
        let instance = self.config.instance.clone();
        let lease = Lease::new(name, instance, settings, self.rng.u64(..)).with_ended_term(ended_term);
        let lease = lease.with_mutations(self.mutations);
        let waiter_id = waiter.request.waiter;
        let id = self.leases.insert(LeaseEntry::new(lease, waiter));
        self.waiters.activate(waiter_id, id);
        if !self.outbox.is_online() {
            self.step(now, id, Input::ConnectionLost);
        }
        self.step(now, id, Input::Tick);
    }

    /// Passes an input to a lease and carries out its actions, until none produces another input.
    pub(super) fn step(&mut self, now: Now, id: LeaseId, input: Input) {
        let mut next = Some(input);
        while let Some(input) = next.take() {
            let siblings = self.held;
            let Some(entry) = self.leases.get(id) else { return };
            let had = entry.lease.token().is_some();
            entry.lease.set_siblings(siblings);
            let actions = entry.lease.step(now, input);
            let has = entry.lease.token().is_some();
            match (had, has) {
                (false, true) => self.term_began(now, id),
                (true, false) => self.held -= 1,
                _ => {}
            }
            if had || has {
                self.update_validity(now, id);
            }
            for action in actions {
                match action {
                    Action::Send { attempt, request, give_up_at } => {
                        let beat = self.heartbeat_with(id, &request);
                        let reply_to = ReplyTo::Lease(id, attempt);
                        self.outbox.send(Outgoing { request: request.into(), give_up_at, reply_to });
                        beat.into_iter().for_each(|beat| self.outbox.send_unawaited_by(give_up_at, beat));
                    }
                    Action::Attach => self.reattach = Some(DATA_CHANGED),
                    Action::Wake { at, .. } => self.arm(id, at),
                    Action::Permit(permission) => next = self.permit(id, permission).or(next),
                    Action::Emit(event) => self.emit_for(now, id, event),
                    Action::Deadline(_) => {}
                }
            }
        }
        self.update_status(id);
        self.finish_if_over(now, id);
    }

    /// Tells the waiter of a lease how the acquisition stands.
    pub(super) fn update_status(&mut self, id: LeaseId) {
        if let Some(entry) = self.leases.get(id)
            && let Some(waiter) = entry.waiter.as_mut()
            && let Some(status) = entry.lease.acquire_status()
        {
            let changed = waiter.update_status(match status {
                // The lease only knows that it is offline.
                AcquireStatus::Blocked { why } => {
                    AcquireStatus::Blocked { why: self.attach_error.as_ref().map(ToString::to_string).or(why) }
                }
                status => status,
            });
            self.outputs.extend(changed);
        }
    }

    /// Tells the holder what it may rely on.
    fn update_validity(&mut self, now: Now, id: LeaseId) {
        let Some(entry) = self.leases.peek(id) else { return };
        let (acquired_at, renewed_at) = entry.lease.times().unwrap_or((entry.acquired_at, entry.acquired_at));
        let remaining = entry.lease.remaining(now);
        let deadline = if remaining.is_zero() { Moment::ZERO } else { now.moment + remaining };
        let validity = Validity { token: entry.lease.token(), deadline, acquired_at, renewed_at };
        self.outputs.push(Output::TermUpdated { lease: id, validity });
    }

    /// Records that a term has begun.
    fn term_began(&mut self, now: Now, id: LeaseId) {
        self.held += 1;
        let group = self.leases.heartbeat(id).map(|heartbeat| heartbeat.group.clone());
        let Some(entry) = self.leases.get(id) else { return };
        entry.acquired_at = entry.lease.times().map_or(now.moment, |(acquired_at, _)| acquired_at);
        let (name, settings) = (entry.lease.name().clone(), entry.settings().clone());
        let token = entry.lease.token().unwrap_or(Token::ZERO);
        self.outputs.push(Output::TermBegan { lease: id, name: name.clone(), settings });
        // Listing the candidates removes the dead ones.
        self.outbox.send_unawaited(now.moment, group.map(|group| MembershipRequest::List { group }));
        if name.kind() == LeaseKind::Role {
            // For listings of all roles.
            let (index, entry) = (ROLES.to_owned(), name.encode());
            self.outbox.send_unawaited(now.moment, [DocumentRequest::IndexAdd { index, entry, announced: false }]);
        }
        let (holder, from) = (self.config.instance.clone(), self.knowledge.server_time(now.moment));
        let note = TermNote { name, token, holder, from, demoted: None, released: None, ending: None };
        self.outbox.note(now.moment, LogRequest::Note(note));
    }

    /// Passes a permission on to the work. Returns an input for the lease if one follows at once, because no term has
    /// begun whose work would have to end.
    fn permit(&mut self, id: LeaseId, permission: Permission) -> Option<Input> {
        let entry = self.leases.get(id)?;
        let is_stop = matches!(permission, Permission::MustCancel { .. } | Permission::MustBeGone);
        if !entry.has_begun() {
            return is_stop.then_some(Input::WorkEnded);
        }
        entry.is_stopped |= is_stop;
        entry.must_be_gone |= permission == Permission::MustBeGone;
        if is_stop {
            // Without a reason from this process, an operator requested it. A loss has already told its cause.
            let cause = Ending::Released(entry.release_reason.unwrap_or(ReleaseReason::StepDown));
            self.outputs.push(Output::TermCause { lease: id, cause });
        }
        self.outputs.push(Output::Permit { lease: id, permission });
        if matches!(permission, Permission::MayStart { .. })
            && let Some(waiter) = entry.waiter.take()
        {
            let waiter = waiter.request.waiter;
            self.waiters.forget(waiter);
            self.outputs.push(Output::Granted { waiter, lease: id });
        }
        None
    }

    fn emit_for(&mut self, now: Now, id: LeaseId, mut event: Event) {
        if let Some(entry) = self.leases.get(id) {
            let cause = match &mut event.kind {
                EventKind::AcquireFailed { is_waiting, .. } => {
                    let waiter = entry.waiter.as_ref();
                    *is_waiting = waiter.is_some_and(|waiter| waiter.request.mode == AcquireMode::Wait);
                    None
                }
                EventKind::Lost(loss) => Some(Ending::Lost(loss.clone())),
                EventKind::Released(reason) => Some(Ending::Released(*reason)),
                _ => None,
            };
            if let Some(cause) = cause.filter(|_| entry.has_begun()) {
                self.outputs.push(Output::TermCause { lease: id, cause });
            }
        }
        // The heartbeat would outlive a dead holder. A holder that is alive after all sends another.
        if let EventKind::TakenOver { owner } = &event.kind {
            let leave = self.leases.heartbeat(id).map(|heartbeat| heartbeat.leave_request(owner));
            self.outbox.send_unawaited(now.moment, leave);
        }
        self.outputs.push(Output::Emit(event));
    }

    /// The heartbeat to send with a request, if there is one.
    fn heartbeat_with(&self, id: LeaseId, request: &LeaseRequest) -> Option<MembershipRequest> {
        let is_claim_or_renewal = matches!(
            request,
            LeaseRequest::Acquire { .. } | LeaseRequest::TakeOver { .. } | LeaseRequest::Renew { .. }
        );
        let heartbeat = self.leases.heartbeat(id).filter(|_| is_claim_or_renewal)?;
        Some(heartbeat.request(&self.config.instance))
    }

    pub(super) fn arm(&mut self, id: LeaseId, at: Moment) {
        let Some(entry) = self.leases.get(id) else { return };
        let at = if entry.lease.token().is_some() { rounded_up(at, entry.settings().ttl()) } else { at };
        if at < entry.queued {
            entry.queued = at;
            self.wake_ups.add(at, id);
        }
    }

    fn finish_if_over(&mut self, now: Now, id: LeaseId) {
        let Some(ending) = self.leases.peek(id).and_then(|entry| entry.lease.ending().cloned()) else { return };
        let Some(mut entry) = self.leases.remove(id) else { return };
        let name = entry.lease.name().clone();
        if let Some(token) = entry.lease.ended_term() {
            self.ended_terms.remember(now.moment, &name, token, entry.settings().ttl());
        }
        if entry.has_begun() {
            self.note_end(now.moment, &entry, ending.clone());
            let is_release_unknown = entry.lease.is_release_unknown();
            self.outputs.push(Output::TermEnded { lease: id, ending, is_release_unknown });
        }
        // If the term ended before its work could start, its waiter waits for the next one.
        let next = entry.waiter.take().map(|waiter| *waiter).or_else(|| self.waiters.next(&name));
        if let Some(waiter) = next {
            self.drive(now, waiter);
        }
    }

    fn note_end(&mut self, now: Moment, entry: &LeaseEntry, ending: Ending) {
        let at = |moment| self.knowledge.server_time(moment);
        let note = TermNote {
            name: entry.lease.name().clone(),
            // It has begun, so this is its own.
            token: entry.lease.ended_term().unwrap_or(Token::ZERO),
            holder: self.config.instance.clone(),
            from: at(entry.acquired_at),
            demoted: Some(at(entry.demoted.min(now))),
            released: matches!(ending, Ending::Released(_)).then(|| at(now)),
            ending: Some(ending),
        };
        self.outbox.note(now, LogRequest::Note(note));
    }
}

/// Rounds up to a small fraction of the ttl, so that leases that are due at about the same time are due together.
fn rounded_up(at: Moment, ttl: Duration) -> Moment {
    let grain = (ttl / WAKE_UPS_PER_TTL).min(MAX_WAKE_UP_GRANULARITY).as_nanos().max(1);
    let nanos = u128::from(at.as_nanos()).div_ceil(grain) * grain;
    Moment::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
