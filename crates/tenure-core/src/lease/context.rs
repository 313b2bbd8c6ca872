//! What all phases of a lease share: instance, settings, random generator and the list of actions.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use super::{Action, Attempt, LeaseSettings};
use crate::backoff::Backoff;
use crate::event::{Event, EventKind};
use crate::mutation::Mutations;
use crate::name::{InstanceId, LeaseName};
use crate::store::{Claim, Holding, LeaseRequest};
use crate::time::Moment;
use crate::token::{Nonce, Token};

/// Bounds of the number of renewal batches per interval and instance. Leases that are due between two batches are
/// renewed together. The more leases an instance holds, the more batches it uses, so that fewer leases expire at once
/// if it dies.
const MIN_RENEWAL_BATCHES: u32 = 10;
const MAX_RENEWAL_BATCHES: u32 = 64;

/// Number of leases per batch before more batches are used.
const LEASES_PER_RENEWAL_BATCH: u32 = 64;

/// One in this many renewals is sent one batch earlier.
const EARLY_RENEWAL_ONE_IN: u8 = 4;

/// Largest advance of a first renewal, as a fraction of the interval, and the number of held leases that leads to it.
const MAX_FIRST_RENEWAL_ADVANCE: f64 = 0.6;
const LEASES_FOR_FULL_SPREAD: f64 = 192.0;

#[derive(Debug)]
pub(super) struct Context {
    pub(super) name: LeaseName,
    pub(super) instance: InstanceId,
    /// The last term of this lease in this process, which the store may still list. Zero if there was none.
    pub(super) ended_term: Token,
    pub(super) settings: Arc<LeaseSettings>,
    pub(super) rng: fastrand::Rng,
    /// Whether there is an attached connection.
    pub(super) online: bool,
    pub(super) attempts: u64,
    /// Number of leases that this instance holds.
    pub(super) siblings: u32,
    pub(super) mutations: Mutations,
}

/// One step: the context and the resulting actions.
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

    /// Sends a request. `now` must be read before the request is queued anywhere: deadlines are counted from it.
    pub(super) fn send(&mut self, now: Moment, request: LeaseRequest) -> InFlight {
        self.attempts += 1;
        let in_flight = InFlight { attempt: Attempt(self.attempts), sent: now };
        let give_up_at = self.give_up_at(&in_flight);
        self.actions.push(Action::Send { attempt: in_flight.attempt, request, give_up_at });
        in_flight
    }
}

impl Context {
    /// The last term of this lease in this process, if there was one.
    pub(super) fn ended_term(&self) -> Option<Token> {
        Some(self.ended_term).filter(|token| *token != Token::ZERO)
    }

    pub(super) fn give_up_at(&self, in_flight: &InFlight) -> Moment {
        in_flight.sent + self.settings.attempt_timeout()
    }

    pub(super) fn claim(&self, nonce: Nonce) -> Claim {
        Claim { name: self.name.clone(), holder: self.instance.clone(), nonce, ttl: self.settings.ttl() }
    }

    pub(super) fn holding(&self, token: Token) -> Holding {
        Holding { name: self.name.clone(), holder: self.instance.clone(), token }
    }

    /// Shortens a duration by up to a tenth, so that many leases do not move in lockstep.
    pub(super) fn with_jitter(&mut self, span: Duration) -> Duration {
        span.mul_f64(1.0 - 0.1 * self.rng.f64())
    }

    /// When to renew a lease for the first time after its grant was sent at `sent`. Many leases may be granted at once.
    /// If they were all renewed at once, they would all expire at once, and the instances that take over would be
    /// delayed.
    pub(super) fn first_renewal_after(&mut self, sent: Moment) -> Moment {
        let spread = MAX_FIRST_RENEWAL_ADVANCE * (f64::from(self.siblings) / LEASES_FOR_FULL_SPREAD).min(1.0);
        let advance = self.settings.renew_every().mul_f64(spread * self.rng.f64());
        self.renewal(sent, advance)
    }

    /// When to renew a lease whose last renewal was sent at `sent`. Leases of one instance that are due at about the
    /// same time are renewed in one batch, and every instance has its own batch times. Now and then a lease moves to an
    /// earlier batch, so that leases that a stall has brought together do not stay together for ever.
    pub(super) fn renewal_after(&mut self, sent: Moment) -> Moment {
        let is_early = self.rng.u8(..EARLY_RENEWAL_ONE_IN) == 0;
        self.renewal(sent, if is_early { self.batch_interval() } else { Duration::ZERO })
    }

    /// The last batch time of this instance that is not after `sent` plus the renewal interval minus `advance`.
    fn renewal(&self, sent: Moment, advance: Duration) -> Moment {
        let due = (sent + self.settings.renew_every() - advance).as_nanos();
        let batch_interval = u64::try_from(self.batch_interval().as_nanos()).unwrap_or(u64::MAX).max(1);
        let mut hasher = DefaultHasher::new();
        self.instance.hash(&mut hasher);
        Moment::from_nanos(due.saturating_sub(due.wrapping_sub(hasher.finish() % batch_interval) % batch_interval))
    }

    /// The time between two batches of this instance.
    fn batch_interval(&self) -> Duration {
        self.settings.renew_every()
            / (self.siblings / LEASES_PER_RENEWAL_BATCH).clamp(MIN_RENEWAL_BATCHES, MAX_RENEWAL_BATCHES)
    }

    /// The delay before a retry, after this many failures in a row.
    pub(super) fn backoff(&mut self, failures: u32) -> Duration {
        let backoff = Backoff::new(self.settings.attempt_timeout() / 2, self.settings.renew_every());
        backoff.jittered(failures, self.rng.f64())
    }

    /// When to acquire a lease that becomes unheld at `free_at`: after the acquire delay.
    pub(super) fn after_acquire_delay(&self, free_at: Moment) -> Moment {
        free_at + self.settings.acquire_delay()
    }

    /// The delay until just after another holder's lease has expired.
    pub(super) fn after_expiry(&mut self, remaining: Duration) -> Duration {
        let jitter = self.settings.expiry_jitter().mul_f64(self.rng.f64() * 0.9);
        remaining.saturating_add(Duration::from_millis(1) + jitter + self.settings.acquire_delay())
    }
}
