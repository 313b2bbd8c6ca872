//! Passwords and permissions: errors are clear and reported once, and no other lease is affected.

use std::time::{Duration, Instant};

use tenure::lease::{Ending, Loss};
use tenure::store::ErrorKind;
use tenure::{AcquireError, InstanceId, LeaseName, Tenure};
use tenure_testbed::{RedisReply, RedisServer};

use crate::harness::{Bystander, Instance, MAX_STOP_DELAY, ScenarioBuilder, TTL, builder, wait_until, with_timeout};

#[tokio::test]
async fn a_wrong_password_is_reported_without_the_password() {
    let server = RedisServer::builder().password("right").start();
    let bystander = Bystander::at(&server.url_as("default", "right")).await;
    let error = Tenure::connect(&server.url_as("default", "hunter2")).await.unwrap_err();
    assert_eq!(error.store_error().unwrap().kind(), ErrorKind::Configuration, "{error}");
    assert!(error.to_string().contains("password") && !error.to_string().contains("hunter2"), "{error}");
    let error = Tenure::connect(&server.url()).await.unwrap_err();
    assert_eq!(error.store_error().unwrap().kind(), ErrorKind::Configuration, "{error}");
    bystander.assert_untouched().await;
}

#[tokio::test]
async fn a_password_that_changes_ends_the_term_in_time() {
    let users = ["user carol on >old ~* &* +@all", "user dave on >other ~* &* +@all"];
    let server = RedisServer::builder().acl_users(&users).start();
    let (carol, dave) = (server.url_as("carol", "old"), server.url_as("dave", "other"));
    let scenario = ScenarioBuilder::at(&dave).alice_via(&carol).start().await;

    assert_eq!(server.command(&["ACL", "SETUSER", "carol", "resetpass", ">new"]), RedisReply::text("OK"));
    server.command(&["CLIENT", "KILL", "USER", "carol"]);
    let changed = Instant::now();

    assert_eq!(scenario.wait_until_stopped(changed, MAX_STOP_DELAY).await, Ending::Lost(Loss::Unreachable));
    scenario.wait_for_next_work(changed, TTL + Duration::from_millis(25)).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let said = scenario.alice.events.lock().unwrap().iter().filter(|e| e.to_string().contains("password")).count();
    assert!((1..=2).contains(&said), "reported {said} times: {:?}", scenario.alice.event_names());
    scenario.finish().await;
}

#[tokio::test]
async fn a_user_without_script_permission_is_told_what_is_missing() {
    let users = ["user carol on >secret ~* &* +@all -eval -evalsha -script"];
    let server = RedisServer::builder().acl_users(&users).start();
    let error = Tenure::connect(&server.url_as("carol", "secret")).await.unwrap_err();
    assert_eq!(error.store_error().unwrap().kind(), ErrorKind::Configuration, "{error}");
    assert!(error.to_string().contains("lacks a right") && !error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn withdrawn_permissions_end_the_term_in_time_and_refuse_waiters() {
    let users = ["user carol on >secret ~* &* +@all", "user dave on >secret ~* &* +@all"];
    let server = RedisServer::builder().acl_users(&users).start();
    let (carol, dave) = (server.url_as("carol", "secret"), server.url_as("dave", "secret"));
    let scenario = ScenarioBuilder::at(&dave).alice_via(&carol).start().await;

    assert_eq!(server.command(&["ACL", "SETUSER", "carol", "-evalsha"]), RedisReply::text("OK"));
    let withdrawn = Instant::now();

    assert_eq!(scenario.wait_until_stopped(withdrawn, MAX_STOP_DELAY).await, Ending::Lost(Loss::Unreachable));
    scenario.wait_for_next_work(withdrawn, TTL + Duration::from_millis(25)).await;
    match with_timeout(scenario.alice.tenure.lease("other").ttl(TTL).acquire()).await {
        Err(AcquireError::Store(error)) => assert_eq!(error.kind(), ErrorKind::Configuration, "{error}"),
        other => panic!("a waiter must be refused at once: {other:?}"),
    }
    scenario.finish().await;
}

#[tokio::test]
async fn a_user_without_publish_permission_can_hold_leases_and_is_warned() {
    let users = ["user carol on >secret ~* &* +@all -publish"];
    let server = RedisServer::builder().acl_users(&users).start();
    let scenario = ScenarioBuilder::at(&server.url_as("carol", "secret")).start().await;
    scenario.alice.wait_for_event("store.silent").await;
    assert!(
        scenario.alice.first_event("store.silent").contains("publish"),
        "{}",
        scenario.alice.first_event("store.silent")
    );
    let left = Instant::now();
    scenario.holder.stop().await;
    // Bob gets no announcement; he acquires the lease when the ttl ends.
    scenario.wait_for_next_work(left, TTL + Duration::from_millis(25)).await;
    scenario.finish().await;
}

#[tokio::test]
async fn a_user_without_subscribe_permission_can_hold_leases() {
    let users = ["user carol on >secret ~* resetchannels +@all -subscribe"];
    let server = RedisServer::builder().acl_users(&users).start();
    let alice = Instance::with(builder(&server.url_as("carol", "secret"), "alice", TTL)).await;
    alice.wait_for_event("store.silent").await;
    let term = alice.acquire("job", TTL).await;
    assert!(term.is_valid());
    term.release().await.unwrap();
}

/// Uses the ACL line of the operator's guide verbatim.
#[tokio::test]
async fn the_documented_permissions_suffice_for_everything() {
    let guide = include_str!("../../../../docs/redis.md");
    let line = guide.lines().find(|line| line.trim_start().starts_with("ACL SETUSER app")).unwrap();
    let server = RedisServer::start();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(server.command(&words), RedisReply::text("OK"));
    let url = server.url_as("app", "secret");
    let alice = Instance::with(builder(&url, "alice", TTL).document_prefix("sessions", "session:")).await;
    let election = alice.tenure.election("cleanup").ttl(TTL).metadata("here").build().unwrap();
    election.start();
    election.wait_for_leadership(TTL * 10).await.unwrap();
    assert_eq!(election.candidates().await.unwrap().len(), 1);
    let term = alice.acquire("job", TTL).await;
    term.publish("state", "1").await.unwrap();
    let documents = alice.tenure.documents("sessions");
    documents.create("c", b"{}").await.unwrap();
    documents.write("c", Some(b"{}"), None).await.unwrap();
    let lease = LeaseName::target("poll", "c").unwrap();
    assert!(documents.purge("c", lease, &["results"], Duration::ZERO).await.unwrap());
    alice.tenure.fleet().add_to_list("words", "one").await.unwrap();
    alice.tenure.admin().drain(&InstanceId::foreign("unknown")).await.unwrap();
    server.command(&["MSET", "session:a", "{}", "session:b", "{}"]);
    let pool = alice.tenure.pool("poll").targets_from(documents.follow()).discover("sessions").ttl(TTL);
    let pool = pool
        .run(async |_, term| {
            term.draining().await;
            Ok(())
        })
        .start()
        .unwrap();
    wait_until("the pool holds its targets", || pool.owned().len() == 2).await;
    pool.stop().await;
    term.release().await.unwrap();
    election.stop().await;
    // The term is recorded a moment later.
    while alice.tenure.admin().terms(10).await.unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for trouble in ["store.refused", "store.silent", "store.lost", "lease.renew_failed"] {
        assert!(!alice.has_event(trouble), "{}", alice.first_event(trouble));
    }
}
