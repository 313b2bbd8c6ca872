//! Processes that share targets.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;
use tenure_testbed::{LagProbe, Proxy, RedisServer, TestProcess};

use crate::harness::{TICK, Witness, spawn_instance, test_timeout, wait_until};

/// What a fleet has in common.
pub trait SharedStore {
    fn url(&self) -> String;
}

impl SharedStore for RedisServer {
    fn url(&self) -> String {
        self.url()
    }
}

/// A file of one's own.
pub struct SqliteFile(TempDir);

impl SharedStore for SqliteFile {
    fn url(&self) -> String {
        format!("sqlite:{}", self.0.path().join("leases.db").display())
    }
}

/// Processes that share targets, on one store.
pub struct Fleet<S = RedisServer> {
    pub store: S,
    pub witness: Witness,
    pub targets: usize,
    pub probe: LagProbe,
}

impl Fleet {
    pub fn new(targets: usize) -> Self {
        Self::on(RedisServer::start(), targets)
    }
}

impl Fleet<SqliteFile> {
    pub fn on_sqlite(targets: usize) -> Self {
        Self::on(SqliteFile(tempfile::tempdir().unwrap()), targets)
    }
}

impl<S: SharedStore> Fleet<S> {
    fn on(store: S, targets: usize) -> Self {
        Self { store, witness: Witness::start(), targets, probe: LagProbe::start() }
    }

    pub fn spawn(&self, name: &str) -> TestProcess {
        spawn_instance(&self.store.url(), name, self.witness.address(), self.targets)
    }

    /// One whose link to the store can be made bad.
    pub fn spawn_behind(&self, proxy: &Proxy, name: &str) -> TestProcess {
        spawn_instance(&proxy.url(), name, self.witness.address(), self.targets)
    }

    pub fn spawn_named(&self, name: &str) -> (String, TestProcess) {
        (name.to_owned(), self.spawn(name))
    }

    /// Who works on what, by what was seen in the last few ticks.
    pub fn workers(&self) -> BTreeMap<String, String> {
        self.witness.since(Instant::now() - TICK * 4)
    }

    /// How many each works on, when all are worked on.
    pub fn complete_counts(&self) -> Option<Vec<(String, usize)>> {
        let workers = self.workers();
        (workers.len() == self.targets).then(|| counts(workers).into_iter().collect())
    }

    /// Waits until so many are worked on by each who works on any.
    pub async fn wait_for_counts(&self, expected: &[usize]) {
        let shares = || {
            let mut shares: Vec<usize> = counts(self.workers()).into_values().collect();
            shares.sort_unstable();
            shares
        };
        let start = Instant::now();
        while shares() != expected {
            let (workers, lag) = (self.workers(), self.probe.lag());
            assert!(start.elapsed() < test_timeout(), "{workers:?} instead of {expected:?}, lag {lag:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until everything was worked on since then, and last by others than this one.
    pub async fn wait_for_others(&self, name: &str, then: Instant) {
        wait_until("all are worked on by others", || {
            let since = self.witness.since(then);
            since.len() == self.targets && since.values().all(|worker| worker != name)
        })
        .await;
    }

    /// Kills one, and waits until others work on everything. Returns when it died.
    pub async fn crash(&self, name: &str, process: &TestProcess) -> Instant {
        process.signal(Signal::KILL);
        let killed = Instant::now();
        self.wait_for_others(name, killed).await;
        killed
    }
}

/// How many each works on.
fn counts(workers: BTreeMap<String, String>) -> BTreeMap<String, usize> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    workers.into_values().for_each(|worker| *counts.entry(worker).or_default() += 1);
    counts
}
