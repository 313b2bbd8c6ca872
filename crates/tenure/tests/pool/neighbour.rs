//! A program of the kind that was there before Tenure, beside a fleet: plain commands, no tokens, and nothing is announced.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tenure_testbed::{Connection, RedisServer, Reply};

use crate::stage::{Unit, ttl};

pub const NAME: &str = "old-1";

/// How often it says that it lives, how often it goes through its targets, and how often it writes down who holds what.
const HEARTBEAT: Duration = Duration::from_millis(500);
const ROUND: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(50);

const RENEW: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";
const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// A stretch in which it could rely on holding a target.
#[derive(Clone, Debug)]
pub struct Stretch {
    pub target: String,
    pub from: Instant,
    pub until: Instant,
}

impl Stretch {
    /// Whether somebody else worked on the target meanwhile.
    pub fn meets(&self, unit: &Unit) -> bool {
        unit.began < self.until && unit.ended.is_none_or(|ended| ended > self.from)
    }
}

/// What it did, and what it saw.
#[derive(Debug, Default)]
pub struct Account {
    pub held: Vec<Stretch>,
    /// Of each target who held it from when on, whenever that was somebody else than before.
    pub holders: BTreeMap<String, Vec<(Instant, Option<String>)>>,
}

pub struct Neighbour {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Account>,
}

impl Neighbour {
    /// One that gives each target to the node of which the hash is the largest, together with the target's name.
    pub fn start(server: &RedisServer, targets: Vec<String>, taste: fn(&str) -> u64) -> Self {
        let ended: Arc<AtomicBool> = Arc::default();
        let (until, connection) = (ended.clone(), server.connect().unwrap());
        let life = Life { connection, taste, mine: BTreeMap::new(), account: Account::default() };
        let thread = std::thread::spawn(move || life.live(&targets, &until));
        Self { ended, thread }
    }

    /// Ends it, and returns what it did.
    pub fn end(self) -> Account {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

struct Life {
    connection: Connection,
    taste: fn(&str) -> u64,
    /// What it holds, as far as it knows.
    mine: BTreeMap<String, Stretch>,
    account: Account,
}

impl Life {
    fn live(mut self, targets: &[String], ended: &AtomicBool) -> Account {
        let (mut beat_at, mut round_at) = (Instant::now(), Instant::now());
        while !ended.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now >= beat_at {
                beat_at = now + HEARTBEAT;
                self.ask(&["SET", &format!("poll:node:{NAME}"), "1", "PX", &millis(ttl())]);
            }
            if now >= round_at {
                round_at = now + ROUND;
                self.go_through(targets);
            }
            self.look(targets);
            std::thread::sleep(LOOK);
        }
        let now = Instant::now();
        for (_, mut stretch) in self.mine {
            stretch.until = stretch.until.min(now);
            self.account.held.push(stretch);
        }
        self.account
    }

    /// Renews what it holds, takes what nobody holds, and lets go of what suits somebody else better.
    fn go_through(&mut self, targets: &[String]) {
        for target in targets {
            let (key, asked) = (format!("poll:lease:{target}"), Instant::now());
            match self.mine.remove(target) {
                // Its ttl can have begun when it was asked for.
                Some(stretch) if self.ask(&["EVAL", RENEW, "1", &key, NAME, &millis(ttl())]) == Reply::Int(1) => {
                    self.mine.insert(target.clone(), Stretch { until: asked + ttl(), ..stretch });
                }
                Some(lost) => self.account.held.push(lost),
                None => {
                    if self.ask(&["SET", &key, NAME, "NX", "PX", &millis(ttl())]) == Reply::text("OK") {
                        let stretch = Stretch { target: target.clone(), from: Instant::now(), until: asked + ttl() };
                        self.mine.insert(target.clone(), stretch);
                    }
                }
            }
        }
        let nodes = self.nodes();
        for target in targets {
            let best = nodes.iter().max_by_key(|node| (self.taste)(&format!("{node}{target}")));
            if best.is_some_and(|best| best == NAME) {
                continue;
            }
            if let Some(mut stretch) = self.mine.remove(target) {
                stretch.until = stretch.until.min(Instant::now());
                self.account.held.push(stretch);
                self.ask(&["EVAL", RELEASE, "1", &format!("poll:lease:{target}"), NAME]);
            }
        }
    }

    /// Who lives, as far as it can tell.
    fn nodes(&mut self) -> Vec<String> {
        let keys = self.ask(&["KEYS", "poll:node:*"]);
        keys.as_array().iter().filter_map(|key| Some(key.as_text().strip_prefix("poll:node:")?.to_owned())).collect()
    }

    fn look(&mut self, targets: &[String]) {
        let keys = targets.iter().map(|target| format!("poll:lease:{target}"));
        let command: Vec<String> = std::iter::once("MGET".to_owned()).chain(keys).collect();
        let (found, now) = (self.ask(&command), Instant::now());
        for (target, holder) in targets.iter().zip(found.as_array()) {
            let holder = (*holder != Reply::Nil).then(|| holder.as_text().to_owned());
            let holders = self.account.holders.entry(target.clone()).or_default();
            if holders.last().is_none_or(|(_, last)| *last != holder) {
                holders.push((now, holder));
            }
        }
    }

    fn ask<W: AsRef<[u8]>>(&mut self, command: &[W]) -> Reply {
        self.connection.command(command).unwrap()
    }
}

/// FNV-1a with 64 bits.
pub fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The same, with all bits stirred once more.
pub fn well_mixed(text: &str) -> u64 {
    let hash = fnv(text);
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn millis(time: Duration) -> String {
    time.as_millis().to_string()
}
