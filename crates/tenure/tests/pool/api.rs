//! The API of a pool, and the sources of its targets.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure::fleet::FleetEvent;
use tenure::lease::LeaseState;
use tenure::placement::MoveReason;
use tenure::pool::{PoolBuilder, Target, TargetError, TargetName};
use tenure::store::{Announcement, SubscriptionItem};
use tenure::{Event, Pool, Tenure, TermHandle};
use tenure_testbed::{RedisReply, RedisServer};

use crate::harness::{test_timeout, ttl, wait_until};

async fn instance(server: &RedisServer, name: &str) -> Tenure {
    Tenure::builder(&server.url()).name(name).longest_ttl(ttl()).bootstrap().connect().await.unwrap()
}

/// Starts a pool whose work only holds its targets.
fn start(pool: PoolBuilder) -> Pool {
    let work = async |_, term: TermHandle| {
        term.draining().await;
        Ok(())
    };
    pool.ttl(ttl()).run(work).start().unwrap()
}

#[tokio::test]
async fn try_acquire_returns_the_term_or_the_reason() {
    let server = RedisServer::start();
    let (one, two) = (instance(&server, "one").await, instance(&server, "two").await);
    let first = start(one.pool("poll").targets(["a", "b"]));
    wait_until("the pool holds every target", || first.owned().len() == 2).await;
    assert!(first.try_acquire("a").await.is_ok(), "it is already held");
    assert_eq!(first.try_acquire("nothing").await.unwrap_err(), TargetError::NotATarget);
    assert_eq!(first.release("nothing").await, Err(TargetError::NotATarget));
    // An instance of weight zero is offered no target, but may acquire one.
    let second = start(two.pool("poll").targets(["a", "b"]).weight(0.0));
    let refused = second.try_acquire("a").await.unwrap_err();
    assert!(matches!(&refused, TargetError::Held { holder, .. } if holder == one.instance()), "{refused}");
    assert_eq!(second.release("a").await, Err(TargetError::NotHeld));
    let info = second.lease_info("a").await.unwrap();
    assert_eq!((info.state, info.holder.as_ref()), (LeaseState::Other, Some(one.instance())));
    let own = first.lease_info("a").await.unwrap();
    assert!(own.state == LeaseState::Owned && own.token.is_some() && own.acquired_at.is_some(), "{own:?}");
    assert_eq!(first.lease_info("nothing").await, None);
    first.retarget(["b"]).unwrap();
    wait_until("the target is released", || !first.is_owned("a")).await;
    let asks = async {
        while second.try_acquire("a").await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(test_timeout(), asks).await.unwrap();
    assert!(second.is_owned("a"));
    second.drain();
    wait_until("the target is handed over", || !second.is_owned("a")).await;
    assert_eq!(second.try_acquire("b").await.unwrap_err(), TargetError::Draining);
    second.stop().await;
    assert_eq!(second.try_acquire("a").await.unwrap_err(), TargetError::Stopped);
    assert_eq!(first.release("b").await, Ok(()));
    wait_until("the target is held again", || first.is_owned("b")).await;
    // Without another instance nothing can be handed over.
    assert_eq!(first.stop().await.not_handed_over, [TargetName::from("b")]);
}

#[tokio::test]
async fn the_reason_for_a_move_is_recorded() {
    let server = RedisServer::start();
    let (one, two) = (instance(&server, "one").await, instance(&server, "two").await);
    let targets = ["a", "b", "c", "d"];
    let first = start(one.pool("poll").targets(targets));
    wait_until("the pool holds every target", || first.owned().len() == 4).await;
    assert_eq!(first.last_move("a").await.unwrap(), None, "it has never moved");
    let second = start(two.pool("poll").targets(targets));
    wait_until("the second pool has its quota", || second.owned().len() == 2).await;
    for target in second.owned() {
        let (moved, _) = first.last_move(target.name()).await.unwrap().unwrap();
        assert_eq!((moved.from.as_ref(), &moved.to), (Some(one.instance()), two.instance()));
        // One target at a time.
        assert!(matches!(moved.reason, MoveReason::Surplus { held: 3 | 4, quota: 2 }), "{moved:?}");
    }
    first.stop().await;
    wait_until("the second pool holds every target", || second.owned().len() == 4).await;
    let (moved, _) = second.last_move("a").await.unwrap().unwrap();
    assert!(moved.reason == MoveReason::Draining || moved.from.as_ref() == Some(one.instance()), "{moved:?}");
    second.stop().await;
}

#[tokio::test]
async fn pool_events_are_emitted() {
    let server = RedisServer::start();
    let (one, two) = (instance(&server, "one").await, instance(&server, "two").await);
    let first = start(one.pool("poll").targets(["a", "b"]));
    // Before the second instance joins. Otherwise each may get its quota at once, and no target is ever handed over.
    wait_until("the pool holds every target", || first.owned().len() == 2).await;
    let mut events = first.events();
    let other = one.lease("beside").acquire().await.unwrap();
    let second = start(two.pool("poll").targets(["a", "b"]));
    let mut names = BTreeSet::new();
    let wanted = ["fleet.joined", "lease.released", "fleet.left", "lease.acquired"];
    let mut stopped = false;
    while !wanted.iter().all(|name| names.contains(*name)) {
        let event: Event = tokio::time::timeout(test_timeout(), events.next()).await.unwrap().unwrap();
        assert!(event.lease.is_none_or(|lease| lease.label() != "beside"), "a pool must not report other leases");
        names.insert(event.kind.name().to_owned());
        // The second instance leaves once it holds a target.
        if !stopped && second.owned().len() == 1 {
            stopped = true;
            second.stop().await;
        }
    }
    other.release().await.unwrap();
    first.stop().await;
}

#[tokio::test]
async fn targets_come_from_the_documents_of_the_store() {
    let server = RedisServer::start();
    let one = instance(&server, "one").await;
    server.command(&["SADD", "tenure:index:servers", "a", "b", "not a name"]);
    let pool = start(one.pool("poll").targets_from(one.documents("servers").follow()));
    wait_until("the pool holds every target", || pool.owned().len() == 2).await;
    assert_eq!(pool.rejected().len(), 1);
    // Changed directly, then announced.
    server.command(&["SADD", "tenure:index:servers", "c"]);
    server.command(&["SREM", "tenure:index:servers", "a", "not a name"]);
    server.command(&["PUBLISH", "tenure:announcements", "index servers"]);
    wait_until("the pool holds every target", || pool.owned().iter().map(Target::name).eq(["b", "c"])).await;
    assert!(pool.rejected().is_empty());
    pool.stop().await;
}

#[tokio::test]
async fn documents_that_other_programs_write_and_delete_are_found() {
    let server = RedisServer::start();
    let one = instance(&server, "one").await;
    server.command(&["SET", "tenure:doc:servers:a", "{}"]);
    let pool = start(one.pool("poll").targets_from(one.documents("servers").follow()).discover("servers"));
    let has = |wanted: &[&str]| pool.owned().iter().map(Target::name).eq(wanted.iter().copied());
    wait_until("the pool holds the existing document", || has(&["a"])).await;
    server.command(&["SET", "tenure:doc:servers:b", "{}"]);
    wait_until("the pool holds the new document", || has(&["a", "b"])).await;
    server.command(&["DEL", "tenure:doc:servers:a"]);
    wait_until("the pool has released the deleted document", || has(&["b"])).await;
    pool.stop().await;
}

#[tokio::test]
async fn a_reconciler_that_steps_down_is_replaced() {
    let server = RedisServer::start();
    let (one, two) = (instance(&server, "one").await, instance(&server, "two").await);
    let (first, second) = (start(one.pool("poll").targets(["a"])), start(two.pool("poll").targets(["a"])));
    let reconciler = || server.command(&["GET", "leader:poll-reconciler"]);
    wait_until("there is a reconciler", || reconciler() != RedisReply::Nil).await;
    let before = reconciler();
    let role = tenure::LeaseName::role("poll-reconciler").unwrap();
    one.admin().step_down(&role, None).await.unwrap();
    wait_until("there is another reconciler", || reconciler() != RedisReply::Nil && reconciler() != before).await;
    tokio::join!(first.stop(), second.stop());
}

#[tokio::test]
async fn a_forbidden_scan_is_retried_until_it_is_allowed() {
    let server = RedisServer::start();
    server.command(&["ACL", "SETUSER", "default", "-scan"]);
    server.command(&["SET", "tenure:doc:servers:a", "{}"]);
    let one = instance(&server, "one").await;
    let mut events = one.events();
    let pool = start(
        one.pool("poll")
            .targets_from(one.documents("servers").follow())
            .discover("servers")
            .discover_every(Duration::from_millis(50)),
    );
    let refused = async { while events.next().await.unwrap().kind.name() != "store.refused" {} };
    tokio::time::timeout(test_timeout(), refused).await.unwrap();
    server.command(&["ACL", "SETUSER", "default", "+scan"]);
    wait_until("the document is found", || pool.is_owned("a")).await;
    pool.stop().await;
}

#[tokio::test]
async fn pools_of_one_namespace_are_independent() {
    let server = RedisServer::start();
    let (one, two) = (instance(&server, "one").await, instance(&server, "two").await);
    let (beside, other) = (start(two.pool("other").targets(["x"])), start(two.pool("both").targets(["y", "z"])));
    wait_until("both pools hold their targets", || beside.owned().len() == 1 && other.owned().len() == 2).await;
    let pool = start(one.pool("poll").targets(["a", "b"]));
    let both = start(one.pool("both").targets(["y", "z"]));
    wait_until("the targets are balanced", || pool.owned().len() == 2 && both.owned().len() == 1).await;
    assert_eq!(pool.live_instances(), [one.instance().clone()]);
    let tokens = || ["a", "b"].map(|target| pool.lease(target).map(|lease| lease.token()));
    let before = tokens();
    // An instance that leaves one pool stays in the other.
    pool.drain();
    wait_until("the pool has released its targets", || pool.owned().is_empty()).await;
    assert_eq!(both.owned().len(), 1);
    pool.undrain();
    wait_until("the pool holds every target again", || pool.owned().len() == 2).await;
    assert_ne!(tokens(), before);
    let settled = tokens();
    tokio::time::sleep(ttl()).await;
    assert_eq!(tokens(), settled, "no target is offered to an instance that is not in the pool");
    both.stop().await;
    wait_until("the other instance holds every target", || other.owned().len() == 2).await;
    pool.stop().await;
}

#[tokio::test]
async fn work_that_panics_at_the_start_is_restarted() {
    let server = RedisServer::start();
    let one = instance(&server, "one").await;
    let tries = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = tries.clone();
    let pool = one.pool("poll").targets(["a"]).ttl(ttl()).run(move |_, lease| {
        let tried = counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        assert!(tried >= 2, "a panic in the closure, not in its future");
        async move {
            lease.draining().await;
            Ok(())
        }
    });
    let pool = pool.start().unwrap();
    wait_until("the work runs", || tries.load(std::sync::atomic::Ordering::Relaxed) == 3).await;
    assert!(pool.is_owned("a"));
    // Two concurrent stops both wait until it has stopped.
    tokio::join!(pool.stop(), pool.stop());
    assert_eq!(server.command(&["EXISTS", "poll:lease:a"]), tenure_testbed::RedisReply::Int(0));
}

/// Panics when it is dropped, as a destructor with a failing assertion does.
struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "a panic in a destructor");
    }
}

#[tokio::test]
async fn work_that_panics_while_it_is_cancelled_releases_its_target() {
    let server = RedisServer::start();
    let one = instance(&server, "one").await;
    let pool = one.pool("poll").targets(["a"]).ttl(ttl()).drain_timeout(ttl() / 10).run(async |_, _| {
        let _guard = PanicOnDrop;
        std::future::pending().await
    });
    let pool = pool.start().unwrap();
    for term in 1..=2_u64 {
        wait_until("the pool holds the target", || pool.is_owned("a")).await;
        one.admin().step_down(tenure::LeaseName::target("poll", "a").unwrap(), None).await.unwrap();
        wait_until("the panic is counted", || pool.stats().work_panics.load(Ordering::Relaxed) == term).await;
    }
    pool.stop().await;
    assert_eq!(server.command(&["EXISTS", "poll:lease:a"]), tenure_testbed::RedisReply::Int(0));
}

#[tokio::test]
async fn extreme_numbers_do_not_overflow() {
    let server = RedisServer::start();
    let one = instance(&server, "one").await;
    let pool = one.pool("poll").targets(["a"]).settle(Duration::MAX).drain_timeout(Duration::MAX);
    let pool = start(pool);
    // An instance that claims to hold an extreme number of targets.
    let record = r#"{"name":"liar","weight":1000,"startedAt":1,"heartbeatEveryMs":10000,"heartbeatTtlMs":30000,"held":{"poll":18446744073709551615}}"#;
    server.command(&["SET", "poll:node:liar", "1", "PX", "30000"]);
    server.command(&["SET", "tenure:node:{poll:node:liar}", record, "PX", "30000"]);
    server.command(&["ZADD", "tenure:nodes", "99999999999999", "liar"]);
    wait_until("the instance is seen", || pool.live_instances().len() == 2).await;
    wait_until("the pool holds every target", || pool.owned().len() == 1).await;
    pool.stop().await;
}

#[tokio::test]
async fn an_operator_takes_an_instance_out_of_placement_and_back() {
    let server = RedisServer::start();
    let (one, two) = (instance(&server, "one").await, instance(&server, "two").await);
    let targets = ["a", "b", "c", "d"];
    let pool = |tenure: &Tenure| start(tenure.pool("poll").targets(targets).discover_every(Duration::from_millis(50)));
    let (first, second) = (pool(&one), pool(&two));
    let shares = || (first.owned().len(), second.owned().len());
    wait_until("each has its quota", || shares() == (2, 2)).await;
    // Requested by another instance.
    two.admin().drain(one.instance()).await.unwrap();
    wait_until("it hands over every target", || shares() == (0, 4)).await;
    // The program's drain and the operator's drain are independent.
    first.drain();
    two.admin().undrain(one.instance()).await.unwrap();
    tokio::time::sleep(ttl()).await;
    assert_eq!(shares(), (0, 4));
    first.undrain();
    wait_until("it takes part in placement again", || shares() == (2, 2)).await;
    // A request whose announcement was missed is read from the store.
    server.command(&["SADD", "tenure:index:draining", two.instance().as_str(), "gone-1"]);
    wait_until("it hands over every target", || shares() == (4, 0)).await;
    let asked = || server.command(&["SISMEMBER", "tenure:index:draining", "gone-1"]);
    wait_until("drain requests for dead instances are removed", || asked() == RedisReply::Int(0)).await;
    tokio::join!(first.stop(), second.stop());
}

#[tokio::test]
async fn leases_can_have_another_prefix() {
    let server = RedisServer::start();
    let (one, two) = (instance(&server, "one").await, instance(&server, "two").await);
    let pool = |tenure: &Tenure| start(tenure.pool("poll").lease_prefix("{mine}:lease:").targets(["a", "b"]));
    let (first, second) = (pool(&one), pool(&two));
    wait_until("each has its quota", || first.owned().len() == 1 && second.owned().len() == 1).await;
    let holder = server.command(&["GET", &format!("{{mine}}:lease:{}", first.owned()[0])]);
    assert_eq!(holder, RedisReply::text(one.instance().as_str()));
    assert_eq!(server.command(&["EXISTS", "poll:lease:a"]), RedisReply::Int(0));
    first.stop().await;
    wait_until("every target is handed over", || second.owned().len() == 2).await;
    second.stop().await;
    assert!(one.pool("poll").lease_prefix("").run(async |_, _| Ok(())).start().is_err());
}

#[tokio::test]
async fn shared_events_reach_every_instance() {
    let server = RedisServer::start();
    let (one, observer) = (Tenure::builder(&server.url()), instance(&server, "observer").await);
    let mut heard = observer.fleet().announcements();
    let one = one.name("one").longest_ttl(ttl()).bootstrap().share_events().connect().await.unwrap();
    let term = one.lease("job").ttl(ttl()).acquire().await.unwrap();
    term.release().await.unwrap();
    let mut names = Vec::new();
    while names.len() < 2 {
        let next = tokio::time::timeout(test_timeout(), heard.next()).await.unwrap();
        if let SubscriptionItem::Announced(Announcement::Event { event }) = next {
            let event = FleetEvent::decode(&event).unwrap();
            assert_eq!(event.instance().as_ref(), Some(one.instance()));
            assert!(event.fields.contains(&("lease".to_owned(), "job".to_owned())), "{event:?}");
            names.push(event.name);
        }
    }
    assert_eq!(names, ["lease.acquired", "lease.released"]);
}
