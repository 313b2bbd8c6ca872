//! Scenarios that run on every store.

use tenure_testbed::TestProcess;

use crate::fleet::{Fleet, SharedStore};
use crate::harness::{MAX_TAKEOVER_DELAY, TICK, ttl};

pub async fn a_third_instance_gets_its_quota(fleet: Fleet<impl SharedStore>) {
    let _two = [fleet.spawn("one"), fleet.spawn("two")];
    fleet.wait_for_counts(&[5, 5]).await;
    let _third = fleet.spawn("three");
    fleet.wait_for_counts(&[3, 3, 4]).await;
    fleet.witness.check();
}

/// Returns the surviving processes, still running.
pub async fn targets_of_a_crashed_instance_are_taken_over(fleet: &Fleet<impl SharedStore>) -> Vec<TestProcess> {
    let mut instances: Vec<TestProcess> = ["one", "two", "three"].iter().map(|name| fleet.spawn(name)).collect();
    fleet.wait_for_counts(&[3, 3, 3]).await;
    let killed = fleet.crash("two", &instances.swap_remove(1)).await;
    // The ttl and the next tick.
    fleet.probe.assert_within(killed.elapsed(), ttl() + MAX_TAKEOVER_DELAY + TICK, "every target is polled again");
    fleet.wait_for_counts(&[4, 5]).await;
    fleet.witness.check();
    instances
}

pub async fn five_instances_started_at_once_share_ten_targets(fleet: Fleet<impl SharedStore>) {
    let names = ["one", "two", "three", "four", "five"];
    let _instances: Vec<TestProcess> = names.iter().map(|name| fleet.spawn(name)).collect();
    fleet.wait_for_counts(&[2, 2, 2, 2, 2]).await;
    fleet.witness.check();
}
