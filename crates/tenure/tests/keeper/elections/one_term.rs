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

#[tokio::test]
async fn a_step_down_goes_to_whom_it_was_for_however_long_the_work_takes_to_end() {
    let server = RedisServer::start();
    let ttl = Duration::from_secs(10);
    let (alice, bob) = Instance::pair(&server.url(), ttl).await;
    let carol = Instance::connect(&server.url(), "carol", ttl).await;
    for round in 0..6 {
        let leadership = soon(alice.tenure.election(ROLE).ttl(ttl).acquire()).await.unwrap();
        let work = leadership.begin().await.unwrap();
        let waiting = [&bob, &carol].map(|one| {
            let tenure = one.tenure.clone();
            tokio::spawn(async move { tenure.election(ROLE).ttl(ttl).acquire().await.unwrap() })
        });
        for one in [&bob, &carol] {
            until("it waits", || one.times("lease.waiting") > round).await;
        }
        let named = if round % 2 == 0 { &bob } else { &carol };
        alice.tenure.step_down(leadership.name(), Some(named.tenure.instance())).await.unwrap();
        soon(leadership.lost()).await;
        let given_up = tokio::spawn(leadership.release());
        tokio::time::sleep(Duration::from_millis(200)).await;
        drop(work);
        soon(given_up).await.unwrap().unwrap();
        let [first, second] = waiting;
        let (first, second, next, last) =
            if round % 2 == 0 { (first, second, &bob, &carol) } else { (second, first, &carol, &bob) };
        let leads = soon(first).await.unwrap();
        assert_eq!(leads.info().holder, *next.tenure.instance());
        drop(leads);
        let leads = soon(second).await.unwrap();
        assert_eq!(leads.info().holder, *last.tenure.instance());
        leads.release().await.unwrap();
    }
    assert!(!alice.first("lease.released").contains("voluntary"), "{}", alice.first("lease.released"));
}

#[test]
fn dropped_where_no_runtime_runs_it_is_let_go_of_all_the_same() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let alice = runtime.block_on(Instance::connect(&server.url(), "alice", LONG));
    let leadership = runtime.block_on(alice.tenure.election(ROLE).acquire()).unwrap();
    drop(leadership);
    let gone = || server.command(&["EXISTS", &format!("leader:{ROLE}")]) == Reply::Int(0);
    let begun = std::time::Instant::now();
    while !gone() {
        assert!(begun.elapsed() < crate::stage::NEVER);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(begun.elapsed() < LONG, "not because it ran out");
}

#[test]
fn work_as_leader_needs_no_timers_and_no_runtime_of_tokio() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let alice = runtime.block_on(Instance::connect(&server.url(), "alice", LONG));
    let bare = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(bare.block_on(alice.tenure.as_leader_of(ROLE, async { 42 })), Ok(42));
}

#[tokio::test]
async fn a_limit_is_kept_whatever_the_priority() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let builder = || alice.tenure.election(ROLE).priority(0).start_jitter(LONG);
    let leadership = builder().limit(Duration::from_secs(1)).acquire().await.unwrap();
    leadership.release().await.unwrap();
    builder().try_acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_campaign_that_is_dropped_says_so_and_leaves_nothing_behind() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let lead = alice.tenure.election(ROLE).lead(async |_| std::future::pending::<Result<(), std::io::Error>>().await);
    let leading = tokio::time::timeout(Duration::from_millis(300), lead.until(std::future::pending::<()>()));
    assert!(leading.await.is_err());
    alice.sees("election.leadership_lost").await;
    for key in [format!("leader:{ROLE}"), format!("heartbeat:{ROLE}:{}", alice.tenure.instance())] {
        until("it is gone", || server.command(&["EXISTS", &key]) == Reply::Int(0)).await;
    }
    // A shutdown ends a leader at once, too.
    let tenure = alice.tenure.clone();
    let leading = tokio::spawn(async move {
        let lead = tenure.election(ROLE).lead(async |_| std::future::pending::<Result<(), std::io::Error>>().await);
        lead.until(std::future::pending::<()>()).await
    });
    until("it leads", || alice.times("election.leadership_acquired") == 2).await;
    let begun = std::time::Instant::now();
    alice.tenure.shutdown().await;
    assert!(matches!(soon(leading).await.unwrap(), Err(tenure::election::LeadError::ShutDown)));
    assert!(begun.elapsed() < LONG / 4, "without a pause first");
}
