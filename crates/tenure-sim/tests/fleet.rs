//! Tests of the pool engine, one behaviour at a time, in simulated fleets around a table of leases.

#![expect(clippy::panic, reason = "helpers of tests fail like tests")]

use std::time::{Duration, UNIX_EPOCH};

use tenure_core::ending::{Ending, Loss};
use tenure_core::fleet::InstanceRecord;
use tenure_core::mutation::Mutation;
use tenure_core::placement::{FULL_WEIGHT, Presence};
use tenure_core::pool::{Engine, EngineSettings, PoolAction, PoolInput, TargetName};
use tenure_core::store::LiveInstance;
use tenure_core::time::Moment;
use tenure_sim::campaign;
use tenure_sim::fleet::storm::{self, FleetSize};
use tenure_sim::fleet::world::{FleetMutation, FleetWorld, id, secs, settings};

/// Asserts that every target is renewed and balanced in time.
#[track_caller]
fn assert_settles(world: &mut FleetWorld, within: Duration) {
    assert!(
        world.run_until_settled(within).is_some(),
        "not settled within {within:?}: {} unheld, {:?}",
        world.unheld(),
        world.counts()
    );
}

/// Asserts that no target moves and little is read while nothing happens.
fn assert_idle(world: &mut FleetWorld) {
    let (moves, reads, holders) = (world.moves, world.reads, world.holders());
    world.run_for(secs(60));
    assert_eq!((world.moves, world.holders()), (moves, holders), "no target moves when nothing happens");
    let instances = world.counts().len();
    assert!(world.reads - reads <= instances * 60, "{} reads in a minute by {instances}", world.reads - reads);
}

#[test]
fn one_instance_takes_everything_at_once() {
    let mut world = FleetWorld::new(1, 20);
    world.join(1);
    world.run_for(secs(1));
    assert_eq!((world.unheld(), world.counts()[&id(1)]), (0, 20));
    assert_idle(&mut world);
}

#[test]
fn a_fleet_that_starts_together_is_balanced_within_the_grace() {
    for seed in 0..20 {
        for (instances, targets) in [(2, 10), (3, 9), (5, 10), (10, 100), (7, 3)] {
            let mut world = FleetWorld::new(seed, targets);
            (0..instances).for_each(|n| world.join(n));
            world.run_for(secs(2));
            assert_eq!(world.unheld(), 0);
            assert_settles(&mut world, secs(60));
            assert_idle(&mut world);
        }
    }
}

#[test]
fn a_joining_instance_gets_its_quota_and_nothing_else_moves() {
    for seed in 0..20 {
        let mut world = FleetWorld::new(seed, 10);
        world.join(1);
        world.run_for(secs(5));
        world.join(2);
        assert_settles(&mut world, secs(60));
        assert_eq!(world.moves, 5);
        world.join(3);
        assert_settles(&mut world, secs(60));
        let mut counts: Vec<usize> = world.counts().into_values().collect();
        counts.sort_unstable();
        assert_eq!((counts, world.moves), (vec![3, 3, 4], 8), "seed {seed}");
        assert_idle(&mut world);
    }
}

#[test]
fn targets_of_a_dead_instance_go_to_instances_with_room_when_its_leases_expire() {
    for seed in 0..20 {
        let mut world = FleetWorld::new(seed, 30);
        (0..3).for_each(|n| world.join(n));
        assert_settles(&mut world, secs(60));
        let before = world.moves;
        world.run_for(secs(7));
        world.kill(1);
        // Leases expire within thirty seconds; the last claim is delayed by up to a second.
        assert_settles(&mut world, secs(31));
        assert_eq!(world.moves - before, 10, "seed {seed}");
        assert_idle(&mut world);
    }
}

#[test]
fn two_instances_that_join_at_once_each_get_only_their_own_quota() {
    for seed in 0..20 {
        let mut world = FleetWorld::new(seed, 9);
        world.join(1);
        world.run_for(secs(5));
        world.join(2);
        world.run_for(Duration::from_millis(500));
        world.join(3);
        assert_settles(&mut world, secs(60));
        assert_eq!(world.moves, 6, "seed {seed}");
        assert_idle(&mut world);
    }
}

#[test]
fn a_draining_instance_hands_every_target_to_the_right_instance() {
    for seed in 0..20 {
        let mut world = FleetWorld::new(seed, 30);
        (0..3).for_each(|n| world.join(n));
        assert_settles(&mut world, secs(60));
        let before = world.moves;
        world.drain(1);
        world.run_for(secs(1));
        assert_eq!(world.counts()[&id(1)], 0);
        assert_eq!((world.unheld(), world.moves - before), (0, 10), "seed {seed}");
        world.leave(1);
        assert_idle(&mut world);
        assert!(world.spread() <= 1);
    }
}

#[test]
fn an_unable_instance_hands_over_everything_until_it_is_able_again() {
    for seed in 0..20 {
        let mut world = FleetWorld::new(seed, 30);
        (0..3).for_each(|n| world.join(n));
        assert_settles(&mut world, secs(60));
        let before = world.moves;
        world.set_able(1, false);
        world.run_for(secs(1));
        assert_eq!((world.unheld(), world.counts()[&id(1)], world.moves - before), (0, 0, 10), "seed {seed}");
        // Targets that become unheld meanwhile go to the other instances, too.
        world.kill(2);
        world.run_for(secs(40));
        assert_eq!((world.unheld(), world.counts()[&id(0)], world.counts()[&id(1)]), (0, 30, 0), "seed {seed}");
        world.set_able(1, true);
        assert_settles(&mut world, secs(60));
        assert_eq!(world.counts()[&id(1)], 15, "seed {seed}");
    }
}

#[test]
fn when_every_instance_is_unable_each_keeps_its_targets() {
    for seed in 0..20 {
        let mut world = FleetWorld::new(seed, 30);
        (0..3).for_each(|n| world.join(n));
        assert_settles(&mut world, secs(60));
        (0..3).for_each(|n| world.set_able(n, false));
        world.run_for(secs(5));
        // One instance may have handed targets over before it learned that the others are unable.
        assert_eq!((world.unheld(), world.unrenewed()), (0, 0), "seed {seed}");
        assert_idle(&mut world);
        world.join(3);
        world.run_for(secs(2));
        assert_eq!(
            (world.unheld(), world.counts()[&id(3)]),
            (0, 30),
            "seed {seed}: the only able instance holds every target"
        );
        (0..3).for_each(|n| world.set_able(n, true));
        assert_settles(&mut world, secs(120));
    }
}

#[test]
fn when_every_instance_drains_every_target_is_released() {
    let mut world = FleetWorld::new(1, 10);
    (0..3).for_each(|n| world.join(n));
    assert_settles(&mut world, secs(60));
    (0..3).for_each(|n| world.drain(n));
    world.run_for(secs(10));
    assert!(world.counts().values().all(|count| *count == 0), "{:?}", world.counts());
}

#[test]
fn added_targets_are_acquired_and_removed_targets_are_released() {
    let mut world = FleetWorld::new(3, 10);
    (0..3).for_each(|n| world.join(n));
    assert_settles(&mut world, secs(60));
    world.set_targets(5..25);
    world.run_for(secs(2));
    assert_eq!((world.unheld(), world.holders().len()), (0, 20));
    assert_settles(&mut world, secs(60));
    assert_idle(&mut world);
    world.set_targets(0..0);
    world.run_for(secs(2));
    assert!(world.holders().is_empty());
}

#[test]
fn a_target_that_is_removed_and_added_back_at_once_is_held_again() {
    for seed in 0..20 {
        let mut world = FleetWorld::new(seed, 6);
        (0..2).for_each(|n| world.join(n));
        assert_settles(&mut world, secs(60));
        // Remove and add it while it is released, and while it is handed over.
        world.drain(0);
        for _ in 0..3 {
            world.set_targets(0..3);
            world.run_for(Duration::from_micros(500));
            world.set_targets(0..6);
            world.run_for(Duration::from_millis(1));
        }
        world.run_for(secs(15));
        assert_eq!((world.unheld(), world.holders().len()), (0, 6), "seed {seed}");
    }
}

#[test]
fn the_index_of_a_dead_instance_is_emptied() {
    for seed in 0..10 {
        let mut world = FleetWorld::new(seed, 12);
        (0..3).for_each(|n| world.join(n));
        assert_settles(&mut world, secs(60));
        world.kill(1);
        assert_settles(&mut world, secs(60));
        assert_eq!(world.indexed_targets(1), 0, "seed {seed}");
    }
}

#[test]
fn an_instance_that_keeps_crashing_waits_longer_for_its_quota_each_time() {
    let mut world = FleetWorld::new(6, 30);
    (0..3).for_each(|n| world.join(n));
    assert_settles(&mut world, secs(60));
    let mut waits = Vec::new();
    for life in 10..14 {
        world.join_as(life, "looping", FULL_WEIGHT, false);
        let came = world.now;
        while world.counts()[&id(life)] == 0 {
            world.run_for(Duration::from_millis(100));
            assert!(world.now.since(came) < secs(120), "it never got a target");
        }
        waits.push(world.now.since(came));
        world.kill(life);
        // Wait until every instance has its previous targets.
        world.run_for(secs(35));
        assert_settles(&mut world, secs(60));
    }
    assert!(waits.windows(2).all(|pair| pair[1] >= pair[0]), "{waits:?}");
    assert!(waits[3] >= waits[0] + secs(15), "{waits:?}");
}

#[test]
fn an_instance_with_late_heartbeats_is_not_treated_as_crashing() {
    let mut world = FleetWorld::new(7, 12);
    (0..3).for_each(|n| world.join(n));
    assert_settles(&mut world, secs(60));
    for _ in 0..6 {
        // Its heartbeat is late, but it reconnects before its leases expire.
        world.partition(2, secs(18));
        world.run_for(secs(30));
    }
    world.drain(0);
    world.run_for(secs(2));
    assert_eq!((world.counts()[&id(1)], world.counts()[&id(2)]), (6, 6), "it gets its quota at once");
}

#[test]
fn quotas_follow_weights() {
    let mut world = FleetWorld::new(4, 40);
    world.join_with(1, 3 * FULL_WEIGHT, false);
    world.join(2);
    world.run_for(secs(60));
    assert_eq!((world.counts()[&id(1)], world.counts()[&id(2)]), (30, 10));
    assert_idle(&mut world);
}

#[test]
fn a_wedged_instance_leaves_no_target_unheld_and_is_not_offered_targets_for_ever() {
    for seed in 0..10 {
        let mut world = FleetWorld::new(seed, 12);
        (0..3).for_each(|n| world.join(n));
        assert_settles(&mut world, secs(60));
        world.join_with(9, FULL_WEIGHT, true);
        world.run_for(secs(30));
        let before = world.moves;
        world.run_for(secs(120));
        assert_eq!(world.unheld(), 0, "seed {seed}");
        assert!(world.moves - before <= 9, "{} moves in two minutes, seed {seed}", world.moves - before);
    }
}

#[test]
fn a_leaving_instance_checks_that_handed_over_targets_are_taken() {
    for seed in 0..10 {
        let mut world = FleetWorld::new(seed, 12);
        (0..3).for_each(|n| world.join(n));
        assert_settles(&mut world, secs(60));
        world.join_with(9, FULL_WEIGHT, true);
        world.drain(0);
        // The accept window of the wedged instance, and the grace. There is no reconciler.
        world.run_for(secs(3 + 2));
        assert_eq!((world.unheld(), world.counts()[&id(0)]), (0, 0), "seed {seed}: {:?}", world.counts());
    }
}

/// One instance is dead, but its heartbeat is not late yet. Another leaves and hands over some of its targets to it.
fn hand_over_to_the_dead_and_leave(seed: u64, is_deaf: bool) -> FleetWorld {
    let mut world = FleetWorld::new(seed, 24);
    (0..4).for_each(|n| world.join(n));
    assert_settles(&mut world, secs(60));
    world.run_for(secs(10));
    world.drops_announcements = is_deaf;
    world.kill(3);
    world.drain(0);
    world.run_for(secs(1));
    world.leave(0);
    let dead = world.holders().into_values().filter(|holder| *holder == id(3)).count();
    assert!(dead > 6, "seed {seed}: no target was handed over to it");
    world
}

#[test]
fn targets_handed_over_to_a_dead_instance_are_taken_when_the_window_ends() {
    for seed in 0..20 {
        let mut world = hand_over_to_the_dead_and_leave(seed, false);
        // The window began less than a second ago; the last claim is delayed by up to a second.
        world.run_for(settings().accept_window + settings().max_claim_delay);
        assert_eq!(world.unheld(), 0, "seed {seed}");
    }
}

#[test]
fn without_announcements_targets_handed_over_to_a_dead_instance_are_found_with_its_own() {
    for seed in 0..20 {
        let mut world = hand_over_to_the_dead_and_leave(seed, true);
        // The missing heartbeat is noticed within 1.7 intervals.
        world.run_for(secs(17) + settings().max_claim_delay);
        assert_eq!(world.unheld(), 0, "seed {seed}");
    }
}

#[test]
fn a_joining_instance_finds_targets_handed_over_to_a_dead_instance() {
    for seed in 0..20 {
        let mut world = hand_over_to_the_dead_and_leave(seed, true);
        world.join(4);
        // The joining instance has read the holders, and nothing more.
        [1, 2].into_iter().for_each(|n| world.kill(n));
        world.run_for(secs(17) + settings().max_claim_delay);
        assert_eq!(world.unheld(), 0, "seed {seed}");
    }
}

#[test]
fn without_announcements_the_reconciler_finds_every_unheld_target() {
    for seed in 0..10 {
        let mut world = FleetWorld::new(seed, 12);
        (0..3).for_each(|n| world.join(n));
        world.set_reconciler(0);
        assert_settles(&mut world, secs(60));
        world.drops_announcements = true;
        world.drain(2);
        world.run_for(secs(3));
        world.leave(2);
        world.run_for(secs(40));
        assert_eq!((world.unheld(), world.counts().values().sum::<usize>()), (0, 12), "{:?}", world.counts());
    }
}

#[test]
fn a_foreign_instance_keeps_what_it_holds_however_much_that_is() {
    for (held, rest) in [(3, 6), (10, 5), (40, 20)] {
        let mut world = FleetWorld::new(1, held + rest);
        world.add_foreign("old-1", 0..held);
        (0..3).for_each(|n| {
            world.join(n);
            world.run_for(secs(40));
        });
        assert_settles(&mut world, secs(60));
        assert_eq!(world.counts().values().sum::<usize>(), rest, "{:?}", world.counts());
        let moves = world.moves;
        world.run_for(secs(60));
        assert_eq!(world.moves, moves);
    }
}

#[test]
fn nothing_is_handed_to_a_foreign_instance_even_when_it_is_alone() {
    let mut world = FleetWorld::new(1, 10);
    world.join(1);
    world.add_foreign("old-1", 0..0);
    assert_settles(&mut world, secs(60));
    world.drain(1);
    world.run_for(secs(1));
    assert_eq!((world.unheld(), world.holders().len()), (10, 0), "released for any instance that joins");
}

#[test]
fn claims_do_not_wait_for_foreign_instances() {
    let mut world = FleetWorld::new(1, 300);
    (0..50).for_each(|n| world.add_foreign(&format!("old-{n}"), 0..0));
    (0..3).for_each(|n| world.join(n));
    world.run_for(Duration::from_millis(100));
    assert_eq!(world.unheld(), 0);
}

#[test]
fn each_instance_inspects_the_targets_of_a_dead_instance_once() {
    let mut world = FleetWorld::new(1, 300);
    (0..3).for_each(|n| world.join(n));
    assert_settles(&mut world, secs(60));
    // The givers have checked what they handed over.
    world.run_for(secs(10));
    world.kill(0);
    let reads = world.reads;
    // Until the first lease may have expired.
    world.run_for(secs(20));
    // A hundred targets, two instances that inspect them, and their heartbeats.
    assert!(world.reads - reads < 250, "{}", world.reads - reads);
}

/// The lease of an earlier process of this instance expires by itself, even if a moment later than reported.
#[test]
fn a_target_held_by_an_earlier_life_is_claimed_once_it_is_unheld() {
    let (me, target) = (id(1), TargetName::from("endpoint-1"));
    let mut engine = Engine::new(me.clone(), "poll", FULL_WEIGHT, settings());
    let record = InstanceRecord::new("api-1", UNIX_EPOCH).encode();
    let ours = |ends| PoolInput::Report { target: target.clone(), held: Some((me.clone(), Some(ends))) };
    let mut now = Moment::ZERO + secs(1_000);
    engine.step(now, PoolInput::Targets([target.clone()].into()));
    engine.step(now, PoolInput::Instances(vec![LiveInstance { instance: me.clone(), record, remaining: secs(30) }]));
    engine.step(now, PoolInput::Holders(vec![(target.clone(), Some(me.clone()))]));
    engine.step(now, PoolInput::Refused { target: target.clone(), holder: me.clone(), remaining: Some(secs(10)) });
    now = now + secs(10) + Duration::from_millis(5);
    assert!(engine.step(now, PoolInput::Tick).contains(&PoolAction::QueryHolders(vec![target.clone()])));
    let looks = engine.step(now, PoolInput::Holders(vec![(target.clone(), Some(me.clone()))]));
    assert_eq!(looks, [PoolAction::Inspect(target.clone())]);
    engine.step(now, ours(now + Duration::from_millis(1)));
    now = now + Duration::from_millis(6);
    assert!(engine.step(now, PoolInput::Tick).contains(&PoolAction::QueryHolders(vec![target.clone()])));
    let asks = engine.step(now, PoolInput::Holders(vec![(target.clone(), None)]));
    assert_eq!(asks, [PoolAction::Claim(target)]);
}

/// Number of targets that have another holder after an outage.
fn moves_after_an_outage(seed: u64, mutation: Option<Mutation>) -> usize {
    let mut world = FleetWorld::new(seed, 30);
    world.mutation = mutation.map(FleetMutation::Core);
    (0..5).for_each(|n| world.join(n));
    assert_settles(&mut world, secs(60));
    // Everything in flight has arrived.
    world.run_for(Duration::from_millis(10));
    let holders = world.holders();
    world.outage(secs(45));
    world.run_for(secs(60));
    let moved = world.holders().into_iter().filter(|(target, holder)| holders.get(target) != Some(holder)).count();
    if mutation.is_none() {
        assert_idle(&mut world);
    }
    moved
}

#[test]
fn an_outage_moves_nothing() {
    for seed in 0..20 {
        assert_eq!(moves_after_an_outage(seed, None), 0, "seed {seed}");
    }
}

/// Bugs that the simulator has found: see the track record in docs/simulator.md.
#[test]
fn bugs_that_moved_targets_after_an_outage_are_found_again() {
    for mutation in [Mutation::OutageFromLoss, Mutation::RebalanceByOldRead] {
        let moved = (0..100).find(|seed| moves_after_an_outage(*seed, Some(mutation)) > 0);
        assert!(moved.is_some(), "{mutation:?} was not caught in 100 fleets");
    }
}

/// A heartbeat of an instance with an explicit name.
fn named(n: usize, name: &str, started: u64, remaining: u64) -> LiveInstance {
    let mut record = InstanceRecord { is_named: true, ..InstanceRecord::new(name, UNIX_EPOCH + secs(started)) };
    record.held.insert("poll".to_owned(), 5);
    LiveInstance { instance: id(n), record: record.encode(), remaining: secs(remaining) }
}

#[test]
fn a_restarted_instance_has_no_quota_under_its_old_id() {
    let mut engine = Engine::new(id(1), "poll", FULL_WEIGHT, settings());
    let (now, own) = (Moment::ZERO + secs(1_000), || named(1, "replica-1", 1, 30));
    let presence = |engine: &Engine, n: usize| {
        engine.loads(now).into_iter().find(|peer| peer.instance == id(n)).map(|peer| peer.presence)
    };
    engine.step(now, PoolInput::Instances(vec![own(), named(2, "replica-2", 1, 25)]));
    assert_eq!(presence(&engine, 2), Some(Presence::Ready));
    let restarted = || named(12, "replica-2", 2, 30);
    engine.step(now, PoolInput::Instances(vec![own(), named(2, "replica-2", 1, 25), restarted()]));
    assert_eq!(presence(&engine, 2), Some(Presence::Excluded), "it is dead or shares the name");
    assert_eq!(presence(&engine, 12), Some(Presence::Capped));
    engine.step(now, PoolInput::Instances(vec![own(), named(2, "replica-2", 1, 30), restarted()]));
    assert_eq!(presence(&engine, 2), Some(Presence::Ready), "it has sent a heartbeat since");
    assert_eq!(presence(&engine, 12), Some(Presence::Ready));
}

#[test]
fn after_an_outage_nothing_is_kept_for_an_instance_that_was_restarted() {
    let (mut engine, target) = (Engine::new(id(1), "poll", FULL_WEIGHT, settings()), TargetName::from("endpoint-1"));
    let (now, own) = (Moment::ZERO + secs(1_000), || named(1, "replica-1", 1, 30));
    let counts = |engine: &Engine| engine.loads(now).iter().any(|peer| peer.instance == id(2));
    engine.step(now, PoolInput::Targets([target.clone()].into()));
    engine.step(now, PoolInput::Instances(vec![own(), named(2, "replica-2", 1, 30)]));
    engine.step(now, PoolInput::ClaimNow(target.clone()));
    engine.step(now, PoolInput::Granted(target.clone()));
    engine.step(now, PoolInput::TermEnded { target, ending: Ending::Lost(Loss::Unreachable) });
    engine.step(now, PoolInput::Instances(vec![own()]));
    assert!(counts(&engine), "it may be back in a moment");
    engine.step(now, PoolInput::Instances(vec![own(), named(12, "replica-2", 2, 30)]));
    assert!(!counts(&engine), "it is back under another id");
}

#[test]
fn without_hand_back_a_crash_before_the_join_moves_nothing() {
    let targets = [TargetName::from("endpoint-1"), TargetName::from("endpoint-2")];
    let given = |hand_back| {
        let mut engine = Engine::new(id(1), "poll", FULL_WEIGHT, EngineSettings { hand_back, ..settings() });
        let mut restarted = InstanceRecord { is_named: true, ..InstanceRecord::new("replica-2", UNIX_EPOCH + secs(2)) };
        restarted.held.insert("poll".to_owned(), 0);
        let restarted = LiveInstance { instance: id(12), record: restarted.encode(), remaining: secs(30) };
        // The heartbeat of the crashed instance is late, but still listed.
        let members = || {
            PoolInput::Instances(vec![named(1, "replica-1", 1, 30), named(2, "replica-2", 1, 10), restarted.clone()])
        };
        let mut now = Moment::ZERO + secs(1_000);
        engine.step(now, PoolInput::Targets(targets.iter().cloned().collect()));
        engine.step(now, members());
        for target in &targets {
            engine.step(now, PoolInput::ClaimNow(target.clone()));
            engine.step(now, PoolInput::Granted(target.clone()));
        }
        now = now + settings().settle;
        engine.step(now, PoolInput::Tick);
        engine.step(now, members()).iter().filter(|action| matches!(action, PoolAction::HandOver { .. })).count()
    };
    assert_eq!((given(true), given(false)), (1, 0));
}

/// Number of fleets tried before a mutation counts as missed.
const FLEETS: u64 = 100;

#[test]
fn without_a_mutation_every_fleet_survives_its_storm() {
    let summary = campaign::run_each(0, FLEETS, 2, |seed| storm::run(seed, FleetSize::Small, None));
    assert!(summary.failure.is_none(), "{:?}", summary.failure);
}

#[track_caller]
fn must_be_caught(mutation: FleetMutation, by: &[&str]) {
    let summary = campaign::run_each(0, FLEETS, 1, |seed| storm::run(seed, FleetSize::Small, Some(mutation)));
    let Some((seed, violation)) = summary.failure else { panic!("the mutation was not caught in {FLEETS} fleets") };
    let what = violation.invariant;
    assert!(by.contains(&what), "seed {seed}: caught by {what:?} instead: {}", violation.message);
}

#[test]
fn skipping_the_index_lookup_is_caught() {
    let by =
        ["targets of a dead instance are acquired when its leases expire", "after a crash only the lost targets move"];
    must_be_caught(FleetMutation::SkipIndexLookup, &by);
}

#[test]
fn skipping_hand_overs_is_caught() {
    must_be_caught(
        FleetMutation::SkipHandOver,
        &[
            "in the calm every target is held and balanced",
            "an instance that joins gets its quota",
            "an instance that leaves hands over all targets",
        ],
    );
}

#[test]
fn ignoring_marks_is_caught() {
    must_be_caught(FleetMutation::IgnoreMarks, &["no tick runs twice"]);
}

#[test]
fn working_without_a_claim_is_caught() {
    must_be_caught(FleetMutation::SkipClaims, &["no tick runs twice"]);
}

#[test]
fn keeping_a_tick_claimed_ahead_is_caught() {
    must_be_caught(FleetMutation::KeepClaims, &["a hand-over skips no tick"]);
}

#[test]
fn skipping_the_holder_check_is_caught() {
    must_be_caught(FleetMutation::SkipHolderCheck, &["in the calm every target is held and balanced"]);
}

/// The record of the namespace is gone and the leases are not: the store still names us as the holder of what we lost.
#[test]
fn after_a_quarantine_the_former_holder_claims_its_target_first() {
    let (mut engine, target) = (Engine::new(id(1), "poll", FULL_WEIGHT, settings()), TargetName::from("endpoint-1"));
    let (now, quarantine) = (Moment::ZERO + secs(1_000), secs(6));
    engine.step(now, PoolInput::Targets([target.clone()].into()));
    engine.step(now, PoolInput::Instances(vec![named(1, "replica-1", 1, 30), named(2, "replica-2", 1, 30)]));
    engine.step(now, PoolInput::ClaimNow(target.clone()));
    engine.step(now, PoolInput::Granted(target.clone()));
    engine.step(now, PoolInput::TermEnded { target: target.clone(), ending: Ending::Lost(Loss::StoreReset) });
    let held = Some((id(1), Some(now + secs(5))));
    let actions = engine.step(now, PoolInput::Report { target: target.clone(), held });
    let is_claim = |action: &PoolAction| matches!(action, PoolAction::Claim(claimed) if *claimed == target);
    assert!(actions.iter().any(is_claim), "the lease may be ours again: {actions:?}");
    engine.step(now, PoolInput::Failed { target: target.clone(), retry_after: quarantine });
    // What it knows is 6 s old, so it asks first.
    engine.step(now + quarantine, PoolInput::Tick);
    let mut actions = engine.step(now + quarantine, PoolInput::Holders(vec![(target.clone(), None)]));
    actions.extend(engine.step(now + quarantine, PoolInput::Tick));
    assert!(actions.iter().any(is_claim), "no other instance has held it since: {actions:?}");
}
