//! Tenure on real stores under faults. The work under each term records itself, and the tests check that record.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod access;
mod bad_keys;
mod basics;
mod blocking;
mod clock;
mod data_loss;
mod elections;
mod failover;
mod faulty_stores;
mod harness;
mod link;
#[cfg(feature = "macros")]
mod processes;
mod schedules;
#[cfg(feature = "sqlite")]
mod sqlite;
mod stalls;
