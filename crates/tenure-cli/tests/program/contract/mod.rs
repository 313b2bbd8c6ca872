//! The outside of Tenure, line by line: flags, settings, exit codes, fields, events, metrics and headers, read from outside.
//!
//! Each table names what people and programs rely on. A line that goes missing is seen.

mod documentation;
mod events;
mod flags;
mod library;
mod logs;
mod metrics;
