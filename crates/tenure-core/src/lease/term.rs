//! The term itself: renewing, uncertainty, and stopping in time.

use super::context::{Context, InFlight, Step};
use super::releasing::Releasing;
use super::{Action, Input, Intent, LeaseState, Permission, Phase};
use crate::ending::{Ending, Loss, ReleaseReason};
use crate::event::EventKind;
use crate::mutation::Mutation;
use crate::name::InstanceId;
use crate::store::{Announcement, Ask, Continuity, LeaseRequest, Refusal, Reply};
use crate::time::{Moment, Now, ServerReading, ServerTime, SteadyMoment, deadline};
use crate::token::Token;

#[derive(Debug)]
pub(super) struct HeldTerm {
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
    /// The previous holder may rely on the lease until then. Boxed: there rarely is one.
    wait_out: Option<Box<SteadyMoment>>,
    last_progress: Moment,
    /// The store knows of progress up to this moment.
    progress_reported: Moment,
    pending_release: Option<Box<PendingRelease>>,
    /// Whether an announcement arrived since the last renewal was sent, so that the next renewal must follow at once.
    announced_since_send: bool,
}

/// How certain it is that this instance holds the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Certain,
    /// The connection is being replaced. New work waits for it until `until`.
    Deferred {
        until: Moment,
    },
    Uncertain,
}

/// A release that waits for work to end.
#[derive(Debug)]
struct PendingRelease {
    method: ReleaseMethod,
    cancel_at: Moment,
    renew_until: Moment,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ReleaseMethod {
    Release(ReleaseReason),
    HandOver(InstanceId, ReleaseReason),
}

impl HeldTerm {
    pub(super) fn new(
        clocks: Now,
        token: Token,
        deadline: Moment,
        reading: ServerReading,
        not_before: SteadyMoment,
        ctx: &mut Step<'_>,
    ) -> Self {
        let now = clocks.moment;
        ctx.actions.push(Action::Deadline(deadline));
        ctx.ended_term = token;
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
            wait_out: Some(not_before).filter(|until| *until > clocks.steady).map(Box::new),
            last_progress: now,
            progress_reported: now,
            pending_release: None,
            announced_since_send: false,
        }
    }

    pub(super) fn state(&self, clocks: Now) -> LeaseState {
        if self.trust == Trust::Uncertain || self.is_waiting_out(clocks) {
            LeaseState::Uncertain
        } else {
            LeaseState::Owned
        }
    }

    pub(super) fn permission(&self, clocks: Now, ctx: &Context) -> Permission {
        let now = clocks.moment;
        let token = self.token;
        // Computed here, so that a caller that looks before the wake-up does not see a stale permission.
        if now >= self.deadline {
            return Permission::MustBeGone;
        }
        if now >= self.deadline - ctx.settings.stop_budget() {
            return Permission::MustCancel { gone_by: self.deadline };
        }
        match &self.pending_release {
            Some(pending_release) if now >= pending_release.cancel_at => {
                Permission::MustCancel { gone_by: self.deadline }
            }
            Some(_) => Permission::HoldStarts { token },
            None if self.trust == Trust::Certain && !self.is_waiting_out(clocks) => Permission::MayStart { token },
            None => Permission::HoldStarts { token },
        }
    }

    /// Whether the previous holder may still rely on the lease.
    pub(super) fn is_waiting_out(&self, clocks: Now) -> bool {
        self.wait_out.as_deref().is_some_and(|until| clocks.steady < *until)
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
        sooner(self.wait_out.as_deref().map(|until| now + until.since(clocks.steady)));
        sooner(self.pending_release.as_ref().map(|pending_release| pending_release.cancel_at).filter(|at| *at > now));
        at
    }

    pub(super) fn step(mut self, clocks: Now, input: Input, ctx: &mut Step<'_>) -> Phase {
        let now = clocks.moment;
        if self.wait_out.is_some() && !self.is_waiting_out(clocks) {
            self.wait_out = None;
            self.last_progress = now;
        }
        // Before anything else: a reply that arrives too late is not a success.
        if now >= self.deadline - ctx.settings.stop_budget() {
            if let Input::Answered { reply: Reply::Refused(refusal), .. } = input {
                return self.lose(now, Loss::from(refusal), ctx);
            }
            let loss = self.timeout_loss(now, ctx);
            return match (input, self.lose(now, loss, ctx)) {
                (Input::WorkEnded, Phase::Stopping(stopping)) => stopping.step(now, Input::WorkEnded, ctx),
                (_, phase) => phase,
            };
        }
        match input {
            // A refusal is final, whichever attempt it answers: an outdated token never becomes current again.
            Input::Answered { reply: Reply::Refused(refusal), .. } => return self.lose(now, Loss::from(refusal), ctx),
            Input::Refused { token, refusal } if token == self.token => {
                return self.lose(now, Loss::from(refusal), ctx);
            }
            Input::Answered { attempt, reply: Reply::Renewed { server, asked, .. } } if self.is_renewing(attempt) => {
                if let Err(loss) = self.apply_renewal(now, server, ctx) {
                    return self.lose(now, loss, ctx);
                }
                if let Some(Ask::StepDown { to }) = asked
                    && self.pending_release.is_none()
                {
                    let method = to.map_or(ReleaseMethod::Release(ReleaseReason::StepDown), |to| {
                        ReleaseMethod::HandOver(to, ReleaseReason::HandedOver)
                    });
                    self.begin_release(now, method, now, ctx);
                }
            }
            Input::Answered { attempt, reply } if self.is_renewing(attempt) => {
                self.renewal_failed(now, format!("unexpected reply from the store: {reply:?}"), ctx);
            }
            Input::Failed { attempt, error } | Input::Unknown { attempt, error } if self.is_renewing(attempt) => {
                self.renewal_failed(now, error.to_string(), ctx);
            }
            Input::ConnectionLost => {
                if self.renewing.take().is_some() {
                    self.failures += 1;
                    let error = "the connection was lost before the reply".to_owned();
                    ctx.emit(Some(self.token), EventKind::RenewFailed { error });
                    // Retry at once, then with backoff: a store that can be attached may still fail renewals.
                    let again = self.failures > 1;
                    self.next_renewal = if again { now + ctx.backoff(self.failures) } else { now };
                }
                if self.trust == Trust::Certain {
                    self.trust = Trust::Deferred { until: now + ctx.settings.attempt_timeout() };
                }
            }
            Input::Attached(Continuity::Same) => match self.trust {
                Trust::Deferred { .. } => self.trust = Trust::Certain,
                Trust::Uncertain if self.failures == 0 => self.next_renewal = now,
                Trust::Uncertain | Trust::Certain => {}
            },
            Input::Attached(Continuity::Changed) => {
                self.renewing = None;
                self.next_renewal = now;
                self.mark_uncertain("the store may have lost data".to_owned(), ctx);
            }
            Input::Attached(Continuity::Reset) => return self.lose(now, Loss::StoreReset, ctx),
            // A hint, like every announcement: the renewal decides.
            Input::Announced(Announcement::Revoked { name, token } | Announcement::Asked { name, token })
                if name == ctx.name && token == self.token =>
            {
                self.announced_since_send = true;
                self.next_renewal = now;
            }
            Input::Progress => self.last_progress = now,
            Input::WorkEnded => {
                if let Some(pending_release) = &self.pending_release {
                    let method = pending_release.method.clone();
                    return self.release(now, method, ctx);
                }
            }
            Input::Intent(intent) => {
                let (method, cancel_at) = match intent {
                    Intent::Release(reason) => (ReleaseMethod::Release(reason), now),
                    Intent::Drain(reason) => (ReleaseMethod::Release(reason), now + ctx.settings.max_drain()),
                    Intent::HandOver(to) => (ReleaseMethod::HandOver(to, ReleaseReason::HandedOver), now),
                    Intent::DrainTo(to, reason) => {
                        (ReleaseMethod::HandOver(to, reason), now + ctx.settings.max_drain())
                    }
                };
                if ctx.mutations.has(Mutation::ReleaseBeforeJoin) {
                    return self.release(now, method, ctx);
                }
                self.begin_release(now, method, cancel_at, ctx);
            }
            _ => {}
        }
        self.check_timers(now, ctx);
        Phase::Holding(self)
    }

    fn is_renewing(&self, attempt: super::Attempt) -> bool {
        self.renewing.is_some_and(|in_flight| in_flight.attempt == attempt)
    }

    pub(super) fn check_timers(&mut self, now: Moment, ctx: &mut Step<'_>) {
        if let Trust::Deferred { until } = self.trust
            && now >= until
        {
            let error = "the connection was lost and could not be replaced in time".to_owned();
            ctx.emit(Some(self.token), EventKind::RenewFailed { error: error.clone() });
            self.mark_uncertain(error, ctx);
        }
        if self.renewing.is_some_and(|in_flight| now >= ctx.give_up_at(&in_flight)) {
            let limit = ctx.settings.attempt_timeout();
            self.renewal_failed(now, format!("no answer within {limit:?}"), ctx);
        }
        if self.renewing.is_none() && self.renewal_due(now, ctx).is_some_and(|due| now >= due) {
            let request = LeaseRequest::Renew {
                holding: ctx.holding(self.token),
                ttl: ctx.settings.ttl(),
                // While waiting for the previous holder to stop, no other progress is possible.
                progressed: self.last_progress > self.progress_reported || self.wait_out.is_some(),
            };
            self.announced_since_send = false;
            self.renewing = Some(ctx.send(now, request));
        }
    }

    /// When the next renewal is due. `None` if renewing is not possible or not allowed: without a connection, after a
    /// release has waited too long, or without progress of the work.
    fn renewal_due(&self, now: Moment, ctx: &Context) -> Option<Moment> {
        let due = self.next_renewal.max(now);
        let is_overdue =
            self.pending_release.as_ref().is_some_and(|pending_release| due >= pending_release.renew_until);
        (ctx.online && !is_overdue && !self.is_stalled(due, ctx)).then_some(self.next_renewal)
    }

    fn is_stalled(&self, at: Moment, ctx: &Context) -> bool {
        let limit = ctx.settings.stall_after().filter(|_| self.wait_out.is_none());
        limit.is_some_and(|limit| at.since(self.last_progress) >= limit)
    }

    /// Applies a successful renewal.
    ///
    /// # Errors
    /// When the store's clock has jumped, so that its lease lengths cannot be trusted.
    pub(super) fn apply_renewal(&mut self, now: Moment, server: ServerTime, ctx: &mut Step<'_>) -> Result<(), Loss> {
        let sent = self.renewing.take().map_or(now, |in_flight| in_flight.sent);
        let settings = ctx.settings.clone();
        let reading = ServerReading { server, sent, received: now };
        if reading.jumped_since(&self.reading, settings.clock_tolerance()) {
            return Err(Loss::ClockStep);
        }
        self.reading = reading;
        let counted_from = if ctx.mutations.has(Mutation::DeadlineFromReceipt) { now } else { sent };
        self.deadline = self.deadline.max(deadline(counted_from, settings.ttl(), settings.clock_tolerance()));
        self.renewed_at = now;
        self.progress_reported = sent;
        self.failures = 0;
        // The store may have handled our renewal before the change that was announced.
        self.next_renewal = if self.announced_since_send { now } else { ctx.renewal_after(sent) };
        ctx.actions.push(Action::Deadline(self.deadline));
        ctx.emit(Some(self.token), EventKind::Renewed { ttl: settings.ttl() });
        if self.trust == Trust::Uncertain {
            ctx.emit(Some(self.token), EventKind::Recovered);
        }
        self.trust = Trust::Certain;
        Ok(())
    }

    fn renewal_failed(&mut self, now: Moment, error: String, ctx: &mut Step<'_>) {
        self.renewing = None;
        self.failures += 1;
        self.next_renewal = now + ctx.backoff(self.failures);
        ctx.emit(Some(self.token), EventKind::RenewFailed { error: error.clone() });
        self.mark_uncertain(error, ctx);
    }

    fn mark_uncertain(&mut self, error: String, ctx: &mut Step<'_>) {
        if self.trust != Trust::Uncertain {
            self.trust = Trust::Uncertain;
            ctx.emit(Some(self.token), EventKind::Uncertain { error });
        }
    }

    fn begin_release(&mut self, now: Moment, method: ReleaseMethod, cancel_at: Moment, ctx: &Context) {
        // A second intent may bring the release forward, never delay it. A promised handover stands, unless a later
        // intent names another instance.
        let method = match (self.pending_release.as_ref().map(|pending_release| &pending_release.method), method) {
            (Some(ReleaseMethod::HandOver(to, reason)), ReleaseMethod::Release(_)) => {
                ReleaseMethod::HandOver(to.clone(), *reason)
            }
            (_, last) => last,
        };
        let cancel_at =
            self.pending_release.as_ref().map_or(cancel_at, |pending_release| pending_release.cancel_at.min(cancel_at));
        let max_wait = ctx.settings.max_drain().max(ctx.settings.stop_budget());
        let renew_until = if cancel_at > now { cancel_at + ctx.settings.stop_budget() } else { now + max_wait };
        let renew_until = self
            .pending_release
            .as_ref()
            .map_or(renew_until, |pending_release| pending_release.renew_until.min(renew_until));
        self.pending_release = Some(Box::new(PendingRelease { method, cancel_at, renew_until }));
    }

    fn timeout_loss(&self, now: Moment, ctx: &Context) -> Loss {
        if self.is_stalled(now, ctx) {
            Loss::Stalled
        } else if self.trust == Trust::Certain && ctx.online {
            Loss::Expired
        } else {
            Loss::Unreachable
        }
    }

    fn lose(self, now: Moment, loss: Loss, ctx: &mut Step<'_>) -> Phase {
        ctx.emit(Some(self.token), EventKind::Lost(loss.clone()));
        Phase::lost(now, self, loss, ctx)
    }

    /// Releases or hands over the lease after the work has ended. No work may start any more.
    fn release(self, now: Moment, method: ReleaseMethod, ctx: &mut Step<'_>) -> Phase {
        let holding = ctx.holding(self.token);
        let (reason, request) = match method {
            ReleaseMethod::Release(reason) => {
                (reason, LeaseRequest::Release { holding, ending: Ending::Released(reason) })
            }
            ReleaseMethod::HandOver(to, reason) => {
                let window = ctx.settings.accept_window();
                (reason, LeaseRequest::HandOver { holding, to, window })
            }
        };
        Phase::Releasing(Releasing::new(now, self.deadline, request, Ending::Released(reason), ctx))
    }
}

impl From<Refusal> for Loss {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Taken { holder } => Self::Taken { holder },
            Refusal::Stalled => Self::Stalled,
            Refusal::Missing => Self::Missing,
            Refusal::StoreReset => Self::StoreReset,
            Refusal::Revoked => Self::Revoked,
        }
    }
}
