//! A pool: many targets, each a lease, shared out over a fleet.
//!
//! [`Engine`] decides, without I/O; all else drives it.

mod engine;

pub use engine::{Action, Engine, EngineSettings, Input, Target};
