//! The decisions of [Tenure](https://docs.rs/tenure), and nothing that waits.
//!
//! Everything here is a value or a state machine. A state machine takes an input, the time and, if it needs one, a source
//! of randomness, and returns what to do. It performs no I/O, reads no clock and starts no task. `tenure` executes what it
//! returns in a program, `tenure-sim` in a simulated world.
//!
//! Programs use `tenure`, which re-exports what they need. This crate makes no promise of its own about compatibility.

pub mod backoff;
pub mod election;
pub mod ending;
pub mod event;
pub mod fleet;
pub mod histogram;
pub mod json;
pub mod lease;
pub mod ledger;
pub mod manager;
pub mod mutation;
pub mod name;
pub mod placement;
pub mod pool;
pub mod schedule;
pub mod store;
pub mod time;
pub mod token;

pub use event::{ElectionState, Event, EventKind, Level, ProgramEvent};
pub use name::{Group, InstanceId, LeaseKind, LeaseName, LeaseRef, MAX_NAME_LENGTH, NameError};
pub use token::{Nonce, Token};
