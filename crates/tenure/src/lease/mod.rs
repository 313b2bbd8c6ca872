//! The life of one term, from the first request to the last goodbye, as a state machine without I/O.
//!
//! [`Lease::step`] takes a reading of the clock and an [`Input`] and returns [`Action`]s. It reads no clock, draws no randomness that
//! was not given to it, and waits for nothing, so the same code runs under an async runtime and in the simulator.
//!
//! ```text
//!   Acquiring ──granted──▶ Holding ──release, work ended──▶ Releasing ─▶ Over
//!      │                     │                                ▲
//!      │                     └──lost──▶ Stopping ─work ended──┤
//!      └──given up────────────────────────────────────────────┘
//! ```
//!
//! The rules it keeps:
//!
//! - A term is valid until `D = sent + ttl·(1−ρ) − 2 ms`, counted from before its request was queued. Only a renewal
//!   that succeeded moves D, and only forward; a reply that comes too late is not success.
//! - Validity is computed at every look ([`Lease::is_valid`], [`Lease::remaining`]). There is no flag to go stale.
//! - A renewal that fails makes the lease uncertain: no work starts until one succeeds. One that is refused is a loss.
//!   At D − S the term is lost in any case. A loss is final and has a [reason](Loss).
//! - Every goodbye waits for the work to end before the lease is released, and goes on renewing meanwhile, but not for
//!   ever. Work that does not end in time keeps the lease from being released: it runs out.
//! - Wake-ups carry an [`Epoch`]; one that is out of date changes nothing, so none is ever cancelled.

mod acquiring;
mod context;
mod ending;
mod input;
mod releasing;
mod settings;
mod term;

use std::sync::Arc;
use std::time::Duration;

use acquiring::Acquiring;
use context::{Context, Step};
use releasing::{Releasing, Stopping};
use term::HeldTerm;

pub use ending::{Ending, Loss, ReleaseReason};
pub use input::{AcquireStatus, Action, Attempt, Epoch, Input, Intent, LeaseState, Permission};
pub(crate) use settings::MAX_TTL;
pub use settings::{LeaseSettings, LeaseSettingsBuilder, SettingsError};

use crate::mutation::Mutations;
use crate::name::{InstanceId, LeaseName};
use crate::time::{Moment, Now};
use crate::token::{Nonce, Token};

/// One pursuit of a lease and the term it leads to.
///
/// Whoever drives it keeps four promises: requests are sent in the order given; [`Input::WorkEnded`] is said exactly
/// when nothing of the term's work is running any more; no other `Lease` of the same name is driven in this process
/// until this one [is over](Lease::ending); and no work acts without a look at [`Lease::is_valid`].
///
/// ```
/// use std::sync::Arc;
/// use tenure::lease::{Action, Input, Lease, LeaseSettings, LeaseState};
/// use tenure::store::Request;
/// use tenure::time::Now;
/// use tenure::{InstanceId, LeaseName};
///
/// let settings = Arc::new(LeaseSettings::default());
/// let mut lease = Lease::new(LeaseName::role("cleanup")?, InstanceId::new("api-1")?, settings, 42);
/// let actions = lease.step(Now::default(), Input::Tick);
/// assert!(matches!(&actions[0], Action::Send { request: Request::Acquire { .. }, .. }));
/// assert_eq!(lease.state(Now::default()), LeaseState::Unknown);
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Debug)]
pub struct Lease {
    context: Context,
    phase: Phase,
    last_permission: Permission,
    epoch: Epoch,
    /// The end of time when there is nothing to wake up for.
    wake_at: Moment,
}

#[derive(Debug)]
enum Phase {
    Acquiring(Acquiring),
    Holding(HeldTerm),
    Stopping(Stopping),
    Releasing(Releasing),
    Over(Ending),
}

impl Lease {
    /// A lease that nobody has asked for yet: the first [`Input::Tick`] does. It takes for granted that the store has
    /// been entered. All chance comes from the seed, the nonce included: it must be another one every time.
    pub fn new(name: LeaseName, instance: InstanceId, settings: Arc<LeaseSettings>, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let nonce = Nonce::new(rng.u128(..));
        Self {
            context: Context {
                name,
                instance,
                ended_term: None,
                settings,
                rng,
                online: true,
                attempts: 0,
                siblings: 0,
                mutations: Mutations::default(),
            },
            phase: Phase::Acquiring(Acquiring::new(nonce)),
            last_permission: Permission::None,
            epoch: Epoch::default(),
            wake_at: Moment::END,
        }
    }

    /// Names the last term that this process has had of the lease: what [`Lease::ended_term`] says of the one before. The
    /// store may still list it, and only who names it can replace it.
    #[must_use]
    pub fn with_ended_term(mut self, ended_term: Option<Token>) -> Self {
        self.context.ended_term = ended_term;
        self
    }

    /// The last term that this process has had of the lease, here or [before](Lease::with_ended_term). Pass it on to the next
    /// `Lease` of the same name, also when this one was never granted.
    pub fn ended_term(&self) -> Option<Token> {
        self.context.ended_term
    }

    /// Plants a mistake for the simulator to find.
    #[cfg(feature = "mutations")]
    pub fn plant(&mut self, mutation: crate::mutation::Mutation) {
        self.context.mutations.plant(mutation);
    }

    /// Says how many leases the instance holds. The more there are, the more their renewals are spread.
    pub fn set_siblings(&mut self, held: usize) {
        self.context.siblings = u32::try_from(held).unwrap_or(u32::MAX);
    }

    /// Takes in what happened and returns what is to be done about it, in order.
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Action> {
        match &input {
            Input::Wake(epoch) if *epoch != self.epoch => return Vec::new(),
            Input::Wake(_) => self.wake_at = Moment::END,
            Input::ConnectionLost => self.context.online = false,
            Input::Attached(_) => self.context.online = true,
            _ => {}
        }
        let mut step = Step::of(&mut self.context);
        self.phase = match std::mem::replace(&mut self.phase, Phase::Over(Ending::GivenUp)) {
            Phase::Acquiring(acquiring) => acquiring.step(now, input, &mut step),
            Phase::Holding(term) => term.step(now, input, &mut step),
            Phase::Stopping(stopping) => stopping.step(now.moment, input, &mut step),
            Phase::Releasing(releasing) => releasing.step(now.moment, input, &mut step),
            Phase::Over(ending) => Phase::Over(ending),
        };
        let mut actions = step.actions;
        actions.extend(self.update_permission(now));
        actions.extend(self.arm(now));
        actions
    }

    /// The lease as its user sees it.
    pub fn state(&self, now: Now) -> LeaseState {
        match &self.phase {
            Phase::Acquiring(acquiring) => acquiring.state(),
            Phase::Holding(term) if now.moment < term.deadline => term.state(now),
            _ => LeaseState::Unknown,
        }
    }

    /// What can be hoped for, while the lease is pursued.
    pub fn acquire_status(&self) -> Option<AcquireStatus> {
        match &self.phase {
            Phase::Acquiring(acquiring) => Some(acquiring.acquire_status(&self.context)),
            _ => None,
        }
    }

    /// What work may do, computed at every look.
    pub fn permission(&self, now: Now) -> Permission {
        match &self.phase {
            Phase::Acquiring(_) => Permission::None,
            Phase::Holding(term) => term.permission(now, &self.context),
            Phase::Stopping(stopping) => stopping.permission(now.moment),
            Phase::Releasing(_) | Phase::Over(_) => Permission::MustBeGone,
        }
    }

    /// Whether the term may be relied on, computed from the deadline. Not while somebody else may still rely on theirs.
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

    /// When the term began and when it was last renewed, while it is held.
    pub fn times(&self) -> Option<(Moment, Moment)> {
        match &self.phase {
            Phase::Holding(term) => Some((term.acquired_at, term.renewed_at)),
            _ => None,
        }
    }

    /// How long the last renewal took, or the grant when there was none yet, from when it was sent until it was answered, while it is held.
    pub fn last_round_trip(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Holding(term) => Some(term.reading.received.since(term.reading.sent)),
            _ => None,
        }
    }

    /// The wake-up that was asked for last, and when.
    pub fn next_wake(&self) -> Option<(Moment, Epoch)> {
        (self.wake_at != Moment::END).then_some((self.wake_at, self.epoch))
    }

    /// How it ended, once it has.
    pub fn ending(&self) -> Option<&Ending> {
        match &self.phase {
            Phase::Over(ending) => Some(ending),
            _ => None,
        }
    }

    /// The name of the lease.
    pub fn name(&self) -> &LeaseName {
        &self.context.name
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
