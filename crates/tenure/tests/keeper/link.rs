//! The link between an instance and the store fails in every way.

use std::time::{Duration, Instant};

use tenure::lease::{Ending, LeaseState, Loss};
use tenure::{LeaseName, Token};
use tenure_testbed::{Proxy, RedisServer, Reply};

use crate::stage::{Bystander, Instance, LONG, Probe, Record, TTL, until};

#[tokio::test]
async fn scripts_that_the_server_forgets_are_told_again() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let bystander = Bystander::at(&server.url()).await;
    let record = Record::default();
    let job = record.candidate(&alice, "job", TTL);
    let token = record.works("alice", Token::ZERO).await;
    for _ in 0..20 {
        assert_eq!(server.command(&["SCRIPT", "FLUSH"]), Reply::text("OK"));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    record.goes_on(token).await;
    assert!(job.never_stopped());
    assert!(!alice.has("lease.uncertain"), "not even for a moment: {:?}", alice.happened());
    bystander.is_untouched().await;
}

#[tokio::test]
async fn killed_connections_are_replaced_and_nothing_is_lost() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let bob = Instance::connect(&server.url(), "bob", LONG).await;
    let record = Record::default();
    let job = record.candidate(&alice, "job", LONG);
    let token = record.works("alice", Token::ZERO).await;
    for round in 1..=10 {
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        until("entered again", || alice.happened().iter().filter(|name| **name == "store.entered").count() > round)
            .await;
    }
    record.goes_on(token).await;
    assert!(job.never_stopped());
    // Announcements are heard again, too: bob is told of the release long before the ttl ends.
    let waits = tokio::spawn({
        let tenure = bob.tenure.clone();
        async move { tenure.lease("job").ttl(LONG).acquire().await }
    });
    bob.sees("lease.acquire_failed").await;
    drop(job);
    assert!(crate::stage::soon(waits).await.unwrap().is_ok());
    record.check();
}

#[tokio::test]
async fn a_black_hole_stops_the_work_before_anybody_else_begins() {
    let probe = Probe::start();
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let alice = Instance::connect(&proxy.url(), "alice", TTL).await;
    let bob = Instance::connect(&server.url(), "bob", TTL).await;
    let bystander = Bystander::at(&server.url()).await;
    let record = Record::default();
    let job = record.candidate(&alice, "job", TTL);
    let token = record.works("alice", Token::ZERO).await;
    let _waits = record.candidate(&bob, "job", TTL);
    bob.sees("lease.acquire_failed").await;

    proxy.swallow();
    let cut = Instant::now();

    assert_eq!(job.first_ending().await, Ending::Lost(Loss::Unreachable));
    probe.within(cut.elapsed(), TTL, "work stops");
    record.works("bob", token).await;
    probe.within(cut.elapsed(), TTL + Duration::from_millis(25), "the next holder works");
    record.check();
    assert!(alice.has("lease.uncertain") && alice.has("lease.lost"), "{:?}", alice.happened());
    bystander.is_untouched().await;

    // When the link is back she waits her turn like everybody else.
    proxy.pass();
    until("alice is back", || alice.tenure.how_it_stands().connected).await;
    record.check();
}

#[tokio::test]
async fn a_link_that_swallows_only_what_is_established_is_replaced_in_time() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let ttl = Duration::from_secs(6);
    let alice = Instance::connect(&proxy.url(), "alice", ttl).await;
    let record = Record::default();
    let job = record.candidate(&alice, "job", ttl);
    let token = record.works("alice", Token::ZERO).await;
    proxy.swallow_established();
    alice.sees("lease.renewed").await;
    record.goes_on(token).await;
    assert!(alice.happened().iter().filter(|name| **name == "store.entered").count() >= 2, "over another connection");
    assert!(job.never_stopped(), "a new connection was made in time");
}

#[tokio::test]
async fn late_packets_of_a_replaced_connection_touch_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let alice = Instance::connect(&proxy.url(), "alice", TTL).await;
    let bob = Instance::connect(&server.url(), "bob", LONG).await;
    let record = Record::default();
    let job = record.candidate(&alice, "job", TTL);
    let token = record.works("alice", Token::ZERO).await;

    // Renewals leave and do not arrive; new connections get through, but the lease is lost before they help.
    proxy.hold_requests();
    assert_eq!(job.first_ending().await, Ending::Lost(Loss::Unreachable));
    drop(job);
    let next = bob.acquire("job", LONG).await;
    assert!(next.token() > token);
    until("something is held back", || proxy.waiting_requests() > 0).await;
    proxy.let_go();
    tokio::time::sleep(Duration::from_millis(300)).await;

    assert_eq!(next.state(), LeaseState::Owned);
    let report = bob.tenure.inspect(&LeaseName::lease("job").unwrap()).await.unwrap();
    assert_eq!(report.held.unwrap().token, Some(next.token()), "a renewal or release of alice's did nothing");
    assert!(report.last.unwrap().token == next.token());
    record.check();
}

#[tokio::test]
async fn a_server_that_is_down_is_waited_for() {
    let server = RedisServer::start();
    server.kill();
    let alice = crate::stage::builder(&server.url(), "alice", TTL).start().unwrap();
    let refused = alice.lease("job").try_acquire().await.unwrap_err();
    assert!(refused.to_string().contains("unreachable"), "{refused}");
    assert!(tenure::Tenure::connect(&server.url()).await.is_err());
    let waits = tokio::spawn({
        let tenure = alice.clone();
        async move { tenure.lease("job").ttl(TTL).acquire().await }
    });
    server.start_again();
    assert!(crate::stage::soon(waits).await.unwrap().is_ok());
}
