//! The contract of Tenure, line by line: flags, settings, exit codes, fields, events, metrics and headers, read from
//! outside.
//!
//! Each table lists what people and programs rely on, so that a missing line fails a test.

mod documentation;
mod events;
mod flags;
mod library;
mod logs;
mod metrics;
