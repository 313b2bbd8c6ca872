//! Twenty candidates in processes of their own, and everything that can happen to them.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure_testbed::{Probe, Proxy, RedisServer};

use crate::stage::{Place, Program, busy, nobody_worked_twice, until};

const CANDIDATES: usize = 20;
const TTL: Duration = Duration::from_millis(1_500);

/// A dead leader's ttl, the jitter where its end is awaited, and the start of a guardian and a command.
const BOUND: Duration = Duration::from_millis(1_500 + 25 + 200);

/// How many rounds there are; hundreds take a while: `TENURE_ROUNDS=300 cargo test -p tenure-cli storm`.
fn rounds() -> usize {
    std::env::var("TENURE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(20)
}

struct Storm {
    probe: Probe,
    /// Every other candidate reaches the server through this.
    proxy: Proxy,
    server: RedisServer,
    near: Place,
    far: Place,
    candidates: Vec<Program>,
}

impl Storm {
    fn begin() -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::to(server.address());
        let (near, far) = (Place::on(&server.url()), Place::on(&proxy.url()));
        let mut storm = Self { probe: Probe::start(), proxy, server, near, far, candidates: Vec::new() };
        storm.candidates = (0..CANDIDATES).map(|number| storm.candidate(number)).collect();
        storm
    }

    fn candidate(&self, number: usize) -> Program {
        let place = if number.is_multiple_of(2) { &self.near } else { &self.far };
        // All write to one record.
        let script = busy("log").replace("$PLACE", &self.near.path("").display().to_string());
        place.run("role", &["--ttl", "1500ms", "--restart"], &script)
    }

    /// The last token under which somebody worked.
    fn last(&self) -> u64 {
        let log = self.near.read("log.begun");
        log.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).max().unwrap_or(0)
    }

    /// Waits until somebody has worked after now, which must be within a ttl.
    fn somebody_works(&self, what: &str) {
        let (start, before) = (Instant::now(), self.near.read("log").len());
        until(&format!("somebody works after {what}"), || self.near.read("log").len() > before);
        self.probe.within(start.elapsed(), BOUND, &format!("somebody works after {what}"));
    }

    fn replace(&mut self, number: usize) {
        let next = self.candidate(number);
        let mut gone = std::mem::replace(&mut self.candidates[number], next);
        gone.ends();
    }

    /// Whoever leads.
    fn leader(&self) -> usize {
        let pids: Vec<String> = self.near.read("log.begun").lines().map(str::to_owned).collect();
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
fn at_most_one_works_at_a_time_and_somebody_does_again_after_every_round() {
    let mut random = fastrand::Rng::with_seed(4_711);
    let mut storm = Storm::begin();
    storm.somebody_works("the start");
    for round in 0..rounds() {
        let token = storm.last();
        let whom = if random.bool() { storm.leader() } else { random.usize(..CANDIDATES) };
        let what = match round % 6 {
            0 => {
                storm.candidates[whom].signal(Signal::KILL);
                storm.replace(whom);
                "kill -9"
            }
            1 => {
                storm.candidates[whom].signal(Signal::STOP);
                std::thread::sleep(TTL * 2);
                storm.candidates[whom].signal(Signal::CONT);
                "SIGSTOP"
            }
            2 => {
                storm.candidates[whom].signal(Signal::TERM);
                storm.replace(whom);
                "SIGTERM"
            }
            3 => {
                storm.proxy.cut();
                "connections reset"
            }
            4 => {
                storm.proxy.swallow();
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
        storm.somebody_works(what);
        assert!(storm.last() >= token, "tokens do not shrink");
    }
    let begun: Vec<u64> = storm
        .near
        .read("log.begun")
        .lines()
        .map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
        .collect();
    println!("{} terms", begun.len());
    assert!(begun.is_sorted_by(|one, next| one < next), "tokens grow strictly: {begun:?}");
    nobody_worked_twice(&storm.near.path("log"));
}
