//! The program `tenure`, as its users run it: real processes on a real store.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod ask;
mod contract;
mod guard;
mod quarantine;
mod run;
mod serve;
mod stage;
mod storm;
mod usage;
