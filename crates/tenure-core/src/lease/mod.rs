//! One term, from the first request to the release: a state machine, and its settings. [`Lease::step`] takes a clock reading and an [`Input`] and returns
//! [`Action`]s. It reads no clock, draws all randomness from its seed and waits for nothing, so the same code runs under
//! an async runtime and in the simulator.
//!
//! ```text
//!   Acquiring ──granted──▶ Holding ──release, work ended──▶ Releasing ─▶ Over
//!      │                     │                                ▲
//!      │                     └──lost──▶ Stopping ─work ended──┤
//!      └──given up────────────────────────────────────────────┘
//! ```
//!
//! Its rules:
//!
//! - A term is valid until `D = sent + ttl·(1−ρ) − 2 ms`, counted from before its request was queued. Only a successful
//!   renewal moves D, and only forward. A reply that arrives too late is not a success.
//! - Validity is computed on every call ([`Lease::is_valid`], [`Lease::remaining`]). There is no flag to go stale.
//! - A failed renewal makes the lease uncertain: no work starts until a renewal succeeds. A refused renewal is a loss.
//!   At D − S the term is lost in any case. A loss is final and has a [reason](Loss).
//! - A release waits for the work to end and renews the lease meanwhile, for a limited time. If the work does not end
//!   in time, the lease is not released: it expires.
//! - Wake-ups carry an [`Epoch`]. A stale wake-up has no effect, so none is ever cancelled.
//!
mod acquiring;
mod context;
mod input;
mod releasing;
mod settings;
mod stopping;
mod term;

use std::sync::Arc;
use std::time::Duration;

use acquiring::Acquiring;
use context::{Context, Step};
use releasing::Releasing;
use stopping::Stopping;
use term::HeldTerm;

pub use input::LeaseState;
pub use input::{AcquireStatus, Action, Attempt, Epoch, Input, Intent, Permission};
pub use settings::{LeaseSettings, LeaseSettingsBuilder, SettingsError};

use crate::ending::{Ending, Loss};
use crate::mutation::Mutations;
use crate::name::{InstanceId, LeaseName};
use crate::time::{Moment, Now};
use crate::token::{Nonce, Token};

/// One attempt to acquire a lease, and the term that follows.
///
/// The driver must keep four rules. It sends requests in the order given. It passes [`Input::WorkEnded`] exactly when
/// none of the term's work is running any more. It drives no other `Lease` of the same name in this process until this
/// one [is over](Lease::ending). It lets no work act without checking [`Lease::is_valid`].
///
/// ```
/// use std::sync::Arc;
/// use tenure_core::lease::{Action, Input, Lease, LeaseSettings, LeaseState};
/// use tenure::store::LeaseRequest;
/// use tenure::time::Now;
/// use tenure::{InstanceId, LeaseName};
///
/// let settings = Arc::new(LeaseSettings::default());
/// let mut lease = Lease::new(LeaseName::role("cleanup")?, InstanceId::new("api-1")?, settings, 42);
/// let actions = lease.step(Now::default(), Input::Tick);
/// assert!(matches!(&actions[0], Action::Send { request: LeaseRequest::Acquire { .. }, .. }));
/// assert_eq!(lease.state(Now::default()), LeaseState::Unknown);
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Debug)]
pub struct Lease {
    context: Context,
    phase: Phase,
    last_permission: Permission,
    epoch: Epoch,
    /// [`Moment::END`] when no wake-up is needed.
    wake_at: Moment,
}

#[derive(Debug)]
enum Phase {
    /// Boxed: most leases are held.
    Acquiring(Box<Acquiring>),
    Holding(HeldTerm),
    Stopping(Stopping),
    Releasing(Releasing),
    Over(Over),
}

impl Phase {
    /// The phase of a term that was just lost.
    fn lost(now: Moment, term: HeldTerm, loss: Loss, context: &Context) -> Self {
        Self::Stopping(Stopping::new(now, term, loss, context))
    }
}

/// A lease that has ended.
#[derive(Debug)]
struct Over {
    ending: Ending,
    /// Whether the store knows of it, if it had to be told.
    is_confirmed: bool,
}

impl Over {
    fn confirmed(ending: Ending) -> Self {
        Self { ending, is_confirmed: true }
    }
}

impl Lease {
    /// Creates a lease that is not requested yet: the first [`Input::Tick`] sends the request. The store must be
    /// attached. All randomness comes from the seed, including the nonce, so the seed must differ every time.
    pub fn new(name: LeaseName, instance: InstanceId, settings: Arc<LeaseSettings>, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let nonce = Nonce::new(rng.u128(..));
        Self {
            context: Context {
                name,
                instance,
                ended_term: Token::ZERO,
                settings,
                rng,
                online: true,
                attempts: 0,
                siblings: 0,
                mutations: Mutations::default(),
            },
            phase: Phase::Acquiring(Box::new(Acquiring::new(nonce))),
            last_permission: Permission::None,
            epoch: Epoch::default(),
            wake_at: Moment::END,
        }
    }

    /// Sets the token of the last term of this lease in this process: [`Lease::ended_term`] of the previous `Lease`.
    /// The store may still list that term, and only a claim that names it can replace it.
    #[must_use]
    pub fn with_ended_term(mut self, ended_term: Option<Token>) -> Self {
        self.context.ended_term = ended_term.unwrap_or(Token::ZERO);
        self
    }

    /// The token of the last term of this lease in this process, here or [before](Lease::with_ended_term). Pass it to
    /// the next `Lease` of the same name, even if this one was never granted.
    pub fn ended_term(&self) -> Option<Token> {
        self.context.ended_term()
    }

    /// Plants the bugs of its manager.
    pub(crate) fn with_mutations(mut self, mutations: Mutations) -> Self {
        self.context.mutations = mutations;
        self
    }

    /// Sets the number of leases that the instance holds. The more it holds, the more their renewals are spread.
    pub fn set_siblings(&mut self, held: usize) {
        self.context.siblings = u32::try_from(held).unwrap_or(u32::MAX);
    }

    /// Processes an input and returns the resulting actions, in order.
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Action> {
        match &input {
            Input::Wake(epoch) if *epoch != self.epoch => return Vec::new(),
            Input::Wake(_) => self.wake_at = Moment::END,
            Input::ConnectionLost => self.context.online = false,
            Input::Attached(_) => self.context.online = true,
            _ => {}
        }
        let mut step = Step::of(&mut self.context);
        self.phase = match std::mem::replace(&mut self.phase, Phase::Over(Over::confirmed(Ending::GivenUp))) {
            Phase::Acquiring(acquiring) => acquiring.step(now, input, &mut step),
            Phase::Holding(term) => term.step(now, input, &mut step),
            Phase::Stopping(stopping) => stopping.step(now.moment, input, &mut step),
            Phase::Releasing(releasing) => releasing.step(now.moment, input, &mut step),
            Phase::Over(over) => Phase::Over(over),
        };
        let mut actions = step.actions;
        actions.extend(self.update_permission(now));
        actions.extend(self.arm(now));
        actions
    }

    /// The lease as the caller sees it.
    pub fn state(&self, now: Now) -> LeaseState {
        match &self.phase {
            Phase::Acquiring(acquiring) => acquiring.state(),
            Phase::Holding(term) if now.moment < term.deadline => term.state(now),
            _ => LeaseState::Unknown,
        }
    }

    /// The status of the acquisition, while the lease is being acquired.
    pub fn acquire_status(&self) -> Option<AcquireStatus> {
        match &self.phase {
            Phase::Acquiring(acquiring) => Some(acquiring.acquire_status(&self.context)),
            _ => None,
        }
    }

    /// What work may do, computed on every call.
    pub fn permission(&self, now: Now) -> Permission {
        match &self.phase {
            Phase::Acquiring(_) => Permission::None,
            Phase::Holding(term) => term.permission(now, &self.context),
            Phase::Stopping(stopping) => stopping.permission(now.moment),
            Phase::Releasing(_) | Phase::Over(_) => Permission::MustBeGone,
        }
    }

    /// Whether the term may be relied on, computed from the deadline. It is false while a previous holder may still
    /// rely on its term.
    pub fn is_valid(&self, now: Now) -> bool {
        !self.remaining(now).is_zero()
    }

    /// For how long the term may be relied on.
    pub fn remaining(&self, now: Now) -> Duration {
        match &self.phase {
            Phase::Holding(term) if !term.is_waiting_out(now) => term.deadline.since(now.moment),
            _ => Duration::ZERO,
        }
    }

    /// The token of the term, while it is held.
    pub fn token(&self) -> Option<Token> {
        match &self.phase {
            Phase::Holding(term) => Some(term.token),
            _ => None,
        }
    }

    /// When the term began and when the lease was last renewed, while it is held.
    pub fn times(&self) -> Option<(Moment, Moment)> {
        match &self.phase {
            Phase::Holding(term) => Some((term.acquired_at, term.renewed_at)),
            _ => None,
        }
    }

    /// Round-trip time of the last renewal, or of the grant before the first renewal, while the lease is held.
    pub fn last_round_trip(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Holding(term) => Some(term.reading.received.since(term.reading.sent)),
            _ => None,
        }
    }

    /// The time and epoch of the last wake-up requested.
    pub fn next_wake(&self) -> Option<(Moment, Epoch)> {
        (self.wake_at != Moment::END).then_some((self.wake_at, self.epoch))
    }

    /// How the lease ended, once it has.
    pub fn ending(&self) -> Option<&Ending> {
        match &self.phase {
            Phase::Over(over) => Some(&over.ending),
            _ => None,
        }
    }

    /// Whether it is unknown if the store has carried out the release: no reply came before the lease expired.
    pub fn is_release_unknown(&self) -> bool {
        matches!(&self.phase, Phase::Over(over) if !over.is_confirmed)
    }

    /// The name of the lease.
    pub fn name(&self) -> &LeaseName {
        &self.context.name
    }

    /// The settings of the lease.
    pub fn settings(&self) -> &Arc<LeaseSettings> {
        &self.context.settings
    }

    fn update_permission(&mut self, now: Now) -> Option<Action> {
        let permission = self.permission(now);
        if permission == self.last_permission {
            return None;
        }
        self.last_permission = permission;
        Some(Action::Permit(permission))
    }

    fn arm(&mut self, now: Now) -> Option<Action> {
        let wanted = match &self.phase {
            Phase::Acquiring(acquiring) => acquiring.next_wake(&self.context),
            Phase::Holding(term) => Some(term.next_wake(now, &self.context)),
            Phase::Stopping(stopping) => stopping.next_wake(now.moment),
            Phase::Releasing(releasing) => Some(releasing.next_wake(&self.context)),
            Phase::Over(_) => None,
        };
        let at = wanted.unwrap_or(Moment::END);
        if at == self.wake_at {
            return None;
        }
        self.wake_at = at;
        self.epoch = Epoch(self.epoch.0 + 1);
        self.next_wake().map(|(at, epoch)| Action::Wake { at, epoch })
    }
}
