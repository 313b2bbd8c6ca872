//! Work that runs under a lease: a unit at a time, acting again and again, looking at its guard before each action.

use tenure::Token;
use tenure::time::Moment;

/// One unit of work.
#[derive(Debug)]
pub struct SimWork {
    /// Which unit; timers of earlier ones are out of date.
    pub number: u64,
    /// The term it runs in.
    pub token: Token,
    /// When it is done.
    pub done_at: Moment,
    /// Whether it ignores being cancelled and has to be dropped.
    pub ignores_cancel: bool,
    /// When it has to be gone, once it was cancelled.
    pub gone_by: Option<Moment>,
    /// Whether its process was stopped between a check that passed and the action.
    pub check_passed: bool,
}
