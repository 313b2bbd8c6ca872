//! Tests of the lease machine, one behaviour at a time, by its inputs and actions only.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod acquire;
mod harness;
mod properties;
mod release;
mod term;
