//! The engine of a pool, one behaviour at a time, in fleets that are simulated down to the table of leases.

#![expect(clippy::panic, reason = "helpers of tests fail like tests")]

use std::time::{Duration, UNIX_EPOCH};

use tenure::fleet::InstanceRecord;
use tenure::lease::{Ending, Loss};
use tenure::placement::{FULL_WEIGHT, Presence};
use tenure::pool::{Action, Engine, EngineSettings, Input, Target};
use tenure::store::Member;
use tenure::time::Moment;
use tenure_sim::campaign;
use tenure_sim::fleet::storm::{self, Size};
use tenure_sim::fleet::world::{Lapse, World, id, secs, settings};

/// Everything is kept and balanced, in time.
#[track_caller]
fn settles(world: &mut World, within: Duration) {
    assert!(world.settles(within).is_some(), "not within {within:?}: {} dark, {:?}", world.dark(), world.counts());
}

/// Nothing moves and little is read when nothing happens.
fn is_calm(world: &mut World) {
    let (moves, reads, holders) = (world.moves, world.reads, world.holders());
    world.go_on(secs(60));
    assert_eq!((world.moves, world.holders()), (moves, holders), "nothing moves when nothing happens");
    let instances = world.counts().len();
    assert!(world.reads - reads <= instances * 60, "{} reads in a minute by {instances}", world.reads - reads);
}

#[test]
fn one_instance_takes_everything_at_once() {
    let mut world = World::new(1, 20);
    world.join(1);
    world.go_on(secs(1));
    assert_eq!((world.dark(), world.counts()[&id(1)]), (0, 20));
    is_calm(&mut world);
}

#[test]
fn a_fleet_that_starts_together_is_balanced_within_the_grace() {
    for seed in 0..20 {
        for (instances, targets) in [(2, 10), (3, 9), (5, 10), (10, 100), (7, 3)] {
            let mut world = World::new(seed, targets);
            (0..instances).for_each(|n| world.join(n));
            world.go_on(secs(2));
            assert_eq!(world.dark(), 0);
            settles(&mut world, secs(60));
            is_calm(&mut world);
        }
    }
}

#[test]
fn whoever_joins_gets_its_share_and_nothing_else_moves() {
    for seed in 0..20 {
        let mut world = World::new(seed, 10);
        world.join(1);
        world.go_on(secs(5));
        world.join(2);
        settles(&mut world, secs(60));
        assert_eq!(world.moves, 5);
        world.join(3);
        settles(&mut world, secs(60));
        let mut counts: Vec<usize> = world.counts().into_values().collect();
        counts.sort_unstable();
        assert_eq!((counts, world.moves), (vec![3, 3, 4], 8), "seed {seed}");
        is_calm(&mut world);
    }
}

#[test]
fn what_the_dead_held_is_taken_when_its_leases_end_and_by_those_who_have_room() {
    for seed in 0..20 {
        let mut world = World::new(seed, 30);
        (0..3).for_each(|n| world.join(n));
        settles(&mut world, secs(60));
        let before = world.moves;
        world.go_on(secs(7));
        world.kill(1);
        // Leases end within thirty seconds; whoever takes them up last waits a second.
        settles(&mut world, secs(31));
        assert_eq!(world.moves - before, 10, "seed {seed}");
        is_calm(&mut world);
    }
}

#[test]
fn of_two_who_join_at_once_none_is_given_what_is_for_the_other() {
    for seed in 0..20 {
        let mut world = World::new(seed, 9);
        world.join(1);
        world.go_on(secs(5));
        world.join(2);
        world.go_on(Duration::from_millis(500));
        world.join(3);
        settles(&mut world, secs(60));
        assert_eq!(world.moves, 6, "seed {seed}");
        is_calm(&mut world);
    }
}

#[test]
fn whoever_drains_gives_everything_away_and_it_goes_where_it_should() {
    for seed in 0..20 {
        let mut world = World::new(seed, 30);
        (0..3).for_each(|n| world.join(n));
        settles(&mut world, secs(60));
        let before = world.moves;
        world.drain(1);
        world.go_on(secs(1));
        assert_eq!(world.counts()[&id(1)], 0);
        assert_eq!((world.dark(), world.moves - before), (0, 10), "seed {seed}");
        world.leave(1);
        is_calm(&mut world);
        assert!(world.spread() <= 1);
    }
}

#[test]
fn an_instance_that_cannot_work_gives_everything_to_those_that_can_until_it_can() {
    for seed in 0..20 {
        let mut world = World::new(seed, 30);
        (0..3).for_each(|n| world.join(n));
        settles(&mut world, secs(60));
        let before = world.moves;
        world.set_able(1, false);
        world.go_on(secs(1));
        assert_eq!((world.dark(), world.counts()[&id(1)], world.moves - before), (0, 0, 10), "seed {seed}");
        // What falls free meanwhile goes to the others, too.
        world.kill(2);
        world.go_on(secs(40));
        assert_eq!((world.dark(), world.counts()[&id(0)], world.counts()[&id(1)]), (0, 30, 0), "seed {seed}");
        world.set_able(1, true);
        settles(&mut world, secs(60));
        assert_eq!(world.counts()[&id(1)], 15, "seed {seed}");
    }
}

#[test]
fn when_no_instance_can_work_each_keeps_what_it_holds() {
    for seed in 0..20 {
        let mut world = World::new(seed, 30);
        (0..3).for_each(|n| world.join(n));
        settles(&mut world, secs(60));
        (0..3).for_each(|n| world.set_able(n, false));
        world.go_on(secs(5));
        // One may have given some away before it heard of the others.
        assert_eq!((world.dark(), world.unkept()), (0, 0), "seed {seed}");
        is_calm(&mut world);
        world.join(3);
        world.go_on(secs(2));
        assert_eq!((world.dark(), world.counts()[&id(3)]), (0, 30), "seed {seed}: to the one that can");
        (0..3).for_each(|n| world.set_able(n, true));
        settles(&mut world, secs(120));
    }
}

#[test]
fn when_everybody_drains_everything_is_let_go_of() {
    let mut world = World::new(1, 10);
    (0..3).for_each(|n| world.join(n));
    settles(&mut world, secs(60));
    (0..3).for_each(|n| world.drain(n));
    world.go_on(secs(10));
    assert!(world.counts().values().all(|count| *count == 0), "{:?}", world.counts());
}

#[test]
fn targets_come_and_go() {
    let mut world = World::new(3, 10);
    (0..3).for_each(|n| world.join(n));
    settles(&mut world, secs(60));
    world.retarget(5..25);
    world.go_on(secs(2));
    assert_eq!((world.dark(), world.holders().len()), (0, 20));
    settles(&mut world, secs(60));
    is_calm(&mut world);
    world.retarget(0..0);
    world.go_on(secs(2));
    assert!(world.holders().is_empty());
}

#[test]
fn a_target_that_is_taken_away_and_given_back_at_once_is_held_again() {
    for seed in 0..20 {
        let mut world = World::new(seed, 6);
        (0..2).for_each(|n| world.join(n));
        settles(&mut world, secs(60));
        // While it is let go of, and while it is handed over.
        world.drain(0);
        for _ in 0..3 {
            world.retarget(0..3);
            world.go_on(Duration::from_micros(500));
            world.retarget(0..6);
            world.go_on(Duration::from_millis(1));
        }
        world.go_on(secs(15));
        assert_eq!((world.dark(), world.holders().len()), (0, 6), "seed {seed}");
    }
}

#[test]
fn what_the_dead_held_is_not_remembered_for_ever() {
    for seed in 0..10 {
        let mut world = World::new(seed, 12);
        (0..3).for_each(|n| world.join(n));
        settles(&mut world, secs(60));
        world.kill(1);
        settles(&mut world, secs(60));
        assert_eq!(world.remembered(1), 0, "seed {seed}");
    }
}

#[test]
fn whoever_crashes_again_and_again_is_given_its_share_later_every_time() {
    let mut world = World::new(6, 30);
    (0..3).for_each(|n| world.join(n));
    settles(&mut world, secs(60));
    let mut waits = Vec::new();
    for life in 10..14 {
        world.join_as(life, "looping", FULL_WEIGHT, false);
        let came = world.now;
        while world.counts()[&id(life)] == 0 {
            world.go_on(Duration::from_millis(100));
            assert!(world.now.since(came) < secs(120), "it is given something after all");
        }
        waits.push(world.now.since(came));
        world.kill(life);
        // Until everybody has what it had.
        world.go_on(secs(35));
        settles(&mut world, secs(60));
    }
    assert!(waits.windows(2).all(|pair| pair[1] >= pair[0]), "{waits:?}");
    assert!(waits[3] >= waits[0] + secs(15), "{waits:?}");
}

#[test]
fn whoever_is_late_again_and_again_is_not_taken_for_one_that_crashes() {
    let mut world = World::new(7, 12);
    (0..3).for_each(|n| world.join(n));
    settles(&mut world, secs(60));
    for _ in 0..6 {
        // Late, and back before its leases have run out.
        world.cut(2, secs(18));
        world.go_on(secs(30));
    }
    world.drain(0);
    world.go_on(secs(2));
    assert_eq!((world.counts()[&id(1)], world.counts()[&id(2)]), (6, 6), "it is given its share at once");
}

#[test]
fn weights_count() {
    let mut world = World::new(4, 40);
    world.join_with(1, 3 * FULL_WEIGHT, false);
    world.join(2);
    world.go_on(secs(60));
    assert_eq!((world.counts()[&id(1)], world.counts()[&id(2)]), (30, 10));
    is_calm(&mut world);
}

#[test]
fn one_that_lives_and_claims_nothing_leaves_no_target_dark_and_is_not_offered_things_for_ever() {
    for seed in 0..10 {
        let mut world = World::new(seed, 12);
        (0..3).for_each(|n| world.join(n));
        settles(&mut world, secs(60));
        world.join_with(9, FULL_WEIGHT, true);
        world.go_on(secs(30));
        let before = world.moves;
        world.go_on(secs(120));
        assert_eq!(world.dark(), 0, "seed {seed}");
        assert!(world.moves - before <= 9, "{} moves in two minutes, seed {seed}", world.moves - before);
    }
}

#[test]
fn whoever_leaves_sees_to_it_that_what_it_gave_away_is_taken() {
    for seed in 0..10 {
        let mut world = World::new(seed, 12);
        (0..3).for_each(|n| world.join(n));
        settles(&mut world, secs(60));
        world.join_with(9, FULL_WEIGHT, true);
        world.drain(0);
        // The window for the one that takes nothing, and the grace. Nobody scouts.
        world.go_on(secs(3 + 2));
        assert_eq!((world.dark(), world.counts()[&id(0)]), (0, 0), "seed {seed}: {:?}", world.counts());
    }
}

/// One instance is dead and not late yet, another leaves and hands over a part of what it held to it.
fn hand_over_to_the_dead_and_leave(seed: u64, is_deaf: bool) -> World {
    let mut world = World::new(seed, 24);
    (0..4).for_each(|n| world.join(n));
    settles(&mut world, secs(60));
    world.go_on(secs(10));
    world.deaf = is_deaf;
    world.kill(3);
    world.drain(0);
    world.go_on(secs(1));
    world.leave(0);
    let dead = world.holders().into_values().filter(|holder| *holder == id(3)).count();
    assert!(dead > 6, "seed {seed}: something was handed over to it");
    world
}

#[test]
fn what_was_handed_over_to_the_dead_is_taken_up_when_the_window_ends_although_the_giver_has_left() {
    for seed in 0..20 {
        let mut world = hand_over_to_the_dead_and_leave(seed, false);
        // The window began less than a second ago; the last who takes something up waits for a second.
        world.go_on(settings().accept_window + settings().longest_grace);
        assert_eq!(world.dark(), 0, "seed {seed}");
    }
}

#[test]
fn without_announcements_what_was_handed_over_to_the_dead_is_found_with_what_it_held() {
    for seed in 0..20 {
        let mut world = hand_over_to_the_dead_and_leave(seed, true);
        // Its heartbeat is missed within 1.7 intervals.
        world.go_on(secs(17) + settings().longest_grace);
        assert_eq!(world.dark(), 0, "seed {seed}");
    }
}

#[test]
fn an_instance_that_comes_finds_what_was_handed_over_to_the_dead() {
    for seed in 0..20 {
        let mut world = hand_over_to_the_dead_and_leave(seed, true);
        world.join(4);
        // It has seen who holds what, and nothing more.
        [1, 2].into_iter().for_each(|n| world.kill(n));
        world.go_on(secs(17) + settings().longest_grace);
        assert_eq!(world.dark(), 0, "seed {seed}");
    }
}

#[test]
fn without_announcements_everything_is_found_by_the_scout() {
    for seed in 0..10 {
        let mut world = World::new(seed, 12);
        (0..3).for_each(|n| world.join(n));
        world.scout(0);
        settles(&mut world, secs(60));
        world.deaf = true;
        world.drain(2);
        world.go_on(secs(3));
        world.leave(2);
        world.go_on(secs(40));
        assert_eq!((world.dark(), world.counts().values().sum::<usize>()), (0, 12), "{:?}", world.counts());
    }
}

#[test]
fn what_a_stranger_holds_is_its_share_however_much_that_is() {
    for (held, rest) in [(3, 6), (10, 5), (40, 20)] {
        let mut world = World::new(1, held + rest);
        world.stranger("old-1", 0..held);
        (0..3).for_each(|n| {
            world.join(n);
            world.go_on(secs(40));
        });
        settles(&mut world, secs(60));
        assert_eq!(world.counts().values().sum::<usize>(), rest, "{:?}", world.counts());
        let moves = world.moves;
        world.go_on(secs(60));
        assert_eq!(world.moves, moves);
    }
}

#[test]
fn nothing_is_given_to_a_stranger_although_there_is_nobody_else() {
    let mut world = World::new(1, 10);
    world.join(1);
    world.stranger("old-1", 0..0);
    settles(&mut world, secs(60));
    world.drain(1);
    world.go_on(secs(1));
    assert_eq!((world.dark(), world.holders().len()), (10, 0), "let go of, for whoever comes");
}

#[test]
fn nobody_waits_for_strangers() {
    let mut world = World::new(1, 300);
    (0..50).for_each(|n| world.stranger(&format!("old-{n}"), 0..0));
    (0..3).for_each(|n| world.join(n));
    world.go_on(Duration::from_millis(100));
    assert_eq!(world.dark(), 0);
}

#[test]
fn what_the_dead_held_is_inspected_once_by_each() {
    let mut world = World::new(1, 300);
    (0..3).for_each(|n| world.join(n));
    settles(&mut world, secs(60));
    world.kill(0);
    let reads = world.reads;
    // Until the first lease may have run out.
    world.go_on(secs(20));
    // A hundred targets, two who look, and their heartbeats.
    assert!(world.reads - reads < 250, "{}", world.reads - reads);
}

/// What an earlier life of this process holds ends by itself, be it a moment later than was said.
#[test]
fn what_was_refused_by_ourselves_is_asked_for_again_when_it_is_free() {
    let (me, target) = (id(1), Target::from("endpoint-1"));
    let mut engine = Engine::new(me.clone(), "poll", FULL_WEIGHT, settings());
    let record = InstanceRecord::new("api-1").encode();
    let ours = |ends| Input::Report { target: target.clone(), held: Some((me.clone(), Some(ends))) };
    let mut now = Moment::ZERO + secs(1_000);
    engine.step(now, Input::Targets([target.clone()].into()));
    engine.step(now, Input::Members(vec![Member { instance: me.clone(), record, remaining: secs(30) }]));
    engine.step(now, Input::Holders(vec![(target.clone(), Some(me.clone()))]));
    engine.step(now, Input::Refused { target: target.clone(), by: me.clone(), remaining: Some(secs(10)) });
    now = now + secs(10) + Duration::from_millis(5);
    assert!(engine.step(now, Input::Tick).contains(&Action::LookAt(vec![target.clone()])));
    let looks = engine.step(now, Input::Holders(vec![(target.clone(), Some(me.clone()))]));
    assert_eq!(looks, [Action::Inspect(target.clone())]);
    engine.step(now, ours(now + Duration::from_millis(1)));
    now = now + Duration::from_millis(6);
    assert!(engine.step(now, Input::Tick).contains(&Action::LookAt(vec![target.clone()])));
    let asks = engine.step(now, Input::Holders(vec![(target.clone(), None)]));
    assert_eq!(asks, [Action::Claim(target)]);
}

#[test]
fn an_outage_is_not_a_reshuffle() {
    for seed in 0..20 {
        let mut world = World::new(seed, 30);
        (0..5).for_each(|n| world.join(n));
        settles(&mut world, secs(60));
        // Whatever was on its way has arrived.
        world.go_on(Duration::from_millis(10));
        let holders = world.holders();
        world.outage(secs(45));
        world.go_on(secs(60));
        assert_eq!(world.holders(), holders, "seed {seed}");
        is_calm(&mut world);
    }
}

/// A heartbeat of an instance with an explicit name.
fn named(n: usize, name: &str, started: u64, remaining: u64) -> Member {
    let mut record = InstanceRecord { is_named: true, ..InstanceRecord::new(name) };
    record.started_at = UNIX_EPOCH + secs(started);
    record.held.insert("poll".to_owned(), 5);
    Member { instance: id(n), record: record.encode(), remaining: secs(remaining) }
}

#[test]
fn an_instance_that_was_restarted_has_no_share_although_its_heartbeat_is_listed() {
    let mut engine = Engine::new(id(1), "poll", FULL_WEIGHT, settings());
    let (now, own) = (Moment::ZERO + secs(1_000), || named(1, "replica-1", 1, 30));
    let presence = |engine: &Engine, n: usize| {
        engine.peers(now).into_iter().find(|peer| peer.instance == id(n)).map(|peer| peer.presence)
    };
    engine.step(now, Input::Members(vec![own(), named(2, "replica-2", 1, 25)]));
    assert_eq!(presence(&engine, 2), Some(Presence::Ready));
    let restarted = || named(12, "replica-2", 2, 30);
    engine.step(now, Input::Members(vec![own(), named(2, "replica-2", 1, 25), restarted()]));
    assert_eq!(presence(&engine, 2), Some(Presence::Apart), "it is dead, or shares the name");
    assert_eq!(presence(&engine, 12), Some(Presence::Stuck));
    engine.step(now, Input::Members(vec![own(), named(2, "replica-2", 1, 30), restarted()]));
    assert_eq!(presence(&engine, 2), Some(Presence::Ready), "it has sent a heartbeat since");
    assert_eq!(presence(&engine, 12), Some(Presence::Ready));
}

#[test]
fn after_an_outage_nothing_is_kept_for_an_instance_that_was_restarted() {
    let (mut engine, target) = (Engine::new(id(1), "poll", FULL_WEIGHT, settings()), Target::from("endpoint-1"));
    let (now, own) = (Moment::ZERO + secs(1_000), || named(1, "replica-1", 1, 30));
    let counts = |engine: &Engine| engine.peers(now).iter().any(|peer| peer.instance == id(2));
    engine.step(now, Input::Targets([target.clone()].into()));
    engine.step(now, Input::Members(vec![own(), named(2, "replica-2", 1, 30)]));
    engine.step(now, Input::Want(target.clone()));
    engine.step(now, Input::Granted(target.clone()));
    engine.step(now, Input::Over { target, ending: Ending::Lost(Loss::Unreachable) });
    engine.step(now, Input::Members(vec![own()]));
    assert!(counts(&engine), "it may be back in a moment");
    engine.step(now, Input::Members(vec![own(), named(12, "replica-2", 2, 30)]));
    assert!(!counts(&engine), "it is back under another id");
}

#[test]
fn without_hand_back_nothing_goes_to_an_instance_whose_crash_was_over_before_we_came() {
    let targets = [Target::from("endpoint-1"), Target::from("endpoint-2")];
    let given = |hand_back| {
        let mut engine = Engine::new(id(1), "poll", FULL_WEIGHT, EngineSettings { hand_back, ..settings() });
        let mut restarted = InstanceRecord { is_named: true, ..InstanceRecord::new("replica-2") };
        restarted.held.insert("poll".to_owned(), 0);
        let restarted = Member { instance: id(12), record: restarted.encode(), remaining: secs(30) };
        // The heartbeat of the instance that crashed is late, and listed.
        let members =
            || Input::Members(vec![named(1, "replica-1", 1, 30), named(2, "replica-2", 1, 10), restarted.clone()]);
        let mut now = Moment::ZERO + secs(1_000);
        engine.step(now, Input::Targets(targets.iter().cloned().collect()));
        engine.step(now, members());
        for target in &targets {
            engine.step(now, Input::Want(target.clone()));
            engine.step(now, Input::Granted(target.clone()));
        }
        now = now + settings().settle;
        engine.step(now, Input::Tick);
        engine.step(now, members()).iter().filter(|action| matches!(action, Action::HandOver { .. })).count()
    };
    assert_eq!((given(true), given(false)), (1, 0));
}

/// Fleets tried before a lapse counts as missed.
const FLEETS: u64 = 100;

#[test]
fn without_a_lapse_every_fleet_comes_through_its_storm() {
    let summary = campaign::run_each(0, FLEETS, 2, |seed| storm::run(seed, Size::Small, None));
    assert!(summary.failure.is_none(), "{:?}", summary.failure);
}

#[track_caller]
fn must_be_caught(lapse: Lapse, by: &[&str]) {
    let summary = campaign::run_each(0, FLEETS, 1, |seed| storm::run(seed, Size::Small, Some(lapse)));
    let Some((seed, violation)) = summary.failure else { panic!("it was not found in {FLEETS} fleets") };
    let what = violation.invariant;
    assert!(by.contains(&what), "in the fleet of seed {seed} it was found by {what:?} instead: {}", violation.message);
}

#[test]
fn not_looking_up_what_the_dead_held_is_caught() {
    let by = ["what the dead held is taken when its leases end", "after a crash only that moves which was lost"];
    must_be_caught(Lapse::LookingUp, &by);
}

#[test]
fn not_handing_over_is_caught() {
    must_be_caught(
        Lapse::HandingOver,
        &[
            "in the calm everything is held and balanced",
            "whoever joins gets its share",
            "whoever leaves hands everything over",
        ],
    );
}

#[test]
fn not_reading_marks_is_caught() {
    must_be_caught(Lapse::ReadingMarks, &["no tick is worked on twice"]);
}

#[test]
fn not_looking_after_what_was_given_away_is_caught() {
    must_be_caught(Lapse::LookingAfter, &["in the calm everything is held and balanced"]);
}
