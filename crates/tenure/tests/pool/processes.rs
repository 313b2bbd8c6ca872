//! The user stories, with instances as child processes. Names begin with the story and its scenario.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure_testbed::{Proxy, RedisReply, RedisServer, TestProcess};

use crate::fleet::Fleet;
use crate::harness::{MAX_TAKEOVER_DELAY, TICK, ttl, wait_until};
use crate::scenarios;

#[tokio::test]
async fn us1_as1_a_single_instance_polls_everything() {
    let fleet = Fleet::new(6);
    let _one = fleet.spawn("one");
    fleet.wait_for_counts(&[6]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn us1_as2_and_us4_as2_a_third_instance_gets_its_quota() {
    scenarios::a_third_instance_gets_its_quota(Fleet::new(10)).await;
}

#[tokio::test]
async fn us1_as3_a_stopped_instance_is_replaced_at_once() {
    let fleet = Fleet::new(9);
    let mut instances = [fleet.spawn("one"), fleet.spawn("two"), fleet.spawn("three")];
    fleet.wait_for_counts(&[3, 3, 3]).await;
    instances[1].signal(Signal::TERM);
    let told = Instant::now();
    fleet.wait_for_others("two", told).await;
    // Only the running unit of work and the next tick delay the take-over.
    fleet.probe.assert_within(
        told.elapsed(),
        MAX_TAKEOVER_DELAY + TICK * 2,
        "every target is polled by another instance",
    );
    assert!(instances[1].wait_success(), "the process must exit successfully");
    let heartbeats = || fleet.store.command(&["KEYS", "poll:node:two-*"]).as_array().len();
    assert_eq!(heartbeats(), 0, "its heartbeat must be removed");
    fleet.wait_for_counts(&[4, 5]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn us2_as1_targets_of_a_crashed_instance_are_taken_over_when_its_ttl_ends() {
    let fleet = Fleet::new(9);
    let _left = scenarios::targets_of_a_crashed_instance_are_taken_over(&fleet).await;
    // No record of the dead instance is left: neither a heartbeat nor its index.
    wait_until("its records are removed", || {
        ["poll:node:two-*", "tenure:index:held:poll:two-*"]
            .iter()
            .all(|pattern| fleet.store.command(&["KEYS", pattern]).as_array().is_empty())
    })
    .await;
}

#[tokio::test]
async fn us3_as1_five_instances_started_at_once_share_ten_targets() {
    scenarios::five_instances_started_at_once_share_ten_targets(Fleet::new(10)).await;
}

#[tokio::test]
async fn us4_as1_nine_targets_on_three_instances_are_three_each() {
    let fleet = Fleet::new(9);
    let _instances = [fleet.spawn("one"), fleet.spawn("two"), fleet.spawn("three")];
    fleet.wait_for_counts(&[3, 3, 3]).await;
    let settled = Instant::now();
    tokio::time::sleep(ttl()).await;
    let moved = fleet
        .witness
        .seen()
        .values()
        .filter(|units| {
            let since: Vec<_> = units.iter().filter(|unit| unit.began > settled).collect();
            since.windows(2).any(|pair| pair[0].token != pair[1].token)
        })
        .count();
    assert_eq!(moved, 0, "no target may move");
    fleet.witness.check();
}

#[tokio::test]
async fn edge_all_instances_crash_and_start_again_at_once() {
    let fleet = Fleet::new(6);
    let instances = [fleet.spawn("one"), fleet.spawn("two")];
    fleet.wait_for_counts(&[3, 3]).await;
    instances.iter().for_each(|instance| instance.signal(Signal::KILL));
    let killed = Instant::now();
    let _again = [fleet.spawn("three"), fleet.spawn("four")];
    wait_until("every target is worked on again", || fleet.witness.since(killed + ttl() / 2).len() == 6).await;
    fleet.wait_for_counts(&[3, 3]).await;
    fleet.witness.check();
    // No records of the dead instances are left.
    let lists = || match fleet.store.command(&["KEYS", "tenure:index:held:*"]) {
        RedisReply::Array(keys) => keys.len(),
        other => panic!("{other:?}"),
    };
    wait_until("only live instances have an index", || lists() == 2).await;
    let holders = || fleet.store.command(&["SCARD", "tenure:index:holders:poll"]);
    wait_until("only live instances are listed", || holders() == RedisReply::Int(2)).await;
}

#[tokio::test]
async fn sc_001_work_never_overlaps_while_instances_join_leave_and_crash() {
    let fleet = Fleet::new(12);
    let mut rng = fastrand::Rng::new();
    let mut instances: Vec<(String, TestProcess)> = (0..3).map(|n| fleet.spawn_named(&format!("start-{n}"))).collect();
    for round in 0..8 {
        tokio::time::sleep(Duration::from_millis(rng.u64(200..1_200))).await;
        match rng.u8(..3) {
            0 if instances.len() > 1 => {
                let (_, instance) = instances.swap_remove(rng.usize(..instances.len()));
                instance.signal(Signal::KILL);
            }
            1 if instances.len() > 1 => {
                let (name, mut instance) = instances.swap_remove(rng.usize(..instances.len()));
                instance.signal(Signal::TERM);
                assert!(instance.wait_success(), "{name} must exit successfully");
            }
            _ => instances.push(fleet.spawn_named(&format!("later-{round}"))),
        }
    }
    let calm = Instant::now();
    wait_until("every target is worked on", || fleet.complete_counts().is_some()).await;
    fleet.probe.assert_within(calm.elapsed(), ttl() + ttl() / 10 + TICK * 6, "every target is worked on");
    fleet.witness.check();
}

#[tokio::test]
async fn us2_as2_an_instance_that_is_cut_off_stops_before_its_targets_are_taken_over() {
    let fleet = Fleet::new(6);
    let proxy = Proxy::to(fleet.store.address());
    let one = fleet.spawn_behind(&proxy, "one");
    let _two = fleet.spawn("two");
    fleet.wait_for_counts(&[3, 3]).await;
    proxy.blackhole();
    let cut = Instant::now();
    fleet.wait_for_others("one", cut + ttl() / 2).await;
    fleet.probe.assert_within(cut.elapsed(), ttl() + ttl() / 10 + TICK * 2, "every target is polled again");
    proxy.pass();
    fleet.wait_for_counts(&[3, 3]).await;
    fleet.witness.check();
    drop(one);
}

#[tokio::test]
async fn us2_as3_a_restarted_process_is_a_new_instance() {
    let fleet = Fleet::new(4);
    let one = fleet.spawn("one");
    fleet.wait_for_counts(&[4]).await;
    let holder = || fleet.store.command(&["GET", "poll:lease:endpoint-1"]).as_text().to_owned();
    let before = holder();
    one.signal(Signal::KILL);
    let killed = Instant::now();
    drop(one);
    let _again = fleet.spawn("one");
    wait_until("every target is worked on again", || fleet.witness.since(killed).len() == 4).await;
    assert!(holder() != before && holder().starts_with("one-"), "{before} and {}", holder());
    // It had to wait like any other instance.
    let first = fleet.witness.seen().values().flatten().filter(|unit| unit.began > killed).map(|unit| unit.began).min();
    assert!(first.unwrap() - killed > ttl() / 3, "{:?}", first.unwrap() - killed);
    fleet.witness.check();
}

#[tokio::test]
async fn edge_a_poll_that_takes_longer_than_the_ttl_keeps_its_lease() {
    let server = RedisServer::start();
    let tenure = tenure::Tenure::builder(&server.url()).longest_ttl(ttl()).bootstrap().connect().await.unwrap();
    let (done, mut over) = tokio::sync::mpsc::unbounded_channel();
    let pool = tenure.pool("poll").targets(["slow"]).ttl(ttl()).run(move |_, lease| {
        let done = done.clone();
        async move {
            let token = lease.token();
            tokio::time::sleep(ttl() * 2).await;
            let _ = done.send((token, lease.token(), lease.is_valid()));
            lease.draining().await;
            Ok(())
        }
    });
    let pool = pool.start().unwrap();
    let (before, after, valid) = over.recv().await.unwrap();
    assert!(before == after && valid, "the lease must be renewed meanwhile");
    pool.stop().await;
}

#[tokio::test]
async fn us3_as2_a_held_target_is_not_granted_twice() {
    let fleet = Fleet::new(1);
    let _one = fleet.spawn("one");
    fleet.wait_for_counts(&[1]).await;
    let stranger = tenure::Tenure::builder(&fleet.store.url()).longest_ttl(ttl()).connect().await.unwrap();
    let name = tenure::LeaseName::target("poll", "endpoint-1").unwrap();
    let refused = stranger.lease(name).try_acquire().await.unwrap_err();
    assert!(matches!(refused, tenure::AcquireError::Held { .. }), "{refused}");
    fleet.witness.check();
}

#[tokio::test]
async fn sc_005_no_fault_of_store_or_instances_makes_work_overlap_and_the_fleet_recovers() {
    let fleet = Fleet::new(12);
    let mut rng = fastrand::Rng::new();
    // Each instance has its own proxy.
    let linked = |name: String| {
        let proxy = Proxy::to(fleet.store.address());
        (fleet.spawn_behind(&proxy, &name), name, proxy)
    };
    let mut instances: Vec<(TestProcess, String, Proxy)> = (0..3).map(|n| linked(format!("start-{n}"))).collect();
    let mut stopped: Vec<String> = Vec::new();
    wait_until("every target is worked on", || fleet.complete_counts().is_some()).await;
    for round in 0..10 {
        let what = rng.u8(..9);
        match what {
            0 if instances.len() > 1 => instances.swap_remove(rng.usize(..instances.len())).0.signal(Signal::KILL),
            1 => {
                let (instance, name, _) = &instances[rng.usize(..instances.len())];
                stopped.push(name.clone());
                instance.signal(Signal::STOP);
                tokio::time::sleep(ttl().mul_f64(0.5 + rng.f64())).await;
                instance.signal(Signal::CONT);
            }
            2 => drop(fleet.store.command(&["CLIENT", "KILL", "TYPE", "normal"])),
            3 => drop(fleet.store.command(&["FLUSHALL"])),
            4 => fleet.store.restart(),
            5 => {
                fleet.store.stop();
                tokio::time::sleep(ttl().mul_f64(rng.f64() * 1.5)).await;
                fleet.store.cont();
            }
            6 => {
                let (_, _, link) = &instances[rng.usize(..instances.len())];
                link.blackhole();
                tokio::time::sleep(ttl().mul_f64(rng.f64() * 1.5)).await;
                link.pass();
            }
            7 => instances[rng.usize(..instances.len())].2.reset_connections(),
            _ => instances.push(linked(format!("later-{round}"))),
        }
        println!("round {round}: {what}");
        tokio::time::sleep(Duration::from_millis(rng.u64(100..1_500))).await;
    }
    let calm = Instant::now();
    wait_until("every target is worked on", || fleet.complete_counts().is_some()).await;
    // A quarantine, then the lease of a dead instance, and the reconnection to the store.
    fleet.probe.assert_within(calm.elapsed(), ttl() * 2 + Duration::from_secs(5), "every target is worked on");
    fleet.witness.check_except(&stopped);
}
