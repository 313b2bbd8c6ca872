//! Leases without faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::lease::{Ending, LeaseState, Loss, ReleaseReason};
use tenure::{AcquireError, LeaseKind, LeaseName, PublishError, Token};
use tenure_testbed::{Proxy, RedisReply, RedisServer};

use crate::harness::{Bystander, Instance, LONG_TTL, TTL, WorkLog, settings_with_ttl, wait_until, with_timeout};

#[tokio::test]
async fn a_lease_is_acquired_renewed_and_released() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let term = alice.acquire("job", TTL).await;
    assert_eq!(term.state(), LeaseState::Owned);
    assert_eq!(server.command(&["GET", "lease:job"]).as_text(), alice.tenure.instance().as_str());
    let left = server.command(&["PTTL", "lease:job"]).as_int();
    assert!(left > 0 && left <= 1_500, "{left}");

    // The term lasts longer than its ttl.
    wait_until("four renewals", || alice.count_events("lease.renewed") >= 4).await;
    assert!(term.is_valid() && term.remaining() <= TTL);
    assert!(term.require(Duration::from_millis(10)).is_ok());
    assert!(term.require(TTL * 2).is_err());
    let info = term.info();
    assert_eq!((info.state, info.token, &info.holder), (LeaseState::Owned, term.token(), alice.tenure.instance()));
    assert!(info.acquired_at < info.last_renewed_at);

    let handle = term.clone();
    term.release().await.unwrap();
    assert!(!handle.is_valid());
    assert_eq!(handle.cancelled().await, Ending::Released(ReleaseReason::Voluntary));
    assert_eq!(server.command(&["EXISTS", "lease:job"]), RedisReply::Int(0));
}

#[tokio::test]
async fn a_released_lease_wakes_its_waiters_without_polling() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let term = alice.acquire("job", LONG_TTL).await;
    let waiting = bob.spawn_acquire("job", LONG_TTL);
    bob.wait_for_event("lease.waiting").await;
    let calls = || {
        let stats = server.command(&["INFO", "commandstats"]);
        let line =
            stats.as_text().lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default().to_owned();
        line.split(['=', ',']).nth(1).and_then(|calls| calls.parse::<u64>().ok()).unwrap_or(0)
    };
    // Let requests in flight complete.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = calls();
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    assert_eq!(calls(), before, "a waiter sends no request without an announcement");
    term.release().await.unwrap();
    // Thirty seconds before the ttl would end.
    let granted = with_timeout(waiting).await.unwrap().unwrap();
    assert!(granted.is_valid());
}

#[tokio::test]
async fn try_acquire_is_refused_with_the_holder() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let _term = alice.acquire("job", LONG_TTL).await;
    match bob.tenure.lease("job").try_acquire().await {
        Err(AcquireError::Held { holder, remaining }) => {
            assert_eq!(&holder, alice.tenure.instance());
            assert!(remaining.unwrap() > Duration::from_secs(20));
        }
        other => panic!("{other:?}"),
    }
    // Another task of the same process is refused, too.
    match alice.tenure.lease("job").try_acquire().await {
        Err(AcquireError::Held { holder, .. }) => assert_eq!(&holder, alice.tenure.instance()),
        other => panic!("{other:?}"),
    }
    let limit = Duration::from_millis(50);
    let error = bob.tenure.lease("job").timeout(limit).acquire().await.unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, AcquireError::TimedOut { waited, holder: Some(_), because: None } if waited == limit),
        "{text}"
    );
    assert!(matches!(bob.tenure.lease("a b").acquire().await, Err(AcquireError::Name(_))));
    assert!(matches!(bob.tenure.lease("x").ttl(Duration::ZERO).acquire().await, Err(AcquireError::Settings(_))));
}

#[tokio::test]
async fn tasks_of_one_process_hold_a_lease_one_after_another() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let record = WorkLog::default();
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            let (tenure, record) = (alice.tenure.clone(), record.clone());
            tokio::spawn(async move {
                let term = tenure.lease("job").ttl(LONG_TTL).acquire().await.unwrap();
                let who = number.to_string();
                let work = tokio::time::timeout(Duration::from_millis(20), record.work(&who, &term));
                assert!(work.await.is_err(), "the term must not end");
                term.release().await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        with_timeout(task).await.unwrap();
    }
    assert_eq!(record.intervals().len(), 8);
    record.assert_no_overlap();
}

#[tokio::test]
async fn a_cancelled_acquire_leaves_nothing_behind() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    for round in 0..20 {
        let wait = Duration::from_micros(round * 50);
        let _ = tokio::time::timeout(wait, alice.tenure.lease("job").ttl(LONG_TTL).acquire()).await;
        // If a grant had been forgotten, this would take thirty seconds.
        let term = tokio::time::timeout(Duration::from_secs(20), bob.tenure.lease("job").ttl(LONG_TTL).acquire()).await;
        term.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn dropping_a_term_stops_its_work_and_releases_the_lease() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let record = WorkLog::default();
    let term = alice.acquire("job", LONG_TTL).await;
    let work = tokio::spawn({
        let (record, handle) = (record.clone(), (*term).clone());
        async move { record.work("alice", &handle).await }
    });
    record.wait_for_work("alice", Token::ZERO).await;
    drop(term);
    let next = bob.acquire("job", LONG_TTL).await;
    assert_eq!(with_timeout(work).await.unwrap(), Ending::Released(ReleaseReason::Voluntary));
    assert!(tokio::time::timeout(Duration::from_millis(20), record.work("bob", &next)).await.is_err());
    record.assert_no_overlap();
}

#[tokio::test]
async fn a_release_waits_until_running_work_has_ended() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let term = alice.acquire("job", LONG_TTL).await;
    let work = term.begin().await.unwrap();
    drop(term);
    assert_eq!(with_timeout(work.cancelled()).await, Ending::Released(ReleaseReason::Voluntary));
    assert!(!work.is_valid());
    let waits = bob.spawn_acquire("job", LONG_TTL);
    bob.wait_for_event("lease.waiting").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waits.is_finished(), "the work has not ended yet");
    drop(work);
    assert!(with_timeout(waits).await.unwrap().is_ok());
}

#[tokio::test]
async fn work_does_not_begin_while_the_lease_is_uncertain() {
    let server = RedisServer::start();
    let ttl = Duration::from_secs(6);
    let alice = Instance::connect(&server.url(), "alice", ttl).await;
    let term = alice.acquire("job", ttl).await;
    server.stop();
    alice.wait_for_event("lease.uncertain").await;
    let begins = tokio::time::timeout(Duration::from_millis(50), term.run_infallible(async { 1 })).await;
    server.cont();
    assert!(begins.is_err(), "{begins:?}");
    // Deferred, not skipped.
    assert_eq!(with_timeout(term.run_infallible(async { 2 })).await.unwrap(), 2);
}

#[tokio::test]
async fn unpolled_work_does_not_delay_a_shutdown_beyond_its_lease() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let term = alice.acquire("job", TTL).await;
    let mut work = Box::pin(term.run_infallible(std::future::pending::<()>()));
    assert!(tokio::time::timeout(Duration::from_millis(20), &mut work).await.is_err());
    with_timeout(alice.tenure.shutdown()).await;
    assert!(!term.is_valid());
    assert!(with_timeout(work).await.is_err());
}

#[tokio::test]
async fn releasing_a_term_whose_work_stays_is_a_loss() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let settings = tenure::lease::LeaseSettings::builder().ttl(TTL).max_drain(Duration::ZERO).build().unwrap();
    let term = with_timeout(alice.tenure.lease("job").settings(settings).acquire()).await.unwrap();
    let work = term.begin().await.unwrap();
    let lost = with_timeout(term.release()).await.unwrap_err();
    assert!(matches!(&lost, tenure::ReleaseError::Lost(lost) if lost.reason == Loss::Expired), "{lost}");
    drop(work);
    assert!(with_timeout(alice.tenure.lease("job").ttl(TTL).acquire()).await.is_ok(), "the lease is unheld again");
}

#[tokio::test]
async fn a_lease_that_was_just_released_can_be_acquired_at_once() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    for _ in 0..50 {
        drop(with_timeout(alice.tenure.lease("job").ttl(LONG_TTL).try_acquire()).await.unwrap());
    }
}

#[tokio::test]
async fn foreign_programs_are_respected_and_see_ours() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let target = LeaseName::target("poll", "eu-1").unwrap();
    assert_eq!(server.command(&["SET", target.key(), "a-foreign-node", "NX", "PX", "700"]), RedisReply::text("OK"));
    match alice.tenure.lease(target.clone()).ttl(TTL).try_acquire().await {
        Err(AcquireError::Held { holder, .. }) => assert_eq!(holder.as_str(), "a-foreign-node"),
        other => panic!("{other:?}"),
    }
    let term = with_timeout(alice.tenure.lease(target.clone()).ttl(TTL).acquire()).await.unwrap();
    // A claim by such a program has no effect now.
    assert_eq!(server.command(&["SET", target.key(), "a-foreign-node", "NX", "PX", "700"]), RedisReply::Nil);
    assert!(term.is_valid());
    let role = LeaseName::with_prefix(LeaseKind::Role, "{my-app}:leader:", "cleanup").unwrap();
    let _leads = with_timeout(alice.tenure.lease(role.clone()).ttl(TTL).acquire()).await.unwrap();
    assert_eq!(server.command(&["GET", role.key()]).as_text(), alice.tenure.instance().as_str());
    assert_eq!(server.command(&["EXISTS", "tenure:term:{my-app}:leader:cleanup"]), RedisReply::Int(1));
}

#[tokio::test]
async fn only_the_holder_can_publish_results() {
    let server = RedisServer::start();
    let bystander = Bystander::at(&server.url()).await;
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let name = LeaseName::lease("job").unwrap();
    let term = alice.acquire("job", LONG_TTL).await;
    term.publish("report", "one").await.unwrap();
    let published = bystander.instance.tenure.read(&name, "report").await.unwrap().unwrap();
    assert_eq!((published.token, published.value.as_slice()), (term.token(), &b"one"[..]));
    let handle = (*term).clone();
    term.release().await.unwrap();
    assert!(matches!(handle.publish("report", "two").await, Err(PublishError::Refused(_))));
    alice.wait_for_event("publish.refused").await;
    assert_eq!(alice.tenure.read(&name, "report").await.unwrap().unwrap().value, b"one");
    bystander.assert_untouched().await;
}

#[tokio::test]
async fn terms_are_recorded() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let term = alice.acquire("job", LONG_TTL).await;
    let token = term.token();
    term.release().await.unwrap();
    alice.tenure.shutdown().await;
    let reader = Instance::connect(&server.url(), "reader", LONG_TTL).await;
    let notes = reader.tenure.admin().terms(10).await.unwrap();
    assert_eq!(notes.len(), 2, "{notes:#?}");
    assert!(notes.iter().all(|note| note.token == token && note.holder == *alice.tenure.instance()));
    assert!(notes[0].ending.is_none() && notes[0].demoted.is_none());
    assert_eq!(notes[1].ending, Some(Ending::Released(ReleaseReason::Voluntary)));
    let (from, demoted, released) = (notes[1].from, notes[1].demoted.unwrap(), notes[1].released.unwrap());
    assert!(from <= demoted && demoted <= released, "{notes:#?}");
}

#[tokio::test]
async fn a_shutdown_stops_all_work_releases_every_lease_and_refuses_waiters() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let record = WorkLog::default();
    let _held = bob.acquire("bobs", LONG_TTL).await;
    let working = record.spawn_worker(&alice, "job", settings_with_ttl(LONG_TTL));
    record.wait_for_work("alice", Token::ZERO).await;
    let waiting = alice.spawn_acquire("bobs", LONG_TTL);
    alice.wait_for_event("lease.waiting").await;
    with_timeout(alice.tenure.shutdown()).await;
    assert_eq!(with_timeout(waiting).await.unwrap().unwrap_err(), AcquireError::ShutDown);
    assert_eq!(working.first_ending().await, Ending::Released(ReleaseReason::Shutdown));
    assert_eq!(server.command(&["EXISTS", "lease:job"]), RedisReply::Int(0));
    assert!(matches!(alice.tenure.lease("x").acquire().await, Err(AcquireError::ShutDown)));
    assert!(bob.tenure.lease("job").try_acquire().await.is_ok());
}

/// A task that only checks whether it may begin must not count as running work.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_shutdown_does_not_end_early_because_of_attempts_to_begin_work() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    for _ in 0..20 {
        let alice = Instance::connect(&proxy.url(), "alice", LONG_TTL).await;
        let term = alice.acquire("job", LONG_TTL).await;
        // The release is in flight long enough for many attempts.
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
        with_timeout(alice.tenure.shutdown()).await;
        done.store(true, Ordering::Relaxed);
        for task in tasks {
            with_timeout(task).await.unwrap();
        }
        proxy.delay_requests(Duration::ZERO);
        assert_eq!(server.command(&["EXISTS", "lease:job"]), RedisReply::Int(0), "the lease must be released");
    }
}
