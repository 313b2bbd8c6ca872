//! What the program shows of programs that use the library.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::Tenure;
use tenure_testbed::RedisServer;

use crate::harness::{Fixture, wait_until};

async fn instance(server: &RedisServer) -> Tenure {
    Tenure::builder(&server.url()).name("library").bootstrap().connect().await.unwrap()
}

fn stdout_of(fixture: &Fixture, arguments: &[&str]) -> (Option<i32>, String) {
    let output = fixture.output(arguments);
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_lease_is_found_by_its_name_and_by_its_key() {
    let server = RedisServer::start();
    let (fixture, tenure) = (Fixture::on(&server.url()), instance(&server).await);
    let term = tenure.lease("billing").acquire().await.unwrap();
    for name in ["billing", "lease:billing"] {
        let (code, holder) = stdout_of(&fixture, &["leader", name]);
        assert_eq!((code, holder.trim()), (Some(0), tenure.instance().as_str()), "{name}");
    }
    assert_eq!(stdout_of(&fixture, &["revoke", "billing"]).0, Some(0));
    let lost = tokio::time::timeout(Duration::from_secs(30), term.lost()).await.unwrap();
    assert!(lost.to_string().contains("revoked"), "{lost}");
    tenure.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_of_a_pool_are_counted_and_found() {
    let server = RedisServer::start();
    let (fixture, tenure) = (Fixture::on(&server.url()), instance(&server).await);
    let pool = tenure.pool("mail").targets(["a", "b", "c"]);
    let pool = pool
        .run(async |_, term| {
            term.draining().await;
            Ok(())
        })
        .start()
        .unwrap();
    let status = || -> Value { serde_json::from_str(&stdout_of(&fixture, &["status", "--json"]).1).unwrap() };
    wait_until("all three targets are counted", || status()["instances"][0]["pools"] == json!({"mail": 3}));
    let (_, text) = stdout_of(&fixture, &["status"]);
    assert!(text.contains("3 targets of pool mail"), "{text}");
    for name in ["a", "mail:lease:a"] {
        let (code, holder) = stdout_of(&fixture, &["leader", name]);
        assert_eq!((code, holder.trim()), (Some(0), tenure.instance().as_str()), "{name}");
    }
    pool.stop().await;
    tenure.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_a_leader_is_listed_until_it_is_removed() {
    let server = RedisServer::start();
    let (fixture, tenure) = (Fixture::on(&server.url()), instance(&server).await);
    let term = tenure.election("nightly").acquire().await.unwrap();
    let roles = || -> Value { serde_json::from_str(&stdout_of(&fixture, &["role", "ls", "--json"]).1).unwrap() };
    wait_until("the role is listed", || roles()[0]["role"] == "nightly" && roles()[0]["leader"].is_string());
    assert_eq!(stdout_of(&fixture, &["role", "rm", "nightly"]).0, Some(1), "the role has a leader");
    let token = term.token();
    term.release().await.unwrap();
    assert_eq!(roles()[0]["leader"], Value::Null);
    assert_eq!(stdout_of(&fixture, &["role", "rm", "nightly"]).0, Some(0));
    assert_eq!(roles(), json!([]));
    let next = tenure.election("nightly").acquire().await.unwrap();
    assert!(next.token() > token, "tokens keep growing");
    next.release().await.unwrap();
    tenure.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_instance_is_reported_as_late() {
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    let one = crate::serve::ServeInstance::start(&fixture, &["--ttl", "30s", "--heartbeat-every", "1s"]);
    let _paused = one.pause();
    let status = || -> Value { serde_json::from_str(&stdout_of(&fixture, &["status", "--json"]).1).unwrap() };
    wait_until("the heartbeat is late", || status()["instances"][0]["isLate"] == json!(true));
    assert!(status()["instances"][0]["heartbeatAgeMs"].as_u64() > Some(1_000));
    let (_, text) = stdout_of(&fixture, &["status"]);
    assert!(text.contains("its last heartbeat is"), "{text}");
}
