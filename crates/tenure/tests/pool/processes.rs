//! The user stories, with instances that are processes of their own. Names begin with the story and its scenario.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure_testbed::{Probe, RedisServer};

use crate::stage::{Process, TICK, TTL, Witness, until};

/// Processes that share targets on one Redis.
struct Fleet {
    server: RedisServer,
    witness: Witness,
    targets: usize,
    probe: Probe,
}

impl Fleet {
    fn new(targets: usize) -> Self {
        Self { server: RedisServer::start(), witness: Witness::start(), targets, probe: Probe::start() }
    }

    fn member(&self, name: &str) -> Process {
        Process::start(&self.server.url(), name, self.witness.address(), self.targets)
    }

    /// How many each works on, when all are worked on: by what was seen in the last few ticks.
    fn shares(&self) -> Option<Vec<(String, usize)>> {
        let since = self.witness.since(Instant::now() - TICK * 4);
        if since.len() < self.targets {
            return None;
        }
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        since.into_values().for_each(|who| *counts.entry(who).or_default() += 1);
        Some(counts.into_iter().collect())
    }

    async fn until_shares_are(&self, expected: &[usize]) {
        let counts = || {
            let mut counts: Vec<usize> = self.shares()?.into_iter().map(|(_, count)| count).collect();
            counts.sort_unstable();
            Some(counts)
        };
        until(&format!("{expected:?}"), || counts().as_deref() == Some(expected)).await;
    }
}

#[tokio::test]
async fn us1_as1_a_single_instance_polls_everything() {
    let fleet = Fleet::new(6);
    let _one = fleet.member("one");
    fleet.until_shares_are(&[6]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn us1_as2_and_us4_as2_a_third_instance_gets_its_share() {
    let fleet = Fleet::new(10);
    let _two = [fleet.member("one"), fleet.member("two")];
    fleet.until_shares_are(&[5, 5]).await;
    let _third = fleet.member("three");
    fleet.until_shares_are(&[3, 3, 4]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn us1_as3_a_stopped_instance_is_replaced_at_once() {
    let fleet = Fleet::new(9);
    let mut members = [fleet.member("one"), fleet.member("two"), fleet.member("three")];
    fleet.until_shares_are(&[3, 3, 3]).await;
    members[1].signal(Signal::TERM);
    assert!(members[1].ends(), "it ends well");
    fleet.until_shares_are(&[4, 5]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn us2_as1_what_a_crashed_instance_held_is_taken_over_when_its_ttl_ends() {
    let fleet = Fleet::new(9);
    let members = [fleet.member("one"), fleet.member("two"), fleet.member("three")];
    fleet.until_shares_are(&[3, 3, 3]).await;
    let theirs: Vec<String> = fleet
        .witness
        .since(Instant::now() - TICK * 4)
        .into_iter()
        .filter(|(_, who)| who == "two")
        .map(|(t, _)| t)
        .collect();
    members[1].signal(Signal::KILL);
    let killed = Instant::now();
    until("all are worked on by others", || {
        let since = fleet.witness.since(killed);
        theirs.iter().all(|target| since.get(target).is_some_and(|who| who != "two"))
    })
    .await;
    // The ttl, the grace of whoever comes last, and the next tick.
    fleet.probe.within(killed.elapsed(), TTL + TTL / 10 + TICK, "everything is polled again");
    fleet.until_shares_are(&[4, 5]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn us3_as1_five_that_start_at_once_share_ten_targets() {
    let fleet = Fleet::new(10);
    let names = ["one", "two", "three", "four", "five"];
    let _members: Vec<Process> = names.iter().map(|name| fleet.member(name)).collect();
    fleet.until_shares_are(&[2, 2, 2, 2, 2]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn us4_as1_nine_targets_on_three_instances_are_three_each() {
    let fleet = Fleet::new(9);
    let _members = [fleet.member("one"), fleet.member("two"), fleet.member("three")];
    fleet.until_shares_are(&[3, 3, 3]).await;
    let settled = Instant::now();
    tokio::time::sleep(TTL).await;
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
    until("all is worked on again", || fleet.witness.since(killed + TTL / 2).len() == 6).await;
    fleet.until_shares_are(&[3, 3]).await;
    fleet.witness.check();
}

#[tokio::test]
async fn sc_001_nobody_meets_whoever_comes_goes_and_dies() {
    let fleet = Fleet::new(12);
    let mut rng = fastrand::Rng::new();
    let mut members: Vec<Process> = (0..3).map(|n| fleet.member(&format!("start-{n}"))).collect();
    for round in 0..8 {
        tokio::time::sleep(Duration::from_millis(rng.u64(200..1_200))).await;
        match rng.u8(..3) {
            0 if members.len() > 1 => {
                let member = members.swap_remove(rng.usize(..members.len()));
                member.signal(Signal::KILL);
            }
            1 if members.len() > 1 => {
                let mut member = members.swap_remove(rng.usize(..members.len()));
                member.signal(Signal::TERM);
                assert!(member.ends(), "{} ends well", member.name);
            }
            _ => members.push(fleet.member(&format!("later-{round}"))),
        }
    }
    let calm = Instant::now();
    until("all is worked on", || fleet.shares().is_some()).await;
    fleet.probe.within(calm.elapsed(), TTL + TTL / 10 + TICK * 6, "all is worked on");
    fleet.witness.check();
}
