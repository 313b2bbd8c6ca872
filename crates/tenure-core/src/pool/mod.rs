//! Pools: which targets an instance claims, keeps and hands over, and when their work is due.

mod due;
mod engine;
mod io;
mod mark;
mod membership;
mod status;
mod table;

pub use due::{last_tick, next_due, phase};
pub use engine::Engine;
pub use io::{EngineSettings, PoolAction, PoolInput, TargetName, release_reason};
pub use mark::Mark;
pub use membership::HAND_BACK_WINDOW;
pub use status::{PoolStatus, TargetStatus};
