//! Processes that share targets.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;
use tenure_testbed::{Probe, Process, Proxy, RedisServer};

use crate::stage::{TICK, Witness, member, never, until};

/// What a fleet has in common.
pub trait Shared {
    fn url(&self) -> String;
}

impl Shared for RedisServer {
    fn url(&self) -> String {
        self.url()
    }
}

/// A file of one's own.
pub struct File(TempDir);

impl Shared for File {
    fn url(&self) -> String {
        format!("sqlite:{}", self.0.path().join("leases.db").display())
    }
}

/// Processes that share targets, on one store.
pub struct Fleet<S = RedisServer> {
    pub store: S,
    pub witness: Witness,
    pub targets: usize,
    pub probe: Probe,
}

impl Fleet {
    pub fn new(targets: usize) -> Self {
        Self::on(RedisServer::start(), targets)
    }
}

impl Fleet<File> {
    pub fn on_a_file(targets: usize) -> Self {
        Self::on(File(tempfile::tempdir().unwrap()), targets)
    }
}

impl<S: Shared> Fleet<S> {
    fn on(store: S, targets: usize) -> Self {
        Self { store, witness: Witness::start(), targets, probe: Probe::start() }
    }

    pub fn member(&self, name: &str) -> Process {
        member(&self.store.url(), name, self.witness.address(), self.targets)
    }

    /// One whose link to the store can be made bad.
    pub fn member_behind(&self, proxy: &Proxy, name: &str) -> Process {
        member(&proxy.url(), name, self.witness.address(), self.targets)
    }

    pub fn named(&self, name: &str) -> (String, Process) {
        (name.to_owned(), self.member(name))
    }

    /// Who works on what, by what was seen in the last few ticks.
    pub fn workers(&self) -> BTreeMap<String, String> {
        self.witness.since(Instant::now() - TICK * 4)
    }

    /// How many each works on, when all are worked on.
    pub fn shares(&self) -> Option<Vec<(String, usize)>> {
        let workers = self.workers();
        (workers.len() == self.targets).then(|| counts(workers).into_iter().collect())
    }

    /// Waits until so many are worked on by each who works on any.
    pub async fn until_shares_are(&self, expected: &[usize]) {
        let shares = || {
            let mut shares: Vec<usize> = counts(self.workers()).into_values().collect();
            shares.sort_unstable();
            shares
        };
        let start = Instant::now();
        while shares() != expected {
            let (workers, lag) = (self.workers(), self.probe.lag());
            assert!(start.elapsed() < never(), "{workers:?} instead of {expected:?}, lag {lag:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until everything was worked on since then, and last by others than this one.
    pub async fn until_others_work(&self, name: &str, then: Instant) {
        until("all are worked on by others", || {
            let since = self.witness.since(then);
            since.len() == self.targets && since.values().all(|who| who != name)
        })
        .await;
    }

    /// Kills one, and waits until others work on everything. Returns when it died.
    pub async fn crash(&self, name: &str, process: &Process) -> Instant {
        process.signal(Signal::KILL);
        let killed = Instant::now();
        self.until_others_work(name, killed).await;
        killed
    }
}

/// How many each works on.
fn counts(workers: BTreeMap<String, String>) -> BTreeMap<String, usize> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    workers.into_values().for_each(|who| *counts.entry(who).or_default() += 1);
    counts
}
