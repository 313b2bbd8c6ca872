//! After the term: waiting for lost work to stop, and for the reply to the last request.

use std::time::Duration;

use super::context::{Context, InFlight, Step};
use super::term::HeldTerm;
use super::{Attempt, Ending, Input, Loss, Over, Permission, Phase};
use crate::event::EventKind;
use crate::mutation::Mutation;
use crate::store::{Reply, Request};
use crate::time::Moment;

/// A lost term whose work may still be running.
#[derive(Debug)]
pub(super) struct Stopping {
    loss: Loss,
    term: Box<HeldTerm>,
    gone_by: Moment,
}

impl Stopping {
    pub(super) fn new(now: Moment, term: HeldTerm, loss: Loss, ctx: &Context) -> Self {
        let gone_by = term.deadline.min(now + ctx.settings.stop_budget());
        Self { loss, term: Box::new(term), gone_by }
    }

    pub(super) fn permission(&self, now: Moment) -> Permission {
        if now < self.gone_by { Permission::MustCancel { gone_by: self.gone_by } } else { Permission::MustBeGone }
    }

    pub(super) fn next_wake(&self, now: Moment) -> Option<Moment> {
        Some(self.gone_by).filter(|at| *at > now)
    }

    pub(super) fn step(mut self, now: Moment, input: Input, ctx: &mut Step<'_>) -> Phase {
        if ctx.mutations.has(Mutation::RenewAfterLost) {
            if let Input::Answered { reply: Reply::Renewed { server, .. }, .. } = input
                && self.term.apply_renewal(now, server, ctx).is_ok()
            {
                return Phase::Holding(*self.term);
            }
            self.term.check_timers(now, ctx);
        }
        if input != Input::WorkEnded {
            return Phase::Stopping(self);
        }
        let ending = Ending::Lost(self.loss.clone());
        if !ctx.online || !self.loss.is_maybe_listed() {
            return Phase::Over(Over::confirmed(ending));
        }
        // The store may list us for a while yet, but our work is over: a release spares waiters the wait for expiry.
        let request = Request::Release { holding: ctx.holding(self.term.token), ending: ending.clone() };
        let until = self.term.deadline.max(now + ctx.settings.attempt_timeout());
        Phase::Releasing(Releasing::new(now, until, request, ending, ctx))
    }
}

/// The last request. The term is over once it was sent, whatever the reply. It is repeated until there is a reply, so
/// that waiters need not wait for the lease to expire.
#[derive(Debug)]
pub(super) struct Releasing {
    ending: Ending,
    request: Box<Request>,
    /// When the lease has expired and a release is pointless.
    until: Moment,
    last: LastRequest,
    /// The first attempt. A reply to any attempt counts, however late it arrives.
    first: Option<Attempt>,
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
    pub(super) fn new(now: Moment, until: Moment, request: Request, ending: Ending, ctx: &mut Step<'_>) -> Self {
        let last = LastRequest::Waiting { retry_at: now };
        let releasing = Self { ending, request: Box::new(request), until, last, first: None, failures: 0 };
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
        if now >= self.until {
            return self.over(false, ctx);
        }
        if let Input::Answered { attempt, .. } = &input
            && self.first.is_some_and(|first| first <= *attempt)
        {
            return self.over(true, ctx);
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
                let delay = ctx.backoff(self.failures + 1);
                self.request_failed(now + delay, error.to_string(), ctx);
            }
            (LastRequest::Sent(_), Input::ConnectionLost) => {
                // Retry at once over the next connection the first time, then with backoff.
                let delay = if self.failures == 0 { Duration::ZERO } else { ctx.backoff(self.failures) };
                self.request_failed(now + delay, "the connection was lost".to_owned(), ctx);
            }
            (LastRequest::Sent(sent), _) if now >= ctx.give_up_at(sent) => {
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
        if self.failures == 1
            && matches!(self.ending, Ending::Released(_))
            && let Request::Release { holding, .. } | Request::HandOver { holding, .. } = &*self.request
        {
            let token = holding.token;
            ctx.emit(Some(token), EventKind::ReleaseFailed { error });
        }
    }

    fn send(mut self, now: Moment, ctx: &mut Step<'_>) -> Self {
        let sent = ctx.send(now, (*self.request).clone());
        self.first.get_or_insert(sent.attempt);
        self.last = LastRequest::Sent(sent);
        self
    }

    fn over(self, is_confirmed: bool, ctx: &mut Step<'_>) -> Phase {
        if let (Ending::Released(reason), Request::Release { holding, .. } | Request::HandOver { holding, .. }) =
            (&self.ending, &*self.request)
        {
            ctx.emit(Some(holding.token), EventKind::Released(*reason));
        }
        Phase::Over(Over { ending: self.ending, is_confirmed })
    }
}
