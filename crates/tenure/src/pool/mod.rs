//! A pool: many targets, each a lease, shared out over a fleet. Every target is held by exactly one instance, evenly, and as few
//! as possible move when instances come and go.
//!
//! [`Engine`] decides, without I/O; all else drives it.

#[cfg(feature = "keeper")]
mod builder;
mod company;
#[cfg(feature = "keeper")]
mod driver;
mod due;
mod engine;
#[cfg(feature = "keeper")]
mod handle;
#[cfg(feature = "keeper")]
mod mark;
#[cfg(feature = "keeper")]
mod meters;
#[cfg(feature = "keeper")]
mod naming;
#[cfg(feature = "keeper")]
mod outcome;
#[cfg(feature = "keeper")]
mod scout;
#[cfg(feature = "keeper")]
mod seat;
mod signal;
#[cfg(feature = "keeper")]
mod source;
mod survey;
mod table;
#[cfg(feature = "keeper")]
mod ticks;

pub use due::{last_tick, next_due, phase};
pub use engine::Engine;
pub use signal::{Action, EngineSettings, Input, Target, released_because};
pub use survey::{Outlook, Overview};

#[cfg(feature = "keeper")]
pub use self::{
    builder::{PoolBuilder, PoolError, ReadyPool},
    handle::Pool,
    handle::PoolEvents,
    meters::PoolMeters,
    source::Sessions,
    ticks::{Tick, Ticks},
};
#[cfg(feature = "keeper")]
use builder::PoolSettings;
#[cfg(feature = "keeper")]
pub use outcome::{StopReport, TargetError, TargetInfo};
