//! A fleet around one store, in simulated time. Each instance runs the library's managers of leases and of a pool; the
//! store is the library's ledger. Clocks are exact and the store loses nothing: other worlds simulate that.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::{Duration, UNIX_EPOCH};

use tenure_core::fleet::InstanceRecord;
use tenure_core::ledger::{Ledger, ServerInfo};
use tenure_core::mutation::Mutation;
use tenure_core::placement::FULL_WEIGHT;
use tenure_core::pool::{EngineSettings, Naming, PoolConfig, TargetName, held_index, phase};
use tenure_core::store::{
    Announcement, DocumentRequest, Generation, LeaseRequest, MembershipRequest, Reply, Request, ServerRun,
};
use tenure_core::time::{Moment, ServerTime};
use tenure_core::{Group, InstanceId};

use super::instance::worker::TICK_INTERVAL;
use super::instance::{FleetInstance, FromStore, InstanceEffect, InstanceTimer, ToStore};

/// Time that a lease lasts without renewal.
pub const TTL: Duration = Duration::from_secs(30);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// How soon a failed claim is retried.
const RETRY_CLAIM_AFTER: Duration = Duration::from_secs(10);

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
        accept_window: secs(3),
        read_every: secs(10),
        late_recheck_every: secs(5),
        reconcile_every: secs(10),
        outage_grace: TTL,
        hand_back: true,
    }
}

/// The network and the link of an instance.
#[derive(Debug, Default)]
struct Wire {
    /// End of its partition from the store.
    unreachable_until: Moment,
    /// When the last message in each direction arrives: messages keep their order.
    last_to_store: Moment,
    last_from_store: Moment,
    /// Since when it is attached; announcements reach it from then on.
    is_attached: bool,
}

#[derive(Debug)]
enum FleetSimEvent {
    Timer(InstanceId, InstanceTimer),
    ToStore(InstanceId, ToStore),
    FromStore(InstanceId, FromStore),
    /// An instance learns of a change of the targets.
    Targets(InstanceId, BTreeSet<TargetName>),
    /// A foreign program sends a heartbeat and renews its leases.
    ForeignBeat(InstanceId),
}

/// An event and its time. Events at the same time keep the order in which they were scheduled.
#[derive(Debug)]
struct Scheduled {
    at: Moment,
    order: u64,
    event: FleetSimEvent,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// A mutation. It proves that the checks can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetMutation {
    /// A bug in what decides.
    Core(Mutation),
    /// No instance looks up the targets that a dead instance held.
    SkipIndexLookup,
    /// No instance hands over a target.
    SkipHandOver,
    /// A new holder of a target ignores its last tick.
    IgnoreMarks,
    /// A tick is worked on without a claim in the store.
    SkipClaims,
    /// A tick that was claimed ahead is not given back.
    KeepClaims,
    /// No instance checks whether a target that it handed over was accepted.
    SkipHolderCheck,
}

/// The simulated fleet.
pub struct FleetWorld {
    /// The current time.
    pub now: Moment,
    store: Ledger,
    generation: Generation,
    naming: Naming,
    instances: BTreeMap<InstanceId, FleetInstance>,
    wires: BTreeMap<InstanceId, Wire>,
    /// Foreign programs and the targets that they hold: they have a heartbeat, but publish no record.
    foreign_instances: BTreeMap<InstanceId, Vec<TargetName>>,
    /// When the store last received a heartbeat of each instance.
    last_heartbeats: BTreeMap<InstanceId, Moment>,
    targets: BTreeSet<TargetName>,
    targets_known_at: BTreeMap<InstanceId, Moment>,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    /// Number of times that a target changed its holder.
    pub moves: usize,
    /// Number of reads from the store.
    pub reads: usize,
    last_holder: BTreeMap<TargetName, InstanceId>,
    /// The last tick of each target that was worked on.
    worked: BTreeMap<TargetName, ServerTime>,
    /// Number of skipped ticks.
    pub skipped_ticks: u64,
    /// The first violation.
    pub violation: Option<String>,
    /// Whether announcements are lost.
    pub drops_announcements: bool,
    /// The mutation, if any.
    pub mutation: Option<FleetMutation>,
    hand_back: bool,
    /// Whether work is late, stuck for a while or panics now and then.
    has_work_faults: bool,
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
            store: Ledger::default(),
            generation: Generation::default(),
            naming: Naming::of("poll"),
            instances: BTreeMap::new(),
            wires: BTreeMap::new(),
            foreign_instances: BTreeMap::new(),
            last_heartbeats: BTreeMap::new(),
            targets: (0..targets).map(|n| TargetName::from(format!("endpoint-{n}"))).collect(),
            targets_known_at: BTreeMap::new(),
            queue: BinaryHeap::new(),
            scheduled: 0,
            moves: 0,
            reads: 0,
            last_holder: BTreeMap::new(),
            worked: BTreeMap::new(),
            skipped_ticks: 0,
            violation: None,
            drops_announcements: false,
            mutation: None,
            hand_back: true,
            has_work_faults: false,
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    // What happens to the fleet.

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
        let now = self.now;
        record.started_at = UNIX_EPOCH + now.since(Moment::ZERO);
        let config = PoolConfig {
            instance: id(n),
            is_named: record.is_named,
            naming: self.naming.clone(),
            weight,
            engine: EngineSettings { hand_back: self.hand_back, ..settings() },
            retry_claim_after: RETRY_CLAIM_AFTER,
            heartbeat_every: HEARTBEAT_INTERVAL,
            heartbeat_ttl: TTL,
        };
        let mut instance = FleetInstance::new(now, config, record, self.mutation, self.rng.u64(..));
        instance.is_wedged = wedged;
        instance.has_work_faults = self.has_work_faults;
        instance.pool.set_targets(now, self.targets.clone());
        self.instances.insert(id(n), instance);
        self.wires.insert(id(n), Wire::default());
        self.finish_round(&id(n));
    }

    /// Adds a foreign program that holds these targets.
    pub fn add_foreign(&mut self, name: &str, holds: impl IntoIterator<Item = usize>) {
        let one = InstanceId::foreign(name);
        let targets = holds.into_iter().map(|n| TargetName::from(format!("endpoint-{n}"))).collect();
        self.foreign_instances.insert(one.clone(), targets);
        self.beat_foreign(&one);
    }

    fn beat_foreign(&mut self, one: &InstanceId) {
        let (time, instance) = (self.server_time(), one.clone());
        for target in self.foreign_instances.get(one).into_iter().flatten() {
            if let Ok(name) = self.naming.lease(target) {
                self.store.write_foreign(&name, one, Some(time + TTL));
            }
        }
        // As the reconciler adopts it.
        let beat = MembershipRequest::Heartbeat { group: Group::FLEET, instance, ttl: TTL, record: Vec::new() };
        self.apply(&beat.into());
        self.push(self.now + HEARTBEAT_INTERVAL, FleetSimEvent::ForeignBeat(one.clone()));
    }

    /// Changes the set of targets.
    pub fn set_targets(&mut self, targets: impl IntoIterator<Item = usize>) {
        self.targets = targets.into_iter().map(|n| TargetName::from(format!("endpoint-{n}"))).collect();
        // Instances learn of a change at different times, but each of them in the order of the changes.
        for one in self.instances.keys().cloned().collect::<Vec<_>>() {
            let delivered_at = self.now + self.latency();
            let known_at = self.targets_known_at.entry(one.clone()).or_insert(delivered_at);
            *known_at = delivered_at.max(*known_at + Duration::from_micros(1));
            let (at, targets) = (*known_at, self.targets.clone());
            self.push(at, FleetSimEvent::Targets(one, targets));
        }
    }

    /// Kills an instance. Its leases and its heartbeat expire, each at its own time.
    pub fn kill(&mut self, n: usize) {
        self.instances.remove(&id(n));
        self.wires.remove(&id(n));
    }

    /// Announces that an instance is leaving.
    pub fn drain(&mut self, n: usize) {
        self.change(n, |now, instance| instance.pool.set_draining(now, true));
    }

    /// Sets whether an instance can work.
    pub fn set_able(&mut self, n: usize, able: bool) {
        self.change(n, |now, instance| instance.pool.set_able(now, able));
    }

    /// Removes an instance that has announced its leave. It releases what it could not hand over.
    pub fn leave(&mut self, n: usize) {
        let mut effects = Vec::new();
        if let Some(instance) = self.instances.get_mut(&id(n)) {
            instance.leave(self.now, &mut effects);
        }
        self.apply_effects(&id(n), effects);
        self.finish_round(&id(n));
    }

    /// Makes an instance the reconciler.
    pub fn set_reconciler(&mut self, n: usize) {
        self.change(n, |now, instance| instance.pool.set_reconciler(now, true));
    }

    fn change(&mut self, n: usize, change: impl FnOnce(Moment, &mut FleetInstance)) {
        if let Some(instance) = self.instances.get_mut(&id(n)) {
            change(self.now, instance);
        }
        self.finish_round(&id(n));
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
        if let Some(wire) = self.wires.get_mut(&id(n)) {
            wire.unreachable_until = wire.unreachable_until.max(self.now + span);
        }
    }

    /// Lets work be late, stuck for a while or panic now and then.
    pub fn set_work_faults(&mut self, has_work_faults: bool) {
        self.has_work_faults = has_work_faults;
        self.instances.values_mut().for_each(|instance| instance.has_work_faults = has_work_faults);
    }

    /// Ends every fault.
    pub fn heal(&mut self) {
        self.drops_announcements = false;
        self.set_work_faults(false);
        for instance in self.instances.values_mut() {
            instance.is_wedged = false;
        }
    }

    // What can be seen of the fleet.

    /// The numbers of the instances that are alive.
    pub fn alive_instances(&self) -> Vec<usize> {
        let number = |one: &InstanceId| one.as_str().strip_prefix("api-").and_then(|n| n.parse().ok());
        self.members().map(FleetInstance::id).filter_map(number).collect()
    }

    fn members(&self) -> impl Iterator<Item = &FleetInstance> {
        self.instances.values().filter(|instance| !instance.is_leaving)
    }

    /// Number of targets held by each instance, without foreign programs.
    pub fn counts(&self) -> BTreeMap<InstanceId, usize> {
        let count =
            |one: &FleetInstance| one.held_targets().filter(|(target, _)| self.is_held_by(target, one.id())).count();
        self.members().map(|one| (one.id().clone(), count(one))).collect()
    }

    /// The holder of a target, by the store.
    fn holder(&self, target: &TargetName) -> Option<InstanceId> {
        let name = self.naming.lease(target).ok()?;
        self.store.holder_of(self.server_time(), &name).map(|(holder, _)| holder)
    }

    fn is_held_by(&self, target: &TargetName, one: &InstanceId) -> bool {
        self.holder(target).is_some_and(|holder| holder == *one)
    }

    /// Number of targets in the index of what an instance held.
    pub fn indexed_targets(&mut self, n: usize) -> usize {
        let reply = self.apply(&DocumentRequest::IndexList { index: held_index("poll", &id(n)) }.into());
        match reply {
            Reply::Index(entries) => entries.len(),
            _ => 0,
        }
    }

    /// Time from which the heartbeat of a killed instance is late.
    pub fn heartbeat_late_at(&self, n: usize) -> Option<Moment> {
        self.last_heartbeats.get(&id(n)).map(|last| *last + HEARTBEAT_INTERVAL + HEARTBEAT_INTERVAL / 5)
    }

    /// The instances in crash backoff, as this instance sees it: the remaining time and the number of crashes.
    pub fn crash_backoffs(&self, n: usize) -> Vec<(InstanceId, Duration, u32)> {
        let instance = self.instances.get(&id(n));
        instance.map_or_else(Vec::new, |instance| instance.pool.engine().crash_backoffs(self.now))
    }

    /// Difference between the largest and smallest number of targets held by an instance.
    pub fn spread(&self) -> usize {
        let counts = self.counts();
        let counts: Vec<usize> = counts.values().copied().collect();
        counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0)
    }

    /// Number of unheld targets.
    pub fn unheld(&self) -> usize {
        self.targets.iter().filter(|target| self.holder(target).is_none()).count()
    }

    /// The holder of each target that is held.
    pub fn holders(&self) -> BTreeMap<TargetName, InstanceId> {
        let known = self.targets.iter().chain(self.last_holder.keys());
        known.filter_map(|target| Some((target.clone(), self.holder(target)?))).collect()
    }

    /// Number of targets that no instance renews.
    pub fn unrenewed(&self) -> usize {
        let held: BTreeSet<&TargetName> = self.members().flat_map(|one| one.held_targets()).map(|(t, _)| t).collect();
        let foreign: BTreeSet<&TargetName> = self.foreign_instances.values().flatten().collect();
        self.targets.iter().filter(|target| !held.contains(target) && !foreign.contains(target)).count()
    }

    // Time.

    /// Runs the simulation for this long.
    pub fn run_for(&mut self, span: Duration) {
        let end = self.now + span;
        while self.queue.peek().is_some_and(|Reverse(next)| next.at <= end)
            && let Some(Reverse(next)) = self.queue.pop()
        {
            self.now = self.now.max(next.at);
            self.handle(next.event);
        }
        self.now = end;
    }

    /// Runs until every target is renewed and balanced and every instance has published its count. Returns the time it
    /// took, or `None` on timeout.
    pub fn run_until_settled(&mut self, within: Duration) -> Option<Duration> {
        let start = self.now;
        while self.now.since(start) < within {
            self.run_for(Duration::from_millis(100));
            let is_told = self.members().all(|instance| !instance.pool.is_publishing());
            if is_told && self.unrenewed() == 0 && self.spread() <= 1 {
                return Some(self.now.since(start));
            }
        }
        None
    }

    fn handle(&mut self, event: FleetSimEvent) {
        let (now, mut effects) = (self.now, Vec::new());
        let one = match event {
            FleetSimEvent::Timer(one, timer) => {
                if let Some(instance) = self.instances.get_mut(&one) {
                    instance.wake(now, timer, &mut effects);
                }
                one
            }
            FleetSimEvent::FromStore(one, message) => {
                if self.is_reachable(&one)
                    && let Some(instance) = self.instances.get_mut(&one)
                {
                    instance.receive(now, message, &mut effects);
                }
                one
            }
            FleetSimEvent::Targets(one, targets) => {
                if let Some(instance) = self.instances.get_mut(&one).filter(|instance| !instance.is_leaving) {
                    instance.pool.set_targets(now, targets);
                    instance.finish_round(now, &mut effects);
                }
                one
            }
            FleetSimEvent::ToStore(one, message) => {
                if self.is_reachable(&one) {
                    self.receive_at_store(&one, message);
                }
                return;
            }
            FleetSimEvent::ForeignBeat(one) => return self.beat_foreign(&one),
        };
        self.apply_effects(&one, effects);
        if self.instances.get(&one).is_some_and(|instance| instance.is_leaving && instance.manager.is_done()) {
            self.instances.remove(&one);
            self.wires.remove(&one);
        }
    }

    fn finish_round(&mut self, one: &InstanceId) {
        let mut effects = Vec::new();
        if let Some(instance) = self.instances.get_mut(one) {
            instance.finish_round(self.now, &mut effects);
        }
        self.apply_effects(one, effects);
    }

    fn apply_effects(&mut self, one: &InstanceId, effects: Vec<InstanceEffect>) {
        for effect in effects {
            match effect {
                InstanceEffect::Wake(at, timer) => self.push(at, FleetSimEvent::Timer(one.clone(), timer)),
                InstanceEffect::Acquired(target) => {
                    let last = self.last_holder.insert(target, one.clone());
                    self.moves += usize::from(last.is_some_and(|last| last != *one));
                }
                InstanceEffect::Worked(target, due) => self.check_tick(target, due),
                InstanceEffect::Send(message) => {
                    let arrives = self.now + self.latency();
                    if self.is_reachable(one)
                        && let Some(wire) = self.wires.get_mut(one)
                    {
                        wire.last_to_store = arrives.max(wire.last_to_store);
                        let at = wire.last_to_store;
                        self.push(at, FleetSimEvent::ToStore(one.clone(), message));
                    }
                }
            }
        }
    }

    fn push(&mut self, at: Moment, event: FleetSimEvent) {
        if at != Moment::END {
            self.scheduled += 1;
            self.queue.push(Reverse(Scheduled { at, order: self.scheduled, event }));
        }
    }

    // The store.

    fn is_reachable(&self, one: &InstanceId) -> bool {
        self.wires.get(one).is_some_and(|wire| wire.unreachable_until <= self.now)
    }

    fn latency(&mut self) -> Duration {
        Duration::from_micros(self.rng.u64(300..3_000))
    }

    fn server_time(&self) -> ServerTime {
        ServerTime::from_micros(self.now.as_nanos() / 1_000)
    }

    fn receive_at_store(&mut self, one: &InstanceId, message: ToStore) {
        let reply = match message {
            ToStore::Attach(link, request) => {
                let others = self.wires.iter().filter(|(other, wire)| *other != one && wire.is_attached).count();
                let server = ServerInfo {
                    now: self.server_time(),
                    run: ServerRun(1),
                    uptime: Duration::MAX,
                    subscribers: others,
                    has_served: self.generation != Generation::default(),
                };
                let mut announcements = Vec::new();
                let attached = self.store.attach(&server, &request, &mut announcements);
                self.generation = attached.generation;
                if let Some(wire) = self.wires.get_mut(one) {
                    wire.is_attached = true;
                }
                self.announce(announcements);
                FromStore::Attached(link, Box::new(attached))
            }
            ToStore::Batch(number, requests) => {
                let replies = requests.iter().map(|request| self.apply(request)).collect();
                FromStore::Replies(number, replies)
            }
        };
        self.send_from_store(one, reply);
    }

    fn apply(&mut self, request: &Request) -> Reply {
        match request {
            Request::Membership(MembershipRequest::List { .. }) | Request::Lease(LeaseRequest::Inspect { .. }) => {
                self.reads += 1;
            }
            Request::Lease(LeaseRequest::Holders { names }) => self.reads += names.len(),
            Request::Document(DocumentRequest::IndexList { index }) if index.starts_with("held:") => self.reads += 1,
            Request::Membership(MembershipRequest::Heartbeat { instance, .. }) => {
                self.last_heartbeats.insert(instance.clone(), self.now);
            }
            _ => {}
        }
        let mut announcements = Vec::new();
        let reply = self.store.apply(self.server_time(), self.generation, request, &mut announcements);
        self.announce(announcements);
        reply
    }

    fn announce(&mut self, announcements: Vec<Announcement>) {
        if self.drops_announcements {
            return;
        }
        let attached: Vec<InstanceId> =
            self.wires.iter().filter(|(_, wire)| wire.is_attached).map(|(one, _)| one.clone()).collect();
        for announcement in announcements {
            for one in &attached {
                self.send_from_store(one, FromStore::Announced(announcement.clone()));
            }
        }
    }

    fn send_from_store(&mut self, one: &InstanceId, message: FromStore) {
        let arrives = self.now + self.latency();
        if self.is_reachable(one)
            && let Some(wire) = self.wires.get_mut(one)
        {
            wire.last_from_store = arrives.max(wire.last_from_store);
            let at = wire.last_from_store;
            self.push(at, FleetSimEvent::FromStore(one.clone(), message));
        }
    }

    /// Checks that no tick of a target is worked on twice, and counts those that were skipped.
    fn check_tick(&mut self, target: TargetName, due: ServerTime) {
        let slot = |time: ServerTime| {
            time.as_micros().saturating_sub(phase(&target, TICK_INTERVAL)) / (TICK_INTERVAL.as_micros() as u64)
        };
        if let Some(last) = self.worked.get(&target) {
            if due <= *last {
                self.violation.get_or_insert(format!("{target} ran twice for {due:?}"));
            }
            self.skipped_ticks += slot(due).saturating_sub(slot(*last) + 1);
        }
        self.worked.insert(target, due);
    }
}
