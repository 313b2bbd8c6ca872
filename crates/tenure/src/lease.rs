//! Settings of a lease, its state, and how a term ends.
//!
//! ```
//! use std::time::Duration;
//! use tenure::Tenure;
//! use tenure::lease::{Ending, LeaseSettings, LeaseState, ReleaseReason};
//!
//! # #[cfg(feature = "memory")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let tenure = Tenure::connect("memory:").await?;
//! let settings = LeaseSettings::builder().ttl(Duration::from_secs(60)).build()?;
//! let lease = tenure.lease("import").settings(settings).acquire().await?;
//! let handle = (*lease).clone();
//! assert_eq!(handle.state(), LeaseState::Owned);
//! lease.release().await?;
//! assert_eq!(handle.cancelled().await, Ending::Released(ReleaseReason::Voluntary));
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[doc(inline)]
pub use tenure_core::ending::{Ending, Loss, ReleaseReason};
pub(crate) use tenure_core::lease::{AcquireStatus, Intent, Permission};
#[doc(inline)]
pub use tenure_core::lease::{LeaseSettings, LeaseSettingsBuilder, LeaseState, SettingsError};
