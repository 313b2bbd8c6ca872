//! The fleet: every instance says now and then that it lives, and what it holds.
//!
//! A heartbeat is `poll:node:<instance>` = `1` with a ttl, so that other programs can read it; [what the instance says about
//! itself](InstanceRecord) stands beside it. Whoever reads them keeps a [liveness](Liveness), which knows who counts as alive for
//! [placement](crate::placement). Nothing depends on it but who asks for what, and when: only the lease decides who may act.

mod crash_history;
mod event;
#[cfg(feature = "keeper")]
mod joining;
mod liveness;
mod record;

pub use crash_history::CrashHistory;
pub use event::FleetEvent;
#[cfg(feature = "keeper")]
pub use joining::Announcements;
#[cfg(feature = "keeper")]
pub(crate) use joining::DRAINING_INDEX;
pub use liveness::{InstanceLiveness, Liveness, MembershipDelta};
pub use record::{CrashBackoff, InstanceRecord, InstanceStatus};
