//! The rows of the ADR's table, the scenarios of the Sovereign document, and what else befalls leaders.

use std::time::{Duration, Instant};

use tenure::election::ElectionNews;
use tenure::lease::{Ending, Loss};
use tenure::{Standing, Token};
use tenure_testbed::{Probe, Proxy, RedisServer};

use crate::stage::{Instance, LAST_STOP, LONG, Record, STORE, TTL, play, until};

use super::{ROLE, Watched, a_leader_and_a_follower, leading};

/// Leads until it is killed.
#[tokio::test]
#[ignore = "a part that other tests start as a process"]
async fn a_leader() {
    let Ok(url) = std::env::var(STORE) else { return };
    let instance = Instance::connect(&url, "child", TTL).await;
    let watched = Watched::start(&instance, TTL);
    let term = watched.leads().await;
    println!("READY {}", term.token());
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_leader_that_crashes_is_replaced_when_its_ttl_ends() {
    let probe = Probe::start();
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let (process, token) = play("elections::failures::a_leader", &server.url());
    let token = Token::new(token.parse().unwrap()).unwrap();
    let watched = Watched::start(&alice, TTL);
    watched.hears("candidate → follower").await;
    assert_eq!(watched.election.current_leader().await.unwrap().unwrap().token, Some(token));

    process.signal(rustix::process::Signal::KILL);
    let killed = Instant::now();

    let term = watched.leads().await;
    probe.within(killed.elapsed(), TTL + Duration::from_millis(25), "a leader again");
    assert!(term.token() > token);
    watched.check();
}

#[tokio::test]
async fn a_leader_that_is_cut_off_stops_before_its_successor_works() {
    let probe = Probe::start();
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let alice = Instance::connect(&proxy.url(), "alice", TTL).await;
    let bob = Instance::connect(&server.url(), "bob", TTL).await;
    let record = Record::default();
    let first = leading(&record, &alice, TTL);
    let token = record.works("alice", Token::ZERO).await;
    let second = leading(&record, &bob, TTL);
    bob.sees("lease.waiting").await;

    proxy.swallow();
    let cut = Instant::now();

    alice.sees("election.leadership_lost").await;
    probe.within(cut.elapsed(), LAST_STOP, "the leader stops");
    record.works("bob", token).await;
    probe.within(cut.elapsed(), TTL + Duration::from_millis(25), "its successor works");
    proxy.pass();
    until("alice is back", || alice.tenure.how_it_stands().connected).await;
    record.check();
    first.abort();
    second.abort();
}

#[tokio::test]
async fn while_the_store_is_away_all_are_followers_and_say_so() {
    let server = RedisServer::builder().append_only("always").start();
    let builder = |name: &str| crate::stage::builder(&server.url(), name, TTL).durable();
    let (alice, bob) = (Instance::with(builder("alice")).await, Instance::with(builder("bob")).await);
    let (first, second) = (Watched::start(&alice, TTL), Watched::start(&bob, TTL));
    until("somebody leads", || first.election.is_leader() || second.election.is_leader()).await;

    server.kill();
    let standing = |watched: &Watched| watched.election.state();
    until("nobody leads", || [&first, &second].iter().all(|one| standing(one) == Standing::Follower)).await;
    assert!(!first.election.is_leader() && !second.election.is_leader());
    for one in [&first, &second] {
        until("it is told", || one.told().iter().any(|told| told.starts_with("election failed"))).await;
    }

    server.start_again();
    until("somebody leads again", || first.election.is_leader() || second.election.is_leader()).await;
    first.check();
    second.check();
}

#[tokio::test]
async fn a_leader_that_stops_is_replaced_at_once() {
    let server = RedisServer::start();
    let ((_alice, first), (_bob, second)) = a_leader_and_a_follower(&server, LONG).await;
    let token = first.election.term().unwrap().token();

    first.election.stop().await;

    assert!(!first.election.is_leader() && first.election.state() == Standing::Follower);
    // Thirty seconds before the ttl would have ended.
    assert!(second.leads().await.token() > token);
    first.hears("leadership lost (shutdown)").await;
    first.check();
    second.check();
}

#[tokio::test]
async fn a_leader_that_renews_but_does_nothing_is_taken_over() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let settings = |instance: &Instance| {
        let limit = Duration::from_secs(2);
        instance.tenure.election(ROLE).ttl(Duration::from_secs(3)).take_over_after(limit).build().unwrap()
    };
    let (first, second) = (Watched::of(settings(&alice)), Watched::of(settings(&bob)));
    first.election.start();
    let term = first.leads().await;
    second.election.start();
    // As long as it gets on, nobody touches it.
    for _ in 0..40 {
        term.progress();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(first.election.is_leader() && !second.told().contains(&"leadership acquired".to_owned()));
    // Then it hangs.
    let next = second.leads().await;
    assert!(next.token() > term.token());
    until("the first has noticed", || first.told().iter().any(|told| told.starts_with("leadership lost"))).await;
    first.check();
    second.check();
}

#[tokio::test]
async fn a_blink_of_the_store_does_not_lock_a_leader_out_of_its_own_lease() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let watched = Watched::start(&alice, LONG);
    let term = watched.leads().await;
    for round in 1..=5 {
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        until("entered again", || alice.times("store.entered") > round).await;
        assert!(watched.election.is_leader() && term.is_valid());
    }
    assert_eq!(watched.told().iter().filter(|told| told.starts_with("leadership")).count(), 1, "{:?}", watched.told());
}

#[tokio::test]
async fn a_loss_is_told_with_its_reason() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let watched = Watched::start(&alice, TTL);
    watched.leads().await;
    server.command(&["DEL", "leader:cleanup"]);
    until("lost", || watched.told().iter().any(|told| told.contains("lost"))).await;
    let lost = watched.events.lock().unwrap().iter().find_map(|event| match &event.news {
        ElectionNews::LeadershipLost { reason } => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(lost, Some(Ending::Lost(Loss::Missing)));
    // And it stands again.
    until("leads again", || watched.told().iter().filter(|told| *told == "leadership acquired").count() == 2).await;
    watched.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_blocks_every_thread_of_the_runtime_stays_in_office() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let watched = Watched::start(&alice, TTL);
    let term = watched.leads().await;
    let blocked: Vec<_> = (0..4).map(|_| tokio::spawn(async { std::thread::sleep(TTL * 2) })).collect();
    std::thread::sleep(TTL * 2);
    assert!(watched.election.is_leader());
    for task in blocked {
        task.await.unwrap();
    }
    assert_eq!(watched.election.term().map(|now| now.token()), Some(term.token()));
}
