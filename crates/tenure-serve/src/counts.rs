//! What this instance counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Polls of this instance, since it was started.
#[derive(Debug, Default)]
pub struct Counts {
    ok: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
}

impl Counts {
    /// A poll is over.
    pub fn polled(&self, ok: bool) {
        let count = if ok { &self.ok } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// A result was refused: the term was over.
    pub fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Polls that went well, polls that did not, and results that were refused.
    pub fn read(&self) -> (u64, u64, u64) {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (count(&self.ok), count(&self.failed), count(&self.refused))
    }
}
