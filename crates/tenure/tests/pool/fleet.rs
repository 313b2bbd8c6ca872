//! A fleet of processes that share targets.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;
use tenure_testbed::{LagProbe, Proxy, RedisServer, TestProcess};

use crate::harness::{TICK, Witness, spawn_instance, test_timeout, wait_until};

/// The store that a fleet shares.
pub trait SharedStore {
    fn url(&self) -> String;
}

impl SharedStore for RedisServer {
    fn url(&self) -> String {
        self.url()
    }
}

/// A private SQLite file.
pub struct SqliteFile(TempDir);

impl SharedStore for SqliteFile {
    fn url(&self) -> String {
        format!("sqlite:{}", self.0.path().join("leases.db").display())
    }
}

/// Processes that share targets on one store.
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

    /// Spawns an instance behind a fault-injecting proxy.
    pub fn spawn_behind(&self, proxy: &Proxy, name: &str) -> TestProcess {
        spawn_instance(&proxy.url(), name, self.witness.address(), self.targets)
    }

    pub fn spawn_named(&self, name: &str) -> (String, TestProcess) {
        (name.to_owned(), self.spawn(name))
    }

    /// The worker of each target, by the last few ticks.
    pub fn workers(&self) -> BTreeMap<String, String> {
        self.witness.since(Instant::now() - TICK * 4)
    }

    /// Number of targets that each instance works on, if all targets are worked on.
    pub fn complete_counts(&self) -> Option<Vec<(String, usize)>> {
        let workers = self.workers();
        (workers.len() == self.targets).then(|| counts(workers).into_iter().collect())
    }

    /// Waits until the instances that work have these numbers of targets.
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

    /// Waits until every target was worked on since then, and last by another instance than this one.
    pub async fn wait_for_others(&self, name: &str, then: Instant) {
        wait_until("every target is worked on by another instance", || {
            let since = self.witness.since(then);
            since.len() == self.targets && since.values().all(|worker| worker != name)
        })
        .await;
    }

    /// Kills an instance, and waits until others work on every target. Returns the time of death.
    pub async fn crash(&self, name: &str, process: &TestProcess) -> Instant {
        process.signal(Signal::KILL);
        let killed = Instant::now();
        self.wait_for_others(name, killed).await;
        killed
    }
}

/// Number of targets per worker.
fn counts(workers: BTreeMap<String, String>) -> BTreeMap<String, usize> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    workers.into_values().for_each(|worker| *counts.entry(worker).or_default() += 1);
    counts
}
