//! Ticks that were claimed but not run: none is skipped, and none runs twice.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::lease::LeaseState;
use tenure::store::memory::{MemoryStore, Survival};
use tenure::{Tenure, Term};

const INTERVAL: Duration = Duration::from_secs(1);

async fn instance(store: &Arc<MemoryStore>, name: &str) -> Tenure {
    Tenure::with_store(store.clone()).name(name).bootstrap().connect().await.unwrap()
}

async fn holder(tenure: &Tenure) -> Term {
    tenure.lease("job").acquire().await.unwrap()
}

#[tokio::test]
async fn a_tick_that_was_claimed_ahead_and_not_due_is_the_next_holders() {
    let store = Arc::new(MemoryStore::default());
    let (alice, bob) = (instance(&store, "alice").await, instance(&store, "bob").await);
    let lease = holder(&alice).await;
    let mut ticks = lease.every(INTERVAL);
    let first = ticks.next().await.unwrap();
    ticks.append("results", "1", 10);
    while alice.recent(lease.name(), "results", None, 10).await.unwrap().is_empty() {}
    // Dropped without completing the tick.
    drop(ticks);
    lease.release().await.unwrap();
    let second = holder(&bob).await.every(INTERVAL).next().await.unwrap();
    assert_eq!(second.due(), first.due() + INTERVAL);
}

#[tokio::test]
async fn a_tick_that_was_not_begun_is_given_out_again_here_or_by_the_next_holder() {
    let store = Arc::new(MemoryStore::default());
    let (alice, bob) = (instance(&store, "alice").await, instance(&store, "bob").await);
    let lease = holder(&alice).await;
    let mut ticks = lease.every(INTERVAL);
    let first = ticks.next().await.unwrap();
    ticks.put_back(first);
    assert_eq!(ticks.next().await, Some(first));
    ticks.put_back(first);
    ticks.put_back(first);
    ticks.end().await;
    lease.release().await.unwrap();
    assert_eq!(holder(&bob).await.every(INTERVAL).next().await, Some(first));
}

#[tokio::test]
async fn a_tick_whose_claim_may_have_arrived_is_given_back() {
    let store = Arc::new(MemoryStore::default());
    let (alice, bob) = (instance(&store, "alice").await, instance(&store, "bob").await);
    let lease = holder(&alice).await;
    let mut ticks = lease.every(INTERVAL);
    let (first, began) = (ticks.next().await.unwrap(), Instant::now());
    store.faults().lose_replies(1_000);
    // The claim is applied, but its reply is lost.
    assert!(tokio::time::timeout(INTERVAL + INTERVAL / 4, ticks.next()).await.is_err());
    store.faults().lose_replies(0);
    ticks.end().await;
    lease.release().await.unwrap();
    let (lease, passed) = (holder(&bob).await, began.elapsed());
    let second = lease.every(INTERVAL).next().await.unwrap();
    // If the machine stood still, a later tick makes up for it.
    let later = second.due().duration_since(first.due()).unwrap();
    assert!(later >= INTERVAL && later <= passed + INTERVAL / 4, "{later:?} later, after {passed:?}");
}

#[tokio::test]
async fn a_tick_that_was_claimed_ahead_waits_while_the_lease_is_uncertain() {
    let store = Arc::new(MemoryStore::default());
    let alice = instance(&store, "alice").await;
    let lease = holder(&alice).await;
    let mut ticks = lease.every(INTERVAL);
    let first = ticks.next().await.unwrap();
    ticks.append("results", "1", 10);
    while alice.recent(lease.name(), "results", None, 10).await.unwrap().is_empty() {}
    store.faults().stop();
    while lease.state() == LeaseState::Owned {
        tokio::task::yield_now().await;
    }
    assert!(tokio::time::timeout(INTERVAL + INTERVAL / 2, ticks.next()).await.is_err(), "no work begins meanwhile");
    store.faults().restart(Survival::All);
    let second = tokio::time::timeout(Duration::from_secs(60), ticks.next()).await.unwrap().unwrap();
    assert!(lease.state() == LeaseState::Owned && second.due() > first.due());
}
