//! One world: processes, a network and a store, from one seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::election::ElectionNews;
use tenure::lease::LeaseSettings;
use tenure::store::Ledger;

use crate::clock::{LocalClock, ServerClock};
use crate::directory::Directory;
use crate::faults::{Fault, FaultPlan};
use crate::flaw::SimFlaw;
use crate::invariants::{self, Invariant};
use crate::observation::{LeaseId, Observation, ProcessId};
use crate::process::{Effect, Process, Setup, Timer};
use crate::promise::{Measurements, Promise};
use crate::server::{Output, Server};
use crate::timeline::{Timeline, TrueTime};
use crate::wire::{ConnectionId, Direction, Packet, Wire};

/// How often the storm rests after a fault.
const LULLS: f64 = 0.05;

/// How a world ended.
#[derive(Debug)]
pub struct Outcome {
    /// What was wrong, if anything.
    pub violation: Option<Violation>,
    /// What was measured outside the promise.
    pub measurements: Measurements,
    /// How often things happened.
    pub counts: BTreeMap<&'static str, u64>,
    /// How much time passed in the world.
    pub simulated: Duration,
}

/// Something that did not hold.
#[derive(Debug)]
pub struct Violation {
    /// What should have held.
    pub invariant: &'static str,
    /// What happened instead.
    pub message: String,
    /// When.
    pub at: TrueTime,
}

#[derive(Debug)]
enum Happening {
    Timer { process: ProcessId, life: u64, timer: Timer },
    ToProcess { process: ProcessId, connection: ConnectionId, packet: Packet },
    ToServer { process: ProcessId, connection: ConnectionId, packet: Packet },
    NextFault,
    Lull,
    StartProcess(ProcessId),
    Continue(ProcessId, u64),
    StartServer,
    SyncDisk,
    Backup,
}

/// A process and what the world does to it.
struct Host {
    settings: Arc<LeaseSettings>,
    /// What it is started with now and then instead, for one life.
    long: Option<Arc<LeaseSettings>>,
    process: Option<Process>,
    /// Counts restarts; timers of an earlier life are out of date.
    life: u64,
    /// Counts stops; only the end of the last one counts.
    stops: u64,
    stopped: bool,
    frozen: bool,
    waiting: Vec<Happening>,
}

/// The whole of it.
pub struct World {
    rng: fastrand::Rng,
    timeline: Timeline<Happening>,
    directory: Directory,
    /// The longest ttl, but for those who come with a much longer one for a while.
    ttl: Duration,
    /// What a newcomer assumes the ttls of others to be.
    assumed_ttl: Duration,
    hosts: Vec<Host>,
    server: Server,
    stalled_until: TrueTime,
    /// When the last fault so far is over.
    disturbed_until: TrueTime,
    wire: Wire,
    connections: u64,
    plan: FaultPlan,
    stormy: bool,
    promise: Promise,
    invariants: Vec<Box<dyn Invariant>>,
    violation: Option<Violation>,
    counts: BTreeMap<&'static str, u64>,
    flaw: Option<SimFlaw>,
    trace: bool,
}

impl World {
    /// Runs the world of a seed to its end: a storm in which nothing may go wrong, then a calm in which all must come
    /// right again, then a crash in the calm.
    pub fn run(seed: u64, flaw: Option<SimFlaw>, trace: bool) -> Outcome {
        let Some(mut world) = Self::new(seed, flaw, trace) else {
            let message = "its settings do not fit together".to_owned();
            return Outcome {
                violation: Some(Violation { invariant: "a world can be made", message, at: TrueTime::default() }),
                measurements: Measurements::new(),
                counts: BTreeMap::new(),
                simulated: Duration::ZERO,
            };
        };
        let ttl = world.ttl;
        world.go_on(ttl * 35);
        world.calm();
        let within = world.recovery();
        world.see(Observation::Calm { within });
        world.go_on(within + ttl * 2);
        world.kill_a_holder();
        world.finish()
    }

    /// How long it may take until all is well, when nothing goes wrong from now on: a quarantine, a lease of a process that is
    /// gone, and an early grant that is waited out, one after the other.
    fn recovery(&self) -> Duration {
        let now = self.timeline.now();
        let known = self.hosts.iter().filter_map(|host| host.process.as_ref()).map(Process::longest_known).max();
        let longest =
            known.unwrap_or(self.ttl).max(self.server.longest_counted(now)).max(self.server.quarantined_for(now));
        longest * 4 + Duration::from_secs(1)
    }

    fn new(seed: u64, flaw: Option<SimFlaw>, trace: bool) -> Option<Self> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let leases = rng.usize(1..=3);
        let processes = rng.usize(2..=5);
        let ttl = Duration::from_millis(rng.u64(400..3_000));
        let alike = rng.f64() < 0.6;
        // Now and then a process comes with a ttl that is far longer than the others', and goes.
        let visits = rng.f64() < 0.25;
        let longest = if visits { ttl.mul_f64(3.0 + 7.0 * rng.f64()) } else { ttl };
        let assumed_ttl = ttl.mul_f64(0.3 + 1.2 * rng.f64());
        let settings = settings(&mut rng, ttl, processes, alike)?;
        let shortest = settings.iter().map(|settings| settings.ttl()).min()?;
        let directory = Directory::new(leases, processes).ok()?;
        let mut ledger = Ledger::default();
        if let Some(SimFlaw::Core(flaw)) = flaw {
            ledger.plant(flaw);
        }
        let outside = rng.f64() < 0.4;
        let plan = FaultPlan { every: ttl.mul_f64(0.1 + rng.f64()), store_faults: rng.f64() < 0.6, outside };
        let latency = shortest.mul_f64(0.0005 + 0.01 * rng.f64());
        let mut world = Self {
            timeline: Timeline::default(),
            ttl,
            hosts: Vec::new(),
            assumed_ttl,
            server: Server::new(ServerClock::new(rng.i64(-4_000..4_000)), ledger),
            stalled_until: TrueTime::default(),
            disturbed_until: TrueTime::default(),
            wire: Wire::new(rng.fork(), latency),
            connections: 0,
            plan,
            stormy: true,
            promise: Promise::new(ttl),
            invariants: invariants::all(leases, longest),
            violation: None,
            counts: BTreeMap::new(),
            flaw,
            trace,
            directory,
            rng,
        };
        for (index, settings) in settings.into_iter().enumerate() {
            let long = visits.then(|| LeaseSettings::builder().ttl(longest).build().ok().map(Arc::new)).flatten();
            world.hosts.push(Host {
                settings,
                long,
                process: None,
                life: 0,
                stops: 0,
                stopped: false,
                frozen: false,
                waiting: Vec::new(),
            });
            world.start_process(ProcessId(index));
        }
        world.timeline.schedule(TrueTime::default() + ttl, Happening::NextFault);
        world.timeline.schedule(TrueTime::default() + ttl / 3, Happening::SyncDisk);
        world.timeline.schedule(TrueTime::default() + ttl * 2, Happening::Backup);
        Some(world)
    }

    fn go_on(&mut self, span: Duration) {
        let end = self.timeline.now() + span;
        while self.violation.is_none() {
            let Some(happening) = self.timeline.next(end) else { return };
            self.happen(happening);
        }
    }

    fn happen(&mut self, happening: Happening) {
        let now = self.timeline.now();
        match happening {
            Happening::Timer { process, .. } | Happening::ToProcess { process, .. }
                if self.hosts[process.0].stopped || self.hosts[process.0].frozen =>
            {
                self.hosts[process.0].waiting.push(happening);
            }
            Happening::Timer { process, life, timer } => {
                let host = &mut self.hosts[process.0];
                if host.life == life
                    && let Some(instance) = &mut host.process
                {
                    let mut effects = Vec::new();
                    instance.wake(now, timer, &self.directory, &mut self.connections, &mut effects);
                    self.take_effect(process, effects);
                }
            }
            Happening::ToProcess { process, connection, packet } => {
                if let Some(instance) = &mut self.hosts[process.0].process {
                    let mut effects = Vec::new();
                    instance.receive(now, connection, packet, &mut effects);
                    self.take_effect(process, effects);
                }
            }
            Happening::ToServer { process, connection, packet } => {
                if now < self.stalled_until {
                    self.timeline.schedule(self.stalled_until, Happening::ToServer { process, connection, packet });
                    return;
                }
                let mut out = Output::default();
                self.server.receive(now, process, connection, packet, &self.directory, &mut out);
                self.deliver(out);
            }
            Happening::NextFault => {
                if self.stormy {
                    let ttl = self.ttl;
                    let (hosts, leases) = (self.hosts.len(), self.directory.leases());
                    let fault = self.plan.choose(&mut self.rng, hosts, leases, ttl);
                    self.strike(fault);
                    if self.rng.f64() < LULLS {
                        self.timeline.schedule(self.disturbed_until.max(now), Happening::Lull);
                    } else {
                        let pause = self.plan.every.mul_f64(2.0 * self.rng.f64());
                        self.timeline.schedule(now + pause, Happening::NextFault);
                    }
                }
            }
            Happening::Lull => {
                if self.stormy {
                    let within = self.recovery();
                    self.see(Observation::Lull { within });
                    let pause = within + self.plan.every.mul_f64(0.01 + self.rng.f64());
                    self.timeline.schedule(now + pause, Happening::NextFault);
                }
            }
            Happening::StartProcess(process) => {
                if self.hosts[process.0].process.is_none() {
                    self.start_process(process);
                }
            }
            Happening::Continue(process, stop) => {
                if self.hosts[process.0].stops == stop {
                    self.continue_process(process);
                }
            }
            Happening::StartServer => self.server.start(now),
            Happening::SyncDisk => {
                if self.server.is_up() {
                    self.server.sync_disk(now);
                }
                self.timeline.schedule(now + self.ttl / 3, Happening::SyncDisk);
            }
            Happening::Backup => {
                if self.server.is_up() {
                    self.server.make_backup(now);
                }
                let pause = self.ttl.mul_f64(1.0 + 4.0 * self.rng.f64());
                self.timeline.schedule(now + pause, Happening::Backup);
            }
        }
    }

    fn strike(&mut self, fault: Fault) {
        let now = self.timeline.now();
        self.see(Observation::Fault(fault.clone()));
        self.disturbed_until = self.disturbed_until.max(now + fault.lasts());
        match fault {
            Fault::Crash { process, down } => {
                self.crash(process);
                self.timeline.schedule(now + down, Happening::StartProcess(process));
            }
            Fault::Stop { process, span } => self.stop_process(process, span, false),
            Fault::Freeze { process, span } => self.stop_process(process, span, true),
            Fault::Partition { process, requests, replies, span } => {
                if requests {
                    self.wire.cut(process.0, Direction::Up, now + span);
                }
                if replies {
                    self.wire.cut(process.0, Direction::Down, now + span);
                }
            }
            Fault::Reset { process } => {
                // Every connection of the process, old ones too, as seen from its side.
                for number in 1..=self.connections {
                    let connection = ConnectionId(number);
                    self.timeline.schedule(now, Happening::ToProcess { process, connection, packet: Packet::Reset });
                }
            }
            Fault::Slow { delay, span } => self.wire.slow_down(delay, now + span),
            Fault::Stall { span } => self.stalled_until = self.stalled_until.max(now + span),
            Fault::Restart { survival, down } => {
                if self.server.is_up() {
                    let mut out = Output::default();
                    self.server.stop(now, survival, &mut out);
                    self.deliver(out);
                    self.timeline.schedule(now + down, Happening::StartServer);
                }
            }
            Fault::Flush => self.server.flush(now),
            Fault::WallClockStep { process, nanos } => {
                if let Some(instance) = &mut self.hosts[process.0].process {
                    instance.clock.step_wall(nanos);
                }
            }
            Fault::ServerClockStep { micros } => self.server.step_clock(micros),
            Fault::OutsiderDeletes { lease } => self.server.delete(lease, &self.directory),
        }
    }

    fn start_process(&mut self, process: ProcessId) {
        let now = self.timeline.now();
        let host = &mut self.hosts[process.0];
        host.life += 1;
        if self.directory.restarted(process, host.life).is_err() {
            return;
        }
        let clock = LocalClock::new(now, self.rng.i64(-4_000..4_000));
        let long = host.long.clone().filter(|_| self.stormy && self.rng.f64() < 0.25);
        let settings = long.unwrap_or_else(|| host.settings.clone());
        let setup = Setup { settings, assumed_ttl: self.assumed_ttl, flaw: self.flaw };
        let mut effects = Vec::new();
        let instance = Process::start(process, &self.directory, clock, setup, self.rng.fork(), &mut effects);
        host.process = Some(instance);
        self.take_effect(process, effects);
    }

    fn crash(&mut self, process: ProcessId) {
        let host = &mut self.hosts[process.0];
        if host.process.take().is_some() {
            host.life += 1;
            host.stopped = false;
            host.frozen = false;
            host.waiting.clear();
            self.see(Observation::Crashed(process));
            // The kernel closes its connections, unless the network is gone too.
            for number in 1..=self.connections {
                self.send(process, ConnectionId(number), Direction::Up, Packet::Reset);
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
            instance.caught(now);
        }
        let stop = host.stops;
        self.timeline.schedule(now + span, Happening::Continue(process, stop));
        self.see(Observation::Stopped(process));
    }

    fn continue_process(&mut self, process: ProcessId) {
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
        let mut waiting = std::mem::take(&mut host.waiting);
        let mut effects = Vec::new();
        instance.goes_on(now, &self.directory, &mut effects);
        self.see(Observation::Continued(process));
        self.take_effect(process, effects);
        // Everything that fell due meanwhile happens now; which of it first is chance, but packets keep their order.
        let (packets, mut timers): (Vec<_>, Vec<_>) =
            waiting.drain(..).partition(|waiting| matches!(waiting, Happening::ToProcess { .. }));
        self.rng.shuffle(&mut timers);
        let (first, second) = if self.rng.bool() { (packets, timers) } else { (timers, packets) };
        for happening in first.into_iter().chain(second) {
            self.timeline.schedule(now, happening);
        }
    }

    /// Ends every disturbance and starts whatever is down.
    fn calm(&mut self) {
        let now = self.timeline.now();
        self.stormy = false;
        self.wire.heal();
        self.stalled_until = now;
        self.server.start(now);
        for index in 0..self.hosts.len() {
            let process = ProcessId(index);
            self.continue_process(process);
            if self.hosts[index].process.is_none() {
                self.start_process(process);
            }
            if let Some(instance) = &mut self.hosts[index].process {
                instance.calm_down();
            }
        }
    }

    /// Kills whoever holds the first lease, for good; the others must take over when its ttl ends.
    fn kill_a_holder(&mut self) {
        let now = self.timeline.now();
        let Some(holder) = self.server.holder(now, LeaseId(0), &self.directory) else {
            // Had it never held there would be nothing to see of a take-over.
            let message = "no process holds the first lease in the calm".to_owned();
            let missing = Violation { invariant: "a holder can be killed in the calm", message, at: now };
            self.violation.get_or_insert(missing);
            return;
        };
        let ttl =
            self.hosts.iter().filter_map(|host| host.process.as_ref()).map(Process::ttl).max().unwrap_or(self.ttl);
        self.crash(holder);
        // The ttl, the jitter of whoever waits, the way there and back, and the start of the work; and what others go first by.
        let within = ttl + ttl / 5 + Duration::from_millis(50);
        self.see(Observation::Calm { within });
        self.go_on(within);
    }

    fn take_effect(&mut self, process: ProcessId, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send(connection, packet) => self.send(process, connection, Direction::Up, packet),
                Effect::Wake(span, timer) => {
                    let host = &self.hosts[process.0];
                    let span = host.process.as_ref().map_or(span, |instance| instance.clock.true_span(span));
                    let at = self.timeline.now() + span;
                    self.timeline.schedule(at, Happening::Timer { process, life: host.life, timer });
                }
                Effect::Seen(seen) => self.see(seen),
            }
        }
    }

    fn deliver(&mut self, out: Output) {
        for seen in out.seen {
            self.see(seen);
        }
        for (process, connection, packet) in out.packets {
            self.send(process, connection, Direction::Down, packet);
        }
    }

    fn send(&mut self, process: ProcessId, connection: ConnectionId, direction: Direction, packet: Packet) {
        let now = self.timeline.now();
        for at in self.wire.deliveries(now, process.0, connection, direction, &packet) {
            let packet = packet.clone();
            let happening = match direction {
                Direction::Up => Happening::ToServer { process, connection, packet },
                Direction::Down => Happening::ToProcess { process, connection, packet },
            };
            self.timeline.schedule(at, happening);
        }
    }

    fn see(&mut self, seen: Observation) {
        let now = self.timeline.now();
        if self.trace {
            eprintln!("{now}  {seen:?}");
        }
        self.count(&seen);
        self.promise.observe(now, &seen, self.server.longest_counted(now));
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
            Observation::PassedOn { handed_over: true } => "hand-overs",
            Observation::PassedOn { handed_over: false } => "take-overs from the stalled",
            Observation::Told { news: ElectionNews::LeadershipAcquired, .. } => "leaderships told",
            Observation::Lost(_, loss) => loss.word(),
            Observation::Lull { .. } => "lulls in the storm",
            Observation::Fault(fault) => fault.name(),
            _ => return,
        };
        *self.counts.entry(what).or_default() += 1;
    }

    fn finish(mut self) -> Outcome {
        let now = self.timeline.now();
        for invariant in &mut self.invariants {
            if let Err(message) = invariant.finish(now)
                && self.violation.is_none()
            {
                self.violation = Some(Violation { invariant: invariant.name(), message, at: now });
            }
        }
        Outcome {
            violation: self.violation,
            measurements: self.promise.into_measurements(),
            counts: self.counts,
            simulated: Duration::from_nanos(now.as_nanos()),
        }
    }
}

/// The settings of each process: the same for all, or shorter ttls for some.
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
                settings = settings.hold_back((ttl / 10).mul_f64(rng.f64()));
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
