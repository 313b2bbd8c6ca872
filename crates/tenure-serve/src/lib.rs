//! The polling service behind `tenure serve`: sessions in the store, each polled over HTTP by exactly one instance of a
//! fleet.

mod api;
pub mod counters;
pub mod event_stream;
pub mod events;
pub mod housekeeping;
pub mod instances;
pub mod keys;
mod listener;
mod metrics;
pub mod ownership;
pub mod poll;
pub mod poll_stats;
pub mod result_settings;
pub mod results;
mod service;
pub mod session;
pub mod session_cache;
pub mod session_repo;
pub mod status;

pub use api::{ApiToken, quarantine_json};
pub use service::{POOL, RunningService, ServeError, ServiceSettings, check, start};
