//! One simulated instance: drives the lease machines against the store over one connection and runs work under them.
//!
//! It carries out what the machines request. On its own it decides only when to replace a connection (on any timeout or
//! reset) and what its users do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tenure::election::BackoffReason;
use tenure::lease::{Action, Attempt, Ending, Epoch, Input, Intent, Lease, LeaseSettings, Permission, ReleaseReason};
use tenure::store::{
    Ask, AttachRequest, Attached, Continuity, DocumentRequest, ErrorKind, Holding, LeaseRequest, NamespaceMemory,
    Reply, Request, StoreError,
};
use tenure::time::{Moment, deadline};
use tenure::{EventKind, InstanceId, Token};

use crate::candidate::{ElectionEvents, SimCandidate};
use crate::clock::LocalClock;
use crate::mutation::SimMutation;
use crate::names::NameTable;
use crate::network::{ConnectionId, Packet};
use crate::observation::{LeaseIndex, Observation, ProcessId, TermId};
use crate::timeline::SimTime;
use crate::work::SimWork;

/// Interval at which every machine reads the clock, regardless of its timers.
const BACKSTOP_INTERVAL: Duration = Duration::from_millis(250);

/// A reason to wake a process.
#[derive(Clone, Debug)]
pub enum Timer {
    /// A machine's wake-up.
    Wake(LeaseIndex, u64, Epoch),
    /// A request got no reply in time.
    RequestTimeout(u64),
    /// An attach got no reply in time.
    AttachTimeout(ConnectionId),
    /// Connect again.
    Connect,
    /// Read the clock.
    Backstop,
    /// Acquire a lease (again).
    Acquire(LeaseIndex),
    /// Start a unit of work, if the term permits it.
    StartWork(LeaseIndex, u64),
    /// Work performs an action.
    Act(LeaseIndex, u64),
    /// Cancelled work has cleaned up.
    CleanupDone(LeaseIndex, u64),
    /// The user does something.
    UserAction,
}

/// An effect of a process on the rest of the world.
#[derive(Debug)]
pub enum Effect {
    /// Send a packet.
    Send(ConnectionId, Packet),
    /// Wake the process after this much time of its own clock.
    Wake(Duration, Timer),
    /// Report an observation.
    Observed(Observation),
}

/// Configuration of a process.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// The settings of its leases.
    pub settings: Arc<LeaseSettings>,
    /// The longest ttl that it assumes for the leases of others until it knows better.
    pub assumed_ttl: Duration,
    /// The mutation that it contains.
    pub mutation: Option<SimMutation>,
}

/// One simulated instance.
#[derive(Debug)]
pub struct SimProcess {
    /// Its clock.
    pub clock: LocalClock,
    id: ProcessId,
    instance: InstanceId,
    settings: Arc<LeaseSettings>,
    rng: fastrand::Rng,
    memory: Option<NamespaceMemory>,
    /// The longest ttl that it assumes for the leases of others until it knows better.
    assumed_ttl: Duration,
    link: SimLink,
    failures: u32,
    drivers: Vec<LeaseDriver>,
    inbox: VecDeque<(LeaseIndex, Input)>,
    pending: BTreeMap<u64, PendingRequest>,
    requests: u64,
    units: u64,
    /// Whether its users act.
    pub user_actions_enabled: bool,
    mutation: Option<SimMutation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimLink {
    Down,
    Attaching(ConnectionId),
    Up(ConnectionId),
}

#[derive(Debug, Default)]
struct LeaseDriver {
    lease: Option<Lease>,
    /// Number of the current machine. Timers of earlier machines are stale.
    number: u64,
    /// The last term of an earlier machine.
    ended_term: Option<Token>,
    /// End of the term's validity, computed here from the times at which requests were sent.
    valid_until: Moment,
    /// What a client that caches its permission would rely on.
    cached_may_start: bool,
    work: Option<SimWork>,
    hung: bool,
    candidate: SimCandidate,
    /// How the last term ended, until the lease is requested again.
    backoff_reason: Option<BackoffReason>,
}

/// A request without a reply.
#[derive(Debug)]
enum PendingRequest {
    Machine { lease: LeaseIndex, number: u64, attempt: Attempt, sent: Moment },
    Publication { lease: LeaseIndex, token: Token },
    Other,
}

impl SimProcess {
    /// Starts a process.
    pub fn start(
        id: ProcessId,
        names: &NameTable,
        clock: LocalClock,
        config: ProcessConfig,
        rng: fastrand::Rng,
        effects: &mut Vec<Effect>,
    ) -> Self {
        let ProcessConfig { settings, assumed_ttl, mutation } = config;
        let mut process = Self {
            clock,
            id,
            instance: names.instance(id).clone(),
            settings,
            rng,
            memory: None,
            assumed_ttl,
            link: SimLink::Down,
            failures: 0,
            drivers: (0..names.leases()).map(|_| LeaseDriver::default()).collect(),
            inbox: VecDeque::new(),
            pending: BTreeMap::new(),
            requests: 0,
            units: 0,
            user_actions_enabled: true,
            mutation,
        };
        let soon = process.random_up_to(BACKSTOP_INTERVAL / 5);
        effects.push(Effect::Wake(soon, Timer::Connect));
        effects.push(Effect::Wake(BACKSTOP_INTERVAL, Timer::Backstop));
        let pause = process.random_up_to(process.settings.ttl() * 4);
        effects.push(Effect::Wake(pause, Timer::UserAction));
        process
    }

    /// Handles a timer.
    pub fn wake(
        &mut self,
        now: SimTime,
        timer: Timer,
        names: &NameTable,
        next_connection: &mut u64,
        effects: &mut Vec<Effect>,
    ) {
        match timer {
            Timer::Wake(lease, number, epoch) => {
                if self.drivers[lease.0].number == number {
                    self.inbox.push_back((lease, Input::Wake(epoch)));
                }
            }
            Timer::RequestTimeout(request) => {
                if let Some(pending) = self.pending.remove(&request) {
                    if let PendingRequest::Machine { lease, number, attempt, .. } = pending
                        && self.drivers[lease.0].number == number
                    {
                        self.inbox.push_back((lease, Input::Unknown { attempt, error: unreachable_error() }));
                    }
                    self.disconnect(true, effects);
                }
            }
            Timer::AttachTimeout(connection) => {
                if self.link == SimLink::Attaching(connection) {
                    self.disconnect(true, effects);
                }
            }
            Timer::Connect => {
                if self.link == SimLink::Down {
                    *next_connection += 1;
                    let connection = ConnectionId(*next_connection);
                    self.link = SimLink::Attaching(connection);
                    let knows = self.memory.as_ref().is_some_and(|memory| !memory.max_ttl.is_zero());
                    let own = self.settings.ttl();
                    let request = AttachRequest {
                        memory: self.memory.clone(),
                        stamp: self.rng.u64(..),
                        max_ttl: if knows { own } else { own.max(self.assumed_ttl) },
                        ..AttachRequest::new(fastrand::u64(..))
                    };
                    effects.push(Effect::Send(connection, Packet::Attach(request)));
                    effects.push(Effect::Wake(self.settings.attempt_timeout(), Timer::AttachTimeout(connection)));
                }
            }
            Timer::Backstop => {
                self.push_all(Input::Tick);
                effects.push(Effect::Wake(BACKSTOP_INTERVAL, Timer::Backstop));
            }
            Timer::Acquire(lease) => self.acquire(lease, names),
            Timer::StartWork(lease, number) => self.start_work(now, lease, number, effects),
            Timer::Act(lease, unit) => self.act(now, lease, unit, names, effects),
            Timer::CleanupDone(lease, unit) => {
                if self.drivers[lease.0].work.as_ref().is_some_and(|work| work.number == unit) {
                    self.end_work(lease, effects);
                }
            }
            Timer::UserAction => {
                if self.user_actions_enabled {
                    self.perform_user_action(now, names, effects);
                }
                let next = self.random_up_to(self.settings.ttl() * 4);
                effects.push(Effect::Wake(next, Timer::UserAction));
            }
        }
        self.drain_inbox(now, effects);
    }

    /// Handles a packet.
    pub fn receive(&mut self, now: SimTime, connection: ConnectionId, packet: Packet, effects: &mut Vec<Effect>) {
        match packet {
            Packet::Attached(attached) if self.link == SimLink::Attaching(connection) => {
                self.link = SimLink::Up(connection);
                self.failures = 0;
                self.on_attached(&attached, effects);
            }
            Packet::Reply(request, reply) if self.link == SimLink::Up(connection) => self.on_reply(now, request, reply),
            Packet::Announcement(announcement) if self.link == SimLink::Up(connection) => {
                if let Some(memory) = &mut self.memory {
                    memory.learn_announcement(&announcement);
                    if memory.is_outdated_by(&announcement) {
                        self.disconnect(true, effects);
                    }
                }
                self.push_all(Input::Announced(announcement));
            }
            Packet::Reset if matches!(self.link, SimLink::Attaching(c) | SimLink::Up(c) if c == connection) => {
                self.disconnect(false, effects);
            }
            _ => {}
        }
        self.drain_inbox(now, effects);
    }

    /// The ttl of its leases.
    pub fn ttl(&self) -> Duration {
        self.settings.ttl()
    }

    /// The longest ttl that it would wait for after a data loss.
    pub fn longest_known_ttl(&self) -> Duration {
        let known = self.memory.as_ref().map_or(Duration::ZERO, |memory| memory.max_ttl);
        known.max(self.settings.ttl()).max(self.assumed_ttl)
    }

    /// Prepares for a stop: work may be between its check and its action.
    pub fn before_stop(&mut self, now: SimTime) {
        let clocks = self.clock.read(now);
        for driver in &mut self.drivers {
            if let (Some(lease), Some(work)) = (&driver.lease, &mut driver.work) {
                work.check_passed = work.gone_by.is_none() && lease.is_valid(clocks) && self.rng.f64() < 0.3;
            }
        }
    }

    /// Resumes the process. Actions whose check had passed are carried out, whatever has happened since.
    pub fn resume(&mut self, now: SimTime, names: &NameTable, effects: &mut Vec<Effect>) {
        for index in 0..self.drivers.len() {
            let lease = LeaseIndex(index);
            let work = self.drivers[index].work.as_mut();
            let late = work.and_then(|work| std::mem::take(&mut work.check_passed).then_some(work.token));
            if let Some(token) = late {
                effects.push(Effect::Observed(Observation::ActedLate(self.term(lease, token))));
                self.publish(lease, token, names, effects);
            }
        }
        // Either the machines or the work may run first.
        if self.rng.bool() {
            self.push_all(Input::Tick);
        }
        self.drain_inbox(now, effects);
    }

    /// Stops user actions and unblocks hung work.
    pub fn quiesce(&mut self) {
        self.user_actions_enabled = false;
        self.drivers.iter_mut().for_each(|driver| driver.hung = false);
    }

    fn drain_inbox(&mut self, now: SimTime, effects: &mut Vec<Effect>) {
        while let Some((lease, input)) = self.inbox.pop_front() {
            self.step(now, lease, input, effects);
        }
    }

    fn step(&mut self, now: SimTime, lease: LeaseIndex, input: Input, effects: &mut Vec<Effect>) {
        let clocks = self.clock.read(now);
        let local = clocks.moment;
        let driver = &mut self.drivers[lease.0];
        let Some(machine) = &mut driver.lease else { return };
        let actions = machine.step(clocks, input);
        for action in actions {
            match action {
                Action::Send { attempt, request, give_up_at } => {
                    self.send_for_machine(local, lease, attempt, request, give_up_at, effects);
                }
                Action::Attach => self.disconnect(true, effects),
                Action::Permit(permission) => self.apply_permission(local, lease, permission, effects),
                Action::Wake { at, epoch } => {
                    let number = self.drivers[lease.0].number;
                    let span = at.since(local) + Duration::from_micros(1);
                    effects.push(Effect::Wake(span, Timer::Wake(lease, number, epoch)));
                }
                Action::Emit(event) => {
                    if let (EventKind::Lost(loss), Some(token)) = (event.kind, event.token) {
                        self.drivers[lease.0].candidate.on_lost(Ending::Lost(loss.clone()));
                        effects.push(Effect::Observed(Observation::Lost(self.term(lease, token), loss)));
                    }
                }
                _ => {}
            }
        }
        let driver = &mut self.drivers[lease.0];
        if let Some(status) = driver.lease.as_ref().and_then(Lease::acquire_status) {
            let events = driver.candidate.on_status(status);
            self.observe_election(lease, events, effects);
        }
        let driver = &mut self.drivers[lease.0];
        if driver.lease.as_ref().is_some_and(|machine| machine.ending().is_some()) {
            driver.ended_term = driver.lease.take().and_then(|machine| machine.ended_term());
            let chance = self.rng.f64();
            let backoff_reason = driver.backoff_reason.take().unwrap_or(BackoffReason::Resigned);
            let pause = driver.candidate.backoff(backoff_reason, &self.settings, chance).mul_f64(chance);
            effects.push(Effect::Wake(pause, Timer::Acquire(lease)));
        }
    }

    /// Reports a candidate's election events.
    fn observe_election(&mut self, lease: LeaseIndex, events: ElectionEvents, effects: &mut Vec<Effect>) {
        let process = self.id;
        let seen = |(token, event)| Effect::Observed(Observation::ElectionReported { process, lease, token, event });
        effects.extend(events.into_iter().map(seen));
    }

    fn stop_candidate(&mut self, local: Moment, lease: LeaseIndex, effects: &mut Vec<Effect>) {
        if self.mutation == Some(SimMutation::SilentDemotion) {
            return;
        }
        let (events, backoff_reason) = self.drivers[lease.0].candidate.on_must_stop(local);
        self.drivers[lease.0].backoff_reason = backoff_reason.or(self.drivers[lease.0].backoff_reason);
        self.observe_election(lease, events, effects);
    }

    fn acquire(&mut self, lease: LeaseIndex, names: &NameTable) {
        let driver = &mut self.drivers[lease.0];
        if driver.lease.is_some() || !matches!(self.link, SimLink::Up(_)) {
            // Without a connection, the next attach starts the acquisition.
            return;
        }
        let mut machine =
            Lease::new(names.name(lease).clone(), self.instance.clone(), self.settings.clone(), self.rng.u64(..))
                .with_ended_term(driver.ended_term);
        if let Some(SimMutation::Core(mutation)) = self.mutation {
            machine.plant(mutation);
        }
        driver.lease = Some(machine);
        driver.number += 1;
        self.inbox.push_back((lease, Input::Tick));
    }

    fn send_for_machine(
        &mut self,
        local: Moment,
        lease: LeaseIndex,
        attempt: Attempt,
        request: LeaseRequest,
        give_up_at: Moment,
        effects: &mut Vec<Effect>,
    ) {
        match &request {
            LeaseRequest::Renew { holding, .. } => {
                effects.push(Effect::Observed(Observation::RenewSent(self.term(lease, holding.token))));
            }
            LeaseRequest::Release { holding, .. } | LeaseRequest::HandOver { holding, .. } => {
                effects.push(Effect::Observed(Observation::ReleaseSent(self.term(lease, holding.token))));
            }
            _ => {}
        }
        let SimLink::Up(connection) = self.link else {
            self.inbox.push_back((lease, Input::Failed { attempt, error: unreachable_error() }));
            return;
        };
        self.requests += 1;
        let number = self.drivers[lease.0].number;
        self.pending.insert(self.requests, PendingRequest::Machine { lease, number, attempt, sent: local });
        effects.push(Effect::Send(connection, Packet::Request(self.requests, request.into())));
        effects.push(Effect::Wake(give_up_at.since(local), Timer::RequestTimeout(self.requests)));
    }

    fn on_reply(&mut self, now: SimTime, request: u64, reply: Reply) {
        if let Some(memory) = &mut self.memory {
            memory.learn(&reply);
        }
        let (lease, number, attempt, sent) = match self.pending.remove(&request) {
            Some(PendingRequest::Machine { lease, number, attempt, sent }) => (lease, number, attempt, sent),
            Some(PendingRequest::Publication { lease, token }) => {
                if let Reply::Refused(refusal) = reply {
                    self.inbox.push_back((lease, Input::Refused { token, refusal }));
                }
                return;
            }
            Some(PendingRequest::Other) | None => return,
        };
        let driver = &mut self.drivers[lease.0];
        if driver.number != number {
            return;
        }
        let local = self.clock.read(now).moment;
        let valid_until = deadline(sent, self.settings.ttl(), self.settings.clock_tolerance());
        match &reply {
            Reply::Granted(_) => driver.valid_until = valid_until,
            // A renewal that is answered after the deadline does not extend the term.
            Reply::Renewed { .. } if local < driver.valid_until => {
                driver.valid_until = driver.valid_until.max(valid_until)
            }
            _ => {}
        }
        self.inbox.push_back((lease, Input::Answered { attempt, reply }));
    }

    fn on_attached(&mut self, attached: &Attached, effects: &mut Vec<Effect>) {
        let continuity = match &mut self.memory {
            Some(memory) => memory.reattach(attached),
            None => {
                self.memory = Some(NamespaceMemory::new(attached));
                Continuity::Changed
            }
        };
        self.push_all(Input::Attached(continuity));
        for (index, driver) in self.drivers.iter().enumerate() {
            if driver.lease.is_none() {
                let pause = Duration::from_micros(self.rng.u64(1..5_000));
                effects.push(Effect::Wake(pause, Timer::Acquire(LeaseIndex(index))));
            }
        }
    }

    /// Drops the connection, with a reset unless the other side sent one, and connects again.
    fn disconnect(&mut self, reset: bool, effects: &mut Vec<Effect>) {
        if let SimLink::Attaching(connection) | SimLink::Up(connection) = self.link {
            if reset {
                effects.push(Effect::Send(connection, Packet::Reset));
            }
            self.link = SimLink::Down;
            self.pending.clear();
            self.push_all(Input::ConnectionLost);
            let longest = self.settings.renew_every();
            let pause = Duration::from_millis(2).saturating_mul(1 << self.failures.min(12)).min(longest);
            self.failures += 1;
            let pause = pause.mul_f64(0.5 + 0.5 * self.rng.f64());
            effects.push(Effect::Wake(pause, Timer::Connect));
        }
    }

    fn apply_permission(
        &mut self,
        local: Moment,
        lease: LeaseIndex,
        permission: Permission,
        effects: &mut Vec<Effect>,
    ) {
        if matches!(permission, Permission::MustCancel { .. } | Permission::MustBeGone) {
            self.stop_candidate(local, lease, effects);
        }
        let driver = &mut self.drivers[lease.0];
        driver.cached_may_start = matches!(permission, Permission::MayStart { .. });
        match permission {
            Permission::MayStart { token } => {
                let events = driver.candidate.on_may_start(token, local);
                self.observe_election(lease, events, effects);
                effects.push(Effect::Observed(Observation::MayStart(TermId { process: self.id, lease, token })));
                self.schedule_work(lease, effects);
            }
            Permission::MustCancel { gone_by } => match &mut driver.work {
                Some(work) => {
                    let was_cancelled = work.gone_by.replace(gone_by).is_some();
                    let budget = gone_by.since(local).min(self.settings.stop_budget());
                    let clean_up =
                        if work.ignores_cancel { gone_by.since(local) } else { budget.mul_f64(self.rng.f64()) };
                    if !was_cancelled || work.ignores_cancel {
                        effects.push(Effect::Wake(clean_up, Timer::CleanupDone(lease, work.number)));
                    }
                }
                None => self.inbox.push_back((lease, Input::WorkEnded)),
            },
            Permission::MustBeGone => {
                if driver.work.is_some() {
                    self.end_work(lease, effects);
                } else {
                    self.inbox.push_back((lease, Input::WorkEnded));
                }
            }
            _ => {}
        }
    }

    fn schedule_work(&mut self, lease: LeaseIndex, effects: &mut Vec<Effect>) {
        let pause = self.random_up_to(self.settings.ttl() / 50);
        effects.push(Effect::Wake(pause, Timer::StartWork(lease, self.drivers[lease.0].number)));
    }

    fn start_work(&mut self, now: SimTime, lease: LeaseIndex, number: u64, effects: &mut Vec<Effect>) {
        let local = self.clock.read(now).moment;
        let driver = &mut self.drivers[lease.0];
        let Some(machine) = &driver.lease else { return };
        if driver.number != number || driver.work.is_some() {
            return;
        }
        let allowed = match self.mutation {
            Some(SimMutation::CachedBoolean) => driver.cached_may_start,
            _ => matches!(machine.permission(self.clock.read(now)), Permission::MayStart { .. }),
        };
        let Some(token) = machine.token().filter(|_| allowed) else { return };
        self.units += 1;
        let unit = self.units;
        let length = self.settings.ttl().mul_f64(0.02 + 0.6 * self.rng.f64() * self.rng.f64());
        driver.work = Some(SimWork {
            number: unit,
            token,
            done_at: local + length,
            ignores_cancel: self.rng.f64() < 0.3,
            gone_by: None,
            check_passed: false,
        });
        effects.push(Effect::Observed(Observation::WorkStarted(TermId { process: self.id, lease, token })));
        effects.push(Effect::Wake(Duration::ZERO, Timer::Act(lease, unit)));
    }

    fn act(&mut self, now: SimTime, lease: LeaseIndex, unit: u64, names: &NameTable, effects: &mut Vec<Effect>) {
        let clocks = self.clock.read(now);
        let local = clocks.moment;
        let driver = &self.drivers[lease.0];
        let (Some(machine), Some(work)) = (&driver.lease, &driver.work) else { return };
        if work.number != unit {
            return;
        }
        let allowed = match (self.mutation, work.gone_by) {
            (Some(SimMutation::CachedBoolean), _) => true,
            (_, Some(gone_by)) => local < gone_by,
            (_, None) => machine.is_valid(clocks),
        };
        if !allowed {
            self.end_work(lease, effects);
            return;
        }
        let (token, valid_until) = (work.token, driver.valid_until);
        let done = local >= work.done_at && work.gone_by.is_none();
        effects.push(Effect::Observed(Observation::Acted { term: self.term(lease, token), local, valid_until }));
        if !driver.hung {
            self.inbox.push_back((lease, Input::Progress));
        }
        if done && !driver.hung {
            self.publish(lease, token, names, effects);
            self.end_work(lease, effects);
            self.schedule_work(lease, effects);
        } else {
            let pause = self.random_up_to(self.settings.ttl() / 25);
            effects.push(Effect::Wake(pause, Timer::Act(lease, unit)));
        }
    }

    fn end_work(&mut self, lease: LeaseIndex, effects: &mut Vec<Effect>) {
        if let Some(work) = self.drivers[lease.0].work.take() {
            self.drivers[lease.0].hung = false;
            effects.push(Effect::Observed(Observation::WorkEnded(self.term(lease, work.token))));
            self.inbox.push_back((lease, Input::WorkEnded));
        }
    }

    fn publish(&mut self, lease: LeaseIndex, token: Token, names: &NameTable, effects: &mut Vec<Effect>) {
        let holding = Holding { name: names.name(lease).clone(), holder: self.instance.clone(), token };
        let request =
            DocumentRequest::Publish { holding, record: "state".to_owned(), value: Vec::new(), announced: true };
        self.send(PendingRequest::Publication { lease, token }, request, effects);
    }

    fn send_other(&mut self, request: impl Into<Request>, effects: &mut Vec<Effect>) {
        self.send(PendingRequest::Other, request, effects);
    }

    fn send(&mut self, pending: PendingRequest, request: impl Into<Request>, effects: &mut Vec<Effect>) {
        if let SimLink::Up(connection) = self.link {
            self.requests += 1;
            self.pending.insert(self.requests, pending);
            effects.push(Effect::Send(connection, Packet::Request(self.requests, request.into())));
            effects.push(Effect::Wake(self.settings.attempt_timeout(), Timer::RequestTimeout(self.requests)));
        }
    }

    /// Performs a random action of a user or an operator.
    fn perform_user_action(&mut self, now: SimTime, names: &NameTable, effects: &mut Vec<Effect>) {
        let lease = LeaseIndex(self.rng.usize(..self.drivers.len()));
        let clocks = self.clock.read(now);
        let receiver = names.instance(ProcessId(self.rng.usize(..names.processes()))).clone();
        let held = self.drivers[lease.0].lease.as_ref().filter(|machine| machine.is_valid(clocks));
        let token = held.and_then(Lease::token);
        let known = token.or(self.memory.as_ref().map(|memory| memory.high_water));
        let wish = match self.rng.u32(..10) {
            0..3 => Some(Intent::Release(ReleaseReason::Voluntary)),
            3..5 => Some(Intent::Drain(ReleaseReason::Rebalance)),
            5..7 => token.map(|_| Intent::HandOver(receiver)),
            7 => {
                self.drivers[lease.0].hung = true;
                None
            }
            8 => {
                if let Some(token) = known {
                    self.send_other(LeaseRequest::Revoke { name: names.name(lease).clone(), token }, effects);
                }
                None
            }
            _ => {
                if let Some(token) = known {
                    let to = self.rng.bool().then_some(receiver);
                    let ask = Ask::StepDown { to };
                    self.send_other(LeaseRequest::Ask { name: names.name(lease).clone(), token, ask }, effects);
                }
                None
            }
        };
        if let Some(wish) = wish
            && self.drivers[lease.0].lease.is_some()
        {
            let idle = self.drivers[lease.0].work.is_none();
            let drain = matches!(wish, Intent::Drain(_));
            self.inbox.push_back((lease, Input::Intent(wish)));
            if drain && idle {
                self.inbox.push_back((lease, Input::WorkEnded));
            }
        }
    }

    fn push_all(&mut self, input: Input) {
        for index in 0..self.drivers.len() {
            self.inbox.push_back((LeaseIndex(index), input.clone()));
        }
    }

    fn term(&self, lease: LeaseIndex, token: Token) -> TermId {
        TermId { process: self.id, lease, token }
    }

    fn random_up_to(&mut self, span: Duration) -> Duration {
        span.mul_f64(self.rng.f64())
    }
}

fn unreachable_error() -> StoreError {
    StoreError::new(ErrorKind::Unreachable, "simulated: no reply")
}
