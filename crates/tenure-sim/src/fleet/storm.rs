//! One fleet's life: a storm of everything that can happen, then a calm in which all must come right; and then, one at a time, what happens
//! every day, which must cost no more than it has to.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::placement::FULL_WEIGHT;

use super::world::{Lapse, TTL, World, secs, settings};
use crate::promise::Measurements;
use crate::timeline::TrueTime;
use crate::world::{Outcome, Violation};

/// How many there are of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A few instances, a few dozen targets.
    Small,
    /// Dozens of instances, hundreds of targets.
    Large,
}

/// How long after the last fault everything is held and balanced at the latest: what is left of a ttl, of the forgiveness after an outage,
/// of the time for which somebody who did not take what it was offered is offered nothing; and several rounds of balancing.
const CALM: Duration = Duration::from_secs(30 + 30 + 60 + 60);

/// The life of one fleet, in which this is left undone, if anything.
pub fn run(seed: u64, size: Size, lapse: Option<Lapse>) -> Outcome {
    let mut life =
        Life { rng: fastrand::Rng::with_seed(seed), world: World::new(seed, 0), next: 0, counts: BTreeMap::new() };
    life.world.lapse = lapse;
    let begun = life.world.now;
    let violation = life.runs(size).err().map(|(invariant, message)| Violation {
        invariant,
        message,
        at: TrueTime::default() + life.world.now.since(begun),
    });
    let simulated = life.world.now.since(begun);
    life.counts.insert("moves", life.world.moves as u64);
    Outcome { violation, measurements: Measurements::default(), counts: life.counts, simulated }
}

type Held = Result<(), (&'static str, String)>;

struct Life {
    world: World,
    rng: fastrand::Rng,
    /// The number of the next who comes.
    next: usize,
    counts: BTreeMap<&'static str, u64>,
}

impl Life {
    fn runs(&mut self, size: Size) -> Held {
        let (instances, targets, storm) = match size {
            Size::Small => (self.rng.usize(1..6), self.rng.usize(1..40), secs(180)),
            Size::Large => (self.rng.usize(20..50), self.rng.usize(300..1_000), secs(120)),
        };
        self.world.retarget(0..targets);
        (0..instances).for_each(|_| self.comes());
        self.world.scout(0);
        self.storm(size, targets, storm)?;
        self.calm()?;
        self.crash()?;
        self.farewell()?;
        self.arrival()
    }

    fn comes(&mut self) {
        self.world.join(self.next);
        self.next += 1;
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn somebody(&mut self) -> Option<usize> {
        let members = self.world.members();
        (!members.is_empty()).then(|| members[self.rng.usize(..members.len())])
    }

    fn storm(&mut self, size: Size, targets: usize, lasts: Duration) -> Held {
        let end = self.world.now + lasts;
        let pause = if size == Size::Small { 8_000 } else { 4_000 };
        while self.world.now < end {
            self.world.go_on(Duration::from_millis(self.rng.u64(1..pause)));
            self.is_right()?;
            let members = self.world.members().len();
            let Some(one) = self.somebody() else {
                self.comes();
                continue;
            };
            match self.rng.u8(..14) {
                0 | 1 => {
                    self.count("joins");
                    self.comes();
                }
                2 if members > 1 => {
                    self.count("crashes");
                    self.world.kill(one);
                }
                3 if members > 1 => {
                    self.count("farewells");
                    self.world.drain(one);
                    self.world.go_on(Duration::from_millis(self.rng.u64(1..5_000)));
                    self.world.leave(one);
                }
                4 | 5 => {
                    self.count("partitions");
                    self.world.cut(one, Duration::from_millis(self.rng.u64(100..45_000)));
                }
                6 => {
                    self.count("outages");
                    self.world.outage(Duration::from_millis(self.rng.u64(100..60_000)));
                }
                7 => {
                    self.count("announcements lost for a while");
                    self.world.deaf = !self.world.deaf;
                }
                8 => {
                    self.count("other targets");
                    let (from, to) = (self.rng.usize(..targets), self.rng.usize(..targets));
                    self.world.retarget(from.min(to)..targets.max(from.max(to)));
                }
                9 => {
                    self.count("wedged ones");
                    self.world.join_with(self.next, FULL_WEIGHT, true);
                    self.next += 1;
                }
                11 => {
                    self.count("inabilities");
                    self.world.set_able(one, false);
                }
                12 => self.world.set_able(one, true),
                10 => {
                    // The scout of before may be gone.
                    self.count("scouts");
                    self.world.scout(one);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn calm(&mut self) -> Held {
        self.world.heal();
        for one in self.world.members() {
            self.world.set_able(one, true);
        }
        if self.world.members().is_empty() {
            self.comes();
        }
        let scout = self.world.members()[0];
        self.world.scout(scout);
        // Whoever is cut off comes back by itself.
        self.world.go_on(secs(62));
        if self.world.settles(CALM).is_none() {
            let (dark, counts) = (self.world.dark(), self.world.counts());
            return Err(("in the calm everything is held and balanced", format!("{dark} dark, {counts:?}")));
        }
        self.rests()
    }

    /// What the dead held is taken when its leases end, and nothing else moves.
    fn crash(&mut self) -> Held {
        while self.world.members().len() < 2 {
            self.comes();
        }
        self.settled("whoever joins gets its share")?;
        let (Some(one), before) = (self.somebody(), self.world.moves) else { return Ok(()) };
        let held = self.world.counts().get(&super::world::id(one)).copied().unwrap_or(0);
        self.count("crashes in the calm");
        self.world.kill(one);
        self.rescout();
        self.world.go_on(TTL + settings().longest_grace + secs(1));
        if self.world.dark() > 0 || self.world.unkept() > 0 {
            return Err(("what the dead held is taken when its leases end", format!("{} dark", self.world.dark())));
        }
        self.settled("after a crash all is balanced again")?;
        self.moved_at_most(before, held, "after a crash only that moves which was lost")
    }

    /// Whoever leaves hands over everything, and no tick is left out.
    fn farewell(&mut self) -> Held {
        while self.world.members().len() < 2 {
            self.comes();
        }
        self.settled("whoever joins gets its share")?;
        self.rests()?;
        let (Some(one), before, skipped) = (self.somebody(), self.world.moves, self.world.skipped) else {
            return Ok(());
        };
        let held = self.world.counts().get(&super::world::id(one)).copied().unwrap_or(0);
        self.count("farewells in the calm");
        self.world.drain(one);
        self.world.go_on(secs(2));
        let left = self.world.counts().get(&super::world::id(one)).copied().unwrap_or(0);
        if left > 0 || self.world.dark() > 0 {
            return Err(("whoever leaves hands everything over", format!("{left} left, {} dark", self.world.dark())));
        }
        self.world.leave(one);
        self.rescout();
        self.settled("after a farewell all is balanced")?;
        self.moved_at_most(before, held, "at a farewell only that moves which was held")?;
        self.world.go_on(secs(10));
        if self.world.skipped > skipped {
            return Err(("a hand-over leaves no tick out", format!("{} were", self.world.skipped - skipped)));
        }
        Ok(())
    }

    /// Whoever comes gets its share, and nothing else moves.
    fn arrival(&mut self) -> Held {
        self.rests()?;
        let (before, targets) = (self.world.moves, self.world.holders().len());
        self.count("joins in the calm");
        self.comes();
        self.settled("whoever joins gets its share")?;
        let members = self.world.members().len();
        self.moved_at_most(before, targets.div_ceil(members), "at a join only the newcomer's share moves")?;
        self.rests()
    }

    fn rescout(&mut self) {
        if let Some(one) = self.world.members().first() {
            self.world.scout(*one);
        }
    }

    fn settled(&mut self, invariant: &'static str) -> Held {
        match self.world.settles(CALM) {
            Some(_) => self.is_right(),
            None => Err((invariant, format!("{} dark, {:?}", self.world.dark(), self.world.counts()))),
        }
    }

    fn moved_at_most(&self, before: usize, most: usize, invariant: &'static str) -> Held {
        let moves = self.world.moves - before;
        if moves > most { Err((invariant, format!("{moves} moves instead of {most}"))) } else { Ok(()) }
    }

    /// Nothing moves and no tick is left out when nothing happens.
    fn rests(&mut self) -> Held {
        self.world.go_on(secs(10));
        let (moves, skipped) = (self.world.moves, self.world.skipped);
        self.world.go_on(secs(60));
        if self.world.moves > moves {
            let message = format!("{} moves in a minute, {:?}", self.world.moves - moves, self.world.counts());
            return Err(("nothing moves when nothing happens", message));
        }
        if self.world.skipped > skipped {
            return Err(("every tick is kept", format!("{} were left out", self.world.skipped - skipped)));
        }
        self.is_right()
    }

    fn is_right(&mut self) -> Held {
        match self.world.wrong.take() {
            Some(wrong) => Err(("no tick is worked on twice", wrong)),
            None => Ok(()),
        }
    }
}
