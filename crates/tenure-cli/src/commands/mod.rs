//! One file for each command that asks and answers.

pub mod leader;
pub mod revoke;
pub mod step_down;
pub mod watch;
