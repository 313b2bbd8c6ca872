//! The worker of a target that a simulated instance holds: it executes the steps of the library's ticker, and works.

use std::time::Duration;

use tenure_core::lease::Permission;
use tenure_core::manager::{CallId, LeaseId};
use tenure_core::pool::{TermView, Ticker, TickerStep, WriteOutcome};
use tenure_core::store::{Outcome, Reply};
use tenure_core::time::{Moment, ServerTime};

/// Interval between two ticks of a target.
pub const TICK_INTERVAL: Duration = Duration::from_secs(5);

/// How long work is not restarted after a panic.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// One target's work in one term.
#[derive(Debug)]
pub(super) struct SimWorker {
    pub(super) lease: LeaseId,
    pub(super) ticker: Ticker,
    pub(super) doing: Doing,
    /// The number of the last timer. Earlier ones are over.
    pub(super) timer: u64,
    /// The append whose reply was not read yet, and the reply.
    pub(super) append: Option<(CallId, Option<WriteOutcome>)>,
}

/// What a worker waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// Nothing: it takes the next step.
    Steps,
    /// A timer, or the term to drain. If it drains already, only the timer.
    Sleeps { wakes_to_drain: bool },
    /// The reply to a call.
    Waits(CallId),
    /// The reply to its append.
    WaitsForAppend,
    /// The lease to be certain, or the term to drain.
    WaitsForCertainty,
    /// The end of its work on a tick.
    Works,
    /// Nothing any more.
    Ended,
}

/// How the work on a tick goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkLength {
    /// It takes this long, and has a result.
    Completes(Duration),
    /// It panics after this time.
    Panics(Duration),
}

impl WorkLength {
    /// Usual work or, with faults, now and then work that is late, stuck for a while, or panics.
    pub(super) fn random(rng: &mut fastrand::Rng, has_faults: bool) -> Self {
        let usual = Duration::from_millis(rng.u64(5..400));
        match rng.u8(..100) {
            0 if has_faults => Self::Completes(Duration::from_millis(rng.u64(5_000..60_000))),
            1..4 if has_faults => Self::Completes(Duration::from_millis(rng.u64(1_000..8_000))),
            4..6 if has_faults => Self::Panics(usual),
            _ => Self::Completes(usual),
        }
    }
}

impl SimWorker {
    pub(super) fn new(lease: LeaseId, target: &str, retry_after: Duration) -> Self {
        let ticker = Ticker::new(target, TICK_INTERVAL, retry_after);
        Self { lease, ticker, doing: Doing::Steps, timer: 0, append: None }
    }

    /// Begins anew after a panic: what was claimed is forgotten.
    pub(super) fn restart(&mut self, target: &str, retry_after: Duration) -> Duration {
        self.ticker = Ticker::new(target, TICK_INTERVAL, retry_after);
        (self.append, self.doing) = (None, Doing::Sleeps { wakes_to_drain: true });
        RESTART_DELAY
    }

    /// The next step, once what it waited for has come. `None` while it waits.
    pub(super) fn next(&mut self, view: &TermView) -> Option<TickerStep> {
        let may_go_on = match self.doing {
            Doing::Steps => true,
            Doing::Sleeps { wakes_to_drain } => wakes_to_drain && (view.is_draining || view.must_stop),
            Doing::WaitsForCertainty => !view.is_uncertain || view.is_draining || view.must_stop,
            Doing::WaitsForAppend => matches!(self.append, Some((_, Some(_))) | None),
            Doing::Waits(_) | Doing::Works | Doing::Ended => false,
        };
        if !may_go_on {
            return None;
        }
        if self.doing == Doing::WaitsForAppend {
            let outcome = self.append.take().and_then(|(_, reply)| reply).unwrap_or(WriteOutcome::Unknown);
            self.ticker.appended(outcome);
        }
        self.doing = Doing::Steps;
        Some(self.ticker.next(view))
    }
}

/// What the worker sees of its term.
pub(super) fn view(
    now: Moment,
    store_now: ServerTime,
    deadline: Moment,
    permission: Permission,
    is_draining: bool,
    stop_budget: Duration,
) -> TermView {
    TermView {
        now: store_now,
        remaining: deadline.since(now),
        is_uncertain: matches!(permission, Permission::HoldStarts { .. }),
        is_draining,
        must_stop: !matches!(permission, Permission::MayStart { .. } | Permission::HoldStarts { .. })
            || deadline.since(now) <= stop_budget,
        is_over: false,
    }
}

/// What a write under a term came to.
pub(super) fn write_outcome(outcome: &Outcome) -> WriteOutcome {
    match outcome {
        Outcome::Answered(Reply::Done) => WriteOutcome::Done,
        Outcome::Answered(Reply::Refused(_)) => WriteOutcome::Refused,
        Outcome::Answered(_) => WriteOutcome::Failed,
        Outcome::Failed(_) | Outcome::Unknown(_) => WriteOutcome::Unknown,
    }
}

/// Why a worker is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum WorkerTimer {
    Slept,
    Completed,
    Panicked,
}

/// What a worker has asked the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerCall {
    ReadMark,
    Write,
    Append,
}
