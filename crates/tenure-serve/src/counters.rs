//! Counters of this instance.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure::histogram::Histogram;
use tenure::{Event, EventKind, LeaseKind};

use crate::poll_stats::PollStats;

/// Counters of this instance since its start.
#[derive(Debug, Default)]
pub struct Counters {
    ok: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    failovers: AtomicU64,
    latency: Histogram,
    events: Mutex<BTreeMap<&'static str, u64>>,
}

impl Counters {
    /// Records a poll.
    pub fn record_poll(&self, ok: bool, took: Duration) {
        let count = if ok { &self.ok } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
        self.latency.record(took);
    }

    /// Records an event.
    pub fn record_event(&self, event: &Event) {
        let is_target = event.lease.as_ref().is_some_and(|lease| lease.kind() == LeaseKind::Target);
        if is_target && matches!(event.kind, EventKind::TakenOver { .. }) {
            self.failovers.fetch_add(1, Ordering::Relaxed);
        }
        if matches!(event.kind, EventKind::PublishRefused { .. }) {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        let name = event.kind.name();
        if name.starts_with("lease.") {
            *self.events.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += 1;
        }
    }

    /// Returns the number of events of each lease event name.
    pub fn lease_events(&self) -> BTreeMap<&'static str, u64> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the poll statistics.
    pub fn snapshot(&self) -> PollStats {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        PollStats {
            ok: count(&self.ok),
            failed: count(&self.failed),
            refused: count(&self.refused),
            failovers: count(&self.failovers),
            latency: self.latency.snapshot(),
        }
    }
}
