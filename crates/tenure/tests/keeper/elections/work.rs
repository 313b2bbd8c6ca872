//! Work for each term, and one piece of work.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::election::{LeadError, NotDone};
use tenure::lease::{Ending, Loss, ReleaseReason};
use tenure::{LeaseName, TermHandle, Token};
use tenure_testbed::{RedisServer, Reply};

use crate::stage::{Instance, LONG, Record, TTL, soon, until};

use super::{ROLE, Watched, a_leader_and_a_follower, leading};

#[tokio::test]
async fn work_that_fails_ends_the_whole_after_letting_go() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let lead = alice.tenure.election(ROLE).lead(async |_| Err::<(), _>("no disk"));
    assert_eq!(soon(lead.until(std::future::pending::<()>())).await, Err(LeadError::Work("no disk")));
    assert_eq!(server.command(&["EXISTS", "leader:cleanup"]), Reply::Int(0));
}

#[tokio::test]
async fn work_that_is_done_resigns_and_somebody_else_leads() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let (turns, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(tokio::sync::Notify::new()));
    let counted = turns.clone();
    let first = alice.tenure.election(ROLE).lead(async |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok::<(), std::io::Error>(())
    });
    let stopped = stop.clone();
    let task = async { first.until(stopped.notified()).await };
    let other = async {
        until("a turn", || turns.load(Ordering::SeqCst) > 0).await;
        let second = Watched::start(&bob, LONG);
        second.leads().await;
        stop.notify_one();
    };
    let (ended, ()) = tokio::join!(task, other);
    ended.unwrap();
    assert_eq!(turns.load(Ordering::SeqCst), 1, "nobody leads twice in a row when somebody else waits");
}

#[tokio::test]
async fn the_next_term_begins_after_the_work_of_the_last_is_gone() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let record = Record::default();
    let leads = leading(&record, &alice, TTL);
    let mut last = Token::ZERO;
    for _ in 0..3 {
        last = record.works("alice", last).await;
        assert_eq!(server.command(&["DEL", "leader:cleanup"]), Reply::Int(1));
    }
    record.works("alice", last).await;
    record.check();
    leads.abort();
}

#[tokio::test]
async fn told_to_stop_it_drops_the_work_lets_go_and_ends() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let record = Record::default();
    let lead = alice.tenure.election(ROLE).lead(async |term: TermHandle| {
        record.work("alice", &term).await;
        Ok::<(), std::io::Error>(())
    });
    soon(lead.until(record.works("alice", Token::ZERO))).await.unwrap();
    assert_eq!(server.command(&["EXISTS", "leader:cleanup"]), Reply::Int(0));
    for event in ["election.leadership_lost", "lease.released"] {
        alice.sees(event).await;
        assert!(alice.first(event).contains(ReleaseReason::Shutdown.word()), "{}", alice.first(event));
    }
}

#[tokio::test]
async fn one_piece_of_work_is_renewed_while_it_runs_and_let_go_of_at_its_end() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let election = |instance: &Instance| instance.tenure.clone();
    let (first, second) = (election(&alice), election(&bob));
    let name = LeaseName::role(ROLE).unwrap();
    let work = tokio::spawn(async move { first.as_leader_of(ROLE, tokio::time::sleep(Duration::from_secs(2))).await });
    until("it has begun", || alice.has("lease.acquired")).await;
    match second.as_leader_of(ROLE, async { panic!("somebody else leads") }).await {
        Err(NotDone::NotLeader { by: Some(by) }) => assert_eq!(&by, alice.tenure.instance()),
        other => panic!("{other:?}"),
    }
    assert_eq!(soon(work).await.unwrap(), Ok(()));
    assert_eq!(second.leader_of(&name).await.unwrap(), None);
    assert_eq!(second.as_leader_of(ROLE, async { 7 }).await, Ok(7));
}

#[tokio::test]
async fn one_piece_of_work_is_dropped_when_the_leadership_is_lost() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let tenure = alice.tenure.clone();
    let work = tokio::spawn(async move { tenure.as_leader_of(ROLE, std::future::pending::<()>()).await });
    until("it has begun", || alice.has("lease.acquired")).await;
    assert!(bob_revokes(&server).await);
    match soon(work).await.unwrap() {
        Err(NotDone::Lost(lost)) => assert_eq!(lost.reason, Ending::Lost(Loss::Revoked)),
        other => panic!("{other:?}"),
    }
}

async fn bob_revokes(server: &RedisServer) -> bool {
    let bob = Instance::connect(&server.url(), "bob", LONG).await;
    bob.tenure.revoke(&LeaseName::role(ROLE).unwrap()).await.unwrap().is_some()
}

#[tokio::test]
async fn a_running_election_decides_who_does_a_piece_of_work() {
    let server = RedisServer::start();
    let ((alice, first), (bob, second)) = a_leader_and_a_follower(&server, LONG).await;
    let term = first.election.term().unwrap();
    assert_eq!(alice.tenure.as_leader_of(ROLE, async { 1 }).await, Ok(1));
    assert_eq!(bob.tenure.as_leader_of(ROLE, async { 2 }).await, Err(NotDone::NotLeader { by: None }));
    assert!(term.is_valid(), "the office is kept");
    assert_eq!(alice.tenure.as_leader_of("another", async { 3 }).await, Ok(3));
    first.election.stop().await;
    second.election.stop().await;
    assert_eq!(bob.tenure.as_leader_of(ROLE, async { 4 }).await, Ok(4), "nobody campaigns any more");
}

#[tokio::test]
async fn what_cannot_be_published_holds_up_nothing() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    // Where the metadata belongs there is something else.
    server.command(&["SET", "tenure:records:{leader:cleanup}", "not a hash"]);
    let lead = alice.tenure.election(ROLE).metadata("10.0.0.7").lead(async |_| Err::<(), _>("done"));
    assert_eq!(soon(lead.until(std::future::pending::<()>())).await, Err(LeadError::Work("done")));
}

#[tokio::test]
async fn a_running_election_is_known_by_its_role_whatever_its_key_is() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let election = |instance: &Instance| instance.tenure.election(ROLE).key("my-app:boss").build().unwrap();
    let (first, second) = (election(&alice), election(&bob));
    first.start();
    first.wait_for_leadership(LONG).await.unwrap();
    second.start();
    assert_eq!(alice.tenure.as_leader_of(ROLE, async { 1 }).await, Ok(1));
    assert_eq!(bob.tenure.as_leader_of(ROLE, async { 2 }).await, Err(NotDone::NotLeader { by: None }));
}
