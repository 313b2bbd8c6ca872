//! Listeners cannot affect the election.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_testbed::RedisServer;

use crate::harness::{Instance, TTL, wait_until};

use super::{ROLE, RecordedElection};

#[tokio::test]
async fn listeners_that_block_panic_or_leave_affect_no_other_listener() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let watched = RecordedElection::of(alice.tenure.election(ROLE).ttl(TTL).build().unwrap());
    let (shut, gate) = std::sync::mpsc::channel::<()>();
    // Blocks until the sender is dropped.
    watched
        .election
        .on(move |_| {
            let _ = gate.recv();
        })
        .unwrap();
    watched.election.on(|_| panic!("intended panic in a listener")).unwrap();
    let (in_tasks, panics): (Arc<Mutex<Vec<String>>>, Arc<AtomicUsize>) = (Arc::default(), Arc::default());
    let heard = in_tasks.clone();
    watched.election.on_async(move |event| {
        let heard = heard.clone();
        async move {
            // The first events are handled more slowly than later ones.
            let pause = 20_u64.saturating_sub(heard.lock().unwrap().len() as u64 * 5);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            heard.lock().unwrap().push(event.kind.to_string());
        }
    });
    let count = panics.clone();
    watched.election.on_async(move |_| {
        let count = count.clone();
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            panic!("intended panic in a listener");
        }
    });
    let left = Arc::new(AtomicUsize::new(0));
    let counted = left.clone();
    let registration = watched
        .election
        .on(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
    registration.remove();
    watched.election.start();
    let term = watched.wait_for_leadership().await;
    // For longer than a ttl: a blocked listener does not stop renewals.
    tokio::time::sleep(TTL * 2).await;
    assert!(term.is_valid());
    watched.election.stop().await;
    wait_until("every listener has got every event", || {
        in_tasks.lock().unwrap().len() == 5 && watched.event_texts().len() == 5
    })
    .await;
    assert_eq!(*in_tasks.lock().unwrap(), watched.event_texts(), "in order");
    wait_until("called again after a panic", || panics.load(Ordering::SeqCst) == 5).await;
    assert_eq!(left.load(Ordering::SeqCst), 0, "a removed listener must get no event");
    drop(shut);
}

#[tokio::test]
async fn a_listener_can_subscribe_to_one_kind_of_event() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let election = alice.tenure.election(ROLE).ttl(TTL).build().unwrap();
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let note = |kind: &'static str| {
        let heard = heard.clone();
        move |what: String| heard.lock().unwrap().push(format!("{kind} {what}"))
    };
    let (acquired, lost, changed, failed) = (note("acquired"), note("lost"), note("changed"), note("failed"));
    election.on_acquired(move |token| acquired(token.to_string())).unwrap();
    election.on_lost(move |token, why| lost(format!("{token} {}", why.as_str()))).unwrap();
    election.on_state_changed(move |from, to| changed(format!("{} {}", from.as_str(), to.as_str()))).unwrap();
    election.on_failed(move |why| failed(why.to_owned())).unwrap();
    election.start();
    wait_until("it leads", || election.is_leader()).await;
    let token = election.term().unwrap().token();
    election.stop().await;
    let expected =
        [format!("acquired {token}"), format!("lost {token} shutdown"), "changed candidate leader".to_owned()];
    wait_until("all events are received", || expected.iter().all(|line| heard.lock().unwrap().contains(line))).await;
    assert!(!heard.lock().unwrap().iter().any(|line| line.starts_with("failed")));
}
