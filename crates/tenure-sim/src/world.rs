//! One simulated world: processes, a network and a store, all derived from one seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::EventKind;
use tenure_core::lease::LeaseSettings;
use tenure_core::ledger::Ledger;

use crate::clock::{LocalClock, SimServerClock};
use crate::faults::{Fault, FaultSchedule};
use crate::invariants::{self, Invariant};
use crate::mutation::SimMutation;
use crate::names::NameTable;
use crate::network::{ConnectionId, Direction, Network, Packet};
use crate::observation::{LeaseIndex, Observation, ProcessId};
use crate::process::{Effect, ProcessConfig, SimProcess, Timer};
use crate::promise::{Measurements, Promise};
use crate::reduction::Reduction;
use crate::server::{ServerOutput, SimServer};
use crate::timeline::{SimTime, Timeline};

/// Probability that the storm pauses after a fault.
const LULL_PROBABILITY: f64 = 0.05;

/// How to run one world.
#[derive(Clone, Debug, Default)]
pub struct WorldOptions {
    /// A planted bug.
    pub mutation: Option<SimMutation>,
    /// What takes part.
    pub reduction: Reduction,
    /// Whether everything that is observed is written down.
    pub has_trace: bool,
}

/// The result of running one world.
#[derive(Debug, Default)]
pub struct WorldOutcome {
    /// The first violated invariant, if any.
    pub violation: Option<Violation>,
    /// Effects of faults outside the promise, which are measured and not judged.
    pub measurements: Measurements,
    /// Number of occurrences of each kind of event.
    pub counts: BTreeMap<&'static str, u64>,
    /// Simulated time that passed.
    pub simulated: Duration,
    /// Number of faults, those that were left out included.
    pub faults: usize,
    /// Number of processes, those that were left out included.
    pub processes: usize,
    /// What was observed, a line each.
    pub trace: Vec<String>,
}

/// A violated invariant.
#[derive(Debug)]
pub struct Violation {
    /// Name of the invariant.
    pub invariant: &'static str,
    /// What happened instead.
    pub message: String,
    /// Time of the violation.
    pub at: SimTime,
}

#[derive(Debug)]
enum SimEvent {
    Timer { process: ProcessId, incarnation: u64, timer: Timer },
    ToProcess { process: ProcessId, connection: ConnectionId, packet: Packet },
    ToServer { process: ProcessId, connection: ConnectionId, packet: Packet },
    NextFault,
    Lull,
    StartProcess(ProcessId),
    Resume(ProcessId, u64),
    StartServer,
    SyncDisk,
    Backup,
}

/// A process with the state that faults give it.
struct SimHost {
    settings: Arc<LeaseSettings>,
    /// Settings with a far longer ttl, used for an occasional incarnation.
    long_ttl_settings: Option<Arc<LeaseSettings>>,
    process: Option<SimProcess>,
    /// Number of restarts. Timers of an earlier incarnation are stale.
    incarnation: u64,
    /// Number of stops. Only the end of the last stop resumes the process.
    stops: u64,
    stopped: bool,
    frozen: bool,
    deferred: Vec<SimEvent>,
}

/// One simulated world.
pub struct World {
    rng: fastrand::Rng,
    timeline: Timeline<SimEvent>,
    names: NameTable,
    /// Longest ttl, except for occasional incarnations with a far longer one.
    ttl: Duration,
    /// The ttl that a process without memory assumes for the leases of others.
    assumed_ttl: Duration,
    hosts: Vec<SimHost>,
    server: SimServer,
    stalled_until: SimTime,
    /// End of the last fault injected so far.
    faults_until: SimTime,
    network: Network,
    connections: u64,
    plan: FaultSchedule,
    faults_enabled: bool,
    promise: Promise,
    invariants: Vec<Box<dyn Invariant>>,
    violation: Option<Violation>,
    counts: BTreeMap<&'static str, u64>,
    options: WorldOptions,
    /// Draws faults and pauses, so that leaving one out changes no other.
    fault_rng: fastrand::Rng,
    process_seed: u64,
    faults: usize,
    trace: Vec<String>,
}

impl World {
    /// Runs the world of a seed to its end: a storm in which no invariant may be violated, a calm in which every lease
    /// must recover, then a crash in the calm.
    pub fn run(seed: u64, options: WorldOptions) -> WorldOutcome {
        let Some(mut world) = Self::new(seed, options) else {
            let message = "cannot build the world: its settings do not fit together".to_owned();
            let violation = Violation { invariant: "a world can be built", message, at: SimTime::default() };
            return WorldOutcome { violation: Some(violation), ..WorldOutcome::default() };
        };
        let ttl = world.ttl;
        world.run_for(ttl * 35);
        world.end_faults();
        let within = world.recovery_bound();
        world.record(Observation::Calm { within });
        world.run_for(within + ttl * 2);
        world.kill_holder();
        world.finish()
    }

    /// Upper bound on recovery when no more faults happen: a quarantine, the lease of a dead process and an early grant
    /// whose holder must wait, one after the other.
    fn recovery_bound(&self) -> Duration {
        let now = self.timeline.now();
        let known = self.hosts.iter().filter_map(|host| host.process.as_ref()).map(SimProcess::longest_known_ttl).max();
        let longest = known
            .unwrap_or(self.ttl)
            .max(self.server.longest_counted_ttl(now))
            .max(self.server.quarantine_remaining(now));
        longest * 4 + Duration::from_secs(1)
    }

    fn new(seed: u64, options: WorldOptions) -> Option<Self> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let leases = rng.usize(1..=3);
        let processes = rng.usize(2..=5);
        let ttl = Duration::from_millis(rng.u64(400..3_000));
        let alike = rng.f64() < 0.6;
        // A process occasionally starts with a far longer ttl than the others, then disappears.
        let visits = rng.f64() < 0.25;
        let longest = if visits { ttl.mul_f64(3.0 + 7.0 * rng.f64()) } else { ttl };
        let assumed_ttl = ttl.mul_f64(0.3 + 1.2 * rng.f64());
        let settings = settings(&mut rng, ttl, processes, alike)?;
        let shortest = settings.iter().map(|settings| settings.ttl()).min()?;
        let names = NameTable::new(leases, processes).ok()?;
        let mut ledger = Ledger::default();
        if let Some(SimMutation::Core(mutation)) = options.mutation {
            ledger.plant(mutation);
        }
        let outside = rng.f64() < 0.4;
        let plan = FaultSchedule {
            mean_interval: ttl.mul_f64(0.1 + rng.f64()),
            store_faults: rng.f64() < 0.6,
            outside_promise: outside,
        };
        let latency = shortest.mul_f64(0.0005 + 0.01 * rng.f64());
        let mut world = Self {
            timeline: Timeline::default(),
            ttl,
            hosts: Vec::new(),
            assumed_ttl,
            server: SimServer::new(SimServerClock::new(rng.i64(-4_000..4_000)), ledger),
            stalled_until: SimTime::default(),
            faults_until: SimTime::default(),
            network: Network::new(rng.fork(), latency),
            connections: 0,
            plan,
            faults_enabled: true,
            promise: Promise::new(ttl),
            invariants: invariants::all(leases, longest),
            violation: None,
            counts: BTreeMap::new(),
            options,
            fault_rng: rng.fork(),
            process_seed: rng.u64(..),
            faults: 0,
            trace: Vec::new(),
            names,
            rng,
        };
        for (index, settings) in settings.into_iter().enumerate() {
            let long = visits.then(|| LeaseSettings::builder().ttl(longest).build().ok().map(Arc::new)).flatten();
            world.hosts.push(SimHost {
                settings,
                long_ttl_settings: long,
                process: None,
                incarnation: 0,
                stops: 0,
                stopped: false,
                frozen: false,
                deferred: Vec::new(),
            });
            world.start_process(ProcessId(index));
        }
        world.timeline.schedule(SimTime::default() + ttl, SimEvent::NextFault);
        world.timeline.schedule(SimTime::default() + ttl / 3, SimEvent::SyncDisk);
        world.timeline.schedule(SimTime::default() + ttl * 2, SimEvent::Backup);
        Some(world)
    }

    fn run_for(&mut self, span: Duration) {
        let end = self.timeline.now() + span;
        while self.violation.is_none() {
            let Some(event) = self.timeline.next(end) else { return };
            self.handle_event(event);
        }
    }

    fn handle_event(&mut self, event: SimEvent) {
        let now = self.timeline.now();
        match event {
            SimEvent::Timer { process, .. } | SimEvent::ToProcess { process, .. }
                if self.hosts[process.0].stopped || self.hosts[process.0].frozen =>
            {
                self.hosts[process.0].deferred.push(event);
            }
            SimEvent::Timer { process, incarnation, timer } => {
                let host = &mut self.hosts[process.0];
                if host.incarnation == incarnation
                    && let Some(instance) = &mut host.process
                {
                    let mut effects = Vec::new();
                    instance.wake(now, timer, &self.names, &mut self.connections, &mut effects);
                    self.apply_effects(process, effects);
                }
            }
            SimEvent::ToProcess { process, connection, packet } => {
                if let Some(instance) = &mut self.hosts[process.0].process {
                    let mut effects = Vec::new();
                    instance.receive(now, connection, packet, &mut self.connections, &mut effects);
                    self.apply_effects(process, effects);
                }
            }
            SimEvent::ToServer { process, connection, packet } => {
                if now < self.stalled_until {
                    self.timeline.schedule(self.stalled_until, SimEvent::ToServer { process, connection, packet });
                    return;
                }
                let mut out = ServerOutput::default();
                self.server.receive(now, process, connection, packet, &self.names, &mut out);
                self.deliver(out);
            }
            SimEvent::NextFault => {
                if self.faults_enabled {
                    let ttl = self.ttl;
                    let (hosts, leases) = (self.hosts.len(), self.names.leases());
                    let fault = self.plan.choose(&mut self.fault_rng, hosts, leases, ttl);
                    self.faults += 1;
                    if self.options.reduction.has_fault(self.faults - 1) {
                        self.inject_fault(fault);
                    }
                    if self.fault_rng.f64() < LULL_PROBABILITY {
                        self.timeline.schedule(self.faults_until.max(now), SimEvent::Lull);
                    } else {
                        let pause = self.plan.mean_interval.mul_f64(2.0 * self.fault_rng.f64());
                        self.timeline.schedule(now + pause, SimEvent::NextFault);
                    }
                }
            }
            SimEvent::Lull => {
                if self.faults_enabled {
                    let within = self.recovery_bound();
                    self.record(Observation::Lull { within });
                    let pause = within + self.plan.mean_interval.mul_f64(0.01 + self.fault_rng.f64());
                    self.timeline.schedule(now + pause, SimEvent::NextFault);
                }
            }
            SimEvent::StartProcess(process) => {
                if self.hosts[process.0].process.is_none() {
                    self.start_process(process);
                }
            }
            SimEvent::Resume(process, stop) => {
                if self.hosts[process.0].stops == stop {
                    self.resume_process(process);
                }
            }
            SimEvent::StartServer => self.server.start(now),
            SimEvent::SyncDisk => {
                if self.server.is_up() {
                    self.server.sync_disk(now);
                }
                self.timeline.schedule(now + self.ttl / 3, SimEvent::SyncDisk);
            }
            SimEvent::Backup => {
                if self.server.is_up() {
                    self.server.make_backup(now);
                }
                let pause = self.ttl.mul_f64(1.0 + 4.0 * self.rng.f64());
                self.timeline.schedule(now + pause, SimEvent::Backup);
            }
        }
    }

    fn inject_fault(&mut self, fault: Fault) {
        let now = self.timeline.now();
        self.record(Observation::Fault(fault.clone()));
        self.faults_until = self.faults_until.max(now + fault.duration());
        match fault {
            Fault::Crash { process, down } => {
                self.crash(process);
                self.timeline.schedule(now + down, SimEvent::StartProcess(process));
            }
            Fault::Stop { process, span } => self.stop_process(process, span, false),
            Fault::Freeze { process, span } => self.stop_process(process, span, true),
            Fault::Partition { process, requests, replies, span } => {
                if requests {
                    self.network.partition(process.0, Direction::ToStore, now + span);
                }
                if replies {
                    self.network.partition(process.0, Direction::FromStore, now + span);
                }
            }
            Fault::Reset { process } => {
                // Reset every connection of the process, including old ones, as seen from its side.
                for number in 1..=self.connections {
                    let connection = ConnectionId(number);
                    self.timeline.schedule(now, SimEvent::ToProcess { process, connection, packet: Packet::Reset });
                }
            }
            Fault::Slow { delay, span } => self.network.slow_down(delay, now + span),
            Fault::Stall { span } => self.stalled_until = self.stalled_until.max(now + span),
            Fault::Restart { survival, down } => {
                if self.server.is_up() {
                    let mut out = ServerOutput::default();
                    self.server.stop(now, survival, &mut out);
                    self.deliver(out);
                    self.timeline.schedule(now + down, SimEvent::StartServer);
                }
            }
            Fault::Flush => self.server.flush(now),
            Fault::WallClockStep { process, nanos } => {
                if let Some(instance) = &mut self.hosts[process.0].process {
                    instance.clock.step_wall(nanos);
                }
            }
            Fault::ServerClockStep { micros } => self.server.step_clock(micros),
            Fault::Deaf { process, span } => self.network.deafen(process.0, now + span),
            Fault::EvictTerm { lease } => self.server.evict_term(lease, &self.names),
            Fault::EvictNamespace => self.server.evict_namespace(now),
            Fault::Forget { lease } => self.server.forget(now, lease, self.ttl, &self.names),
            Fault::ReplaceData => self.server.replace_data(),
            Fault::ForeignDelete { lease } => self.server.delete(lease, &self.names),
        }
    }

    fn start_process(&mut self, process: ProcessId) {
        let now = self.timeline.now();
        if !self.options.reduction.has_process(process.0) {
            return;
        }
        let host = &mut self.hosts[process.0];
        host.incarnation += 1;
        if self.names.assign_new_id(process, host.incarnation).is_err() {
            return;
        }
        // From the seed and the start, so that what happens before changes no other process.
        let start = u64::try_from(process.0).unwrap_or(0) << 32 | host.incarnation;
        let mut rng = fastrand::Rng::with_seed(self.process_seed ^ start.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let clock = LocalClock::new(now, rng.i64(-4_000..4_000));
        let long = host.long_ttl_settings.clone().filter(|_| self.faults_enabled && rng.f64() < 0.25);
        let settings = long.unwrap_or_else(|| host.settings.clone());
        let config = ProcessConfig { settings, assumed_ttl: self.assumed_ttl, mutation: self.options.mutation };
        let mut effects = Vec::new();
        let mut instance = SimProcess::start(process, &self.names, clock, config, rng, &mut effects);
        if self.options.reduction.plain_users {
            instance.quiesce();
        }
        host.process = Some(instance);
        self.apply_effects(process, effects);
    }

    fn crash(&mut self, process: ProcessId) {
        let host = &mut self.hosts[process.0];
        if host.process.take().is_some() {
            host.incarnation += 1;
            host.stopped = false;
            host.frozen = false;
            host.deferred.clear();
            self.record(Observation::Crashed(process));
            // The kernel closes the connections of the dead process, unless the network is gone too.
            for number in 1..=self.connections {
                self.send(process, ConnectionId(number), Direction::ToStore, Packet::Reset);
            }
        }
    }

    fn stop_process(&mut self, process: ProcessId, span: Duration, freeze: bool) {
        let now = self.timeline.now();
        let host = &mut self.hosts[process.0];
        let Some(instance) = &mut host.process else { return };
        if host.stopped || host.frozen {
            return;
        }
        host.stops += 1;
        if freeze {
            host.frozen = true;
            instance.clock.freeze(now);
        } else {
            host.stopped = true;
            instance.before_stop(now);
        }
        let stop = host.stops;
        self.timeline.schedule(now + span, SimEvent::Resume(process, stop));
        self.record(Observation::Stopped(process));
    }

    fn resume_process(&mut self, process: ProcessId) {
        let now = self.timeline.now();
        let host = &mut self.hosts[process.0];
        let Some(instance) = &mut host.process else { return };
        if !host.stopped && !host.frozen {
            return;
        }
        if host.frozen {
            instance.clock.thaw(now);
        }
        host.stopped = false;
        host.frozen = false;
        let mut waiting = std::mem::take(&mut host.deferred);
        let mut effects = Vec::new();
        instance.resume(now, &mut self.connections, &mut effects);
        self.record(Observation::Resumed(process));
        self.apply_effects(process, effects);
        // Deliver everything that fell due meanwhile: timers in random order, packets in their own order.
        let (packets, mut timers): (Vec<_>, Vec<_>) =
            waiting.drain(..).partition(|waiting| matches!(waiting, SimEvent::ToProcess { .. }));
        self.rng.shuffle(&mut timers);
        let (first, second) = if self.rng.bool() { (packets, timers) } else { (timers, packets) };
        for event in first.into_iter().chain(second) {
            self.timeline.schedule(now, event);
        }
    }

    /// Ends every fault and starts every process and server that is down.
    fn end_faults(&mut self) {
        let now = self.timeline.now();
        self.faults_enabled = false;
        self.network.heal();
        self.stalled_until = now;
        self.server.start(now);
        for index in 0..self.hosts.len() {
            let process = ProcessId(index);
            self.resume_process(process);
            if self.hosts[index].process.is_none() {
                self.start_process(process);
            }
            if let Some(instance) = &mut self.hosts[index].process {
                instance.quiesce();
            }
        }
    }

    /// Kills the holder of the first lease for good. The others must take over when its ttl ends.
    fn kill_holder(&mut self) {
        let now = self.timeline.now();
        let Some(holder) = self.server.holder(now, LeaseIndex(0), &self.names) else {
            // Without a holder there is no take-over to observe.
            let message = "no process holds the first lease in the calm".to_owned();
            let missing = Violation { invariant: "a holder can be killed in the calm", message, at: now };
            self.violation.get_or_insert(missing);
            return;
        };
        let ttl =
            self.hosts.iter().filter_map(|host| host.process.as_ref()).map(SimProcess::ttl).max().unwrap_or(self.ttl);
        self.crash(holder);
        // The ttl, the jitter of the waiter, a round trip, the start of the work, and the acquire delay.
        let within = ttl + ttl / 5 + Duration::from_millis(50);
        self.record(Observation::Calm { within });
        self.run_for(within);
    }

    fn apply_effects(&mut self, process: ProcessId, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send(connection, packet) => self.send(process, connection, Direction::ToStore, packet),
                Effect::Wake(span, timer) => {
                    let host = &self.hosts[process.0];
                    let span = host.process.as_ref().map_or(span, |instance| instance.clock.sim_span(span));
                    let at = self.timeline.now() + span;
                    self.timeline.schedule(at, SimEvent::Timer { process, incarnation: host.incarnation, timer });
                }
                Effect::Observed(seen) => self.record(seen),
                Effect::Reached(what) => *self.counts.entry(what).or_default() += 1,
            }
        }
    }

    fn deliver(&mut self, out: ServerOutput) {
        for seen in out.observations {
            self.record(seen);
        }
        for (process, connection, packet) in out.packets {
            self.send(process, connection, Direction::FromStore, packet);
        }
    }

    fn send(&mut self, process: ProcessId, connection: ConnectionId, direction: Direction, packet: Packet) {
        let now = self.timeline.now();
        for at in self.network.deliveries(now, process.0, connection, direction, &packet) {
            let packet = packet.clone();
            let event = match direction {
                Direction::ToStore => SimEvent::ToServer { process, connection, packet },
                Direction::FromStore => SimEvent::ToProcess { process, connection, packet },
            };
            self.timeline.schedule(at, event);
        }
    }

    fn record(&mut self, seen: Observation) {
        let now = self.timeline.now();
        if self.options.has_trace {
            let number =
                if matches!(seen, Observation::Fault(_)) { format!(" {}", self.faults - 1) } else { String::new() };
            self.trace.push(format!("{now}{number}  {seen}"));
        }
        self.count(&seen);
        self.promise.observe(now, &seen, self.server.longest_counted_ttl(now));
        for invariant in &mut self.invariants {
            if let Err(message) = invariant.observe(now, &seen, &mut self.promise)
                && self.violation.is_none()
            {
                self.violation = Some(Violation { invariant: invariant.name(), message, at: now });
            }
        }
    }

    fn count(&mut self, seen: &Observation) {
        let what = match seen {
            Observation::Granted(_) => "terms granted",
            Observation::Published { .. } => "publications accepted",
            Observation::Acted { .. } => "actions of work",
            Observation::Revoked(_) => "revocations",
            Observation::Transferred { handed_over: true } => "hand-overs",
            Observation::Transferred { handed_over: false } => "take-overs from the stalled",
            Observation::ElectionReported { event: EventKind::LeadershipAcquired, .. } => "leaderships won",
            Observation::Lost(_, loss) => loss.as_str(),
            Observation::Lull { .. } => "lulls in the storm",
            Observation::Fault(fault) => fault.name(),
            _ => return,
        };
        *self.counts.entry(what).or_default() += 1;
    }

    fn finish(mut self) -> WorldOutcome {
        let now = self.timeline.now();
        for invariant in &mut self.invariants {
            if let Err(message) = invariant.finish(now)
                && self.violation.is_none()
            {
                self.violation = Some(Violation { invariant: invariant.name(), message, at: now });
            }
        }
        WorldOutcome {
            violation: self.violation,
            measurements: self.promise.into_measurements(),
            counts: self.counts,
            simulated: Duration::from_nanos(now.as_nanos()),
            faults: self.faults,
            processes: self.hosts.len(),
            trace: self.trace,
        }
    }
}

/// Builds the settings of each process: the same for all, or shorter ttls for some.
fn settings(
    rng: &mut fastrand::Rng,
    longest: Duration,
    processes: usize,
    alike: bool,
) -> Option<Vec<Arc<LeaseSettings>>> {
    let (stall, take_over, priorities) = (rng.f64(), rng.f64(), rng.f64() < 0.3);
    (0..processes)
        .map(|index| {
            let ttl = if alike || index == 0 { longest } else { longest.mul_f64(0.3 + 0.7 * rng.f64()) };
            let mut settings = LeaseSettings::builder().ttl(ttl).max_drain(ttl.mul_f64(0.2 + rng.f64()));
            if priorities {
                settings = settings.acquire_delay((ttl / 10).mul_f64(rng.f64()));
            }
            if stall < 0.3 {
                settings = settings.stall_after(ttl.mul_f64(0.5 + rng.f64()));
            }
            if take_over < 0.3 {
                settings = settings.take_over_after(ttl.mul_f64(0.5 + rng.f64()));
            }
            settings.build().ok().map(Arc::new)
        })
        .collect()
}
