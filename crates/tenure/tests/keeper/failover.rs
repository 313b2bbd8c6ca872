//! The server becomes a replica, and is one no more.

use std::time::{Duration, Instant};

use tenure::lease::{Ending, Loss};
use tenure_testbed::{Probe, RedisServer, Reply};

use crate::stage::{Instance, LONG, Record, lasting, soon};

const TTL: Duration = Duration::from_secs(3);

/// Its primary is nowhere to be found.
fn becomes_a_replica(server: &RedisServer, answers: bool) {
    let stale = if answers { "yes" } else { "no" };
    server.command(&["CONFIG", "SET", "replica-serve-stale-data", stale]);
    assert_eq!(server.command(&["REPLICAOF", "127.0.0.1", "1"]), Reply::text("OK"));
}

/// A release that fails and then has no connection must hold up nothing else.
#[tokio::test]
async fn a_release_in_the_middle_of_it_stops_nobody_from_being_stopped_in_time() {
    let probe = Probe::start();
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let record = Record::default();
    let other = alice.acquire("other", TTL).await;
    let job = record.candidate(&alice, "job", lasting(TTL));
    record.works("alice", tenure::Token::ZERO).await;

    becomes_a_replica(&server, false);
    let fault = Instant::now();
    let released = tokio::spawn(other.release());

    assert_eq!(job.first_ending().await, Ending::Lost(Loss::Unreachable));
    probe.within(fault.elapsed(), TTL - TTL / 6, "work stops");
    assert_eq!(server.command(&["REPLICAOF", "NO", "ONE"]), Reply::text("OK"));
    assert!(soon(released).await.unwrap().is_ok());
    soon(alice.tenure.shutdown()).await;
    record.check();
}

#[tokio::test]
async fn a_server_that_can_be_entered_but_not_written_is_not_entered_over_and_over() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let term = alice.acquire("job", LONG).await;
    becomes_a_replica(&server, true);
    let released = tokio::spawn(term.release());
    alice.sees("lease.release_failed").await;
    let before = alice.times("store.entered");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let entered = alice.times("store.entered") - before;
    assert!(entered <= 8, "{entered} times in two seconds");
    server.command(&["REPLICAOF", "NO", "ONE"]);
    assert!(soon(released).await.unwrap().is_ok());
    assert_eq!(server.command(&["EXISTS", "lease:job"]), Reply::Int(0));
}
