//! The connection between an instance and the store fails in every way.

use std::time::{Duration, Instant};

use tenure::LeaseName;
use tenure::lease::{Ending, LeaseSettings, LeaseState, Loss};
use tenure_testbed::{Proxy, RedisReply, RedisServer};

use crate::harness::{Instance, LONG_TTL, MAX_STOP_DELAY, ScenarioBuilder, TTL, builder, wait_until, with_timeout};

#[tokio::test]
async fn flushed_scripts_are_loaded_again() {
    let server = RedisServer::start();
    let often = Duration::from_millis(250);
    let settings = LeaseSettings::builder().ttl(LONG_TTL).renew_every(often).attempt_timeout(often).build().unwrap();
    let scenario = ScenarioBuilder::at(&server.url()).with(settings).start().await;
    for _ in 0..10 {
        assert_eq!(server.command(&["SCRIPT", "FLUSH"]), RedisReply::text("OK"));
        let renewed = scenario.alice.count_events("lease.renewed");
        wait_until("renewed", || scenario.alice.count_events("lease.renewed") > renewed).await;
    }
    scenario.assert_never_stopped().await;
    let told = scenario.alice.events.lock().unwrap().iter().any(|event| event.to_string().contains("script"));
    assert!(!told, "a script flush must not be reported: {:?}", scenario.alice.events);
    scenario.finish().await;
}

#[tokio::test]
async fn killed_connections_are_replaced_without_losing_terms() {
    let server = RedisServer::start();
    let scenario = ScenarioBuilder::at(&server.url()).ttl(LONG_TTL).start().await;
    for round in 1..=10 {
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        wait_until("attached again", || scenario.alice.count_events("store.attached") > round).await;
    }
    scenario.assert_never_stopped().await;
    // Announcements arrive again, too: bob learns of the release long before the ttl ends.
    scenario.holder.stop().await;
    scenario.record.wait_for_work("bob", scenario.token).await;
    scenario.finish().await;
}

#[tokio::test]
async fn a_black_hole_stops_the_work_before_the_next_holder_begins() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let scenario = ScenarioBuilder::at(&server.url()).alice_via(&proxy.url()).start().await;

    proxy.blackhole();
    let cut = Instant::now();

    assert_eq!(scenario.wait_until_stopped(cut, MAX_STOP_DELAY).await, Ending::Lost(Loss::Unreachable));
    scenario.wait_for_next_work(cut, TTL + Duration::from_millis(25)).await;
    assert!(
        scenario.alice.has_event("lease.uncertain") && scenario.alice.has_event("lease.lost"),
        "{:?}",
        scenario.alice.event_names()
    );

    // After the partition, alice waits like every other instance.
    proxy.pass();
    wait_until("alice is back", || scenario.alice.tenure.stats().connected).await;
    scenario.finish().await;
}

#[tokio::test]
async fn a_dead_established_connection_is_replaced_in_time() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let ttl = Duration::from_secs(6);
    let scenario = ScenarioBuilder::at(&server.url()).alice_via(&proxy.url()).ttl(ttl).start().await;
    // Only renewals are sent from now on.
    scenario.alice.wait_for_event("lease.renewed").await;
    proxy.blackhole_established();
    scenario.alice.wait_for_event("lease.uncertain").await;
    scenario.alice.wait_for_event("lease.recovered").await;
    assert!(scenario.alice.count_events("store.attached") >= 2, "attached over another connection");
    scenario.assert_never_stopped().await;
    scenario.finish().await;
}

#[tokio::test]
async fn late_packets_of_a_replaced_connection_change_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let scenario = ScenarioBuilder::at(&server.url()).alice_via(&proxy.url()).start().await;

    // Renewals leave and do not arrive. New connections work, but the lease is lost before they help.
    proxy.hold_requests();
    let held_back = Instant::now();
    assert_eq!(scenario.wait_until_stopped(held_back, MAX_STOP_DELAY).await, Ending::Lost(Loss::Unreachable));
    scenario.holder.stop().await;
    let token = scenario.record.wait_for_work("bob", scenario.token).await;
    wait_until("requests are held back", || proxy.waiting_requests() > 0).await;
    proxy.deliver_held();
    tokio::time::sleep(Duration::from_millis(300)).await;

    scenario.record.wait_for_progress(token).await;
    let report = scenario.bob.tenure.admin().inspect(&LeaseName::lease("job").unwrap()).await.unwrap();
    assert_eq!(report.held.unwrap().token, Some(token), "late renewals and releases of alice must have no effect");
    assert_eq!(report.last.unwrap().token, token);
    scenario.finish().await;
}

#[tokio::test]
async fn acquire_waits_for_a_server_that_is_down() {
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
    server.restart();
    assert!(with_timeout(waits).await.unwrap().is_ok());
}

#[tokio::test]
async fn a_waiter_receives_announcements_again_after_a_disconnect() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let bob = Instance::connect(&proxy.url(), "bob", LONG_TTL).await;
    let term = alice.acquire("job", LONG_TTL).await;
    let waits = bob.spawn_acquire("job", LONG_TTL);
    bob.wait_for_event("lease.waiting").await;
    // Bob misses announcements from now on, but notices the gap.
    proxy.refuse();
    proxy.reset_connections();
    bob.wait_for_event("store.lost").await;
    term.release().await.unwrap();
    proxy.pass();
    assert_eq!(with_timeout(waits).await.unwrap().unwrap().state(), LeaseState::Owned);
}

#[tokio::test]
async fn a_grant_whose_reply_was_lost_is_released() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let alice = Instance::connect(&proxy.url(), "alice", LONG_TTL).await;
    let bob = Instance::connect(&server.url(), "bob", LONG_TTL).await;
    // The renewal of the short lease is the first request to time out.
    let _short = alice.acquire("short", TTL).await;
    alice.wait_for_event("lease.renewed").await;
    proxy.hold_replies();
    assert!(with_timeout(alice.tenure.lease("job").ttl(LONG_TTL).try_acquire()).await.is_err());
    assert_eq!(server.command(&["EXISTS", "lease:job"]), RedisReply::Int(1), "the store has granted it");
    proxy.pass();
    // Thirty seconds before the ttl would end.
    assert!(with_timeout(bob.tenure.lease("job").ttl(LONG_TTL).timeout(LONG_TTL / 2).acquire()).await.is_ok());
}

#[tokio::test]
async fn late_replies_count_and_a_shutdown_does_not_wait_for_deadlines() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let alice = Instance::connect(&proxy.url(), "alice", LONG_TTL).await;
    let short = alice.acquire("short", Duration::from_secs(6)).await;
    let _long = alice.acquire("long", LONG_TTL).await;
    alice.wait_for_event("lease.renewed").await;
    // R of the short lease is 400 ms.
    proxy.delay_replies(Duration::from_millis(450));
    with_timeout(alice.tenure.shutdown()).await;
    assert!(!short.is_valid());
    assert_eq!(alice.count_events("lease.released"), 2, "{:?}", alice.event_names());
    assert_eq!(server.command(&["EXISTS", "lease:short", "lease:long"]), RedisReply::Int(0));
}

/// Its primary is unreachable, so it keeps its data: an instance can attach and read, and every write closes the
/// connection.
#[tokio::test]
async fn a_read_only_replica_is_not_flooded_with_connections() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let held = alice.acquire("job", LONG_TTL).await;
    let reader = alice.tenure.clone();
    let busy = tokio::spawn(async move {
        loop {
            let fleet = reader.fleet();
            let _ = tokio::join!(fleet.instances(), held.publish("result", "x"));
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
    // Each attempt is a connection and a subscription, and the backoff doubles from 20 ms to 2 s.
    let made = connections() - before;
    assert!(made <= 50, "{made} connections in 4 s");
    busy.abort();
    server.command(&["REPLICAOF", "NO", "ONE"]);
    assert!(
        with_timeout(alice.spawn_acquire("another", TTL)).await.unwrap().is_ok(),
        "the server is used again when it accepts writes"
    );
}
