//! Every store against the ledger, by chance.
//!
//! A seed makes a sequence of operations: requests about few leases by few holders under few nonces, with tokens that
//! were granted, that were not yet, and that never will be; entries with true and with false memories; a flush; writes
//! and deletions by outsiders. The sequence is carried out on the store and on a [`Ledger`], which says what every
//! store must answer, and every answer and every announcement is compared. What may differ is brought together first:
//! the n-th token (or generation) of one is the n-th of the other, clocks are not compared, and spans need only be
//! about the same.
//!
//! Spans are either [`SHORT_SPAN`], and then waited out at once, or too long to end while this runs: a slow machine changes
//! nothing. A difference is cut down to the operations that it needs before it is told.
//!
//! `TENURE_DIFFERENTIAL_SEQUENCES` says how many sequences each store is put through, `TENURE_DIFFERENTIAL_SEED` where
//! they start: a sequence that failed comes first when its seed is given.
//!
//! [`Ledger`]: tenure::store::Ledger
//! [`SHORT_SPAN`]: sequence::SHORT_SPAN

#![cfg(any(feature = "redis", feature = "sqlite"))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod alignment;
mod fixture;
mod generator;
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

use fixture::DifferentialFixture;
use generator::SequenceGenerator;
use run::DifferentialRun;
use shrink::shrink_sequence;

/// How many sequences run at a time: most of their time is spent waiting.
const MAX_CONCURRENT_SEQUENCES: usize = 24;

fn env_number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}: a number")))
}

/// Puts a store through many sequences.
fn compare(fixture: Arc<dyn DifferentialFixture>) {
    let first = env_number("TENURE_DIFFERENTIAL_SEED", fastrand::u64(..1 << 40));
    let count = env_number("TENURE_DIFFERENTIAL_SEQUENCES", 300);
    println!("seeds {first} to {}", first + count - 1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let next = Arc::new(AtomicU64::new(first));
    runtime.block_on(async {
        let mut workers = tokio::task::JoinSet::new();
        for _ in 0..MAX_CONCURRENT_SEQUENCES {
            let (fixture, next) = (fixture.clone(), next.clone());
            workers.spawn(async move {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return None;
                    }
                    let operations = SequenceGenerator::sequence(seed);
                    if let Err(found) = DifferentialRun::execute(&*fixture, &operations).await {
                        return Some((seed, operations, found));
                    }
                }
            });
        }
        while let Some(done) = workers.join_next().await {
            let Some((seed, operations, found)) = done.unwrap() else { continue };
            workers.shutdown().await;
            let first = found.to_string();
            let (operations, found) = shrink_sequence(&*fixture, operations, found).await;
            let listed: String = operations.iter().map(|operation| format!("  {operation:?}\n")).collect();
            panic!("seed {seed}: {first}\n\ncut down to\n{listed}{found}");
        }
    });
}
