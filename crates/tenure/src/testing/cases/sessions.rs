//! Sessions: written by whoever has seen what they were.

use crate::store::{Announcement, Reply, Request};
use crate::testing::player::Player;
use crate::testing::trial::Trial;

fn write(id: &str, seen: Option<&str>, value: Option<&str>) -> Request {
    let bytes = |text: &str| text.as_bytes().to_vec();
    Request::WriteSession { id: id.to_owned(), seen: seen.map(bytes), value: value.map(bytes), fresh: false }
}

fn is(text: &str) -> Reply {
    Reply::Changed(Some(text.as_bytes().to_vec()))
}

async fn read(player: &Player, ids: &[&str]) -> Vec<Option<String>> {
    let ids = ids.iter().map(|id| (*id).to_owned()).collect();
    match player.send(Request::ReadSessions { ids }).await {
        Reply::Sessions(sessions) => {
            sessions.into_iter().map(|session| session.map(|s| String::from_utf8_lossy(&s).into_owned())).collect()
        }
        other => panic!("sessions must be read; the store answered {other:?}"),
    }
}

pub(super) async fn a_session_is_made_changed_listed_and_deleted(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    assert_eq!(read(&alice, &["a", "b"]).await, [None, None], "there is none");
    assert_eq!(alice.send(write("a", None, Some("one"))).await, Reply::Done);
    assert_eq!(alice.send(write("b", None, Some(""))).await, Reply::Done, "what it is is nobody's business");
    assert_eq!(read(&alice, &["b", "a", "c"]).await, [Some(String::new()), Some("one".to_owned()), None]);
    assert_eq!(alice.index("sessions").await, ["a", "b"]);
    assert_eq!(alice.send(write("a", Some("one"), Some("two"))).await, Reply::Done);
    assert_eq!(alice.send(write("b", Some(""), None)).await, Reply::Done);
    assert_eq!(read(&alice, &["a", "b"]).await, [Some("two".to_owned()), None]);
    assert_eq!(alice.index("sessions").await, ["a"]);
}

pub(super) async fn whoever_has_not_seen_what_a_session_is_does_not_change_it(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    alice.send(write("a", None, Some("one"))).await;
    assert_eq!(bob.send(write("a", None, Some("another"))).await, is("one"), "it is there");
    assert_eq!(bob.send(write("a", Some("one"), Some("paused"))).await, Reply::Done);
    assert_eq!(alice.send(write("a", Some("one"), Some("polled"))).await, is("paused"), "nothing is undone");
    assert_eq!(alice.send(write("a", Some("one"), None)).await, is("paused"), "nor deleted unseen");
    assert_eq!(bob.send(write("a", Some("paused"), None)).await, Reply::Done);
    assert_eq!(
        alice.send(write("a", Some("paused"), Some("back"))).await,
        Reply::Changed(None),
        "nobody brings it back"
    );
    assert_eq!(alice.index("sessions").await, Vec::<String>::new());
}

pub(super) async fn a_session_that_is_so_already_may_be_written_again(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    for _ in 0..2 {
        assert_eq!(alice.send(write("a", None, Some("one"))).await, Reply::Done, "a request that is repeated");
    }
    for _ in 0..2 {
        assert_eq!(alice.send(write("a", Some("one"), None)).await, Reply::Done);
    }
}

pub(super) async fn a_change_of_a_session_is_announced(trial: &Trial<'_>) {
    let (alice, mut listener) = (trial.player("alice").await, trial.listener().await);
    for (seen, value) in
        [(None, Some("one")), (Some("one"), Some("two")), (Some("two"), Some("two")), (Some("two"), None)]
    {
        alice.send(write("a", seen, value)).await;
    }
    for _ in 0..3 {
        assert_eq!(listener.hears().await, Announcement::SessionChanged { id: "a".to_owned() });
    }
    // What changed nothing was not told: the next is another's.
    alice.send(write("b", None, Some("one"))).await;
    assert_eq!(listener.hears().await, Announcement::SessionChanged { id: "b".to_owned() });
}
