//! A fleet of engines around one table of leases, in time that is moved by hand. What a lease is worth is not what this is about
//! (the rest of the simulator is): here a lease ends when it should, and its holder knows.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::{Duration, UNIX_EPOCH};

use tenure::InstanceId;
use tenure::fleet::{HeldBack, InstanceRecord, Status};
use tenure::lease::{Ending, Loss};
use tenure::placement::{FULL_WEIGHT, Reason};
use tenure::pool::{Action, Engine, EngineSettings, Input, Target, next_due, phase, released_because};
use tenure::store::Member;
use tenure::time::{Moment, ServerTime};

/// How long a lease lasts without renewal.
pub const TTL: Duration = Duration::from_secs(30);
/// By how much sooner than the store its holder lets it end.
const MARGIN: Duration = Duration::from_millis(200);
/// How often each target is worked on.
const TICK: Duration = Duration::from_secs(5);
const BEAT: Duration = Duration::from_secs(10);
const WINDOW: Duration = Duration::from_secs(3);
/// How much later the others are told how many targets somebody holds.
const TELL_AFTER: Duration = Duration::from_millis(200);

/// So many seconds.
pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The numbers of a pool with that ttl.
pub fn settings() -> EngineSettings {
    EngineSettings {
        longest_grace: secs(1),
        settle: secs(3),
        longest_settle: secs(30),
        accept_window: WINDOW,
        read_every: secs(10),
        doubt_every: secs(5),
        scout_every: secs(10),
        forgiveness: TTL,
        hand_back: true,
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
    /// What it does when it can again.
    put_off: Vec<Action>,
    /// Whether it will tell the others how much it holds.
    tells: bool,
}

#[derive(Clone)]
struct Lease {
    holder: InstanceId,
    /// `None` while it is renewed.
    expires: Option<Moment>,
    /// Counts grants.
    term: u64,
}

impl Lease {
    fn is_renewed_by(&self, one: &InstanceId) -> bool {
        self.holder == *one && self.expires.is_none()
    }
}

/// A slot that is awaited in one term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tick {
    due: ServerTime,
    term: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Wake(InstanceId),
    Deliver(InstanceId, u64),
    /// It can reach the store again.
    Return(InstanceId),
    /// It knows that it was away, and asks what it could not ask.
    CatchUp(InstanceId),
    /// A lease that could not be renewed is to be given up.
    Doom(InstanceId, Target),
    /// It tells the others how much it holds.
    Tell(InstanceId),
    /// A target is due.
    Tick(InstanceId, Target, Tick),
}

/// Something that whoever drives the engines leaves undone: a checker that has never caught anything proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lapse {
    /// Nobody looks what the dead held.
    LookingUp,
    /// Nobody hands anything over.
    HandingOver,
    /// Whoever takes a target does not read when it was last worked on.
    ReadingMarks,
    /// Nobody looks whether what it gave away was taken.
    LookingAfter,
}

/// The world.
pub struct World {
    /// What time it is.
    pub now: Moment,
    instances: BTreeMap<InstanceId, Instance>,
    leases: BTreeMap<Target, Lease>,
    indexes: BTreeMap<InstanceId, BTreeSet<Target>>,
    /// Programs that have a heartbeat, and say nothing.
    strangers: BTreeSet<InstanceId>,
    /// The heartbeats of those that were killed.
    fading: Vec<(InstanceId, InstanceRecord, Moment)>,
    targets: BTreeSet<Target>,
    queue: BinaryHeap<Reverse<(Moment, u64, Next)>>,
    inputs: BTreeMap<u64, Input>,
    count: u64,
    /// How often a target has come to another holder.
    pub moves: usize,
    /// What has been asked of the store.
    pub reads: usize,
    last_holder: BTreeMap<Target, InstanceId>,
    /// The last tick of each target.
    marks: BTreeMap<Target, ServerTime>,
    /// How many ticks were left out.
    pub skipped: u64,
    /// What must never be and was.
    pub wrong: Option<String>,
    /// Whether announcements are lost.
    pub deaf: bool,
    /// What is left undone.
    pub lapse: Option<Lapse>,
    hand_back: bool,
    /// What was given back to an instance after a restart, as the giver has written down.
    handed_back: BTreeMap<Target, InstanceId>,
    rng: fastrand::Rng,
}

/// The instance of this number.
pub fn id(n: usize) -> InstanceId {
    InstanceId::foreign(&format!("api-{n}"))
}

impl World {
    /// An empty fleet.
    pub fn new(seed: u64, targets: usize) -> Self {
        Self {
            now: Moment::ZERO + secs(1_000),
            instances: BTreeMap::new(),
            leases: BTreeMap::new(),
            indexes: BTreeMap::new(),
            strangers: BTreeSet::new(),
            fading: Vec::new(),
            targets: (0..targets).map(|n| Target::from(format!("endpoint-{n}"))).collect(),
            queue: BinaryHeap::new(),
            inputs: BTreeMap::new(),
            count: 0,
            moves: 0,
            reads: 0,
            last_holder: BTreeMap::new(),
            marks: BTreeMap::new(),
            skipped: 0,
            wrong: None,
            deaf: false,
            lapse: None,
            hand_back: true,
            handed_back: BTreeMap::new(),
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    /// One more.
    pub fn join(&mut self, n: usize) {
        self.join_with(n, FULL_WEIGHT, false);
    }

    /// One more, of this weight; one that is wedged never asks for anything.
    pub fn join_with(&mut self, n: usize, weight: u32, wedged: bool) {
        self.join_as(n, &format!("api-{n}"), weight, wedged);
    }

    /// One more, of this name: another life of whoever had it before.
    pub fn join_as(&mut self, n: usize, name: &str, weight: u32, wedged: bool) {
        self.join_with_record(n, InstanceRecord { is_named: true, ..InstanceRecord::new(name) }, weight, wedged);
    }

    /// One more, on a host of this name, which it shares with others.
    pub fn join_unnamed(&mut self, n: usize, host: &str) {
        self.join_with_record(n, InstanceRecord::new(host), FULL_WEIGHT, false);
    }

    /// Whether those that join from now on give back what an instance had that is restarted.
    pub fn set_hand_back(&mut self, hand_back: bool) {
        self.hand_back = hand_back;
    }

    fn join_with_record(&mut self, n: usize, mut record: InstanceRecord, weight: u32, wedged: bool) {
        record.weight = weight;
        record.started_at = UNIX_EPOCH + self.now.since(Moment::ZERO);
        record.held.insert("poll".to_owned(), 0);
        let engine = Engine::new(id(n), "poll", weight, EngineSettings { hand_back: self.hand_back, ..settings() });
        let now = self.now;
        let next_beat = now + BEAT;
        let (wakes, away_until, retargeted) = (Moment::END, now, now);
        let instance = Instance {
            engine,
            record,
            beaten: now,
            next_beat,
            wakes,
            wedged,
            retargeted,
            away_until,
            put_off: Vec::new(),
            tells: false,
        };
        self.instances.insert(id(n), instance);
        self.tell_all(&Input::FleetChanged, Some(&id(n)));
        self.give(&id(n), Input::Targets(self.targets.clone()));
    }

    /// A program that is not Tenure's, and has these targets.
    pub fn stranger(&mut self, name: &str, holds: impl IntoIterator<Item = usize>) {
        let one = InstanceId::foreign(name);
        self.strangers.insert(one.clone());
        for n in holds {
            let lease = Lease { holder: one.clone(), expires: None, term: 0 };
            self.leases.insert(Target::from(format!("endpoint-{n}")), lease);
        }
        self.tell_all(&Input::FleetChanged, None);
    }

    /// Other targets.
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

    /// Killed: its leases run out, each at its time, and its heartbeat does.
    pub fn kill(&mut self, n: usize) {
        if let Some(dead) = self.instances.remove(&id(n)) {
            self.fading.push((id(n), dead.record, dead.beaten));
        }
        let mine = |(_, lease): &(&Target, &Lease)| lease.is_renewed_by(&id(n));
        for target in self.leases.iter().filter(mine).map(|(target, _)| target.clone()).collect::<Vec<_>>() {
            self.runs_out(&target);
        }
    }

    /// It says that it leaves.
    pub fn drain(&mut self, n: usize) {
        if let Some(instance) = self.instances.get_mut(&id(n)) {
            instance.record.status = Status::Draining;
            instance.beaten = self.now;
        }
        self.tell_all(&Input::FleetChanged, Some(&id(n)));
        self.give(&id(n), Input::Drain);
    }

    /// It says whether it can work.
    pub fn set_able(&mut self, n: usize, able: bool) {
        if let Some(instance) = self.instances.get_mut(&id(n)) {
            instance.record.reports_able("poll", able);
            instance.beaten = self.now;
        }
        self.tell_all(&Input::FleetChanged, Some(&id(n)));
        self.give(&id(n), Input::Able(able));
    }

    /// It is gone, as it said.
    pub fn leave(&mut self, n: usize) {
        // What it could not hand over it lets go of, if it can.
        let left = self.instances.remove(&id(n));
        let away = left.is_some_and(|instance| instance.away_until > self.now);
        let mine = |(_, lease): &(&Target, &Lease)| lease.is_renewed_by(&id(n));
        for target in self.leases.iter().filter(mine).map(|(target, _)| target.clone()).collect::<Vec<_>>() {
            if away {
                self.runs_out(&target);
            } else {
                self.leases.remove(&target);
                self.announce(&Input::Released(target));
            }
        }
        self.tell_all(&Input::FleetChanged, None);
    }

    /// It looks at everything for everybody.
    pub fn scout(&mut self, n: usize) {
        self.give(&id(n), Input::Scouts(true));
    }

    /// The store is away: nobody can reach it, and everybody comes back at another moment.
    pub fn outage(&mut self, span: Duration) {
        for one in self.members() {
            let late = Duration::from_millis(self.rng.u64(0..4_000));
            self.cut(one, span + late);
        }
    }

    /// It cannot reach the store for a while.
    pub fn cut(&mut self, n: usize, span: Duration) {
        let (one, now) = (id(n), self.now);
        let Some(instance) = self.instances.get_mut(&one).filter(|instance| instance.away_until <= now) else { return };
        instance.away_until = now + span;
        self.push(now + span, Next::Return(one.clone()));
        let mine: Vec<Target> = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.is_renewed_by(&one))
            .map(|(target, _)| target.clone())
            .collect();
        for target in mine {
            let expires = self.runs_out(&target);
            self.push(expires - MARGIN, Next::Doom(one.clone(), target));
        }
    }

    /// Nobody renews it any more: it was last renewed up to an interval ago.
    fn runs_out(&mut self, target: &Target) -> Moment {
        let expires = self.now + Duration::from_millis(self.rng.u64(20_000..30_000));
        if let Some(lease) = self.leases.get_mut(target) {
            lease.expires = Some(expires);
        }
        expires
    }

    fn returns(&mut self, one: &InstanceId) {
        let Some(instance) = self.instances.get_mut(one).filter(|instance| instance.away_until <= self.now) else {
            return;
        };
        instance.beaten = self.now;
        let engine = &instance.engine;
        // What has not run out is renewed.
        for (target, lease) in &mut self.leases {
            if lease.holder == *one && lease.expires.is_some() && engine.holder(target) == Some(one) {
                lease.expires = None;
            }
        }
        // Its heartbeat comes first: it has to listen again, and whatever could not be asked is asked again a moment later.
        let later = Duration::from_millis(self.rng.u64(0..900));
        self.push(self.now + later, Next::CatchUp(one.clone()));
    }

    fn catches_up(&mut self, one: &InstanceId) {
        let Some(instance) = self.instances.get_mut(one).filter(|instance| instance.away_until <= self.now) else {
            return;
        };
        let put_off = std::mem::take(&mut instance.put_off);
        self.give(one, Input::Gap);
        put_off.into_iter().for_each(|action| self.act(one, action));
    }

    fn gives_up(&mut self, one: &InstanceId, target: Target) {
        let doomed = |lease: &Lease| {
            lease.holder == *one && lease.expires.is_some_and(|expires| expires.since(self.now) <= MARGIN)
        };
        let holds = self.instances.get(one).is_some_and(|instance| instance.engine.holder(&target) == Some(one));
        if holds && self.leases.get(&target).is_some_and(doomed) {
            self.give(one, Input::Over { target, ending: Ending::Lost(Loss::Unreachable) });
        }
    }

    /// Whatever was wrong with anybody is over.
    pub fn heal(&mut self) {
        self.deaf = false;
        for instance in self.instances.values_mut() {
            instance.wedged = false;
        }
    }

    /// The numbers of those that are there.
    pub fn members(&self) -> Vec<usize> {
        let number = |one: &InstanceId| one.as_str().strip_prefix("api-").and_then(|n| n.parse().ok());
        self.instances.keys().filter_map(number).collect()
    }

    fn is_held_by(&self, target: &Target, one: &InstanceId) -> bool {
        self.leases.get(target).is_some_and(|lease| lease.holder == *one && self.lives(lease))
    }

    /// Many come and go at once: the others are told a little later.
    fn holds(&mut self, one: &InstanceId) {
        if let Some(instance) = self.instances.get_mut(one)
            && !std::mem::replace(&mut instance.tells, true)
        {
            self.push(self.now + TELL_AFTER, Next::Tell(one.clone()));
        }
    }

    fn tells(&mut self, one: &InstanceId) {
        if let Some(instance) = self.instances.get_mut(one) {
            instance.tells = false;
            instance.record.held.insert("poll".to_owned(), instance.engine.held());
            let (now, wall) = (self.now, UNIX_EPOCH + self.now.since(Moment::ZERO));
            let waits = |(id, left, crashes)| (id, HeldBack { until: wall + left, crashes });
            let waiting: Vec<_> = instance.engine.held_back(now).into_iter().map(waits).collect();
            instance.record.says_who_waits(&waiting);
            if instance.away_until <= self.now {
                instance.beaten = self.now;
            }
        }
    }

    fn server_time(&self) -> ServerTime {
        ServerTime::from_micros(self.now.as_nanos() / 1_000)
    }

    /// Whoever has taken a target reads when it was last worked on, and works on it when it is due again.
    fn begins_to_work(&mut self, one: &InstanceId, target: Target) {
        let now = self.server_time();
        let last = *self.marks.entry(target.clone()).or_insert(now);
        // Without a mark it would take the slot that it is in for its own.
        let last = if self.lapse == Some(Lapse::ReadingMarks) { ServerTime::from_micros(0) } else { last };
        let term = self.leases.get(&target).map_or(0, |lease| lease.term);
        self.await_tick(one, target, term, last);
    }

    fn await_tick(&mut self, one: &InstanceId, target: Target, term: u64, last: ServerTime) {
        let due = next_due(self.server_time(), last, TICK, phase(&target, TICK));
        let at = Moment::from_nanos(due.as_micros() * 1_000).max(self.now);
        self.push(at, Next::Tick(one.clone(), target, Tick { due, term }));
    }

    fn tick(&mut self, one: &InstanceId, target: &Target, Tick { due, term }: Tick) {
        if !self.leases.get(target).is_some_and(|lease| lease.is_renewed_by(one) && lease.term == term) {
            // A tick that cannot be claimed waits. Whoever has the target next begins anew.
            let away = self.instances.get(one).is_some_and(|instance| instance.away_until > self.now);
            if away && self.is_held_by(target, one) {
                self.push(self.now + secs(1), Next::Tick(one.clone(), target.clone(), Tick { due, term }));
            }
            return;
        }
        let last = self.marks.get(target).copied().unwrap_or(due);
        if due <= last {
            self.wrong.get_or_insert(format!("{target} is worked on twice for {due:?}"));
        }
        let slot = |time: ServerTime| time.as_micros().saturating_sub(phase(target, TICK)) / (TICK.as_micros() as u64);
        self.skipped += slot(due).saturating_sub(slot(last) + 1);
        self.marks.insert(target.clone(), due);
        self.await_tick(one, target.clone(), term, due);
    }

    fn push(&mut self, at: Moment, next: Next) {
        self.count += 1;
        self.queue.push(Reverse((at, self.count, next)));
    }

    /// How many each holds, strangers aside.
    pub fn counts(&self) -> BTreeMap<InstanceId, usize> {
        let mut counts: BTreeMap<InstanceId, usize> = self.instances.keys().map(|one| (one.clone(), 0)).collect();
        let kept = self.leases.values().filter(|lease| lease.expires.is_none());
        for lease in kept.filter(|lease| !self.strangers.contains(&lease.holder)) {
            *counts.entry(lease.holder.clone()).or_default() += 1;
        }
        counts
    }

    /// How much stands written of what an instance held.
    pub fn remembered(&self, n: usize) -> usize {
        self.indexes.get(&id(n)).map_or(0, BTreeSet::len)
    }

    /// When the heartbeat of an instance that was killed is late.
    pub fn late_at(&self, n: usize) -> Option<Moment> {
        let beaten = self.fading.iter().find(|(one, _, _)| *one == id(n)).map(|(_, _, beaten)| *beaten);
        beaten.map(|beaten| beaten + BEAT + BEAT / 5)
    }

    /// The instances that wait for their share because they crashed, as this one sees it: for how long, and how often they did.
    pub fn held_back(&self, n: usize) -> Vec<(InstanceId, Duration, u32)> {
        self.instances.get(&id(n)).map_or_else(Vec::new, |instance| instance.engine.held_back(self.now))
    }

    /// By how many the one with most and the one with least differ.
    pub fn spread(&self) -> usize {
        let counts = self.counts();
        let counts: Vec<usize> = counts.values().copied().collect();
        counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0)
    }

    /// How many targets nobody holds.
    pub fn dark(&self) -> usize {
        let held = |target: &&Target| self.leases.get(*target).is_some_and(|lease| self.lives(lease));
        self.targets.len() - self.targets.iter().filter(held).count()
    }

    /// Who has what.
    pub fn holders(&self) -> BTreeMap<Target, InstanceId> {
        self.leases.iter().map(|(target, lease)| (target.clone(), lease.holder.clone())).collect()
    }

    fn lives(&self, lease: &Lease) -> bool {
        lease.expires.is_none_or(|expires| expires > self.now)
    }

    /// Lets time pass.
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
                        Next::Return(one) => self.returns(&one),
                        Next::CatchUp(one) => self.catches_up(&one),
                        Next::Tell(one) => self.tells(&one),
                        Next::Doom(one, target) => self.gives_up(&one, target),
                        Next::Tick(one, target, tick) => self.tick(&one, &target, tick),
                        Next::Deliver(one, number) => {
                            if let Some(input) = self.inputs.remove(&number) {
                                let granted = match &input {
                                    Input::Granted(target) => Some(target.clone()),
                                    _ => None,
                                };
                                self.give(&one, input);
                                granted.into_iter().for_each(|target| self.begins_to_work(&one, target));
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
    pub fn unkept(&self) -> usize {
        let kept = |target: &&Target| self.leases.get(*target).is_some_and(|lease| lease.expires.is_none());
        self.targets.len() - self.targets.iter().filter(kept).count()
    }

    /// Goes on until everything is kept and balanced, and everybody has said what it holds; returns how long that took, if it came to that.
    pub fn settles(&mut self, within: Duration) -> Option<Duration> {
        let start = self.now;
        while self.now.since(start) < within {
            self.go_on(Duration::from_millis(100));
            if self.unkept() == 0 && self.spread() <= 1 && self.instances.values().all(|instance| !instance.tells) {
                return Some(self.now.since(start));
            }
        }
        None
    }

    fn beat(&mut self, one: &InstanceId) {
        if let Some(instance) = self.instances.get_mut(one) {
            if instance.away_until <= self.now {
                instance.beaten = self.now;
            }
            instance.next_beat = self.now + BEAT.mul_f64(0.9 + 0.1 * self.rng.f64());
        }
    }

    fn tell_all(&mut self, input: &Input, but: Option<&InstanceId>) {
        let now = self.now;
        let hears = |(one, instance): &(&InstanceId, &Instance)| Some(*one) != but && instance.away_until <= now;
        let ids: Vec<InstanceId> = self.instances.iter().filter(hears).map(|(one, _)| one.clone()).collect();
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
        self.inputs.insert(self.count + 1, input);
        self.push(at, Next::Deliver(one.clone(), self.count + 1));
    }

    fn give(&mut self, one: &InstanceId, input: Input) {
        let now = self.now;
        let Some(instance) = self.instances.get_mut(one) else { return };
        let actions = instance.engine.step(now, input);
        let wakes = instance.engine.next_wake().map_or(Moment::END, |at| at.max(now + Duration::from_micros(1)));
        instance.wakes = wakes;
        self.push(wakes, Next::Wake(one.clone()));
        for action in actions {
            self.act(one, action);
        }
    }

    fn act(&mut self, one: &InstanceId, action: Action) {
        match (self.lapse, &action) {
            (Some(Lapse::LookingUp), Action::LookUp(_)) | (Some(Lapse::HandingOver), Action::HandOver { .. }) => return,
            (Some(Lapse::LookingAfter), Action::LookAt(_)) => {
                self.later(self.now, one, Input::Holders(Vec::new()));
                return;
            }
            _ => {}
        }
        let now = self.now;
        let back = now + self.latency();
        if self.instances.get(one).is_some_and(|instance| instance.away_until > now) {
            match action {
                Action::ReadMembers => self.later(back, one, Input::Unread),
                Action::LookAt(_) => self.later(back, one, Input::Holders(Vec::new())),
                Action::Claim(target) => self.later(back, one, Input::Failed { target, again_in: secs(1) }),
                Action::Tell => self.holds(one),
                Action::Proclaim(_) | Action::Explain { .. } => {}
                later @ (Action::Inspect(_)
                | Action::LookUp(_)
                | Action::Release { .. }
                | Action::HandOver { .. }
                | Action::Forget { .. }) => {
                    if let Some(instance) = self.instances.get_mut(one) {
                        instance.put_off.push(later);
                    }
                }
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
                let fading = self.fading.iter().map(|(id, record, beaten)| Member {
                    instance: id.clone(),
                    record: record.encode(),
                    remaining: (*beaten + TTL).since(now),
                });
                let stranger = |id: &InstanceId| Member { instance: id.clone(), record: Vec::new(), remaining: TTL };
                let strangers = self.strangers.iter().map(stranger);
                let members = self.instances.iter().map(member).chain(fading).chain(strangers);
                let members = members.filter(|member| !member.remaining.is_zero()).collect();
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
                let held = lease.map(|lease| (lease.holder.clone(), Some(lease.expires.unwrap_or(now + TTL))));
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
                        self.leases
                            .insert(target.clone(), Lease { holder: one.clone(), expires: None, term: self.count });
                        self.indexes.entry(one.clone()).or_default().insert(target.clone());
                        if self.last_holder.insert(target.clone(), one.clone()).is_some_and(|last| last != *one) {
                            self.moves += 1;
                        }
                        self.later(back, one, Input::Granted(target.clone()));
                        if self.handed_back.get(&target) == Some(one) {
                            self.later(back + secs(1), one, Input::CameHome(target));
                        }
                    }
                }
            }
            Action::Release { target, reason } => {
                if !self.is_held_by(&target, one) {
                    return;
                }
                self.leases.remove(&target);
                self.indexes.entry(one.clone()).or_default().remove(&target);
                self.announce(&Input::Released(target.clone()));
                self.later(back, one, Input::Over { target, ending: Ending::Released(reason) });
            }
            Action::HandOver { target, to, reason } => {
                if !self.is_held_by(&target, one) {
                    return;
                }
                self.handed_back.remove(&target);
                if reason == Reason::HandBack {
                    self.handed_back.insert(target.clone(), to.clone());
                }
                let lease = Lease { holder: to.clone(), expires: Some(now + WINDOW), term: self.count };
                self.leases.insert(target.clone(), lease);
                self.indexes.entry(one.clone()).or_default().remove(&target);
                self.indexes.entry(to.clone()).or_default().insert(target.clone());
                self.announce(&Input::HandedOver { target: target.clone(), to });
                let ending = Ending::Released(released_because(reason));
                self.later(back, one, Input::Over { target, ending });
            }
            Action::Proclaim(target) => self.announce(&Input::Vacant(target)),
            Action::Explain { .. } => {}
            Action::Forget { instance, target } => {
                self.indexes.entry(instance).or_default().remove(&target);
            }
            Action::Tell => self.holds(one),
        }
    }
}
