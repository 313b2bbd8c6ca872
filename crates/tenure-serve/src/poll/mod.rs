//! Polling: what is asked of a target, and what comes of it.

pub mod ability;
pub mod budget;
pub mod client;
pub mod lookup;
pub mod pace;
pub mod poller;
mod resolver;
pub mod result;
pub mod safety;
pub mod supervisor;
