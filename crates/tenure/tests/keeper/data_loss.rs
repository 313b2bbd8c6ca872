//! The store loses some, all or none of its data. Work stops, nobody works twice, and new grants wait out whoever may
//! not have noticed.

use std::time::Instant;

use tenure::lease::{Ending, Loss};
use tenure::{AcquireError, Token};
use tenure_testbed::{RedisServer, Reply};

use crate::stage::{Instance, LONG, Probe, Record, TTL, soon};

/// When a refusal says that the store has lost the lease.
fn is_loss_of_data(ending: &Ending) -> bool {
    matches!(ending, Ending::Lost(Loss::StoreReset | Loss::Missing))
}

#[tokio::test]
async fn killed_and_restarted_with_all_of_its_data() {
    let server = RedisServer::builder().append_only("always").start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let bob = Instance::connect(&server.url(), "bob", LONG).await;
    let record = Record::default();
    let works = record.candidate(&alice, "job", LONG);
    let token = record.works("alice", Token::ZERO).await;
    let waits = record.candidate(&bob, "job", LONG);
    bob.sees("lease.acquire_failed").await;

    server.kill();
    server.start_again();

    // Whoever held goes on, after the store has confirmed it; nobody new gets anything before the longest ttl is over.
    alice.sees("lease.recovered").await;
    record.goes_on(token).await;
    assert!(works.never_stopped() && waits.never_stopped(), "nothing was lost");
    match bob.tenure.lease("another").try_acquire().await {
        Err(AcquireError::Closed { remaining }) => assert!(remaining <= LONG && !remaining.is_zero()),
        other => panic!("a lease from before the restart may not be in the data: {other:?}"),
    }
    record.check();
}

#[tokio::test]
async fn killed_and_restarted_with_some_of_its_data() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let bob = Instance::connect(&server.url(), "bob", LONG).await;
    let record = Record::default();
    let kept = alice.acquire("kept", LONG).await;
    server.save();
    let job = record.candidate(&bob, "job", LONG);
    let token = record.works("bob", Token::ZERO).await;

    server.kill();
    server.start_again();

    assert!(is_loss_of_data(&job.first_ending().await), "bob's lease is not in the data");
    alice.sees("lease.recovered").await;
    assert!(kept.is_valid(), "alice's is");
    // Bob is not the only one who might have had it: nobody gets it for the longest ttl.
    match alice.tenure.lease("job").try_acquire().await {
        Err(AcquireError::Closed { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(record.stretches().iter().all(|stretch| stretch.token == token));
}

#[tokio::test]
async fn killed_and_restarted_with_none_of_its_data() {
    let probe = Probe::start();
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let bob = Instance::connect(&server.url(), "bob", TTL).await;
    let record = Record::default();
    let job = record.candidate(&alice, "job", TTL);
    let token = record.works("alice", Token::ZERO).await;
    let _waits = record.candidate(&bob, "job", TTL);
    bob.sees("lease.acquire_failed").await;

    server.kill();
    server.start_again_empty();
    let back = Instant::now();

    assert!(matches!(job.first_ending().await, Ending::Lost(_)));
    let next = record.works("", token).await;
    probe.within(back.elapsed(), TTL * 2 + TTL / 5, "a holder again after a restart without data");
    record.goes_on(next).await;
    record.check();
    let began = record.stretches()[1].began;
    // Whatever was granted before had run out.
    assert!(began - record.stretches()[0].last_seen > std::time::Duration::ZERO);
    assert!(alice.has("store.closed") || bob.has("store.closed"));
}

#[tokio::test]
async fn flushed_without_a_newcomer() {
    let probe = Probe::start();
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let bob = Instance::connect(&server.url(), "bob", TTL).await;
    let record = Record::default();
    let job = record.candidate(&alice, "job", TTL);
    let token = record.works("alice", Token::ZERO).await;
    let _waits = record.candidate(&bob, "job", TTL);
    bob.sees("lease.acquire_failed").await;

    assert_eq!(server.command(&["FLUSHALL"]), Reply::text("OK"));
    let flushed = Instant::now();

    // The holder learns of it with its next renewal, P away at most.
    assert!(is_loss_of_data(&job.first_ending().await));
    probe.within(flushed.elapsed(), TTL / 3 + TTL / 15, "work stops after a flush");
    record.works("", token).await;
    record.check();
}

#[tokio::test]
async fn flushed_and_found_by_a_newcomer() {
    let probe = Probe::start();
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let record = Record::default();
    let job = record.candidate(&alice, "job", TTL);
    let token = record.works("alice", Token::ZERO).await;

    assert_eq!(server.command(&["FLUSHALL"]), Reply::text("OK"));
    let flushed = Instant::now();
    // It knows nothing of alice, but sees that somebody listens.
    let builder = tenure::Tenure::builder(&server.url()).name("newcomer").unwrap().longest_ttl(TTL);
    let newcomer = Instance::with(builder).await;
    newcomer.sees("store.closed").await;
    let _waits = record.candidate(&newcomer, "job", TTL);

    assert!(is_loss_of_data(&job.first_ending().await));
    // Told by the newcomer's entry, or by her own renewal at the latest.
    probe.within(flushed.elapsed(), TTL / 3 + TTL / 15, "work stops after a flush that a newcomer found");
    record.works("", token).await;
    probe.within(flushed.elapsed(), TTL * 2 + TTL / 5, "somebody works again");
    record.check();
}

#[tokio::test]
async fn an_outsider_deletes_a_lease() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let bob = Instance::connect(&server.url(), "bob", TTL).await;
    let bystander = crate::stage::Bystander::at(&server.url()).await;
    let record = Record::default();
    let job = record.candidate(&alice, "job", TTL);
    let token = record.works("alice", Token::ZERO).await;
    let _waits = record.candidate(&bob, "job", TTL);
    bob.sees("lease.acquire_failed").await;

    assert_eq!(server.command(&["DEL", "lease:job"]), Reply::Int(1));

    assert_eq!(job.first_ending().await, Ending::Lost(Loss::Missing));
    soon(record.works("", token)).await;
    record.check();
    bystander.is_untouched().await;
}
