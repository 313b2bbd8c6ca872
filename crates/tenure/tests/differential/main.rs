//! Compares every store with the ledger on random sequences.
//!
//! A seed generates a sequence of operations: requests about few leases by few holders with few nonces, with tokens
//! that were granted, are not granted yet, or never will be; attaches with true and false memories; a flush; writes and
//! deletions by foreign programs. The sequence runs on the store and on a [`Ledger`], which defines the replies of
//! every store. Every reply and every announcement is compared. Parts that may differ are aligned first: the n-th token
//! (or generation) of one corresponds to the n-th of the other, clocks are not compared, and spans need only be close.
//!
//! Spans are either [`SHORT_SPAN`], and then waited for at once, or too long to end during the test, so that a slow
//! machine changes nothing. A failing sequence is shrunk to the operations that the difference needs before it is
//! reported.
//!
//! `TENURE_DIFFERENTIAL_SEQUENCES` sets the number of sequences per store, `TENURE_DIFFERENTIAL_SEED` the first seed:
//! with the seed of a failed sequence, that sequence runs first.
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

/// Number of concurrent sequences: they spend most of their time waiting.
const MAX_CONCURRENT_SEQUENCES: usize = 24;

fn env_number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

/// Runs many sequences on a store.
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
            panic!("seed {seed}: {first}\n\nshrunk to\n{listed}{found}");
        }
    });
}
