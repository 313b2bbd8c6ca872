//! A pool: many targets, each a lease, distributed over a fleet. Exactly one instance holds each target. Placement is
//! even, and as few targets as possible move when instances join and leave.
//!
//! [`Tenure::pool`](crate::Tenure::pool) sets one up. Its decisions are in `tenure-core`; this module executes them.
//!
//! ```
//! use std::time::Duration;
//! use tenure::Tenure;
//!
//! # #[cfg(feature = "memory")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let tenure = Tenure::connect("memory:").await?;
//! let pool = tenure
//!     .pool("poll")
//!     .targets(["eu-1", "us-1"])
//!     .run(async |target, term| {
//!         while term.wait(Duration::from_secs(5)).await { // false when the target is to move
//!             println!("polling {target} under token {}", term.token());
//!         }
//!         Ok(())
//!     })
//!     .start()?;
//! pool.stop().await;
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod builder;
mod driver;
mod handle;
mod outcome;
mod reconciler;
mod source;
mod stats;
mod target;
mod ticks;
mod worker;

pub(crate) use tenure_core::pool::{EngineSettings, Naming};
#[doc(inline)]
pub use tenure_core::pool::{PoolStatus, TargetError, TargetName, TargetStatus};

pub use self::{
    builder::{NoState, PoolBuilder, PoolError, ReadyPool, WithState},
    handle::Pool,
    source::DocumentIds,
    stats::PoolStats,
    target::{IntoTarget, Target},
    ticks::{Tick, Ticks},
};
#[doc(inline)]
pub use crate::placement::{Move, MoveReason};
use builder::PoolSettings;
pub use outcome::{StopReport, TargetInfo};
