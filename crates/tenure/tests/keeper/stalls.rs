//! The store stands still: for a moment, which costs nothing but starts, or for too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tenure::lease::{Ending, Loss};
use tenure::{Tenure, Term};
use tenure_testbed::{Probe, RedisServer, Reply};

use crate::stage::{Bystander, FIRST_CONTACT, LAST_STOP, Setup, TTL, builder, soon, until};

#[tokio::test]
async fn a_pause_is_ridden_out() {
    let server = RedisServer::start();
    let scene = Setup::at(&server.url()).lasting(Duration::from_secs(6)).scene().await;
    // Nothing but renewals is sent any more, and the next is two seconds away.
    scene.alice.sees("lease.renewed").await;
    // Longer than that and R, shorter than D − S.
    assert_eq!(server.command(&["CLIENT", "PAUSE", "3000"]), Reply::text("OK"));
    scene.alice.sees("lease.uncertain").await;
    scene.alice.sees("lease.recovered").await;
    scene.never_stopped().await;
    scene.ends().await;
}

#[tokio::test]
async fn a_pause_that_lasts_too_long_stops_the_work_in_time() {
    let server = RedisServer::start();
    let scene = Setup::at(&server.url()).scene().await;
    let pause = Duration::from_secs(4);
    assert_eq!(server.command(&["CLIENT", "PAUSE", "4000"]), Reply::text("OK"));
    let paused = Instant::now();
    assert_eq!(scene.stops(paused, LAST_STOP).await, Ending::Lost(Loss::Unreachable));
    scene.goes_on_with(paused, pause + FIRST_CONTACT + TTL).await;
    scene.ends().await;
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
    let bystander = Bystander::at(&server.url()).await;
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
    bystander.is_untouched().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stall_beyond_the_deadline_stops_work_on_a_thousand_leases_in_time() {
    let probe = Probe::start();
    let server = RedisServer::start();
    let bystander = Bystander::at(&server.url()).await;
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
    bystander.is_untouched().await;
}
