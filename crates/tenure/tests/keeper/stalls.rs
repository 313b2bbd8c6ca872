//! The store stalls: briefly, which only delays new work, or for too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tenure::lease::{Ending, Loss};
use tenure::{Tenure, Term};
use tenure_testbed::{LagProbe, RedisReply, RedisServer};

use crate::harness::{
    Bystander, MAX_RECONNECT_DELAY, MAX_STOP_DELAY, ScenarioBuilder, TTL, builder, wait_until, with_timeout,
};

#[tokio::test]
async fn a_short_pause_of_the_store_ends_no_term() {
    let server = RedisServer::start();
    let scenario = ScenarioBuilder::at(&server.url()).ttl(Duration::from_secs(6)).start().await;
    // Only renewals are sent from now on, and the next is two seconds away.
    scenario.alice.wait_for_event("lease.renewed").await;
    // Longer than that plus R, shorter than D − S.
    assert_eq!(server.command(&["CLIENT", "PAUSE", "3000"]), RedisReply::text("OK"));
    scenario.alice.wait_for_event("lease.uncertain").await;
    scenario.alice.wait_for_event("lease.recovered").await;
    scenario.assert_never_stopped().await;
    scenario.finish().await;
}

#[tokio::test]
async fn a_long_pause_of_the_store_stops_the_work_in_time() {
    let server = RedisServer::start();
    let scenario = ScenarioBuilder::at(&server.url()).start().await;
    let pause = Duration::from_secs(4);
    assert_eq!(server.command(&["CLIENT", "PAUSE", "4000"]), RedisReply::text("OK"));
    let paused = Instant::now();
    assert_eq!(scenario.wait_until_stopped(paused, MAX_STOP_DELAY).await, Ending::Lost(Loss::Unreachable));
    scenario.wait_for_next_work(paused, pause + MAX_RECONNECT_DELAY + TTL).await;
    scenario.finish().await;
}

/// A thousand leases with work that records when it was last seen.
struct LeaseLoad {
    tenure: Tenure,
    terms: Vec<Term>,
    working: Arc<AtomicUsize>,
}

impl LeaseLoad {
    async fn start(server: &RedisServer, count: usize, ttl: Duration) -> Self {
        let tenure = builder(&server.url(), "load", ttl).connect().await.unwrap();
        let working: Arc<AtomicUsize> = Arc::default();
        let mut terms = Vec::new();
        let claims = (0..count).map(|number| {
            let tenure = tenure.clone();
            tokio::spawn(async move { tenure.lease(format!("job-{number}")).ttl(ttl).acquire().await.unwrap() })
        });
        for claim in claims.collect::<Vec<_>>() {
            terms.push(with_timeout(claim).await.unwrap());
        }
        for term in &terms {
            let (handle, working) = ((**term).clone(), working.clone());
            tokio::spawn(async move {
                working.fetch_add(1, Ordering::SeqCst);
                let _lost = handle.run_infallible(std::future::pending::<()>()).await;
                working.fetch_sub(1, Ordering::SeqCst);
            });
        }
        let load = Self { tenure, terms, working };
        wait_until("all leases have work", || load.working() == count).await;
        load
    }

    fn working(&self) -> usize {
        self.working.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stall_of_600_ms_does_not_stop_work_on_a_thousand_leases() {
    let server = RedisServer::start();
    let bystander = Bystander::at(&server.url()).await;
    // R is 400 ms: requests in flight fail.
    let load = LeaseLoad::start(&server, 1_000, Duration::from_secs(6)).await;
    for _ in 0..3 {
        server.stop();
        tokio::time::sleep(Duration::from_millis(600)).await;
        server.cont();
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert_eq!(load.working(), 1_000);
    }
    wait_until("all terms are certain again", || load.terms.iter().all(|term| term.require(Duration::ZERO).is_ok()))
        .await;
    assert_eq!(load.tenure.stats().held, 1_000);
    bystander.assert_untouched().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stall_beyond_the_deadline_stops_work_on_a_thousand_leases_in_time() {
    let probe = LagProbe::start();
    let server = RedisServer::start();
    let bystander = Bystander::at(&server.url()).await;
    let ttl = Duration::from_secs(3);
    let load = LeaseLoad::start(&server, 1_000, ttl).await;
    server.stop();
    let stopped = Instant::now();
    let deadlines: Vec<Instant> = load.terms.iter().map(|term| Instant::now() + term.remaining()).collect();
    wait_until("all work has ended", || load.working() == 0).await;
    let (gone, latest) = (Instant::now(), deadlines.into_iter().max().unwrap());
    println!("ended {:?} before the last deadline", latest.saturating_duration_since(gone));
    probe.assert_within(stopped.elapsed(), ttl - ttl / 6, "all work has ended by the last D − S");
    assert!(load.terms.iter().all(|term| !term.is_valid() || term.remaining() <= ttl / 6));
    server.cont();
    wait_until("connected again", || load.tenure.stats().connected).await;
    bystander.assert_untouched().await;
}
