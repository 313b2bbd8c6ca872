//! The fault switches of the memory store.

use std::time::Duration;

use tokio::sync::broadcast;

use super::{MemoryStore, State};
use crate::name::{InstanceId, LeaseName};
use crate::store::{Ledger, Lineage};
use crate::token::Token;

/// The data that a server still has after a restart.
///
/// ```
/// use tenure::store::memory::{MemoryStore, Survival};
/// use tenure::store::{AttachRequest, NamespaceMemory, QuarantineReason, Store};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = MemoryStore::default();
/// let memory = NamespaceMemory::new(store.attach(AttachRequest::new(fastrand::u64(..))).await?.attached());
/// store.faults().restart(Survival::None);
/// let request = AttachRequest { memory: Some(memory), ..AttachRequest::new(fastrand::u64(..)) };
/// let connection = store.attach(request).await?;
/// assert_eq!(connection.attached().new_quarantine_reason(), Some(QuarantineReason::RecordMissing));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub enum Survival {
    /// Everything.
    All,
    /// The data in this snapshot, taken with [`MemoryFaults::snapshot`].
    Since(Snapshot),
    /// Nothing.
    None,
}

/// The contents of a memory store at some time.
///
/// ```
/// use std::sync::Arc;
/// use tenure::Tenure;
/// use tenure::store::memory::MemoryStore;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = MemoryStore::default();
/// let tenure = Tenure::with_store(Arc::new(store.clone())).connect().await?;
/// let backup = store.faults().snapshot();
/// tenure.documents("servers").create("eu-1", b"10.0.0.7").await?;
/// store.faults().restore(backup); // an operator restores an old backup
/// assert!(tenure.documents("servers").ids().await?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Snapshot(Box<Ledger>);

/// Switches for the faults of real stores.
///
/// ```
/// use std::sync::Arc;
/// use tenure::store::memory::MemoryStore;
/// use tenure::{AcquireError, InstanceId, LeaseName, Tenure};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = MemoryStore::default();
/// let tenure = Tenure::with_store(Arc::new(store.clone())).connect().await?;
/// let (name, holder) = (LeaseName::lease("report")?, InstanceId::new("cron-1")?);
/// store.faults().write_foreign(&name, &holder, None); // a program that does not use Tenure
/// let refused = tenure.lease("report").try_acquire().await.unwrap_err();
/// assert_eq!(refused, AcquireError::Held { holder, remaining: None });
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryFaults {
    store: MemoryStore,
}

/// The active faults.
#[derive(Debug, Default)]
pub(super) struct FaultPlan {
    pub(super) delay: Duration,
    pub(super) down: bool,
    lose_requests: u32,
    lose_replies: u32,
}

/// How one request fares.
pub(super) enum Delivery {
    Deliver,
    LoseRequest,
    LoseReply,
    Refuse,
}

impl FaultPlan {
    pub(super) fn next_delivery(&mut self) -> Delivery {
        if self.down {
            Delivery::Refuse
        } else if self.lose_requests > 0 {
            self.lose_requests -= 1;
            Delivery::LoseRequest
        } else if self.lose_replies > 0 {
            self.lose_replies -= 1;
            Delivery::LoseReply
        } else {
            Delivery::Deliver
        }
    }
}

impl MemoryFaults {
    pub(super) fn new(store: MemoryStore) -> Self {
        Self { store }
    }

    /// Loses the next requests before they arrive.
    pub fn lose_requests(&self, count: u32) {
        self.store.state().faults.lose_requests = count;
    }

    /// Carries out the next requests and loses their replies.
    pub fn lose_replies(&self, count: u32) {
        self.store.state().faults.lose_replies = count;
    }

    /// Delays the arrival of every request by this much. A request that the caller gives up on in the meantime still
    /// arrives.
    pub fn delay(&self, span: Duration) {
        self.store.state().faults.delay = span;
    }

    /// Switches the server off: closes every connection, and everything fails until it is restarted.
    pub fn stop(&self) {
        let mut state = self.store.state();
        state.faults.down = true;
        close_connections(&mut state);
    }

    /// Restarts the server with the surviving data. Closes every connection.
    pub fn restart(&self, survival: Survival) {
        let mut state = self.store.state();
        match survival {
            Survival::All => {}
            Survival::Since(snapshot) => state.ledger.restore(*snapshot.0),
            Survival::None => state.ledger.flush(),
        }
        state.run += 1;
        state.has_served = false;
        state.restarted = Some(self.store.shared.clock.now());
        state.faults.down = false;
        close_connections(&mut state);
    }

    /// Closes every connection.
    pub fn cut_connections(&self) {
        close_connections(&mut self.store.state());
    }

    /// Deletes everything while the server keeps running.
    pub fn flush(&self) {
        self.store.state().ledger.flush();
    }

    /// Returns the contents of the store, to restore them later.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(Box::new(self.store.state().ledger.clone()))
    }

    /// Restores older contents while the server keeps running.
    pub fn restore(&self, snapshot: Snapshot) {
        self.store.state().ledger.restore(*snapshot.0);
    }

    /// Replaces everything by the data of another server while the server keeps running, as `REPLICAOF` and back does.
    pub fn replace(&self, snapshot: Snapshot) {
        let lineage = Lineage { id: fastrand::u128(..), before: Some(fastrand::u128(..)) };
        let mut state = self.store.state();
        state.ledger.restore(*snapshot.0);
        state.ledger.set_lineage(lineage);
    }

    /// Sets the server's clock ahead.
    pub fn step_clock_forward(&self, span: Duration) {
        let mut state = self.store.state();
        state.epoch_micros = state.epoch_micros.saturating_add(micros(span));
    }

    /// Sets the server's clock back.
    pub fn step_clock_back(&self, span: Duration) {
        let mut state = self.store.state();
        state.epoch_micros = state.epoch_micros.saturating_sub(micros(span));
    }

    /// Writes a lease as a foreign program would; without a ttl it never expires.
    pub fn write_foreign(&self, name: &LeaseName, holder: &InstanceId, ttl: Option<Duration>) {
        let mut state = self.store.state();
        let expires = ttl.map(|ttl| state.server_time(self.store.shared.clock.now()) + ttl);
        state.ledger.write_foreign(name, holder, expires);
    }

    /// Plants a mutation, to check that the conformance suite finds it.
    #[cfg(feature = "mutations")]
    pub fn plant(&self, mutation: crate::mutation::Mutation) {
        self.store.state().ledger.plant(mutation);
    }

    /// Overwrites the token in the record of a lease's last term, as a foreign program would.
    pub fn corrupt_token(&self, name: &LeaseName, token: Token) {
        self.store.state().ledger.corrupt_token(name, token);
    }

    /// Deletes a lease as a foreign program would.
    pub fn delete_foreign(&self, name: &LeaseName) {
        self.store.state().ledger.delete_foreign(name);
    }
}

fn close_connections(state: &mut State) {
    state.cut_before.send_replace(state.connections);
    // Dropping the sender ends every subscription.
    state.announcements = broadcast::Sender::new(super::MAX_UNREAD_ANNOUNCEMENTS);
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
