//! The ordinary course of things.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::lease::{Ending, LeaseState, ReleaseReason};
use tenure::{AcquireError, LeaseKind, LeaseName, PublishError, Token};
use tenure_testbed::{Proxy, RedisServer, Reply};

use crate::stage::{Bystander, Instance, LONG, Record, TTL, lasting, soon, until};

#[tokio::test]
async fn a_lease_is_acquired_kept_and_let_go_of() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let term = alice.acquire("job", TTL).await;
    assert_eq!(term.state(), LeaseState::Owned);
    assert_eq!(server.command(&["GET", "lease:job"]).as_text(), alice.tenure.instance().as_str());
    let left = server.command(&["PTTL", "lease:job"]).as_int();
    assert!(left > 0 && left <= 1_500, "{left}");

    // It lasts longer than its ttl.
    until("four renewals", || alice.times("lease.renewed") >= 4).await;
    assert!(term.is_valid() && term.remaining() <= TTL);
    assert!(term.require(Duration::from_millis(10)).is_ok());
    assert!(term.require(TTL * 2).is_err());
    let info = term.info();
    assert_eq!((info.state, info.token, &info.holder), (LeaseState::Owned, term.token(), alice.tenure.instance()));
    assert!(info.acquired_at < info.last_renewed_at);

    let handle = term.clone();
    term.release().await.unwrap();
    assert!(!handle.is_valid());
    assert_eq!(handle.lost().await.reason, Ending::Released(ReleaseReason::Voluntary));
    assert_eq!(server.command(&["EXISTS", "lease:job"]), Reply::Int(0));
}

#[tokio::test]
async fn whoever_waits_is_told_and_does_not_poll() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let term = alice.acquire("job", LONG).await;
    let waiting = bob.waits_for("job", LONG);
    bob.sees("lease.waiting").await;
    let calls = || {
        let stats = server.command(&["INFO", "commandstats"]);
        let line =
            stats.as_text().lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default().to_owned();
        line.split(['=', ',']).nth(1).and_then(|calls| calls.parse::<u64>().ok()).unwrap_or(0)
    };
    // Whatever is still under way has come and gone.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = calls();
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    assert_eq!(calls(), before, "nobody asks while there is nothing to be told");
    term.release().await.unwrap();
    // Thirty seconds before the ttl would have ended.
    let granted = soon(waiting).await.unwrap().unwrap();
    assert!(granted.is_valid());
}

#[tokio::test]
async fn whoever_tries_is_refused_with_who_has_it() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let _term = alice.acquire("job", LONG).await;
    match bob.tenure.lease("job").try_acquire().await {
        Err(AcquireError::Held { by, remaining }) => {
            assert_eq!(&by, alice.tenure.instance());
            assert!(remaining.unwrap() > Duration::from_secs(20));
        }
        other => panic!("{other:?}"),
    }
    // Another task of the same process is a stranger, too.
    match alice.tenure.lease("job").try_acquire().await {
        Err(AcquireError::Held { by, .. }) => assert_eq!(&by, alice.tenure.instance()),
        other => panic!("{other:?}"),
    }
    let limit = Duration::from_millis(50);
    let error = bob.tenure.lease("job").limit(limit).acquire().await.unwrap_err();
    let by = error.to_string();
    assert!(matches!(error, AcquireError::TimedOut { waited, by: Some(_), because: None } if waited == limit), "{by}");
    assert!(matches!(bob.tenure.lease("a b").acquire().await, Err(AcquireError::Name(_))));
    assert!(matches!(bob.tenure.lease("x").ttl(Duration::ZERO).acquire().await, Err(AcquireError::Settings(_))));
}

#[tokio::test]
async fn tasks_of_one_process_take_their_turns() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let record = Record::default();
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            let (tenure, record) = (alice.tenure.clone(), record.clone());
            tokio::spawn(async move {
                let term = tenure.lease("job").ttl(LONG).acquire().await.unwrap();
                let who = number.to_string();
                let work = tokio::time::timeout(Duration::from_millis(20), record.work(&who, &term));
                assert!(work.await.is_err(), "nobody takes it away");
                term.release().await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert_eq!(record.stretches().len(), 8);
    record.check();
}

#[tokio::test]
async fn a_wait_that_is_given_up_leaves_nothing_behind() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    for round in 0..20 {
        let wait = Duration::from_micros(round * 50);
        let _ = tokio::time::timeout(wait, alice.tenure.lease("job").ttl(LONG).acquire()).await;
        // Had a grant been forgotten, this would take thirty seconds.
        let term = tokio::time::timeout(Duration::from_secs(20), bob.tenure.lease("job").ttl(LONG).acquire()).await;
        term.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn dropping_a_term_stops_its_work_and_lets_go() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let record = Record::default();
    let term = alice.acquire("job", LONG).await;
    let work = tokio::spawn({
        let (record, handle) = (record.clone(), (*term).clone());
        async move { record.work("alice", &handle).await }
    });
    record.works("alice", Token::ZERO).await;
    drop(term);
    let next = bob.acquire("job", LONG).await;
    assert_eq!(soon(work).await.unwrap().reason, Ending::Released(ReleaseReason::Voluntary));
    assert!(tokio::time::timeout(Duration::from_millis(20), record.work("bob", &next)).await.is_err());
    record.check();
}

#[tokio::test]
async fn work_that_has_begun_is_waited_for_until_it_says_that_it_is_over() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let term = alice.acquire("job", LONG).await;
    let work = term.begin().await.unwrap();
    drop(term);
    assert_eq!(soon(work.lost()).await.reason, Ending::Released(ReleaseReason::Voluntary));
    assert!(!work.is_valid());
    let waits = bob.waits_for("job", LONG);
    bob.sees("lease.waiting").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waits.is_finished(), "the work is not over yet");
    drop(work);
    assert!(soon(waits).await.unwrap().is_ok());
}

#[tokio::test]
async fn work_does_not_begin_while_it_is_uncertain_whose_the_lease_is() {
    let server = RedisServer::start();
    let ttl = Duration::from_secs(6);
    let alice = Instance::connect(&server.url(), "alice", ttl).await;
    let term = alice.acquire("job", ttl).await;
    server.stop();
    alice.sees("lease.uncertain").await;
    let begins = tokio::time::timeout(Duration::from_millis(50), term.run(async { 1 })).await;
    server.cont();
    assert!(begins.is_err(), "{begins:?}");
    // Kept for later, not skipped.
    assert_eq!(soon(term.run(async { 2 })).await.unwrap(), 2);
}

#[tokio::test]
async fn work_that_is_never_polled_again_does_not_hold_up_a_shutdown_beyond_its_lease() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let term = alice.acquire("job", TTL).await;
    let mut work = Box::pin(term.run(std::future::pending::<()>()));
    assert!(tokio::time::timeout(Duration::from_millis(20), &mut work).await.is_err());
    soon(alice.tenure.shutdown()).await;
    assert!(!term.is_valid());
    assert!(soon(work).await.is_err());
}

#[tokio::test]
async fn letting_go_of_a_term_whose_work_stays_is_a_loss() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let settings = tenure::lease::LeaseSettings::builder().ttl(TTL).max_drain(Duration::ZERO).build().unwrap();
    let term = soon(alice.tenure.lease("job").settings(settings).acquire()).await.unwrap();
    let work = term.begin().await.unwrap();
    let lost = soon(term.release()).await.unwrap_err();
    assert!(lost.to_string().contains("is over"), "{lost}");
    drop(work);
    assert!(soon(alice.tenure.lease("job").ttl(TTL).acquire()).await.is_ok(), "and the name is free again");
}

#[tokio::test]
async fn a_lease_that_was_just_let_go_of_can_be_tried_for_at_once() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    for _ in 0..50 {
        drop(soon(alice.tenure.lease("job").ttl(LONG).try_acquire()).await.unwrap());
    }
}

#[tokio::test]
async fn foreign_programs_are_respected_and_see_ours() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let target = LeaseName::target("poll", "eu-1").unwrap();
    assert_eq!(server.command(&["SET", target.key(), "a-foreign-node", "NX", "PX", "700"]), Reply::text("OK"));
    match alice.tenure.lease_named(target.clone()).ttl(TTL).try_acquire().await {
        Err(AcquireError::Held { by, .. }) => assert_eq!(by.as_str(), "a-foreign-node"),
        other => panic!("{other:?}"),
    }
    let term = soon(alice.tenure.lease_named(target.clone()).ttl(TTL).acquire()).await.unwrap();
    // What such a program does to claim it has no effect now.
    assert_eq!(server.command(&["SET", target.key(), "a-foreign-node", "NX", "PX", "700"]), Reply::Nil);
    assert!(term.is_valid());
    let role = LeaseName::with_prefix(LeaseKind::Role, "{my-app}:leader:", "cleanup").unwrap();
    let _leads = soon(alice.tenure.lease_named(role.clone()).ttl(TTL).acquire()).await.unwrap();
    assert_eq!(server.command(&["GET", role.key()]).as_text(), alice.tenure.instance().as_str());
    assert_eq!(server.command(&["EXISTS", "tenure:term:{my-app}:leader:cleanup"]), Reply::Int(1));
}

#[tokio::test]
async fn results_are_published_by_the_holder_and_by_nobody_else() {
    let server = RedisServer::start();
    let bystander = Bystander::at(&server.url()).await;
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let name = LeaseName::lease("job").unwrap();
    let term = alice.acquire("job", LONG).await;
    term.publish("report", "one").await.unwrap();
    let published = bystander.instance.tenure.read(&name, "report").await.unwrap().unwrap();
    assert_eq!((published.token, published.value.as_slice()), (term.token(), &b"one"[..]));
    let handle = (*term).clone();
    term.release().await.unwrap();
    assert!(matches!(handle.publish("report", "two").await, Err(PublishError::Refused(_))));
    alice.sees("publish.refused").await;
    assert_eq!(alice.tenure.read(&name, "report").await.unwrap().unwrap().value, b"one");
    bystander.is_untouched().await;
}

#[tokio::test]
async fn terms_are_written_down() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let term = alice.acquire("job", LONG).await;
    let token = term.token();
    term.release().await.unwrap();
    alice.tenure.shutdown().await;
    let reader = Instance::connect(&server.url(), "reader", LONG).await;
    let notes = reader.tenure.terms(10).await.unwrap();
    assert_eq!(notes.len(), 2, "{notes:#?}");
    assert!(notes.iter().all(|note| note.token == token && note.holder == *alice.tenure.instance()));
    assert!(notes[0].ending.is_none() && notes[0].demoted.is_none());
    assert_eq!(notes[1].ending, Some(Ending::Released(ReleaseReason::Voluntary)));
    let (from, demoted, released) = (notes[1].from, notes[1].demoted.unwrap(), notes[1].released.unwrap());
    assert!(from <= demoted && demoted <= released, "{notes:#?}");
}

#[tokio::test]
async fn shutting_down_stops_all_work_lets_go_of_everything_and_refuses_whoever_waits() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let record = Record::default();
    let _held = bob.acquire("bobs", LONG).await;
    let working = record.candidate(&alice, "job", lasting(LONG));
    record.works("alice", Token::ZERO).await;
    let waiting = alice.waits_for("bobs", LONG);
    alice.sees("lease.waiting").await;
    soon(alice.tenure.shutdown()).await;
    assert_eq!(soon(waiting).await.unwrap().unwrap_err(), AcquireError::ShutDown);
    assert_eq!(working.first_ending().await, Ending::Released(ReleaseReason::Shutdown));
    assert_eq!(server.command(&["EXISTS", "lease:job"]), Reply::Int(0));
    assert!(matches!(alice.tenure.lease("x").acquire().await, Err(AcquireError::ShutDown)));
    assert!(bob.tenure.lease("job").try_acquire().await.is_ok());
}

/// Whoever only asks whether it may begin is no work that is still there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_shutdown_does_not_leave_early_because_somebody_asks_to_begin() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    for _ in 0..20 {
        let alice = Instance::connect(&proxy.url(), "alice", LONG).await;
        let term = alice.acquire("job", LONG).await;
        // The release is under way for long enough to be asked many times meanwhile.
        proxy.delay_requests(Duration::from_millis(50));
        let done = Arc::new(AtomicBool::new(false));
        let ask = |_| {
            let (handle, done) = ((*term).clone(), done.clone());
            tokio::spawn(async move {
                while !done.load(Ordering::Relaxed) {
                    for _ in 0..100 {
                        drop(handle.begin().await);
                    }
                    tokio::task::yield_now().await;
                }
            })
        };
        let tasks: Vec<_> = (0..2).map(ask).collect();
        soon(alice.tenure.shutdown()).await;
        done.store(true, Ordering::Relaxed);
        for task in tasks {
            soon(task).await.unwrap();
        }
        proxy.delay_requests(Duration::ZERO);
        assert_eq!(server.command(&["EXISTS", "lease:job"]), Reply::Int(0), "it was let go of");
    }
}
