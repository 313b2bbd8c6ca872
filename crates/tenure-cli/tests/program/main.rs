//! The program `tenure`, as its users run it: real processes on a real store.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod commands;
mod contract;
mod guardian;
mod harness;
mod quarantine;
mod run;
mod serve;
mod storm;
mod usage;
