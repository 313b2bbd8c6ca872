//! After a loss: waiting for the work to stop.

use super::context::{Context, Step};
use super::releasing::Releasing;
use super::term::HeldTerm;
use super::{Input, Over, Permission, Phase};
use crate::ending::{Ending, Loss};
use crate::mutation::Mutation;
use crate::store::{LeaseRequest, Reply};
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
        let request = LeaseRequest::Release { holding: ctx.holding(self.term.token), ending: ending.clone() };
        let until = self.term.deadline.max(now + ctx.settings.attempt_timeout());
        Phase::Releasing(Releasing::new(now, until, request, ending, ctx))
    }
}
