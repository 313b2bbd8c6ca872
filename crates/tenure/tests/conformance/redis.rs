//! The conformance suite on Redis: a private server for each case, in every release found.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::store::redis::RedisStore;
use tenure::store::{BoxFuture, Keyspace, Store};
use tenure::testing::{FaultInjection, StoreFault, StoreFixture};
use tenure_testbed::{RedisRelease, RedisReply, RedisServer, servers};

struct RedisFixture {
    server: RedisServer,
    started: Mutex<Instant>,
    snapshot: Mutex<BTreeMap<Vec<u8>, Dump>>,
}

/// A key as the server dumped it, with its remaining ttl.
struct Dump {
    contents: Vec<u8>,
    ttl: i64,
}

impl RedisFixture {
    fn new(release: Option<RedisRelease>) -> Self {
        let builder = RedisServer::builder().append_only("no");
        let builder = if RedisServer::can_fake_time() { builder.own_clock() } else { builder };
        let builder = match release {
            Some(release) => builder.release(release),
            None => builder,
        };
        Self { server: builder.start(), started: Mutex::new(Instant::now()), snapshot: Mutex::default() }
    }

    fn take_snapshot(&self) {
        let mut snapshot = BTreeMap::new();
        for key in self.server.command(&["KEYS", "*"]).as_array() {
            let key = bytes(key);
            let ttl = self.server.command(&[b"PTTL", key.as_slice()]).as_int().max(0);
            let contents = bytes(&self.server.command(&[b"DUMP", key.as_slice()]));
            snapshot.insert(key, Dump { contents, ttl });
        }
        *self.snapshot.lock().unwrap() = snapshot;
    }

    fn restore(&self) {
        self.server.command(&["FLUSHALL"]);
        for (key, Dump { contents, ttl }) in self.snapshot.lock().unwrap().iter() {
            let ttl = ttl.to_string().into_bytes();
            assert_eq!(self.server.command(&[&b"RESTORE"[..], key, &ttl, contents]), RedisReply::text("OK"));
        }
    }

    /// Briefly becomes a replica of another server that has the snapshot.
    fn replace(&self) {
        let server = RedisServer::builder().binary(self.server.binary()).start();
        let other = Self { server, started: Mutex::new(Instant::now()), snapshot: Mutex::default() };
        *other.snapshot.lock().unwrap() = std::mem::take(&mut *self.snapshot.lock().unwrap());
        other.restore();
        self.server.replicate_from(&other.server);
        self.server.command(&["REPLICAOF", "NO", "ONE"]);
    }

    fn restart(&self) {
        self.server.kill();
        self.server.restart();
        *self.started.lock().unwrap() = Instant::now();
    }
}

fn bytes(reply: &RedisReply) -> Vec<u8> {
    match reply {
        RedisReply::Bytes(bytes) => bytes.clone(),
        other => other.as_text().as_bytes().to_vec(),
    }
}

impl StoreFixture for RedisFixture {
    fn store(&self) -> Arc<dyn Store> {
        let keyspace = Keyspace::default().namespace("suite").unwrap();
        Arc::new(RedisStore::open(&self.server.url(), &keyspace).unwrap())
    }

    fn advance_time(&self, span: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(span))
    }

    fn inject(&self, fault: StoreFault) -> BoxFuture<'_, FaultInjection> {
        Box::pin(async move {
            let server = &self.server;
            match fault {
                StoreFault::Flush => drop(server.command(&["FLUSHALL"])),
                StoreFault::Restart => self.restart(),
                StoreFault::RestartEmpty => {
                    server.kill();
                    server.restart_empty();
                    *self.started.lock().unwrap() = Instant::now();
                }
                StoreFault::TakeSnapshot => self.take_snapshot(),
                StoreFault::RestoreSnapshot => self.restore(),
                StoreFault::RestartFromSnapshot => {
                    self.restore();
                    self.restart();
                }
                StoreFault::ReplaceData => self.replace(),
                StoreFault::CorruptToken { name, token } => {
                    let key = format!("suite:tenure:term:{{suite:{}}}", name.key());
                    server.command(&["HSET", &key, "token", &token.to_string()]);
                }
                StoreFault::CutConnections => {
                    for kind in ["normal", "pubsub"] {
                        server.command(&["CLIENT", "KILL", "TYPE", kind]);
                    }
                }
                StoreFault::WriteForeignLease { name, holder, ttl } => {
                    let key = format!("suite:{}", name.key());
                    match ttl {
                        Some(ttl) => server.command(&["SET", &key, &holder, "PX", &ttl.as_millis().to_string()]),
                        None => server.command(&["SET", &key, &holder]),
                    };
                }
                StoreFault::DeleteLease { name } => drop(server.command(&["DEL", &format!("suite:{}", name.key())])),
                StoreFault::StepClockBack(by) if RedisServer::can_fake_time() => server.step_clock(by, false),
                StoreFault::StepClockForward(by) if RedisServer::can_fake_time() => server.step_clock(by, true),
                StoreFault::AgeServer(age) => {
                    // By its own count, which is in whole seconds.
                    let wanted = age + Duration::from_secs(1);
                    let lived = self.started.lock().unwrap().elapsed();
                    tokio::time::sleep(wanted.saturating_sub(lived)).await;
                }
                _ => return FaultInjection::Unsupported,
            }
            FaultInjection::Injected
        })
    }
}

async fn installed() -> RedisFixture {
    RedisFixture::new(None)
}

tenure::conformance_tests!(installed);

/// Runs the whole suite on one release, case by case; warns if there is no such server.
fn run_suite_on(release: RedisRelease) {
    // Every case already runs on the installed server as a separate test.
    if servers::find_or_warn(release).is_some_and(|found| found != servers::default_server()) {
        let report = tenure::testing::run_all(|| async { RedisFixture::new(Some(release)) });
        assert!(!report.passed.is_empty());
    }
}

#[test]
fn redis_6_2_passes_every_case() {
    run_suite_on(RedisRelease::V6_2);
}

#[test]
fn redis_7_0_passes_every_case() {
    run_suite_on(RedisRelease::V7_0);
}

#[test]
fn redis_8_2_passes_every_case() {
    run_suite_on(RedisRelease::V8_2);
}
