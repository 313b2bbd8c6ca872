//! Work for each term, and single pieces of work.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::election::{LeadError, LeaderOnlyError};
use tenure::lease::{Loss, ReleaseReason};
use tenure::{LeaseName, TermHandle, Token};
use tenure_testbed::{RedisReply, RedisServer};

use crate::harness::{Instance, LONG_TTL, TTL, WorkLog, wait_until, with_timeout};

use super::{ROLE, RecordedElection, spawn_leader, start_leader_and_follower};

#[tokio::test]
async fn failing_work_ends_the_election_after_the_release() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let lead = alice.tenure.election(ROLE).lead(async |_| Err("no disk".into()));
    let ended = with_timeout(lead.until(std::future::pending::<()>())).await;
    assert!(matches!(&ended, Err(LeadError::Work(error)) if error.to_string() == "no disk"), "{ended:?}");
    assert_eq!(server.command(&["EXISTS", "leader:cleanup"]), RedisReply::Int(0));
}

#[tokio::test]
async fn finished_work_resigns_and_the_next_candidate_leads() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let (turns, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(tokio::sync::Notify::new()));
    let counted = turns.clone();
    let first = alice.tenure.election(ROLE).lead(async |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    let stopped = stop.clone();
    let task = async { first.until(stopped.notified()).await };
    let other = async {
        wait_until("the work has run", || turns.load(Ordering::SeqCst) > 0).await;
        let second = RecordedElection::start(&bob, LONG_TTL);
        second.wait_for_leadership().await;
        stop.notify_one();
    };
    let (ended, ()) = tokio::join!(task, other);
    ended.unwrap();
    assert_eq!(turns.load(Ordering::SeqCst), 1, "a candidate must not lead twice in a row while another waits");
}

#[tokio::test]
async fn the_next_term_begins_after_the_work_of_the_last_is_gone() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let record = WorkLog::default();
    let leads = spawn_leader(&record, &alice, TTL);
    let mut last = Token::ZERO;
    for _ in 0..3 {
        last = record.wait_for_work("alice", last).await;
        assert_eq!(server.command(&["DEL", "leader:cleanup"]), RedisReply::Int(1));
    }
    record.wait_for_work("alice", last).await;
    record.assert_no_overlap();
    leads.abort();
}

#[tokio::test]
async fn stopping_drops_the_work_and_releases_the_lease() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let record = WorkLog::default();
    let lead = alice.tenure.election(ROLE).lead(async |term: TermHandle| {
        record.work("alice", &term).await;
        Ok(())
    });
    with_timeout(lead.until(record.wait_for_work("alice", Token::ZERO))).await.unwrap();
    assert_eq!(server.command(&["EXISTS", "leader:cleanup"]), RedisReply::Int(0));
    for event in ["election.leadership_lost", "lease.released"] {
        alice.wait_for_event(event).await;
        assert!(alice.first_event(event).contains(ReleaseReason::Shutdown.as_str()), "{}", alice.first_event(event));
    }
}

#[tokio::test]
async fn a_leadership_for_one_piece_of_work_is_renewed_and_then_released() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let election = |instance: &Instance| instance.tenure.clone();
    let (first, second) = (election(&alice), election(&bob));
    let name = LeaseName::role(ROLE).unwrap();
    let work =
        tokio::spawn(async move { first.run_as_leader(ROLE, |_| tokio::time::sleep(Duration::from_secs(2))).await });
    wait_until("it has begun", || alice.has_event("lease.acquired")).await;
    match second.run_as_leader(ROLE, async |_| panic!("another instance leads, so this must not run")).await {
        Err(LeaderOnlyError::NotLeader { leader: Some(leader) }) => assert_eq!(&leader, alice.tenure.instance()),
        other => panic!("{other:?}"),
    }
    assert_eq!(with_timeout(work).await.unwrap(), Ok(()));
    assert_eq!(second.fleet().leader_of(&name).await.unwrap(), None);
    assert_eq!(second.run_as_leader(ROLE, async |_| 7).await, Ok(7));
}

#[tokio::test]
async fn one_piece_of_work_is_dropped_when_the_leadership_is_lost() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let tenure = alice.tenure.clone();
    let work = tokio::spawn(async move { tenure.run_as_leader(ROLE, |_| std::future::pending::<()>()).await });
    wait_until("it has begun", || alice.has_event("lease.acquired")).await;
    assert!(revoke_as_bob(&server).await);
    match with_timeout(work).await.unwrap() {
        Err(LeaderOnlyError::Lost(lost)) => assert_eq!(lost.reason, Loss::Revoked),
        other => panic!("{other:?}"),
    }
}

async fn revoke_as_bob(server: &RedisServer) -> bool {
    let bob = Instance::connect(&server.url(), "bob", LONG_TTL).await;
    bob.tenure.admin().revoke(&LeaseName::role(ROLE).unwrap()).await.unwrap().is_some()
}

#[tokio::test]
async fn a_running_election_decides_which_instance_runs_leader_work() {
    let server = RedisServer::start();
    let ((alice, first), (bob, second)) = start_leader_and_follower(&server, LONG_TTL).await;
    let term = first.election.term().unwrap();
    assert_eq!(alice.tenure.run_as_leader(ROLE, async |_| 1).await, Ok(1));
    assert_eq!(bob.tenure.run_as_leader(ROLE, async |_| 2).await, Err(LeaderOnlyError::NotLeader { leader: None }));
    assert!(term.is_valid(), "the leadership must be kept");
    assert_eq!(alice.tenure.run_as_leader("another", async |_| 3).await, Ok(3));
    first.election.stop().await;
    second.election.stop().await;
    assert_eq!(bob.tenure.run_as_leader(ROLE, async |_| 4).await, Ok(4), "no candidate is left");
}

#[tokio::test]
async fn failing_to_publish_metadata_delays_nothing() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    // A key of another type is in the place of the metadata.
    server.command(&["SET", "tenure:records:{leader:cleanup}", "not a hash"]);
    let lead = alice.tenure.election(ROLE).metadata("10.0.0.7").lead(async |_| Err("done".into()));
    let ended = with_timeout(lead.until(std::future::pending::<()>())).await;
    assert!(matches!(&ended, Err(LeadError::Work(error)) if error.to_string() == "done"), "{ended:?}");
}

#[tokio::test]
async fn a_running_election_is_known_by_its_role_whatever_its_key_is() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let election = |instance: &Instance| instance.tenure.election(ROLE).key("my-app:boss").build().unwrap();
    let (first, second) = (election(&alice), election(&bob));
    first.start();
    first.wait_for_leadership(LONG_TTL).await.unwrap();
    second.start();
    assert_eq!(alice.tenure.run_as_leader(ROLE, async |_| 1).await, Ok(1));
    assert_eq!(bob.tenure.run_as_leader(ROLE, async |_| 2).await, Err(LeaderOnlyError::NotLeader { leader: None }));
}
