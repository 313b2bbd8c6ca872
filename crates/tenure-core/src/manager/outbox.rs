//! The requests on their way to the store: what leases ask, what callers ask, and what can wait.

use std::time::Duration;

use crate::lease::LeaseSettings;
use crate::store::{DocumentRequest, ErrorKind, LeaseRequest, LogRequest, Request, StoreError};
use crate::time::Moment;
use crate::token::Token;

use super::calls::StoreCalls;
use super::notes::Notes;
use super::output::{Outgoing, ReplyTo, Unawaited};
use super::{Batch, LeaseId, LinkId, Output, Recipients, StoreCall};

/// Largest number of requests in one batch.
const MAX_BATCH_LEN: usize = 512;

/// The shortest time that a batch gets.
const MIN_BATCH_TIMEOUT: Duration = Duration::from_millis(1);

/// Everything that waits to be sent.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Whether there is an attached connection.
    is_online: bool,
    outgoing: Vec<Outgoing>,
    calls: StoreCalls,
    notes: Notes,
    /// Number of batches that were not answered yet.
    batches_in_flight: usize,
}

impl Outbox {
    pub(super) fn is_online(&self) -> bool {
        self.is_online
    }

    /// Queues a request that a reply must follow.
    pub(super) fn send(&mut self, outgoing: Outgoing) {
        self.outgoing.push(outgoing);
    }

    /// Queues requests without a caller, if there is a connection.
    pub(super) fn send_unawaited<R: Into<Request>>(&mut self, now: Moment, requests: impl IntoIterator<Item = R>) {
        if !self.is_online {
            return;
        }
        let give_up_at = now + LeaseSettings::default().attempt_timeout();
        for request in requests {
            self.send_unawaited_by(give_up_at, request);
        }
    }

    /// Queues a request without a caller, with a time limit.
    pub(super) fn send_unawaited_by(&mut self, give_up_at: Moment, request: impl Into<Request>) {
        let request = request.into();
        let reply_to = ReplyTo::Unawaited(Unawaited::of(&request));
        self.outgoing.push(Outgoing { request, give_up_at, reply_to });
    }

    /// Queues a caller's request, or fails it.
    pub(super) fn call(&mut self, now: Moment, call: StoreCall) -> Option<Output> {
        let refused = self.calls.push(now, call);
        self.send_calls(now);
        refused
    }

    /// Queues a request that can wait, and may be lost.
    pub(super) fn note(&mut self, now: Moment, note: impl Into<Request>) {
        self.notes.add(now, note.into());
    }

    /// Queues what is due, while there is a connection.
    pub(super) fn send_due_notes(&mut self, now: Moment) {
        let due = self.notes.take_due(now);
        self.send_unawaited(now, due);
    }

    /// Queues all notes.
    pub(super) fn send_all_notes(&mut self, now: Moment) {
        let all = self.notes.take_all();
        self.send_unawaited(now, all);
    }

    /// The number of notes dropped because too many waited.
    pub(super) fn notes_dropped(&self) -> u64 {
        self.notes.dropped
    }

    /// Records an attached connection.
    pub(super) fn connected(&mut self) {
        self.is_online = true;
    }

    /// Ends what is in flight. Calls that were not sent wait for the next connection.
    pub(super) fn connection_lost(&mut self, now: Moment, outputs: &mut Vec<Output>) {
        self.is_online = false;
        self.batches_in_flight = 0;
        for Outgoing { request, give_up_at, reply_to } in std::mem::take(&mut self.outgoing).into_iter().rev() {
            if let Some(id) = reply_to.call() {
                let is_work = !matches!(reply_to, ReplyTo::LowPriority(_));
                let timeout = give_up_at.since(now);
                self.calls.put_back(give_up_at, StoreCall { id, request, timeout, is_work });
            }
        }
        let lost = StoreError::new(ErrorKind::Unreachable, "the connection was lost before the reply");
        outputs.extend(self.calls.connection_lost(&lost));
    }

    /// Whether replies of this connection are on their way.
    pub(super) fn has_batches_in_flight(&self) -> bool {
        self.batches_in_flight > 0
    }

    /// Records that a batch was answered, or will not be.
    pub(super) fn batch_answered(&mut self) {
        self.batches_in_flight = self.batches_in_flight.saturating_sub(1);
    }

    /// Records the reply to a call.
    pub(super) fn call_answered(&mut self, now: Moment, reply_to: &ReplyTo) {
        if let Some(call) = reply_to.call() {
            self.calls.answered(call, matches!(reply_to, ReplyTo::LowPriority(_)));
            self.send_calls(now);
        }
    }

    /// Fails the calls that have waited for a connection until their timeout.
    pub(super) fn give_up_calls(&mut self, now: Moment, store_error: Option<&StoreError>) -> Vec<Output> {
        if self.is_online { Vec::new() } else { self.calls.give_up(now, store_error) }
    }

    /// When something is to be done here at the latest.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        if self.is_online { self.notes.due() } else { self.calls.next_wake() }
    }

    /// Whether nothing is left to be sent, or can be.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_online || self.notes.is_empty() && self.calls.is_empty() && self.batches_in_flight == 0
    }

    /// Drops the renewals of terms that have ended since they were queued.
    pub(super) fn drop_renewals(&mut self, is_over: impl Fn(LeaseId, Token) -> bool) {
        self.outgoing.retain(|outgoing| match (&outgoing.request, &outgoing.reply_to) {
            (Request::Lease(LeaseRequest::Renew { holding, .. }), ReplyTo::Lease(id, _)) => {
                !is_over(*id, holding.token)
            }
            _ => true,
        });
    }

    /// The batches to be sent now.
    pub(super) fn take_batches(&mut self, now: Moment, link: LinkId) -> Vec<Output> {
        let mut batches = Vec::new();
        let mut outgoing = std::mem::take(&mut self.outgoing).into_iter().peekable();
        while outgoing.peek().is_some() {
            let (mut requests, mut recipients) = (Vec::new(), Vec::new());
            let (mut first_lease, mut last_other) = (None, now);
            for outgoing in outgoing.by_ref().take(MAX_BATCH_LEN) {
                match outgoing.reply_to {
                    ReplyTo::Lease(..) => {
                        first_lease = Some(first_lease.unwrap_or(Moment::END).min(outgoing.give_up_at));
                    }
                    _ => last_other = last_other.max(outgoing.give_up_at),
                }
                requests.push(outgoing.request);
                recipients.push(outgoing.reply_to);
            }
            // A lease cannot wait for longer, whatever was sent with its request: another attempt must be possible.
            let timeout = first_lease.unwrap_or(last_other).since(now).max(MIN_BATCH_TIMEOUT);
            batches.push(Output::Send(Batch { link, requests, recipients: Recipients(recipients), timeout }));
        }
        self.batches_in_flight += batches.len();
        batches
    }

    /// Queues the calls that waited for a connection or for the replies to others.
    pub(super) fn send_calls(&mut self, now: Moment) {
        while self.is_online
            && let Some(call) = self.calls.next()
        {
            let reply_to = match &call.request {
                Request::Document(DocumentRequest::Publish { holding, .. })
                | Request::Log(LogRequest::Append { holding, .. }) => {
                    ReplyTo::Publication(Box::new(holding.clone()), call.id)
                }
                _ if call.is_work => ReplyTo::Caller(call.id),
                _ => ReplyTo::LowPriority(call.id),
            };
            self.outgoing.push(Outgoing { request: call.request, give_up_at: now + call.timeout, reply_to });
        }
    }
}
