//! One file for each command that reads or changes the store and exits.

pub mod drain;
pub mod leader;
pub mod reopen;
pub mod revoke;
pub mod role;
pub mod session;
pub mod status;
pub mod step_down;
pub mod watch;
