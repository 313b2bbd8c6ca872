//! What a term's holder can see of it without asking the keeper: a handful of atomics.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;

use super::{Command, Door, LeaseId};
use crate::lease::{Ending, LeaseSettings, LeaseState, Loss, Permission};
use crate::name::LeaseName;
use crate::time::{LeaseClock, Moment, Now, SystemClock};
use crate::token::Token;

/// One term, as its keeper shows it to its holder.
///
/// There is no flag that says "valid": there is a deadline, and whoever looks compares it with the clock.
pub(crate) struct Shared {
    pub(crate) name: LeaseName,
    pub(crate) settings: Arc<LeaseSettings>,
    pub(crate) door: Arc<Door>,
    /// Set with the grant.
    token: AtomicU64,
    /// D, in nanoseconds of the lease clock. Zero before the grant and once the term is over.
    deadline: AtomicU64,
    acquired_at: AtomicU64,
    renewed_at: AtomicU64,
    id: AtomicU64,
    works: AtomicU32,
    leave: AtomicU8,
    /// Whether progress was reported that the keeper has not looked at yet.
    progressed: AtomicBool,
    /// Why work was or will be cancelled, and how it all ended.
    fate: OnceLock<Box<Fate>>,
    /// Whether all is done: the work is over and the last request answered.
    over: AtomicBool,
    /// Whether it is to be let go of when the work that runs has ended.
    leaving: AtomicBool,
    changed: Notify,
}

/// What work has leave to do, as a number that fits an atomic.
mod leave {
    pub(super) const NONE: u8 = 0;
    pub(super) const HOLD_STARTS: u8 = 1;
    pub(super) const MAY_START: u8 = 2;
    pub(super) const STOP: u8 = 3;
    pub(super) const BE_GONE: u8 = 4;
}

/// What becomes of a term.
struct Fate {
    /// Why its work was first told to stop.
    cause: Ending,
    /// How it ended.
    ended: OnceLock<Ending>,
}

/// Whether a piece of work may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// It is counted, and may.
    Now,
    /// Not while it is uncertain whether the lease is ours.
    Later,
    /// The term is over, or too near its end.
    Never,
}

impl Shared {
    pub(super) fn new(name: LeaseName, settings: Arc<LeaseSettings>, door: Arc<Door>) -> Self {
        Self {
            name,
            settings,
            door,
            token: AtomicU64::new(0),
            deadline: AtomicU64::new(0),
            acquired_at: AtomicU64::new(0),
            renewed_at: AtomicU64::new(0),
            id: AtomicU64::new(0),
            works: AtomicU32::new(0),
            leave: AtomicU8::new(leave::NONE),
            progressed: AtomicBool::new(false),
            fate: OnceLock::new(),
            over: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    // What the keeper does.

    pub(super) fn set_id(&self, id: LeaseId) {
        self.id.store(id.0, Ordering::Release);
    }

    /// Shows the term as it is now.
    pub(super) fn show(&self, now: Now, lease: &crate::lease::Lease) {
        if let Some((acquired, renewed)) = lease.times() {
            self.acquired_at.store(acquired.as_nanos(), Ordering::Relaxed);
            self.renewed_at.store(renewed.as_nanos(), Ordering::Relaxed);
        }
        if let Some(token) = lease.token() {
            self.token.store(token.get(), Ordering::Relaxed);
        }
        let remaining = lease.remaining(now);
        let deadline = if remaining.is_zero() { Moment::ZERO } else { now.moment + remaining };
        self.deadline.store(deadline.as_nanos(), Ordering::Release);
    }

    /// Says that no more work is to be begun: the lease is to be let go of when what runs has ended.
    pub(super) fn set_leaving(&self) {
        self.leaving.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Shows what work has leave to do, and wakes whoever must know.
    pub(super) fn permit(&self, permission: Permission) {
        let leave = match permission {
            Permission::None => leave::NONE,
            Permission::MayStart { .. } => leave::MAY_START,
            Permission::HoldStarts { .. } => leave::HOLD_STARTS,
            Permission::MustCancel { .. } => leave::STOP,
            Permission::MustBeGone => leave::BE_GONE,
        };
        self.leave.store(leave, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    pub(super) fn explain(&self, cause: Ending) {
        // The first cause is the one.
        let _ = self.fate.set(Box::new(Fate { cause, ended: OnceLock::new() }));
    }

    pub(super) fn end(&self, ending: Ending) {
        self.explain(ending.clone());
        if let Some(fate) = self.fate.get() {
            // It ends once.
            let _ = fate.ended.set(ending);
        }
        self.deadline.store(0, Ordering::Release);
        self.leave.store(leave::BE_GONE, Ordering::SeqCst);
        self.over.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    pub(super) fn works(&self) -> u32 {
        self.works.load(Ordering::SeqCst)
    }

    pub(super) fn take_progress(&self) {
        self.progressed.store(false, Ordering::Release);
    }

    // What the holder does.

    pub(crate) fn token(&self) -> Token {
        Token::new(self.token.load(Ordering::Relaxed)).unwrap_or(Token::ZERO)
    }

    pub(crate) fn id(&self) -> LeaseId {
        LeaseId(self.id.load(Ordering::Acquire))
    }

    /// Whether the lease is to be let go of when the work that runs has ended.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }

    /// For how long the term may be relied on, computed at every look. Never in a forked child: nobody renews there.
    pub(crate) fn remaining(&self) -> Duration {
        let deadline = Moment::from_nanos(self.deadline.load(Ordering::Acquire));
        if deadline == Moment::ZERO || self.door.is_forked() {
            return Duration::ZERO;
        }
        deadline.since(SystemClock.now())
    }

    pub(crate) fn state(&self) -> LeaseState {
        if self.remaining().is_zero() {
            return LeaseState::Unknown;
        }
        match self.leave.load(Ordering::SeqCst) {
            leave::MAY_START => LeaseState::Owned,
            _ => LeaseState::Uncertain,
        }
    }

    /// When the term began and when it was last renewed.
    pub(crate) fn times(&self) -> (Moment, Moment) {
        let moment = |nanos: &AtomicU64| Moment::from_nanos(nanos.load(Ordering::Relaxed));
        (moment(&self.acquired_at), moment(&self.renewed_at))
    }

    /// Why the term is over for whoever looks at the clock and finds that it is, before the keeper has said so.
    pub(crate) fn presumed_cause(&self) -> Ending {
        let certain = self.leave.load(Ordering::SeqCst) == leave::MAY_START;
        self.cause().cloned().unwrap_or(Ending::Lost(if certain { Loss::Expired } else { Loss::Unreachable }))
    }

    /// Why the term ended or is about to, once that is known.
    pub(crate) fn cause(&self) -> Option<&Ending> {
        self.fate.get().map(|fate| &fate.cause)
    }

    /// How the term ended, once it has.
    pub(crate) fn ending(&self) -> Option<&Ending> {
        self.fate.get()?.ended.get()
    }

    /// Whether work was told to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.leave.load(Ordering::SeqCst) >= leave::STOP
    }

    /// Whether work is still there although the lease may be anybody's by now. Nothing can be let go of any more.
    pub(crate) fn is_overdue(&self) -> bool {
        self.leave.load(Ordering::SeqCst) == leave::BE_GONE && self.works() > 0
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Whether work must stop now: told to, or too near to the deadline. Looks at the clock itself, whatever the keeper
    /// does or fails to do.
    pub(crate) fn must_stop(&self) -> bool {
        self.is_stopped() || self.remaining() <= self.settings.stop_budget()
    }

    /// Counts a piece of work in, if it may begin. Then it must be counted out.
    pub(crate) fn count_in(&self) -> Start {
        // Whoever only asks must not look like work that is still there.
        if self.must_stop() {
            return Start::Never;
        }
        // Before the look: the keeper first forbids and then counts, so one of the two sees the other.
        self.works.fetch_add(1, Ordering::SeqCst);
        let start = match self.leave.load(Ordering::SeqCst) {
            _ if self.must_stop() => Start::Never,
            leave::MAY_START => Start::Now,
            _ => Start::Later,
        };
        if start != Start::Now {
            self.count_out();
        }
        start
    }

    pub(crate) fn count_out(&self) {
        let last = self.works.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.leave.load(Ordering::SeqCst) != leave::MAY_START && !self.is_over() {
            self.door.tell(Command::WorkEnded(self.id()));
        }
    }

    pub(crate) fn progress(&self) {
        if !self.progressed.swap(true, Ordering::AcqRel) {
            self.door.tell(Command::Progress(self.id()));
        }
    }

    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }
}
