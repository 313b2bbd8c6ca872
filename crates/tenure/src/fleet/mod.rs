//! The fleet: every instance says now and then that it lives, and what it holds.
//!
//! A heartbeat is `poll:node:<instance>` = `1` with a ttl, so that other programs can read it; [what the instance says about
//! itself](InstanceRecord) stands beside it. Whoever reads them keeps a [roll](Roll), which knows who counts as alive for
//! [placement](crate::placement). Nothing depends on it but who asks for what, and when: only the lease decides who may act.

mod conduct;
#[cfg(feature = "keeper")]
mod joining;
mod record;
mod roll;
mod told;

pub use conduct::Conduct;
#[cfg(feature = "keeper")]
pub use joining::Announcements;
#[cfg(feature = "keeper")]
pub(crate) use joining::DRAINING;
pub use record::{HeldBack, InstanceRecord, Status};
pub use roll::{Roll, RollCall, Seen};
pub use told::FleetEvent;
