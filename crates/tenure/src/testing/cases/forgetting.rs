//! Records that will not be used again can be deleted without harm.

use std::time::Duration;

use crate::name::LeaseName;
use crate::store::{DocumentId, DocumentRequest, LeaseRequest, LogRequest, Reply};
use crate::testing::client::Client;
use crate::testing::harness::{CaseHarness, LONG_TTL, job, nonce};

async fn forget(client: &Client, name: &LeaseName, idle_for: Duration) -> Reply {
    let logs = vec!["results".to_owned()];
    client.send(LeaseRequest::Forget { name: name.clone(), logs, idle_for, document: Some(document("a")) }).await
}

fn document(id: &str) -> DocumentId {
    DocumentId { collection: "servers".to_owned(), id: id.to_owned() }
}

async fn has_log(client: &Client, name: &LeaseName) -> bool {
    let recent = LogRequest::Read { name: name.clone(), log: "results".to_owned(), after: None, limit: 1 };
    client.send(recent).await != Reply::LogEntries(Vec::new())
}

pub(super) async fn a_forgotten_lease_leaves_only_its_token_behind(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    assert_eq!(forget(&alice, &job(), Duration::ZERO).await, Reply::Done, "there is nothing to delete");
    let term = alice.acquire(&job(), LONG_TTL).await;
    alice.send(term.publication("state", b"1")).await;
    let (log, value) = ("results".to_owned(), b"1".to_vec());
    alice
        .send(LogRequest::Append { holding: term.holding(), log, value, kept: 9, nonce: nonce(), records: Vec::new() })
        .await;
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
    let (document, value) = (|| document("a"), Some(b"{}".to_vec()));
    alice
        .send(DocumentRequest::Write { document: document(), expected: None, value: value.clone(), fresh: true })
        .await;
    assert_eq!(forget(&alice, &job(), Duration::ZERO).await, Reply::InUse, "the document exists");
    assert!(alice.read(&job(), "state").await.is_some());
    alice
        .send(DocumentRequest::Write { document: document(), expected: value.clone(), value: None, fresh: false })
        .await;
    assert_eq!(alice.index("servers:deleted").await, ["a"]);
    let again = || DocumentRequest::Write { document: document(), expected: None, value: value.clone(), fresh: true };
    assert_eq!(alice.send(again()).await, Reply::InUse, "records of it are left");
    assert_eq!(forget(&alice, &job(), Duration::ZERO).await, Reply::Done);
    assert_eq!(alice.index("servers:deleted").await, Vec::<String>::new(), "it is removed from the index");
    assert_eq!(alice.send(again()).await, Reply::Done);
    assert_eq!(alice.send(again()).await, Reply::Done, "the document already is as requested");
}

pub(super) async fn a_deleted_document_is_listed_as_deleted(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let write = |id: &str, expected: Option<&str>, value: Option<&str>| {
        let bytes = |text: &str| text.as_bytes().to_vec();
        DocumentRequest::Write {
            document: document(id),
            expected: expected.map(bytes),
            value: value.map(bytes),
            fresh: false,
        }
    };
    alice.send(write("a", None, Some("1"))).await;
    alice.send(write("b", None, None)).await;
    assert_eq!(
        alice.index("servers:deleted").await,
        Vec::<String>::new(),
        "a document that never existed is not listed"
    );
    alice.send(write("a", Some("1"), None)).await;
    alice.send(write("a", Some("1"), None)).await;
    assert_eq!(alice.index("servers:deleted").await, ["a"]);
    alice.send(write("a", None, Some("2"))).await;
    assert_eq!(alice.index("servers:deleted").await, Vec::<String>::new(), "it exists again");
}
