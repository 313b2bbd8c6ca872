//! One leader per role and one holder per target, on the store you already run.
//!
//! A *lease* is a name, a holder, a time to live and a [token](Token) that only ever grows. A *term* is one holding of
//! it, from grant to goodbye. While its term lasts a holder may act; before the lease can be anybody else's, it has
//! stopped.
//!
//! # What is promised, and what is not
//!
//! A term may be relied on until its [deadline](time::deadline), which is counted from when the request was *sent* on a
//! clock that [counts suspend](time). Work is cancelled a stop budget before that, so a holder that is cut off, or
//! whose store stalls, is done before another can begin. A publication, renewal or release whose term is over is
//! refused by the store, by holder *and* token.
//!
//! Not covered by the lease alone: work that does not yield; a request that was already on the wire when the process
//! was stopped; a machine whose every clock was frozen. For these there is the token: pass it on and refuse smaller
//! ones.
//!
//! # What is here
//!
#![cfg_attr(
    all(feature = "keeper", feature = "memory"),
    doc = "```
use tenure::Tenure;

# tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
let tenure = Tenure::connect(\"memory:\").await?; // or \"redis://localhost\", or \"sqlite:jobs.db\"
let lease = tenure.lease(\"nightly-report\").acquire().await?;
let outcome = lease.run(async { /* the work */ }).await; // dropped before the lease can be anyone else's
lease.release().await?;
# outcome?;
# Ok::<(), Box<dyn std::error::Error>>(()) })?;
# Ok::<(), Box<dyn std::error::Error>>(())
```
"
)]
//! | module | what it is |
//! |---|---|
//! | `Tenure` | the front door: leases on one store, for one process |
//! | [`election`] | one leader per role, term after term |
//! | [`pool`] | many targets, shared out over a fleet |
//! | [`fleet`] | who is alive |
//! | [`placement`] | who should hold what: pure functions |
#![cfg_attr(feature = "keeper", doc = "| [`schedule`] | schedules that a leader keeps, and that outlive it |")]
//! | [`lease`] | the life of one term: a state machine without I/O, clock or async |
//! | [`time`] | the lease clock and deadlines |
//! | [`histogram`] | how long things take, counted in steps |
//! | [`store`] | what a store must do, and the stores |
#![cfg_attr(feature = "tracing", doc = "| [`log`] | events as `tracing` events |")]
#![cfg_attr(feature = "testing", doc = "| [`testing`] | the conformance suite that every store runs |")]
//!
//! Features, all by default but the last four: `keeper` is `Tenure`, the thread behind it and the guards it
//! hands out; `macros` is `#[leader_only]`; `memory`, `redis` and `sqlite` are the stores; `tracing` makes events `tracing` events. `cron` adds schedules by
//! cron expressions; `log` adds a layer that
//! writes them as lines; `testing` is the conformance suite; `mutations` is for Tenure's own tests of its tests. Without any
//! there is no async runtime in the tree.
//!
//! Decisions are pure and I/O is at the edge: [`lease::Lease::step`] takes a reading of the clock and an input and returns
//! actions. The same code runs in a program and in the simulator.

pub mod election;
mod event;
pub mod fleet;
pub mod histogram;
#[cfg(feature = "keeper")]
mod keeper;
pub mod lease;
#[cfg(feature = "tracing")]
pub mod log;
#[doc(hidden)]
pub mod mutation;
mod name;
pub mod placement;
pub mod pool;
#[cfg(feature = "keeper")]
pub mod schedule;
pub mod store;
#[cfg(feature = "keeper")]
mod tenure;
#[cfg(feature = "testing")]
pub mod testing;
pub mod time;
mod token;

#[cfg(feature = "keeper")]
pub use crate::tenure::{
    EventStream, LeaseRequest, Lost, PublishError, RequireError, SessionError, Stats, Tenure, TenureBuilder, Term,
    TermHandle, TermInfo, Work,
};
#[cfg(feature = "keeper")]
pub use election::{Election, install, installed};
#[cfg(feature = "keeper")]
pub use keeper::AcquireError;

pub use event::{ElectionState, Event, EventKind, Level};
pub use name::{Group, InstanceId, LeaseKind, LeaseName, MAX_NAME_LENGTH, NameError};
pub use token::{Nonce, Token};

/// Leaves an `async fn` to the leader of a role: `#[leader_only("aggregation")]`.
///
/// The function returns an `Option` then: `None` when somebody else leads, when the store cannot be asked, and when the
/// leadership was lost before the end. With `error`, as in `#[leader_only("aggregation", error)]`, it returns a `Result` with
/// [`LeaderOnlyError`](election::LeaderOnlyError), which says which. It goes by the store that was [installed](install), or by
/// `store = expression`; see [`Tenure::run_as_leader`] for what decides who leads.
///
/// ```
/// use tenure::{Tenure, leader_only};
///
/// #[leader_only("aggregation")]
/// async fn aggregate(numbers: &[u32]) -> u32 {
///     numbers.iter().sum()
/// }
///
/// struct Worker {
///     tenure: Tenure,
/// }
///
/// impl Worker {
///     #[leader_only("clean-up", store = self.tenure, error)]
///     async fn clean_up(&self) -> &'static str {
///         "clean"
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// tenure::install(tenure.clone());
/// assert_eq!(aggregate(&[1, 2, 3]).await, Some(6));
/// assert_eq!(Worker { tenure }.clean_up().await?, "clean");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "macros")]
pub use tenure_macros::leader_only;

/// The README's examples compile and run.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// And the guides'.
#[cfg(all(doctest, feature = "macros", feature = "memory"))]
#[doc = include_str!("../../../docs/elections.md")]
struct Elections;

#[cfg(all(doctest, feature = "keeper", feature = "memory"))]
#[doc = include_str!("../../../docs/pools.md")]
struct Pools;
