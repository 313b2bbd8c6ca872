//! The conformance suite, on every store.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod memory;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;
