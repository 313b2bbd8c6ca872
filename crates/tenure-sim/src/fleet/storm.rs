//! One fleet's life: a storm of everything that can happen, then a calm in which all must come right; and then, one at a time, what happens
//! every day, which must cost no more than it has to.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::placement::FULL_WEIGHT;

use super::world::{FleetMutation, FleetWorld, TTL, secs, settings};
use crate::promise::Measurements;
use crate::timeline::SimTime;
use crate::world::{Violation, WorldOutcome};

/// How many there are of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetSize {
    /// A few instances, a few dozen targets.
    Small,
    /// Dozens of instances, hundreds of targets.
    Large,
}

/// How long after the last fault everything is held and balanced at the latest: what is left of a ttl, of the forgiveness after an outage,
/// of the time for which somebody who did not take what it was offered is offered nothing; and several rounds of balancing.
const MAX_RECOVERY: Duration = Duration::from_secs(30 + 30 + 60 + 60);

/// The life of one fleet, in which this is left undone, if anything.
pub fn run(seed: u64, size: FleetSize, mutation: Option<FleetMutation>) -> WorldOutcome {
    let mut fleet = FleetRun {
        rng: fastrand::Rng::with_seed(seed),
        world: FleetWorld::new(seed, 0),
        next_number: 0,
        counts: BTreeMap::new(),
    };
    fleet.world.mutation = mutation;
    let begun = fleet.world.now;
    let violation = fleet.run_phases(size).err().map(|(invariant, message)| Violation {
        invariant,
        message,
        at: SimTime::default() + fleet.world.now.since(begun),
    });
    let simulated = fleet.world.now.since(begun);
    fleet.counts.insert("moves", fleet.world.moves as u64);
    WorldOutcome { violation, measurements: Measurements::default(), counts: fleet.counts, simulated }
}

type CheckResult = Result<(), (&'static str, String)>;

struct FleetRun {
    world: FleetWorld,
    rng: fastrand::Rng,
    /// The number of the next who comes.
    next_number: usize,
    counts: BTreeMap<&'static str, u64>,
}

impl FleetRun {
    fn run_phases(&mut self, size: FleetSize) -> CheckResult {
        let (instances, targets, storm) = match size {
            FleetSize::Small => (self.rng.usize(1..6), self.rng.usize(1..40), secs(180)),
            FleetSize::Large => (self.rng.usize(20..50), self.rng.usize(300..1_000), secs(120)),
        };
        self.world.set_targets(0..targets);
        (0..instances).for_each(|_| self.join_next());
        self.world.set_reconciler(0);
        self.storm(size, targets, storm)?;
        self.calm()?;
        self.crash_in_calm()?;
        self.leave_in_calm()?;
        self.join_in_calm()
    }

    fn join_next(&mut self) {
        self.world.join(self.next_number);
        self.next_number += 1;
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn random_instance(&mut self) -> Option<usize> {
        let members = self.world.alive_instances();
        (!members.is_empty()).then(|| members[self.rng.usize(..members.len())])
    }

    fn storm(&mut self, size: FleetSize, targets: usize, lasts: Duration) -> CheckResult {
        let end = self.world.now + lasts;
        let pause = if size == FleetSize::Small { 8_000 } else { 4_000 };
        while self.world.now < end {
            self.world.run_for(Duration::from_millis(self.rng.u64(1..pause)));
            self.check_violation()?;
            let members = self.world.alive_instances().len();
            let Some(one) = self.random_instance() else {
                self.join_next();
                continue;
            };
            match self.rng.u8(..14) {
                0 | 1 => {
                    self.count("joins");
                    self.join_next();
                }
                2 if members > 1 => {
                    self.count("crashes");
                    self.world.kill(one);
                }
                3 if members > 1 => {
                    self.count("farewells");
                    self.world.drain(one);
                    self.world.run_for(Duration::from_millis(self.rng.u64(1..5_000)));
                    self.world.leave(one);
                }
                4 | 5 => {
                    self.count("partitions");
                    self.world.partition(one, Duration::from_millis(self.rng.u64(100..45_000)));
                }
                6 => {
                    self.count("outages");
                    self.world.outage(Duration::from_millis(self.rng.u64(100..60_000)));
                }
                7 => {
                    self.count("announcements lost for a while");
                    self.world.drops_announcements = !self.world.drops_announcements;
                }
                8 => {
                    self.count("other targets");
                    let (from, to) = (self.rng.usize(..targets), self.rng.usize(..targets));
                    self.world.set_targets(from.min(to)..targets.max(from.max(to)));
                }
                9 => {
                    self.count("wedged ones");
                    self.world.join_with(self.next_number, FULL_WEIGHT, true);
                    self.next_number += 1;
                }
                11 => {
                    self.count("inabilities");
                    self.world.set_able(one, false);
                }
                12 => self.world.set_able(one, true),
                10 => {
                    // The scout of before may be gone.
                    self.count("scouts");
                    self.world.set_reconciler(one);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn calm(&mut self) -> CheckResult {
        self.world.heal();
        for one in self.world.alive_instances() {
            self.world.set_able(one, true);
        }
        if self.world.alive_instances().is_empty() {
            self.join_next();
        }
        let reconciler = self.world.alive_instances()[0];
        self.world.set_reconciler(reconciler);
        // Whoever is cut off comes back by itself.
        self.world.run_for(secs(62));
        if self.world.run_until_settled(MAX_RECOVERY).is_none() {
            let (unheld, counts) = (self.world.unheld(), self.world.counts());
            return Err(("in the calm everything is held and balanced", format!("{unheld} unheld, {counts:?}")));
        }
        self.check_idle()
    }

    /// What the dead held is taken when its leases end, and nothing else moves.
    fn crash_in_calm(&mut self) -> CheckResult {
        while self.world.alive_instances().len() < 2 {
            self.join_next();
        }
        self.check_settled("whoever joins gets its share")?;
        let (Some(one), before) = (self.random_instance(), self.world.moves) else { return Ok(()) };
        let held = self.world.counts().get(&super::world::id(one)).copied().unwrap_or(0);
        self.count("crashes in the calm");
        self.world.kill(one);
        self.reassign_reconciler();
        self.world.run_for(TTL + settings().max_claim_delay + secs(1));
        if self.world.unheld() > 0 || self.world.unrenewed() > 0 {
            return Err(("what the dead held is taken when its leases end", format!("{} unheld", self.world.unheld())));
        }
        self.check_settled("after a crash all is balanced again")?;
        self.check_moves(before, held, "after a crash only that moves which was lost")
    }

    /// Whoever leaves hands over everything, and no tick is left out.
    fn leave_in_calm(&mut self) -> CheckResult {
        while self.world.alive_instances().len() < 2 {
            self.join_next();
        }
        self.check_settled("whoever joins gets its share")?;
        self.check_idle()?;
        let (Some(one), before, skipped) = (self.random_instance(), self.world.moves, self.world.skipped_ticks) else {
            return Ok(());
        };
        let held = self.world.counts().get(&super::world::id(one)).copied().unwrap_or(0);
        self.count("farewells in the calm");
        self.world.drain(one);
        self.world.run_for(secs(2));
        let left = self.world.counts().get(&super::world::id(one)).copied().unwrap_or(0);
        if left > 0 || self.world.unheld() > 0 {
            return Err((
                "whoever leaves hands everything over",
                format!("{left} left, {} unheld", self.world.unheld()),
            ));
        }
        self.world.leave(one);
        self.reassign_reconciler();
        self.check_settled("after a farewell all is balanced")?;
        self.check_moves(before, held, "at a farewell only that moves which was held")?;
        self.world.run_for(secs(10));
        if self.world.skipped_ticks > skipped {
            return Err(("a hand-over leaves no tick out", format!("{} were", self.world.skipped_ticks - skipped)));
        }
        Ok(())
    }

    /// Whoever comes gets its share, and nothing else moves.
    fn join_in_calm(&mut self) -> CheckResult {
        self.check_idle()?;
        let (before, targets) = (self.world.moves, self.world.holders().len());
        self.count("joins in the calm");
        self.join_next();
        self.check_settled("whoever joins gets its share")?;
        let members = self.world.alive_instances().len();
        self.check_moves(before, targets.div_ceil(members), "at a join only the newcomer's share moves")?;
        self.check_idle()
    }

    fn reassign_reconciler(&mut self) {
        if let Some(one) = self.world.alive_instances().first() {
            self.world.set_reconciler(*one);
        }
    }

    fn check_settled(&mut self, invariant: &'static str) -> CheckResult {
        match self.world.run_until_settled(MAX_RECOVERY) {
            Some(_) => self.check_violation(),
            None => Err((invariant, format!("{} unheld, {:?}", self.world.unheld(), self.world.counts()))),
        }
    }

    fn check_moves(&self, before: usize, most: usize, invariant: &'static str) -> CheckResult {
        let moves = self.world.moves - before;
        if moves > most { Err((invariant, format!("{moves} moves instead of {most}"))) } else { Ok(()) }
    }

    /// Nothing moves and no tick is left out when nothing happens.
    fn check_idle(&mut self) -> CheckResult {
        self.world.run_for(secs(10));
        let (moves, skipped) = (self.world.moves, self.world.skipped_ticks);
        self.world.run_for(secs(60));
        if self.world.moves > moves {
            let message = format!("{} moves in a minute, {:?}", self.world.moves - moves, self.world.counts());
            return Err(("nothing moves when nothing happens", message));
        }
        if self.world.skipped_ticks > skipped {
            return Err(("every tick is kept", format!("{} were left out", self.world.skipped_ticks - skipped)));
        }
        self.check_violation()
    }

    fn check_violation(&mut self) -> CheckResult {
        match self.world.violation.take() {
            Some(wrong) => Err(("no tick is worked on twice", wrong)),
            None => Ok(()),
        }
    }
}
