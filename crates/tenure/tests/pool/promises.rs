//! What a fleet promises, with instances that are processes of their own. Names begin with the promise, the story and its scenario, or the
//! edge that is looked at.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure::Token;
use tenure_testbed::{Probe, Process, Reply};

use crate::fleet::Fleet;
use crate::neighbour::{self, Neighbour};
use crate::scenes;
use crate::stage::{LATENESS, TICK, Unit, targets, ttl, until};

/// How long a target may be left alone when its holder dies: its ttl, and the ticks before and after.
fn longest_alone() -> Duration {
    ttl() + LATENESS + TICK * 2
}

#[tokio::test]
async fn sc_002_failover_completes_within_the_ttl() {
    let fleet = Fleet::new(6);
    let mut rng = fastrand::Rng::new();
    let mut members: Vec<(String, Process)> = (0..3).map(|n| fleet.named(&format!("start-{n}"))).collect();
    for round in 0..2 {
        fleet.until_shares_are(&[2, 2, 2]).await;
        // At any moment between two renewals.
        tokio::time::sleep(ttl().mul_f64(rng.f64() / 3.0)).await;
        let (name, member) = members.swap_remove(rng.usize(..members.len()));
        let killed = fleet.crash(&name, &member).await;
        fleet.probe.within(killed.elapsed(), ttl() + LATENESS + TICK, "everything is polled again");
        members.push(fleet.named(&format!("later-{round}")));
    }
    fleet.until_shares_are(&[2, 2, 2]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn sc_003_ten_instances_with_nothing_configured() {
    let fleet = Fleet::new(30);
    let _members: Vec<Process> = (0..10).map(|n| fleet.member(&format!("any-{n}"))).collect();
    fleet.until_shares_are(&[3; 10]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn sc_004_shares_are_within_a_fifth_of_ideal() {
    let fleet = Fleet::new(9);
    let mut members = vec![fleet.member("one"), fleet.member("two"), fleet.member("three")];
    fleet.until_shares_are(&[3, 3, 3]).await;
    members.push(fleet.member("four"));
    // As near as whole targets come.
    fleet.until_shares_are(&[2, 2, 2, 3]).await;
    members[1].signal(Signal::TERM);
    assert!(members[1].ends(), "it ends well");
    fleet.until_shares_are(&[3, 3, 3]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn sc_006_no_target_is_left_alone_for_longer_than_the_ttl() {
    let fleet = Fleet::new(8);
    let mut members = vec![fleet.member("one"), fleet.member("two"), fleet.member("three")];
    fleet.until_shares_are(&[2, 3, 3]).await;
    let (begun, calm) = (Instant::now(), Probe::start());
    members.push(fleet.member("four"));
    fleet.until_shares_are(&[2, 2, 2, 2]).await;
    members[1].signal(Signal::TERM);
    assert!(members[1].ends(), "it ends well");
    fleet.until_shares_are(&[2, 3, 3]).await;
    // Nobody has died.
    fleet.witness.check_that_none_was_missed(begun, &calm);
    members[0].signal(Signal::KILL);
    fleet.until_others_work("one", Instant::now()).await;
    fleet.until_shares_are(&[4, 4]).await;
    // In due slots of the store's clock: how late this machine begins a unit is no part of it.
    let seen = fleet.witness.seen();
    let pairs = seen.values().flat_map(|units| units.windows(2)).filter(|pair| pair[1].began > begun);
    let alone = Duration::from_millis(pairs.map(|pair| pair[1].due - pair[0].due).max().unwrap());
    let stalled = fleet.probe.stalled(TICK / 4);
    println!("the longest that a target was left alone: {alone:?}; the machine stood still for {stalled:?}");
    assert!(alone <= longest_alone() + stalled, "{alone:?}, and the machine stood still for {stalled:?}");
    fleet.witness.check();
}

#[tokio::test]
async fn us3_as3_a_renewal_succeeds_only_while_the_lease_is_its_own() {
    const KEY: &str = "poll:lease:endpoint-1";
    const LOOK: &str = "return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}";
    let theirs = ttl() * 2;
    let fleet = Fleet::new(1);
    let _one = fleet.member("one");
    fleet.until_shares_are(&[1]).await;
    let taken = Instant::now();
    fleet.store.command(&["SET", KEY, "stranger", "PX", &theirs.as_millis().to_string()]);
    // Nobody makes it longer, and nobody ends it before its time.
    let mut left = i64::MAX;
    until("the stranger's lease has ended", || {
        let (found, now) = (fleet.store.command(&["EVAL", LOOK, "1", KEY]), Instant::now());
        match found.as_array() {
            [Reply::Text(holder), now_left] if holder == "stranger" => {
                assert!(now_left.as_int() <= left, "{now_left:?} after {left}");
                left = now_left.as_int();
                false
            }
            // To the millisecond, which is as far as the server counts.
            _ => {
                assert!(now - taken + Duration::from_millis(5) > theirs, "it ended after {:?}", now - taken);
                true
            }
        }
    })
    .await;
    let ended = Instant::now();
    until("it works again", || !fleet.witness.since(ended).is_empty()).await;
    let units = fleet.witness.seen().remove("endpoint-1").unwrap();
    let (before, after): (Vec<Unit>, Vec<Unit>) = units.into_iter().partition(|unit| unit.began < taken + theirs / 2);
    let last = before.last().unwrap();
    fleet.probe.within(last.began.saturating_duration_since(taken), ttl() / 3 + TICK, "it stops when it would renew");
    let first = after.first().unwrap();
    assert!(first.began + Duration::from_millis(5) > taken + theirs, "it works after {:?}", first.began - taken);
    assert!(first.token > last.token, "{first:?} is under the term of {last:?}");
    fleet.witness.check();
}

#[tokio::test]
async fn us4_as3_what_is_given_up_for_balance_goes_straight_to_its_new_holder() {
    let fleet = Fleet::new(6);
    let _two = [fleet.member("one"), fleet.member("two")];
    fleet.until_shares_are(&[3, 3]).await;
    let joins = Instant::now();
    let _third = fleet.member("three");
    fleet.until_shares_are(&[2, 2, 2]).await;
    tokio::time::sleep(ttl() / 2).await;
    let mut moved = 0;
    for (target, units) in fleet.witness.seen() {
        let then = units.partition_point(|unit| unit.began <= joins) - 1;
        let mut terms: Vec<(&str, Token)> = units[then..].iter().map(|unit| (&*unit.who, unit.token)).collect();
        terms.dedup();
        assert!(terms.len() <= 2, "{target} moved more than once: {terms:?}");
        if let [_, (who, _)] = terms[..] {
            assert_eq!(who, "three", "{target}: {terms:?}");
            moved += 1;
        }
    }
    assert_eq!(moved, 2, "and nothing else moves");
    fleet.witness.check();
}

#[tokio::test]
async fn edge_while_the_store_is_away_nothing_is_polled() {
    let fleet = Fleet::new(6);
    let _two = [fleet.member("one"), fleet.member("two")];
    fleet.until_shares_are(&[3, 3]).await;
    let before = fleet.workers();
    fleet.store.stop();
    let stopped = Instant::now();
    tokio::time::sleep(ttl() * 3 / 2).await;
    let back = Instant::now();
    fleet.store.cont();
    until("all is worked on again", || fleet.witness.since(back).len() == 6).await;
    // Should anything move after all.
    tokio::time::sleep(ttl() / 2).await;
    for (target, units) in fleet.witness.seen() {
        let meanwhile: Vec<_> = units.iter().filter(|unit| unit.began > stopped + ttl() && unit.began < back).collect();
        assert!(meanwhile.is_empty(), "{target}: {meanwhile:?}");
        let others: Vec<_> = units.iter().filter(|unit| unit.began > back && unit.who != before[&target]).collect();
        let (was, lag) = (&before[&target], fleet.probe.lag());
        assert!(others.is_empty(), "{target} was with {was}, the store is back {back:?}, lag {lag:?}: {others:?}");
    }
    fleet.witness.check();
}

#[tokio::test]
async fn edge_two_processes_of_one_name_are_two_instances() {
    let fleet = Fleet::new(6);
    let _two = [fleet.member("same"), fleet.member("same")];
    let held = || {
        let mut held: BTreeMap<String, usize> = BTreeMap::new();
        for target in targets(6) {
            if let Reply::Text(holder) = fleet.store.command(&["GET", &format!("poll:lease:{target}")]) {
                *held.entry(holder).or_default() += 1;
            }
        }
        held
    };
    until("each of them has three", || held().values().eq(&[3, 3])).await;
    assert!(held().keys().all(|holder| holder.starts_with("same-")), "{:?}", held());
    // Whom the witness cannot tell apart.
    fleet.until_shares_are(&[6]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn a_neighbour_of_the_old_kind_is_lived_with() {
    a_neighbour_is_lived_with(neighbour::fnv).await;
}

/// The old hash hardly tells names apart that differ in their last letter, so that neighbour wants everything or nothing.
#[tokio::test]
async fn a_neighbour_that_wants_some_of_the_targets_is_lived_with() {
    a_neighbour_is_lived_with(neighbour::well_mixed).await;
}

async fn a_neighbour_is_lived_with(taste: fn(&str) -> u64) {
    let fleet = Fleet::new(6);
    let neighbour = Neighbour::start(&fleet.store, targets(6), taste);
    // It was there before, and has everything.
    let theirs = |target: &String| {
        fleet.store.command(&["GET", &format!("poll:lease:{target}")]) == Reply::text(neighbour::NAME)
    };
    until("it has everything", || targets(6).iter().all(theirs)).await;
    let is_there = |name: &str| {
        let heartbeats = fleet.store.command(&["KEYS", &format!("poll:node:{name}-*")]);
        !heartbeats.as_array().is_empty()
    };
    let one = fleet.member("one");
    let _two = fleet.member("two");
    until("it has company", || is_there("one") && is_there("two")).await;
    tokio::time::sleep(ttl() * 2).await;
    let _three = fleet.member("three");
    until("it has more company", || is_there("three")).await;
    one.signal(Signal::KILL);
    tokio::time::sleep(ttl() * 5).await;
    let (calm, account) = (Instant::now() - ttl() * 5 / 2, neighbour.end());
    let seen = fleet.witness.seen();
    for stretch in &account.held {
        let met: Vec<_> = seen.get(&stretch.target).into_iter().flatten().filter(|unit| stretch.meets(unit)).collect();
        assert!(met.is_empty(), "{stretch:?} meets {met:?}");
    }
    for (target, holders) in &account.holders {
        let moves = holders.iter().filter(|(at, _)| *at > calm).count();
        assert!(moves <= 3, "{target} does not come to rest: {holders:?}");
        assert!(holders.last().is_some_and(|(_, holder)| holder.is_some()), "nobody has {target}: {holders:?}");
    }
    fleet.witness.check();
}

/// Nobody has told the others of it but its heartbeat.
#[tokio::test]
async fn what_a_neighbour_holds_is_shared_out_to_nobody() {
    let fleet = Fleet::new(9);
    let forever = (ttl() * 100).as_millis().to_string();
    fleet.store.command(&["SET", "poll:node:old-1", "1", "PX", &forever]);
    for target in &targets(9)[..3] {
        fleet.store.command(&["SET", &format!("poll:lease:{target}"), "old-1", "PX", &forever]);
    }
    let _one = fleet.member("one");
    fleet.until_shares_are(&[6]).await;
    let listed = || fleet.store.command(&["ZRANGE", "tenure:nodes", "0", "-1"]);
    until("it is found", || listed().as_array().contains(&Reply::text("old-1"))).await;
    let _two = fleet.member("two");
    // And not four and two, as if there were three more to be had.
    fleet.until_shares_are(&[3, 3]).await;
    fleet.store.command(&["DEL", "poll:node:old-1"]);
    until("it is not listed any more", || !listed().as_array().contains(&Reply::text("old-1"))).await;
    fleet.witness.check();
}

#[tokio::test]
async fn us1_as2_on_a_file() {
    scenes::a_third_instance_gets_its_share(Fleet::on_a_file(10)).await;
}

#[tokio::test]
async fn us2_as1_on_a_file() {
    scenes::what_a_crashed_instance_held_is_taken_over(&Fleet::on_a_file(9)).await;
}

#[tokio::test]
async fn us3_as1_on_a_file() {
    scenes::five_that_start_at_once_share_ten_targets(Fleet::on_a_file(10)).await;
}
