//! What a pool can be asked, and where its targets can come from.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::placement::Reason;
use tenure::pool::{Pool, PoolBuilder};
use tenure::{Event, Tenure};
use tenure_testbed::RedisServer;

use crate::stage::{never, ttl, until};

async fn instance(server: &RedisServer, name: &str) -> Tenure {
    Tenure::builder(&server.url()).name(name).unwrap().longest_ttl(ttl()).bootstrap().connect().await.unwrap()
}

/// A pool whose work is to hold.
fn start(pool: PoolBuilder) -> Pool {
    pool.ttl(ttl()).run(async |_, lease| while lease.wait(never()).await {}).start().unwrap()
}

#[tokio::test]
async fn a_target_that_is_asked_for_is_had_or_not() {
    let server = RedisServer::start();
    let (one, two) = (instance(&server, "one").await, instance(&server, "two").await);
    let first = start(one.pool("poll").targets(["a", "b"]));
    until("it has everything", || first.owned().len() == 2).await;
    assert!(first.try_acquire("a").await, "it is held already");
    assert!(!first.try_acquire("nothing").await, "that is no target");
    // One that counts for nothing is given nothing, and may ask.
    let second = start(two.pool("poll").targets(["a", "b"]).weight(0.0));
    assert!(!second.try_acquire("a").await, "somebody holds it");
    first.retarget(["b"]).unwrap();
    until("it is let go of", || !first.is_owned("a")).await;
    let asks = async {
        while !second.try_acquire("a").await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(never(), asks).await.unwrap();
    assert!(second.is_owned("a"));
    second.stop().await;
    assert!(!second.try_acquire("a").await, "it has ended");
    first.stop().await;
}

#[tokio::test]
async fn why_a_target_moved_is_written_down() {
    let server = RedisServer::start();
    let (one, two) = (instance(&server, "one").await, instance(&server, "two").await);
    let targets = ["a", "b", "c", "d"];
    let first = start(one.pool("poll").targets(targets));
    until("it has everything", || first.owned().len() == 4).await;
    assert_eq!(first.last_move("a").await.unwrap(), None, "it has never moved");
    let second = start(two.pool("poll").targets(targets));
    until("it has its share", || second.owned().len() == 2).await;
    for target in second.owned() {
        let moved = first.last_move(&target).await.unwrap().unwrap();
        assert_eq!((moved.from.as_ref(), &moved.to), (Some(one.instance()), two.instance()));
        // One at a time.
        assert!(matches!(moved.reason, Reason::Surplus { held: 3 | 4, share: 2 }), "{moved:?}");
    }
    first.stop().await;
    until("it has everything", || second.owned().len() == 4).await;
    let moved = second.last_move("a").await.unwrap().unwrap();
    assert!(moved.reason == Reason::Draining || moved.from.as_ref() == Some(one.instance()), "{moved:?}");
    second.stop().await;
}

#[tokio::test]
async fn what_happens_to_a_pool_is_told() {
    let server = RedisServer::start();
    let (one, two) = (instance(&server, "one").await, instance(&server, "two").await);
    let first = start(one.pool("poll").targets(["a", "b"]));
    let mut events = first.events();
    let other = one.lease("beside").acquire().await.unwrap();
    let second = start(two.pool("poll").targets(["a", "b"]));
    let mut names = BTreeSet::new();
    let wanted = ["lease.acquired", "fleet.joined", "lease.released", "fleet.left"];
    let mut stopped = false;
    while !wanted.iter().all(|name| names.contains(*name)) {
        let event: Event = tokio::time::timeout(never(), events.next()).await.unwrap().unwrap();
        assert!(event.lease.is_none_or(|lease| lease.label() != "beside"), "that is no target");
        names.insert(event.what.name().to_owned());
        // It leaves when it has got something.
        if !stopped && second.owned().len() == 1 {
            stopped = true;
            second.stop().await;
        }
    }
    other.release().await.unwrap();
    first.stop().await;
}

#[tokio::test]
async fn targets_come_from_the_sessions_of_the_store() {
    let server = RedisServer::start();
    let one = instance(&server, "one").await;
    server.command(&["SADD", "tenure:index:sessions", "a", "b", "not a name"]);
    let pool = start(one.pool("poll").targets_from(one.sessions()));
    until("it has what there is", || pool.owned().len() == 2).await;
    assert_eq!(pool.rejected().len(), 1);
    // Quietly changed, and announced.
    server.command(&["SADD", "tenure:index:sessions", "c"]);
    server.command(&["SREM", "tenure:index:sessions", "a", "not a name"]);
    server.command(&["PUBLISH", "tenure:announcements", "index sessions"]);
    until("it has what there is", || pool.owned().iter().map(|target| &**target).eq(["b", "c"])).await;
    assert!(pool.rejected().is_empty());
    pool.stop().await;
}
