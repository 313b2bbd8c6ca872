//! Passwords and permissions: said clearly, once, and nobody else's lease is touched.

use std::time::Duration;

use tenure::lease::{Ending, Loss};
use tenure::store::ErrorKind;
use tenure::{AcquireError, Tenure, Token};
use tenure_testbed::{RedisServer, Reply};

use crate::stage::{Bystander, Instance, Record, TTL, builder, soon};

#[tokio::test]
async fn a_wrong_password_is_said_clearly_and_not_repeated() {
    let server = RedisServer::builder().password("right").start();
    let bystander = Bystander::at(&server.url_as("default", "right")).await;
    let error = Tenure::connect(&server.url_as("default", "hunter2")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    assert!(error.to_string().contains("password") && !error.to_string().contains("hunter2"), "{error}");
    let error = Tenure::connect(&server.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    bystander.is_untouched().await;
}

#[tokio::test]
async fn a_password_that_changes_ends_the_term_in_time() {
    let server = RedisServer::builder().password("old").start();
    let alice = Instance::connect(&server.url_as("default", "old"), "alice", TTL).await;
    let record = Record::default();
    let job = record.candidate(&alice, "job", TTL);
    record.works("alice", Token::ZERO).await;
    server.command(&["CONFIG", "SET", "requirepass", "new"]);
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert_eq!(job.first_ending().await, Ending::Lost(Loss::Unreachable));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let said = alice.events.lock().unwrap().iter().filter(|e| e.to_string().contains("password")).count();
    assert!((1..=2).contains(&said), "said {said} times: {:?}", alice.happened());
}

#[tokio::test]
async fn a_user_that_may_not_run_scripts_is_told_what_is_missing() {
    let users = ["user carol on >secret ~* &* +@all -eval -evalsha -script"];
    let server = RedisServer::builder().acl_users(&users).start();
    let error = Tenure::connect(&server.url_as("carol", "secret")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    assert!(error.to_string().contains("may not do that") && !error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn rights_that_are_withdrawn_end_the_term_in_time_and_refuse_whoever_waits() {
    let users = ["user carol on >secret ~* &* +@all", "user dave on >secret ~* &* +@all"];
    let server = RedisServer::builder().acl_users(&users).start();
    let bystander = Bystander::at(&server.url_as("dave", "secret")).await;
    let alice = Instance::connect(&server.url_as("carol", "secret"), "alice", TTL).await;
    let record = Record::default();
    let job = record.candidate(&alice, "job", TTL);
    record.works("alice", Token::ZERO).await;
    assert_eq!(server.command(&["ACL", "SETUSER", "carol", "-evalsha"]), Reply::text("OK"));
    assert_eq!(job.first_ending().await, Ending::Lost(Loss::Unreachable));
    match soon(alice.tenure.lease("other").ttl(TTL).acquire()).await {
        Err(AcquireError::Store(error)) => assert_eq!(error.kind(), ErrorKind::Configuration, "{error}"),
        other => panic!("waiting does not mend that: {other:?}"),
    }
    bystander.is_untouched().await;
}

#[tokio::test]
async fn a_user_that_may_not_publish_can_hold_leases_and_is_told_what_that_costs() {
    let users = ["user carol on >secret ~* &* +@all -publish"];
    let server = RedisServer::builder().acl_users(&users).start();
    let url = server.url_as("carol", "secret");
    let (alice, bob) = (Instance::connect(&url, "alice", TTL).await, Instance::connect(&url, "bob", TTL).await);
    alice.sees("store.silent").await;
    assert!(alice.first("store.silent").contains("publish"), "{}", alice.first("store.silent"));
    let record = Record::default();
    let job = record.candidate(&alice, "job", TTL);
    let token = record.works("alice", Token::ZERO).await;
    let _waits = record.candidate(&bob, "job", TTL);
    bob.sees("lease.acquire_failed").await;
    drop(job);
    // Nobody tells bob; the end of the ttl does.
    record.works("bob", token).await;
    record.check();
}

#[tokio::test]
async fn a_user_that_may_not_listen_can_hold_leases() {
    let users = ["user carol on >secret ~* resetchannels +@all -subscribe"];
    let server = RedisServer::builder().acl_users(&users).start();
    let alice = Instance::with(builder(&server.url_as("carol", "secret"), "alice", TTL)).await;
    alice.sees("store.silent").await;
    let term = alice.acquire("job", TTL).await;
    assert!(term.is_valid());
    term.release().await.unwrap();
}
