//! The user stories, with instances that are processes of their own. Names begin with the story and its scenario.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure_testbed::{Process, Proxy, RedisServer, Reply};

use crate::fleet::Fleet;
use crate::scenes;
use crate::stage::{LATENESS, TICK, ttl, until};

#[tokio::test]
async fn us1_as1_a_single_instance_polls_everything() {
    let fleet = Fleet::new(6);
    let _one = fleet.member("one");
    fleet.until_shares_are(&[6]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn us1_as2_and_us4_as2_a_third_instance_gets_its_share() {
    scenes::a_third_instance_gets_its_share(Fleet::new(10)).await;
}

#[tokio::test]
async fn us1_as3_a_stopped_instance_is_replaced_at_once() {
    let fleet = Fleet::new(9);
    let mut members = [fleet.member("one"), fleet.member("two"), fleet.member("three")];
    fleet.until_shares_are(&[3, 3, 3]).await;
    members[1].signal(Signal::TERM);
    let told = Instant::now();
    fleet.until_others_work("two", told).await;
    // Nothing is waited for but the unit of work under way and the next tick.
    fleet.probe.within(told.elapsed(), LATENESS + TICK * 2, "everything is polled by others");
    assert!(members[1].ends(), "it ends well");
    let heartbeats = || fleet.store.command(&["KEYS", "poll:node:two-*"]).as_array().len();
    assert_eq!(heartbeats(), 0, "its heartbeat ends with it");
    fleet.until_shares_are(&[4, 5]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn us2_as1_what_a_crashed_instance_held_is_taken_over_when_its_ttl_ends() {
    let fleet = Fleet::new(9);
    let _left = scenes::what_a_crashed_instance_held_is_taken_over(&fleet).await;
    // Nothing of the dead is left: neither a heartbeat nor what it held.
    until("it is forgotten", || {
        ["poll:node:two-*", "tenure:index:held:poll:two-*"]
            .iter()
            .all(|pattern| fleet.store.command(&["KEYS", pattern]).as_array().is_empty())
    })
    .await;
}

#[tokio::test]
async fn us3_as1_five_that_start_at_once_share_ten_targets() {
    scenes::five_that_start_at_once_share_ten_targets(Fleet::new(10)).await;
}

#[tokio::test]
async fn us4_as1_nine_targets_on_three_instances_are_three_each() {
    let fleet = Fleet::new(9);
    let _members = [fleet.member("one"), fleet.member("two"), fleet.member("three")];
    fleet.until_shares_are(&[3, 3, 3]).await;
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
    assert_eq!(moved, 0, "and stay where they are");
    fleet.witness.check();
}

#[tokio::test]
async fn edge_all_instances_crash_and_start_again_at_once() {
    let fleet = Fleet::new(6);
    let members = [fleet.member("one"), fleet.member("two")];
    fleet.until_shares_are(&[3, 3]).await;
    members.iter().for_each(|member| member.signal(Signal::KILL));
    let killed = Instant::now();
    let _again = [fleet.member("three"), fleet.member("four")];
    until("all is worked on again", || fleet.witness.since(killed + ttl() / 2).len() == 6).await;
    fleet.until_shares_are(&[3, 3]).await;
    fleet.witness.check();
    // Nothing is left of those who are gone.
    let lists = || match fleet.store.command(&["KEYS", "tenure:index:held:*"]) {
        Reply::Array(keys) => keys.len(),
        other => panic!("{other:?}"),
    };
    until("there are lists of the living only", || lists() == 2).await;
    let holders = || fleet.store.command(&["SCARD", "tenure:index:holders:poll"]);
    until("there are only the living", || holders() == Reply::Int(2)).await;
}

#[tokio::test]
async fn sc_001_nobody_meets_whoever_comes_goes_and_dies() {
    let fleet = Fleet::new(12);
    let mut rng = fastrand::Rng::new();
    let mut members: Vec<(String, Process)> = (0..3).map(|n| fleet.named(&format!("start-{n}"))).collect();
    for round in 0..8 {
        tokio::time::sleep(Duration::from_millis(rng.u64(200..1_200))).await;
        match rng.u8(..3) {
            0 if members.len() > 1 => {
                let (_, member) = members.swap_remove(rng.usize(..members.len()));
                member.signal(Signal::KILL);
            }
            1 if members.len() > 1 => {
                let (name, mut member) = members.swap_remove(rng.usize(..members.len()));
                member.signal(Signal::TERM);
                assert!(member.ends(), "{name} ends well");
            }
            _ => members.push(fleet.named(&format!("later-{round}"))),
        }
    }
    let calm = Instant::now();
    until("all is worked on", || fleet.shares().is_some()).await;
    fleet.probe.within(calm.elapsed(), ttl() + ttl() / 10 + TICK * 6, "all is worked on");
    fleet.witness.check();
}

#[tokio::test]
async fn us2_as2_an_instance_that_is_cut_off_stops_before_its_targets_are_taken_over() {
    let fleet = Fleet::new(6);
    let proxy = Proxy::to(fleet.store.address());
    let one = fleet.member_behind(&proxy, "one");
    let _two = fleet.member("two");
    fleet.until_shares_are(&[3, 3]).await;
    proxy.swallow();
    let cut = Instant::now();
    fleet.until_others_work("one", cut + ttl() / 2).await;
    fleet.probe.within(cut.elapsed(), ttl() + ttl() / 10 + TICK * 2, "everything is polled again");
    proxy.pass();
    fleet.until_shares_are(&[3, 3]).await;
    fleet.witness.check();
    drop(one);
}

#[tokio::test]
async fn us2_as3_a_restarted_process_is_somebody_else() {
    let fleet = Fleet::new(4);
    let one = fleet.member("one");
    fleet.until_shares_are(&[4]).await;
    let holder = || fleet.store.command(&["GET", "poll:lease:endpoint-1"]).as_text().to_owned();
    let before = holder();
    one.signal(Signal::KILL);
    let killed = Instant::now();
    drop(one);
    let _again = fleet.member("one");
    until("it works again", || fleet.witness.since(killed).len() == 4).await;
    assert!(holder() != before && holder().starts_with("one-"), "{before} and {}", holder());
    // It had to wait like anybody else.
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
            lease.lost().await;
        }
    });
    let pool = pool.start().unwrap();
    let (before, after, valid) = over.recv().await.unwrap();
    assert!(before == after && valid, "renewed meanwhile");
    pool.stop().await;
}

#[tokio::test]
async fn us3_as2_a_target_that_is_held_is_not_had_twice() {
    let fleet = Fleet::new(1);
    let _one = fleet.member("one");
    fleet.until_shares_are(&[1]).await;
    let stranger = tenure::Tenure::builder(&fleet.store.url()).longest_ttl(ttl()).connect().await.unwrap();
    let name = tenure::LeaseName::target("poll", "endpoint-1").unwrap();
    let refused = stranger.lease_named(name).try_acquire().await.unwrap_err();
    assert!(matches!(refused, tenure::AcquireError::Held { .. }), "{refused}");
    fleet.witness.check();
}

#[tokio::test]
async fn sc_005_whatever_befalls_the_store_and_the_instances_nobody_meets_and_all_recovers() {
    let fleet = Fleet::new(12);
    let mut rng = fastrand::Rng::new();
    // Each has a link of its own.
    let linked = |name: String| {
        let proxy = Proxy::to(fleet.store.address());
        (fleet.member_behind(&proxy, &name), name, proxy)
    };
    let mut members: Vec<(Process, String, Proxy)> = (0..3).map(|n| linked(format!("start-{n}"))).collect();
    let mut stopped: Vec<String> = Vec::new();
    until("all is worked on", || fleet.shares().is_some()).await;
    for round in 0..10 {
        let what = rng.u8(..9);
        match what {
            0 if members.len() > 1 => members.swap_remove(rng.usize(..members.len())).0.signal(Signal::KILL),
            1 => {
                let (member, name, _) = &members[rng.usize(..members.len())];
                stopped.push(name.clone());
                member.signal(Signal::STOP);
                tokio::time::sleep(ttl().mul_f64(0.5 + rng.f64())).await;
                member.signal(Signal::CONT);
            }
            2 => drop(fleet.store.command(&["CLIENT", "KILL", "TYPE", "normal"])),
            3 => drop(fleet.store.command(&["FLUSHALL"])),
            4 => fleet.store.start_again(),
            5 => {
                fleet.store.stop();
                tokio::time::sleep(ttl().mul_f64(rng.f64() * 1.5)).await;
                fleet.store.cont();
            }
            6 => {
                let (_, _, link) = &members[rng.usize(..members.len())];
                link.swallow();
                tokio::time::sleep(ttl().mul_f64(rng.f64() * 1.5)).await;
                link.pass();
            }
            7 => members[rng.usize(..members.len())].2.cut(),
            _ => members.push(linked(format!("later-{round}"))),
        }
        println!("round {round}: {what}");
        tokio::time::sleep(Duration::from_millis(rng.u64(100..1_500))).await;
    }
    let calm = Instant::now();
    until("all is worked on", || fleet.shares().is_some()).await;
    // A quarantine, and a lease of somebody who is gone, one after the other; and finding the store again.
    fleet.probe.within(calm.elapsed(), ttl() * 2 + Duration::from_secs(5), "all is worked on");
    fleet.witness.check_but_for(&stopped);
}
