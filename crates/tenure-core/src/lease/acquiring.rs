//! Before the term: requesting the lease, and waiting while another instance holds it.

use std::time::Duration;

use super::context::{Context, InFlight, Step};
use super::releasing::Releasing;
use super::term::HeldTerm;
use super::{AcquireStatus, Action, Input, LeaseState, Over, Phase};
use crate::ending::Ending;
use crate::event::EventKind;
use crate::mutation::Mutation;
use crate::name::InstanceId;
use crate::store::{Announcement, Grant, Held, LeaseRequest, RecordedEnd, Reply};
use crate::time::{FIXED_SLACK, Moment, Now, ServerReading, SteadyMoment, deadline};
use crate::token::{Nonce, Token};

#[derive(Debug)]
pub(super) struct Acquiring {
    nonce: Nonce,
    in_flight: Option<InFlight>,
    /// `None` before the first clock reading.
    next_at: Option<Moment>,
    /// Whether the store may have granted the lease without our knowledge.
    maybe_granted: bool,
    failures: u32,
    obstacle: Obstacle,
    /// Whether an announcement arrived since the last request was sent, so that its reply may be out of date.
    announced_since_send: bool,
    /// The last error reported. It is not reported again until the result changes.
    last_error: Option<String>,
    /// Whether the last known holder is known or presumed to have lost the lease.
    presumed_unheld: bool,
}

/// The obstacle found by the last request.
#[derive(Debug, PartialEq, Eq)]
enum Obstacle {
    NotRequested,
    Held(CurrentHolder),
    Quarantine,
    Error,
}

/// Another instance's lease as last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CurrentHolder {
    instance: InstanceId,
    token: Option<Token>,
    /// The lease cannot have expired before this moment.
    earliest_end: SteadyMoment,
    /// The lease has expired by this moment, unless it was renewed.
    latest_end: SteadyMoment,
    /// When the holder may be taken over for lack of progress.
    stale_at: Option<Moment>,
}

impl Acquiring {
    pub(super) fn new(nonce: Nonce) -> Self {
        Self {
            nonce,
            in_flight: None,
            next_at: None,
            maybe_granted: false,
            failures: 0,
            obstacle: Obstacle::NotRequested,
            announced_since_send: false,
            last_error: None,
            presumed_unheld: true,
        }
    }

    /// The status of the acquisition.
    pub(super) fn acquire_status(&self, ctx: &Context) -> AcquireStatus {
        match &self.obstacle {
            _ if !ctx.online => AcquireStatus::Blocked { why: self.last_error.clone() },
            Obstacle::NotRequested => AcquireStatus::Requesting,
            _ if self.presumed_unheld && self.in_flight.is_some() => AcquireStatus::Requesting,
            Obstacle::Held(current) => AcquireStatus::Held { holder: current.instance.clone() },
            Obstacle::Quarantine | Obstacle::Error => AcquireStatus::Blocked { why: self.last_error.clone() },
        }
    }

    pub(super) fn state(&self) -> LeaseState {
        match self.obstacle {
            Obstacle::Held(_) => LeaseState::Other,
            Obstacle::NotRequested | Obstacle::Quarantine | Obstacle::Error => LeaseState::Unknown,
        }
    }

    pub(super) fn next_wake(&self, ctx: &Context) -> Option<Moment> {
        match &self.in_flight {
            Some(in_flight) => Some(ctx.give_up_at(in_flight)),
            None if ctx.online => Some(self.next_at.unwrap_or(Moment::ZERO)),
            None => None,
        }
    }

    pub(super) fn step(mut self: Box<Self>, clocks: Now, input: Input, ctx: &mut Step<'_>) -> Phase {
        let now = clocks.moment;
        match input {
            Input::Intent(_) => return self.give_up(now, ctx),
            Input::Answered { attempt, reply } if self.is_in_flight(attempt) => {
                let sent = self.in_flight.take().map_or(now, |in_flight| in_flight.sent);
                match reply {
                    Reply::Granted(grant) => match self.handle_grant(clocks, sent, &grant, ctx) {
                        Some(term) => return Phase::Holding(term),
                        None => self.next_at = Some(now),
                    },
                    other => self.handle_refusal(clocks, sent, other, ctx),
                }
            }
            Input::Failed { attempt, error } if self.is_in_flight(attempt) => {
                self.in_flight = None;
                self.failures += 1;
                let delay = if error.is_retryable() { ctx.backoff(self.failures) } else { ctx.settings.renew_every() };
                self.next_at = Some(now + delay);
                self.report_failure(error.to_string(), ctx);
            }
            Input::Unknown { attempt, error } if self.is_in_flight(attempt) => {
                self.outcome_unknown(now, error.to_string(), ctx);
            }
            Input::ConnectionLost if self.in_flight.take().is_some() => {
                self.maybe_granted = true;
                self.failures += 1;
                // Retry at once, then with backoff: a store that can be attached may still fail every claim.
                let again = self.failures > 1;
                self.next_at = Some(if again { now + ctx.backoff(self.failures) } else { now });
            }
            Input::Attached(_) if self.failures == 0 => self.next_at = Some(ctx.after_acquire_delay(now)),
            Input::Recheck => self.recheck_at(ctx.after_acquire_delay(now)),
            Input::Announced(announcement) => self.handle_announcement(clocks, announcement, ctx),
            _ => {}
        }
        self.check_timers(clocks, ctx);
        Phase::Acquiring(self)
    }

    fn is_in_flight(&self, attempt: super::Attempt) -> bool {
        self.in_flight.is_some_and(|in_flight| in_flight.attempt == attempt)
    }

    fn check_timers(&mut self, clocks: Now, ctx: &mut Step<'_>) {
        let now = clocks.moment;
        if self.in_flight.is_some_and(|in_flight| now >= ctx.give_up_at(&in_flight)) {
            let limit = ctx.settings.attempt_timeout();
            self.outcome_unknown(now, format!("no answer within {limit:?}"), ctx);
        }
        let next_at = *self.next_at.get_or_insert(ctx.after_acquire_delay(now));
        if self.in_flight.is_none() && ctx.online && now >= next_at {
            self.presumed_unheld |= match &self.obstacle {
                Obstacle::Held(current) => clocks.steady >= current.earliest_end,
                Obstacle::NotRequested | Obstacle::Quarantine | Obstacle::Error => true,
            };
            self.send_claim(now, ctx);
        }
    }

    fn send_claim(&mut self, now: Moment, ctx: &mut Step<'_>) {
        let claim = ctx.claim(self.nonce);
        let victim = match &self.obstacle {
            Obstacle::Held(current) if current.stale_at.is_some_and(|at| now >= at) => current.token,
            _ => None,
        };
        let request = match (victim, ctx.settings.take_over_after()) {
            (Some(victim), Some(stale_after)) => LeaseRequest::TakeOver { claim, victim, stale_after },
            _ => LeaseRequest::Acquire { claim, ended: ctx.ended_term() },
        };
        self.announced_since_send = false;
        self.in_flight = Some(ctx.send(now, request));
    }

    /// Something may have changed: request the lease at `at`, again if a request is already in flight.
    fn recheck_at(&mut self, at: Moment) {
        self.announced_since_send = true;
        self.next_at = Some(self.next_at.map_or(at, |already| already.min(at)));
    }

    /// Starts the term, unless the grant arrived after its deadline.
    fn handle_grant(&mut self, clocks: Now, sent: Moment, grant: &Grant, ctx: &mut Step<'_>) -> Option<HeldTerm> {
        let now = clocks.moment;
        let settings = ctx.settings.clone();
        let counted_from = if ctx.mutations.has(Mutation::DeadlineFromReceipt) { now } else { sent };
        let valid_until = deadline(counted_from, settings.ttl(), settings.clock_tolerance());
        if now >= valid_until {
            self.maybe_granted = true;
            return None;
        }
        let wait_out = grant.wait_out.saturating_add(settings.clock_tolerance().of(grant.wait_out));
        let not_before = (clocks.steady + wait_out).max(self.wait_out_until(clocks, grant));
        let reading = ServerReading { server: grant.server, sent, received: now };
        ctx.emit(Some(grant.token), EventKind::Acquired { ttl: settings.ttl() });
        if let Some(previous) = &grant.previous
            && previous.holder != ctx.instance
            && matches!(previous.ended, RecordedEnd::Unreported | RecordedEnd::TakenOver)
        {
            ctx.emit(Some(grant.token), EventKind::TakenOver { owner: previous.holder.clone() });
        }
        Some(HeldTerm::new(clocks, grant.token, valid_until, reading, not_before, ctx))
    }

    /// Until when the previous holder may still rely on the lease: one that became unheld before it could have expired,
    /// without a known release.
    fn wait_out_until(&self, clocks: Now, grant: &Grant) -> SteadyMoment {
        let Obstacle::Held(current) = &self.obstacle else { return SteadyMoment::ZERO };
        let ended_cleanly = grant.previous.as_ref().is_some_and(|previous| {
            current.token == Some(previous.token)
                && match previous.ended {
                    RecordedEnd::Released | RecordedEnd::HandedOver => true,
                    // Not released, but the grant itself contains the time to wait.
                    RecordedEnd::TakenOver => true,
                    RecordedEnd::Unreported | RecordedEnd::Revoked => false,
                }
        });
        if ended_cleanly || clocks.steady >= current.earliest_end { SteadyMoment::ZERO } else { current.latest_end }
    }

    fn handle_refusal(&mut self, clocks: Now, sent: Moment, reply: Reply, ctx: &mut Step<'_>) {
        let now = clocks.moment;
        self.failures = 0;
        if matches!(reply, Reply::Held(_)) {
            self.last_error = None;
        }
        match reply {
            Reply::Held(held) => self.handle_held(clocks, sent, held, ctx),
            Reply::Quarantined(quarantine) => {
                // The end of the quarantine may have been announced after the store handled our request.
                let at = if self.announced_since_send {
                    ctx.after_acquire_delay(now)
                } else {
                    now + ctx.after_expiry(quarantine.remaining)
                };
                self.next_at = Some(at);
                if self.obstacle != Obstacle::Quarantine {
                    self.obstacle = Obstacle::Quarantine;
                    let error = quarantine.to_string();
                    self.last_error = Some(error.clone());
                    ctx.emit(None, EventKind::AcquireFailed { owner: None, error: Some(error), is_waiting: false });
                }
            }
            Reply::NotAttached => {
                ctx.online = false;
                ctx.actions.push(Action::Attach);
            }
            Reply::TermOver => {
                self.nonce = Nonce::new(ctx.rng.u128(..));
                self.maybe_granted = false;
                self.next_at = Some(now);
            }
            other => {
                self.next_at = Some(now + ctx.settings.renew_every());
                let error = match other {
                    Reply::TokensExhausted => "the store has no larger token left".to_owned(),
                    other => format!("unexpected reply from the store: {other:?}"),
                };
                self.report_failure(error, ctx);
            }
        }
    }

    fn handle_held(&mut self, clocks: Now, sent: Moment, held: Held, ctx: &mut Step<'_>) {
        let now = clocks.moment;
        let error = ctx.settings.clock_tolerance();
        let stuck = held.remaining.is_none();
        let remaining = held.remaining.unwrap_or_else(|| ctx.settings.renew_every());
        let stale_at = match (ctx.settings.take_over_after(), held.idle, held.token) {
            // A takeover needs a renewal of the holder that reported no progress: wait for its next renewal.
            (Some(limit), Some(idle), Some(_)) if idle >= limit => Some(now + ctx.settings.renew_every()),
            (Some(limit), Some(idle), Some(_)) => Some(now + (limit - idle) + Duration::from_millis(1)),
            _ => None,
        };
        // The store replied after the request was sent and before the reply arrived.
        let shortest =
            remaining.saturating_sub(now.since(sent)).saturating_sub(error.of(remaining)).saturating_sub(FIXED_SLACK);
        let current = CurrentHolder {
            instance: held.holder,
            token: held.token,
            earliest_end: clocks.steady + shortest,
            latest_end: clocks.steady + remaining.saturating_add(error.of(remaining)),
            stale_at,
        };
        // The end of a foreign program's lease is not announced: check at least every ttl.
        let look_within = if current.token.is_some() { remaining } else { remaining.min(ctx.settings.ttl()) };
        let mut next_at = now + ctx.after_expiry(look_within);
        if ctx.mutations.has(Mutation::AnnouncementsOnly) {
            next_at = Moment::END;
        }
        if let Some(at) = stale_at {
            next_at = next_at.min(ctx.after_acquire_delay(at));
        }
        if let Some(interval) = ctx.settings.recheck_every() {
            next_at = next_at.min(now + ctx.with_jitter(interval));
        }
        // The store may have handled our request before the change that was announced.
        if self.announced_since_send {
            next_at = ctx.after_acquire_delay(now);
        }
        self.next_at = Some(next_at);
        let has_changed = match &self.obstacle {
            Obstacle::Held(before) => before.instance != current.instance,
            _ => true,
        };
        if has_changed || stuck {
            let error = stuck
                .then(|| format!("the lease never expires; delete its key {} if no program relies on it", ctx.name));
            ctx.emit(
                None,
                EventKind::AcquireFailed { owner: Some(current.instance.clone()), error, is_waiting: false },
            );
        }
        self.obstacle = Obstacle::Held(current);
        // Unless an announcement said meanwhile that this holder has released it.
        self.presumed_unheld &= self.announced_since_send;
    }

    fn handle_announcement(&mut self, clocks: Now, announcement: Announcement, ctx: &Context) {
        match announcement {
            Announcement::Released { name, token } if name == ctx.name => {
                if let Obstacle::Held(current) = &mut self.obstacle
                    && current.token.is_some_and(|seen| seen <= token)
                {
                    current.earliest_end = clocks.steady;
                }
                self.presumed_unheld = true;
                self.recheck_at(ctx.after_acquire_delay(clocks.moment));
            }
            // To the receiver it is an offer; to others it means that the lease ends at another time than expected.
            Announcement::HandedOver { name, .. } if name == ctx.name => self.recheck_at(clocks.moment),
            _ => {}
        }
    }

    fn outcome_unknown(&mut self, now: Moment, error: String, ctx: &mut Step<'_>) {
        self.in_flight = None;
        self.maybe_granted = true;
        self.failures += 1;
        self.next_at = Some(now + ctx.backoff(self.failures));
        self.report_failure(error, ctx);
    }

    fn report_failure(&mut self, error: String, ctx: &mut Step<'_>) {
        if !matches!(self.obstacle, Obstacle::Held(_)) {
            self.obstacle = Obstacle::Error;
        }
        if self.last_error.as_ref() != Some(&error) {
            self.last_error = Some(error.clone());
            ctx.emit(None, EventKind::AcquireFailed { owner: None, error: Some(error), is_waiting: false });
        }
    }

    fn give_up(self, now: Moment, ctx: &mut Step<'_>) -> Phase {
        if !(self.maybe_granted || self.in_flight.is_some()) {
            return Phase::Over(Over::confirmed(Ending::GivenUp));
        }
        let clean_up =
            LeaseRequest::Abandon { name: ctx.name.clone(), holder: ctx.instance.clone(), nonce: self.nonce };
        // For a limited time: at worst the lease expires.
        let until = now + ctx.settings.attempt_timeout() * 3;
        Phase::Releasing(Releasing::new(now, until, clean_up, Ending::GivenUp, ctx))
    }
}
