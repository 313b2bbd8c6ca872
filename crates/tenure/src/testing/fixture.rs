//! What a store's author brings along: the store, its time, and what can be done to it.

use std::sync::Arc;
use std::time::Duration;

use crate::name::LeaseName;
use crate::store::{BoxFuture, Store};
use crate::token::Token;

/// A store under test, empty, in a namespace that nobody else uses.
///
/// It lasts for one case. Whatever it needs, a server process or a temporary file, ends when it is dropped.
pub trait StoreFixture: Send + Sync {
    /// The store. Called again after every fault, so another value may be returned then.
    fn store(&self) -> Arc<dyn Store>;

    /// Lets at least this much of the store's time pass. A real store sleeps.
    fn advance_time(&self, span: Duration) -> BoxFuture<'_, ()>;

    /// Does something to the store. When the future ends, it is done and the store can be attached again.
    fn inject(&self, fault: StoreFault) -> BoxFuture<'_, FaultInjection>;

    /// Whether the store can tell that others listen to a namespace which has no record. A store that cannot must be
    /// told by its operator when a namespace is new.
    fn can_count_subscribers(&self) -> bool {
        true
    }

    /// Whether the store knows after a [flush](StoreFault::Flush) that it has served the namespace.
    fn remembers_served_namespaces(&self) -> bool {
        true
    }
}

/// Something that happens to real stores.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreFault {
    /// Everything is deleted; the server runs on and connections stay.
    Flush,
    /// The server is restarted: a new run, all data kept, every connection closed.
    Restart,
    /// The server is restarted without its data. Its uptime counts from now: a store without a server of its own has
    /// none and does not support this.
    RestartEmpty,
    /// All data is copied, to be restored later.
    TakeSnapshot,
    /// The remembered data is put back in place of the present one; the server runs on and connections stay.
    RestoreSnapshot,
    /// The server is restarted with the remembered data.
    RestartFromSnapshot,
    /// Every connection is closed; the server runs on.
    CutConnections,
    /// An outsider writes a lease, over whatever is there: the holder and perhaps a ttl, nothing else.
    WriteForeignLease {
        /// Which lease.
        name: LeaseName,
        /// What stands in it. Not necessarily an acceptable instance id.
        holder: String,
        /// For how long. `None`: for ever.
        ttl: Option<Duration>,
    },
    /// An outsider deletes a lease and nothing else.
    DeleteLease {
        /// Which lease.
        name: LeaseName,
    },
    /// An outsider writes another token into the record of a lease's last term.
    CorruptToken {
        /// Which lease. There is a record of it.
        name: LeaseName,
        /// The token.
        token: Token,
    },
    /// The remembered data is put in place of the present one by way of another server, which this one is made to follow
    /// for a moment; it runs on. Connections may stay.
    ReplaceData,
    /// The server's clock is set back.
    StepClockBack(Duration),
    /// The server's clock is set ahead.
    StepClockForward(Duration),
    /// The server has been up for at least this long, by its own account, with nothing lost. A real one is waited for;
    /// a store without a server of its own is always that old.
    AgeServer(Duration),
}

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultInjection {
    /// It happened.
    Injected,
    /// This subject cannot do that. The case is not checked, and says so.
    Unsupported,
}
