//! The conformance suite: the required behaviour of every store, as cases that any store can run.
//!
//! The [ledger](crate::store::Ledger) defines the replies of a store; the cases hold a store to them. They cover
//! grants, renewals, releases, hand-overs, take-overs and revocations, late and repeated requests, lost and restored
//! data, hostile names and values, announcements, the fleet, and storms of concurrent requests.
//!
//! # Running it on your own store
//!
//! Write a [`StoreFixture`]: your store in an empty namespace, a way to let its time pass, and as many
//! [faults](StoreFault) as you can cause. Then name an async function that creates one:
//!
//! ```
//! # #[cfg(feature = "memory")]
//! # mod example {
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use tenure::store::memory::MemoryStore;
//! use tenure::store::{BoxFuture, Store};
//! use tenure::testing::{StoreFault, FaultInjection, StoreFixture};
//!
//! struct Mine {
//!     store: MemoryStore,
//! }
//!
//! impl StoreFixture for Mine {
//!     fn store(&self) -> Arc<dyn Store> {
//!         Arc::new(self.store.clone())
//!     }
//!
//!     fn advance_time(&self, span: Duration) -> BoxFuture<'_, ()> {
//!         Box::pin(tokio::time::sleep(span))
//!     }
//!
//!     fn inject(&self, fault: StoreFault) -> BoxFuture<'_, FaultInjection> {
//!         Box::pin(async move {
//!             match fault {
//!                 StoreFault::Flush => self.store.faults().flush(),
//!                 _ => return FaultInjection::Unsupported,
//!             }
//!             FaultInjection::Injected
//!         })
//!     }
//! }
//!
//! async fn mine() -> Mine {
//!     Mine { store: MemoryStore::default() }
//! }
//!
//! // One `#[test]` for each case.
//! tenure::conformance_tests!(mine);
//!
//! # pub fn main() {
//! // Or a single one, by name.
//! tenure::testing::run_case("a_free_lease_is_granted", mine);
//! # }
//! # }
//! # fn main() {
//! #     #[cfg(feature = "memory")]
//! #     example::main();
//! # }
//! ```
//!
//! Each case gets a fresh fixture and its own current-thread tokio runtime, so cases run in parallel and fail by name.
//! Put the macro into a module to run several stores side by side.
//!
//! A case whose fault is [unsupported](FaultInjection::Unsupported) checks nothing. It reports that in one line on the
//! standard error stream, past the capture of the test harness: look for `NOT CHECKED`. [`run_all`] returns the same as
//! a [`SuiteReport`].
//!
//! # What the suite does not do
//!
//! It requires no store to be fast. A lease that must still be held has a ttl of thirty seconds, one that must have
//! expired a fraction of a second. The suite never sleeps by itself; it asks the fixture to let time
//! [pass](StoreFixture::advance_time).
//!
//! It does not lose requests or replies on the network. A store with a network should be tested for that as well: a
//! request without a reply has an *unknown* outcome and must never be reported as failed.

#![expect(clippy::panic, reason = "a conformance case fails by panicking")]

mod cases;
mod client;
mod fixture;
mod harness;
mod run;
mod subscriber;

pub use cases::cases;
pub use fixture::{FaultInjection, StoreFault, StoreFixture};
pub use run::{Case, SuiteReport, Verdict, run_all, run_case};
