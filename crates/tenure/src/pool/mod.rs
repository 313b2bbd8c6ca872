//! A pool: many targets, each a lease, distributed over a fleet. Exactly one instance holds each target. Placement is
//! even, and as few targets as possible move when instances join and leave.
//!
//! [`Engine`] decides, without I/O; all other code drives it.

#[cfg(feature = "keeper")]
mod builder;
#[cfg(feature = "keeper")]
mod driver;
mod due;
mod engine;
#[cfg(feature = "keeper")]
mod handle;
#[cfg(feature = "keeper")]
mod histograms;
mod io;
#[cfg(feature = "keeper")]
mod mark;
mod membership;
#[cfg(feature = "keeper")]
mod naming;
#[cfg(feature = "keeper")]
mod outcome;
#[cfg(feature = "keeper")]
mod reconciler;
#[cfg(feature = "keeper")]
mod source;
mod status;
mod table;
#[cfg(feature = "keeper")]
mod ticks;
#[cfg(feature = "keeper")]
mod worker;

pub use due::{last_tick, next_due, phase};
pub use engine::Engine;
pub use io::{EngineSettings, PoolAction, PoolInput, Target, release_reason};
pub use status::{PoolStatus, TargetStatus};

#[cfg(feature = "keeper")]
pub use self::{
    builder::{PoolBuilder, PoolError, ReadyPool},
    handle::Pool,
    handle::PoolEvents,
    histograms::PoolHistograms,
    source::Sessions,
    ticks::{Tick, Ticks},
};
#[cfg(feature = "keeper")]
use builder::PoolSettings;
#[cfg(feature = "keeper")]
pub use outcome::{StopReport, TargetError, TargetInfo};
