//! The term itself: renewing, doubting, and stopping in time.

use super::context::{Context, InFlight, Step};
use super::farewell::{Fall, Parting};
use super::{Action, Ending, Input, LeaseState, Loss, Permission, Phase, ReleaseReason, Wish};
use crate::event::Happening;
use crate::flaw::Flaw;
use crate::name::InstanceId;
use crate::store::{Announcement, Ask, Continuity, Refusal, Reply, Request};
use crate::time::{Moment, Now, ServerReading, ServerTime, Steady, deadline};
use crate::token::Token;

#[derive(Debug)]
pub(super) struct Term {
    pub(super) token: Token,
    /// D. Moved only by a renewal that succeeded in time, and only forward.
    pub(super) deadline: Moment,
    pub(super) acquired_at: Moment,
    pub(super) renewed_at: Moment,
    pub(super) reading: ServerReading,
    renewing: Option<InFlight>,
    next_renewal: Moment,
    failures: u32,
    trust: Trust,
    /// Somebody before us may rely on the lease until then.
    wait_out: Option<Steady>,
    last_progress: Moment,
    /// Progress up to here is known to the store.
    progress_reported: Moment,
    goodbye: Option<Box<Goodbye>>,
    /// Whether something was heard since the last renewal was sent that the next one will tell more about.
    heard_since: bool,
}

/// How sure we are that the lease is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Certain,
    /// The connection is being replaced; new work waits for it, but not for long.
    Deferred {
        until: Moment,
    },
    Uncertain,
}

/// A goodbye that waits for work to end.
#[derive(Debug)]
struct Goodbye {
    farewell: Farewell,
    cancel_at: Moment,
    renew_until: Moment,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Farewell {
    Release(ReleaseReason),
    HandOver(InstanceId, ReleaseReason),
}

impl Term {
    pub(super) fn new(
        clocks: Now,
        token: Token,
        deadline: Moment,
        reading: ServerReading,
        not_before: Steady,
        ctx: &mut Step<'_>,
    ) -> Self {
        let now = clocks.moment;
        ctx.actions.push(Action::Deadline(deadline));
        ctx.spent = Some(token);
        Self {
            token,
            deadline,
            acquired_at: now,
            renewed_at: now,
            next_renewal: ctx.first_renewal_after(reading.sent),
            reading,
            renewing: None,
            failures: 0,
            trust: Trust::Certain,
            wait_out: Some(not_before).filter(|until| *until > clocks.steady),
            last_progress: now,
            progress_reported: now,
            goodbye: None,
            heard_since: false,
        }
    }

    pub(super) fn state(&self, clocks: Now) -> LeaseState {
        if self.trust == Trust::Uncertain || self.waits(clocks) { LeaseState::Uncertain } else { LeaseState::Owned }
    }

    pub(super) fn permission(&self, clocks: Now, ctx: &Context) -> Permission {
        let now = clocks.moment;
        let token = self.token;
        // Computed, so that whoever looks before we have been woken is not told what was true then.
        if now >= self.deadline {
            return Permission::MustBeGone;
        }
        if now >= self.deadline - ctx.settings.stop_budget() {
            return Permission::MustCancel { gone_by: self.deadline };
        }
        match &self.goodbye {
            Some(goodbye) if now >= goodbye.cancel_at => Permission::MustCancel { gone_by: self.deadline },
            Some(_) => Permission::HoldStarts { token },
            None if self.trust == Trust::Certain && !self.waits(clocks) => Permission::MayStart { token },
            None => Permission::HoldStarts { token },
        }
    }

    /// Whether somebody else may still rely on the lease.
    pub(super) fn waits(&self, clocks: Now) -> bool {
        self.wait_out.is_some_and(|until| clocks.steady < until)
    }

    pub(super) fn next_wake(&self, clocks: Now, ctx: &Context) -> Moment {
        let now = clocks.moment;
        let mut at = self.deadline - ctx.settings.stop_budget();
        let mut sooner = |moment: Option<Moment>| at = at.min(moment.unwrap_or(at));
        sooner(match &self.renewing {
            Some(in_flight) => Some(ctx.give_up_at(in_flight)),
            None => self.renewal_due(now, ctx),
        });
        if let Trust::Deferred { until } = self.trust {
            sooner(Some(until));
        }
        sooner(self.wait_out.map(|until| now + until.since(clocks.steady)));
        sooner(self.goodbye.as_ref().map(|goodbye| goodbye.cancel_at).filter(|at| *at > now));
        at
    }

    pub(super) fn step(mut self, clocks: Now, input: Input, ctx: &mut Step<'_>) -> Phase {
        let now = clocks.moment;
        if self.wait_out.is_some() && !self.waits(clocks) {
            self.wait_out = None;
            self.last_progress = now;
        }
        // Before anything else: a reply that comes too late is not success.
        if now >= self.deadline - ctx.settings.stop_budget() {
            if let Input::Answered { reply: Reply::Refused(refusal), .. } = input {
                return self.lose(now, Loss::from(refusal), ctx);
            }
            let loss = self.why_out_of_time(now, ctx);
            return match (input, self.lose(now, loss, ctx)) {
                (Input::WorkEnded, Phase::Falling(fall)) => fall.step(now, Input::WorkEnded, ctx),
                (_, phase) => phase,
            };
        }
        match input {
            // Refused is final, whichever attempt it answers: a token that is not current never will be again.
            Input::Answered { reply: Reply::Refused(refusal), .. } => return self.lose(now, Loss::from(refusal), ctx),
            Input::Refused { token, refusal } if token == self.token => {
                return self.lose(now, Loss::from(refusal), ctx);
            }
            Input::Answered { attempt, reply: Reply::Renewed { server, asked, .. } } if self.is_renewing(attempt) => {
                if let Err(loss) = self.renewed(now, server, ctx) {
                    return self.lose(now, loss, ctx);
                }
                if let Some(Ask::StepDown { to }) = asked
                    && self.goodbye.is_none()
                {
                    let farewell = to.map_or(Farewell::Release(ReleaseReason::StepDown), |to| {
                        Farewell::HandOver(to, ReleaseReason::HandedOver)
                    });
                    self.say_goodbye(now, farewell, now, ctx);
                }
            }
            Input::Answered { attempt, reply } if self.is_renewing(attempt) => {
                self.not_renewed(now, format!("the store gave an answer to another question: {reply:?}"), ctx);
            }
            Input::Failed { attempt, error } | Input::Unknown { attempt, error } if self.is_renewing(attempt) => {
                self.not_renewed(now, error.to_string(), ctx);
            }
            Input::ConnectionLost => {
                if self.renewing.take().is_some() {
                    self.failures += 1;
                    let error = "the connection was lost before the answer".to_owned();
                    ctx.tell(Some(self.token), Happening::RenewFailed { error });
                    // Once at once, then with growing pauses: a store that can be entered may still fail renewals.
                    let again = self.failures > 1;
                    self.next_renewal = if again { now + ctx.backoff(self.failures) } else { now };
                }
                if self.trust == Trust::Certain {
                    self.trust = Trust::Deferred { until: now + ctx.settings.attempt_timeout() };
                }
            }
            Input::Entered(Continuity::Same) => match self.trust {
                Trust::Deferred { .. } => self.trust = Trust::Certain,
                Trust::Uncertain if self.failures == 0 => self.next_renewal = now,
                Trust::Uncertain | Trust::Certain => {}
            },
            Input::Entered(Continuity::Changed) => {
                self.renewing = None;
                self.next_renewal = now;
                self.doubt("the store may have lost data".to_owned(), ctx);
            }
            Input::Entered(Continuity::Reset) => return self.lose(now, Loss::StoreReset, ctx),
            // A hint, like every announcement: the renewal will tell.
            Input::Announced(Announcement::Revoked { name, token } | Announcement::Asked { name, token })
                if name == ctx.name && token == self.token =>
            {
                self.heard_since = true;
                self.next_renewal = now;
            }
            Input::Progress => self.last_progress = now,
            Input::WorkEnded => {
                if let Some(goodbye) = &self.goodbye {
                    let farewell = goodbye.farewell.clone();
                    return self.part(now, farewell, ctx);
                }
            }
            Input::Wish(wish) => {
                let (farewell, cancel_at) = match wish {
                    Wish::Release(reason) => (Farewell::Release(reason), now),
                    Wish::Drain(reason) => (Farewell::Release(reason), now + ctx.settings.max_drain()),
                    Wish::HandOver(to) => (Farewell::HandOver(to, ReleaseReason::HandedOver), now),
                    Wish::DrainTo(to, reason) => (Farewell::HandOver(to, reason), now + ctx.settings.max_drain()),
                };
                if ctx.planted.has(Flaw::ReleaseBeforeJoin) {
                    return self.part(now, farewell, ctx);
                }
                self.say_goodbye(now, farewell, cancel_at, ctx);
            }
            _ => {}
        }
        self.look_at_clock(now, ctx);
        Phase::Holding(self)
    }

    fn is_renewing(&self, attempt: super::Attempt) -> bool {
        self.renewing.is_some_and(|in_flight| in_flight.attempt == attempt)
    }

    pub(super) fn look_at_clock(&mut self, now: Moment, ctx: &mut Step<'_>) {
        if let Trust::Deferred { until } = self.trust
            && now >= until
        {
            let error = "the connection was lost and could not be replaced in time".to_owned();
            ctx.tell(Some(self.token), Happening::RenewFailed { error: error.clone() });
            self.doubt(error, ctx);
        }
        if self.renewing.is_some_and(|in_flight| now >= ctx.give_up_at(&in_flight)) {
            let limit = ctx.settings.attempt_timeout();
            self.not_renewed(now, format!("no answer within {limit:?}"), ctx);
        }
        if self.renewing.is_none() && self.renewal_due(now, ctx).is_some_and(|due| now >= due) {
            let request = Request::Renew {
                holding: ctx.holding(self.token),
                ttl: ctx.settings.ttl(),
                // Waiting for somebody else to stop is all the progress there can be.
                progressed: self.last_progress > self.progress_reported || self.wait_out.is_some(),
            };
            self.heard_since = false;
            self.renewing = Some(ctx.send(now, request));
        }
    }

    /// When the next renewal is due, unless something keeps us from renewing: no connection, a goodbye that has
    /// lasted too long, or work that does nothing.
    fn renewal_due(&self, now: Moment, ctx: &Context) -> Option<Moment> {
        let due = self.next_renewal.max(now);
        let overstayed = self.goodbye.as_ref().is_some_and(|goodbye| due >= goodbye.renew_until);
        (ctx.online && !overstayed && !self.stalled(due, ctx)).then_some(self.next_renewal)
    }

    fn stalled(&self, at: Moment, ctx: &Context) -> bool {
        let limit = ctx.settings.stall_after().filter(|_| self.wait_out.is_none());
        limit.is_some_and(|limit| at.since(self.last_progress) >= limit)
    }

    /// Takes in a renewal that succeeded.
    ///
    /// # Errors
    /// When the store's clock has jumped, so that its word about lease lengths is worth nothing.
    pub(super) fn renewed(&mut self, now: Moment, server: ServerTime, ctx: &mut Step<'_>) -> Result<(), Loss> {
        let sent = self.renewing.take().map_or(now, |in_flight| in_flight.sent);
        let settings = ctx.settings.clone();
        let reading = ServerReading { server, sent, received: now };
        if reading.jumped_since(&self.reading, settings.clock_error()) {
            return Err(Loss::ClockStep);
        }
        self.reading = reading;
        let counted_from = if ctx.planted.has(Flaw::DeadlineFromReceipt) { now } else { sent };
        self.deadline = self.deadline.max(deadline(counted_from, settings.ttl(), settings.clock_error()));
        self.renewed_at = now;
        self.progress_reported = sent;
        self.failures = 0;
        // What was heard meanwhile the store may not have known when it answered.
        self.next_renewal = if self.heard_since { now } else { ctx.renewal_after(sent) };
        ctx.actions.push(Action::Deadline(self.deadline));
        ctx.tell(Some(self.token), Happening::Renewed { ttl: settings.ttl() });
        if self.trust == Trust::Uncertain {
            ctx.tell(Some(self.token), Happening::Recovered);
        }
        self.trust = Trust::Certain;
        Ok(())
    }

    fn not_renewed(&mut self, now: Moment, error: String, ctx: &mut Step<'_>) {
        self.renewing = None;
        self.failures += 1;
        self.next_renewal = now + ctx.backoff(self.failures);
        ctx.tell(Some(self.token), Happening::RenewFailed { error: error.clone() });
        self.doubt(error, ctx);
    }

    fn doubt(&mut self, error: String, ctx: &mut Step<'_>) {
        if self.trust != Trust::Uncertain {
            self.trust = Trust::Uncertain;
            ctx.tell(Some(self.token), Happening::Uncertain { error });
        }
    }

    fn say_goodbye(&mut self, now: Moment, farewell: Farewell, cancel_at: Moment, ctx: &Context) {
        // A second wish may hurry the first; whoever was promised the lease gets it, unless somebody else was promised it since.
        let farewell = match (self.goodbye.as_ref().map(|goodbye| &goodbye.farewell), farewell) {
            (Some(Farewell::HandOver(to, reason)), Farewell::Release(_)) => Farewell::HandOver(to.clone(), *reason),
            (_, last) => last,
        };
        let cancel_at = self.goodbye.as_ref().map_or(cancel_at, |goodbye| goodbye.cancel_at.min(cancel_at));
        let patience = ctx.settings.max_drain().max(ctx.settings.stop_budget());
        let renew_until = if cancel_at > now { cancel_at + ctx.settings.stop_budget() } else { now + patience };
        let renew_until = self.goodbye.as_ref().map_or(renew_until, |goodbye| goodbye.renew_until.min(renew_until));
        self.goodbye = Some(Box::new(Goodbye { farewell, cancel_at, renew_until }));
    }

    fn why_out_of_time(&self, now: Moment, ctx: &Context) -> Loss {
        if self.stalled(now, ctx) {
            Loss::Stalled
        } else if self.trust == Trust::Certain && ctx.online {
            Loss::Expired
        } else {
            Loss::Unreachable
        }
    }

    fn lose(self, now: Moment, loss: Loss, ctx: &mut Step<'_>) -> Phase {
        ctx.tell(Some(self.token), Happening::Lost(loss.clone()));
        Phase::Falling(Fall::new(now, self, loss, ctx))
    }

    /// The work is over: nothing may start any more, and the lease can go.
    fn part(self, now: Moment, farewell: Farewell, ctx: &mut Step<'_>) -> Phase {
        let holding = ctx.holding(self.token);
        let (reason, request) = match farewell {
            Farewell::Release(reason) => (reason, Request::Release { holding, ending: Ending::Released(reason) }),
            Farewell::HandOver(to, reason) => {
                let window = ctx.settings.accept_window();
                (reason, Request::HandOver { holding, to, window })
            }
        };
        Phase::Parting(Parting::new(now, self.deadline, request, Ending::Released(reason), ctx))
    }
}

impl From<Refusal> for Loss {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Taken { by } => Self::Taken { by },
            Refusal::Stalled => Self::Stalled,
            Refusal::Missing => Self::Missing,
            Refusal::StoreReset => Self::StoreReset,
            Refusal::Revoked => Self::Revoked,
        }
    }
}
