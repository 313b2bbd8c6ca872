//! Keys of the wrong type or with invalid contents, and a full server.

use std::time::{Duration, Instant};

use tenure::AcquireError;
use tenure::lease::{Ending, Loss};
use tenure::store::ErrorKind;
use tenure_testbed::{RedisReply, RedisServer};

use crate::harness::{Bystander, Instance, LONG_TTL, MAX_STOP_DELAY, ScenarioBuilder, TTL, wait_until, with_timeout};

#[tokio::test]
async fn a_lease_key_of_another_type_is_a_clear_error_for_that_lease_only() {
    let server = RedisServer::start();
    let bystander = Bystander::at(&server.url()).await;
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    server.command(&["LPUSH", "lease:job", "what", "is", "this"]);
    match with_timeout(alice.tenure.lease("job").ttl(TTL).acquire()).await {
        Err(AcquireError::Store(error)) => {
            assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
            assert!(error.to_string().contains("another type"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(server.command(&["LLEN", "lease:job"]), RedisReply::Int(3), "a foreign key must not be changed");
    assert!(alice.tenure.stats().connected);
    let other = alice.acquire("other", TTL).await;
    assert!(other.is_valid());
    bystander.assert_untouched().await;
}

#[tokio::test]
async fn a_key_that_turns_into_another_type_ends_that_term_in_time_and_no_other() {
    let server = RedisServer::start();
    let scenario = ScenarioBuilder::at(&server.url()).start().await;
    let other = scenario.alice.acquire("other", LONG_TTL).await;

    let replaced = server.pipeline(&[&["DEL", "lease:job"][..], &["LPUSH", "lease:job", "x"][..]]);
    assert_eq!(replaced, [RedisReply::Int(1), RedisReply::Int(1)]);
    let turned = Instant::now();

    let ending = scenario.wait_until_stopped(turned, MAX_STOP_DELAY).await;
    assert!(matches!(ending, Ending::Lost(Loss::Unreachable | Loss::Missing)), "{ending}");
    assert!(other.is_valid(), "another lease over the same connection continues");
    scenario.finish().await;
}

#[tokio::test]
async fn a_lease_key_without_expiry_is_reported_and_can_be_acquired_once_deleted() {
    let server = RedisServer::start();
    let bystander = Bystander::at(&server.url()).await;
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    server.command(&["SET", "lease:job", "another-program"]);
    let waits = alice.spawn_acquire("job", TTL);
    alice.wait_for_event("lease.acquire_failed").await;
    let said = alice.first_event("lease.acquire_failed");
    assert!(said.contains("never expires") && said.contains("lease:job") && said.contains("another-program"), "{said}");
    tokio::time::sleep(TTL).await;
    assert!(!waits.is_finished(), "the holder may still be alive");
    server.command(&["DEL", "lease:job"]);
    assert!(with_timeout(waits).await.unwrap().is_ok());
    bystander.assert_untouched().await;
}

#[tokio::test]
async fn a_removed_ttl_is_restored_by_the_next_renewal() {
    let server = RedisServer::start();
    let scenario = ScenarioBuilder::at(&server.url()).ttl(Duration::from_secs(6)).start().await;
    assert_eq!(server.command(&["PERSIST", "lease:job"]), RedisReply::Int(1));
    wait_until("the key has a ttl again", || server.command(&["PTTL", "lease:job"]).as_int() > 0).await;
    scenario.assert_never_stopped().await;
    scenario.finish().await;
}

#[tokio::test]
async fn a_full_server_still_renews_and_grants_again_when_there_is_room() {
    let server = RedisServer::builder().directive("maxmemory-policy", "noeviction").start();
    let scenario = ScenarioBuilder::at(&server.url()).ttl(Duration::from_secs(6)).start().await;

    assert_eq!(server.command(&["CONFIG", "SET", "maxmemory", "1"]), RedisReply::text("OK"));
    assert!(server.command(&["SET", "x", "y"]).is_error("OOM"));

    let renewed = scenario.alice.count_events("lease.renewed");
    wait_until("renewed twice", || scenario.alice.count_events("lease.renewed") > renewed + 1).await;
    scenario.assert_never_stopped().await;
    match scenario.alice.tenure.lease("other").ttl(TTL).try_acquire().await {
        Err(AcquireError::Store(error)) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("memory"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let waits = scenario.alice.spawn_acquire("other", LONG_TTL);
    scenario.alice.wait_for_event("lease.acquire_failed").await;
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(with_timeout(waits).await.unwrap().is_ok());
    scenario.finish().await;
}

#[tokio::test]
async fn an_unreadable_record_affects_only_its_own_lease() {
    let server = RedisServer::start();
    let bystander = Bystander::at(&server.url()).await;
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    // An error code of the server inside a name must not be taken for an error of the server.
    for name in ["OOM", "READONLY-one", "NOSCRIPT", "WRONGTYPE", "NOAUTH"] {
        server.command(&["HSET", &format!("tenure:term:{{lease:{name}}}"), "token", "many"]);
        match alice.tenure.lease(name).ttl(TTL).try_acquire().await {
            Err(AcquireError::Store(error)) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                assert!(error.to_string().contains(name), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(alice.count_events("store.attached"), 1, "the connection must not be replaced");
    bystander.assert_untouched().await;
}
