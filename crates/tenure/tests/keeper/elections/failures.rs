//! The rows of the ADR's table, the scenarios of the Sovereign document, and other failures of leaders.

use std::time::{Duration, Instant};

use tenure::EventKind;
use tenure::lease::{Ending, Loss};
use tenure::{ElectionState, Token};
use tenure_testbed::{LagProbe, Proxy, RedisServer};

use crate::harness::{Instance, LONG_TTL, MAX_STOP_DELAY, STORE_ENV, TTL, WorkLog, start_process, wait_until};

use super::{ROLE, RecordedElection, spawn_leader, start_leader_and_follower};

/// Leads until it is killed.
#[tokio::test]
#[ignore = "a part that other tests start as a process"]
async fn leader_process() {
    let Ok(url) = std::env::var(STORE_ENV) else { return };
    let instance = Instance::connect(&url, "child", TTL).await;
    let watched = RecordedElection::start(&instance, TTL);
    let term = watched.wait_for_leadership().await;
    println!("READY {}", term.token());
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_leader_that_crashes_is_replaced_when_its_ttl_ends() {
    let probe = LagProbe::start();
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let (process, token) = start_process("elections::failures::leader_process", &server.url());
    let token = Token::new(token.parse().unwrap()).unwrap();
    let watched = RecordedElection::start(&alice, TTL);
    watched.wait_for_event("candidate → follower").await;
    assert_eq!(watched.election.current_leader().await.unwrap().unwrap().token, Some(token));

    process.signal(rustix::process::Signal::KILL);
    let killed = Instant::now();

    let term = watched.wait_for_leadership().await;
    probe.assert_within(killed.elapsed(), TTL + Duration::from_millis(25), "the role has a leader again");
    assert!(term.token() > token);
    watched.assert_event_order();
}

#[tokio::test]
async fn a_leader_that_is_cut_off_stops_before_its_successor_works() {
    let probe = LagProbe::start();
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let alice = Instance::connect(&proxy.url(), "alice", TTL).await;
    let bob = Instance::connect(&server.url(), "bob", TTL).await;
    let record = WorkLog::default();
    let first = spawn_leader(&record, &alice, TTL);
    let token = record.wait_for_work("alice", Token::ZERO).await;
    let second = spawn_leader(&record, &bob, TTL);
    bob.wait_for_event("lease.waiting").await;

    proxy.blackhole();
    let cut = Instant::now();

    alice.wait_for_event("election.leadership_lost").await;
    probe.assert_within(cut.elapsed(), MAX_STOP_DELAY, "the leader stops");
    record.wait_for_work("bob", token).await;
    probe.assert_within(cut.elapsed(), TTL + Duration::from_millis(25), "its successor works");
    proxy.pass();
    wait_until("alice is connected again", || alice.tenure.stats().connected).await;
    record.assert_no_overlap();
    first.abort();
    second.abort();
}

#[tokio::test]
async fn without_the_store_all_candidates_become_followers() {
    let server = RedisServer::builder().append_only("always").start();
    let builder = |name: &str| crate::harness::builder(&server.url(), name, TTL).durable();
    let (alice, bob) = (Instance::with(builder("alice")).await, Instance::with(builder("bob")).await);
    let (first, second) = (RecordedElection::start(&alice, TTL), RecordedElection::start(&bob, TTL));
    wait_until("a candidate leads", || first.election.is_leader() || second.election.is_leader()).await;

    server.kill();
    let standing = |watched: &RecordedElection| watched.election.state();
    wait_until("no candidate leads", || [&first, &second].iter().all(|one| standing(one) == ElectionState::Follower))
        .await;
    assert!(!first.election.is_leader() && !second.election.is_leader());
    for one in [&first, &second] {
        wait_until("reported", || one.event_texts().iter().any(|told| told.starts_with("election failed"))).await;
    }

    server.restart();
    wait_until("a candidate leads again", || first.election.is_leader() || second.election.is_leader()).await;
    first.assert_event_order();
    second.assert_event_order();
}

#[tokio::test]
async fn a_leader_that_stops_is_replaced_at_once() {
    let server = RedisServer::start();
    let ((_alice, first), (_bob, second)) = start_leader_and_follower(&server, LONG_TTL).await;
    let token = first.election.term().unwrap().token();

    first.election.stop().await;

    assert!(!first.election.is_leader() && first.election.state() == ElectionState::Follower);
    // Thirty seconds before the ttl would end.
    assert!(second.wait_for_leadership().await.token() > token);
    first.wait_for_event("leadership lost (shutdown)").await;
    first.assert_event_order();
    second.assert_event_order();
}

#[tokio::test]
async fn a_leader_that_renews_but_does_nothing_is_taken_over() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let settings = |instance: &Instance| {
        let limit = Duration::from_secs(2);
        instance.tenure.election(ROLE).ttl(Duration::from_secs(3)).take_over_after(limit)
    };
    let (first, second) = (RecordedElection::of(settings(&alice)), RecordedElection::of(settings(&bob)));
    first.election.start();
    let term = first.wait_for_leadership().await;
    second.election.start();
    // While the leader makes progress, no candidate takes over.
    for _ in 0..40 {
        term.progress();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(first.election.is_leader() && !second.event_texts().contains(&"leadership acquired".to_owned()));
    // Then it hangs.
    let next = second.wait_for_leadership().await;
    assert!(next.token() > term.token());
    wait_until("the first has noticed", || first.event_texts().iter().any(|told| told.starts_with("leadership lost")))
        .await;
    first.assert_event_order();
    second.assert_event_order();
}

#[tokio::test]
async fn a_short_disconnect_does_not_end_a_leadership() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let watched = RecordedElection::start(&alice, LONG_TTL);
    let term = watched.wait_for_leadership().await;
    for round in 1..=5 {
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        wait_until("attached again", || alice.count_events("store.attached") > round).await;
        assert!(watched.election.is_leader() && term.is_valid());
    }
    assert_eq!(
        watched.event_texts().iter().filter(|told| told.starts_with("leadership")).count(),
        1,
        "{:?}",
        watched.event_texts()
    );
}

#[tokio::test]
async fn a_loss_is_reported_with_its_reason() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let watched = RecordedElection::start(&alice, TTL);
    watched.wait_for_leadership().await;
    server.command(&["DEL", "leader:cleanup"]);
    wait_until("lost", || watched.event_texts().iter().any(|told| told.contains("lost"))).await;
    let lost = watched.events.lock().unwrap().iter().find_map(|event| match &event.kind {
        EventKind::LeadershipLost { reason } => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(lost, Some(Ending::Lost(Loss::Missing)));
    // The instance is a candidate again.
    wait_until("leads again", || {
        watched.event_texts().iter().filter(|told| *told == "leadership acquired").count() == 2
    })
    .await;
    watched.assert_event_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_blocks_every_thread_of_the_runtime_keeps_the_leadership() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let watched = RecordedElection::start(&alice, TTL);
    let term = watched.wait_for_leadership().await;
    let blocked: Vec<_> = (0..4).map(|_| tokio::spawn(async { std::thread::sleep(TTL * 2) })).collect();
    std::thread::sleep(TTL * 2);
    assert!(watched.election.is_leader());
    for task in blocked {
        task.await.unwrap();
    }
    assert_eq!(watched.election.term().map(|now| now.token()), Some(term.token()));
}
