//! A foreign program, of the kind that Tenure replaces, next to a fleet: it uses plain commands, no tokens and no
//! announcements.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tenure_testbed::{RawConnection, RedisReply, RedisServer};

use crate::harness::{WorkUnit, ttl};

pub const NAME: &str = "old-1";

/// Intervals of its heartbeats, of its rounds over the targets, and of its observations of the holders.
const HEARTBEAT_EVERY: Duration = Duration::from_millis(500);
const ROUND_EVERY: Duration = Duration::from_millis(300);
const OBSERVE_EVERY: Duration = Duration::from_millis(50);

const RENEW_SCRIPT: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";
const RELEASE_SCRIPT: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// A period in which it could rely on holding a target.
#[derive(Clone, Debug)]
pub struct HeldPeriod {
    pub target: String,
    pub from: Instant,
    pub until: Instant,
}

impl HeldPeriod {
    /// Returns whether another worker worked on the target meanwhile.
    pub fn overlaps(&self, unit: &WorkUnit) -> bool {
        unit.began < self.until && unit.ended.is_none_or(|ended| ended > self.from)
    }
}

/// What it held, and what it observed.
#[derive(Debug, Default)]
pub struct ForeignReport {
    pub held: Vec<HeldPeriod>,
    /// The holders of each target, with the time of each change.
    pub holders: BTreeMap<String, Vec<(Instant, Option<String>)>>,
}

pub struct ForeignProgram {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<ForeignReport>,
}

impl ForeignProgram {
    /// Starts a program that assigns each target to the node with the largest hash of node and target name.
    pub fn start(server: &RedisServer, targets: Vec<String>, hash: fn(&str) -> u64) -> Self {
        let ended: Arc<AtomicBool> = Arc::default();
        let (until, connection) = (ended.clone(), server.connect().unwrap());
        let task = ForeignLoop { connection, hash, mine: BTreeMap::new(), report: ForeignReport::default() };
        let thread = std::thread::spawn(move || task.run(&targets, &until));
        Self { ended, thread }
    }

    /// Stops it, and returns its report.
    pub fn end(self) -> ForeignReport {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

struct ForeignLoop {
    connection: RawConnection,
    hash: fn(&str) -> u64,
    /// The targets that it believes to hold.
    mine: BTreeMap<String, HeldPeriod>,
    report: ForeignReport,
}

impl ForeignLoop {
    fn run(mut self, targets: &[String], ended: &AtomicBool) -> ForeignReport {
        let (mut beat_at, mut round_at) = (Instant::now(), Instant::now());
        while !ended.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now >= beat_at {
                beat_at = now + HEARTBEAT_EVERY;
                self.ask(&["SET", &format!("poll:node:{NAME}"), "1", "PX", &millis(ttl())]);
            }
            if now >= round_at {
                round_at = now + ROUND_EVERY;
                self.run_round(targets);
            }
            self.observe(targets);
            std::thread::sleep(OBSERVE_EVERY);
        }
        let now = Instant::now();
        for (_, mut period) in self.mine {
            period.until = period.until.min(now);
            self.report.held.push(period);
        }
        self.report
    }

    /// Renews its targets, acquires unheld ones, and releases those that belong to another node.
    fn run_round(&mut self, targets: &[String]) {
        for target in targets {
            let (key, asked) = (format!("poll:lease:{target}"), Instant::now());
            match self.mine.remove(target) {
                // The ttl may have begun when the request was sent.
                Some(period)
                    if self.ask(&["EVAL", RENEW_SCRIPT, "1", &key, NAME, &millis(ttl())]) == RedisReply::Int(1) =>
                {
                    self.mine.insert(target.clone(), HeldPeriod { until: asked + ttl(), ..period });
                }
                Some(lost) => self.report.held.push(lost),
                None => {
                    if self.ask(&["SET", &key, NAME, "NX", "PX", &millis(ttl())]) == RedisReply::text("OK") {
                        let period = HeldPeriod { target: target.clone(), from: Instant::now(), until: asked + ttl() };
                        self.mine.insert(target.clone(), period);
                    }
                }
            }
        }
        let nodes = self.nodes();
        for target in targets {
            let best = nodes.iter().max_by_key(|node| (self.hash)(&format!("{node}{target}")));
            if best.is_some_and(|best| best == NAME) {
                continue;
            }
            if let Some(mut period) = self.mine.remove(target) {
                period.until = period.until.min(Instant::now());
                self.report.held.push(period);
                self.ask(&["EVAL", RELEASE_SCRIPT, "1", &format!("poll:lease:{target}"), NAME]);
            }
        }
    }

    /// The nodes that are alive, as far as it can see.
    fn nodes(&mut self) -> Vec<String> {
        let keys = self.ask(&["KEYS", "poll:node:*"]);
        keys.as_array().iter().filter_map(|key| Some(key.as_text().strip_prefix("poll:node:")?.to_owned())).collect()
    }

    fn observe(&mut self, targets: &[String]) {
        let keys = targets.iter().map(|target| format!("poll:lease:{target}"));
        let command: Vec<String> = std::iter::once("MGET".to_owned()).chain(keys).collect();
        let (found, now) = (self.ask(&command), Instant::now());
        for (target, holder) in targets.iter().zip(found.as_array()) {
            let holder = (*holder != RedisReply::Nil).then(|| holder.as_text().to_owned());
            let holders = self.report.holders.entry(target.clone()).or_default();
            if holders.last().is_none_or(|(_, last)| *last != holder) {
                holders.push((now, holder));
            }
        }
    }

    fn ask<W: AsRef<[u8]>>(&mut self, command: &[W]) -> RedisReply {
        self.connection.command(command).unwrap()
    }
}

/// FNV-1a with 64 bits.
pub fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// FNV-1a with another mixing step.
pub fn well_mixed(text: &str) -> u64 {
    let hash = fnv(text);
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn millis(time: Duration) -> String {
    time.as_millis().to_string()
}
