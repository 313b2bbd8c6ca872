//! Single terms of leadership.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::election::{LeadError, LeaderOnlyError};
use tenure::lease::Loss;
use tenure::{AcquireError, LeaseName, ReleaseError, RunError, WorkError};
use tenure_testbed::{RedisReply, RedisServer};

use crate::harness::{Instance, LONG_TTL, TTL, wait_until, with_timeout};

use super::ROLE;

#[tokio::test]
async fn a_single_leadership_is_renewed_and_reported() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), TTL).await;
    let leadership = alice.tenure.election(ROLE).ttl(TTL).acquire().await.unwrap();
    tokio::time::sleep(TTL * 2).await;
    assert!(leadership.is_valid(), "{:?}", alice.event_names());
    let refused = bob.tenure.election(ROLE).try_acquire().await.unwrap_err();
    assert!(matches!(&refused, AcquireError::Held { holder, .. } if holder == alice.tenure.instance()), "{refused}");
    let refused = bob.tenure.election(ROLE).timeout(Duration::from_millis(50)).acquire().await.unwrap_err();
    assert!(matches!(refused, AcquireError::TimedOut { .. }), "{refused}");
    leadership.release().await.unwrap();
    alice.wait_for_event("election.leadership_lost").await;
    assert!(alice.first_event("election.leadership_lost").contains("reason=voluntary"));
    assert!(
        !bob.has_event("election.leadership_acquired") && bob.has_event("election.failed"),
        "{:?}",
        bob.event_names()
    );
    let leadership = bob.tenure.election(ROLE).try_acquire().await.unwrap();
    leadership.release().await.unwrap();
}

#[tokio::test]
async fn a_cancelled_acquire_and_a_dropped_leadership_leave_nothing_behind() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    for round in 0..20_u64 {
        let wait = Duration::from_micros(round * 150);
        let _ = tokio::time::timeout(wait, alice.tenure.election(ROLE).acquire()).await;
        let leadership = with_timeout(bob.tenure.election(ROLE).acquire()).await.unwrap();
        drop(leadership);
    }
    let key = format!("heartbeat:{ROLE}:{}", alice.tenure.instance());
    wait_until("no candidate is listed", || server.command(&["EXISTS", &key]) == RedisReply::Int(0)).await;
}

#[tokio::test]
async fn a_lost_leadership_is_reported_and_not_acquired_again() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let leadership = alice.tenure.election(ROLE).acquire().await.unwrap();
    bob.tenure.admin().revoke(&LeaseName::role(ROLE).unwrap()).await.unwrap();
    let lost = with_timeout(leadership.run_infallible(std::future::pending::<()>())).await.unwrap_err();
    assert!(matches!(&lost, RunError::Lost(lost) if lost.reason == Loss::Revoked), "{lost}");
    alice.wait_for_event("election.leadership_lost").await;
    let released = leadership.release().await.unwrap_err();
    assert!(matches!(&released, ReleaseError::Lost(lost) if lost.reason == Loss::Revoked), "{released}");
    assert_eq!(alice.count_events("lease.acquired"), 1);
}

#[tokio::test]
async fn one_process_runs_one_piece_of_leader_work_at_a_time() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let (working, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (tenure, working, done) = (alice.tenure.clone(), working.clone(), done.clone());
            tokio::spawn(async move {
                let work = async {
                    assert_eq!(working.fetch_add(1, Ordering::SeqCst), 0, "two pieces of work ran at once");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    working.fetch_sub(1, Ordering::SeqCst);
                };
                match tenure.run_as_leader(ROLE, |_| work).await {
                    Ok(()) => done.fetch_add(1, Ordering::SeqCst),
                    Err(LeaderOnlyError::NotLeader { .. }) => 0,
                    Err(other) => panic!("{other}"),
                }
            })
        })
        .collect();
    for task in tasks {
        with_timeout(task).await.unwrap();
    }
    assert!(done.load(Ordering::SeqCst) > 0);
}

#[tokio::test]
async fn leader_work_runs_under_the_current_term() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let tenure = alice.tenure.clone();
    let lead = alice.tenure.election(ROLE).lead(async |term| {
        let inside = tenure.run_as_leader(ROLE, async |inside| inside.token()).await?;
        Err(format!("led under {}", inside == term.token()).into())
    });
    let ended = with_timeout(lead.until(std::future::pending::<()>())).await.unwrap_err();
    assert!(matches!(&ended, LeadError::Work(error) if error.to_string() == "led under true"), "{ended:?}");
    // Events arrive in order, a moment later.
    alice.wait_for_event("lease.released").await;
    assert_eq!(alice.count_events("lease.acquired"), 1);
}

#[tokio::test]
async fn a_step_down_reaches_the_named_instance_however_long_the_work_takes() {
    let server = RedisServer::start();
    let ttl = Duration::from_secs(10);
    let (alice, bob) = Instance::pair(&server.url(), ttl).await;
    let carol = Instance::connect(&server.url(), "carol", ttl).await;
    for round in 0..6 {
        let leadership = with_timeout(alice.tenure.election(ROLE).ttl(ttl).acquire()).await.unwrap();
        let work = leadership.begin().await.unwrap();
        let waiting = [&bob, &carol].map(|one| {
            let tenure = one.tenure.clone();
            tokio::spawn(async move { tenure.election(ROLE).ttl(ttl).acquire().await.unwrap() })
        });
        for one in [&bob, &carol] {
            wait_until("the candidate waits", || one.count_events("lease.waiting") > round).await;
        }
        let named = if round % 2 == 0 { &bob } else { &carol };
        alice.tenure.admin().step_down(leadership.name(), Some(named.tenure.instance())).await.unwrap();
        with_timeout(leadership.cancelled()).await;
        let given_up = tokio::spawn(leadership.release());
        tokio::time::sleep(Duration::from_millis(200)).await;
        drop(work);
        with_timeout(given_up).await.unwrap().unwrap();
        let [first, second] = waiting;
        let (first, second, next, last) =
            if round % 2 == 0 { (first, second, &bob, &carol) } else { (second, first, &carol, &bob) };
        let leads = with_timeout(first).await.unwrap();
        assert_eq!(leads.info().holder, *next.tenure.instance());
        drop(leads);
        let leads = with_timeout(second).await.unwrap();
        assert_eq!(leads.info().holder, *last.tenure.instance());
        leads.release().await.unwrap();
    }
    assert!(!alice.first_event("lease.released").contains("voluntary"), "{}", alice.first_event("lease.released"));
}

#[test]
fn a_leadership_dropped_outside_a_runtime_is_released() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let alice = runtime.block_on(Instance::connect(&server.url(), "alice", LONG_TTL));
    let leadership = runtime.block_on(alice.tenure.election(ROLE).acquire()).unwrap();
    drop(leadership);
    let gone = || server.command(&["EXISTS", &format!("leader:{ROLE}")]) == RedisReply::Int(0);
    let begun = std::time::Instant::now();
    while !gone() {
        assert!(begun.elapsed() < crate::harness::TEST_TIMEOUT);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(begun.elapsed() < LONG_TTL, "released, not expired");
}

#[test]
fn work_as_leader_needs_no_timers_and_no_runtime_of_tokio() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let alice = runtime.block_on(Instance::connect(&server.url(), "alice", LONG_TTL));
    let bare = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(bare.block_on(alice.tenure.run_as_leader(ROLE, async |_| 42)), Ok(42));
}

#[tokio::test]
async fn a_timeout_is_kept_whatever_the_priority() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let builder = || alice.tenure.election(ROLE).priority(0).start_jitter(LONG_TTL);
    let leadership = builder().timeout(Duration::from_secs(1)).acquire().await.unwrap();
    leadership.release().await.unwrap();
    builder().try_acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_dropped_campaign_is_reported_and_leaves_nothing_behind() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let lead = alice.tenure.election(ROLE).lead(async |_| std::future::pending::<Result<(), WorkError>>().await);
    let leading = tokio::time::timeout(Duration::from_millis(300), lead.until(std::future::pending::<()>()));
    assert!(leading.await.is_err());
    alice.wait_for_event("election.leadership_lost").await;
    for key in [format!("leader:{ROLE}"), format!("heartbeat:{ROLE}:{}", alice.tenure.instance())] {
        wait_until("the key is deleted", || server.command(&["EXISTS", &key]) == RedisReply::Int(0)).await;
    }
    // A shutdown ends a leadership at once, too.
    let tenure = alice.tenure.clone();
    let leading = tokio::spawn(async move {
        let lead = tenure.election(ROLE).lead(async |_| std::future::pending::<Result<(), WorkError>>().await);
        lead.until(std::future::pending::<()>()).await
    });
    wait_until("it leads", || alice.count_events("election.leadership_acquired") == 2).await;
    let begun = std::time::Instant::now();
    alice.tenure.shutdown().await;
    assert!(matches!(with_timeout(leading).await.unwrap(), Err(LeadError::ShutDown)));
    assert!(begun.elapsed() < LONG_TTL / 4, "the shutdown must not wait");
}
