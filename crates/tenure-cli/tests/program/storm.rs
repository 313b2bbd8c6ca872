//! Twenty candidates in separate processes, under all kinds of faults.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure_testbed::{LagProbe, Proxy, RedisServer};

use crate::harness::{Fixture, Program, assert_no_overlap, busy_script, wait_until};

const CANDIDATES: usize = 20;
const TTL: Duration = Duration::from_millis(1_500);

/// A dead leader's ttl, the jitter of waiters for its expiry, and the start of a guardian and a command.
const MAX_RECOVERY: Duration = Duration::from_millis(1_500 + 25 + 200);

/// Returns the number of rounds. Hundreds take a while: `TENURE_ROUNDS=300 cargo test -p tenure-cli storm`.
fn rounds() -> usize {
    std::env::var("TENURE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(20)
}

struct Storm {
    probe: LagProbe,
    /// Every other candidate reaches the server through this proxy.
    proxy: Proxy,
    server: RedisServer,
    direct: Fixture,
    proxied: Fixture,
    candidates: Vec<Program>,
}

impl Storm {
    fn begin() -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::to(server.address());
        let (direct, proxied) = (Fixture::on(&server.url()), Fixture::on(&proxy.url()));
        let mut storm = Self { probe: LagProbe::start(), proxy, server, direct, proxied, candidates: Vec::new() };
        storm.candidates = (0..CANDIDATES).map(|number| storm.candidate(number)).collect();
        storm
    }

    fn candidate(&self, number: usize) -> Program {
        let fixture = if number.is_multiple_of(2) { &self.direct } else { &self.proxied };
        // All commands write to one log.
        let script = busy_script("log").replace("$FIXTURE", &self.direct.path("").display().to_string());
        fixture.run("role", &["--ttl", "1500ms", "--restart"], &script)
    }

    /// Returns the last token of a started command.
    fn last_token(&self) -> u64 {
        let log = self.direct.read("log.begun");
        log.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).max().unwrap_or(0)
    }

    /// Waits until a command has written after now, which must happen within a ttl.
    fn assert_work_resumes(&self, what: &str) {
        let (start, before) = (Instant::now(), self.direct.read("log").len());
        wait_until(&format!("a command works after {what}"), || self.direct.read("log").len() > before);
        self.probe.assert_within(start.elapsed(), MAX_RECOVERY, &format!("a command works after {what}"));
    }

    fn replace(&mut self, number: usize) {
        let next = self.candidate(number);
        let mut gone = std::mem::replace(&mut self.candidates[number], next);
        gone.wait_exit();
    }

    /// Returns the leader.
    fn leader(&self) -> usize {
        let pids: Vec<String> = self.direct.read("log.begun").lines().map(str::to_owned).collect();
        let command = pids.last().and_then(|line| line.split_whitespace().nth(1)?.parse::<u32>().ok()).unwrap_or(0);
        // The command's parent is the guardian, whose parent is the candidate.
        let parent = |pid: u32| -> u32 {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().nth(1);
            fields.and_then(|parent| parent.parse().ok()).unwrap_or(0)
        };
        let pid = parent(parent(command));
        self.candidates.iter().position(|candidate| candidate.pid() == pid).unwrap_or(0)
    }
}

#[test]
fn at_most_one_candidate_works_and_work_resumes_after_every_fault() {
    let mut random = fastrand::Rng::with_seed(4_711);
    let mut storm = Storm::begin();
    storm.assert_work_resumes("the start");
    for round in 0..rounds() {
        let token = storm.last_token();
        let victim = if random.bool() { storm.leader() } else { random.usize(..CANDIDATES) };
        let what = match round % 6 {
            0 => {
                storm.candidates[victim].signal(Signal::KILL);
                storm.replace(victim);
                "kill -9"
            }
            1 => {
                storm.candidates[victim].signal(Signal::STOP);
                std::thread::sleep(TTL * 2);
                storm.candidates[victim].signal(Signal::CONT);
                "SIGSTOP"
            }
            2 => {
                storm.candidates[victim].signal(Signal::TERM);
                storm.replace(victim);
                "SIGTERM"
            }
            3 => {
                storm.proxy.reset_connections();
                "connections reset"
            }
            4 => {
                storm.proxy.blackhole();
                std::thread::sleep(TTL * 2);
                storm.proxy.pass();
                "half of them cut off"
            }
            _ => {
                for kind in ["normal", "pubsub"] {
                    storm.server.command(&["CLIENT", "KILL", "TYPE", kind]);
                }
                "connections killed"
            }
        };
        storm.assert_work_resumes(what);
        assert!(storm.last_token() >= token, "tokens do not decrease");
    }
    let begun: Vec<u64> = storm
        .direct
        .read("log.begun")
        .lines()
        .map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
        .collect();
    println!("{} terms", begun.len());
    assert!(begun.is_sorted_by(|one, next| one < next), "tokens grow strictly: {begun:?}");
    assert_no_overlap(&storm.direct.path("log"));
}
