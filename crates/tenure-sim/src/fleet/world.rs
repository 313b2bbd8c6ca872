//! A fleet of engines around one table of leases, in simulated time. Lease safety is not simulated here (the rest of
//! the simulator does that): a lease expires on time, and its holder knows.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::{Duration, UNIX_EPOCH};

use tenure_core::InstanceId;
use tenure_core::ending::{Ending, Loss};
use tenure_core::fleet::{CrashBackoff, InstanceRecord, InstanceStatus};
use tenure_core::placement::{FULL_WEIGHT, MoveReason};
use tenure_core::pool::{Engine, EngineSettings, PoolAction, PoolInput, TargetName, next_due, phase, release_reason};
use tenure_core::store::LiveInstance;
use tenure_core::time::{Moment, ServerTime};

/// Time that a lease lasts without renewal.
pub const TTL: Duration = Duration::from_secs(30);
/// Margin by which the holder lets a lease expire before the store does.
const EXPIRY_MARGIN: Duration = Duration::from_millis(200);
/// Interval between two ticks of a target.
const TICK_INTERVAL: Duration = Duration::from_secs(5);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
const ACCEPT_WINDOW: Duration = Duration::from_secs(3);
/// Delay until an instance publishes its number of held targets.
const REPORT_DELAY: Duration = Duration::from_millis(200);

/// A duration of this many seconds.
pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Settings of a pool with that ttl.
pub fn settings() -> EngineSettings {
    EngineSettings {
        max_claim_delay: secs(1),
        settle: secs(3),
        max_settle: secs(30),
        accept_window: ACCEPT_WINDOW,
        read_every: secs(10),
        late_recheck_every: secs(5),
        reconcile_every: secs(10),
        outage_grace: TTL,
        hand_back: true,
    }
}

struct SimInstance {
    engine: Engine,
    record: InstanceRecord,
    last_heartbeat: Moment,
    next_heartbeat: Moment,
    /// Time of the next wake-up. Other wake-ups are stale and ignored.
    wakes: Moment,
    /// Whether it is alive and sends heartbeats, but never claims a target.
    wedged: bool,
    /// Time at which it learns of the last change of the targets.
    targets_known_at: Moment,
    /// End of its partition from the store.
    unreachable_until: Moment,
    /// Actions to perform when the partition ends.
    deferred: Vec<PoolAction>,
    /// Whether a report of its held targets is scheduled.
    report_pending: bool,
}

#[derive(Clone)]
struct SimLease {
    holder: InstanceId,
    /// `None` while it is renewed.
    expires: Option<Moment>,
    /// Number of the grant.
    term: u64,
}

impl SimLease {
    fn is_renewed_by(&self, one: &InstanceId) -> bool {
        self.holder == *one && self.expires.is_none()
    }
}

/// A tick that is due in one term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DueTick {
    due: ServerTime,
    term: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FleetSimEvent {
    Wake(InstanceId),
    Deliver(InstanceId, u64),
    /// An instance can reach the store again.
    Reconnect(InstanceId),
    /// An instance knows that it was partitioned and performs its deferred actions.
    CatchUp(InstanceId),
    /// A holder gives up a lease that it could not renew.
    Expire(InstanceId, TargetName),
    /// An instance publishes its number of held targets.
    ReportHeld(InstanceId),
    /// A tick is due.
    Tick(InstanceId, TargetName, DueTick),
}

/// A mutation of the driver: an action that it skips. It proves that the checks can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetMutation {
    /// No instance looks up the targets that a dead instance held.
    SkipIndexLookup,
    /// No instance hands over a target.
    SkipHandOver,
    /// A new holder of a target does not read its last tick.
    IgnoreMarks,
    /// No instance checks whether a target that it handed over was accepted.
    SkipHolderCheck,
}

/// The simulated fleet.
pub struct FleetWorld {
    /// The current time.
    pub now: Moment,
    instances: BTreeMap<InstanceId, SimInstance>,
    leases: BTreeMap<TargetName, SimLease>,
    indexes: BTreeMap<InstanceId, BTreeSet<TargetName>>,
    /// Foreign programs: they have a heartbeat, but publish no record.
    foreign_instances: BTreeSet<InstanceId>,
    /// The remaining heartbeats of killed instances.
    dead_heartbeats: Vec<(InstanceId, InstanceRecord, Moment)>,
    targets: BTreeSet<TargetName>,
    queue: BinaryHeap<Reverse<(Moment, u64, FleetSimEvent)>>,
    inputs: BTreeMap<u64, PoolInput>,
    sequence: u64,
    /// Number of times that a target changed its holder.
    pub moves: usize,
    /// Number of reads from the store.
    pub reads: usize,
    last_holder: BTreeMap<TargetName, InstanceId>,
    /// The last tick of each target.
    marks: BTreeMap<TargetName, ServerTime>,
    /// Number of skipped ticks.
    pub skipped_ticks: u64,
    /// The first violation.
    pub violation: Option<String>,
    /// Whether announcements are lost.
    pub drops_announcements: bool,
    /// The mutation, if any.
    pub mutation: Option<FleetMutation>,
    hand_back: bool,
    /// Targets handed back to an instance after its restart, as the previous holder recorded them.
    handed_back: BTreeMap<TargetName, InstanceId>,
    rng: fastrand::Rng,
}

/// The id of an instance.
pub fn id(n: usize) -> InstanceId {
    InstanceId::foreign(&format!("api-{n}"))
}

impl FleetWorld {
    /// Creates a fleet without instances.
    pub fn new(seed: u64, targets: usize) -> Self {
        Self {
            now: Moment::ZERO + secs(1_000),
            instances: BTreeMap::new(),
            leases: BTreeMap::new(),
            indexes: BTreeMap::new(),
            foreign_instances: BTreeSet::new(),
            dead_heartbeats: Vec::new(),
            targets: (0..targets).map(|n| TargetName::from(format!("endpoint-{n}"))).collect(),
            queue: BinaryHeap::new(),
            inputs: BTreeMap::new(),
            sequence: 0,
            moves: 0,
            reads: 0,
            last_holder: BTreeMap::new(),
            marks: BTreeMap::new(),
            skipped_ticks: 0,
            violation: None,
            drops_announcements: false,
            mutation: None,
            hand_back: true,
            handed_back: BTreeMap::new(),
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    /// Adds an instance.
    pub fn join(&mut self, n: usize) {
        self.join_with(n, FULL_WEIGHT, false);
    }

    /// Adds an instance of this weight. A wedged instance never claims a target.
    pub fn join_with(&mut self, n: usize, weight: u32, wedged: bool) {
        self.join_as(n, &format!("api-{n}"), weight, wedged);
    }

    /// Adds an instance of this name: a restart of the instance that had the name before.
    pub fn join_as(&mut self, n: usize, name: &str, weight: u32, wedged: bool) {
        self.join_with_record(
            n,
            InstanceRecord { is_named: true, ..InstanceRecord::new(name, UNIX_EPOCH) },
            weight,
            wedged,
        );
    }

    /// Adds an instance without a name of its own on a host that it shares with others.
    pub fn join_unnamed(&mut self, n: usize, host: &str) {
        self.join_with_record(n, InstanceRecord::new(host, UNIX_EPOCH), FULL_WEIGHT, false);
    }

    /// Sets whether instances that join from now on hand back the targets of a restarted instance.
    pub fn set_hand_back(&mut self, hand_back: bool) {
        self.hand_back = hand_back;
    }

    fn join_with_record(&mut self, n: usize, mut record: InstanceRecord, weight: u32, wedged: bool) {
        record.weight = weight;
        record.started_at = UNIX_EPOCH + self.now.since(Moment::ZERO);
        record.held.insert("poll".to_owned(), 0);
        let engine = Engine::new(id(n), "poll", weight, EngineSettings { hand_back: self.hand_back, ..settings() });
        let now = self.now;
        let next_heartbeat = now + HEARTBEAT_INTERVAL;
        let (wakes, unreachable_until, targets_known_at) = (Moment::END, now, now);
        let instance = SimInstance {
            engine,
            record,
            last_heartbeat: now,
            next_heartbeat,
            wakes,
            wedged,
            targets_known_at,
            unreachable_until,
            deferred: Vec::new(),
            report_pending: false,
        };
        self.instances.insert(id(n), instance);
        self.broadcast(&PoolInput::FleetChanged, Some(&id(n)));
        self.step_engine(&id(n), PoolInput::Targets(self.targets.clone()));
    }

    /// Adds a foreign program that holds these targets.
    pub fn add_foreign(&mut self, name: &str, holds: impl IntoIterator<Item = usize>) {
        let one = InstanceId::foreign(name);
        self.foreign_instances.insert(one.clone());
        for n in holds {
            let lease = SimLease { holder: one.clone(), expires: None, term: 0 };
            self.leases.insert(TargetName::from(format!("endpoint-{n}")), lease);
        }
        self.broadcast(&PoolInput::FleetChanged, None);
    }

    /// Changes the set of targets.
    pub fn set_targets(&mut self, targets: impl IntoIterator<Item = usize>) {
        self.targets = targets.into_iter().map(|n| TargetName::from(format!("endpoint-{n}"))).collect();
        // Instances learn of a change at different times, but each of them in the order of the changes.
        for one in self.instances.keys().cloned().collect::<Vec<_>>() {
            let delivered_at = self.now + self.latency();
            let Some(instance) = self.instances.get_mut(&one) else { continue };
            instance.targets_known_at = delivered_at.max(instance.targets_known_at + Duration::from_micros(1));
            let (at, targets) = (instance.targets_known_at, self.targets.clone());
            self.deliver_at(at, &one, PoolInput::Targets(targets));
        }
    }

    /// Kills an instance. Its leases and its heartbeat expire, each at its own time.
    pub fn kill(&mut self, n: usize) {
        if let Some(dead) = self.instances.remove(&id(n)) {
            self.dead_heartbeats.push((id(n), dead.record, dead.last_heartbeat));
        }
        let mine = |(_, lease): &(&TargetName, &SimLease)| lease.is_renewed_by(&id(n));
        for target in self.leases.iter().filter(mine).map(|(target, _)| target.clone()).collect::<Vec<_>>() {
            self.let_expire(&target);
        }
    }

    /// Announces that an instance is leaving.
    pub fn drain(&mut self, n: usize) {
        if let Some(instance) = self.instances.get_mut(&id(n)) {
            instance.record.status = InstanceStatus::Draining;
            instance.last_heartbeat = self.now;
        }
        self.broadcast(&PoolInput::FleetChanged, Some(&id(n)));
        self.step_engine(&id(n), PoolInput::Drain);
    }

    /// Sets whether an instance can work.
    pub fn set_able(&mut self, n: usize, able: bool) {
        if let Some(instance) = self.instances.get_mut(&id(n)) {
            instance.record.set_able("poll", able);
            instance.last_heartbeat = self.now;
        }
        self.broadcast(&PoolInput::FleetChanged, Some(&id(n)));
        self.step_engine(&id(n), PoolInput::Able(able));
    }

    /// Removes an instance that has announced its leave.
    pub fn leave(&mut self, n: usize) {
        // It releases the targets that it could not hand over, if it can reach the store.
        let left = self.instances.remove(&id(n));
        let away = left.is_some_and(|instance| instance.unreachable_until > self.now);
        let mine = |(_, lease): &(&TargetName, &SimLease)| lease.is_renewed_by(&id(n));
        for target in self.leases.iter().filter(mine).map(|(target, _)| target.clone()).collect::<Vec<_>>() {
            if away {
                self.let_expire(&target);
            } else {
                self.leases.remove(&target);
                self.announce(&PoolInput::Released(target));
            }
        }
        self.broadcast(&PoolInput::FleetChanged, None);
    }

    /// Makes an instance the reconciler.
    pub fn set_reconciler(&mut self, n: usize) {
        self.step_engine(&id(n), PoolInput::Reconciler(true));
    }

    /// Partitions every instance from the store. The instances reconnect at different times.
    pub fn outage(&mut self, span: Duration) {
        for one in self.alive_instances() {
            let late = Duration::from_millis(self.rng.u64(0..4_000));
            self.partition(one, span + late);
        }
    }

    /// Partitions an instance from the store for a while.
    pub fn partition(&mut self, n: usize, span: Duration) {
        let (one, now) = (id(n), self.now);
        let Some(instance) = self.instances.get_mut(&one).filter(|instance| instance.unreachable_until <= now) else {
            return;
        };
        instance.unreachable_until = now + span;
        self.push(now + span, FleetSimEvent::Reconnect(one.clone()));
        let mine: Vec<TargetName> = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.is_renewed_by(&one))
            .map(|(target, _)| target.clone())
            .collect();
        for target in mine {
            let expires = self.let_expire(&target);
            self.push(expires - EXPIRY_MARGIN, FleetSimEvent::Expire(one.clone(), target));
        }
    }

    /// Stops the renewal of a lease, which was last renewed up to an interval ago.
    fn let_expire(&mut self, target: &TargetName) -> Moment {
        let expires = self.now + Duration::from_millis(self.rng.u64(20_000..30_000));
        if let Some(lease) = self.leases.get_mut(target) {
            lease.expires = Some(expires);
        }
        expires
    }

    fn reconnect(&mut self, one: &InstanceId) {
        let Some(instance) = self.instances.get_mut(one).filter(|instance| instance.unreachable_until <= self.now)
        else {
            return;
        };
        instance.last_heartbeat = self.now;
        let engine = &instance.engine;
        // Leases that have not expired are renewed.
        for (target, lease) in &mut self.leases {
            if lease.holder == *one && lease.expires.is_some() && engine.holder(target) == Some(one) {
                lease.expires = None;
            }
        }
        // Its heartbeat comes first: it must subscribe again, and its deferred requests follow a moment later.
        let later = Duration::from_millis(self.rng.u64(0..900));
        self.push(self.now + later, FleetSimEvent::CatchUp(one.clone()));
    }

    fn catch_up(&mut self, one: &InstanceId) {
        let Some(instance) = self.instances.get_mut(one).filter(|instance| instance.unreachable_until <= self.now)
        else {
            return;
        };
        let deferred = std::mem::take(&mut instance.deferred);
        self.step_engine(one, PoolInput::Gap);
        deferred.into_iter().for_each(|action| self.apply_action(one, action));
    }

    fn give_up(&mut self, one: &InstanceId, target: TargetName) {
        let doomed = |lease: &SimLease| {
            lease.holder == *one && lease.expires.is_some_and(|expires| expires.since(self.now) <= EXPIRY_MARGIN)
        };
        let holds = self.instances.get(one).is_some_and(|instance| instance.engine.holder(&target) == Some(one));
        if holds && self.leases.get(&target).is_some_and(doomed) {
            self.step_engine(one, PoolInput::TermEnded { target, ending: Ending::Lost(Loss::Unreachable) });
        }
    }

    /// Ends every fault.
    pub fn heal(&mut self) {
        self.drops_announcements = false;
        for instance in self.instances.values_mut() {
            instance.wedged = false;
        }
    }

    /// The numbers of the instances that are alive.
    pub fn alive_instances(&self) -> Vec<usize> {
        let number = |one: &InstanceId| one.as_str().strip_prefix("api-").and_then(|n| n.parse().ok());
        self.instances.keys().filter_map(number).collect()
    }

    fn is_held_by(&self, target: &TargetName, one: &InstanceId) -> bool {
        self.leases.get(target).is_some_and(|lease| lease.holder == *one && self.is_alive(lease))
    }

    /// Schedules a report. The delay combines many changes into one report.
    fn schedule_report(&mut self, one: &InstanceId) {
        if let Some(instance) = self.instances.get_mut(one)
            && !std::mem::replace(&mut instance.report_pending, true)
        {
            self.push(self.now + REPORT_DELAY, FleetSimEvent::ReportHeld(one.clone()));
        }
    }

    fn report_held(&mut self, one: &InstanceId) {
        if let Some(instance) = self.instances.get_mut(one) {
            instance.report_pending = false;
            instance.record.held.insert("poll".to_owned(), instance.engine.held());
            let (now, wall) = (self.now, UNIX_EPOCH + self.now.since(Moment::ZERO));
            let waits = |(id, left, crashes)| (id, CrashBackoff { until: wall + left, crashes });
            instance.record.crash_backoffs = instance.engine.crash_backoffs(now).into_iter().map(waits).collect();
            if instance.unreachable_until <= self.now {
                instance.last_heartbeat = self.now;
            }
        }
    }

    fn server_time(&self) -> ServerTime {
        ServerTime::from_micros(self.now.as_nanos() / 1_000)
    }

    /// Starts work on an acquired target: reads its last tick and schedules the next one.
    fn start_work(&mut self, one: &InstanceId, target: TargetName) {
        let now = self.server_time();
        let last = *self.marks.entry(target.clone()).or_insert(now);
        // Without a mark, the new holder would run the current slot again.
        let last = if self.mutation == Some(FleetMutation::IgnoreMarks) { ServerTime::from_micros(0) } else { last };
        let term = self.leases.get(&target).map_or(0, |lease| lease.term);
        self.schedule_tick(one, target, term, last);
    }

    fn schedule_tick(&mut self, one: &InstanceId, target: TargetName, term: u64, last: ServerTime) {
        let due = next_due(self.server_time(), last, TICK_INTERVAL, phase(&target, TICK_INTERVAL));
        let at = Moment::from_nanos(due.as_micros() * 1_000).max(self.now);
        self.push(at, FleetSimEvent::Tick(one.clone(), target, DueTick { due, term }));
    }

    fn run_tick(&mut self, one: &InstanceId, target: &TargetName, DueTick { due, term }: DueTick) {
        if !self.leases.get(target).is_some_and(|lease| lease.is_renewed_by(one) && lease.term == term) {
            // A tick that cannot be claimed waits. The next holder of the target starts afresh.
            let away = self.instances.get(one).is_some_and(|instance| instance.unreachable_until > self.now);
            if away && self.is_held_by(target, one) {
                self.push(self.now + secs(1), FleetSimEvent::Tick(one.clone(), target.clone(), DueTick { due, term }));
            }
            return;
        }
        let last = self.marks.get(target).copied().unwrap_or(due);
        if due <= last {
            self.violation.get_or_insert(format!("{target} ran twice for {due:?}"));
        }
        let slot = |time: ServerTime| {
            time.as_micros().saturating_sub(phase(target, TICK_INTERVAL)) / (TICK_INTERVAL.as_micros() as u64)
        };
        self.skipped_ticks += slot(due).saturating_sub(slot(last) + 1);
        self.marks.insert(target.clone(), due);
        self.schedule_tick(one, target.clone(), term, due);
    }

    fn push(&mut self, at: Moment, next: FleetSimEvent) {
        self.sequence += 1;
        self.queue.push(Reverse((at, self.sequence, next)));
    }

    /// Number of targets held by each instance, without foreign programs.
    pub fn counts(&self) -> BTreeMap<InstanceId, usize> {
        let mut counts: BTreeMap<InstanceId, usize> = self.instances.keys().map(|one| (one.clone(), 0)).collect();
        let kept = self.leases.values().filter(|lease| lease.expires.is_none());
        for lease in kept.filter(|lease| !self.foreign_instances.contains(&lease.holder)) {
            *counts.entry(lease.holder.clone()).or_default() += 1;
        }
        counts
    }

    /// Number of targets in the index of what an instance held.
    pub fn indexed_targets(&self, n: usize) -> usize {
        self.indexes.get(&id(n)).map_or(0, BTreeSet::len)
    }

    /// Time from which the heartbeat of a killed instance is late.
    pub fn heartbeat_late_at(&self, n: usize) -> Option<Moment> {
        let last_heartbeat =
            self.dead_heartbeats.iter().find(|(one, _, _)| *one == id(n)).map(|(_, _, last_heartbeat)| *last_heartbeat);
        last_heartbeat.map(|last_heartbeat| last_heartbeat + HEARTBEAT_INTERVAL + HEARTBEAT_INTERVAL / 5)
    }

    /// The instances in crash backoff, as this instance sees it: the remaining time and the number of crashes.
    pub fn crash_backoffs(&self, n: usize) -> Vec<(InstanceId, Duration, u32)> {
        self.instances.get(&id(n)).map_or_else(Vec::new, |instance| instance.engine.crash_backoffs(self.now))
    }

    /// Difference between the largest and smallest number of targets held by an instance.
    pub fn spread(&self) -> usize {
        let counts = self.counts();
        let counts: Vec<usize> = counts.values().copied().collect();
        counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0)
    }

    /// Number of unheld targets.
    pub fn unheld(&self) -> usize {
        let held = |target: &&TargetName| self.leases.get(*target).is_some_and(|lease| self.is_alive(lease));
        self.targets.len() - self.targets.iter().filter(held).count()
    }

    /// The holder of each target.
    pub fn holders(&self) -> BTreeMap<TargetName, InstanceId> {
        self.leases.iter().map(|(target, lease)| (target.clone(), lease.holder.clone())).collect()
    }

    fn is_alive(&self, lease: &SimLease) -> bool {
        lease.expires.is_none_or(|expires| expires > self.now)
    }

    /// Runs the simulation for this long.
    pub fn run_for(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            let beat = self.instances.iter().map(|(one, instance)| (instance.next_heartbeat, one.clone())).min();
            let next = self.queue.peek().map(|Reverse((at, _, _))| *at);
            match (beat, next) {
                (Some((at, one)), next) if at <= end && next.is_none_or(|next| at <= next) => {
                    self.now = self.now.max(at);
                    self.heartbeat(&one);
                }
                (_, Some(at)) if at <= end => {
                    let Some(Reverse((at, _, next))) = self.queue.pop() else { break };
                    self.now = self.now.max(at);
                    match next {
                        FleetSimEvent::Wake(one) => {
                            if self.instances.get(&one).is_some_and(|instance| instance.wakes == at) {
                                self.step_engine(&one, PoolInput::Tick);
                            }
                        }
                        FleetSimEvent::Reconnect(one) => self.reconnect(&one),
                        FleetSimEvent::CatchUp(one) => self.catch_up(&one),
                        FleetSimEvent::ReportHeld(one) => self.report_held(&one),
                        FleetSimEvent::Expire(one, target) => self.give_up(&one, target),
                        FleetSimEvent::Tick(one, target, tick) => self.run_tick(&one, &target, tick),
                        FleetSimEvent::Deliver(one, number) => {
                            if let Some(input) = self.inputs.remove(&number) {
                                let granted = match &input {
                                    PoolInput::Granted(target) => Some(target.clone()),
                                    _ => None,
                                };
                                self.step_engine(&one, input);
                                granted.into_iter().for_each(|target| self.start_work(&one, target));
                            }
                        }
                    }
                }
                _ => break,
            }
        }
        self.now = end;
    }

    /// Number of targets that no instance renews.
    pub fn unrenewed(&self) -> usize {
        let kept = |target: &&TargetName| self.leases.get(*target).is_some_and(|lease| lease.expires.is_none());
        self.targets.len() - self.targets.iter().filter(kept).count()
    }

    /// Runs until every target is renewed and balanced and every instance has published its count. Returns the time it
    /// took, or `None` on timeout.
    pub fn run_until_settled(&mut self, within: Duration) -> Option<Duration> {
        let start = self.now;
        while self.now.since(start) < within {
            self.run_for(Duration::from_millis(100));
            if self.unrenewed() == 0
                && self.spread() <= 1
                && self.instances.values().all(|instance| !instance.report_pending)
            {
                return Some(self.now.since(start));
            }
        }
        None
    }

    fn heartbeat(&mut self, one: &InstanceId) {
        if let Some(instance) = self.instances.get_mut(one) {
            if instance.unreachable_until <= self.now {
                instance.last_heartbeat = self.now;
            }
            instance.next_heartbeat = self.now + HEARTBEAT_INTERVAL.mul_f64(0.9 + 0.1 * self.rng.f64());
        }
    }

    fn broadcast(&mut self, input: &PoolInput, but: Option<&InstanceId>) {
        let now = self.now;
        let is_reachable =
            |(one, instance): &(&InstanceId, &SimInstance)| Some(*one) != but && instance.unreachable_until <= now;
        let ids: Vec<InstanceId> = self.instances.iter().filter(is_reachable).map(|(one, _)| one.clone()).collect();
        for one in ids {
            let late = self.latency();
            self.deliver_at(self.now + late, &one, input.clone());
        }
    }

    fn announce(&mut self, input: &PoolInput) {
        if !self.drops_announcements {
            self.broadcast(input, None);
        }
    }

    fn latency(&mut self) -> Duration {
        Duration::from_micros(self.rng.u64(300..3_000))
    }

    fn deliver_at(&mut self, at: Moment, one: &InstanceId, input: PoolInput) {
        self.inputs.insert(self.sequence + 1, input);
        self.push(at, FleetSimEvent::Deliver(one.clone(), self.sequence + 1));
    }

    fn step_engine(&mut self, one: &InstanceId, input: PoolInput) {
        let now = self.now;
        let Some(instance) = self.instances.get_mut(one) else { return };
        let actions = instance.engine.step(now, input);
        let wakes = instance.engine.next_wake().map_or(Moment::END, |at| at.max(now + Duration::from_micros(1)));
        instance.wakes = wakes;
        self.push(wakes, FleetSimEvent::Wake(one.clone()));
        for action in actions {
            self.apply_action(one, action);
        }
    }

    fn apply_action(&mut self, one: &InstanceId, action: PoolAction) {
        match (self.mutation, &action) {
            (Some(FleetMutation::SkipIndexLookup), PoolAction::QueryHeldIndex(_))
            | (Some(FleetMutation::SkipHandOver), PoolAction::HandOver { .. }) => return,
            (Some(FleetMutation::SkipHolderCheck), PoolAction::QueryHolders(_)) => {
                self.deliver_at(self.now, one, PoolInput::Holders(Vec::new()));
                return;
            }
            _ => {}
        }
        let now = self.now;
        let back = now + self.latency();
        if self.instances.get(one).is_some_and(|instance| instance.unreachable_until > now) {
            match action {
                PoolAction::ReadInstances => self.deliver_at(back, one, PoolInput::ReadFailed),
                PoolAction::QueryHolders(_) => self.deliver_at(back, one, PoolInput::Holders(Vec::new())),
                PoolAction::Claim(target) => {
                    self.deliver_at(back, one, PoolInput::Failed { target, retry_after: secs(1) })
                }
                PoolAction::PublishRecord => self.schedule_report(one),
                PoolAction::AnnounceUnheld(_) | PoolAction::RecordTakeover { .. } => {}
                later @ (PoolAction::Inspect(_)
                | PoolAction::QueryHeldIndex(_)
                | PoolAction::Release { .. }
                | PoolAction::HandOver { .. }
                | PoolAction::Forget { .. }) => {
                    if let Some(instance) = self.instances.get_mut(one) {
                        instance.deferred.push(later);
                    }
                }
            }
            return;
        }
        match action {
            PoolAction::ReadInstances => {
                self.reads += 1;
                let member = |(id, instance): (&InstanceId, &SimInstance)| {
                    let remaining = (instance.last_heartbeat + TTL).since(now);
                    LiveInstance { instance: id.clone(), record: instance.record.encode(), remaining }
                };
                let fading = self.dead_heartbeats.iter().map(|(id, record, last_heartbeat)| LiveInstance {
                    instance: id.clone(),
                    record: record.encode(),
                    remaining: (*last_heartbeat + TTL).since(now),
                });
                let stranger =
                    |id: &InstanceId| LiveInstance { instance: id.clone(), record: Vec::new(), remaining: TTL };
                let strangers = self.foreign_instances.iter().map(stranger);
                let members = self.instances.iter().map(member).chain(fading).chain(strangers);
                let members = members.filter(|member| !member.remaining.is_zero()).collect();
                self.deliver_at(back, one, PoolInput::Instances(members));
            }
            PoolAction::QueryHolders(targets) => {
                self.reads += targets.len();
                let holder = |target: TargetName| {
                    let holder =
                        self.leases.get(&target).filter(|lease| self.is_alive(lease)).map(|l| l.holder.clone());
                    (target, holder)
                };
                let holders = targets.into_iter().map(holder).collect();
                self.deliver_at(back, one, PoolInput::Holders(holders));
            }
            PoolAction::Inspect(target) => {
                self.reads += 1;
                let lease = self.leases.get(&target).filter(|lease| self.is_alive(lease));
                let held = lease.map(|lease| (lease.holder.clone(), Some(lease.expires.unwrap_or(now + TTL))));
                self.deliver_at(back, one, PoolInput::Report { target, held });
            }
            PoolAction::QueryHeldIndex(instance) => {
                self.reads += 1;
                let targets = self.indexes.get(&instance).into_iter().flatten().cloned().collect();
                self.deliver_at(back, one, PoolInput::PreviouslyHeld { instance, targets });
            }
            PoolAction::Claim(target) => {
                if self.instances.get(one).is_some_and(|instance| instance.wedged) {
                    self.deliver_at(back + secs(5), one, PoolInput::Failed { target, retry_after: secs(5) });
                    return;
                }
                let lease = self.leases.get(&target).filter(|lease| self.is_alive(lease)).cloned();
                match lease {
                    Some(lease) if lease.holder != *one => {
                        let remaining = Some(lease.expires.map_or(TTL, |at| at.since(now)));
                        self.deliver_at(back, one, PoolInput::Refused { target, holder: lease.holder, remaining });
                    }
                    _ => {
                        self.leases.insert(
                            target.clone(),
                            SimLease { holder: one.clone(), expires: None, term: self.sequence },
                        );
                        self.indexes.entry(one.clone()).or_default().insert(target.clone());
                        if self.last_holder.insert(target.clone(), one.clone()).is_some_and(|last| last != *one) {
                            self.moves += 1;
                        }
                        self.deliver_at(back, one, PoolInput::Granted(target.clone()));
                        if self.handed_back.get(&target) == Some(one) {
                            self.deliver_at(back + secs(1), one, PoolInput::HandedBack(target));
                        }
                    }
                }
            }
            PoolAction::Release { target, reason } => {
                if !self.is_held_by(&target, one) {
                    return;
                }
                self.leases.remove(&target);
                self.indexes.entry(one.clone()).or_default().remove(&target);
                self.announce(&PoolInput::Released(target.clone()));
                self.deliver_at(back, one, PoolInput::TermEnded { target, ending: Ending::Released(reason) });
            }
            PoolAction::HandOver { target, to, reason } => {
                if !self.is_held_by(&target, one) {
                    return;
                }
                self.handed_back.remove(&target);
                if reason == MoveReason::HandBack {
                    self.handed_back.insert(target.clone(), to.clone());
                }
                let lease = SimLease { holder: to.clone(), expires: Some(now + ACCEPT_WINDOW), term: self.sequence };
                self.leases.insert(target.clone(), lease);
                self.indexes.entry(one.clone()).or_default().remove(&target);
                self.indexes.entry(to.clone()).or_default().insert(target.clone());
                self.announce(&PoolInput::HandedOver { target: target.clone(), to });
                let ending = Ending::Released(release_reason(reason));
                self.deliver_at(back, one, PoolInput::TermEnded { target, ending });
            }
            PoolAction::AnnounceUnheld(target) => self.announce(&PoolInput::Unheld(target)),
            PoolAction::RecordTakeover { .. } => {}
            PoolAction::Forget { instance, target } => {
                self.indexes.entry(instance).or_default().remove(&target);
            }
            PoolAction::PublishRecord => self.schedule_report(one),
        }
    }
}
