//! Pools on real stores: who holds what, judged by what the work writes down itself.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod api;
mod everyday;
mod fleet;
mod foreign;
mod harness;
mod processes;
mod promises;
mod scenarios;
