//! The server becomes a replica, then a primary again.

use std::time::{Duration, Instant};

use tenure::lease::{Ending, Loss};
use tenure::{ReleaseError, Token};
use tenure_testbed::{LagProbe, Proxy, RedisReply, RedisServer};

use crate::harness::{Instance, LONG_TTL, WorkLog, settings_with_ttl, wait_until, with_timeout};

const TTL: Duration = Duration::from_secs(3);

/// Makes the server a replica of an unreachable primary.
fn make_replica(server: &RedisServer, answers: bool) {
    let stale = if answers { "yes" } else { "no" };
    server.command(&["CONFIG", "SET", "replica-serve-stale-data", stale]);
    assert_eq!(server.command(&["REPLICAOF", "127.0.0.1", "1"]), RedisReply::text("OK"));
}

/// A release that fails and then has no connection must not delay anything else.
#[tokio::test]
async fn a_failing_release_does_not_delay_stopping_other_work() {
    let probe = LagProbe::start();
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let record = WorkLog::default();
    let other = alice.acquire("other", TTL).await;
    let job = record.spawn_worker(&alice, "job", settings_with_ttl(TTL));
    record.wait_for_work("alice", tenure::Token::ZERO).await;

    make_replica(&server, false);
    let fault = Instant::now();
    let released = tokio::spawn(other.release());

    assert_eq!(job.first_ending().await, Ending::Lost(Loss::Unreachable));
    probe.assert_within(fault.elapsed(), TTL - TTL / 6, "work stops");
    assert_eq!(server.command(&["REPLICAOF", "NO", "ONE"]), RedisReply::text("OK"));
    // The lease may expire before the server accepts the release.
    let released = with_timeout(released).await.unwrap();
    assert!(matches!(released, Ok(()) | Err(ReleaseError::Unknown { .. })), "{released:?}");
    with_timeout(alice.tenure.shutdown()).await;
    record.assert_no_overlap();
}

#[tokio::test]
async fn a_read_only_server_is_not_attached_in_a_hot_loop() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let term = alice.acquire("job", LONG_TTL).await;
    make_replica(&server, true);
    let released = tokio::spawn(term.release());
    alice.wait_for_event("lease.release_failed").await;
    let before = alice.count_events("store.attached");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let entered = alice.count_events("store.attached") - before;
    assert!(entered <= 8, "attached {entered} times in two seconds");
    server.command(&["REPLICAOF", "NO", "ONE"]);
    assert!(with_timeout(released).await.unwrap().is_ok());
    assert_eq!(server.command(&["EXISTS", "lease:job"]), RedisReply::Int(0));
}

/// The primary dies, its replica is promoted, and the address leads to the replica. One grant was not replicated, and its
/// holder is cut off.
#[tokio::test]
async fn a_promoted_replica_grants_nothing_before_the_leases_of_the_old_primary_have_expired() {
    let (primary, replica) = (RedisServer::start(), RedisServer::start());
    let proxy = || Proxy::to(primary.address());
    let (to_alice, to_bob, replication) = (proxy(), proxy(), proxy());
    replica.command(&["REPLICAOF", "127.0.0.1", &replication.port().to_string()]);
    let alice = Instance::connect(&to_alice.url(), "alice", TTL).await;
    let bob = Instance::connect(&to_bob.url(), "bob", TTL).await;
    let (replicated, missed) = (WorkLog::default(), WorkLog::default());
    let _kept = replicated.spawn_worker(&bob, "replicated", settings_with_ttl(TTL));
    let token = replicated.wait_for_work("bob", Token::ZERO).await;
    wait_until("the grant is replicated", || {
        replica.command(&["GET", "lease:replicated"]) == RedisReply::text(bob.tenure.instance().as_str())
    })
    .await;

    replication.blackhole();
    let cut_off = missed.spawn_worker(&alice, "missed", settings_with_ttl(TTL));
    let first = missed.wait_for_work("alice", Token::ZERO).await;
    let _waits = missed.spawn_worker(&bob, "missed", settings_with_ttl(TTL));
    to_alice.blackhole();
    primary.kill();
    assert_eq!(replica.command(&["REPLICAOF", "NO", "ONE"]), RedisReply::text("OK"));
    to_bob.redirect(replica.address());

    missed.wait_for_work("bob", first).await;
    assert_eq!(cut_off.first_ending().await, Ending::Lost(Loss::Unreachable));
    missed.assert_no_overlap();
    assert!(bob.has_event("store.quarantined"), "{:?}", bob.event_names());
    assert!(replicated.intervals().iter().all(|work| work.token == token), "a replicated term goes on");
}
