//! One term by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::election::NotDone;
use tenure::{AcquireError, LeaseName};
use tenure_testbed::{RedisServer, Reply};

use crate::stage::{Instance, LONG, TTL, soon, until};

use super::ROLE;

#[tokio::test]
async fn it_is_renewed_while_it_lasts_and_told_like_any_other() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), TTL).await;
    let leadership = alice.tenure.election(ROLE).ttl(TTL).acquire().await.unwrap();
    tokio::time::sleep(TTL * 2).await;
    assert!(leadership.is_valid(), "{:?}", alice.happened());
    let refused = bob.tenure.election(ROLE).try_acquire().await.unwrap_err();
    assert!(matches!(&refused, AcquireError::Held { by, .. } if by == alice.tenure.instance()), "{refused}");
    let refused = bob.tenure.election(ROLE).limit(Duration::from_millis(50)).acquire().await.unwrap_err();
    assert!(matches!(refused, AcquireError::TimedOut { .. }), "{refused}");
    leadership.release().await.unwrap();
    alice.sees("election.leadership_lost").await;
    assert!(alice.first("election.leadership_lost").contains("reason=voluntary"));
    assert!(!bob.has("election.leadership_acquired") && bob.has("election.failed"), "{:?}", bob.happened());
    let leadership = bob.tenure.election(ROLE).try_acquire().await.unwrap();
    leadership.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_that_is_given_up_and_a_term_that_is_dropped_leave_nothing_behind() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    for round in 0..20_u64 {
        let wait = Duration::from_micros(round * 150);
        let _ = tokio::time::timeout(wait, alice.tenure.election(ROLE).acquire()).await;
        let leadership = soon(bob.tenure.election(ROLE).acquire()).await.unwrap();
        drop(leadership);
    }
    let key = format!("heartbeat:{ROLE}:{}", alice.tenure.instance());
    until("nobody is listed", || server.command(&["EXISTS", &key]) == Reply::Int(0)).await;
}

#[tokio::test]
async fn a_term_that_was_lost_says_so_and_is_not_asked_for_again() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let leadership = alice.tenure.election(ROLE).acquire().await.unwrap();
    bob.tenure.revoke(&LeaseName::role(ROLE).unwrap()).await.unwrap();
    let lost = soon(leadership.run(std::future::pending::<()>())).await.unwrap_err();
    assert_eq!(lost.reason.word(), "revoked");
    alice.sees("election.leadership_lost").await;
    assert_eq!(leadership.release().await.unwrap_err().reason.word(), "revoked");
    assert_eq!(alice.times("lease.acquired"), 1);
}

#[tokio::test]
async fn two_pieces_of_work_for_one_role_are_not_done_at_once_by_one_process_either() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let (working, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (tenure, working, done) = (alice.tenure.clone(), working.clone(), done.clone());
            tokio::spawn(async move {
                let work = async {
                    assert_eq!(working.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    working.fetch_sub(1, Ordering::SeqCst);
                };
                match tenure.as_leader_of(ROLE, work).await {
                    Ok(()) => done.fetch_add(1, Ordering::SeqCst),
                    Err(NotDone::NotLeader { .. }) => 0,
                    Err(other) => panic!("{other}"),
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert!(done.load(Ordering::SeqCst) > 0);
}

#[tokio::test]
async fn work_of_a_leader_is_done_under_its_own_term() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let tenure = alice.tenure.clone();
    let lead = alice.tenure.election(ROLE).lead(async |term| {
        let inside = tenure.as_leader_of(ROLE, async { term.token() }).await;
        Err::<(), _>(inside)
    });
    let ended = soon(lead.until(std::future::pending::<()>())).await.unwrap_err();
    assert!(matches!(ended, tenure::election::LeadError::Work(Ok(_))), "{ended:?}");
    assert_eq!(alice.times("lease.acquired"), 1);
}
