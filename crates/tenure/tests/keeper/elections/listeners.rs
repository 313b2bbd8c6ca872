//! Listeners cannot affect the election.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tenure_testbed::RedisServer;

use crate::harness::{Instance, TTL, wait_until, with_timeout};

use super::{ROLE, RecordedElection};

#[tokio::test]
async fn a_listener_that_blocks_delays_no_lease_and_no_stream() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let (shut, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let blocked = alice.tenure.election(ROLE).ttl(TTL).on_event(move |_| {
        // Blocks until the sender is dropped.
        let _ = gate.lock().unwrap().recv();
    });
    let watched = RecordedElection::of(blocked);
    let mut events = watched.election.events();
    watched.election.start();
    let term = watched.wait_for_leadership().await;
    // For longer than a ttl: a blocked listener does not stop renewals.
    tokio::time::sleep(TTL * 2).await;
    assert!(term.is_valid());
    watched.election.stop().await;
    while with_timeout(events.next()).await.unwrap().kind.name() != "election.leadership_lost" {}
    assert!(watched.event_texts().is_empty(), "all listeners of an instance share a thread");
    drop(shut);
    wait_until("the listener after the blocked one has got every event", || watched.event_texts().len() == 5).await;
    watched.assert_event_order();
}

#[tokio::test]
async fn a_listener_that_panics_is_called_again_and_affects_no_other_listener() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let panics = Arc::new(AtomicUsize::new(0));
    let counted = panics.clone();
    let watched = RecordedElection::of(alice.tenure.election(ROLE).ttl(TTL).on_state_changed(move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        panic!("intended panic in a listener");
    }));
    watched.election.start();
    watched.wait_for_leadership().await;
    watched.election.stop().await;
    wait_until("every listener has got every event", || {
        watched.event_texts().len() == 5 && panics.load(Ordering::SeqCst) == 3
    })
    .await;
    watched.assert_event_order();
}

#[tokio::test]
async fn a_listener_gets_the_last_event_and_none_of_a_later_election() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let RecordedElection { election, events } = RecordedElection::of(alice.tenure.election(ROLE).ttl(TTL));
    election.start();
    election.wait_for_leadership(TTL).await.unwrap();
    // Stops in the background.
    drop(election);
    let is_lost = |event: &tenure::Event| event.kind.name() == "election.leadership_lost";
    wait_until("the loss is reported", || events.lock().unwrap().iter().any(is_lost)).await;
    let later = RecordedElection::of(alice.tenure.election(ROLE).ttl(TTL));
    wait_until("the listener of the first election is removed", || Arc::strong_count(&events) == 1).await;
    let before = events.lock().unwrap().len();
    later.election.start();
    later.wait_for_leadership().await;
    later.wait_for_event("leadership acquired").await;
    assert_eq!(events.lock().unwrap().len(), before);
}

#[tokio::test]
async fn a_shutdown_is_reported_to_listeners() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let watched = RecordedElection::of(alice.tenure.election(ROLE).ttl(TTL));
    watched.election.start();
    watched.wait_for_leadership().await;
    alice.tenure.shutdown().await;
    watched.wait_for_event("leadership lost (shutdown)").await;
    watched.assert_event_order();
}

#[tokio::test]
async fn a_listener_can_subscribe_to_one_kind_of_event() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let note = |kind: &'static str| {
        let heard = heard.clone();
        move |what: String| heard.lock().unwrap().push(format!("{kind} {what}"))
    };
    let (acquired, lost, changed, failed) = (note("acquired"), note("lost"), note("changed"), note("failed"));
    let election = alice
        .tenure
        .election(ROLE)
        .ttl(TTL)
        .on_leadership_acquired(move |token| acquired(token.to_string()))
        .on_leadership_lost(move |token, why| lost(format!("{token} {}", why.as_str())))
        .on_state_changed(move |from, to| changed(format!("{} {}", from.as_str(), to.as_str())))
        .on_election_failed(move |why| failed(why.to_owned()))
        .build()
        .unwrap();
    election.start();
    wait_until("it leads", || election.is_leader()).await;
    let token = election.term().unwrap().token();
    election.stop().await;
    let expected =
        [format!("acquired {token}"), format!("lost {token} shutdown"), "changed candidate leader".to_owned()];
    wait_until("all events are received", || expected.iter().all(|line| heard.lock().unwrap().contains(line))).await;
    assert!(!heard.lock().unwrap().iter().any(|line| line.starts_with("failed")));
}
