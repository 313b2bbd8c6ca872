//! The example programs, run as their users would: several processes on one Redis.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure_testbed::web::{self, WebServer};
use tenure_testbed::{Port, RedisServer};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A test of the whole crate builds the examples beside the tests.
fn example(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(path.exists(), "build the examples first: cargo build -p tenure --examples --all-features");
    path
}

/// A running example, whose output is collected. Killed when dropped.
struct Example {
    process: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Example {
    fn start(name: &str, redis: &RedisServer, arguments: &[&str]) -> Self {
        let mut command = Command::new(example(name));
        command.args(arguments).env("TENURE_STORE", redis.url()).stdin(Stdio::null());
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let (lines, output) = (Arc::<Mutex<Vec<String>>>::default(), process.stdout.take().unwrap());
        let collected = lines.clone();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).for_each(|line| collected.lock().unwrap().push(line));
        });
        Self { process, lines }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    fn has_line(&self, part: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|line| line.contains(part))
    }

    /// Interrupts it, and waits until it has ended with success.
    fn interrupt(&mut self) {
        self.signal(Signal::INT);
        wait_until("the example ends", || self.process.try_wait().unwrap().is_some());
        assert!(self.process.wait().unwrap().success(), "{:?}", self.lines.lock().unwrap());
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < TEST_TIMEOUT, "timed out waiting until: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A server on which Tenure may grant leases at once: the examples do not say that it is new.
fn redis() -> RedisServer {
    let redis = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let tenure = tenure::Tenure::builder(&redis.url()).bootstrap().connect().await.unwrap();
        tenure.lease("first").acquire().await.unwrap().release().await.unwrap();
        tenure.shutdown().await;
    });
    redis
}

#[test]
fn axum_leader_leads_on_one_replica_and_hands_over_when_it_is_stopped() {
    let redis = redis();
    let ports = [Port::reserve(), Port::reserve()];
    let addresses = ports.each_ref().map(|port| format!("127.0.0.1:{}", port.number()));
    let mut replicas = addresses.each_ref().map(|address| Example::start("axum_leader", &redis, &[address]));
    let answer = |n: usize| web::request(&addresses[n], "GET", "/", &[], "").map_or_else(String::new, |(_, body)| body);
    let leads = |n: usize| answer(n).contains("this replica leads");
    wait_until("one replica leads, and the other knows it", || {
        (0..2).any(|n| leads(n) && answer(1 - n).contains(&format!("at {} leads", addresses[n])))
    });
    let leader = if leads(0) { 0 } else { 1 };
    wait_until("it cleans up", || replicas[leader].has_line("cleaning up"));
    replicas[leader].interrupt();
    wait_until("the other replica leads", || leads(1 - leader));
    replicas[1 - leader].interrupt();
}

#[test]
fn url_pool_polls_each_url_in_one_process_and_takes_over_changed_data() {
    let (redis, server, folder) = (redis(), WebServer::start(), tempfile::tempdir().unwrap());
    let file = folder.path().join("sites.txt");
    let write = |limit: u32| {
        let line = |n: u32| format!("site-{n} {} {limit}\n", server.url(&format!("/{n}")));
        std::fs::write(&file, (0..20).map(line).collect::<String>()).unwrap();
    };
    write(250);
    let start = || Example::start("url_pool", &redis, &[file.to_str().unwrap()]);
    let mut processes = [start(), start()];
    let polled = |process: &Example| -> BTreeSet<String> {
        let lines = process.lines.lock().unwrap();
        let recent = lines.iter().rev().take(40).filter(|line| line.contains("limit"));
        recent.filter_map(|line| Some(line.split_once(':')?.0.to_owned())).collect()
    };
    wait_until("each process polls ten sites", || processes.iter().all(|process| polled(process).len() == 10));
    assert!(polled(&processes[0]).is_disjoint(&polled(&processes[1])));
    write(99);
    processes.iter().for_each(|process| process.signal(Signal::HUP));
    wait_until("running work has the new data", || processes.iter().all(|process| process.has_line("limit 99ms")));
    processes[0].interrupt();
    wait_until("the other process polls all sites", || polled(&processes[1]).len() == 20);
    // Each poll of a site carries the token of its term, which never goes back.
    let mut tokens: BTreeMap<String, u64> = BTreeMap::new();
    for request in server.requests() {
        let token = request.headers["tenure-token"].parse().unwrap();
        assert!(tokens.insert(request.path.clone(), token).is_none_or(|before| before <= token), "{}", request.path);
    }
}

fn output(name: &str, redis: &RedisServer, arguments: &[&str]) -> (Output, String) {
    let mut command = Command::new(example(name));
    let output = command.args(arguments).env("TENURE_STORE", redis.url()).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

#[test]
fn leader_only_runs_functions_and_tells_followers() {
    let redis = redis();
    let (alone, text) = output("leader_only", &redis, &[]);
    assert!(alone.status.success(), "{text}");
    for part in ["total: 6", "clean-up 1 done", "clean-up failed by itself: every third run fails", "sent the report"] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}

#[test]
fn fenced_write_writes_the_total_under_its_token() {
    let (redis, folder) = (redis(), tempfile::tempdir().unwrap());
    let file = folder.path().join("total.txt");
    for total in ["10", "20"] {
        let (done, text) = output("fenced_write", &redis, &[file.to_str().unwrap()]);
        assert!(done.status.success() && text.contains(&format!("published the total {total}")), "{text}");
        assert!(std::fs::read_to_string(&file).unwrap().ends_with(&format!(" {total}")));
    }
    // A later term was here: the database refuses.
    std::fs::write(&file, format!("{} 20", (1_u64 << 53) - 1)).unwrap();
    let (refused, _) = output("fenced_write", &redis, &[file.to_str().unwrap()]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("refused, nothing was written"), "{error}");
    assert!(std::fs::read_to_string(&file).unwrap().ends_with(" 20"));
}
