//! The store loses some, all or none of its data. Work stops and never overlaps, and new grants wait for holders that
//! may not have noticed the loss.

use std::time::{Duration, Instant};

use tenure::lease::{Ending, Loss};
use tenure::store::{NamespaceReport, Quarantine, QuarantineReason};
use tenure::{AcquireError, Tenure, Token};
use tenure_testbed::{LagProbe, RedisReply, RedisServer};

use crate::harness::{
    Instance, LONG_TTL, MAX_RECONNECT_DELAY, MAX_RENEWAL_DELAY, ScenarioBuilder, TTL, WorkLog, settings_with_ttl,
    wait_until, with_timeout,
};

/// A quarantine of one ttl, which begins with the first contact or the next renewal, and a moment for the waiter.
const AFTER_QUARANTINE: Duration = Duration::from_millis(2 * 1_500 + 500);

/// The same if an instance without memory begins the quarantine: it cannot know the ttls.
const AFTER_ASSUMED_QUARANTINE: Duration = Duration::from_millis(30_000 + 1_500 + 500);

/// Returns whether a term ended because the store lost the lease.
fn is_data_loss(ending: &Ending) -> bool {
    matches!(ending, Ending::Lost(Loss::StoreReset | Loss::Missing))
}

/// Reads the report of the namespace. The data loss may replace the connection at that moment; the request is then
/// repeated.
async fn report(tenure: &Tenure) -> NamespaceReport {
    loop {
        match tenure.admin().namespace().await {
            Ok(report) => return report,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

#[tokio::test]
async fn a_restart_with_all_data_keeps_terms_and_begins_a_quarantine() {
    let server = RedisServer::builder().append_only("always").start();
    let scenario = ScenarioBuilder::at(&server.url()).ttl(LONG_TTL).start().await;

    server.kill();
    server.restart();

    // Holders continue once the store has confirmed their terms. No new lease is granted before the longest ttl has
    // passed.
    scenario.alice.wait_for_event("lease.recovered").await;
    scenario.assert_never_stopped().await;
    match scenario.bob.tenure.lease("another").try_acquire().await {
        Err(AcquireError::Quarantined(Quarantine { remaining, .. })) => {
            assert!(remaining <= LONG_TTL && !remaining.is_zero())
        }
        other => panic!("expected a quarantine, since a lease from before the restart may be missing: {other:?}"),
    }
    scenario.finish().await;
}

#[tokio::test]
async fn a_restart_with_some_data_ends_the_terms_that_are_missing() {
    let probe = LagProbe::start();
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let bob = Instance::connect(&server.url(), "bob", LONG_TTL).await;
    let record = WorkLog::default();
    let kept = alice.acquire("kept", LONG_TTL).await;
    server.save();
    let job = record.spawn_worker(&bob, "job", settings_with_ttl(LONG_TTL));
    let token = record.wait_for_work("bob", Token::ZERO).await;

    server.kill();
    server.restart();
    let back = Instant::now();

    assert!(is_data_loss(&job.first_ending().await), "bob's lease is missing in the data");
    probe.assert_within(back.elapsed(), MAX_RECONNECT_DELAY, "work stops");
    alice.wait_for_event("lease.recovered").await;
    assert!(kept.is_valid(), "alice's lease is in the data; she is the bystander here");
    // Another instance might have held it, too, so it is not granted for the longest ttl.
    match alice.tenure.lease("job").try_acquire().await {
        Err(AcquireError::Quarantined(_)) => {}
        other => panic!("{other:?}"),
    }
    assert!(record.intervals().iter().all(|interval| interval.token == token));
}

#[tokio::test]
async fn a_restart_without_data_ends_every_term_and_begins_a_quarantine() {
    let server = RedisServer::start();
    let scenario = ScenarioBuilder::at(&server.url()).without_bystander().start().await;

    server.kill();
    server.restart_empty();
    let back = Instant::now();

    assert!(matches!(scenario.wait_until_stopped(back, MAX_RECONNECT_DELAY).await, Ending::Lost(_)));
    scenario.wait_for_next_work(back, MAX_RECONNECT_DELAY + AFTER_QUARANTINE).await;
    assert!(scenario.alice.has_event("store.quarantined") || scenario.bob.has_event("store.quarantined"));
    scenario.finish().await;
}

#[tokio::test]
async fn a_flush_is_noticed_by_the_next_renewal() {
    let server = RedisServer::start();
    let scenario = ScenarioBuilder::at(&server.url()).without_bystander().start().await;

    assert_eq!(server.command(&["FLUSHALL"]), RedisReply::text("OK"));
    let flushed = Instant::now();

    // The holder notices at its next renewal, at most P later.
    assert!(is_data_loss(&scenario.wait_until_stopped(flushed, MAX_RENEWAL_DELAY).await));
    scenario.wait_for_next_work(flushed, AFTER_QUARANTINE).await;
    scenario.finish().await;
}

#[tokio::test]
async fn a_flush_is_noticed_by_a_new_instance() {
    let server = RedisServer::start();
    let scenario = ScenarioBuilder::at(&server.url()).without_bystander().start().await;
    scenario.waiter.stop().await;

    assert_eq!(server.command(&["FLUSHALL"]), RedisReply::text("OK"));
    let flushed = Instant::now();
    // It knows nothing of alice, but sees that an instance is subscribed.
    let newcomer = Instance::with(Tenure::builder(&server.url()).name("newcomer").longest_ttl(TTL)).await;
    newcomer.wait_for_event("store.quarantined").await;
    let _waits = scenario.record.spawn_worker(&newcomer, "job", settings_with_ttl(TTL));

    // Alice learns of it from the announcement of that attach, or from her own renewal at the latest.
    assert!(is_data_loss(&scenario.wait_until_stopped(flushed, MAX_RENEWAL_DELAY).await));
    scenario.wait_for_next_work(flushed, AFTER_ASSUMED_QUARANTINE).await;
    scenario.finish().await;
}

/// A holder that is connected but not subscribed is not counted among the subscribers.
#[tokio::test]
async fn a_flush_under_a_holder_without_subscription_begins_a_quarantine() {
    let users = ["user deaf on >secret ~* &* +@all -subscribe"];
    let server = RedisServer::builder().acl_users(&users).start();
    let deaf = server.url_as("deaf", "secret");
    let alice = Instance::connect(&deaf, "alice", LONG_TTL).await;
    let record = WorkLog::default();
    let works = record.spawn_worker(&alice, "job", settings_with_ttl(LONG_TTL));
    let token = record.wait_for_work("alice", Token::ZERO).await;

    assert_eq!(server.command(&["FLUSHALL"]), RedisReply::text("OK"));
    // The operator has left `--bootstrap` in the unit file.
    let newcomer = Instance::connect(&server.url_as("deaf", "secret"), "newcomer", TTL).await;
    match newcomer.tenure.lease("job").ttl(TTL).try_acquire().await {
        Err(AcquireError::Quarantined(Quarantine { remaining, reason })) => {
            assert_eq!(reason, QuarantineReason::RecordErased);
            assert!(remaining > TTL && remaining <= LONG_TTL, "at least 30 s: {remaining:?}");
        }
        other => panic!("expected a quarantine, since alice may not know yet: {other:?}"),
    }
    // Alice learns of it from her own renewal, at most P + R later. No instance works before the quarantine is over.
    assert!(is_data_loss(&works.first_ending().await));
    assert!(record.intervals().iter().all(|interval| interval.token == token));
}

/// The server becomes a replica of an empty one and then a primary again: its run id is the same.
#[tokio::test]
async fn data_replaced_by_another_server_begins_a_quarantine() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    let scenario = ScenarioBuilder::at(&server.url()).without_bystander().ttl(LONG_TTL).start().await;

    server.replicate_from(&other);
    assert_eq!(server.command(&["REPLICAOF", "NO", "ONE"]), RedisReply::text("OK"));
    let newcomer = Instance::connect(&server.url(), "newcomer", LONG_TTL).await;
    let _waits = scenario.record.spawn_worker(&newcomer, "job", settings_with_ttl(LONG_TTL));

    // Alice works until her next renewal is refused. Until then no lease is granted.
    assert!(is_data_loss(&scenario.holder.first_ending().await));
    match newcomer.tenure.lease("another").try_acquire().await {
        Err(AcquireError::Quarantined(_)) => {}
        other => panic!("expected a quarantine, since earlier leases may be relied on: {other:?}"),
    }
    scenario.finish().await;
}

/// The other server has an older copy of the same data, like a replica that was partitioned.
#[tokio::test]
async fn data_replaced_by_an_older_copy_begins_a_quarantine() {
    for was_used in [false, true] {
        let (server, copy) = (RedisServer::start(), RedisServer::start());
        let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
        let bob = Instance::connect(&server.url(), "bob", LONG_TTL).await;
        let kept = alice.acquire("kept", LONG_TTL).await;
        copy.replicate_from(&server);
        copy.command(&["REPLICAOF", "NO", "ONE"]);
        if was_used {
            // Attached there, and reopened by an operator: the record names the copy's run and history.
            let drill = Instance::connect(&copy.url(), "drill", TTL).await;
            let found = report(&drill.tenure).await;
            assert!(drill.tenure.admin().reopen(found.generation.unwrap()).await.unwrap());
            drill.acquire("drill", TTL).await.release().await.unwrap();
        }
        // This lease is not in the copy.
        let job = alice.acquire("job", LONG_TTL).await;

        server.replicate_from(&copy);
        server.command(&["REPLICAOF", "NO", "ONE"]);

        // Bob's connection has survived all of this.
        assert_quarantined_for_replaced_data(&bob).await;
        assert!(kept.is_valid() && job.is_valid(), "alice relies on both until her next renewal");
    }
}

/// Another database of the same server, with its own namespace that was created later.
#[tokio::test]
async fn swapped_databases_begin_a_quarantine() {
    for bob_has_asked_since in [true, false] {
        let server = RedisServer::start();
        let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
        let bob = Instance::connect(&server.url(), "bob", LONG_TTL).await;
        let other = Instance::connect(&format!("{}/1", server.url()), "other", TTL).await;
        other.acquire("drill", TTL).await.release().await.unwrap();
        let job = alice.acquire("job", LONG_TTL).await;
        if bob_has_asked_since {
            bob.tenure.lease("job").try_acquire().await.unwrap_err();
        }

        assert_eq!(server.command(&["SWAPDB", "0", "1"]), RedisReply::text("OK"));
        assert_quarantined_for_replaced_data(&bob).await;
        assert!(job.is_valid(), "valid until her next renewal");
    }
}

/// Asserts that an instance that stayed connected gets no grant, because earlier leases may be relied on.
async fn assert_quarantined_for_replaced_data(instance: &Instance) {
    let replaced = Instant::now();
    while replaced.elapsed() < Duration::from_secs(2) {
        match instance.tenure.lease("job").try_acquire().await {
            Err(AcquireError::Quarantined(Quarantine { reason, .. })) => {
                // Data that names another server's run looks like the data of a restarted server.
                assert!(
                    matches!(reason, QuarantineReason::DataReplaced | QuarantineReason::ServerRestarted),
                    "{reason}"
                );
                break;
            }
            Err(AcquireError::Store(_)) => {}
            other => panic!("expected a quarantine, since alice may rely on it: {other:?}"),
        }
    }
    instance.wait_for_event("store.quarantined").await;
}

/// A fleet with short leases waits only for short leases, whatever was released or has expired before.
#[tokio::test]
async fn a_flush_does_not_wait_for_a_released_long_lease() {
    let server = RedisServer::start();
    let scenario = ScenarioBuilder::at(&server.url()).without_bystander().start().await;
    let long = Instance::connect(&server.url(), "long", LONG_TTL).await;
    let day = Duration::from_secs(24 * 3_600);
    long.acquire("nightly", day).await.release().await.unwrap();
    // A crashed instance whose lease has expired.
    let crashed = Instance::connect(&server.url(), "crashed", TTL).await;
    let term = crashed.acquire("hourly", TTL * 2).await;
    server.command(&["DEL", "lease:hourly"]);
    drop(term);
    tokio::time::sleep(TTL * 2 + TTL / 4).await;

    assert_eq!(server.command(&["FLUSHALL"]), RedisReply::text("OK"));
    let flushed = Instant::now();
    assert!(is_data_loss(&scenario.wait_until_stopped(flushed, MAX_RENEWAL_DELAY).await));
    scenario.wait_for_next_work(flushed, AFTER_QUARANTINE).await;
    scenario.finish().await;
}

#[tokio::test]
async fn a_restart_does_not_wait_for_a_released_long_lease() {
    for with_data in [true, false] {
        let server = RedisServer::builder().append_only(if with_data { "always" } else { "no" }).start();
        let scenario = ScenarioBuilder::at(&server.url()).without_bystander().start().await;
        let long = Instance::connect(&server.url(), "long", LONG_TTL).await;
        let day = Duration::from_secs(24 * 3_600);
        long.acquire("nightly", day).await.release().await.unwrap();
        // Every instance has had a reply from the store since.
        tokio::time::sleep(TTL).await;
        server.kill();
        if with_data {
            server.restart()
        } else {
            server.restart_empty()
        }
        let back = Instant::now();
        // With data alice continues, and an unheld lease is granted once her own could have expired.
        let _another = scenario.record.spawn_worker(&scenario.bob, "another", settings_with_ttl(TTL));
        let free = scenario.bob.spawn_acquire("free", TTL);
        let _granted = with_timeout(free).await.unwrap().unwrap();
        scenario.probe.assert_within(
            back.elapsed(),
            MAX_RECONNECT_DELAY + AFTER_QUARANTINE,
            "an unheld lease is granted",
        );
    }
}

/// A quarantine waits for a held long lease, even if all others are short.
#[tokio::test]
async fn a_flush_waits_for_a_held_long_lease() {
    let server = RedisServer::start();
    let scenario = ScenarioBuilder::at(&server.url()).without_bystander().start().await;
    let long = Instance::connect(&server.url(), "long", LONG_TTL).await;
    let term = long.acquire("nightly", LONG_TTL * 4).await;
    // Announced: alice and bob learn of it before their next reply from the store.
    scenario.alice.tenure.lease("anything").ttl(TTL).acquire().await.unwrap().release().await.unwrap();
    drop(term);
    let held = long.acquire("weekly", LONG_TTL * 4).await;

    assert_eq!(server.command(&["FLUSHALL"]), RedisReply::text("OK"));
    let flushed = Instant::now();
    assert!(is_data_loss(&scenario.wait_until_stopped(flushed, MAX_RENEWAL_DELAY).await));
    scenario.alice.wait_for_event("store.quarantined").await;
    let quarantine = report(&scenario.alice.tenure).await.quarantine.unwrap();
    assert!(quarantine.remaining > LONG_TTL * 3, "{quarantine}");
    // Its holder relied on it when the data was lost, and may or may not have noticed since.
    drop(held);
}

/// An operator who knows that no holder is alive need not wait.
#[tokio::test]
async fn an_operator_can_end_a_quarantine() {
    let server = RedisServer::start();
    let scenario = ScenarioBuilder::at(&server.url()).without_bystander().ttl(LONG_TTL).start().await;
    assert_eq!(server.command(&["FLUSHALL"]), RedisReply::text("OK"));
    let operator = Tenure::builder(&server.url()).observer().connect().await.unwrap();
    assert!(is_data_loss(&scenario.holder.first_ending().await));
    let mut found = report(&operator).await;
    while found.quarantine.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        found = report(&operator).await;
    }
    let grants = || scenario.alice.count_events("lease.acquired") + scenario.bob.count_events("lease.acquired");
    let (before, asked) = (grants(), Instant::now());
    // The connection of an operator is replaced after a loss, too; repeating the request is safe.
    let reopened = loop {
        match operator.admin().reopen(found.generation.unwrap()).await {
            Err(error) if error.is_retryable() => {}
            reopened => break reopened.unwrap(),
        }
    };
    assert!(reopened);
    // Waiters are notified. If bob acquires the lease, it works when the ttl that it has seen is over.
    wait_until("the lease is granted", || grants() > before).await;
    scenario.probe.assert_within(asked.elapsed(), Duration::from_millis(500), "the lease is granted");
    scenario.finish().await;
}

/// A corrupt record affects only its own lease.
#[tokio::test]
async fn a_corrupt_token_affects_only_its_own_lease() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    alice.acquire("job", LONG_TTL).await.release().await.unwrap();
    server.command(&["HSET", "tenure:term:{lease:job}", "token", "9007199254740991"]);
    assert!(alice.tenure.lease("job").try_acquire().await.is_err(), "no larger token exists");
    let newcomer = Instance::connect(&server.url(), "newcomer", LONG_TTL).await;
    for (instance, lease) in [(&alice, "one"), (&newcomer, "two")] {
        let _held = instance.acquire(lease, LONG_TTL).await;
    }
    // Also for an instance that has seen the token and reconnects.
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    alice.wait_for_event("store.lost").await;
    let _held = alice.acquire("three", LONG_TTL).await;
    assert_eq!(report(&alice.tenure).await.quarantine, None);
}

/// The next renewal is 10 s away, too late to notice the refusal.
#[tokio::test]
async fn a_refused_publication_ends_the_term() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let term = alice.acquire("job", LONG_TTL).await;
    server.command(&["DEL", "lease:job"]);
    assert!(term.publish("result", "x").await.is_err());
    let told = Instant::now();
    assert_eq!(with_timeout(term.lost()).await.reason, Loss::Missing);
    assert!(!term.is_valid() && told.elapsed() < Duration::from_secs(5), "{:?}", told.elapsed());
}

#[tokio::test]
async fn a_deleted_lease_key_ends_the_term() {
    let server = RedisServer::start();
    let scenario = ScenarioBuilder::at(&server.url()).start().await;

    assert_eq!(server.command(&["DEL", "lease:job"]), RedisReply::Int(1));
    let deleted = Instant::now();

    assert_eq!(scenario.wait_until_stopped(deleted, MAX_RENEWAL_DELAY).await, Ending::Lost(Loss::Missing));
    // Acquired by alice again, or by bob, who waits for the remaining ttl that he last saw.
    scenario.wait_for_next_work(deleted, TTL * 2).await;
    scenario.finish().await;
}

/// Renewals continue without the record and do not report how long leases are.
#[tokio::test]
async fn a_deleted_namespace_record_begins_a_quarantine_of_the_longest_ttl() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), TTL).await;
    let _held = [alice.acquire("one", TTL).await, bob.acquire("two", TTL).await];
    server.command(&["DEL", "tenure:ns"]);
    for instance in [&alice, &bob] {
        let renewed = instance.count_events("lease.renewed");
        wait_until("renewed without the record", || instance.count_events("lease.renewed") > renewed).await;
    }
    for (instance, lease) in [(&alice, "three"), (&bob, "four")] {
        // The first request learns that the record is gone, and the instance attaches again.
        let _ = instance.tenure.lease(lease).ttl(TTL).try_acquire().await;
        let quarantine = report(&instance.tenure).await.quarantine;
        assert!(quarantine.is_none_or(|quarantine| quarantine.remaining <= TTL), "{quarantine:?}");
    }
    assert!(report(&alice.tenure).await.generation.is_some(), "the record was written again");
}
