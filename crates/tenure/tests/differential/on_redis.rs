//! The Redis releases found on this machine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::LeaseName;
use tenure::store::redis::RedisStore;
use tenure::store::{ServerInfo, ServerRun, Store};
use tenure::time::ServerTime;
use tenure_testbed::{RedisRelease, RedisServer, servers};

use crate::compare;
use crate::fixture::{DifferentialFixture, keyspace};

struct RedisFixture {
    server: RedisServer,
    started: Instant,
}

impl RedisFixture {
    fn start(release: Option<RedisRelease>) -> Self {
        let builder = RedisServer::builder();
        let builder = match release {
            Some(release) => builder.release(release),
            None => builder,
        };
        let redis = Self { server: builder.start(), started: Instant::now() };
        // The server counts its uptime in whole seconds, and the uptime must not be too short for short ttls.
        std::thread::sleep(Duration::from_millis(1_100));
        redis
    }
}

impl DifferentialFixture for RedisFixture {
    fn store(&self, namespace: &str) -> Arc<dyn Store> {
        Arc::new(RedisStore::open(&self.server.url(), &keyspace(namespace)).unwrap())
    }

    /// The marker of a namespace survives the loss of its data.
    fn server_info(&self, subscribers: usize, was_attached: bool, _has_terms: bool) -> ServerInfo {
        let (now, run, uptime) = (ServerTime::from_micros(0), ServerRun(1), self.started.elapsed());
        ServerInfo { now, run, uptime, subscribers, has_served: was_attached }
    }

    fn flush(&self, namespace: &str) {
        let script = "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end";
        self.server.command(&["EVAL", script, "0", &format!("{namespace}:*")]);
    }

    fn write_foreign(&self, namespace: &str, name: &LeaseName, holder: &str, ttl: Option<Duration>) {
        let key = format!("{namespace}:{}", name.key());
        match ttl {
            Some(ttl) => self.server.command(&["SET", &key, holder, "PX", &ttl.as_millis().to_string()]),
            None => self.server.command(&["SET", &key, holder]),
        };
    }

    fn delete_foreign(&self, namespace: &str, name: &LeaseName) {
        self.server.command(&["DEL", &format!("{namespace}:{}", name.key())]);
    }
}

#[test]
fn redis_answers_as_the_ledger_does() {
    compare(Arc::new(RedisFixture::start(None)));
}

fn compare_release(release: RedisRelease) {
    if servers::find_or_warn(release).is_some_and(|found| found != servers::default_server()) {
        compare(Arc::new(RedisFixture::start(Some(release))));
    }
}

#[test]
fn redis_6_2_answers_as_the_ledger_does() {
    compare_release(RedisRelease::V6_2);
}

#[test]
fn redis_8_2_answers_as_the_ledger_does() {
    compare_release(RedisRelease::V8_2);
}
