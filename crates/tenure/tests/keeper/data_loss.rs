//! The store loses some, all or none of its data. Work stops, nobody works twice, and new grants wait out whoever may
//! not have noticed.

use std::time::{Duration, Instant};

use tenure::lease::{Ending, Loss};
use tenure::store::{NamespaceReport, Quarantine, QuarantineReason};
use tenure::{AcquireError, Tenure, Token};
use tenure_testbed::{Probe, RedisServer, Reply};

use crate::stage::{FIRST_CONTACT, Instance, LONG, NEXT_RENEWAL, Record, Setup, TTL, lasting, soon, until};

/// A quarantine of one ttl, which begins with the first contact or the next renewal, and a moment for whoever waits.
const AFTER_QUARANTINE: Duration = Duration::from_millis(2 * 1_500 + 500);

/// The same when a newcomer begins it, who cannot know how long leases are.
const AFTER_ASSUMED_QUARANTINE: Duration = Duration::from_millis(30_000 + 1_500 + 500);

/// When a refusal says that the store has lost the lease.
fn is_loss_of_data(ending: &Ending) -> bool {
    matches!(ending, Ending::Lost(Loss::StoreReset | Loss::Missing))
}

/// What is known about the namespace. A connection that is replaced just then, because the data has changed, takes the question with it: it is
/// asked again.
async fn report(tenure: &Tenure) -> NamespaceReport {
    loop {
        match tenure.inspect_namespace().await {
            Ok(report) => return report,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
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
        Err(AcquireError::Quarantined(Quarantine { remaining, .. })) => {
            assert!(remaining <= LONG && !remaining.is_zero())
        }
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
        Err(AcquireError::Quarantined(_)) => {}
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
    assert!(scene.alice.has("store.quarantined") || scene.bob.has("store.quarantined"));
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
    newcomer.sees("store.quarantined").await;
    let _waits = scene.record.candidate(&newcomer, "job", lasting(TTL));

    // Told by the newcomer's entry, or by her own renewal at the latest.
    assert!(is_loss_of_data(&scene.stops(flushed, NEXT_RENEWAL).await));
    scene.goes_on_with(flushed, AFTER_ASSUMED_QUARANTINE).await;
    scene.ends().await;
}

/// A holder that is connected and cannot hear is not counted among those who listen.
#[tokio::test]
async fn flushed_under_a_deaf_holder_and_found_by_a_newcomer() {
    let users = ["user deaf on >secret ~* &* +@all -subscribe"];
    let server = RedisServer::builder().acl_users(&users).start();
    let deaf = server.url_as("deaf", "secret");
    let alice = Instance::connect(&deaf, "alice", LONG).await;
    let record = Record::default();
    let works = record.candidate(&alice, "job", lasting(LONG));
    let token = record.works("alice", Token::ZERO).await;

    assert_eq!(server.command(&["FLUSHALL"]), Reply::text("OK"));
    // The operator has left `--bootstrap` in the unit file.
    let newcomer = Instance::connect(&server.url_as("deaf", "secret"), "newcomer", TTL).await;
    match newcomer.tenure.lease("job").ttl(TTL).try_acquire().await {
        Err(AcquireError::Quarantined(Quarantine { remaining, reason })) => {
            assert_eq!(reason, QuarantineReason::RecordErased);
            assert!(remaining > TTL && remaining <= LONG, "for 30 s at least: {remaining:?}");
        }
        other => panic!("alice may not know yet: {other:?}"),
    }
    // She is told by her own renewal, P + R later at most; nobody works before the quarantine is over.
    assert!(is_loss_of_data(&works.first_ending().await));
    assert!(record.stretches().iter().all(|stretch| stretch.token == token));
}

/// The server follows another one, which has nothing, and is its own master again: its run is the same.
#[tokio::test]
async fn replaced_by_the_data_of_another_server() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    let scene = Setup::at(&server.url()).for_all().lasting(LONG).scene().await;

    server.follow(&other);
    assert_eq!(server.command(&["REPLICAOF", "NO", "ONE"]), Reply::text("OK"));
    let newcomer = Instance::connect(&server.url(), "newcomer", LONG).await;
    let _waits = scene.record.candidate(&newcomer, "job", lasting(LONG));

    // Alice works until her next renewal tells her; until then nobody else is granted anything.
    assert!(is_loss_of_data(&scene.works.first_ending().await));
    match newcomer.tenure.lease("another").try_acquire().await {
        Err(AcquireError::Quarantined(_)) => {}
        other => panic!("leases from before may be relied on: {other:?}"),
    }
    scene.ends().await;
}

/// The other server has an older copy of the same data, as a replica that was cut off has.
#[tokio::test]
async fn replaced_by_an_older_copy_of_its_data() {
    for was_used in [false, true] {
        let (server, copy) = (RedisServer::start(), RedisServer::start());
        let alice = Instance::connect(&server.url(), "alice", LONG).await;
        let bob = Instance::connect(&server.url(), "bob", LONG).await;
        let kept = alice.acquire("kept", LONG).await;
        copy.follow(&server);
        copy.command(&["REPLICAOF", "NO", "ONE"]);
        if was_used {
            // Entered there, and opened by an operator: the record names the copy's run and history.
            let drill = Instance::connect(&copy.url(), "drill", TTL).await;
            let found = report(&drill.tenure).await;
            assert!(drill.tenure.reopen(found.generation.unwrap()).await.unwrap());
            drill.acquire("drill", TTL).await.release().await.unwrap();
        }
        // Not in the copy.
        let job = alice.acquire("job", LONG).await;

        server.follow(&copy);
        server.command(&["REPLICAOF", "NO", "ONE"]);

        // Bob's connection has survived it all.
        is_quarantined_for_replaced_data(&bob).await;
        assert!(kept.is_valid() && job.is_valid(), "which she does until her next renewal");
    }
}

/// Another database of the same server, with a namespace of its own that was made later.
#[tokio::test]
async fn swapped_with_another_database() {
    for bob_has_asked_since in [true, false] {
        let server = RedisServer::start();
        let alice = Instance::connect(&server.url(), "alice", LONG).await;
        let bob = Instance::connect(&server.url(), "bob", LONG).await;
        let other = Instance::connect(&format!("{}/1", server.url()), "other", TTL).await;
        other.acquire("drill", TTL).await.release().await.unwrap();
        let job = alice.acquire("job", LONG).await;
        if bob_has_asked_since {
            bob.tenure.lease("job").try_acquire().await.unwrap_err();
        }

        assert_eq!(server.command(&["SWAPDB", "0", "1"]), Reply::text("OK"));
        is_quarantined_for_replaced_data(&bob).await;
        assert!(job.is_valid(), "until her next renewal");
    }
}

/// An instance that was connected all along is granted nothing, because leases from before may be relied on.
async fn is_quarantined_for_replaced_data(instance: &Instance) {
    let replaced = Instant::now();
    while replaced.elapsed() < Duration::from_secs(2) {
        match instance.tenure.lease("job").try_acquire().await {
            Err(AcquireError::Quarantined(Quarantine { reason, .. })) => {
                // Data that names another server's run looks like that of a restarted one.
                assert!(
                    matches!(reason, QuarantineReason::DataReplaced | QuarantineReason::ServerRestarted),
                    "{reason}"
                );
                break;
            }
            Err(AcquireError::Store(_)) => {}
            other => panic!("alice may rely on it: {other:?}"),
        }
    }
    instance.sees("store.quarantined").await;
}

/// Whatever ran before and was released or has expired: a fleet with short leases waits for short leases.
#[tokio::test]
async fn flushed_after_a_long_lease_was_released() {
    let server = RedisServer::start();
    let scene = Setup::at(&server.url()).for_all().scene().await;
    let long = Instance::connect(&server.url(), "long", LONG).await;
    let day = Duration::from_secs(24 * 3_600);
    long.acquire("nightly", day).await.release().await.unwrap();
    // One that crashed: its lease has expired.
    let crashed = Instance::connect(&server.url(), "crashed", TTL).await;
    let term = crashed.acquire("hourly", TTL * 2).await;
    server.command(&["DEL", "lease:hourly"]);
    drop(term);
    tokio::time::sleep(TTL * 2 + TTL / 4).await;

    assert_eq!(server.command(&["FLUSHALL"]), Reply::text("OK"));
    let flushed = Instant::now();
    assert!(is_loss_of_data(&scene.stops(flushed, NEXT_RENEWAL).await));
    scene.goes_on_with(flushed, AFTER_QUARANTINE).await;
    scene.ends().await;
}

#[tokio::test]
async fn restarted_after_a_long_lease_was_released() {
    for with_data in [true, false] {
        let server = RedisServer::builder().append_only(if with_data { "always" } else { "no" }).start();
        let scene = Setup::at(&server.url()).for_all().scene().await;
        let long = Instance::connect(&server.url(), "long", LONG).await;
        let day = Duration::from_secs(24 * 3_600);
        long.acquire("nightly", day).await.release().await.unwrap();
        // Everybody has heard from the store since.
        tokio::time::sleep(TTL).await;
        server.kill();
        if with_data {
            server.start_again()
        } else {
            server.start_again_empty()
        }
        let back = Instant::now();
        // In one case alice goes on, and a lease that is free is granted once her own could have expired.
        let _another = scene.record.candidate(&scene.bob, "another", lasting(TTL));
        let free = scene.bob.waits_for("free", TTL);
        let _granted = soon(free).await.unwrap().unwrap();
        scene.probe.within(back.elapsed(), FIRST_CONTACT + AFTER_QUARANTINE, "a free lease is granted");
    }
}

/// A long lease that is held is waited for, whoever else uses short ones.
#[tokio::test]
async fn flushed_while_a_long_lease_is_held() {
    let server = RedisServer::start();
    let scene = Setup::at(&server.url()).for_all().scene().await;
    let long = Instance::connect(&server.url(), "long", LONG).await;
    let term = long.acquire("nightly", LONG * 4).await;
    // Announced: alice and bob know of it before they hear from the store again.
    scene.alice.tenure.lease("anything").ttl(TTL).acquire().await.unwrap().release().await.unwrap();
    drop(term);
    let held = long.acquire("weekly", LONG * 4).await;

    assert_eq!(server.command(&["FLUSHALL"]), Reply::text("OK"));
    let flushed = Instant::now();
    assert!(is_loss_of_data(&scene.stops(flushed, NEXT_RENEWAL).await));
    scene.alice.sees("store.quarantined").await;
    let quarantine = report(&scene.alice.tenure).await.quarantine.unwrap();
    assert!(quarantine.remaining > LONG * 3, "{quarantine}");
    // Its holder relied on it when the data was lost. It may or may not have heard of that by now.
    drop(held);
}

/// An operator who knows that no holder lives need not wait.
#[tokio::test]
async fn a_quarantine_that_an_operator_ends() {
    let server = RedisServer::start();
    let scene = Setup::at(&server.url()).for_all().lasting(LONG).scene().await;
    assert_eq!(server.command(&["FLUSHALL"]), Reply::text("OK"));
    let operator = Tenure::builder(&server.url()).observer().connect().await.unwrap();
    assert!(is_loss_of_data(&scene.works.first_ending().await));
    let mut found = report(&operator).await;
    while found.quarantine.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        found = report(&operator).await;
    }
    let asked = Instant::now();
    assert!(operator.reopen(found.generation.unwrap()).await.unwrap());
    // Whoever waits is told.
    scene.goes_on_with(asked, Duration::from_millis(500)).await;
    scene.ends().await;
}

/// One spoilt record is its own lease's trouble.
#[tokio::test]
async fn a_token_that_an_outsider_spoilt() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    alice.acquire("job", LONG).await.release().await.unwrap();
    server.command(&["HSET", "tenure:term:{lease:job}", "token", "9007199254740991"]);
    assert!(alice.tenure.lease("job").try_acquire().await.is_err(), "there is no larger token");
    let newcomer = Instance::connect(&server.url(), "newcomer", LONG).await;
    for (instance, lease) in [(&alice, "one"), (&newcomer, "two")] {
        let _held = instance.acquire(lease, LONG).await;
    }
    // Also for whoever has seen it and comes back.
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    alice.sees("store.lost").await;
    let _held = alice.acquire("three", LONG).await;
    assert_eq!(report(&alice.tenure).await.quarantine, None);
}

/// The next renewal is 10 s away, and would be too late to say it.
#[tokio::test]
async fn a_publication_that_is_refused_ends_the_term() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let term = alice.acquire("job", LONG).await;
    server.command(&["DEL", "lease:job"]);
    assert!(term.publish("result", "x").await.is_err());
    let told = Instant::now();
    assert_eq!(soon(term.lost()).await.reason, Ending::Lost(Loss::Missing));
    assert!(!term.is_valid() && told.elapsed() < Duration::from_secs(5), "{:?}", told.elapsed());
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

/// Renewals go on without the record, and say nothing about how long leases are.
#[tokio::test]
async fn a_namespace_record_that_an_outsider_deletes_begins_a_quarantine_of_the_longest_ttl() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), TTL).await;
    let _held = [alice.acquire("one", TTL).await, bob.acquire("two", TTL).await];
    server.command(&["DEL", "tenure:ns"]);
    for instance in [&alice, &bob] {
        let renewed = instance.times("lease.renewed");
        until("renewed without the record", || instance.times("lease.renewed") > renewed).await;
    }
    for (instance, lease) in [(&alice, "three"), (&bob, "four")] {
        // The first to ask learns that the record is gone, and enters again.
        let _ = instance.tenure.lease(lease).ttl(TTL).try_acquire().await;
        let quarantine = report(&instance.tenure).await.quarantine;
        assert!(quarantine.is_none_or(|quarantine| quarantine.remaining <= TTL), "{quarantine:?}");
    }
    assert!(report(&alice.tenure).await.generation.is_some(), "the record was written again");
}
