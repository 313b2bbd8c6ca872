//! Fleets in which every instance acts on its own view: the number of moves against the minimum.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::InstanceId;
use tenure_core::placement::{InstanceLoad, Presence, Ranking, TargetScore, plan_handoffs, quotas};

/// Instances and the targets that each holds.
struct PlacementFleet {
    held: BTreeMap<InstanceId, Vec<String>>,
    draining: BTreeSet<InstanceId>,
    next: usize,
    moves: usize,
    rng: fastrand::Rng,
}

impl PlacementFleet {
    fn new(instances: usize, targets: usize, seed: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        let mut fleet = Self { held: BTreeMap::new(), draining: BTreeSet::new(), next: 0, moves: 0, rng };
        (0..instances).for_each(|_| fleet.join());
        fleet.assign_unheld((0..targets).map(|n| format!("endpoint-{n}")).collect());
        fleet.moves = 0;
        fleet
    }

    fn join(&mut self) {
        self.next += 1;
        self.held.insert(InstanceId::new(&format!("api-{}", self.next)).unwrap(), Vec::new());
    }

    fn random_instance(&mut self) -> InstanceId {
        let at = self.rng.usize(..self.held.len());
        self.held.keys().nth(at).unwrap().clone()
    }

    /// The loads of all instances except the unseen ones.
    fn view(&self, unseen: &BTreeSet<InstanceId>) -> Vec<InstanceLoad> {
        let presence = |id: &InstanceId| if self.draining.contains(id) { Presence::Draining } else { Presence::Ready };
        let load = |(id, mine): (&InstanceId, &Vec<String>)| InstanceLoad {
            held: mine.len(),
            presence: presence(id),
            ..InstanceLoad::new(id.clone())
        };
        self.held.iter().filter(|(id, _)| !unseen.contains(*id)).map(load).collect()
    }

    /// Assigns each unheld target to the best instance with room.
    fn assign_unheld(&mut self, unheld_targets: Vec<String>) {
        let loads = self.view(&BTreeSet::new());
        let room = quotas(&loads, unheld_targets.len());
        for target in unheld_targets {
            let score = TargetScore::of(&target);
            let free = (0..loads.len()).filter(|n| self.held[&loads[*n].instance].len() < room[*n]);
            let best = free.min_by_key(|n| Ranking::new(&loads[*n].instance, &loads).rank(score)).unwrap();
            self.held.get_mut(&loads[best].instance).unwrap().push(target);
            self.moves += 1;
        }
    }

    /// Every instance hands over its surplus by its own view, all at once; `unseen` returns the instances that each
    /// overlooks. Returns the number of moves.
    fn round(&mut self, unseen: impl Fn(&mut fastrand::Rng, &InstanceId) -> BTreeSet<InstanceId>) -> usize {
        let mut given = Vec::new();
        for (me, mine) in &self.held {
            let mut overlooked = unseen(&mut self.rng, me);
            overlooked.remove(me);
            let loads = self.view(&overlooked);
            let scores: Vec<TargetScore> = mine.iter().map(|target| TargetScore::of(target)).collect();
            for handoff in plan_handoffs(me, &loads, &quotas(&loads, 0), &scores, |_, _| 0) {
                given.push((me.clone(), mine[handoff.target].clone(), loads[handoff.to].instance.clone()));
            }
        }
        for (from, target, to) in &given {
            self.held.get_mut(from).unwrap().retain(|held| held != target);
            self.held.get_mut(to).unwrap().push(target.clone());
        }
        self.moves += given.len();
        given.len()
    }

    fn settle(&mut self) -> usize {
        (1..=10).find(|_| self.round(|_, _| BTreeSet::new()) == 0).expect("the fleet must settle")
    }

    fn spread(&self) -> usize {
        let counts = self.held.iter().filter(|(id, _)| !self.draining.contains(*id)).map(|(_, mine)| mine.len());
        let counts: Vec<usize> = counts.collect();
        counts.iter().max().unwrap() - counts.iter().min().unwrap()
    }

    fn total(&self) -> usize {
        self.held.values().map(Vec::len).sum()
    }
}

#[test]
fn with_a_shared_view_one_round_moves_the_fewest_targets() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let targets = rng.usize(0..300);
        let mut fleet = PlacementFleet::new(rng.usize(1..12), targets, seed);
        for _ in 0..15 {
            let before = fleet.moves;
            // The minimum: the unheld targets, and the surplus once those are assigned.
            let (mut unheld_targets, whom) = (Vec::new(), fleet.random_instance());
            match rng.u8(..4) {
                0 if fleet.held.len() > 1 => unheld_targets = fleet.held.remove(&whom).unwrap(),
                1 if fleet.draining.len() + 1 < fleet.held.len() => drop(fleet.draining.insert(whom)),
                2 => fleet.draining.clear(),
                _ => fleet.join(),
            }
            if fleet.held.keys().all(|id| fleet.draining.contains(id)) {
                fleet.draining.clear();
            }
            let unheld = unheld_targets.len();
            fleet.assign_unheld(unheld_targets);
            let loads = fleet.view(&BTreeSet::new());
            let surplus: usize =
                loads.iter().zip(quotas(&loads, 0)).map(|(p, quota)| p.held.saturating_sub(quota)).sum();
            assert!(fleet.settle() <= 2, "one round of moves, then one without");
            assert_eq!(fleet.moves - before, unheld + surplus, "seed {seed}");
            assert!(fleet.spread() <= 1 && fleet.total() == targets, "seed {seed}");
        }
    }
}

#[test]
fn without_changes_nothing_moves_whichever_instances_are_missed() {
    for seed in 0..100 {
        let mut fleet = PlacementFleet::new(3 + usize::try_from(seed).unwrap() % 20, 200, seed);
        fleet.settle();
        fleet.moves = 0;
        for _ in 0..5 {
            let instances: Vec<InstanceId> = fleet.held.keys().cloned().collect();
            fleet.round(|rng, _| instances.iter().filter(|_| rng.f64() < 0.1).cloned().collect());
        }
        // A missed instance removes its load and its quota from the sums together.
        assert_eq!(fleet.moves, 0, "seed {seed}");
    }
}

#[test]
fn views_that_differ_for_a_while_cost_few_extra_moves() {
    let (mut moves, mut needed) = (0, 0);
    for seed in 0..100 {
        let mut fleet = PlacementFleet::new(10, 1_000, seed);
        fleet.settle();
        fleet.moves = 0;
        fleet.join();
        let loads = fleet.view(&BTreeSet::new());
        needed += loads.iter().zip(quotas(&loads, 0)).map(|(p, quota)| p.held.saturating_sub(quota)).sum::<usize>();
        for _ in 0..3 {
            let instances: Vec<InstanceId> = fleet.held.keys().cloned().collect();
            fleet.round(|rng, _| instances.iter().filter(|_| rng.f64() < 0.1).cloned().collect());
        }
        fleet.settle();
        assert!(fleet.spread() <= 1);
        moves += fleet.moves;
    }
    let ratio = moves as f64 / needed as f64;
    println!("moves ÷ minimum with views that differ for three rounds: {ratio:.3}");
    assert!(ratio < 1.25, "{ratio}");
}
