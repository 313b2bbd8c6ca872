//! The server becomes a replica, then a primary again.

use std::time::{Duration, Instant};

use tenure::ReleaseError;
use tenure::lease::{Ending, Loss};
use tenure_testbed::{LagProbe, RedisReply, RedisServer};

use crate::harness::{Instance, LONG_TTL, WorkLog, settings_with_ttl, with_timeout};

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
