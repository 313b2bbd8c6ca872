//! The switches of the memory store.

use std::time::Duration;

use tokio::sync::broadcast;

use super::{MemoryStore, State};
use crate::name::{InstanceId, LeaseName};
use crate::store::{Ledger, Lineage};
use crate::token::Token;

/// What of its data a server still has after a restart.
#[derive(Clone, Debug)]
pub enum Survival {
    /// Everything.
    All,
    /// What it had when this was remembered with [`MemoryFaults::snapshot`].
    Since(Snapshot),
    /// Nothing.
    None,
}

/// What a memory store held at some time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot(Box<Ledger>);

/// Switches for what goes wrong with real stores.
#[derive(Clone, Debug)]
pub struct MemoryFaults {
    store: MemoryStore,
}

/// What is switched on.
#[derive(Debug, Default)]
pub(super) struct FaultPlan {
    pub(super) delay: Duration,
    pub(super) down: bool,
    lose_requests: u32,
    lose_replies: u32,
}

/// What becomes of one request.
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

    /// The next requests never arrive.
    pub fn lose_requests(&self, count: u32) {
        self.store.state().faults.lose_requests = count;
    }

    /// The next requests are carried out and their replies never arrive.
    pub fn lose_replies(&self, count: u32) {
        self.store.state().faults.lose_replies = count;
    }

    /// Every request arrives this much later. One that is given up on in the meantime still arrives.
    pub fn delay(&self, span: Duration) {
        self.store.state().faults.delay = span;
    }

    /// Switches the server off: every connection is closed and everything fails until it is restarted.
    pub fn stop(&self) {
        let mut state = self.store.state();
        state.faults.down = true;
        close_connections(&mut state);
    }

    /// Restarts the server with what has survived. Every connection is closed.
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

    /// Forgets everything while running on.
    pub fn flush(&self) {
        self.store.state().ledger.flush();
    }

    /// What the store holds now, to be restored later.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(Box::new(self.store.state().ledger.clone()))
    }

    /// Puts older contents back while running on.
    pub fn restore(&self, snapshot: Snapshot) {
        self.store.state().ledger.restore(*snapshot.0);
    }

    /// Replaces everything by the data of another server while running on, as `REPLICAOF` does and back again.
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

    /// Writes a lease as a foreign program would; without a ttl it never ends.
    pub fn write_foreign(&self, name: &LeaseName, holder: &InstanceId, ttl: Option<Duration>) {
        let mut state = self.store.state();
        let expires = ttl.map(|ttl| state.server_time(self.store.shared.clock.now()) + ttl);
        state.ledger.write_foreign(name, holder, expires);
    }

    /// Plants a mistake, to see that the conformance suite finds it.
    #[cfg(feature = "mutations")]
    pub fn plant(&self, mutation: crate::mutation::Mutation) {
        self.store.state().ledger.plant(mutation);
    }

    /// Writes another token into the record of a lease's last term, as an outsider would.
    pub fn corrupt_token(&self, name: &LeaseName, token: Token) {
        self.store.state().ledger.corrupt_token(name, token);
    }

    /// Deletes a lease as an outsider would.
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
