//! Every store against the ledger, by chance.
//!
//! A seed makes a sequence of operations: requests about few leases by few holders under few nonces, with tokens that
//! were granted, that were not yet, and that never will be; entries with true and with false memories; a flush; writes
//! and deletions by outsiders. The sequence is carried out on the store and on a [`Ledger`], which says what every
//! store must answer, and every answer and every announcement is compared. What may differ is brought together first:
//! the n-th token (or generation) of one is the n-th of the other, clocks are not compared, and spans need only be
//! about the same.
//!
//! Spans are either [`SHORT`], and then waited out at once, or too long to end while this runs: a slow machine changes
//! nothing. A difference is cut down to the operations that it needs before it is told.
//!
//! `TENURE_DIFFERENTIAL_SEQUENCES` says how many sequences each store is put through, `TENURE_DIFFERENTIAL_SEED` where
//! they start: a sequence that failed comes first when its seed is given.
//!
//! [`Ledger`]: tenure::store::Ledger
//! [`SHORT`]: sequence::SHORT

#![cfg(any(feature = "redis", feature = "sqlite"))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod alignment;
mod author;
mod bench;
#[cfg(feature = "redis")]
mod on_redis;
#[cfg(feature = "sqlite")]
mod on_sqlite;
mod requests;
mod run;
mod sequence;
mod shrink;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use author::Author;
use bench::Bench;
use run::Run;
use shrink::cut_down;

/// How many sequences run at a time: most of their time is spent waiting.
const AT_A_TIME: usize = 24;

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}: a number")))
}

/// Puts a store through many sequences.
fn compare(bench: Arc<dyn Bench>) {
    let first = setting("TENURE_DIFFERENTIAL_SEED", fastrand::u64(..1 << 40));
    let count = setting("TENURE_DIFFERENTIAL_SEQUENCES", 300);
    println!("seeds {first} to {}", first + count - 1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let next = Arc::new(AtomicU64::new(first));
    runtime.block_on(async {
        let mut workers = tokio::task::JoinSet::new();
        for _ in 0..AT_A_TIME {
            let (bench, next) = (bench.clone(), next.clone());
            workers.spawn(async move {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return None;
                    }
                    let operations = Author::sequence(seed);
                    if let Err(found) = Run::of(&*bench, &operations).await {
                        return Some((seed, operations, found));
                    }
                }
            });
        }
        while let Some(done) = workers.join_next().await {
            let Some((seed, operations, found)) = done.unwrap() else { continue };
            workers.shutdown().await;
            let first = found.to_string();
            let (operations, found) = cut_down(&*bench, operations, found).await;
            let listed: String = operations.iter().map(|operation| format!("  {operation:?}\n")).collect();
            panic!("seed {seed}: {first}\n\ncut down to\n{listed}{found}");
        }
    });
}
