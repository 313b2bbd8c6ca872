//! What a store's author provides: the store, its clock, and its faults.

use std::sync::Arc;
use std::time::Duration;

use crate::name::LeaseName;
use crate::store::{BoxFuture, Store};
use crate::token::Token;

/// A store under test: empty, in a namespace of its own.
///
/// It lasts for one case. Everything it needs, a server process or a temporary file, ends when it is dropped.
///
/// ```
/// # #[cfg(feature = "memory")] {
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tenure::store::memory::MemoryStore;
/// use tenure::store::{BoxFuture, Store};
/// use tenure::testing::{FaultInjection, StoreFault, StoreFixture};
/// use tenure::time::ManualClock;
///
/// struct Mine {
///     clock: Arc<ManualClock>,
///     store: MemoryStore,
/// }
///
/// impl StoreFixture for Mine {
///     fn store(&self) -> Arc<dyn Store> {
///         Arc::new(self.store.clone())
///     }
///
///     fn advance_time(&self, span: Duration) -> BoxFuture<'_, ()> {
///         self.clock.advance(span);
///         Box::pin(std::future::ready(()))
///     }
///
///     fn inject(&self, _: StoreFault) -> BoxFuture<'_, FaultInjection> {
///         Box::pin(std::future::ready(FaultInjection::Unsupported))
///     }
/// }
///
/// tenure::testing::run_case("a_lease_is_free_once_its_ttl_has_passed", || async {
///     let clock = Arc::new(ManualClock::default());
///     Mine { store: MemoryStore::with_clock(clock.clone()), clock }
/// });
/// # }
/// ```
pub trait StoreFixture: Send + Sync {
    /// The store. Called again after every fault, so it may return another value then.
    fn store(&self) -> Arc<dyn Store>;

    /// Lets at least this much of the store's time pass. For a real store it sleeps.
    fn advance_time(&self, span: Duration) -> BoxFuture<'_, ()>;

    /// Injects a fault. When the future completes, the fault has happened and a client can attach again.
    fn inject(&self, fault: StoreFault) -> BoxFuture<'_, FaultInjection>;

    /// Whether the store can detect subscribers of a namespace that has no record. With a store that cannot, the
    /// operator must state that a namespace is new.
    fn can_count_subscribers(&self) -> bool {
        true
    }

    /// Whether the store knows after a [flush](StoreFault::Flush) that it has served the namespace.
    fn remembers_served_namespaces(&self) -> bool {
        true
    }
}

/// A fault of real stores.
///
/// ```
/// # #[cfg(feature = "memory")] {
/// use tenure::store::memory::{MemoryStore, Survival};
/// use tenure::testing::{FaultInjection, StoreFault};
///
/// /// The faults that a fixture supports: more faults check more cases.
/// fn inject(store: &MemoryStore, fault: StoreFault) -> FaultInjection {
///     match fault {
///         StoreFault::Flush => store.faults().flush(),
///         StoreFault::Restart => store.faults().restart(Survival::All),
///         StoreFault::DeleteLease { name } => store.faults().delete_foreign(&name),
///         _ => return FaultInjection::Unsupported,
///     }
///     FaultInjection::Injected
/// }
///
/// assert_eq!(inject(&MemoryStore::default(), StoreFault::Flush), FaultInjection::Injected);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreFault {
    /// Everything is deleted; the server keeps running and connections stay.
    Flush,
    /// The server is restarted: a new run, all data kept, every connection closed.
    Restart,
    /// The server is restarted without its data. Its uptime counts from now: a store without a server has no uptime and
    /// does not support this.
    RestartEmpty,
    /// All data is copied, to be restored later.
    TakeSnapshot,
    /// The snapshot replaces the present data; the server keeps running and connections stay.
    RestoreSnapshot,
    /// The server is restarted with the snapshot.
    RestartFromSnapshot,
    /// Every connection is closed; the server keeps running.
    CutConnections,
    /// A foreign program writes a lease, over any present one: the holder and perhaps a ttl, nothing else.
    WriteForeignLease {
        /// Which lease.
        name: LeaseName,
        /// The holder. Not necessarily a valid instance id.
        holder: String,
        /// The ttl. `None`: it never expires.
        ttl: Option<Duration>,
    },
    /// A foreign program deletes a lease and nothing else.
    DeleteLease {
        /// Which lease.
        name: LeaseName,
    },
    /// A foreign program overwrites the token in the record of a lease's last term.
    CorruptToken {
        /// Which lease. It has such a record.
        name: LeaseName,
        /// The token.
        token: Token,
    },
    /// The snapshot replaces the present data by way of another server, whose replica this one becomes for a moment; it
    /// keeps running. Connections may stay.
    ReplaceData,
    /// The server's clock is set back.
    StepClockBack(Duration),
    /// The server's clock is set ahead.
    StepClockForward(Duration),
    /// The server's reported uptime is at least this long, with nothing lost. For a real server, the fixture waits; a
    /// store without a server is always that old.
    AgeServer(Duration),
}

/// The result of injecting a fault.
///
/// ```
/// use std::process::Command;
/// use tenure::testing::FaultInjection;
///
/// fn restart_server(server: Option<&str>) -> FaultInjection {
///     let Some(server) = server else { return FaultInjection::Unsupported }; // a server that others use
///     # let _ = || {
///     assert!(Command::new("docker").args(["restart", server]).status().is_ok_and(|status| status.success()));
///     # };
///     FaultInjection::Injected
/// }
///
/// assert_eq!(restart_server(None), FaultInjection::Unsupported);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultInjection {
    /// The fault has happened.
    Injected,
    /// This fixture does not support the fault. The case is not checked, and reports that.
    Unsupported,
}
