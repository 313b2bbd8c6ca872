//! Pools: which targets an instance claims, keeps and hands over, and when their work is due.

mod due;
mod engine;
mod index;
mod io;
mod manager;
mod manager_io;
mod mark;
mod membership;
mod move_timer;
mod naming;
mod queries;
mod status;
mod table;
mod ticker;

pub use due::{last_tick, next_due, phase};
pub use engine::Engine;
pub use index::{MOVE_RECORD, held_index, holders_index};
pub use io::{EngineSettings, PoolAction, PoolInput, TargetName, release_reason};
pub use manager::{PoolConfig, PoolManager};
pub use manager_io::{PoolOutput, QueryId, TargetError, WorkerCommand};
pub use mark::Mark;
pub use naming::Naming;
pub use status::{PoolStatus, TargetStatus};
pub use ticker::{TermView, Ticker, TickerStep, WriteOutcome};
