//! The polling service behind `tenure serve`: sessions in the store, each polled over HTTP by exactly one instance of a fleet.

mod api;
pub mod catalogue;
pub mod counts;
pub mod editing;
pub mod events;
pub mod holdings;
pub mod housekeeping;
pub mod instances;
pub mod keeping;
pub mod keys;
mod listener;
mod metrics;
pub mod poll;
pub mod results;
mod service;
pub mod session;
pub mod tally;

pub use api::{ApiToken, shown_quarantine};
pub use service::{POOL, Running, ServeError, Settings, check, start};
