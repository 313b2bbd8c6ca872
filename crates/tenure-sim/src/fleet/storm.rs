//! One run of a fleet: a storm of all faults; a calm in which every target must be held and balanced again; then
//! everyday events, one at a time, which must not move more targets than necessary.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::placement::FULL_WEIGHT;
use tenure_core::time::Moment;

use super::world::{FleetMutation, FleetWorld, TTL, secs, settings};
use crate::reduction::Reduction;
use crate::timeline::SimTime;
use crate::world::{Violation, WorldOutcome};

/// Size of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetSize {
    /// A few instances, a few dozen targets.
    Small,
    /// Dozens of instances, hundreds of targets.
    Large,
}

/// Bound on the time from the last fault until every target is held and balanced: a ttl, the grace after an outage, the
/// backoff of an instance that ignored an offer, and several rounds of rebalancing.
const MAX_RECOVERY: Duration = Duration::from_secs(30 + 30 + 60 + 60);

/// Runs one fleet, optionally with a mutation.
pub fn run(seed: u64, size: FleetSize, mutation: Option<FleetMutation>) -> WorldOutcome {
    run_reduced(seed, size, mutation, Reduction::default())
}

/// Runs one fleet with only some of its faults.
pub fn run_reduced(seed: u64, size: FleetSize, mutation: Option<FleetMutation>, reduction: Reduction) -> WorldOutcome {
    let mut fleet = FleetRun {
        rng: fastrand::Rng::with_seed(seed),
        world: FleetWorld::new(seed, 0),
        next_number: 0,
        counts: BTreeMap::new(),
        reduction,
        faults: 0,
        begun: Moment::ZERO,
        trace: Vec::new(),
    };
    fleet.world.mutation = mutation;
    let begun = fleet.world.now;
    fleet.begun = begun;
    let violation = fleet.run_phases(size).err().map(|(invariant, message)| Violation {
        invariant,
        message,
        at: SimTime::default() + fleet.world.now.since(begun),
    });
    let simulated = fleet.world.now.since(begun);
    fleet.counts.insert("moves", fleet.world.moves as u64);
    let FleetRun { counts, faults, trace, .. } = fleet;
    WorldOutcome { violation, counts, simulated, faults, trace, ..WorldOutcome::default() }
}

type CheckResult = Result<(), (&'static str, String)>;

struct FleetRun {
    world: FleetWorld,
    rng: fastrand::Rng,
    /// Number of the next instance that joins.
    next_number: usize,
    counts: BTreeMap<&'static str, u64>,
    reduction: Reduction,
    /// Number of steps of the storm.
    faults: usize,
    begun: Moment,
    trace: Vec<String>,
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

    /// Counts a fault, and writes it down.
    fn count_fault(&mut self, one: usize, what: &'static str) {
        self.count(what);
        self.note(&format!("{what}, instance {one}"));
    }

    fn note(&mut self, what: &str) {
        let at = SimTime::default() + self.world.now.since(self.begun);
        self.trace.push(format!("{at} {}  {what}", self.faults.saturating_sub(1)));
    }

    fn storm(&mut self, size: FleetSize, targets: usize, lasts: Duration) -> CheckResult {
        let end = self.world.now + lasts;
        self.world.set_work_faults(true);
        let pause = if size == FleetSize::Small { 8_000 } else { 4_000 };
        while self.world.now < end {
            self.world.run_for(Duration::from_millis(self.rng.u64(1..pause)));
            self.check_violation()?;
            let members = self.world.alive_instances().len();
            // Each step draws from its own source, so that leaving one out changes no other.
            let mut rng = self.rng.fork();
            let number = self.faults;
            self.faults += 1;
            if !self.reduction.has_fault(number) {
                continue;
            }
            let Some(one) = random_instance(&self.world, &mut rng) else {
                self.note("an instance joins, since there is none");
                self.join_next();
                continue;
            };
            match rng.u8(..14) {
                0 | 1 => {
                    self.count_fault(one, "joins");
                    self.join_next();
                }
                2 if members > 1 => {
                    self.count_fault(one, "crashes");
                    self.world.kill(one);
                }
                3 if members > 1 => {
                    self.count_fault(one, "farewells");
                    self.world.drain(one);
                    self.world.run_for(Duration::from_millis(rng.u64(1..5_000)));
                    self.world.leave(one);
                }
                4 | 5 => {
                    self.count_fault(one, "partitions");
                    self.world.partition(one, Duration::from_millis(rng.u64(100..45_000)));
                }
                6 => {
                    self.count_fault(one, "outages");
                    self.world.outage(Duration::from_millis(rng.u64(100..60_000)));
                }
                7 => {
                    self.count_fault(one, "announcements lost for a while");
                    self.world.drops_announcements = !self.world.drops_announcements;
                }
                8 => {
                    self.count_fault(one, "target changes");
                    let (from, to) = (rng.usize(..targets), rng.usize(..targets));
                    self.world.set_targets(from.min(to)..targets.max(from.max(to)));
                }
                9 => {
                    self.count_fault(one, "wedged instances");
                    self.world.join_with(self.next_number, FULL_WEIGHT, true);
                    self.next_number += 1;
                }
                11 => {
                    self.count_fault(one, "inabilities");
                    self.world.set_able(one, false);
                }
                12 => self.world.set_able(one, true),
                10 => {
                    // The previous reconciler may be gone.
                    self.count_fault(one, "reconciler changes");
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
        // A partitioned instance reconnects by itself.
        self.world.run_for(secs(62));
        if self.world.run_until_settled(MAX_RECOVERY).is_none() {
            let (unheld, counts) = (self.world.unheld(), self.world.counts());
            return Err(("in the calm every target is held and balanced", format!("{unheld} unheld, {counts:?}")));
        }
        self.check_idle()
    }

    /// Checks that the targets of a dead instance are acquired when its leases expire, and that no other target moves.
    fn crash_in_calm(&mut self) -> CheckResult {
        while self.world.alive_instances().len() < 2 {
            self.join_next();
        }
        self.check_settled("an instance that joins gets its quota")?;
        let (Some(one), before) = (random_instance(&self.world, &mut self.rng), self.world.moves) else {
            return Ok(());
        };
        let held = self.world.counts().get(&super::world::id(one)).copied().unwrap_or(0);
        self.count("crashes in the calm");
        self.world.kill(one);
        self.reassign_reconciler();
        self.world.run_for(TTL + settings().max_claim_delay + secs(1));
        if self.world.unheld() > 0 || self.world.unrenewed() > 0 {
            return Err((
                "targets of a dead instance are acquired when its leases expire",
                format!("{} unheld", self.world.unheld()),
            ));
        }
        self.check_settled("after a crash the targets are balanced again")?;
        self.check_moves(before, held, "after a crash only the lost targets move")
    }

    /// Checks that an instance that leaves hands over all targets, and that no tick is skipped.
    fn leave_in_calm(&mut self) -> CheckResult {
        while self.world.alive_instances().len() < 2 {
            self.join_next();
        }
        self.check_settled("an instance that joins gets its quota")?;
        self.check_idle()?;
        let (Some(one), before, skipped) =
            (random_instance(&self.world, &mut self.rng), self.world.moves, self.world.skipped_ticks)
        else {
            return Ok(());
        };
        let held = self.world.counts().get(&super::world::id(one)).copied().unwrap_or(0);
        self.count("leaves in the calm");
        self.world.drain(one);
        self.world.run_for(secs(2));
        let left = self.world.counts().get(&super::world::id(one)).copied().unwrap_or(0);
        if left > 0 || self.world.unheld() > 0 {
            return Err((
                "an instance that leaves hands over all targets",
                format!("{left} left, {} unheld", self.world.unheld()),
            ));
        }
        self.world.leave(one);
        self.reassign_reconciler();
        self.check_settled("after a leave the targets are balanced")?;
        self.check_moves(before, held, "at a leave only the targets of the leaving instance move")?;
        self.world.run_for(secs(10));
        if self.world.skipped_ticks > skipped {
            return Err(("a hand-over skips no tick", format!("{} skipped", self.world.skipped_ticks - skipped)));
        }
        Ok(())
    }

    /// Checks that an instance that joins gets its quota, and that no other target moves.
    fn join_in_calm(&mut self) -> CheckResult {
        self.check_idle()?;
        let (before, targets) = (self.world.moves, self.world.holders().len());
        self.count("joins in the calm");
        self.join_next();
        self.check_settled("an instance that joins gets its quota")?;
        let members = self.world.alive_instances().len();
        self.check_moves(before, targets.div_ceil(members), "at a join only the quota of the new instance moves")?;
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

    /// Checks that no target moves and no tick is skipped while nothing happens.
    fn check_idle(&mut self) -> CheckResult {
        self.world.run_for(secs(10));
        let (moves, skipped) = (self.world.moves, self.world.skipped_ticks);
        self.world.run_for(secs(60));
        if self.world.moves > moves {
            let message = format!("{} moves in a minute, {:?}", self.world.moves - moves, self.world.counts());
            return Err(("no target moves when nothing happens", message));
        }
        if self.world.skipped_ticks > skipped {
            return Err(("no tick is skipped", format!("{} skipped", self.world.skipped_ticks - skipped)));
        }
        self.check_violation()
    }

    fn check_violation(&mut self) -> CheckResult {
        match self.world.violation.take() {
            Some(wrong) => Err(("no tick runs twice", wrong)),
            None => Ok(()),
        }
    }
}

fn random_instance(world: &FleetWorld, rng: &mut fastrand::Rng) -> Option<usize> {
    let members = world.alive_instances();
    (!members.is_empty()).then(|| members[rng.usize(..members.len())])
}
