//! The state of a term that its holder reads without a message to the keeper: a handful of atomics.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_core::manager::Validity;
use tokio::sync::Notify;

use super::{Command, KeeperHandle, LeaseId};
use crate::lease::{Ending, LeaseSettings, LeaseState, Loss, Permission};
use crate::name::LeaseName;
use crate::time::{LeaseClock, Moment, SystemClock};
use crate::token::Token;

/// One term, as the keeper publishes it to the holder.
///
/// There is no "valid" flag: there is a deadline, and every reader compares it with the clock.
pub(crate) struct SharedTerm {
    pub(crate) name: LeaseName,
    pub(crate) settings: Arc<LeaseSettings>,
    pub(crate) keeper: Arc<KeeperHandle>,
    /// Set with the grant.
    token: AtomicU64,
    /// D, in nanoseconds of the lease clock. Zero before the grant and once the term is over.
    deadline: AtomicU64,
    acquired_at: AtomicU64,
    renewed_at: AtomicU64,
    id: LeaseId,
    running_work: AtomicU32,
    work_state: AtomicU8,
    /// Whether progress was reported that the keeper has not read yet.
    progressed: AtomicBool,
    /// Why work was or will be cancelled, and how the term ended.
    outcome: OnceLock<Box<TermOutcome>>,
    /// Whether everything is done: the work has ended and the last request was answered.
    over: AtomicBool,
    /// Whether the lease is released once the running work has ended.
    draining: AtomicBool,
    changed: Notify,
}

/// The permission of work, as a number that fits an atomic.
mod work_state {
    pub(super) const NONE: u8 = 0;
    pub(super) const HOLD_STARTS: u8 = 1;
    pub(super) const MAY_START: u8 = 2;
    pub(super) const MUST_CANCEL: u8 = 3;
    pub(super) const MUST_BE_GONE: u8 = 4;
}

/// The outcome of a term.
struct TermOutcome {
    /// Why its work was first cancelled.
    cause: Ending,
    /// How the term ended, and whether the outcome of its release is unknown.
    ended: OnceLock<(Ending, bool)>,
}

/// Whether a piece of work may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkStart {
    /// It may start, and is counted.
    Started,
    /// Not while it is uncertain whether this instance holds the lease.
    Deferred,
    /// The term is over, or too near its end.
    Refused,
}

impl SharedTerm {
    pub(super) fn new(id: LeaseId, name: LeaseName, settings: Arc<LeaseSettings>, keeper: Arc<KeeperHandle>) -> Self {
        Self {
            name,
            settings,
            keeper,
            token: AtomicU64::new(0),
            deadline: AtomicU64::new(0),
            acquired_at: AtomicU64::new(0),
            renewed_at: AtomicU64::new(0),
            id,
            running_work: AtomicU32::new(0),
            work_state: AtomicU8::new(work_state::NONE),
            progressed: AtomicBool::new(false),
            outcome: OnceLock::new(),
            over: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    // Called by the keeper.

    /// Publishes what the holder may rely on.
    pub(super) fn update(&self, validity: &Validity) {
        if let Some(token) = validity.token {
            self.acquired_at.store(validity.acquired_at.as_nanos(), Ordering::Relaxed);
            self.renewed_at.store(validity.renewed_at.as_nanos(), Ordering::Relaxed);
            self.token.store(token.get(), Ordering::Relaxed);
        }
        self.deadline.store(validity.deadline.as_nanos(), Ordering::Release);
    }

    /// Forbids new work: the lease is released once the running work has ended.
    pub(super) fn set_draining(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Publishes the permission of work, and wakes the tasks that wait for a change.
    pub(super) fn permit(&self, permission: Permission) {
        let work_state = match permission {
            Permission::None => work_state::NONE,
            Permission::MayStart { .. } => work_state::MAY_START,
            Permission::HoldStarts { .. } => work_state::HOLD_STARTS,
            Permission::MustCancel { .. } => work_state::MUST_CANCEL,
            Permission::MustBeGone => work_state::MUST_BE_GONE,
        };
        self.work_state.store(work_state, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    pub(super) fn set_cause(&self, cause: Ending) {
        // The first cause counts.
        let _ = self.outcome.set(Box::new(TermOutcome { cause, ended: OnceLock::new() }));
    }

    pub(super) fn end(&self, ending: Ending, is_release_unknown: bool) {
        self.set_cause(ending.clone());
        if let Some(outcome) = self.outcome.get() {
            // A term ends once.
            let _ = outcome.ended.set((ending, is_release_unknown));
        }
        self.deadline.store(0, Ordering::Release);
        self.work_state.store(work_state::MUST_BE_GONE, Ordering::SeqCst);
        self.over.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    pub(super) fn running_work(&self) -> u32 {
        self.running_work.load(Ordering::SeqCst)
    }

    pub(super) fn take_progress(&self) {
        self.progressed.store(false, Ordering::Release);
    }

    // Called by the holder.

    pub(crate) fn token(&self) -> Token {
        Token::new(self.token.load(Ordering::Relaxed)).unwrap_or(Token::ZERO)
    }

    pub(crate) fn id(&self) -> LeaseId {
        self.id
    }

    /// Whether the lease is released once the running work has ended.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// How long the term may be relied on, computed on every call. Zero in a forked child: no keeper renews there.
    pub(crate) fn remaining(&self) -> Duration {
        let deadline = Moment::from_nanos(self.deadline.load(Ordering::Acquire));
        if deadline == Moment::ZERO || self.keeper.is_forked() {
            return Duration::ZERO;
        }
        deadline.since(SystemClock.now())
    }

    pub(crate) fn state(&self) -> LeaseState {
        if self.remaining().is_zero() {
            return LeaseState::Unknown;
        }
        match self.work_state.load(Ordering::SeqCst) {
            work_state::MAY_START => LeaseState::Owned,
            _ => LeaseState::Uncertain,
        }
    }

    /// When the term began and when it was last renewed.
    pub(crate) fn times(&self) -> (Moment, Moment) {
        let moment = |nanos: &AtomicU64| Moment::from_nanos(nanos.load(Ordering::Relaxed));
        (moment(&self.acquired_at), moment(&self.renewed_at))
    }

    /// The cause to report when the clock shows that the term is over before the keeper has said so.
    pub(crate) fn presumed_cause(&self) -> Ending {
        let certain = self.work_state.load(Ordering::SeqCst) == work_state::MAY_START;
        self.cause().cloned().unwrap_or(Ending::Lost(if certain { Loss::Expired } else { Loss::Unreachable }))
    }

    /// Why the term has ended or is about to, once known.
    pub(crate) fn cause(&self) -> Option<&Ending> {
        self.outcome.get().map(|outcome| &outcome.cause)
    }

    /// How the term ended, once it has.
    pub(crate) fn ending(&self) -> Option<&Ending> {
        self.outcome.get()?.ended.get().map(|(ending, _)| ending)
    }

    /// Whether no reply to the release came before the lease expired.
    pub(crate) fn is_release_unknown(&self) -> bool {
        self.outcome.get().and_then(|outcome| outcome.ended.get()).is_some_and(|(_, is_unknown)| *is_unknown)
    }

    /// Whether work was cancelled.
    pub(crate) fn is_stopped(&self) -> bool {
        self.work_state.load(Ordering::SeqCst) >= work_state::MUST_CANCEL
    }

    /// Whether work is still running although the lease may have another holder. There is nothing left to release.
    pub(crate) fn is_overdue(&self) -> bool {
        self.work_state.load(Ordering::SeqCst) == work_state::MUST_BE_GONE && self.running_work() > 0
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Whether work must stop now: cancelled, or too near the deadline. Reads the clock itself, whatever the keeper
    /// does or fails to do.
    pub(crate) fn must_stop(&self) -> bool {
        self.is_stopped() || self.remaining() <= self.settings.stop_budget()
    }

    /// Counts a piece of work, if it may start. The caller must then call [`end_work`](Self::end_work).
    pub(crate) fn start_work(&self) -> WorkStart {
        // A refused start must not be counted as running work.
        if self.must_stop() {
            return WorkStart::Refused;
        }
        // Count before reading the state: the keeper first forbids and then counts, so one of the two sees the other.
        self.running_work.fetch_add(1, Ordering::SeqCst);
        let start = match self.work_state.load(Ordering::SeqCst) {
            _ if self.must_stop() => WorkStart::Refused,
            work_state::MAY_START => WorkStart::Started,
            _ => WorkStart::Deferred,
        };
        if start != WorkStart::Started {
            self.end_work();
        }
        start
    }

    pub(crate) fn end_work(&self) {
        let last = self.running_work.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.work_state.load(Ordering::SeqCst) != work_state::MAY_START && !self.is_over() {
            self.keeper.send(Command::WorkEnded(self.id()));
        }
    }

    pub(crate) fn progress(&self) {
        if !self.progressed.swap(true, Ordering::AcqRel) {
            self.keeper.send(Command::Progress(self.id()));
        }
    }

    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }
}
