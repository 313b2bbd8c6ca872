//! Standing, asking, stopping, stepping down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::{LeaseName, Standing, Token};
use tenure_testbed::{RedisServer, Reply};

use crate::stage::{Instance, LONG, soon, until};

use super::{ROLE, Watched, a_leader_and_a_follower};

#[tokio::test]
async fn every_standing_is_entered_and_told_in_order() {
    let server = RedisServer::start();
    let ((alice, first), (_bob, second)) = a_leader_and_a_follower(&server, LONG).await;
    let token = first.election.term().unwrap().token();
    first.election.stop().await;
    second.leads().await;
    second.election.stop().await;
    until("all is told", || second.told().len() >= 7 && first.told().len() >= 5).await;
    assert_eq!(
        first.told(),
        [
            "follower → candidate",
            "candidate → leader",
            "leadership acquired",
            "leader → follower",
            "leadership lost (shutdown)"
        ]
    );
    assert_eq!(
        second.told(),
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
        assert!(alice.has(name), "{:?}", alice.happened());
    }
}

#[tokio::test]
async fn the_leader_is_known_to_everybody_with_what_it_says_of_itself() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let election = alice.tenure.election(ROLE).key("my-app:leader").metadata("10.0.0.7:8080").build().unwrap();
    let name = election.name().clone();
    assert_eq!(bob.tenure.leader_of(&name).await.unwrap(), None);
    election.start();
    let term = election.wait_for_leadership(LONG).await.unwrap();
    assert_eq!(server.command(&["GET", "my-app:leader"]).as_text(), election.id().as_str());
    until("it is published", || server.command(&["EXISTS", "tenure:records:{my-app:leader}"]) == Reply::Int(1)).await;
    let leader = bob.tenure.leader_of(&name).await.unwrap().unwrap();
    assert_eq!((&leader.instance, leader.token), (alice.tenure.instance(), Some(term.token())));
    assert_eq!(leader.metadata.as_deref(), Some(&b"10.0.0.7:8080"[..]));
    assert!(leader.remaining.unwrap() <= LONG);
}

#[tokio::test]
async fn two_elections_of_one_role_in_one_process_compete_like_strangers() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let (first, second) = (Watched::start(&alice, LONG), Watched::start(&alice, LONG));
    until("one leads", || first.election.is_leader() || second.election.is_leader()).await;
    assert!(!(first.election.is_leader() && second.election.is_leader()));
    let (leader, other) = if first.election.is_leader() { (&first, &second) } else { (&second, &first) };
    let token = leader.election.term().unwrap().token();
    leader.election.stop().await;
    assert!(other.leads().await.token() > token);
    first.check();
    second.check();
}

#[tokio::test]
async fn started_again_after_a_stop_it_campaigns_and_tells_as_before() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let watched = Watched::start(&alice, LONG);
    let mut last = Token::ZERO;
    for round in 1..=3 {
        let term = watched.leads().await;
        assert!(term.token() > last);
        last = term.token();
        watched.election.stop().await;
        until("it is told", || watched.told().iter().filter(|told| told.contains("lost")).count() == round).await;
        watched.election.start();
    }
    watched.check();
}

#[tokio::test]
async fn stopping_at_any_moment_of_a_start_leaves_nothing_behind() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let name = LeaseName::role(ROLE).unwrap();
    for round in 0..30 {
        let jitter = Duration::from_millis(if round % 3 == 0 { 5 } else { 0 });
        let election = alice.tenure.election(ROLE).start_jitter(jitter).build().unwrap();
        election.start();
        tokio::time::sleep(Duration::from_micros(round * 200)).await;
        soon(election.stop()).await;
        assert!(!election.is_leader() && election.state() == Standing::Follower);
        let term = soon(bob.tenure.lease_named(name.clone()).acquire()).await.unwrap();
        assert!(!election.is_leader(), "a stopped candidate stays stopped");
        term.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn started_stopped_asked_and_listened_to_by_many_at_once() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let watched = Watched::of(alice.tenure.election(ROLE).build().unwrap());
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
                        _ => election.on(|_| {}).unwrap().remove(),
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    done.store(true, Ordering::SeqCst);
    for task in tasks {
        soon(task).await.unwrap();
    }
    soon(watched.election.stop()).await;
    assert!(!watched.election.is_leader());
    watched.election.start();
    watched.leads().await;
    soon(watched.election.stop()).await;
    until("all is told", || watched.told().last().is_some_and(|told| told.contains("lost"))).await;
    watched.check();
}

#[tokio::test]
async fn a_leader_that_is_asked_to_steps_down_for_the_one_that_was_named() {
    let server = RedisServer::start();
    let ttl = Duration::from_secs(3);
    let instances = [
        Instance::connect(&server.url(), "alice", LONG).await,
        Instance::connect(&server.url(), "bob", LONG).await,
        Instance::connect(&server.url(), "carol", LONG).await,
    ];
    let all: Vec<Watched> = instances.iter().map(|instance| Watched::start(instance, ttl)).collect();
    let leader = || all.iter().position(|one| one.election.is_leader());
    until("somebody leads", || leader().is_some()).await;
    for _ in 0..4 {
        let from = leader().unwrap();
        let to = (from + 1) % 3;
        let name = all[from].election.name().clone();
        let asked = instances[from].tenure.step_down(&name, Some(instances[to].tenure.instance())).await.unwrap();
        assert!(asked.is_some());
        until("the one that was named leads", || all[to].election.is_leader()).await;
        until("the other does not", || !all[from].election.is_leader()).await;
    }
    for one in &all {
        one.check();
    }
}

#[tokio::test]
async fn a_leader_that_steps_down_does_not_win_again_when_somebody_else_waits() {
    let server = RedisServer::start();
    let ((alice, first), (_bob, second)) = a_leader_and_a_follower(&server, LONG).await;
    assert!(alice.tenure.step_down(first.election.name(), None).await.unwrap().is_some());
    second.leads().await;
    first.hears("leadership lost (step_down)").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_knows_that_it_leads_is_not_told_otherwise() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    for _ in 0..200 {
        let election = alice.tenure.election(ROLE).build().unwrap();
        election.start();
        election.wait_for_leadership(LONG).await.unwrap();
        assert!(election.is_leader() && election.state() == Standing::Leader, "{election:?}");
        election.stop().await;
    }
}
