//! One leader per role and one holder per target, on the store you already run.
//!
//! A *lease* is a name, a holder, a time to live and a [token](Token) that only ever grows. A *term* is one holding of
//! it, from grant to end. A holder may act while its term lasts. It stops before the lease can have another holder.
//!
//! # Guarantees and limits
//!
//! A term may be relied on until its deadline, which is counted from when the request was *sent*, on
//! a clock that [counts suspend](time). Work is cancelled a stop budget before that, so a holder that is cut off, or
//! whose store stalls, has stopped before another can begin. The store refuses a publication, renewal or release whose
//! term is over, by holder *and* token.
//!
//! The lease alone does not cover work that does not yield, a request that was already on the wire when the process was
//! stopped, or a machine whose every clock was frozen. The token covers these: pass it on and refuse smaller ones.
//!
//! # Contents
//!
#![cfg_attr(
    feature = "memory",
    doc = "```
use tenure::{Tenure, Token};

# async fn build_report(token: Token) -> std::io::Result<String> { Ok(format!(\"report {token}\")) }
# tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
let tenure = Tenure::connect(\"memory:\").await?; // or \"redis://localhost\", or \"sqlite:jobs.db\"
let lease = tenure.lease(\"nightly-report\").acquire().await?;
let outcome = lease.run(build_report(lease.token())).await; // Ok(report), or Err: lost, or failed by itself
lease.release().await?;
# outcome?;
# Ok::<(), Box<dyn std::error::Error>>(()) })?;
# Ok::<(), Box<dyn std::error::Error>>(())
```
"
)]
//! | module | contents |
//! |---|---|
//! | [`Tenure`] | the entry point: leases on one store, for one process |
//! | [`election`] | one leader per role, term after term |
//! | [`pool`] | many targets, distributed over a fleet |
//! | [`fleet`] | membership: which instances are alive |
//! | [`schedule`] | schedules that a leader runs and that outlive it |
//! | [`lease`] | settings of a lease, its state, and how a term ends |
//! | [`time`] | the lease clock and deadlines |
//! | [`histogram`] | durations, counted in buckets |
//! | [`store`] | the interface of a store, and the stores |
#![cfg_attr(feature = "tracing", doc = "| [`log`] | events as `tracing` events |")]
#![cfg_attr(feature = "testing", doc = "| [`testing`] | the conformance suite that every store runs |")]
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `redis` | yes | the stores `redis://` and `valkey://` |
//! | `memory` | yes | the store `memory:`, for tests |
//! | `macros` | yes | the attribute `#[leader_only]` |
//! | `tracing` | yes | events as `tracing` events |
//! | `sqlite` | | the store `sqlite:PATH`, a file for the processes of one host; builds C code |
//! | `tls` | | the stores `rediss://` and `valkeys://`; builds C code |
//! | `cron` | | schedules by cron expressions |
//! | `log` | | a `tracing` layer that writes events as lines of text or JSON |
//! | `testing` | | the conformance suite for stores |
//!
//! Decisions are pure and I/O is at the edge: state machines take a clock reading and an input and return actions. The
//! same code runs in a program and in the simulator. The state machines are in `tenure-core`.

pub mod election;
pub mod fleet;
mod instance;
mod keeper;
pub mod lease;
#[cfg(feature = "tracing")]
pub mod log;
pub mod pool;
pub mod schedule;
pub mod store;
mod tenure;
#[cfg(feature = "testing")]
pub mod testing;
pub mod time;

#[doc(inline)]
pub use tenure_core::histogram;
#[cfg(feature = "mutations")]
#[doc(hidden)]
pub use tenure_core::mutation;
#[doc(hidden)]
pub use tenure_core::placement;
use tenure_core::{event, json, name, token};

pub use crate::tenure::{
    Admin, ConnectError, DocumentError, Documents, EventStream, LeaseBuilder, LogFollower, Lost, PublishError,
    ReleaseError, RequestError, RequireError, RunError, Stats, Tenure, TenureBuilder, Term, TermHandle, TermInfo, Work,
    WorkError,
};
pub use election::{Election, install};
pub use fleet::Fleet;
pub use keeper::AcquireError;
pub use pool::Pool;

#[doc(inline)]
pub use event::{ElectionState, Event, EventKind, Level, ProgramEvent};
#[doc(inline)]
pub use name::{Group, InstanceId, LeaseKind, LeaseName, LeaseRef, MAX_NAME_LENGTH, NameError};
#[doc(inline)]
pub use token::{Nonce, Token};

/// Runs an `async fn` only on the leader of a role: `#[leader_only("aggregation")]`.
///
/// The function then returns an `Option`. It is `None` when another instance leads, when the store cannot be reached,
/// and when leadership was lost before the function ended. With `error`, as in `#[leader_only("aggregation", error)]`,
/// it returns a `Result` with [`LeaderOnlyError`](election::LeaderOnlyError), which tells these apart. See
/// [`Tenure::run_as_leader`] for how the leader is determined.
///
/// The function uses the first of these:
///
/// 1. `tenure = expression`, as in `#[leader_only("aggregation", tenure = self.tenure)]`,
/// 2. its parameter with the name `tenure`,
/// 3. the `Tenure` that the program has [installed](install). Without one, the work does not begin, which is logged as
///    an error.
///
/// A parameter `term: TermHandle` is filled in by the attribute: callers leave it out. It has the token, which belongs to
/// every write. `ttl = expression` sets the ttl of a leadership that the call acquires, instead of 30 s.
///
/// ```
/// use std::time::Duration;
/// use tenure::{Tenure, TermHandle, leader_only};
///
/// #[leader_only("aggregation", ttl = Duration::from_secs(10))]
/// async fn aggregate(tenure: &Tenure, numbers: &[u32], term: TermHandle) -> u32 {
///     println!("aggregating under {}", term.token());
///     numbers.iter().sum()
/// }
///
/// struct Worker {
///     tenure: Tenure,
/// }
///
/// impl Worker {
///     #[leader_only("clean-up", tenure = self.tenure, error)]
///     async fn clean_up(&self) -> &'static str {
///         "clean"
///     }
/// }
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// assert_eq!(aggregate(&tenure, &[1, 2, 3]).await, Some(6));
/// assert_eq!(Worker { tenure }.clean_up().await?, "clean");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "macros")]
pub use tenure_macros::leader_only;

/// Compiles and runs the README's examples.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Compiles and runs the examples of the guides.
#[cfg(all(doctest, feature = "macros", feature = "memory"))]
#[doc = include_str!("../../../docs/elections.md")]
struct Elections;

#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../../docs/pools.md")]
struct Pools;

#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../../docs/leases.md")]
struct Leases;
