//! Sessions. A write succeeds only if its writer has seen the present value.

use crate::store::{Announcement, Reply, Request};
use crate::testing::client::Client;
use crate::testing::harness::CaseHarness;

fn write(id: &str, expected: Option<&str>, value: Option<&str>) -> Request {
    let bytes = |text: &str| text.as_bytes().to_vec();
    Request::WriteSession { id: id.to_owned(), expected: expected.map(bytes), value: value.map(bytes), fresh: false }
}

fn conflict(text: &str) -> Reply {
    Reply::Conflict(Some(text.as_bytes().to_vec()))
}

async fn read(client: &Client, ids: &[&str]) -> Vec<Option<String>> {
    let ids = ids.iter().map(|id| (*id).to_owned()).collect();
    match client.send(Request::ReadSessions { ids }).await {
        Reply::Sessions(sessions) => {
            sessions.into_iter().map(|session| session.map(|s| String::from_utf8_lossy(&s).into_owned())).collect()
        }
        other => panic!("sessions must be read; the store answered {other:?}"),
    }
}

pub(super) async fn a_session_is_made_changed_listed_and_deleted(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    assert_eq!(read(&alice, &["a", "b"]).await, [None, None], "there are no sessions");
    assert_eq!(alice.send(write("a", None, Some("one"))).await, Reply::Done);
    assert_eq!(alice.send(write("b", None, Some(""))).await, Reply::Done, "a store accepts any value");
    assert_eq!(read(&alice, &["b", "a", "c"]).await, [Some(String::new()), Some("one".to_owned()), None]);
    assert_eq!(alice.index("sessions").await, ["a", "b"]);
    assert_eq!(alice.send(write("a", Some("one"), Some("two"))).await, Reply::Done);
    assert_eq!(alice.send(write("b", Some(""), None)).await, Reply::Done);
    assert_eq!(read(&alice, &["a", "b"]).await, [Some("two".to_owned()), None]);
    assert_eq!(alice.index("sessions").await, ["a"]);
}

pub(super) async fn a_session_changes_only_if_its_writer_knows_its_value(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    alice.send(write("a", None, Some("one"))).await;
    assert_eq!(bob.send(write("a", None, Some("another"))).await, conflict("one"), "the session exists");
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
        "a deleted session is not revived"
    );
    assert_eq!(alice.index("sessions").await, Vec::<String>::new());
}

pub(super) async fn a_session_may_be_written_again_with_the_same_value(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    for _ in 0..2 {
        assert_eq!(alice.send(write("a", None, Some("one"))).await, Reply::Done, "a repeated request succeeds");
    }
    for _ in 0..2 {
        assert_eq!(alice.send(write("a", Some("one"), None)).await, Reply::Done);
    }
}

pub(super) async fn a_change_of_a_session_is_announced(harness: &CaseHarness<'_>) {
    let (alice, mut subscriber) = (harness.client("alice").await, harness.subscriber().await);
    for (expected, value) in
        [(None, Some("one")), (Some("one"), Some("two")), (Some("two"), Some("two")), (Some("two"), None)]
    {
        alice.send(write("a", expected, value)).await;
    }
    for _ in 0..3 {
        assert_eq!(subscriber.next_announcement().await, Announcement::SessionChanged { id: "a".to_owned() });
    }
    // A write without a change was not announced: the next announcement is about another session.
    alice.send(write("b", None, Some("one"))).await;
    assert_eq!(subscriber.next_announcement().await, Announcement::SessionChanged { id: "b".to_owned() });
}
