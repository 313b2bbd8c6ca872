//! The Redis releases that are to be had.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::LeaseName;
use tenure::store::redis::RedisStore;
use tenure::store::{Server, ServerRun, Store};
use tenure::time::ServerTime;
use tenure_testbed::{RedisServer, Release, servers};

use crate::bench::{Bench, keyspace};
use crate::compare;

struct Redis {
    server: RedisServer,
    started: Instant,
}

impl Redis {
    fn start(release: Option<Release>) -> Self {
        let builder = RedisServer::builder();
        let builder = match release {
            Some(release) => builder.release(release),
            None => builder,
        };
        let redis = Self { server: builder.start(), started: Instant::now() };
        // It counts its age in whole seconds, and must not be too young for short ttls.
        std::thread::sleep(Duration::from_millis(1_100));
        redis
    }
}

impl Bench for Redis {
    fn store(&self, namespace: &str) -> Arc<dyn Store> {
        Arc::new(RedisStore::open(&self.server.url(), &keyspace(namespace)).unwrap())
    }

    /// The marker of a namespace outlives its data.
    fn facts(&self, listeners: usize, was_entered: bool, _has_terms: bool) -> Server {
        let (now, run, uptime) = (ServerTime::from_micros(0), ServerRun(1), self.started.elapsed());
        Server { now, run, uptime, listeners, has_served: was_entered }
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
    compare(Arc::new(Redis::start(None)));
}

fn other_release(release: Release) {
    if servers::find_or_say(release).is_some_and(|found| found != servers::installed()) {
        compare(Arc::new(Redis::start(Some(release))));
    }
}

#[test]
fn redis_6_2_answers_as_the_ledger_does() {
    other_release(Release::V6_2);
}

#[test]
fn redis_8_2_answers_as_the_ledger_does() {
    other_release(Release::V8_2);
}
