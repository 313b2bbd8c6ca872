//! The lease machine, one behaviour at a time: what goes in, what comes out, and nothing else.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod acquire;
mod harness;
mod properties;
mod release;
mod term;
