//! The store stands still: for a moment, which costs nothing but starts, or for too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tenure::lease::{Ending, Loss};
use tenure::{Tenure, Term, Token};
use tenure_testbed::{RedisServer, Reply};

use crate::stage::{Instance, Probe, Record, TTL, builder, soon, until};

#[tokio::test]
async fn a_pause_is_ridden_out() {
    let server = RedisServer::start();
    let ttl = Duration::from_secs(6);
    let alice = Instance::connect(&server.url(), "alice", ttl).await;
    let record = Record::default();
    let job = record.candidate(&alice, "job", ttl);
    let token = record.works("alice", Token::ZERO).await;
    // Longer than the two seconds between renewals, shorter than D − S.
    assert_eq!(server.command(&["CLIENT", "PAUSE", "2500"]), Reply::text("OK"));
    let renewed = || alice.happened().iter().filter(|name| **name == "lease.renewed").count();
    until("renewed again and again", || renewed() >= 2).await;
    record.goes_on(token).await;
    assert!(job.never_stopped(), "{:?}", alice.happened());
}

#[tokio::test]
async fn a_pause_that_lasts_too_long_stops_the_work_in_time() {
    let probe = Probe::start();
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let bob = Instance::connect(&server.url(), "bob", TTL).await;
    let record = Record::default();
    let job = record.candidate(&alice, "job", TTL);
    let token = record.works("alice", Token::ZERO).await;
    let _waits = record.candidate(&bob, "job", TTL);
    bob.sees("lease.acquire_failed").await;
    assert_eq!(server.command(&["CLIENT", "PAUSE", "4000"]), Reply::text("OK"));
    let paused = Instant::now();
    assert_eq!(job.first_ending().await, Ending::Lost(Loss::Unreachable));
    probe.within(paused.elapsed(), TTL, "work stops");
    record.works("", token).await;
    record.check();
}

/// A thousand leases, and work under each that says how long it was seen.
struct Crowd {
    tenure: Tenure,
    terms: Vec<Term>,
    working: Arc<AtomicUsize>,
}

impl Crowd {
    async fn gather(server: &RedisServer, count: usize, ttl: Duration) -> Self {
        let tenure = builder(&server.url(), "crowd", ttl).connect().await.unwrap();
        let working: Arc<AtomicUsize> = Arc::default();
        let mut terms = Vec::new();
        let claims = (0..count).map(|number| {
            let tenure = tenure.clone();
            tokio::spawn(async move { tenure.lease(&format!("job-{number}")).ttl(ttl).acquire().await.unwrap() })
        });
        for claim in claims.collect::<Vec<_>>() {
            terms.push(soon(claim).await.unwrap());
        }
        for term in &terms {
            let (handle, working) = ((**term).clone(), working.clone());
            tokio::spawn(async move {
                working.fetch_add(1, Ordering::SeqCst);
                let _lost = handle.run(std::future::pending::<()>()).await;
                working.fetch_sub(1, Ordering::SeqCst);
            });
        }
        let crowd = Self { tenure, terms, working };
        until("everybody works", || crowd.working() == count).await;
        crowd
    }

    fn working(&self) -> usize {
        self.working.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stall_of_600_ms_does_not_stop_work_on_a_thousand_leases() {
    let server = RedisServer::start();
    // R is 400 ms: what is under way fails.
    let crowd = Crowd::gather(&server, 1_000, Duration::from_secs(6)).await;
    for _ in 0..3 {
        server.stop();
        tokio::time::sleep(Duration::from_millis(600)).await;
        server.cont();
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert_eq!(crowd.working(), 1_000);
    }
    until("all certain again", || crowd.terms.iter().all(|term| term.require(Duration::ZERO).is_ok())).await;
    assert_eq!(crowd.tenure.how_it_stands().held, 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stall_beyond_the_deadline_stops_work_on_a_thousand_leases_in_time() {
    let probe = Probe::start();
    let server = RedisServer::start();
    let ttl = Duration::from_secs(3);
    let crowd = Crowd::gather(&server, 1_000, ttl).await;
    server.stop();
    let stopped = Instant::now();
    let deadlines: Vec<Instant> = crowd.terms.iter().map(|term| Instant::now() + term.remaining()).collect();
    until("all work is gone", || crowd.working() == 0).await;
    let (gone, latest) = (Instant::now(), deadlines.into_iter().max().unwrap());
    println!("gone {:?} before the last deadline", latest.saturating_duration_since(gone));
    probe.within(stopped.elapsed(), ttl - ttl / 6, "all work is gone by the last D − S");
    assert!(crowd.terms.iter().all(|term| !term.is_valid() || term.remaining() <= ttl / 6));
    server.cont();
    until("connected again", || crowd.tenure.how_it_stands().connected).await;
}
