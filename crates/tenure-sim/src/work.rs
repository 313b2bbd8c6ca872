//! Work that runs under a lease: one unit at a time, which acts repeatedly and checks its guard before each action.

use tenure_core::Token;
use tenure_core::time::Moment;

/// One unit of work.
#[derive(Debug)]
pub struct SimWork {
    /// Number of the unit. Timers of earlier units are stale.
    pub number: u64,
    /// The term that it runs in.
    pub token: Token,
    /// When it is done.
    pub done_at: Moment,
    /// Whether it ignores cancellation and must be dropped.
    pub ignores_cancel: bool,
    /// Time by which it must have ended, once it was cancelled.
    pub gone_by: Option<Moment>,
    /// Whether its process was stopped between a check that passed and the action.
    pub check_passed: bool,
}
