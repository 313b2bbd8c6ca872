//! Tests with separate processes that can be killed. They record their work in lists on the server.

use std::net::SocketAddr;
use std::time::{Duration, Instant, UNIX_EPOCH};

use rustix::process::Signal;
use tenure::Tenure;
use tenure::schedule::Schedule;
use tenure_testbed::{LagProbe, RawConnection, RedisReply, RedisServer, TestProcess};

use crate::harness::wait_until;

const TTL: Duration = Duration::from_secs(3);
const SLOT: Duration = Duration::from_millis(200);

/// Environment variables that select the role of a child process.
const REPORTER_ENV: &str = "TENURE_TEST_REPORTER";
const WORKER_ENV: &str = "TENURE_TEST_WORKER";

fn connection(url: &str) -> RawConnection {
    let address: SocketAddr = url.trim_start_matches("redis://").trim_end_matches('/').parse().unwrap();
    RawConnection::open(address).unwrap()
}

async fn tenure(url: &str) -> Tenure {
    Tenure::builder(url).bootstrap().connect().await.unwrap()
}

/// Keeps a schedule while it leads, and lists the slots that it has completed.
#[tokio::test]
#[ignore = "a part that other tests start as a process"]
async fn reporter_process() {
    let Ok(url) = std::env::var(REPORTER_ENV) else { return };
    let tenure = tenure(&url).await;
    println!("READY {}", tenure.instance());
    let lead = tenure.election("reports").ttl(TTL).lead(|term| {
        let url = url.clone();
        async move {
            let mut list = connection(&url);
            let mut runs = term.schedule("often", Schedule::every(SLOT).unwrap());
            while let Some(run) = runs.next().await {
                let due = run.due().duration_since(UNIX_EPOCH).unwrap().as_millis();
                run.done().await?;
                list.command(&["RPUSH", "test:done", &due.to_string()]).unwrap();
            }
            Ok(())
        }
    });
    let _ = lead.until(std::future::pending::<()>()).await;
}

fn done(server: &RedisServer) -> Vec<u64> {
    match server.command(&["LRANGE", "test:done", "0", "-1"]) {
        RedisReply::Array(entries) => entries.iter().map(|entry| entry.as_text().parse().unwrap()).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_leader_crash_repeats_no_run_and_misses_none_beyond_its_ttl() {
    let (server, probe) = (RedisServer::start(), LagProbe::start());
    let start = || TestProcess::start("processes::reporter_process", REPORTER_ENV, &server.url());
    let mut reporters: Vec<(String, TestProcess)> = Vec::new();
    for _ in 0..2 {
        let mut process = start();
        reporters.push((process.ready(), process));
    }
    let mut crashes = 0;
    for round in 1..=3 {
        wait_until("some runs", || done(&server).len() >= round * 10).await;
        let leader = server.command(&["GET", "leader:reports"]);
        let at = reporters.iter().position(|(id, _)| *id == *leader.as_text()).expect("a reporter leads");
        let before = done(&server).len();
        reporters[at].1.signal(Signal::KILL);
        crashes += 1;
        wait_until("the other has taken over", || done(&server).len() > before + 5).await;
        let mut process = start();
        reporters[at] = (process.ready(), process);
    }
    let done = done(&server);
    let slot = SLOT.as_millis() as u64;
    // A run that was recorded as done just before the crash may be missing in the list.
    let longest = TTL.as_millis() as u64 + 2 * slot;
    let stalled = probe.total_stall(SLOT / 4).as_millis() as u64;
    let mut gaps = Vec::new();
    for pair in done.windows(2) {
        let step = pair[1].checked_sub(pair[0]).expect("in order");
        assert!(step > 0 && step % slot == 0, "a slot was repeated or misplaced: {pair:?}");
        if step > slot {
            gaps.push(step);
        }
    }
    // One run makes up for all missed slots, so each crash leaves at most one gap. A machine that stood still may add
    // as many slots as it stood still for.
    let long = gaps.iter().filter(|gap| **gap > slot + stalled).count();
    assert!(long <= crashes, "{gaps:?} after {crashes} crashes; the machine stood still for {stalled} ms");
    assert!(gaps.iter().all(|gap| *gap <= longest + stalled), "{gaps:?}, and the machine stood still for {stalled} ms");
}

#[tenure::leader_only("aggregation")]
async fn aggregate(url: String) {
    let mut server = connection(&url);
    // An overlap leaves a trace.
    let active = server.command(&["INCR", "test:active"]).unwrap().as_int();
    if active != 1 {
        server.command(&["INCR", "test:overlaps"]).unwrap();
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    server.command(&["DECR", "test:active"]).unwrap();
}

/// Runs a leader-only function as often as it can.
#[tokio::test]
#[ignore = "a part that other tests start as a process"]
async fn worker_process() {
    let Ok(part) = std::env::var(WORKER_ENV) else { return };
    let (url, name) = part.split_once(' ').unwrap();
    tenure::install(tenure(url).await);
    println!("READY {name}");
    let mut list = connection(url);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        let outcome = if aggregate(url.to_owned()).await.is_some() { "done" } else { "left" };
        list.command(&["INCR", &format!("test:{name}:{outcome}")]).unwrap();
        // Leave CPU time to other tests.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_leader_only_function_runs_in_one_process_at_a_time() {
    let server = RedisServer::start();
    let start =
        |name: &str| TestProcess::start("processes::worker_process", WORKER_ENV, &format!("{} {name}", server.url()));
    let mut workers = [start("one"), start("two")];
    workers.iter_mut().for_each(|worker| drop(worker.ready()));
    let count = |key: &str| match server.command(&["GET", key]) {
        RedisReply::Text(text) => text.parse::<u64>().unwrap(),
        _ => 0,
    };
    // Each has run it, and each has been refused at least once.
    wait_until("both have run it, and both have been refused", || {
        ["one", "two"]
            .iter()
            .all(|name| count(&format!("test:{name}:done")) >= 20 && count(&format!("test:{name}:left")) >= 1)
    })
    .await;
    assert_eq!(count("test:overlaps"), 0, "two processes ran it at once");
}
