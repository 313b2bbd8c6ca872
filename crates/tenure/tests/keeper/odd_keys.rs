//! Keys that are not what they should be, and a server without room.

use std::time::Duration;

use tenure::lease::{Ending, Loss};
use tenure::store::ErrorKind;
use tenure::{AcquireError, Token};
use tenure_testbed::{RedisServer, Reply};

use crate::stage::{Bystander, Instance, LONG, Record, TTL, soon, until};

#[tokio::test]
async fn a_lease_key_of_another_type_is_a_clear_error_and_concerns_nobody_else() {
    let server = RedisServer::start();
    let bystander = Bystander::at(&server.url()).await;
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    server.command(&["LPUSH", "lease:job", "what", "is", "this"]);
    match soon(alice.tenure.lease("job").ttl(TTL).acquire()).await {
        Err(AcquireError::Store(error)) => {
            assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
            assert!(error.to_string().contains("another type"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(server.command(&["LLEN", "lease:job"]), Reply::Int(3), "it is not ours to touch");
    assert!(alice.tenure.how_it_stands().connected);
    let other = alice.acquire("other", TTL).await;
    assert!(other.is_valid());
    bystander.is_untouched().await;
}

#[tokio::test]
async fn a_key_that_turns_into_another_type_ends_that_term_in_time_and_no_other() {
    let server = RedisServer::start();
    let bystander = Bystander::at(&server.url()).await;
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let record = Record::default();
    let other = alice.acquire("other", TTL).await;
    let job = record.candidate(&alice, "job", TTL);
    record.works("alice", Token::ZERO).await;
    server.command(&["DEL", "lease:job"]);
    server.command(&["LPUSH", "lease:job", "x"]);
    assert!(matches!(job.first_ending().await, Ending::Lost(Loss::Unreachable | Loss::Missing)));
    assert!(other.is_valid(), "another lease over the same connection goes on");
    assert_eq!(alice.happened().iter().filter(|name| **name == "store.entered").count(), 1, "one connection is enough");
    bystander.is_untouched().await;
}

#[tokio::test]
async fn a_lease_without_an_end_is_reported_and_can_be_had_when_it_is_deleted() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    server.command(&["SET", "lease:job", "somebody"]);
    let waits = tokio::spawn({
        let tenure = alice.tenure.clone();
        async move { tenure.lease("job").ttl(TTL).acquire().await }
    });
    alice.sees("lease.acquire_failed").await;
    let said = alice.first("lease.acquire_failed");
    assert!(said.contains("no end") && said.contains("lease:job") && said.contains("somebody"), "{said}");
    tokio::time::sleep(TTL).await;
    assert!(!waits.is_finished(), "nobody knows whether its holder is gone");
    server.command(&["DEL", "lease:job"]);
    assert!(soon(waits).await.unwrap().is_ok());
}

#[tokio::test]
async fn a_ttl_that_an_outsider_removes_is_back_with_the_next_renewal() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let term = alice.acquire("job", TTL).await;
    assert_eq!(server.command(&["PERSIST", "lease:job"]), Reply::Int(1));
    until("a ttl again", || server.command(&["PTTL", "lease:job"]).as_int() > 0).await;
    assert!(term.is_valid());
}

#[tokio::test]
async fn a_full_server_still_renews_and_grants_again_when_there_is_room() {
    let server = RedisServer::builder().argument("maxmemory-policy", "noeviction").start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let record = Record::default();
    let job = record.candidate(&alice, "job", TTL);
    let token = record.works("alice", Token::ZERO).await;

    assert_eq!(server.command(&["CONFIG", "SET", "maxmemory", "1"]), Reply::text("OK"));
    assert!(server.command(&["SET", "x", "y"]).is_error("OOM"));

    // For more than a ttl.
    tokio::time::sleep(TTL * 2).await;
    record.goes_on(token).await;
    assert!(job.never_stopped() && !alice.has("lease.uncertain"), "{:?}", alice.happened());
    match alice.tenure.lease("other").ttl(TTL).try_acquire().await {
        Err(AcquireError::Store(error)) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("memory"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let waits = tokio::spawn({
        let tenure = alice.tenure.clone();
        async move { tenure.lease("other").ttl(LONG).acquire().await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(soon(waits).await.unwrap().is_ok());
}
