//! The life of one term, from the first request to the last goodbye, as a state machine without I/O.
//!
//! [`Lease::step`] takes a reading of the clock and an [`Input`] and returns [`Action`]s. It reads no clock, draws no randomness that
//! was not given to it, and waits for nothing, so the same code runs under an async runtime and in the simulator.
//!
//! ```text
//!   Pursuing ──granted──▶ Holding ──goodbye, work ended──▶ Parting ──▶ Over
//!      │                     │                                ▲
//!      │                     └──lost──▶ Falling ──work ended──┤
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

mod context;
mod ending;
mod farewell;
mod pursuit;
mod settings;
mod signal;
mod term;

use std::sync::Arc;
use std::time::Duration;

use context::{Context, Step};
use farewell::{Fall, Parting};
use pursuit::Pursuit;
use term::Term;

pub use ending::{Ending, Loss, ReleaseReason};
pub(crate) use settings::LONGEST_TTL;
pub use settings::{LeaseSettings, LeaseSettingsBuilder, SettingsError};
pub use signal::{Action, Attempt, Epoch, Input, LeaseState, Outlook, Permission, Wish};

use crate::flaw::Planted;
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
    told: Permission,
    epoch: Epoch,
    /// The end of time when there is nothing to wake up for.
    armed: Moment,
}

#[derive(Debug)]
enum Phase {
    Pursuing(Pursuit),
    Holding(Term),
    Falling(Fall),
    Parting(Parting),
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
                spent: None,
                settings,
                rng,
                online: true,
                attempts: 0,
                siblings: 0,
                planted: Planted::default(),
            },
            phase: Phase::Pursuing(Pursuit::new(nonce)),
            told: Permission::None,
            epoch: Epoch::default(),
            armed: Moment::END,
        }
    }

    /// Names the last term that this process has had of the lease: what [`Lease::spent`] says of the one before. The
    /// store may still list it, and only who names it can replace it.
    #[must_use]
    pub fn after(mut self, spent: Option<Token>) -> Self {
        self.context.spent = spent;
        self
    }

    /// The last term that this process has had of the lease, here or [before](Lease::after). Pass it on to the next
    /// `Lease` of the same name, also when this one was never granted.
    pub fn spent(&self) -> Option<Token> {
        self.context.spent
    }

    /// Plants a mistake for the simulator to find.
    #[cfg(feature = "flaws")]
    pub fn plant(&mut self, flaw: crate::flaw::Flaw) {
        self.context.planted.plant(flaw);
    }

    /// Says how many leases the instance holds. The more there are, the more their renewals are spread.
    pub fn set_siblings(&mut self, held: usize) {
        self.context.siblings = u32::try_from(held).unwrap_or(u32::MAX);
    }

    /// Takes in what happened and returns what is to be done about it, in order.
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Action> {
        match &input {
            Input::Wake(epoch) if *epoch != self.epoch => return Vec::new(),
            Input::Wake(_) => self.armed = Moment::END,
            Input::ConnectionLost => self.context.online = false,
            Input::Entered(_) => self.context.online = true,
            _ => {}
        }
        let mut step = Step::of(&mut self.context);
        self.phase = match std::mem::replace(&mut self.phase, Phase::Over(Ending::GivenUp)) {
            Phase::Pursuing(pursuit) => pursuit.step(now, input, &mut step),
            Phase::Holding(term) => term.step(now, input, &mut step),
            Phase::Falling(fall) => fall.step(now.moment, input, &mut step),
            Phase::Parting(parting) => parting.step(now.moment, input, &mut step),
            Phase::Over(ending) => Phase::Over(ending),
        };
        let mut actions = step.actions;
        actions.extend(self.tell_permission(now));
        actions.extend(self.arm(now));
        actions
    }

    /// The lease as its user sees it.
    pub fn state(&self, now: Now) -> LeaseState {
        match &self.phase {
            Phase::Pursuing(pursuit) => pursuit.state(),
            Phase::Holding(term) if now.moment < term.deadline => term.state(now),
            _ => LeaseState::Unknown,
        }
    }

    /// What can be hoped for, while the lease is pursued.
    pub fn outlook(&self) -> Option<Outlook> {
        match &self.phase {
            Phase::Pursuing(pursuit) => Some(pursuit.outlook(&self.context)),
            _ => None,
        }
    }

    /// What work may do, computed at every look.
    pub fn permission(&self, now: Now) -> Permission {
        match &self.phase {
            Phase::Pursuing(_) => Permission::None,
            Phase::Holding(term) => term.permission(now, &self.context),
            Phase::Falling(fall) => fall.permission(now.moment),
            Phase::Parting(_) | Phase::Over(_) => Permission::MustBeGone,
        }
    }

    /// Whether the term may be relied on, computed from the deadline. Not while somebody else may still rely on theirs.
    pub fn is_valid(&self, now: Now) -> bool {
        !self.remaining(now).is_zero()
    }

    /// For how long the term may be relied on.
    pub fn remaining(&self, now: Now) -> Duration {
        match &self.phase {
            Phase::Holding(term) if !term.waits(now) => term.deadline.since(now.moment),
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
        (self.armed != Moment::END).then_some((self.armed, self.epoch))
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

    fn tell_permission(&mut self, now: Now) -> Option<Action> {
        let permission = self.permission(now);
        if permission == self.told {
            return None;
        }
        self.told = permission;
        Some(Action::Permit(permission))
    }

    fn arm(&mut self, now: Now) -> Option<Action> {
        let wanted = match &self.phase {
            Phase::Pursuing(pursuit) => pursuit.next_wake(&self.context),
            Phase::Holding(term) => Some(term.next_wake(now, &self.context)),
            Phase::Falling(fall) => fall.next_wake(now.moment),
            Phase::Parting(parting) => Some(parting.next_wake(&self.context)),
            Phase::Over(_) => None,
        };
        let at = wanted.unwrap_or(Moment::END);
        if at == self.armed {
            return None;
        }
        self.armed = at;
        self.epoch = Epoch(self.epoch.0 + 1);
        self.next_wake().map(|(at, epoch)| Action::Wake { at, epoch })
    }
}
