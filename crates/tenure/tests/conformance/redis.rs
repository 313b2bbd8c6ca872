//! The conformance suite on Redis: a server of its own for each case, in every release that is to be had.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::store::redis::RedisStore;
use tenure::store::{BoxFuture, Keyspace, Store};
use tenure::testing::{Disturbance, Disturbed, Subject};
use tenure_testbed::{RedisServer, Release, Reply, servers};

struct Redis {
    server: RedisServer,
    started: Mutex<Instant>,
    remembered: Mutex<BTreeMap<Vec<u8>, Dump>>,
}

/// A key as the server dumped it, with what was left of its ttl.
struct Dump {
    contents: Vec<u8>,
    ttl: i64,
}

impl Redis {
    fn new(release: Option<Release>) -> Self {
        let builder = RedisServer::builder().append_only("no");
        let builder = if RedisServer::can_fake_time() { builder.own_clock() } else { builder };
        let builder = match release {
            Some(release) => builder.release(release),
            None => builder,
        };
        Self { server: builder.start(), started: Mutex::new(Instant::now()), remembered: Mutex::default() }
    }

    fn remember(&self) {
        let mut remembered = BTreeMap::new();
        for key in self.server.command(&["KEYS", "*"]).as_array() {
            let key = bytes(key);
            let ttl = self.server.command(&[b"PTTL", key.as_slice()]).as_int().max(0);
            let contents = bytes(&self.server.command(&[b"DUMP", key.as_slice()]));
            remembered.insert(key, Dump { contents, ttl });
        }
        *self.remembered.lock().unwrap() = remembered;
    }

    fn restore(&self) {
        self.server.command(&["FLUSHALL"]);
        for (key, Dump { contents, ttl }) in self.remembered.lock().unwrap().iter() {
            let ttl = ttl.to_string().into_bytes();
            assert_eq!(self.server.command(&[&b"RESTORE"[..], key, &ttl, contents]), Reply::text("OK"));
        }
    }

    /// Follows another server, which has the remembered data, for a moment.
    fn replace(&self) {
        let server = RedisServer::builder().binary(self.server.binary()).start();
        let other = Self { server, started: Mutex::new(Instant::now()), remembered: Mutex::default() };
        *other.remembered.lock().unwrap() = std::mem::take(&mut *self.remembered.lock().unwrap());
        other.restore();
        self.server.follow(&other.server);
        self.server.command(&["REPLICAOF", "NO", "ONE"]);
    }

    fn restart(&self) {
        self.server.kill();
        self.server.start_again();
        *self.started.lock().unwrap() = Instant::now();
    }
}

fn bytes(reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::Bytes(bytes) => bytes.clone(),
        other => other.as_text().as_bytes().to_vec(),
    }
}

impl Subject for Redis {
    fn store(&self) -> Arc<dyn Store> {
        let keyspace = Keyspace::default().namespace("suite").unwrap();
        Arc::new(RedisStore::open(&self.server.url(), &keyspace).unwrap())
    }

    fn pass(&self, span: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(span))
    }

    fn disturb(&self, disturbance: Disturbance) -> BoxFuture<'_, Disturbed> {
        Box::pin(async move {
            let server = &self.server;
            match disturbance {
                Disturbance::Flush => drop(server.command(&["FLUSHALL"])),
                Disturbance::Restart => self.restart(),
                Disturbance::RestartEmpty => {
                    server.kill();
                    server.start_again_empty();
                    *self.started.lock().unwrap() = Instant::now();
                }
                Disturbance::Remember => self.remember(),
                Disturbance::Restore => self.restore(),
                Disturbance::RestartRestored => {
                    self.restore();
                    self.restart();
                }
                Disturbance::Replace => self.replace(),
                Disturbance::SpoilToken { name, token } => {
                    let key = format!("suite:tenure:term:{{suite:{}}}", name.key());
                    server.command(&["HSET", &key, "token", &token.to_string()]);
                }
                Disturbance::Cut => {
                    for kind in ["normal", "pubsub"] {
                        server.command(&["CLIENT", "KILL", "TYPE", kind]);
                    }
                }
                Disturbance::ForeignLease { name, holder, ttl } => {
                    let key = format!("suite:{}", name.key());
                    match ttl {
                        Some(ttl) => server.command(&["SET", &key, &holder, "PX", &ttl.as_millis().to_string()]),
                        None => server.command(&["SET", &key, &holder]),
                    };
                }
                Disturbance::ForeignDelete { name } => drop(server.command(&["DEL", &format!("suite:{}", name.key())])),
                Disturbance::ClockBack(by) if RedisServer::can_fake_time() => server.step_clock(by, false),
                Disturbance::ClockForward(by) if RedisServer::can_fake_time() => server.step_clock(by, true),
                Disturbance::AgeServer(age) => {
                    // By its own account, which is in whole seconds.
                    let wanted = age + Duration::from_secs(1);
                    let lived = self.started.lock().unwrap().elapsed();
                    tokio::time::sleep(wanted.saturating_sub(lived)).await;
                }
                _ => return Disturbed::Unsupported,
            }
            Disturbed::Done
        })
    }
}

async fn installed() -> Redis {
    Redis::new(None)
}

tenure::conformance_tests!(installed);

/// The whole suite on one release, case after case; a loud note where there is no such server.
fn passes_on(release: Release) {
    // The installed one has been put through every case by itself.
    if servers::find_or_say(release).is_some_and(|found| found != servers::installed()) {
        let report = tenure::testing::run_all(|| async { Redis::new(Some(release)) });
        assert!(!report.passed.is_empty());
    }
}

#[test]
fn release_6_2() {
    passes_on(Release::V6_2);
}

#[test]
fn release_7_0() {
    passes_on(Release::V7_0);
}

#[test]
fn release_8_2() {
    passes_on(Release::V8_2);
}
