//! A fleet of engines around one table of leases, in time that is moved by hand.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use tenure::InstanceId;
use tenure::fleet::{InstanceRecord, Status};
use tenure::lease::{Ending, Loss, ReleaseReason};
use tenure::placement::FULL_WEIGHT;
use tenure::pool::{Action, Engine, EngineSettings, Input, Target};
use tenure::store::Member;
use tenure::time::Moment;

pub const TTL: Duration = Duration::from_secs(30);
const BEAT: Duration = Duration::from_secs(10);
const WINDOW: Duration = Duration::from_secs(3);

pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub fn settings() -> EngineSettings {
    EngineSettings {
        longest_grace: secs(1),
        settle: secs(3),
        longest_settle: secs(30),
        accept_window: WINDOW,
        read_every: secs(10),
        scout_every: secs(10),
        forgiveness: TTL,
    }
}

struct Instance {
    engine: Engine,
    record: InstanceRecord,
    beaten: Moment,
    next_beat: Moment,
    /// When it wakes; out of date wake-ups are ignored.
    wakes: Moment,
    /// It lives and beats, and never asks for anything.
    wedged: bool,
    /// When it learns of the last change of the targets.
    retargeted: Moment,
    /// Until then it cannot reach the store.
    away_until: Moment,
}

#[derive(Clone)]
struct Lease {
    holder: InstanceId,
    /// `None` while it is renewed.
    expires: Option<Moment>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Wake(InstanceId),
    Deliver(InstanceId, u64),
}

/// The world.
pub struct World {
    pub now: Moment,
    instances: BTreeMap<InstanceId, Instance>,
    leases: BTreeMap<Target, Lease>,
    indexes: BTreeMap<InstanceId, BTreeSet<Target>>,
    targets: BTreeSet<Target>,
    queue: BinaryHeap<Reverse<(Moment, u64, Next)>>,
    inputs: BTreeMap<u64, Input>,
    count: u64,
    /// How often a target has come to another holder.
    pub moves: usize,
    /// What has been asked of the store.
    pub reads: usize,
    last_holder: BTreeMap<Target, InstanceId>,
    /// Whether announcements are lost.
    pub deaf: bool,
    rng: fastrand::Rng,
}

pub fn id(n: usize) -> InstanceId {
    InstanceId::new(&format!("api-{n}")).unwrap()
}

impl World {
    pub fn new(seed: u64, targets: usize) -> Self {
        Self {
            now: Moment::ZERO + secs(1_000),
            instances: BTreeMap::new(),
            leases: BTreeMap::new(),
            indexes: BTreeMap::new(),
            targets: (0..targets).map(|n| Target::from(format!("endpoint-{n}"))).collect(),
            queue: BinaryHeap::new(),
            inputs: BTreeMap::new(),
            count: 0,
            moves: 0,
            reads: 0,
            last_holder: BTreeMap::new(),
            deaf: false,
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    pub fn join(&mut self, n: usize) {
        self.join_with(n, FULL_WEIGHT, false);
    }

    pub fn join_with(&mut self, n: usize, weight: u32, wedged: bool) {
        let mut record = InstanceRecord::new(&format!("api-{n}"));
        record.weight = weight;
        let engine = Engine::new(id(n), "poll", weight, settings());
        let now = self.now;
        let next_beat = now + BEAT;
        let (wakes, away_until, retargeted) = (Moment::END, now, now);
        let instance = Instance { engine, record, beaten: now, next_beat, wakes, wedged, retargeted, away_until };
        self.instances.insert(id(n), instance);
        self.tell_all(&Input::FleetChanged, Some(&id(n)));
        self.give(&id(n), Input::Targets(self.targets.clone()));
    }

    pub fn retarget(&mut self, targets: impl IntoIterator<Item = usize>) {
        self.targets = targets.into_iter().map(|n| Target::from(format!("endpoint-{n}"))).collect();
        // Everybody learns of it at another moment, and of the last one last.
        for one in self.instances.keys().cloned().collect::<Vec<_>>() {
            let told = self.now + self.latency();
            let Some(instance) = self.instances.get_mut(&one) else { continue };
            instance.retargeted = told.max(instance.retargeted + Duration::from_micros(1));
            let (at, targets) = (instance.retargeted, self.targets.clone());
            self.later(at, &one, Input::Targets(targets));
        }
    }

    /// Killed: its leases run out, each at its time.
    pub fn kill(&mut self, n: usize) {
        self.instances.remove(&id(n));
        for lease in self.leases.values_mut().filter(|lease| lease.holder == id(n)) {
            lease.expires = Some(self.now + Duration::from_millis(self.rng.u64(20_000..30_000)));
        }
    }

    pub fn drain(&mut self, n: usize) {
        if let Some(instance) = self.instances.get_mut(&id(n)) {
            instance.record.status = Status::Draining;
            instance.beaten = self.now;
        }
        self.tell_all(&Input::FleetChanged, Some(&id(n)));
        self.give(&id(n), Input::Drain);
    }

    pub fn leave(&mut self, n: usize) {
        self.instances.remove(&id(n));
        self.tell_all(&Input::FleetChanged, None);
    }

    pub fn scout(&mut self, n: usize) {
        self.give(&id(n), Input::Scouts(true));
    }

    /// The store is away for longer than a ttl: everything is lost, and everybody comes back at another moment.
    pub fn outage(&mut self, span: Duration) {
        self.leases.clear();
        self.now = self.now + span;
        let ids: Vec<InstanceId> = self.instances.keys().cloned().collect();
        for (n, one) in ids.iter().enumerate() {
            let back = self.now + Duration::from_millis(300 * n as u64);
            let mine: Vec<Target> = self.held_by(one);
            for target in mine {
                self.later(back, one, Input::Over { target, ending: Ending::Lost(Loss::Unreachable) });
            }
            self.later(back, one, Input::Gap);
            if let Some(instance) = self.instances.get_mut(one) {
                instance.next_beat = back;
                instance.away_until = back;
            }
        }
    }

    fn held_by(&self, one: &InstanceId) -> Vec<Target> {
        let engine = &self.instances[one].engine;
        self.targets.iter().filter(|target| engine.holder(target) == Some(one)).cloned().collect()
    }

    /// How many each holds.
    pub fn counts(&self) -> BTreeMap<InstanceId, usize> {
        let mut counts: BTreeMap<InstanceId, usize> = self.instances.keys().map(|one| (one.clone(), 0)).collect();
        for lease in self.leases.values().filter(|lease| lease.expires.is_none()) {
            *counts.entry(lease.holder.clone()).or_default() += 1;
        }
        counts
    }

    /// How much stands written of what an instance held.
    pub fn remembered(&self, n: usize) -> usize {
        self.indexes.get(&id(n)).map_or(0, BTreeSet::len)
    }

    pub fn spread(&self) -> usize {
        let counts = self.counts();
        let counts: Vec<usize> = counts.values().copied().collect();
        counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0)
    }

    pub fn dark(&self) -> usize {
        let held = |target: &&Target| self.leases.get(*target).is_some_and(|lease| self.lives(lease));
        self.targets.len() - self.targets.iter().filter(held).count()
    }

    pub fn holders(&self) -> BTreeMap<Target, InstanceId> {
        self.leases.iter().map(|(target, lease)| (target.clone(), lease.holder.clone())).collect()
    }

    fn lives(&self, lease: &Lease) -> bool {
        lease.expires.is_none_or(|expires| expires > self.now)
    }

    pub fn go_on(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            let beat = self.instances.iter().map(|(one, instance)| (instance.next_beat, one.clone())).min();
            let next = self.queue.peek().map(|Reverse((at, _, _))| *at);
            match (beat, next) {
                (Some((at, one)), next) if at <= end && next.is_none_or(|next| at <= next) => {
                    self.now = self.now.max(at);
                    self.beat(&one);
                }
                (_, Some(at)) if at <= end => {
                    let Some(Reverse((at, _, next))) = self.queue.pop() else { break };
                    self.now = self.now.max(at);
                    match next {
                        Next::Wake(one) => {
                            if self.instances.get(&one).is_some_and(|instance| instance.wakes == at) {
                                self.give(&one, Input::Tick);
                            }
                        }
                        Next::Deliver(one, number) => {
                            if let Some(input) = self.inputs.remove(&number) {
                                self.give(&one, input);
                            }
                        }
                    }
                }
                _ => break,
            }
        }
        self.now = end;
    }

    /// How many targets nobody renews.
    fn unkept(&self) -> usize {
        let kept = |target: &&Target| self.leases.get(*target).is_some_and(|lease| lease.expires.is_none());
        self.targets.len() - self.targets.iter().filter(kept).count()
    }

    /// Goes on until everything is kept and balanced; returns how long that took.
    pub fn settles(&mut self, within: Duration) -> Duration {
        let start = self.now;
        while self.now.since(start) < within {
            self.go_on(Duration::from_millis(100));
            if self.unkept() == 0 && self.spread() <= 1 {
                return self.now.since(start);
            }
        }
        panic!("not within {within:?}: {} dark, {:?}", self.dark(), self.counts());
    }

    fn beat(&mut self, one: &InstanceId) {
        if let Some(instance) = self.instances.get_mut(one) {
            instance.beaten = self.now;
            instance.next_beat = self.now + BEAT.mul_f64(0.9 + 0.1 * self.rng.f64());
        }
    }

    fn tell_all(&mut self, input: &Input, but: Option<&InstanceId>) {
        let ids: Vec<InstanceId> = self.instances.keys().filter(|one| Some(*one) != but).cloned().collect();
        for one in ids {
            let late = self.latency();
            self.later(self.now + late, &one, input.clone());
        }
    }

    fn announce(&mut self, input: &Input) {
        if !self.deaf {
            self.tell_all(input, None);
        }
    }

    fn latency(&mut self) -> Duration {
        Duration::from_micros(self.rng.u64(300..3_000))
    }

    fn later(&mut self, at: Moment, one: &InstanceId, input: Input) {
        self.count += 1;
        self.inputs.insert(self.count, input);
        self.queue.push(Reverse((at, self.count, Next::Deliver(one.clone(), self.count))));
    }

    fn give(&mut self, one: &InstanceId, input: Input) {
        let now = self.now;
        let Some(instance) = self.instances.get_mut(one) else { return };
        let actions = instance.engine.step(now, input);
        let wakes = instance.engine.next_wake().map_or(Moment::END, |at| at.max(now + Duration::from_micros(1)));
        instance.wakes = wakes;
        self.count += 1;
        self.queue.push(Reverse((wakes, self.count, Next::Wake(one.clone()))));
        for action in actions {
            self.act(one, action);
        }
    }

    fn act(&mut self, one: &InstanceId, action: Action) {
        let now = self.now;
        let back = now + self.latency();
        if self.instances.get(one).is_some_and(|instance| instance.away_until > now) {
            match action {
                Action::ReadMembers => self.later(back, one, Input::Unread),
                Action::LookAt(_) => self.later(back, one, Input::Holders(Vec::new())),
                Action::Claim(target) => self.later(back, one, Input::Failed { target, again_in: secs(1) }),
                _ => {}
            }
            return;
        }
        match action {
            Action::ReadMembers => {
                self.reads += 1;
                let member = |(id, instance): (&InstanceId, &Instance)| {
                    let remaining = (instance.beaten + TTL).since(now);
                    Member { instance: id.clone(), record: instance.record.encode(), remaining }
                };
                let members = self.instances.iter().map(member).filter(|member| !member.remaining.is_zero()).collect();
                self.later(back, one, Input::Members(members));
            }
            Action::LookAt(targets) => {
                self.reads += targets.len();
                let holder = |target: Target| {
                    let holder = self.leases.get(&target).filter(|lease| self.lives(lease)).map(|l| l.holder.clone());
                    (target, holder)
                };
                let holders = targets.into_iter().map(holder).collect();
                self.later(back, one, Input::Holders(holders));
            }
            Action::Inspect(target) => {
                self.reads += 1;
                let lease = self.leases.get(&target).filter(|lease| self.lives(lease));
                let held =
                    lease.map(|lease| (lease.holder.clone(), Some(lease.expires.map_or(TTL, |at| at.since(now)))));
                self.later(back, one, Input::Report { target, held });
            }
            Action::LookUp(instance) => {
                self.reads += 1;
                let targets = self.indexes.get(&instance).into_iter().flatten().cloned().collect();
                self.later(back, one, Input::WasHeldBy { instance, targets });
            }
            Action::Claim(target) => {
                if self.instances.get(one).is_some_and(|instance| instance.wedged) {
                    self.later(back + secs(5), one, Input::Failed { target, again_in: secs(5) });
                    return;
                }
                let lease = self.leases.get(&target).filter(|lease| self.lives(lease)).cloned();
                match lease {
                    Some(lease) if lease.holder != *one => {
                        let remaining = Some(lease.expires.map_or(TTL, |at| at.since(now)));
                        self.later(back, one, Input::Refused { target, by: lease.holder, remaining });
                    }
                    _ => {
                        self.leases.insert(target.clone(), Lease { holder: one.clone(), expires: None });
                        self.indexes.entry(one.clone()).or_default().insert(target.clone());
                        if self.last_holder.insert(target.clone(), one.clone()).is_some_and(|last| last != *one) {
                            self.moves += 1;
                        }
                        self.later(back, one, Input::Granted(target));
                    }
                }
            }
            Action::Release { target, reason } => {
                self.leases.remove(&target);
                self.indexes.entry(one.clone()).or_default().remove(&target);
                self.announce(&Input::Released(target.clone()));
                self.later(back, one, Input::Over { target, ending: Ending::Released(reason) });
            }
            Action::HandOver { target, to } => {
                let lease = Lease { holder: to.clone(), expires: Some(now + WINDOW) };
                self.leases.insert(target.clone(), lease);
                self.indexes.entry(one.clone()).or_default().remove(&target);
                self.announce(&Input::HandedOver { target: target.clone(), to });
                self.later(back, one, Input::Over { target, ending: Ending::Released(ReleaseReason::HandedOver) });
            }
            Action::Proclaim(target) => self.announce(&Input::Vacant(target)),
            Action::Forget { instance, target } => {
                self.indexes.entry(instance).or_default().remove(&target);
            }
            Action::Holds(count) => {
                if let Some(instance) = self.instances.get_mut(one) {
                    instance.record.held.insert("poll".to_owned(), count);
                    instance.beaten = now;
                }
            }
        }
    }
}
