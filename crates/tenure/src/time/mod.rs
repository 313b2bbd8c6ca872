//! The lease clock and the arithmetic of deadlines.
//!
//! A lease is a promise about *elapsed* time, and the usual clocks measure it badly: `Instant` stands still while the
//! machine is suspended, and the wall clock can be set back. The [lease clock](LeaseClock) is the larger of two elapsed
//! times: boot time (which counts suspend) and forward wall time (which catches up after a snapshot or a paused virtual
//! machine). It can therefore run fast, which costs an early release, and never slow against both.
//!
//! Running fast is safe for one's own lease and dangerous when waiting for another holder's lease to end. The [steady
//! clock](SteadyMoment) is for that: it is boot time alone. A [reading](Now) has both.
//!
//! No clock on the machine can see a hypervisor that freezes the guest and does not correct its time. Only the token
//! covers that case.
//!
//! ```
//! use std::time::Duration;
//! use tenure::time::{LeaseClock, SystemClock};
//!
//! let deadline = SystemClock.now() + Duration::from_secs(30);
//! let remaining = deadline.since(SystemClock.now()); // counts the time that the machine is suspended
//! assert!(remaining <= Duration::from_secs(30));
//! ```

mod system;

pub use system::SystemClock;
use tenure_core::time::MergedClock;
#[doc(inline)]
pub use tenure_core::time::{ClockTolerance, LeaseClock, ManualClock, Moment, Now, ServerTime, SteadyMoment};
