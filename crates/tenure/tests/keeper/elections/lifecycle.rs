//! Starting, querying, stopping and stepping down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::{ElectionState, LeaseName, Token};
use tenure_testbed::{RedisReply, RedisServer};

use crate::harness::{Instance, LONG_TTL, wait_until, with_timeout};

use super::{ROLE, RecordedElection, start_leader_and_follower};

#[tokio::test]
async fn every_state_change_is_reported_in_order() {
    let server = RedisServer::start();
    let ((alice, first), (_bob, second)) = start_leader_and_follower(&server, LONG_TTL).await;
    let token = first.election.term().unwrap().token();
    first.election.stop().await;
    second.wait_for_leadership().await;
    second.election.stop().await;
    wait_until("all events are reported", || second.event_texts().len() >= 7 && first.event_texts().len() >= 5).await;
    assert_eq!(
        first.event_texts(),
        [
            "follower → candidate",
            "candidate → leader",
            "leadership acquired",
            "leader → follower",
            "leadership lost (shutdown)"
        ]
    );
    assert_eq!(
        second.event_texts(),
        [
            "follower → candidate",
            "candidate → follower",
            "follower → candidate",
            "candidate → leader",
            "leadership acquired",
            "leader → follower",
            "leadership lost (shutdown)"
        ]
    );
    assert!(first.events.lock().unwrap().iter().skip(1).all(|event| event.token == Some(token)));
    for name in ["election.state_changed", "election.leadership_acquired", "election.leadership_lost"] {
        assert!(alice.has_event(name), "{:?}", alice.event_names());
    }
}

#[tokio::test]
async fn every_instance_can_read_the_leader_and_its_metadata() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let election = alice.tenure.election(ROLE).key("my-app:leader").metadata("10.0.0.7:8080").build().unwrap();
    let name = election.name().clone();
    assert_eq!(bob.tenure.fleet().leader_of(&name).await.unwrap(), None);
    election.start();
    let term = election.wait_for_leadership(LONG_TTL).await.unwrap();
    assert_eq!(server.command(&["GET", "my-app:leader"]).as_text(), election.id().as_str());
    wait_until("the metadata is published", || {
        server.command(&["EXISTS", "tenure:records:{my-app:leader}"]) == RedisReply::Int(1)
    })
    .await;
    let leader = bob.tenure.fleet().leader_of(&name).await.unwrap().unwrap();
    assert_eq!((&leader.instance, leader.token), (alice.tenure.instance(), Some(term.token())));
    assert_eq!(leader.metadata.as_deref(), Some("10.0.0.7:8080"));
    assert!(leader.remaining.unwrap() <= LONG_TTL);
}

#[tokio::test]
async fn two_elections_of_one_role_in_one_process_compete() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let (first, second) = (RecordedElection::start(&alice, LONG_TTL), RecordedElection::start(&alice, LONG_TTL));
    wait_until("one leads", || first.election.is_leader() || second.election.is_leader()).await;
    assert!(!(first.election.is_leader() && second.election.is_leader()));
    let (leader, other) = if first.election.is_leader() { (&first, &second) } else { (&second, &first) };
    let token = leader.election.term().unwrap().token();
    leader.election.stop().await;
    assert!(other.wait_for_leadership().await.token() > token);
    first.assert_event_order();
    second.assert_event_order();
}

#[tokio::test]
async fn an_election_can_be_restarted_after_a_stop() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let watched = RecordedElection::start(&alice, LONG_TTL);
    let mut last = Token::ZERO;
    for round in 1..=3 {
        let term = watched.wait_for_leadership().await;
        assert!(term.token() > last);
        last = term.token();
        watched.election.stop().await;
        wait_until("reported", || watched.event_texts().iter().filter(|told| told.contains("lost")).count() == round)
            .await;
        watched.election.start();
    }
    watched.assert_event_order();
}

#[tokio::test]
async fn stopping_at_any_moment_of_a_start_leaves_nothing_behind() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let name = LeaseName::role(ROLE).unwrap();
    for round in 0..30 {
        let jitter = Duration::from_millis(if round % 3 == 0 { 5 } else { 0 });
        let election = alice.tenure.election(ROLE).start_jitter(jitter).build().unwrap();
        election.start();
        tokio::time::sleep(Duration::from_micros(round * 200)).await;
        with_timeout(election.stop()).await;
        assert!(!election.is_leader() && election.state() == ElectionState::Follower);
        let term = with_timeout(bob.tenure.lease(name.clone()).acquire()).await.unwrap();
        assert!(!election.is_leader(), "a stopped candidate stays stopped");
        term.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_election_can_be_used_from_many_tasks_at_once() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let watched = RecordedElection::of(alice.tenure.election(ROLE));
    let done = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            let (election, done) = (watched.election.clone(), done.clone());
            tokio::spawn(async move {
                while !done.load(Ordering::SeqCst) {
                    match number % 4 {
                        0 => election.start(),
                        1 => election.stop().await,
                        2 => assert!(!election.is_leader() || election.id().as_str().starts_with("alice")),
                        _ => drop(election.events()),
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    done.store(true, Ordering::SeqCst);
    for task in tasks {
        with_timeout(task).await.unwrap();
    }
    with_timeout(watched.election.stop()).await;
    assert!(!watched.election.is_leader());
    watched.election.start();
    watched.wait_for_leadership().await;
    with_timeout(watched.election.stop()).await;
    wait_until("the loss is reported", || watched.event_texts().last().is_some_and(|told| told.contains("lost"))).await;
    watched.assert_event_order();
}

#[tokio::test]
async fn a_step_down_hands_over_to_the_named_instance() {
    let server = RedisServer::start();
    let ttl = Duration::from_secs(3);
    let instances = [
        Instance::connect(&server.url(), "alice", LONG_TTL).await,
        Instance::connect(&server.url(), "bob", LONG_TTL).await,
        Instance::connect(&server.url(), "carol", LONG_TTL).await,
    ];
    let all: Vec<RecordedElection> = instances.iter().map(|instance| RecordedElection::start(instance, ttl)).collect();
    let leader = || all.iter().position(|one| one.election.is_leader());
    wait_until("a candidate leads", || leader().is_some()).await;
    for _ in 0..4 {
        let from = leader().unwrap();
        let to = (from + 1) % 3;
        let name = all[from].election.name().clone();
        let asked =
            instances[from].tenure.admin().step_down(&name, Some(instances[to].tenure.instance())).await.unwrap();
        assert!(asked.is_some());
        wait_until("the named candidate leads", || all[to].election.is_leader()).await;
        wait_until("the previous leader does not lead", || !all[from].election.is_leader()).await;
    }
    for one in &all {
        one.assert_event_order();
    }
}

#[tokio::test]
async fn a_leader_that_steps_down_is_followed_by_a_waiting_candidate() {
    let server = RedisServer::start();
    let ((alice, first), (_bob, second)) = start_leader_and_follower(&server, LONG_TTL).await;
    assert!(alice.tenure.admin().step_down(first.election.name(), None).await.unwrap().is_some());
    second.wait_for_leadership().await;
    first.wait_for_event("leadership lost (step_down)").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn wait_for_leadership_agrees_with_is_leader() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    for _ in 0..200 {
        let election = alice.tenure.election(ROLE).build().unwrap();
        election.start();
        election.wait_for_leadership(LONG_TTL).await.unwrap();
        assert!(election.is_leader() && election.state() == ElectionState::Leader, "{election:?}");
        election.stop().await;
    }
}
