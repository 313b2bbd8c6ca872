//! After the term: waiting for lost work to be gone, and for the last request to be answered.

use super::context::{Context, InFlight, Step};
use super::term::Term;
use super::{Ending, Input, Loss, Permission, Phase};
use crate::event::Happening;
use crate::flaw::Flaw;
use crate::store::{Reply, Request};
use crate::time::Moment;

/// A term that was lost and whose work may still be running.
#[derive(Debug)]
pub(super) struct Fall {
    loss: Loss,
    term: Box<Term>,
    gone_by: Moment,
}

impl Fall {
    pub(super) fn new(now: Moment, term: Term, loss: Loss, ctx: &Context) -> Self {
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
        if ctx.planted.has(Flaw::RenewAfterLost) {
            if let Input::Answered { reply: Reply::Renewed { server, .. }, .. } = input
                && self.term.renewed(now, server, ctx).is_ok()
            {
                return Phase::Holding(*self.term);
            }
            self.term.look_at_clock(now, ctx);
        }
        if input != Input::WorkEnded {
            return Phase::Falling(self);
        }
        let ending = Ending::Lost(self.loss.clone());
        if !ctx.online || !self.loss.may_still_be_listed() {
            return Phase::Over(ending);
        }
        // The store may list us for a while yet, and our work is over: whoever waits need not.
        let request = Request::Release { holding: ctx.holding(self.term.token), ending: ending.clone() };
        let until = self.term.deadline.max(now + ctx.settings.attempt_timeout());
        Phase::Parting(Parting::new(now, until, request, ending, ctx))
    }
}

/// The last request. Once it was sent the term is over, whatever the reply; while there is none it is repeated, so that
/// whoever waits need not wait for the lease to run out.
#[derive(Debug)]
pub(super) struct Parting {
    ending: Ending,
    request: Box<Request>,
    /// When the lease has run out, and nobody needs to be told any more.
    until: Moment,
    last: LastRequest,
    failures: u32,
}

#[derive(Debug)]
enum LastRequest {
    Sent(InFlight),
    /// Sent when there is a connection again, or at this time over the present one.
    Waiting {
        again_at: Moment,
    },
}

impl Parting {
    /// Sends the last request, now or when there is a connection.
    pub(super) fn new(now: Moment, until: Moment, request: Request, ending: Ending, ctx: &mut Step<'_>) -> Self {
        let last = LastRequest::Waiting { again_at: Moment::END };
        let parting = Self { ending, request: Box::new(request), until, last, failures: 0 };
        if ctx.online { parting.send(now, ctx) } else { parting }
    }

    pub(super) fn next_wake(&self, ctx: &Context) -> Moment {
        match &self.last {
            LastRequest::Sent(in_flight) => ctx.give_up_at(in_flight).min(self.until),
            LastRequest::Waiting { again_at } => self.until.min(*again_at),
        }
    }

    pub(super) fn step(mut self, now: Moment, input: Input, ctx: &mut Step<'_>) -> Phase {
        if now >= self.until {
            return self.over(ctx);
        }
        match (&self.last, input) {
            (LastRequest::Waiting { .. }, Input::Entered(_)) => return Phase::Parting(self.send(now, ctx)),
            (LastRequest::Waiting { again_at }, _) if now >= *again_at && ctx.online => {
                return Phase::Parting(self.send(now, ctx));
            }
            (LastRequest::Sent(sent), Input::Answered { attempt, .. }) if sent.attempt == attempt => {
                return self.over(ctx);
            }
            // It was not carried out, and may be another time.
            (LastRequest::Sent(sent), Input::Failed { attempt, error })
                if sent.attempt == attempt && error.is_retryable() =>
            {
                self.failures += 1;
                self.last = LastRequest::Waiting { again_at: now + ctx.backoff(self.failures) };
            }
            (LastRequest::Sent(sent), Input::Failed { attempt, .. }) if sent.attempt == attempt => {
                return self.over(ctx);
            }
            // Whether it was carried out is not known. It is safe to repeat, over another connection.
            (LastRequest::Sent(sent), Input::Unknown { attempt, .. }) if sent.attempt == attempt => {
                self.last = LastRequest::Waiting { again_at: Moment::END };
            }
            (LastRequest::Sent(sent), input) if input == Input::ConnectionLost || now >= ctx.give_up_at(sent) => {
                self.last = LastRequest::Waiting { again_at: Moment::END };
            }
            _ => {}
        }
        Phase::Parting(self)
    }

    fn send(mut self, now: Moment, ctx: &mut Step<'_>) -> Self {
        self.last = LastRequest::Sent(ctx.send(now, (*self.request).clone()));
        self
    }

    fn over(self, ctx: &mut Step<'_>) -> Phase {
        if let (Ending::Released(reason), Request::Release { holding, .. } | Request::HandOver { holding, .. }) =
            (&self.ending, &*self.request)
        {
            ctx.tell(Some(holding.token), Happening::Released(*reason));
        }
        Phase::Over(self.ending)
    }
}
