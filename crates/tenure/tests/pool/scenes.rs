//! Stories that are the same whatever a fleet shares.

use tenure_testbed::Process;

use crate::fleet::{Fleet, Shared};
use crate::stage::{LATENESS, TICK, ttl};

pub async fn a_third_instance_gets_its_share(fleet: Fleet<impl Shared>) {
    let _two = [fleet.member("one"), fleet.member("two")];
    fleet.until_shares_are(&[5, 5]).await;
    let _third = fleet.member("three");
    fleet.until_shares_are(&[3, 3, 4]).await;
    fleet.witness.check();
}

/// Returns those who are left, still at work.
pub async fn what_a_crashed_instance_held_is_taken_over(fleet: &Fleet<impl Shared>) -> Vec<Process> {
    let mut members: Vec<Process> = ["one", "two", "three"].iter().map(|name| fleet.member(name)).collect();
    fleet.until_shares_are(&[3, 3, 3]).await;
    let killed = fleet.crash("two", &members.swap_remove(1)).await;
    // The ttl, and the next tick.
    fleet.probe.within(killed.elapsed(), ttl() + LATENESS + TICK, "everything is polled again");
    fleet.until_shares_are(&[4, 5]).await;
    fleet.witness.check();
    members
}

pub async fn five_that_start_at_once_share_ten_targets(fleet: Fleet<impl Shared>) {
    let names = ["one", "two", "three", "four", "five"];
    let _members: Vec<Process> = names.iter().map(|name| fleet.member(name)).collect();
    fleet.until_shares_are(&[2, 2, 2, 2, 2]).await;
    fleet.witness.check();
}
