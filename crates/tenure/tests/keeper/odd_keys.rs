//! Keys that are not what they should be, and a server without room.

use std::time::{Duration, Instant};

use tenure::AcquireError;
use tenure::lease::{Ending, Loss};
use tenure::store::ErrorKind;
use tenure_testbed::{RedisServer, Reply};

use crate::stage::{Bystander, Instance, LAST_STOP, LONG, Setup, TTL, soon, until};

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
    let scene = Setup::at(&server.url()).scene().await;
    let other = scene.alice.acquire("other", LONG).await;

    let replaced = server.pipeline(&[&["DEL", "lease:job"][..], &["LPUSH", "lease:job", "x"][..]]);
    assert_eq!(replaced, [Reply::Int(1), Reply::Int(1)]);
    let turned = Instant::now();

    let ending = scene.stops(turned, LAST_STOP).await;
    assert!(matches!(ending, Ending::Lost(Loss::Unreachable | Loss::Missing)), "{ending}");
    assert!(other.is_valid(), "another lease over the same connection goes on");
    scene.ends().await;
}

#[tokio::test]
async fn a_lease_without_an_end_is_reported_and_can_be_had_when_it_is_deleted() {
    let server = RedisServer::start();
    let bystander = Bystander::at(&server.url()).await;
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    server.command(&["SET", "lease:job", "somebody"]);
    let waits = alice.waits_for("job", TTL);
    alice.sees("lease.acquire_failed").await;
    let said = alice.first("lease.acquire_failed");
    assert!(said.contains("no end") && said.contains("lease:job") && said.contains("somebody"), "{said}");
    tokio::time::sleep(TTL).await;
    assert!(!waits.is_finished(), "nobody knows whether its holder is gone");
    server.command(&["DEL", "lease:job"]);
    assert!(soon(waits).await.unwrap().is_ok());
    bystander.is_untouched().await;
}

#[tokio::test]
async fn a_ttl_that_an_outsider_removes_is_back_with_the_next_renewal() {
    let server = RedisServer::start();
    let scene = Setup::at(&server.url()).lasting(Duration::from_secs(6)).scene().await;
    assert_eq!(server.command(&["PERSIST", "lease:job"]), Reply::Int(1));
    until("a ttl again", || server.command(&["PTTL", "lease:job"]).as_int() > 0).await;
    scene.never_stopped().await;
    scene.ends().await;
}

#[tokio::test]
async fn a_full_server_still_renews_and_grants_again_when_there_is_room() {
    let server = RedisServer::builder().argument("maxmemory-policy", "noeviction").start();
    let scene = Setup::at(&server.url()).lasting(Duration::from_secs(6)).scene().await;

    assert_eq!(server.command(&["CONFIG", "SET", "maxmemory", "1"]), Reply::text("OK"));
    assert!(server.command(&["SET", "x", "y"]).is_error("OOM"));

    let renewed = scene.alice.times("lease.renewed");
    until("renewed twice", || scene.alice.times("lease.renewed") > renewed + 1).await;
    scene.never_stopped().await;
    match scene.alice.tenure.lease("other").ttl(TTL).try_acquire().await {
        Err(AcquireError::Store(error)) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("memory"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let waits = scene.alice.waits_for("other", LONG);
    scene.alice.sees("lease.acquire_failed").await;
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(soon(waits).await.unwrap().is_ok());
    scene.ends().await;
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_that_leases_trouble_whatever_the_lease_is_called() {
    let server = RedisServer::start();
    let bystander = Bystander::at(&server.url()).await;
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    // A word of the server's, in a name, must not be taken for the server's word.
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
    assert_eq!(alice.times("store.entered"), 1, "the connection is none the worse for it");
    bystander.is_untouched().await;
}
