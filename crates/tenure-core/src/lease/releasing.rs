//! After the term: waiting for the reply to the last request.

use std::time::Duration;

use super::context::{Context, InFlight, Step};
use super::{Attempt, Input, Over, Phase};
use crate::ending::{Ending, Loss};
use crate::event::EventKind;
use crate::store::{LeaseRequest, Reply};
use crate::time::Moment;
use crate::token::Token;

/// The last request. The term is over once it was sent, whatever the reply. It is repeated until there is a reply, so
/// that waiters need not wait for the lease to expire.
#[derive(Debug)]
pub(super) struct Releasing {
    ending: Ending,
    request: Box<LeaseRequest>,
    /// When the lease has expired and a release is pointless.
    until: Moment,
    last: LastRequest,
    /// The first attempt. A reply to any attempt counts, however late it arrives.
    first: Option<Attempt>,
    /// Whether an attempt without a reply may have released the lease, so that a later refusal proves no loss.
    is_maybe_executed: bool,
    failures: u32,
}

#[derive(Debug)]
enum LastRequest {
    Sent(InFlight),
    /// Waits until this time and for a connection before sending.
    Waiting {
        retry_at: Moment,
    },
}

impl Releasing {
    /// Sends the last request, now or once there is a connection.
    pub(super) fn new(now: Moment, until: Moment, request: LeaseRequest, ending: Ending, ctx: &mut Step<'_>) -> Self {
        let last = LastRequest::Waiting { retry_at: now };
        let request = Box::new(request);
        let releasing = Self { ending, request, until, last, first: None, is_maybe_executed: false, failures: 0 };
        if ctx.online { releasing.send(now, ctx) } else { releasing }
    }

    pub(super) fn next_wake(&self, ctx: &Context) -> Moment {
        match &self.last {
            LastRequest::Sent(in_flight) => ctx.give_up_at(in_flight).min(self.until),
            LastRequest::Waiting { retry_at } if ctx.online => self.until.min(*retry_at),
            // Without a connection an earlier wake-up would repeat without end.
            LastRequest::Waiting { .. } => self.until,
        }
    }

    pub(super) fn step(mut self, now: Moment, input: Input, ctx: &mut Step<'_>) -> Phase {
        if let Input::Answered { attempt, reply } = &input
            && self.first.is_some_and(|first| first <= *attempt)
        {
            if let (Reply::Refused(refusal), Ending::Released(_)) = (reply, &self.ending)
                && !self.is_maybe_executed
            {
                return self.lost(Loss::from(refusal.clone()), ctx);
            }
            return self.over(true, ctx);
        }
        if now >= self.until {
            return self.over(false, ctx);
        }
        match (&self.last, input) {
            (LastRequest::Sent(sent), Input::Failed { attempt, error }) if sent.attempt == attempt => {
                // The request was not executed. The cause may pass, or be repaired, before the lease expires.
                let delay =
                    if error.is_retryable() { ctx.backoff(self.failures + 1) } else { ctx.settings.renew_every() };
                self.request_failed(now + delay, error.to_string(), ctx);
            }
            // The request may have been executed. It is safe to repeat.
            (LastRequest::Sent(sent), Input::Unknown { attempt, error }) if sent.attempt == attempt => {
                self.is_maybe_executed = true;
                let delay = ctx.backoff(self.failures + 1);
                self.request_failed(now + delay, error.to_string(), ctx);
            }
            (LastRequest::Sent(_), Input::ConnectionLost) => {
                self.is_maybe_executed = true;
                // Retry at once over the next connection the first time, then with backoff.
                let delay = if self.failures == 0 { Duration::ZERO } else { ctx.backoff(self.failures) };
                self.request_failed(now + delay, "the connection was lost".to_owned(), ctx);
            }
            (LastRequest::Sent(sent), _) if now >= ctx.give_up_at(sent) => {
                self.is_maybe_executed = true;
                let (delay, limit) = (ctx.backoff(self.failures + 1), ctx.settings.attempt_timeout());
                self.request_failed(now + delay, format!("no answer within {limit:?}"), ctx);
            }
            _ => {}
        }
        match self.last {
            LastRequest::Waiting { retry_at } if ctx.online && now >= retry_at => Phase::Releasing(self.send(now, ctx)),
            _ => Phase::Releasing(self),
        }
    }

    fn request_failed(&mut self, retry_at: Moment, error: String, ctx: &mut Step<'_>) {
        self.failures += 1;
        self.last = LastRequest::Waiting { retry_at };
        // Reported once.
        if self.failures == 1 && matches!(self.ending, Ending::Released(_)) {
            ctx.emit(self.token(), EventKind::ReleaseFailed { error });
        }
    }

    fn send(mut self, now: Moment, ctx: &mut Step<'_>) -> Self {
        let sent = ctx.send(now, (*self.request).clone());
        self.first.get_or_insert(sent.attempt);
        self.last = LastRequest::Sent(sent);
        self
    }

    fn over(self, is_confirmed: bool, ctx: &mut Step<'_>) -> Phase {
        if let Ending::Released(reason) = self.ending {
            ctx.emit(self.token(), EventKind::Released(reason));
        }
        Phase::Over(Over { ending: self.ending, is_confirmed })
    }

    /// The term was lost before the release, and this instance learns it from the reply.
    fn lost(self, loss: Loss, ctx: &mut Step<'_>) -> Phase {
        ctx.emit(self.token(), EventKind::Lost(loss.clone()));
        Phase::Over(Over::confirmed(Ending::Lost(loss)))
    }

    /// The term that the request ends.
    fn token(&self) -> Option<Token> {
        match &*self.request {
            LeaseRequest::Release { holding, .. } | LeaseRequest::HandOver { holding, .. } => Some(holding.token),
            _ => None,
        }
    }
}
