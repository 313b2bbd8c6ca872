//! Pools on real stores. The work records itself, and the tests check that record.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod api;
mod everyday;
mod fleet;
mod foreign;
mod harness;
mod processes;
mod promises;
mod scenarios;
