//! Polling of targets, and the results.

pub mod ability;
pub mod ability_monitor;
pub mod address_policy;
pub mod backoff;
pub mod budget;
pub mod client;
pub mod lookup;
pub mod poller;
mod resolver;
pub mod result;
