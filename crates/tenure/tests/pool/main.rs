//! Pools on real stores: who holds what, judged by what the work writes down itself.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod asked;
mod everyday;
mod fleet;
mod neighbour;
mod processes;
mod promises;
mod scenes;
mod stage;
