//! Records that will not be used again can be deleted without harm.

use std::time::Duration;

use crate::name::LeaseName;
use crate::store::{Reply, Request};
use crate::testing::client::Client;
use crate::testing::harness::{CaseHarness, LONG_TTL, job};

async fn forget(client: &Client, name: &LeaseName, idle_for: Duration) -> Reply {
    let logs = vec!["results".to_owned()];
    client.send(Request::Forget { name: name.clone(), logs, idle_for, session: "a".to_owned() }).await
}

async fn has_log(client: &Client, name: &LeaseName) -> bool {
    let recent = Request::ReadLog { name: name.clone(), log: "results".to_owned(), after: None, limit: 1 };
    client.send(recent).await != Reply::LogEntries(Vec::new())
}

pub(super) async fn a_forgotten_lease_leaves_only_its_token_behind(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    assert_eq!(forget(&alice, &job(), Duration::ZERO).await, Reply::Done, "there is nothing to delete");
    let term = alice.acquire(&job(), LONG_TTL).await;
    alice.send(term.publication("state", b"1")).await;
    let (log, value) = ("results".to_owned(), b"1".to_vec());
    alice.send(Request::Append { holding: term.holding(), log, value, kept: 9, records: Vec::new() }).await;
    assert!(has_log(&alice, &job()).await);
    alice.send(term.release()).await;
    assert_eq!(forget(&alice, &job(), Duration::ZERO).await, Reply::Done);
    assert_eq!(alice.read(&job(), "state").await, None);
    assert!(!has_log(&alice, &job()).await);
    assert_eq!(alice.inspect(&job()).await.last, None);
    let next = alice.acquire(&job(), LONG_TTL).await;
    assert!(next.token() > term.token(), "{} after {}", next.token(), term.token());
}

pub(super) async fn a_lease_in_use_is_not_forgotten(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    alice.send(term.publication("state", b"1")).await;
    assert_eq!(forget(&alice, &job(), Duration::ZERO).await, Reply::InUse, "the lease is held");
    alice.send(term.release()).await;
    assert_eq!(forget(&alice, &job(), LONG_TTL).await, Reply::InUse, "it was in use until just now");
    let (id, value) = ("a".to_owned(), Some(b"{}".to_vec()));
    alice.send(Request::WriteSession { id: id.clone(), expected: None, value: value.clone(), fresh: true }).await;
    assert_eq!(forget(&alice, &job(), Duration::ZERO).await, Reply::InUse, "the session exists");
    assert!(alice.read(&job(), "state").await.is_some());
    alice.send(Request::WriteSession { id: id.clone(), expected: value.clone(), value: None, fresh: false }).await;
    assert_eq!(alice.index("gone").await, ["a"]);
    let again = || Request::WriteSession { id: id.clone(), expected: None, value: value.clone(), fresh: true };
    assert_eq!(alice.send(again()).await, Reply::InUse, "records of it are left");
    assert_eq!(forget(&alice, &job(), Duration::ZERO).await, Reply::Done);
    assert_eq!(alice.index("gone").await, Vec::<String>::new(), "it is removed from the index");
    assert_eq!(alice.send(again()).await, Reply::Done);
    assert_eq!(alice.send(again()).await, Reply::Done, "the session already is as requested");
}

pub(super) async fn a_session_that_is_deleted_is_listed_as_gone(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let write = |id: &str, expected: Option<&str>, value: Option<&str>| {
        let bytes = |text: &str| text.as_bytes().to_vec();
        Request::WriteSession {
            id: id.to_owned(),
            expected: expected.map(bytes),
            value: value.map(bytes),
            fresh: false,
        }
    };
    alice.send(write("a", None, Some("1"))).await;
    alice.send(write("b", None, None)).await;
    assert_eq!(alice.index("gone").await, Vec::<String>::new(), "a session that never existed is not listed");
    alice.send(write("a", Some("1"), None)).await;
    alice.send(write("a", Some("1"), None)).await;
    assert_eq!(alice.index("gone").await, ["a"]);
    alice.send(write("a", None, Some("2"))).await;
    assert_eq!(alice.index("gone").await, Vec::<String>::new(), "it exists again");
}
