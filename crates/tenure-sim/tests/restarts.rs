//! Rolling restarts: which targets move when the instances are stopped and restarted one after the other under their
//! names.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::InstanceId;
use tenure_core::placement::FULL_WEIGHT;
use tenure_sim::fleet::world::{FleetWorld, id};

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Counts the holder changes of each target.
struct Moves {
    last: BTreeMap<String, InstanceId>,
    counts: BTreeMap<String, usize>,
    /// Number of stops of each target's holder.
    stops: BTreeMap<String, usize>,
}

impl Moves {
    fn begin(world: &FleetWorld) -> Self {
        let last = world.holders().into_iter().map(|(target, holder)| (target.to_string(), holder)).collect();
        Self { last, counts: BTreeMap::new(), stops: BTreeMap::new() }
    }

    fn observe(&mut self, world: &FleetWorld) {
        for (target, holder) in world.holders() {
            let before = self.last.insert(target.to_string(), holder.clone());
            if before.is_some_and(|before| before != holder) {
                *self.counts.entry(target.to_string()).or_default() += 1;
            }
        }
    }

    /// Records that this instance is stopped now.
    fn stop(&mut self, world: &FleetWorld, n: usize) {
        for (target, _) in world.holders().into_iter().filter(|(_, holder)| *holder == id(n)) {
            *self.stops.entry(target.to_string()).or_default() += 1;
        }
    }

    /// The targets that moved more often than their holders were stopped.
    fn beyond_stops(&self) -> BTreeMap<&str, usize> {
        let stops = |target: &String| self.stops.get(target).copied().unwrap_or(0);
        let beyond = self.counts.iter().filter(|(target, count)| **count > stops(target));
        beyond.map(|(target, count)| (target.as_str(), *count)).collect()
    }

    fn run_for(&mut self, world: &mut FleetWorld, span: Duration) {
        let end = world.now + span;
        while world.now < end {
            world.run_for(Duration::from_millis(50));
            self.observe(world);
        }
    }

    fn max_per_target(&self) -> usize {
        self.counts.values().copied().max().unwrap_or(0)
    }

    fn total(&self) -> usize {
        self.counts.values().sum()
    }
}

/// Restarts three instances with thirty targets one after the other. Each is down for `away`; the next stop follows
/// after `between`.
fn rolling_restart(seed: u64, hand_back: bool, crash: bool, away: Duration, between: Duration) -> (Moves, FleetWorld) {
    let mut world = FleetWorld::new(seed, 30);
    world.set_hand_back(hand_back);
    (0..3).for_each(|n| world.join_as(n, &format!("replica-{n}"), FULL_WEIGHT, false));
    assert!(world.run_until_settled(secs(60)).is_some(), "seed {seed}");
    world.run_for(secs(30));
    let mut moves = Moves::begin(&world);
    for n in 0..3 {
        moves.stop(&world, n);
        if crash {
            world.kill(n);
        } else {
            world.drain(n);
            moves.run_for(&mut world, secs(1));
            world.leave(n);
        }
        moves.run_for(&mut world, away);
        world.join_as(n + 10, &format!("replica-{n}"), FULL_WEIGHT, false);
        moves.run_for(&mut world, between);
    }
    moves.run_for(&mut world, secs(90));
    (moves, world)
}

#[test]
fn each_target_moves_at_most_once_away_and_once_back() {
    for seed in 0..20 {
        for (away, between) in [(5, 60), (20, 30), (1, 10), (60, 5), (3, 5), (3, 2)] {
            let (moves, world) = rolling_restart(seed, true, false, secs(away), secs(between));
            // If the next instance is stopped before the last one has its quota again, some targets may have to move
            // once more.
            let most = if between < 5 { 3 } else { 2 };
            assert!(moves.max_per_target() <= most, "seed {seed} {away} {between}: {:?}", moves.counts);
            assert_eq!((world.unheld(), world.spread()), (0, 0), "seed {seed} {away} {between}");
        }
    }
}

#[test]
fn each_instance_gets_its_targets_back_when_restarts_are_far_apart() {
    for seed in 0..20 {
        let mut world = FleetWorld::new(seed, 30);
        (0..3).for_each(|n| world.join_as(n, &format!("replica-{n}"), FULL_WEIGHT, false));
        assert!(world.run_until_settled(secs(60)).is_some());
        world.run_for(secs(30));
        let before = world.holders();
        world.drain(1);
        world.run_for(secs(1));
        world.leave(1);
        world.run_for(secs(30));
        world.join_as(11, "replica-1", FULL_WEIGHT, false);
        world.run_for(secs(60));
        for (target, holder) in world.holders() {
            let expected = if before[&target] == id(1) { id(11) } else { before[&target].clone() };
            assert_eq!(holder, expected, "seed {seed}: {target}");
        }
    }
}

#[test]
fn without_hand_back_each_target_moves_at_most_once_for_each_stop_of_its_holder() {
    for seed in 0..20 {
        for (away, between) in [(secs(5), secs(60)), (secs(20), secs(30)), (secs(3), secs(2))] {
            let (moves, world) = rolling_restart(seed, false, false, away, between);
            // Ten targets of the first instance, then fifteen of each: the instances not yet stopped hold half of all
            // targets.
            assert!(moves.total() <= 10 + 15 + 15, "seed {seed} {away:?}: {} moves", moves.total());
            assert_eq!(world.unheld(), 0, "seed {seed}");
        }
    }
}

#[test]
fn without_hand_back_each_target_moves_at_most_once_for_each_crash_of_its_holder() {
    for seed in 0..20 {
        // Restarted at once, when the heartbeat is late, when the leases have expired, and before the last crash is
        // over.
        for (away, between) in [(100, 60), (5_000, 60), (15_000, 60), (45_000, 60), (100, 10), (5_000, 2)] {
            let (moves, world) = rolling_restart(seed, false, true, Duration::from_millis(away), secs(between));
            assert_eq!(moves.beyond_stops(), BTreeMap::new(), "seed {seed} {away} {between}");
            assert_eq!(world.unheld(), 0, "seed {seed} {away} {between}");
        }
    }
}

#[test]
fn an_instance_that_is_restarted_at_once_gets_nothing_until_its_crash_is_known_and_then_waits() {
    for seed in 0..20 {
        let mut world = FleetWorld::new(seed, 30);
        (0..2).for_each(|n| world.join_as(n, &format!("replica-{n}"), FULL_WEIGHT, false));
        world.join_as(10, "looping", FULL_WEIGHT, false);
        assert!(world.run_until_settled(secs(60)).is_some(), "seed {seed}");
        for (life, wait) in [(11, secs(6)), (12, secs(12)), (13, secs(24))] {
            world.run_for(secs(5));
            world.kill(life - 1);
            world.run_for(Duration::from_millis(100));
            world.join_as(life, "looping", FULL_WEIGHT, false);
            let late = world.heartbeat_late_at(life - 1).unwrap();
            let mut notes = BTreeMap::new();
            while world.counts()[&id(life)] == 0 {
                world.run_for(Duration::from_millis(100));
                notes.extend(world.crash_backoffs(0).into_iter().map(|(one, _, crashes)| (one, crashes)));
                assert!(world.now < late + secs(120), "seed {seed} {life}: it never got its quota");
            }
            assert!(
                world.now >= late + wait,
                "seed {seed} {life}: {:?} after the crash was known",
                world.now.since(late)
            );
            assert_eq!(notes, BTreeMap::from([(id(life), u32::try_from(life).unwrap() - 10)]), "seed {seed}");
            assert!(world.run_until_settled(secs(60)).is_some(), "seed {seed} {life}: {:?}", world.counts());
        }
    }
}

#[test]
fn restarted_instances_have_no_quota_under_their_old_ids() {
    for seed in 0..20 {
        let mut world = FleetWorld::new(seed, 30);
        (0..3).for_each(|n| world.join_as(n, &format!("replica-{n}"), FULL_WEIGHT, false));
        assert!(world.run_until_settled(secs(60)).is_some(), "seed {seed}");
        let before = world.holders();
        // A supervisor keeps restarting a process that exits at once.
        for life in 10..16 {
            world.join_as(life, "looping", FULL_WEIGHT, false);
            world.run_for(Duration::from_millis(1_500));
            world.kill(life);
        }
        world.join_as(20, "looping", FULL_WEIGHT, false);
        for _ in 0..400 {
            world.run_for(Duration::from_millis(50));
            let members: Vec<InstanceId> = world.alive_instances().into_iter().map(id).collect();
            let dead = world.holders().into_iter().filter(|(_, holder)| !members.contains(holder)).count();
            assert_eq!(dead, 0, "seed {seed}: targets were handed over to a dead instance");
        }
        let moved = |(target, holder): &(&_, &InstanceId)| before[*target] != **holder;
        let (after, share) = (world.holders(), 30_usize.div_ceil(4));
        assert!(after.iter().filter(moved).count() <= share, "seed {seed}: {:?}", world.counts());
        assert!(world.run_until_settled(secs(60)).is_some(), "seed {seed}: {:?}", world.counts());
    }
}

#[test]
fn two_instances_that_share_a_name_both_get_their_quota() {
    for seed in 0..20 {
        let mut world = FleetWorld::new(seed, 30);
        world.join_as(1, "twin", FULL_WEIGHT, false);
        world.run_for(secs(20));
        world.join_as(2, "twin", FULL_WEIGHT, false);
        world.join_as(3, "other", FULL_WEIGHT, false);
        // The first instance has sent a heartbeat by then.
        assert!(world.run_until_settled(secs(30)).is_some(), "seed {seed}: {:?}", world.counts());
        world.kill(2);
        assert!(world.run_until_settled(secs(40)).is_some(), "seed {seed}: {:?}", world.counts());
        assert_eq!(world.crash_backoffs(1), [], "a crash of an instance without its own name must not cause a backoff");
    }
}

#[test]
fn after_a_crash_and_a_restart_each_target_moves_at_most_once_away_and_once_back() {
    for seed in 0..20 {
        let (moves, world) = rolling_restart(seed, true, true, secs(45), secs(60));
        assert!(moves.max_per_target() <= 2, "seed {seed}: {:?}", moves.counts);
        assert_eq!((world.unheld(), world.spread()), (0, 0), "seed {seed}");
    }
}

#[test]
fn crashes_on_the_same_host_do_not_delay_a_healthy_instance() {
    let mut world = FleetWorld::new(8, 30);
    (0..3).for_each(|n| world.join(n));
    assert!(world.run_until_settled(secs(60)).is_some());
    for life in 10..20 {
        world.join_unnamed(life, "host");
        world.run_for(secs(6));
        world.kill(life);
        world.run_for(secs(40));
    }
    world.join_unnamed(30, "host");
    world.run_for(secs(15));
    assert!(world.counts()[&id(30)] >= 7, "{:?}", world.counts());
}
