//! The fleet: what an instance says about itself, and which instances count as alive.

mod crash_history;
mod event;
mod liveness;
mod record;

pub use crash_history::CrashHistory;
pub use event::FleetEvent;
pub use liveness::{InstanceLiveness, Liveness, MembershipDelta};
pub use record::{CrashBackoff, InstanceRecord, InstanceStatus};

/// The index of instances that are asked to drain.
pub const DRAINING_INDEX: &str = "draining";
