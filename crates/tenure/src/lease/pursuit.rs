//! Before the term: asking for the lease, and waiting well when somebody else has it.

use std::time::Duration;

use super::context::{Context, InFlight, Step};
use super::farewell::Parting;
use super::term::Term;
use super::{Action, Ending, Input, LeaseState, Outlook, Phase};
use crate::event::Happening;
use crate::flaw::Flaw;
use crate::name::InstanceId;
use crate::store::{Announcement, Ended, Grant, Held, Reply, Request};
use crate::time::{FIXED_SLACK, Moment, Now, ServerReading, Steady, deadline};
use crate::token::{Nonce, Token};

#[derive(Debug)]
pub(super) struct Pursuit {
    nonce: Nonce,
    asking: Option<InFlight>,
    /// `None` before the first look at a clock.
    next_at: Option<Moment>,
    /// Whether the store may have granted something that we do not know of.
    unsure: bool,
    failures: u32,
    obstacle: Obstacle,
    /// Whether something was heard since the last question was sent, so that its answer may be out of date.
    heard_since: bool,
    /// What was last said to be wrong; it is not said again until something else has happened.
    complaint: Option<String>,
    /// Whether whoever had the lease is known or presumed to have it no more.
    vacant: bool,
}

/// What was in the way when we last asked.
#[derive(Debug, PartialEq, Eq)]
enum Obstacle {
    NotAsked,
    Somebody(Rival),
    Quarantine,
    Error,
}

/// Somebody else's lease as we last saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rival {
    owner: InstanceId,
    token: Option<Token>,
    /// Before this moment it cannot have run out by itself.
    earliest_end: Steady,
    /// By this moment it has, unless it was renewed.
    latest_end: Steady,
    /// When the holder may be taken over for lack of progress.
    stale_at: Option<Moment>,
}

impl Pursuit {
    pub(super) fn new(nonce: Nonce) -> Self {
        Self {
            nonce,
            asking: None,
            next_at: None,
            unsure: false,
            failures: 0,
            obstacle: Obstacle::NotAsked,
            heard_since: false,
            complaint: None,
            vacant: true,
        }
    }

    /// What can be hoped for.
    pub(super) fn outlook(&self, ctx: &Context) -> Outlook {
        match &self.obstacle {
            _ if !ctx.online => Outlook::Waiting { why: self.complaint.clone() },
            Obstacle::NotAsked => Outlook::Asking,
            _ if self.vacant && self.asking.is_some() => Outlook::Asking,
            Obstacle::Somebody(rival) => Outlook::Behind { owner: rival.owner.clone() },
            Obstacle::Quarantine | Obstacle::Error => Outlook::Waiting { why: self.complaint.clone() },
        }
    }

    pub(super) fn state(&self) -> LeaseState {
        match self.obstacle {
            Obstacle::Somebody(_) => LeaseState::Other,
            Obstacle::NotAsked | Obstacle::Quarantine | Obstacle::Error => LeaseState::Unknown,
        }
    }

    pub(super) fn next_wake(&self, ctx: &Context) -> Option<Moment> {
        match &self.asking {
            Some(in_flight) => Some(ctx.give_up_at(in_flight)),
            None if ctx.online => Some(self.next_at.unwrap_or(Moment::ZERO)),
            None => None,
        }
    }

    pub(super) fn step(mut self, clocks: Now, input: Input, ctx: &mut Step<'_>) -> Phase {
        let now = clocks.moment;
        match input {
            Input::Wish(_) => return self.give_up(now, ctx),
            Input::Answered { attempt, reply } if self.is_asking(attempt) => {
                let sent = self.asking.take().map_or(now, |in_flight| in_flight.sent);
                match reply {
                    Reply::Granted(grant) => match self.begin(clocks, sent, &grant, ctx) {
                        Some(term) => return Phase::Holding(term),
                        None => self.next_at = Some(now),
                    },
                    other => self.refused(clocks, sent, other, ctx),
                }
            }
            Input::Failed { attempt, error } if self.is_asking(attempt) => {
                self.asking = None;
                self.failures += 1;
                let patience =
                    if error.is_retryable() { ctx.backoff(self.failures) } else { ctx.settings.renew_every() };
                self.next_at = Some(now + patience);
                self.failed(error.to_string(), ctx);
            }
            Input::Unknown { attempt, error } if self.is_asking(attempt) => {
                self.lost_sight(now, error.to_string(), ctx);
            }
            Input::ConnectionLost if self.asking.take().is_some() => {
                self.unsure = true;
                self.failures += 1;
                // Once at once, then with growing pauses: a store that can be entered may still fail every claim.
                let again = self.failures > 1;
                self.next_at = Some(if again { now + ctx.backoff(self.failures) } else { now });
            }
            Input::Entered(_) if self.failures == 0 => self.next_at = Some(ctx.behind_others(now)),
            Input::LookAgain => self.look_again(ctx.behind_others(now)),
            Input::Announced(announcement) => self.heard(clocks, announcement, ctx),
            _ => {}
        }
        self.look_at_clock(clocks, ctx);
        Phase::Pursuing(self)
    }

    fn is_asking(&self, attempt: super::Attempt) -> bool {
        self.asking.is_some_and(|in_flight| in_flight.attempt == attempt)
    }

    fn look_at_clock(&mut self, clocks: Now, ctx: &mut Step<'_>) {
        let now = clocks.moment;
        if self.asking.is_some_and(|in_flight| now >= ctx.give_up_at(&in_flight)) {
            let limit = ctx.settings.attempt_timeout();
            self.lost_sight(now, format!("no answer within {limit:?}"), ctx);
        }
        let next_at = *self.next_at.get_or_insert(ctx.behind_others(now));
        if self.asking.is_none() && ctx.online && now >= next_at {
            self.vacant |= match &self.obstacle {
                Obstacle::Somebody(rival) => clocks.steady >= rival.earliest_end,
                Obstacle::NotAsked | Obstacle::Quarantine | Obstacle::Error => true,
            };
            self.ask(now, ctx);
        }
    }

    fn ask(&mut self, now: Moment, ctx: &mut Step<'_>) {
        let claim = ctx.claim(self.nonce);
        let victim = match &self.obstacle {
            Obstacle::Somebody(rival) if rival.stale_at.is_some_and(|at| now >= at) => rival.token,
            _ => None,
        };
        let request = match (victim, ctx.settings.take_over_after()) {
            (Some(victim), Some(stale_after)) => Request::TakeOver { claim, victim, stale_after },
            _ => Request::Acquire { claim, ended: ctx.spent },
        };
        self.heard_since = false;
        self.asking = Some(ctx.send(now, request));
    }

    /// Something may have changed: ask now, or once more if the question is already on its way.
    fn look_again(&mut self, at: Moment) {
        self.heard_since = true;
        self.next_at = Some(self.next_at.map_or(at, |already| already.min(at)));
    }

    /// The lease is ours, unless the good news came too late to be true.
    fn begin(&mut self, clocks: Now, sent: Moment, grant: &Grant, ctx: &mut Step<'_>) -> Option<Term> {
        let now = clocks.moment;
        let settings = ctx.settings.clone();
        let counted_from = if ctx.planted.has(Flaw::DeadlineFromReceipt) { now } else { sent };
        let valid_until = deadline(counted_from, settings.ttl(), settings.clock_error());
        if now >= valid_until {
            self.unsure = true;
            return None;
        }
        let wait_out = grant.wait_out.saturating_add(settings.clock_error().of(grant.wait_out));
        let not_before = (clocks.steady + wait_out).max(self.early_grant(clocks, grant));
        let reading = ServerReading { server: grant.server, sent, received: now };
        ctx.tell(Some(grant.token), Happening::Acquired { ttl: settings.ttl() });
        if let Some(previous) = &grant.previous
            && previous.holder != ctx.instance
            && matches!(previous.ended, Ended::Silently | Ended::TakenOver)
        {
            ctx.tell(Some(grant.token), Happening::TakenOver { owner: previous.holder.clone() });
        }
        Some(Term::new(clocks, grant.token, valid_until, reading, not_before, ctx))
    }

    /// A lease that became free before it could have run out, and that nobody is known to have let go of, may still be
    /// relied on by whoever had it: until when that lasts.
    fn early_grant(&self, clocks: Now, grant: &Grant) -> Steady {
        let Obstacle::Somebody(rival) = &self.obstacle else { return Steady::ZERO };
        let let_go = grant.previous.as_ref().is_some_and(|previous| {
            rival.token == Some(previous.token)
                && match previous.ended {
                    Ended::Released | Ended::HandedOver => true,
                    // Not let go of, but the grant itself says how long to wait.
                    Ended::TakenOver => true,
                    Ended::Silently | Ended::Revoked => false,
                }
        });
        if let_go || clocks.steady >= rival.earliest_end { Steady::ZERO } else { rival.latest_end }
    }

    fn refused(&mut self, clocks: Now, sent: Moment, reply: Reply, ctx: &mut Step<'_>) {
        let now = clocks.moment;
        self.failures = 0;
        if matches!(reply, Reply::Held(_)) {
            self.complaint = None;
        }
        match reply {
            Reply::Held(held) => self.held(clocks, sent, held, ctx),
            Reply::Quarantined(quarantine) => {
                // Its end may have been announced while we were asking, and our question may have come first.
                let at = if self.heard_since {
                    ctx.behind_others(now)
                } else {
                    now + ctx.after_expiry(quarantine.remaining)
                };
                self.next_at = Some(at);
                if self.obstacle != Obstacle::Quarantine {
                    self.obstacle = Obstacle::Quarantine;
                    let error = quarantine.to_string();
                    self.complaint = Some(error.clone());
                    ctx.tell(None, Happening::AcquireFailed { owner: None, error: Some(error), waits: false });
                }
            }
            Reply::NotEntered => {
                ctx.online = false;
                ctx.actions.push(Action::Enter);
            }
            Reply::TermOver => {
                self.nonce = Nonce::new(ctx.rng.u128(..));
                self.unsure = false;
                self.next_at = Some(now);
            }
            other => {
                self.next_at = Some(now + ctx.settings.renew_every());
                let error = match other {
                    Reply::TokensExhausted => "the store has no larger token left".to_owned(),
                    other => format!("the store gave an answer to another question: {other:?}"),
                };
                self.failed(error, ctx);
            }
        }
    }

    fn held(&mut self, clocks: Now, sent: Moment, held: Held, ctx: &mut Step<'_>) {
        let now = clocks.moment;
        let error = ctx.settings.clock_error();
        let stuck = held.remaining.is_none();
        let remaining = held.remaining.unwrap_or_else(|| ctx.settings.renew_every());
        let stale_at = match (ctx.settings.take_over_after(), held.idle, held.token) {
            // One that could be told apart from somebody who has not renewed yet would have been taken over by now.
            (Some(limit), Some(idle), Some(_)) if idle >= limit => Some(now + ctx.settings.renew_every()),
            (Some(limit), Some(idle), Some(_)) => Some(now + (limit - idle) + Duration::from_millis(1)),
            _ => None,
        };
        // The store spoke after the request was sent and before the reply was here.
        let shortest =
            remaining.saturating_sub(now.since(sent)).saturating_sub(error.of(remaining)).saturating_sub(FIXED_SLACK);
        let rival = Rival {
            owner: held.by,
            token: held.token,
            earliest_end: clocks.steady + shortest,
            latest_end: clocks.steady + remaining.saturating_add(error.of(remaining)),
            stale_at,
        };
        // The end of a foreign program's lease is not announced: it is looked for every ttl.
        let look_within = if rival.token.is_some() { remaining } else { remaining.min(ctx.settings.ttl()) };
        let mut next_at = now + ctx.after_expiry(look_within);
        if ctx.planted.has(Flaw::WaitsToBeTold) {
            next_at = Moment::END;
        }
        if let Some(at) = stale_at {
            next_at = next_at.min(ctx.behind_others(at));
        }
        if let Some(interval) = ctx.settings.look_every() {
            next_at = next_at.min(now + ctx.shortened(interval));
        }
        // Something was announced while we were asking, and our question may have come first.
        if self.heard_since {
            next_at = ctx.behind_others(now);
        }
        self.next_at = Some(next_at);
        let news = match &self.obstacle {
            Obstacle::Somebody(before) => before.owner != rival.owner,
            _ => true,
        };
        if news || stuck {
            let error = stuck.then(|| format!("the lease has no end; delete its key {} if nobody holds it", ctx.name));
            ctx.tell(None, Happening::AcquireFailed { owner: Some(rival.owner.clone()), error, waits: false });
        }
        self.obstacle = Obstacle::Somebody(rival);
        // Unless it was heard meanwhile that this one has let go.
        self.vacant &= self.heard_since;
    }

    fn heard(&mut self, clocks: Now, announcement: Announcement, ctx: &Context) {
        match announcement {
            Announcement::Released { name, token } if name == ctx.name => {
                if let Obstacle::Somebody(rival) = &mut self.obstacle
                    && rival.token.is_some_and(|seen| seen <= token)
                {
                    rival.earliest_end = clocks.steady;
                }
                self.vacant = true;
                self.look_again(ctx.behind_others(clocks.moment));
            }
            // To us it is an offer; to others it means that the lease has another end than the one we wait for.
            Announcement::HandedOver { name, .. } if name == ctx.name => self.look_again(clocks.moment),
            _ => {}
        }
    }

    fn lost_sight(&mut self, now: Moment, error: String, ctx: &mut Step<'_>) {
        self.asking = None;
        self.unsure = true;
        self.failures += 1;
        self.next_at = Some(now + ctx.backoff(self.failures));
        self.failed(error, ctx);
    }

    fn failed(&mut self, error: String, ctx: &mut Step<'_>) {
        if !matches!(self.obstacle, Obstacle::Somebody(_)) {
            self.obstacle = Obstacle::Error;
        }
        if self.complaint.as_ref() != Some(&error) {
            self.complaint = Some(error.clone());
            ctx.tell(None, Happening::AcquireFailed { owner: None, error: Some(error), waits: false });
        }
    }

    fn give_up(self, now: Moment, ctx: &mut Step<'_>) -> Phase {
        if !(self.unsure || self.asking.is_some()) {
            return Phase::Over(Ending::GivenUp);
        }
        let clean_up = Request::Abandon { name: ctx.name.clone(), holder: ctx.instance.clone(), nonce: self.nonce };
        // For a while only: at worst it runs out.
        let until = now + ctx.settings.attempt_timeout() * 3;
        Phase::Parting(Parting::new(now, until, clean_up, Ending::GivenUp, ctx))
    }
}
