//! Schedules: when a leader's work is due, and which run comes next.

mod plan;
mod slots;

pub use plan::{CatchUp, NextRun, Policy, ScheduleRecord, Unfinished, next_run};
pub use slots::{Schedule, ScheduleError};
