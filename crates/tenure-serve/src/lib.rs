//! The polling service behind `tenure serve`: sessions in the store, each polled over HTTP by exactly one instance of a fleet.

mod api;
pub mod catalogue;
pub mod counts;
pub mod editing;
pub mod holdings;
pub mod poll;
mod service;
pub mod session;

pub use api::ApiToken;
pub use service::{POOL, Running, ServeError, Settings, start};
