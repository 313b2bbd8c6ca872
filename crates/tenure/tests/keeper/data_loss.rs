//! The store loses some, all or none of its data. Work stops, nobody works twice, and new grants wait out whoever may
//! not have noticed.

use std::time::{Duration, Instant};

use tenure::lease::{Ending, Loss};
use tenure::{AcquireError, Tenure, Token};
use tenure_testbed::{Probe, RedisServer, Reply};

use crate::stage::{FIRST_CONTACT, Instance, LONG, NEXT_RENEWAL, Record, Setup, TTL, lasting};

/// A quarantine of one ttl, which begins with the first contact or the next renewal, and a moment for whoever waits.
const AFTER_QUARANTINE: Duration = Duration::from_millis(2 * 1_500 + 500);

/// When a refusal says that the store has lost the lease.
fn is_loss_of_data(ending: &Ending) -> bool {
    matches!(ending, Ending::Lost(Loss::StoreReset | Loss::Missing))
}

#[tokio::test]
async fn killed_and_restarted_with_all_of_its_data() {
    let server = RedisServer::builder().append_only("always").start();
    let scene = Setup::at(&server.url()).lasting(LONG).scene().await;

    server.kill();
    server.start_again();

    // Whoever held goes on, after the store has confirmed it; nobody new gets anything before the longest ttl is over.
    scene.alice.sees("lease.recovered").await;
    scene.never_stopped().await;
    match scene.bob.tenure.lease("another").try_acquire().await {
        Err(AcquireError::Quarantined { remaining }) => assert!(remaining <= LONG && !remaining.is_zero()),
        other => panic!("a lease from before the restart may not be in the data: {other:?}"),
    }
    scene.ends().await;
}

#[tokio::test]
async fn killed_and_restarted_with_some_of_its_data() {
    let probe = Probe::start();
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let bob = Instance::connect(&server.url(), "bob", LONG).await;
    let record = Record::default();
    let kept = alice.acquire("kept", LONG).await;
    server.save();
    let job = record.candidate(&bob, "job", lasting(LONG));
    let token = record.works("bob", Token::ZERO).await;

    server.kill();
    server.start_again();
    let back = Instant::now();

    assert!(is_loss_of_data(&job.first_ending().await), "bob's lease is not in the data");
    probe.within(back.elapsed(), FIRST_CONTACT, "work stops");
    alice.sees("lease.recovered").await;
    assert!(kept.is_valid(), "alice's is, who is the bystander here");
    // Bob is not the only one who might have had it: nobody gets it for the longest ttl.
    match alice.tenure.lease("job").try_acquire().await {
        Err(AcquireError::Quarantined { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(record.stretches().iter().all(|stretch| stretch.token == token));
}

#[tokio::test]
async fn killed_and_restarted_with_none_of_its_data() {
    let server = RedisServer::start();
    let scene = Setup::at(&server.url()).for_all().scene().await;

    server.kill();
    server.start_again_empty();
    let back = Instant::now();

    assert!(matches!(scene.stops(back, FIRST_CONTACT).await, Ending::Lost(_)));
    scene.goes_on_with(back, FIRST_CONTACT + AFTER_QUARANTINE).await;
    assert!(scene.alice.has("store.closed") || scene.bob.has("store.closed"));
    scene.ends().await;
}

#[tokio::test]
async fn flushed_without_a_newcomer() {
    let server = RedisServer::start();
    let scene = Setup::at(&server.url()).for_all().scene().await;

    assert_eq!(server.command(&["FLUSHALL"]), Reply::text("OK"));
    let flushed = Instant::now();

    // The holder learns of it with its next renewal, P away at most.
    assert!(is_loss_of_data(&scene.stops(flushed, NEXT_RENEWAL).await));
    scene.goes_on_with(flushed, AFTER_QUARANTINE).await;
    scene.ends().await;
}

#[tokio::test]
async fn flushed_and_found_by_a_newcomer() {
    let server = RedisServer::start();
    let scene = Setup::at(&server.url()).for_all().scene().await;
    scene.waits.leaves().await;

    assert_eq!(server.command(&["FLUSHALL"]), Reply::text("OK"));
    let flushed = Instant::now();
    // It knows nothing of alice, but sees that somebody listens.
    let newcomer = Instance::with(Tenure::builder(&server.url()).name("newcomer").unwrap().longest_ttl(TTL)).await;
    newcomer.sees("store.closed").await;
    let _waits = scene.record.candidate(&newcomer, "job", lasting(TTL));

    // Told by the newcomer's entry, or by her own renewal at the latest.
    assert!(is_loss_of_data(&scene.stops(flushed, NEXT_RENEWAL).await));
    scene.goes_on_with(flushed, AFTER_QUARANTINE).await;
    scene.ends().await;
}

#[tokio::test]
async fn an_outsider_deletes_a_lease() {
    let server = RedisServer::start();
    let scene = Setup::at(&server.url()).scene().await;

    assert_eq!(server.command(&["DEL", "lease:job"]), Reply::Int(1));
    let deleted = Instant::now();

    assert_eq!(scene.stops(deleted, NEXT_RENEWAL).await, Ending::Lost(Loss::Missing));
    // By alice again, or by bob, who waits for what was left of her ttl when he last looked.
    scene.goes_on_with(deleted, TTL * 2).await;
    scene.ends().await;
}
