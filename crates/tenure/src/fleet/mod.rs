//! The fleet: every instance sends heartbeats that say it is alive and what it holds.
//!
//! A heartbeat is `poll:node:<instance>` = `1` with a ttl, so that other programs can read it. The
//! [record](InstanceRecord) of the instance is stored beside it. Heartbeats decide only which instance claims which
//! target, and when: only the lease decides which instance may work.

mod crash_history;
mod event;
mod handle;
mod liveness;
mod record;

#[doc(hidden)]
pub use crash_history::CrashHistory;
pub use event::FleetEvent;
pub(crate) use handle::DRAINING_INDEX;
pub use handle::{Announcements, Fleet};
#[doc(hidden)]
pub use liveness::{InstanceLiveness, Liveness, MembershipDelta};
pub use record::{CrashBackoff, InstanceRecord, InstanceStatus};
