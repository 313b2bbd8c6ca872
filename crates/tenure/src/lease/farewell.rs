//! After the term: waiting for lost work to be gone, and for the last request to be answered.

use super::context::{Context, InFlight, Step};
use super::term::Term;
use super::{Ending, Input, Loss, Permission, Phase};
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
        Phase::Parting(Parting::sent(now, request, ending, ctx))
    }
}

/// The last request. Once it was sent the term is over, whatever the reply.
#[derive(Debug)]
pub(super) struct Parting {
    ending: Ending,
    last: LastRequest,
}

#[derive(Debug)]
enum LastRequest {
    Sent(InFlight),
    /// There is no connection; when there is none before the lease runs out, the request is not needed any more.
    Waiting {
        request: Box<Request>,
        until: Moment,
    },
}

impl Parting {
    pub(super) fn sent(now: Moment, request: Request, ending: Ending, ctx: &mut Step<'_>) -> Self {
        Self { ending, last: LastRequest::Sent(ctx.send(now, request)) }
    }

    pub(super) fn waiting(until: Moment, request: Request, ending: Ending) -> Self {
        Self { ending, last: LastRequest::Waiting { request: Box::new(request), until } }
    }

    pub(super) fn next_wake(&self, ctx: &Context) -> Moment {
        match &self.last {
            LastRequest::Sent(in_flight) => ctx.give_up_at(in_flight),
            LastRequest::Waiting { until, .. } => *until,
        }
    }

    pub(super) fn step(self, now: Moment, input: Input, ctx: &mut Step<'_>) -> Phase {
        if now >= self.next_wake(ctx) {
            return Phase::Over(self.ending);
        }
        match (self.last, input) {
            (LastRequest::Waiting { request, .. }, Input::Entered(_)) => {
                Phase::Parting(Self::sent(now, *request, self.ending, ctx))
            }
            (LastRequest::Sent(_), Input::ConnectionLost) => Phase::Over(self.ending),
            (
                LastRequest::Sent(in_flight),
                Input::Answered { attempt, .. } | Input::Failed { attempt, .. } | Input::Unknown { attempt, .. },
            ) if in_flight.attempt == attempt => Phase::Over(self.ending),
            (last, _) => Phase::Parting(Self { last, ..self }),
        }
    }
}
