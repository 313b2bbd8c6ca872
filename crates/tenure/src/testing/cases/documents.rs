//! Documents. A write succeeds only if its writer has seen the present value.

use crate::store::{Announcement, DocumentId, DocumentRequest, Reply};
use crate::testing::client::Client;
use crate::testing::harness::CaseHarness;

const COLLECTION: &str = "servers";

fn document(id: &str) -> DocumentId {
    DocumentId { collection: COLLECTION.to_owned(), id: id.to_owned() }
}

fn write(id: &str, expected: Option<&str>, value: Option<&str>) -> DocumentRequest {
    let bytes = |text: &str| text.as_bytes().to_vec();
    DocumentRequest::Write {
        document: document(id),
        expected: expected.map(bytes),
        value: value.map(bytes),
        fresh: false,
    }
}

fn conflict(text: &str) -> Reply {
    Reply::Conflict(Some(text.as_bytes().to_vec()))
}

async fn read(client: &Client, ids: &[&str]) -> Vec<Option<String>> {
    let ids = ids.iter().map(|id| (*id).to_owned()).collect();
    match client.send(DocumentRequest::Read { collection: COLLECTION.to_owned(), ids }).await {
        Reply::Documents(documents) => {
            documents.into_iter().map(|document| document.map(|s| String::from_utf8_lossy(&s).into_owned())).collect()
        }
        other => panic!("documents must be read; the store answered {other:?}"),
    }
}

pub(super) async fn a_document_is_made_changed_listed_and_deleted(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    assert_eq!(read(&alice, &["a", "b"]).await, [None, None], "there are no documents");
    assert_eq!(alice.send(write("a", None, Some("one"))).await, Reply::Done);
    assert_eq!(alice.send(write("b", None, Some(""))).await, Reply::Done, "a store accepts any value");
    assert_eq!(read(&alice, &["b", "a", "c"]).await, [Some(String::new()), Some("one".to_owned()), None]);
    assert_eq!(alice.index(COLLECTION).await, ["a", "b"]);
    assert_eq!(alice.send(write("a", Some("one"), Some("two"))).await, Reply::Done);
    assert_eq!(alice.send(write("b", Some(""), None)).await, Reply::Done);
    assert_eq!(read(&alice, &["a", "b"]).await, [Some("two".to_owned()), None]);
    assert_eq!(alice.index(COLLECTION).await, ["a"]);
}

pub(super) async fn a_document_changes_only_if_its_writer_knows_its_value(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    alice.send(write("a", None, Some("one"))).await;
    assert_eq!(bob.send(write("a", None, Some("another"))).await, conflict("one"), "the document exists");
    assert_eq!(bob.send(write("a", Some("one"), Some("paused"))).await, Reply::Done);
    assert_eq!(
        alice.send(write("a", Some("one"), Some("polled"))).await,
        conflict("paused"),
        "an unseen change is not overwritten"
    );
    assert_eq!(alice.send(write("a", Some("one"), None)).await, conflict("paused"), "nor deleted");
    assert_eq!(bob.send(write("a", Some("paused"), None)).await, Reply::Done);
    assert_eq!(
        alice.send(write("a", Some("paused"), Some("back"))).await,
        Reply::Conflict(None),
        "a deleted document is not revived"
    );
    assert_eq!(alice.index(COLLECTION).await, Vec::<String>::new());
}

pub(super) async fn a_document_may_be_written_again_with_the_same_value(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    for _ in 0..2 {
        assert_eq!(alice.send(write("a", None, Some("one"))).await, Reply::Done, "a repeated request succeeds");
    }
    for _ in 0..2 {
        assert_eq!(alice.send(write("a", Some("one"), None)).await, Reply::Done);
    }
}

pub(super) async fn a_change_of_a_document_is_announced(harness: &CaseHarness<'_>) {
    let (alice, mut subscriber) = (harness.client("alice").await, harness.subscriber().await);
    for (expected, value) in
        [(None, Some("one")), (Some("one"), Some("two")), (Some("two"), Some("two")), (Some("two"), None)]
    {
        alice.send(write("a", expected, value)).await;
    }
    for _ in 0..3 {
        assert_eq!(subscriber.next_announcement().await, Announcement::DocumentChanged { document: document("a") });
    }
    // A write without a change was not announced: the next announcement is about another document.
    alice.send(write("b", None, Some("one"))).await;
    assert_eq!(subscriber.next_announcement().await, Announcement::DocumentChanged { document: document("b") });
}

pub(super) async fn collections_do_not_mix(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    alice.send(write("a", None, Some("one"))).await;
    let other = DocumentId { collection: "clients".to_owned(), id: "a".to_owned() };
    let value = Some(b"two".to_vec());
    let write = DocumentRequest::Write { document: other, expected: None, value, fresh: true };
    assert_eq!(alice.send(write).await, Reply::Done, "another collection has no such document yet");
    assert_eq!(read(&alice, &["a"]).await, [Some("one".to_owned())]);
    assert_eq!(
        (alice.index(COLLECTION).await, alice.index("clients").await),
        (vec!["a".to_owned()], vec!["a".to_owned()])
    );
}
