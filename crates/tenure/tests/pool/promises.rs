//! The guarantees of a fleet, with instances as child processes. Names begin with the guarantee, the story and its
//! scenario, or the edge case.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure::Token;
use tenure_testbed::{LagProbe, RedisReply, TestProcess};

use crate::fleet::Fleet;
use crate::foreign::{self, ForeignProgram};
use crate::harness::{MAX_TAKEOVER_DELAY, TICK, WorkUnit, targets, ttl, wait_until};
use crate::scenarios;

/// The longest time without work on a target whose holder dies: its ttl, and the ticks before and after.
fn max_unpolled() -> Duration {
    ttl() + MAX_TAKEOVER_DELAY + TICK * 2
}

#[tokio::test]
async fn sc_002_failover_completes_within_the_ttl() {
    let fleet = Fleet::new(6);
    let mut rng = fastrand::Rng::new();
    let mut instances: Vec<(String, TestProcess)> = (0..3).map(|n| fleet.spawn_named(&format!("start-{n}"))).collect();
    for round in 0..2 {
        fleet.wait_for_counts(&[2, 2, 2]).await;
        // At a random time between two renewals.
        tokio::time::sleep(ttl().mul_f64(rng.f64() / 3.0)).await;
        let (name, instance) = instances.swap_remove(rng.usize(..instances.len()));
        let killed = fleet.crash(&name, &instance).await;
        fleet.probe.assert_within(killed.elapsed(), ttl() + MAX_TAKEOVER_DELAY + TICK, "every target is polled again");
        instances.push(fleet.spawn_named(&format!("later-{round}")));
    }
    fleet.wait_for_counts(&[2, 2, 2]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn sc_003_ten_instances_balance_without_configuration() {
    let fleet = Fleet::new(30);
    let _instances: Vec<TestProcess> = (0..10).map(|n| fleet.spawn(&format!("any-{n}"))).collect();
    fleet.wait_for_counts(&[3; 10]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn sc_004_counts_are_within_a_fifth_of_ideal() {
    let fleet = Fleet::new(9);
    let mut instances = vec![fleet.spawn("one"), fleet.spawn("two"), fleet.spawn("three")];
    fleet.wait_for_counts(&[3, 3, 3]).await;
    instances.push(fleet.spawn("four"));
    // As even as whole targets allow.
    fleet.wait_for_counts(&[2, 2, 2, 3]).await;
    instances[1].signal(Signal::TERM);
    assert!(instances[1].wait_success(), "the process must exit successfully");
    fleet.wait_for_counts(&[3, 3, 3]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn sc_006_no_target_is_unpolled_for_longer_than_the_ttl() {
    let fleet = Fleet::new(8);
    let mut instances = vec![fleet.spawn("one"), fleet.spawn("two"), fleet.spawn("three")];
    fleet.wait_for_counts(&[2, 3, 3]).await;
    let (begun, calm) = (Instant::now(), LagProbe::start());
    instances.push(fleet.spawn("four"));
    fleet.wait_for_counts(&[2, 2, 2, 2]).await;
    instances[1].signal(Signal::TERM);
    assert!(instances[1].wait_success(), "the process must exit successfully");
    fleet.wait_for_counts(&[2, 3, 3]).await;
    // No instance has died.
    fleet.witness.check_no_slot_missed(begun, &calm);
    instances[0].signal(Signal::KILL);
    fleet.wait_for_others("one", Instant::now()).await;
    fleet.wait_for_counts(&[4, 4]).await;
    // In due times of the store's clock: the scheduling lag of this machine does not count.
    let seen = fleet.witness.seen();
    let pairs = seen.values().flat_map(|units| units.windows(2)).filter(|pair| pair[1].began > begun);
    let alone = Duration::from_millis(pairs.map(|pair| pair[1].due - pair[0].due).max().unwrap());
    let stalled = fleet.probe.total_stall(TICK / 4);
    println!("longest time without a poll of a target: {alone:?}; the machine stood still for {stalled:?}");
    assert!(alone <= max_unpolled() + stalled, "{alone:?} without a poll; the machine stood still for {stalled:?}");
    fleet.witness.check();
}

#[tokio::test]
async fn us3_as3_a_renewal_succeeds_only_for_the_holder() {
    const KEY: &str = "poll:lease:endpoint-1";
    const LOOK: &str = "return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}";
    let theirs = ttl() * 2;
    let fleet = Fleet::new(1);
    let _one = fleet.spawn("one");
    fleet.wait_for_counts(&[1]).await;
    let taken = Instant::now();
    fleet.store.command(&["SET", KEY, "stranger", "PX", &theirs.as_millis().to_string()]);
    // No instance extends the lease, and none ends it early.
    let mut left = i64::MAX;
    wait_until("the foreign lease has expired", || {
        let (found, now) = (fleet.store.command(&["EVAL", LOOK, "1", KEY]), Instant::now());
        match found.as_array() {
            [RedisReply::Text(holder), now_left] if holder == "stranger" => {
                assert!(now_left.as_int() <= left, "{now_left:?} after {left}");
                left = now_left.as_int();
                false
            }
            // To the millisecond, which is the resolution of the server.
            _ => {
                assert!(now - taken + Duration::from_millis(5) > theirs, "it ended after {:?}", now - taken);
                true
            }
        }
    })
    .await;
    let ended = Instant::now();
    wait_until("the target is worked on again", || !fleet.witness.since(ended).is_empty()).await;
    let units = fleet.witness.seen().remove("endpoint-1").unwrap();
    let (before, after): (Vec<WorkUnit>, Vec<WorkUnit>) =
        units.into_iter().partition(|unit| unit.began < taken + theirs / 2);
    let last = before.last().unwrap();
    fleet.probe.assert_within(
        last.began.saturating_duration_since(taken),
        ttl() / 3 + TICK,
        "it must stop at its next renewal",
    );
    let first = after.first().unwrap();
    assert!(first.began + Duration::from_millis(5) > taken + theirs, "it worked again after {:?}", first.began - taken);
    assert!(first.token > last.token, "{first:?} must have a larger token than {last:?}");
    fleet.witness.check();
}

#[tokio::test]
async fn us4_as3_a_rebalanced_target_goes_straight_to_its_new_holder() {
    let fleet = Fleet::new(6);
    let _two = [fleet.spawn("one"), fleet.spawn("two")];
    fleet.wait_for_counts(&[3, 3]).await;
    let joins = Instant::now();
    let _third = fleet.spawn("three");
    fleet.wait_for_counts(&[2, 2, 2]).await;
    tokio::time::sleep(ttl() / 2).await;
    let mut moved = 0;
    for (target, units) in fleet.witness.seen() {
        let then = units.partition_point(|unit| unit.began <= joins) - 1;
        let mut terms: Vec<(&str, Token)> = units[then..].iter().map(|unit| (&*unit.worker, unit.token)).collect();
        terms.dedup();
        assert!(terms.len() <= 2, "{target} moved more than once: {terms:?}");
        if let [_, (worker, _)] = terms[..] {
            assert_eq!(worker, "three", "{target}: {terms:?}");
            moved += 1;
        }
    }
    assert_eq!(moved, 2, "no other target may move");
    fleet.witness.check();
}

#[tokio::test]
async fn edge_while_the_store_is_away_nothing_is_polled() {
    let fleet = Fleet::new(6);
    let _two = [fleet.spawn("one"), fleet.spawn("two")];
    fleet.wait_for_counts(&[3, 3]).await;
    let before = fleet.workers();
    fleet.store.stop();
    let stopped = Instant::now();
    tokio::time::sleep(ttl() * 3 / 2).await;
    let back = Instant::now();
    fleet.store.cont();
    wait_until("every target is worked on again", || fleet.witness.since(back).len() == 6).await;
    // In case a target moves after all.
    tokio::time::sleep(ttl() / 2).await;
    for (target, units) in fleet.witness.seen() {
        let meanwhile: Vec<_> = units.iter().filter(|unit| unit.began > stopped + ttl() && unit.began < back).collect();
        assert!(meanwhile.is_empty(), "{target}: {meanwhile:?}");
        let others: Vec<_> = units.iter().filter(|unit| unit.began > back && unit.worker != before[&target]).collect();
        let (was, lag) = (&before[&target], fleet.probe.lag());
        assert!(
            others.is_empty(),
            "{target} was held by {was}, the store is back since {back:?}, lag {lag:?}: {others:?}"
        );
    }
    fleet.witness.check();
}

#[tokio::test]
async fn edge_two_processes_of_one_name_are_two_instances() {
    let fleet = Fleet::new(6);
    let _two = [fleet.spawn("same"), fleet.spawn("same")];
    let held = || {
        let mut held: BTreeMap<String, usize> = BTreeMap::new();
        for target in targets(6) {
            if let RedisReply::Text(holder) = fleet.store.command(&["GET", &format!("poll:lease:{target}")]) {
                *held.entry(holder).or_default() += 1;
            }
        }
        held
    };
    wait_until("each instance holds three targets", || held().values().eq(&[3, 3])).await;
    assert!(held().keys().all(|holder| holder.starts_with("same-")), "{:?}", held());
    // The witness cannot distinguish them.
    fleet.wait_for_counts(&[6]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn a_foreign_program_and_a_fleet_share_targets() {
    foreign_program_and_fleet_share_targets(foreign::fnv).await;
}

/// The old hash hardly distinguishes names that differ in their last letter, so such a program wants all targets or
/// none.
#[tokio::test]
async fn a_foreign_program_that_wants_some_targets_shares_them_with_a_fleet() {
    foreign_program_and_fleet_share_targets(foreign::well_mixed).await;
}

async fn foreign_program_and_fleet_share_targets(hash: fn(&str) -> u64) {
    let fleet = Fleet::new(6);
    let program = ForeignProgram::start(&fleet.store, targets(6), hash);
    // The foreign program runs first and holds every target.
    let theirs = |target: &String| {
        fleet.store.command(&["GET", &format!("poll:lease:{target}")]) == RedisReply::text(foreign::NAME)
    };
    wait_until("the foreign program holds every target", || targets(6).iter().all(theirs)).await;
    let is_there = |name: &str| {
        let heartbeats = fleet.store.command(&["KEYS", &format!("poll:node:{name}-*")]);
        !heartbeats.as_array().is_empty()
    };
    let one = fleet.spawn("one");
    let _two = fleet.spawn("two");
    wait_until("the first two instances have joined", || is_there("one") && is_there("two")).await;
    tokio::time::sleep(ttl() * 2).await;
    let _three = fleet.spawn("three");
    wait_until("the third instance has joined", || is_there("three")).await;
    one.signal(Signal::KILL);
    tokio::time::sleep(ttl() * 5).await;
    let (calm, report) = (Instant::now() - ttl() * 5 / 2, program.end());
    let seen = fleet.witness.seen();
    for period in &report.held {
        let overlapping: Vec<_> =
            seen.get(&period.target).into_iter().flatten().filter(|unit| period.overlaps(unit)).collect();
        assert!(overlapping.is_empty(), "{period:?} overlaps {overlapping:?}");
    }
    for (target, holders) in &report.holders {
        let moves = holders.iter().filter(|(at, _)| *at > calm).count();
        assert!(moves <= 3, "{target} keeps moving: {holders:?}");
        assert!(holders.last().is_some_and(|(_, holder)| holder.is_some()), "{target} is unheld: {holders:?}");
    }
    fleet.witness.check();
}

/// Only its heartbeat announces the foreign program.
#[tokio::test]
async fn targets_held_by_a_foreign_program_are_not_assigned() {
    let fleet = Fleet::new(9);
    let forever = (ttl() * 100).as_millis().to_string();
    fleet.store.command(&["SET", "poll:node:old-1", "1", "PX", &forever]);
    for target in &targets(9)[..3] {
        fleet.store.command(&["SET", &format!("poll:lease:{target}"), "old-1", "PX", &forever]);
    }
    let _one = fleet.spawn("one");
    fleet.wait_for_counts(&[6]).await;
    let listed = || fleet.store.command(&["ZRANGE", "tenure:nodes", "0", "-1"]);
    wait_until("the foreign program is listed", || listed().as_array().contains(&RedisReply::text("old-1"))).await;
    let _two = fleet.spawn("two");
    // Not four and two, as if three more targets were unheld.
    fleet.wait_for_counts(&[3, 3]).await;
    fleet.store.command(&["DEL", "poll:node:old-1"]);
    wait_until("the foreign program is not listed", || !listed().as_array().contains(&RedisReply::text("old-1"))).await;
    fleet.witness.check();
}

#[tokio::test]
async fn us1_as2_on_sqlite() {
    scenarios::a_third_instance_gets_its_quota(Fleet::on_sqlite(10)).await;
}

#[tokio::test]
async fn us2_as1_on_sqlite() {
    scenarios::targets_of_a_crashed_instance_are_taken_over(&Fleet::on_sqlite(9)).await;
}

#[tokio::test]
async fn us3_as1_on_sqlite() {
    scenarios::five_instances_started_at_once_share_ten_targets(Fleet::on_sqlite(10)).await;
}
