//! The link between an instance and the store fails in every way.

use std::time::{Duration, Instant};

use tenure::LeaseName;
use tenure::lease::{Ending, LeaseSettings, LeaseState, Loss};
use tenure_testbed::{Proxy, RedisServer, Reply};

use crate::stage::{Instance, LAST_STOP, LONG, Setup, TTL, builder, soon, until};

#[tokio::test]
async fn scripts_that_the_server_forgets_are_told_again() {
    let server = RedisServer::start();
    let often = Duration::from_millis(250);
    let settings = LeaseSettings::builder().ttl(LONG).renew_every(often).attempt_timeout(often).build().unwrap();
    let scene = Setup::at(&server.url()).with(settings).scene().await;
    for _ in 0..10 {
        assert_eq!(server.command(&["SCRIPT", "FLUSH"]), Reply::text("OK"));
        let renewed = scene.alice.times("lease.renewed");
        until("renewed", || scene.alice.times("lease.renewed") > renewed).await;
    }
    scene.never_stopped().await;
    let told = scene.alice.events.lock().unwrap().iter().any(|event| event.to_string().contains("script"));
    assert!(!told, "nobody notices: {:?}", scene.alice.events);
    scene.ends().await;
}

#[tokio::test]
async fn killed_connections_are_replaced_and_nothing_is_lost() {
    let server = RedisServer::start();
    let scene = Setup::at(&server.url()).lasting(LONG).scene().await;
    for round in 1..=10 {
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        until("entered again", || scene.alice.times("store.entered") > round).await;
    }
    scene.never_stopped().await;
    // Announcements are heard again, too: bob is told of the release long before the ttl ends.
    scene.works.leaves().await;
    scene.record.works("bob", scene.token).await;
    scene.ends().await;
}

#[tokio::test]
async fn a_black_hole_stops_the_work_before_anybody_else_begins() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let scene = Setup::at(&server.url()).alice_over(&proxy.url()).scene().await;

    proxy.swallow();
    let cut = Instant::now();

    assert_eq!(scene.stops(cut, LAST_STOP).await, Ending::Lost(Loss::Unreachable));
    scene.goes_on_with(cut, TTL + Duration::from_millis(25)).await;
    assert!(scene.alice.has("lease.uncertain") && scene.alice.has("lease.lost"), "{:?}", scene.alice.happened());

    // When the link is back she waits her turn like everybody else.
    proxy.pass();
    until("alice is back", || scene.alice.tenure.how_it_stands().connected).await;
    scene.ends().await;
}

#[tokio::test]
async fn a_link_that_swallows_only_what_is_established_is_replaced_in_time() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let ttl = Duration::from_secs(6);
    let scene = Setup::at(&server.url()).alice_over(&proxy.url()).lasting(ttl).scene().await;
    // Nothing but renewals is sent any more.
    scene.alice.sees("lease.renewed").await;
    proxy.swallow_established();
    scene.alice.sees("lease.uncertain").await;
    scene.alice.sees("lease.recovered").await;
    assert!(scene.alice.times("store.entered") >= 2, "over another connection");
    scene.never_stopped().await;
    scene.ends().await;
}

#[tokio::test]
async fn late_packets_of_a_replaced_connection_touch_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let scene = Setup::at(&server.url()).alice_over(&proxy.url()).scene().await;

    // Renewals leave and do not arrive; new connections get through, but the lease is lost before they help.
    proxy.hold_requests();
    let held_back = Instant::now();
    assert_eq!(scene.stops(held_back, LAST_STOP).await, Ending::Lost(Loss::Unreachable));
    scene.works.leaves().await;
    let token = scene.record.works("bob", scene.token).await;
    until("something is held back", || proxy.waiting_requests() > 0).await;
    proxy.let_go();
    tokio::time::sleep(Duration::from_millis(300)).await;

    scene.record.goes_on(token).await;
    let report = scene.bob.tenure.inspect(&LeaseName::lease("job").unwrap()).await.unwrap();
    assert_eq!(report.held.unwrap().token, Some(token), "a renewal or release of alice's did nothing");
    assert_eq!(report.last.unwrap().token, token);
    scene.ends().await;
}

#[tokio::test]
async fn a_server_that_is_down_is_waited_for() {
    let server = RedisServer::start();
    server.kill();
    let alice = builder(&server.url(), "alice", TTL).start().unwrap();
    let refused = alice.lease("job").try_acquire().await.unwrap_err();
    assert!(refused.to_string().contains("unreachable"), "{refused}");
    assert!(tenure::Tenure::connect(&server.url()).await.is_err());
    let waits = tokio::spawn({
        let tenure = alice.clone();
        async move { tenure.lease("job").ttl(TTL).acquire().await }
    });
    server.start_again();
    assert!(soon(waits).await.unwrap().is_ok());
}

#[tokio::test]
async fn somebody_who_only_waits_hears_again_after_its_link_was_cut() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let bob = Instance::connect(&proxy.url(), "bob", LONG).await;
    let term = alice.acquire("job", LONG).await;
    let waits = bob.waits_for("job", LONG);
    bob.sees("lease.waiting").await;
    // What is announced now bob cannot hear; that there was a gap it can.
    proxy.refuse();
    proxy.cut();
    bob.sees("store.lost").await;
    term.release().await.unwrap();
    proxy.pass();
    assert_eq!(soon(waits).await.unwrap().unwrap().state(), LeaseState::Owned);
}

#[tokio::test]
async fn a_try_that_was_granted_and_not_heard_of_is_let_go_of() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let alice = Instance::connect(&proxy.url(), "alice", LONG).await;
    let bob = Instance::connect(&server.url(), "bob", LONG).await;
    // Its renewal is what notices first that nothing is answered.
    let _short = alice.acquire("short", TTL).await;
    alice.sees("lease.renewed").await;
    proxy.hold_replies();
    assert!(soon(alice.tenure.lease("job").ttl(LONG).try_acquire()).await.is_err());
    assert_eq!(server.command(&["EXISTS", "lease:job"]), Reply::Int(1), "the store has granted it");
    proxy.pass();
    // Thirty seconds before the ttl would have ended.
    assert!(soon(bob.tenure.lease("job").ttl(LONG).limit(LONG / 2).acquire()).await.is_ok());
}

#[tokio::test]
async fn answers_that_are_late_are_answers_and_a_shutdown_need_not_wait_for_deadlines() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let alice = Instance::connect(&proxy.url(), "alice", LONG).await;
    let short = alice.acquire("short", Duration::from_secs(6)).await;
    let _long = alice.acquire("long", LONG).await;
    alice.sees("lease.renewed").await;
    // R of the short one is 400 ms.
    proxy.delay_replies(Duration::from_millis(450));
    soon(alice.tenure.shutdown()).await;
    assert!(!short.is_valid());
    assert_eq!(alice.times("lease.released"), 2, "{:?}", alice.happened());
    assert_eq!(server.command(&["EXISTS", "lease:short", "lease:long"]), Reply::Int(0));
}

/// Its primary cannot be reached, so it keeps its data: it can be entered and read from, and every write ends the connection.
#[tokio::test]
async fn a_server_that_became_a_read_only_replica_is_not_stormed() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let held = alice.acquire("job", LONG).await;
    let reader = alice.tenure.clone();
    let busy = tokio::spawn(async move {
        loop {
            let _ = tokio::join!(reader.fleet(), held.publish("result", "x"));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let connections = || {
        let stats = server.command(&["INFO", "stats"]);
        let line = stats.as_text().lines().find_map(|line| line.strip_prefix("total_connections_received:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    let before = connections();
    tokio::time::sleep(Duration::from_secs(4)).await;
    // Each attempt is a connection and a subscription, and the pauses double from 20 ms to 2 s.
    let made = connections() - before;
    assert!(made <= 50, "{made} connections in 4 s");
    busy.abort();
    server.command(&["REPLICAOF", "NO", "ONE"]);
    assert!(soon(alice.waits_for("another", TTL)).await.unwrap().is_ok(), "and is used when it takes writes again");
}
