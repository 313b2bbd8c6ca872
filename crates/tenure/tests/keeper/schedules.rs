//! Schedules survive a change of leader.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tenure::schedule::{Schedule, Unfinished};
use tenure::{PublishError, Tenure};
use tenure_testbed::{LagProbe, RedisServer};
use tokio::task::JoinHandle;

use crate::harness::{Instance, LONG_TTL, wait_until};

const OFTEN: Duration = Duration::from_millis(200);

/// An interval that is not due while a test runs.
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The completed slots, in order.
type Done = Arc<Mutex<Vec<SystemTime>>>;

/// Spawns a task that keeps the schedule while it leads.
fn spawn_reporter(tenure: &Tenure, done: &Done) -> JoinHandle<()> {
    let (tenure, done) = (tenure.clone(), done.clone());
    tokio::spawn(async move {
        let lead = tenure.election("reports").ttl(Duration::from_secs(3)).lead(|term| {
            let done = done.clone();
            async move {
                let mut runs = term.schedule("often", Schedule::every(OFTEN).unwrap());
                while let Some(run) = runs.next().await {
                    let due = run.due();
                    run.done().await?;
                    done.lock().unwrap().push(due);
                }
                Ok(())
            }
        });
        let _ = lead.until(std::future::pending::<()>()).await;
    })
}

#[tokio::test]
async fn a_failover_repeats_no_run_and_misses_none() {
    let (server, probe) = (RedisServer::start(), LagProbe::start());
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let done = Done::default();
    let tasks = [spawn_reporter(&alice.tenure, &done), spawn_reporter(&bob.tenure, &done)];
    let role = tenure::LeaseName::role("reports").unwrap();
    for round in 1..=5 {
        wait_until("some runs", || done.lock().unwrap().len() >= round * 4).await;
        alice.tenure.admin().step_down(&role, None).await.unwrap();
    }
    wait_until("some more", || done.lock().unwrap().len() >= 24).await;
    tasks.iter().for_each(JoinHandle::abort);
    let done = done.lock().unwrap();
    for pair in done.windows(2) {
        let step = pair[1].duration_since(pair[0]).expect("in order, and none twice");
        assert!(step >= OFTEN && step.as_millis() % OFTEN.as_millis() == 0, "{step:?}");
    }
    // A machine that stands still may miss as many slots as it stood still for; one run makes up for them. A step-down
    // takes less than a slot, so no other slot is missed.
    let whole = done.last().unwrap().duration_since(done[0]).unwrap();
    let missed = whole.as_millis() / OFTEN.as_millis() + 1 - done.len() as u128;
    let stalled = probe.total_stall(OFTEN / 4);
    let allowed = if stalled.is_zero() { 0 } else { stalled.as_millis() / OFTEN.as_millis() + 2 };
    assert!(missed <= allowed, "{missed} runs were missed; the machine stood still for {stalled:?}");
}

#[tokio::test]
async fn an_unfinished_run_is_rerun_by_the_next_leader_or_skipped() {
    for choice in [Unfinished::Rerun, Unfinished::Skip] {
        let server = RedisServer::start();
        let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
        let yearly = || Schedule::every(YEAR).unwrap();
        let term = alice.acquire("reports", LONG_TTL).await;
        // As if the schedule had existed for a long time.
        let mut runs = term.schedule("yearly", yearly()).unfinished(choice);
        let first = tokio::time::timeout(Duration::from_millis(300), runs.next()).await;
        assert!(first.is_err(), "the next run is up to a year away");
        drop(runs);
        let record = alice.tenure.read(term.name(), "schedule:yearly").await.unwrap().unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record.value).unwrap();
        let since = record["since"].as_u64().unwrap() - YEAR.as_micros() as u64;
        term.publish("schedule:yearly", serde_json::json!({"since": since}).to_string()).await.unwrap();
        let mut runs = term.schedule("yearly", yearly()).unfinished(choice);
        let run = runs.next().await.expect("the missed run is made up for");
        let due = run.due();
        // The leader dies in the middle of the run.
        drop(run);
        term.release().await.unwrap();

        let term = bob.acquire("reports", LONG_TTL).await;
        let mut runs = term.schedule("yearly", yearly()).unfinished(choice);
        match (choice, tokio::time::timeout(Duration::from_millis(300), runs.next()).await) {
            (Unfinished::Rerun, Ok(Some(run))) => {
                assert_eq!(run.due(), due);
                run.done().await.unwrap();
            }
            (Unfinished::Skip, Err(_)) => {}
            (choice, other) => panic!("{choice:?}: {other:?}"),
        }
        assert!(
            tokio::time::timeout(Duration::from_millis(300), runs.next()).await.is_err(),
            "the run must not be repeated"
        );
    }
}

#[tokio::test]
async fn a_leader_that_lost_its_term_records_nothing() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let term = alice.acquire("reports", LONG_TTL).await;
    let mut runs = term.schedule("often", Schedule::every(OFTEN).unwrap());
    let run = runs.next().await.unwrap();
    let due = run.due();
    assert!(bob.tenure.admin().revoke(term.name()).await.unwrap().is_some());
    assert!(matches!(run.done().await, Err(PublishError::Refused(_))));
    wait_until("the holder has noticed the loss", || !term.is_valid()).await;
    assert!(runs.next().await.is_none());
    let term = bob.acquire("reports", LONG_TTL).await;
    let mut runs = term.schedule("often", Schedule::every(OFTEN).unwrap());
    assert_eq!(runs.next().await.unwrap().due(), due, "the run must be repeated");
}
