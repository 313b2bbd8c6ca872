//! Polling: what is asked of a target, and what comes of it.

pub mod client;
pub mod lookup;
pub mod pace;
pub mod poller;
pub mod result;
pub mod safety;
