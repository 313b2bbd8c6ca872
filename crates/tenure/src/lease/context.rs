//! What every phase of a lease may use: who we are, the settings, chance, and the list of actions being made.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use super::{Action, Attempt, LeaseSettings};
use crate::event::{Event, EventKind};
use crate::mutation::Mutations;
use crate::name::{InstanceId, LeaseName};
use crate::store::{Claim, Holding, Request};
use crate::time::Moment;
use crate::token::{Nonce, Token};

/// The fewest and the most moments of an interval at which an instance renews: what is due in between is renewed together. The more leases
/// it holds, the more moments, so that not too many of them expire at once if it dies.
const MIN_RENEWAL_BATCHES: u32 = 10;
const MAX_RENEWAL_BATCHES: u32 = 64;

/// How many leases share a moment before there are more moments.
const LEASES_PER_RENEWAL_BATCH: u32 = 64;

/// One in so many renewals comes one moment sooner.
const EARLY_RENEWAL_ONE_IN: u8 = 4;

/// By how much of the interval a first renewal comes sooner at most, and how many leases it takes for that much.
const MAX_FIRST_RENEWAL_ADVANCE: f64 = 0.6;
const LEASES_FOR_FULL_SPREAD: f64 = 192.0;

#[derive(Debug)]
pub(super) struct Context {
    pub(super) name: LeaseName,
    pub(super) instance: InstanceId,
    /// The last term of this lease that this process has had, which the store may still list.
    pub(super) ended_term: Option<Token>,
    pub(super) settings: Arc<LeaseSettings>,
    pub(super) rng: fastrand::Rng,
    /// Whether there is a connection that has entered.
    pub(super) online: bool,
    pub(super) attempts: u64,
    /// How many leases this instance holds.
    pub(super) siblings: u32,
    pub(super) mutations: Mutations,
}

/// One step: the context, and what comes out of it.
pub(super) struct Step<'a> {
    context: &'a mut Context,
    pub(super) actions: Vec<Action>,
}

impl Deref for Step<'_> {
    type Target = Context;

    fn deref(&self) -> &Context {
        self.context
    }
}

impl DerefMut for Step<'_> {
    fn deref_mut(&mut self) -> &mut Context {
        self.context
    }
}

/// A request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InFlight {
    pub(super) attempt: Attempt,
    pub(super) sent: Moment,
}

impl<'a> Step<'a> {
    pub(super) fn of(context: &'a mut Context) -> Self {
        Self { context, actions: Vec::new() }
    }

    pub(super) fn emit(&mut self, token: Option<Token>, kind: EventKind) {
        let event = Event { instance: self.instance.clone(), lease: Some(self.name.clone()), token, kind };
        self.actions.push(Action::Emit(event));
    }

    /// Sends a request. `now` is before it is queued anywhere, and is what deadlines are counted from.
    pub(super) fn send(&mut self, now: Moment, request: Request) -> InFlight {
        self.attempts += 1;
        let in_flight = InFlight { attempt: Attempt(self.attempts), sent: now };
        let give_up_at = self.give_up_at(&in_flight);
        self.actions.push(Action::Send { attempt: in_flight.attempt, request, give_up_at });
        in_flight
    }
}

impl Context {
    pub(super) fn give_up_at(&self, in_flight: &InFlight) -> Moment {
        in_flight.sent + self.settings.attempt_timeout()
    }

    pub(super) fn claim(&self, nonce: Nonce) -> Claim {
        Claim { name: self.name.clone(), holder: self.instance.clone(), nonce, ttl: self.settings.ttl() }
    }

    pub(super) fn holding(&self, token: Token) -> Holding {
        Holding { name: self.name.clone(), holder: self.instance.clone(), token }
    }

    /// A span made up to a tenth shorter, so that many leases do not move in step.
    pub(super) fn with_jitter(&mut self, span: Duration) -> Duration {
        span.mul_f64(1.0 - 0.1 * self.rng.f64())
    }

    /// When to renew for the first time what was granted then. Many leases may have been granted at once; were they all
    /// renewed at once, they would all expire at once, and the instances that take them over would be that much later.
    pub(super) fn first_renewal_after(&mut self, sent: Moment) -> Moment {
        let spread = MAX_FIRST_RENEWAL_ADVANCE * (f64::from(self.siblings) / LEASES_FOR_FULL_SPREAD).min(1.0);
        let advance = self.settings.renew_every().mul_f64(spread * self.rng.f64());
        self.renewal(sent, advance)
    }

    /// When to renew what was last renewed then. Those of one instance that are due at about the same time travel together; every instance has
    /// moments of its own for that. Now and then one comes sooner, so that those that a stall has brought together do not stay together for ever.
    pub(super) fn renewal_after(&mut self, sent: Moment) -> Moment {
        let is_early = self.rng.u8(..EARLY_RENEWAL_ONE_IN) == 0;
        self.renewal(sent, if is_early { self.batch_interval() } else { Duration::ZERO })
    }

    /// An interval after it was last renewed, or sooner, at one of this instance's moments.
    fn renewal(&self, sent: Moment, advance: Duration) -> Moment {
        let due = (sent + self.settings.renew_every() - advance).as_nanos();
        let batch_interval = u64::try_from(self.batch_interval().as_nanos()).unwrap_or(u64::MAX).max(1);
        let mut hasher = DefaultHasher::new();
        self.instance.hash(&mut hasher);
        Moment::from_nanos(due.saturating_sub(due.wrapping_sub(hasher.finish() % batch_interval) % batch_interval))
    }

    /// The time from one of this instance's moments to the next.
    fn batch_interval(&self) -> Duration {
        self.settings.renew_every()
            / (self.siblings / LEASES_PER_RENEWAL_BATCH).clamp(MIN_RENEWAL_BATCHES, MAX_RENEWAL_BATCHES)
    }

    /// How long to wait before trying again after so many failures in a row.
    pub(super) fn backoff(&mut self, failures: u32) -> Duration {
        let first = self.settings.attempt_timeout() / 2;
        let longest = self.settings.renew_every();
        let span = first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(longest);
        span.mul_f64(0.5 + 0.5 * self.rng.f64())
    }

    /// When to ask for what has fallen free: after those who come first.
    pub(super) fn after_acquire_delay(&self, free_at: Moment) -> Moment {
        free_at + self.settings.acquire_delay()
    }

    /// Just after somebody's lease has ended.
    pub(super) fn after_expiry(&mut self, remaining: Duration) -> Duration {
        let jitter = self.settings.expiry_jitter().mul_f64(self.rng.f64() * 0.9);
        remaining.saturating_add(Duration::from_millis(1) + jitter + self.settings.acquire_delay())
    }
}
