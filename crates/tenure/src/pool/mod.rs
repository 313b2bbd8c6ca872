//! A pool: many targets, each a lease, distributed over a fleet. Exactly one instance holds each target. Placement is
//! even, and as few targets as possible move when instances join and leave.
//!
//! [`Engine`] decides, without I/O; all other code drives it.

mod builder;
mod driver;
mod due;
mod engine;
mod handle;
mod io;
mod mark;
mod membership;
mod naming;
mod outcome;
mod reconciler;
mod source;
mod stats;
mod status;
mod table;
mod target;
mod ticks;
mod worker;

pub use due::{last_tick, next_due, phase};
pub use engine::Engine;
pub use io::{EngineSettings, PoolAction, PoolInput, TargetName, release_reason};
pub use status::{PoolStatus, TargetStatus};

pub use self::{
    builder::{NoState, WithState},
    builder::{PoolBuilder, PoolError, ReadyPool},
    handle::Pool,
    source::SessionIds,
    stats::PoolStats,
    target::{IntoTarget, Target},
    ticks::{Tick, Ticks},
};
use builder::PoolSettings;
pub use outcome::{StopReport, TargetError, TargetInfo};
