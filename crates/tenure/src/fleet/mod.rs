//! The fleet: every instance sends heartbeats that say it is alive and what it holds.
//!
//! A heartbeat is `poll:node:<instance>` = `1` with a ttl, so that other programs can read it. The
//! [record](InstanceRecord) of the instance is stored beside it. Heartbeats decide only which instance claims which
//! target, and when: only the lease decides which instance may work.
//!
//! ```
//! use tenure::Tenure;
//! use tenure::fleet::InstanceRecord;
//!
//! # #[cfg(feature = "memory")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let tenure = Tenure::builder("memory:").name("api-1").connect().await?;
//! tenure.fleet().join(&InstanceRecord::new("api-1", std::time::SystemTime::now())); // a pool joins by itself
//! # while tenure.fleet().instances().await?.is_empty() {
//! #     tokio::time::sleep(std::time::Duration::from_millis(5)).await;
//! # }
//! for live in tenure.fleet().instances().await? {
//!     match InstanceRecord::decode(&live.record) {
//!         Some(record) => println!("{} is {} and holds {:?}", live.instance, record.status.as_str(), record.held),
//!         None => println!("{} does not use Tenure", live.instance),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod handle;

pub use handle::{Announcements, Fleet};
pub(crate) use tenure_core::fleet::DRAINING_INDEX;
#[doc(inline)]
pub use tenure_core::fleet::{CrashBackoff, FleetEvent, InstanceRecord, InstanceStatus};
