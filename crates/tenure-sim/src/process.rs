//! One instance: it drives the lease machines against the store over one connection, and runs work under them.
//!
//! This is the edge. Everything it does is what the machines ask for; all it decides is when to replace a connection
//! (on any time-out or reset) and what its users want.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tenure::election::Setback;
use tenure::lease::{Action, Attempt, Ending, Epoch, Input, Lease, LeaseSettings, Permission, ReleaseReason, Wish};
use tenure::store::{Ask, Continuity, Entered, Entry, ErrorKind, Holding, NamespaceMemory, Reply, Request, StoreError};
use tenure::time::{Moment, deadline};
use tenure::{Happening, InstanceId, Token};

use crate::candidate::{Candidate, Told};
use crate::clock::LocalClock;
use crate::directory::Directory;
use crate::flaw::SimFlaw;
use crate::observation::{LeaseId, Observation, ProcessId, TermId};
use crate::timeline::TrueTime;
use crate::wire::{ConnectionId, Packet};
use crate::work::Work;

/// How often every machine looks at the clock, whatever its timers do.
const BACKSTOP: Duration = Duration::from_millis(250);

/// Something a process asked to be woken for.
#[derive(Clone, Debug)]
pub enum Timer {
    /// A machine's wake-up.
    Wake(LeaseId, u64, Epoch),
    /// No answer has come to a request.
    GiveUp(u64),
    /// No answer has come to an entry.
    EntryTimeout(ConnectionId),
    /// Connect again.
    Connect,
    /// Look at the clock.
    Backstop,
    /// Ask for a lease (again).
    Pursue(LeaseId),
    /// Start a unit of work, if that is allowed.
    StartWork(LeaseId, u64),
    /// Work acts.
    Act(LeaseId, u64),
    /// Cancelled work has cleaned up.
    CleanedUp(LeaseId, u64),
    /// The user wants something.
    Whim,
}

/// What a process does to the rest of the world.
#[derive(Debug)]
pub enum Effect {
    /// Send a packet.
    Send(ConnectionId, Packet),
    /// Wake me after this much of my own time.
    Wake(Duration, Timer),
    /// This was seen of me.
    Seen(Observation),
}

/// How a process is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The settings of its leases.
    pub settings: Arc<LeaseSettings>,
    /// The longest ttl of others that it assumes while it knows nothing.
    pub assumed_ttl: Duration,
    /// The mistake that it makes.
    pub flaw: Option<SimFlaw>,
}

/// One instance.
#[derive(Debug)]
pub struct Process {
    /// Its clock.
    pub clock: LocalClock,
    id: ProcessId,
    instance: InstanceId,
    settings: Arc<LeaseSettings>,
    rng: fastrand::Rng,
    memory: Option<NamespaceMemory>,
    /// The longest ttl of others that it assumes while it knows nothing.
    assumed_ttl: Duration,
    link: Link,
    failures: u32,
    slots: Vec<Slot>,
    inbox: VecDeque<(LeaseId, Input)>,
    pending: BTreeMap<u64, Pending>,
    requests: u64,
    units: u64,
    /// Whether its users want things.
    pub restless: bool,
    flaw: Option<SimFlaw>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Down,
    Entering(ConnectionId),
    Up(ConnectionId),
}

#[derive(Debug, Default)]
struct Slot {
    lease: Option<Lease>,
    /// Which machine; timers of earlier ones are out of date.
    number: u64,
    /// The last term of an earlier machine.
    spent: Option<Token>,
    /// Until when the term may be relied on, worked out here from when requests were sent.
    valid_until: Moment,
    /// What a naive client would go by.
    believed: bool,
    work: Option<Work>,
    hung: bool,
    candidate: Candidate,
    /// What became of the last term, until it is asked for again.
    setback: Option<Setback>,
}

/// A request without an answer.
#[derive(Debug)]
enum Pending {
    Machine { lease: LeaseId, number: u64, attempt: Attempt, sent: Moment },
    Publication { lease: LeaseId, token: Token },
    Other,
}

impl Process {
    /// A process that has just been started.
    pub fn start(
        id: ProcessId,
        directory: &Directory,
        clock: LocalClock,
        setup: Setup,
        rng: fastrand::Rng,
        effects: &mut Vec<Effect>,
    ) -> Self {
        let Setup { settings, assumed_ttl, flaw } = setup;
        let mut process = Self {
            clock,
            id,
            instance: directory.instance(id).clone(),
            settings,
            rng,
            memory: None,
            assumed_ttl,
            link: Link::Down,
            failures: 0,
            slots: (0..directory.leases()).map(|_| Slot::default()).collect(),
            inbox: VecDeque::new(),
            pending: BTreeMap::new(),
            requests: 0,
            units: 0,
            restless: true,
            flaw,
        };
        let soon = process.up_to(BACKSTOP / 5);
        effects.push(Effect::Wake(soon, Timer::Connect));
        effects.push(Effect::Wake(BACKSTOP, Timer::Backstop));
        let whim = process.up_to(process.settings.ttl() * 4);
        effects.push(Effect::Wake(whim, Timer::Whim));
        process
    }

    /// A timer went off.
    pub fn wake(
        &mut self,
        now: TrueTime,
        timer: Timer,
        directory: &Directory,
        next_connection: &mut u64,
        effects: &mut Vec<Effect>,
    ) {
        match timer {
            Timer::Wake(lease, number, epoch) => {
                if self.slots[lease.0].number == number {
                    self.inbox.push_back((lease, Input::Wake(epoch)));
                }
            }
            Timer::GiveUp(request) => {
                if let Some(pending) = self.pending.remove(&request) {
                    if let Pending::Machine { lease, number, attempt, .. } = pending
                        && self.slots[lease.0].number == number
                    {
                        self.inbox.push_back((lease, Input::Unknown { attempt, error: unreachable() }));
                    }
                    self.drop_link(true, effects);
                }
            }
            Timer::EntryTimeout(connection) => {
                if self.link == Link::Entering(connection) {
                    self.drop_link(true, effects);
                }
            }
            Timer::Connect => {
                if self.link == Link::Down {
                    *next_connection += 1;
                    let connection = ConnectionId(*next_connection);
                    self.link = Link::Entering(connection);
                    let knows = self.memory.as_ref().is_some_and(|memory| !memory.max_ttl.is_zero());
                    let own = self.settings.ttl();
                    let entry = Entry {
                        memory: self.memory.clone(),
                        stamp: self.rng.u64(..),
                        max_ttl: if knows { own } else { own.max(self.assumed_ttl) },
                        ..Entry::default()
                    };
                    effects.push(Effect::Send(connection, Packet::Enter(entry)));
                    effects.push(Effect::Wake(self.settings.attempt_timeout(), Timer::EntryTimeout(connection)));
                }
            }
            Timer::Backstop => {
                self.tell_all(Input::Tick);
                effects.push(Effect::Wake(BACKSTOP, Timer::Backstop));
            }
            Timer::Pursue(lease) => self.pursue(lease, directory),
            Timer::StartWork(lease, number) => self.start_work(now, lease, number, effects),
            Timer::Act(lease, unit) => self.act(now, lease, unit, directory, effects),
            Timer::CleanedUp(lease, unit) => {
                if self.slots[lease.0].work.as_ref().is_some_and(|work| work.number == unit) {
                    self.end_work(lease, effects);
                }
            }
            Timer::Whim => {
                if self.restless {
                    self.whim(now, directory, effects);
                }
                let next = self.up_to(self.settings.ttl() * 4);
                effects.push(Effect::Wake(next, Timer::Whim));
            }
        }
        self.settle(now, effects);
    }

    /// A packet arrived.
    pub fn receive(&mut self, now: TrueTime, connection: ConnectionId, packet: Packet, effects: &mut Vec<Effect>) {
        match packet {
            Packet::Entered(entered) if self.link == Link::Entering(connection) => {
                self.link = Link::Up(connection);
                self.failures = 0;
                self.entered(&entered, effects);
            }
            Packet::Reply(request, reply) if self.link == Link::Up(connection) => self.answered(now, request, reply),
            Packet::Announcement(announcement) if self.link == Link::Up(connection) => {
                if let Some(memory) = &mut self.memory {
                    memory.hear(&announcement);
                    if memory.is_outdated_by(&announcement) {
                        self.drop_link(true, effects);
                    }
                }
                self.tell_all(Input::Announced(announcement));
            }
            Packet::Reset if matches!(self.link, Link::Entering(c) | Link::Up(c) if c == connection) => {
                self.drop_link(false, effects);
            }
            _ => {}
        }
        self.settle(now, effects);
    }

    /// The ttl of its leases.
    pub fn ttl(&self) -> Duration {
        self.settings.ttl()
    }

    /// The longest ttl that it would wait for after a loss of data.
    pub fn longest_known(&self) -> Duration {
        let known = self.memory.as_ref().map_or(Duration::ZERO, |memory| memory.max_ttl);
        known.max(self.settings.ttl()).max(self.assumed_ttl)
    }

    /// The process is about to be stopped: work may be between its check and its action.
    pub fn caught(&mut self, now: TrueTime) {
        let clocks = self.clock.read(now);
        for slot in &mut self.slots {
            if let (Some(lease), Some(work)) = (&slot.lease, &mut slot.work) {
                work.check_passed = work.gone_by.is_none() && lease.is_valid(clocks) && self.rng.f64() < 0.3;
            }
        }
    }

    /// The process goes on: actions whose check had passed are carried out, whatever has happened since.
    pub fn goes_on(&mut self, now: TrueTime, directory: &Directory, effects: &mut Vec<Effect>) {
        for index in 0..self.slots.len() {
            let lease = LeaseId(index);
            let work = self.slots[index].work.as_mut();
            let late = work.and_then(|work| std::mem::take(&mut work.check_passed).then_some(work.token));
            if let Some(token) = late {
                effects.push(Effect::Seen(Observation::ActedLate(self.term(lease, token))));
                self.publish(lease, token, directory, effects);
            }
        }
        // Either the machines or the work may be the first to run.
        if self.rng.bool() {
            self.tell_all(Input::Tick);
        }
        self.settle(now, effects);
    }

    /// No more mischief: what hangs goes on.
    pub fn calm_down(&mut self) {
        self.restless = false;
        self.slots.iter_mut().for_each(|slot| slot.hung = false);
    }

    fn settle(&mut self, now: TrueTime, effects: &mut Vec<Effect>) {
        while let Some((lease, input)) = self.inbox.pop_front() {
            self.step(now, lease, input, effects);
        }
    }

    fn step(&mut self, now: TrueTime, lease: LeaseId, input: Input, effects: &mut Vec<Effect>) {
        let clocks = self.clock.read(now);
        let local = clocks.moment;
        let slot = &mut self.slots[lease.0];
        let Some(machine) = &mut slot.lease else { return };
        let actions = machine.step(clocks, input);
        for action in actions {
            match action {
                Action::Send { attempt, request, give_up_at } => {
                    self.send_for_machine(local, lease, attempt, request, give_up_at, effects);
                }
                Action::Enter => self.drop_link(true, effects),
                Action::Permit(permission) => self.permit(local, lease, permission, effects),
                Action::Wake { at, epoch } => {
                    let number = self.slots[lease.0].number;
                    let span = at.since(local) + Duration::from_micros(1);
                    effects.push(Effect::Wake(span, Timer::Wake(lease, number, epoch)));
                }
                Action::Tell(event) => {
                    if let (Happening::Lost(loss), Some(token)) = (event.what, event.token) {
                        self.slots[lease.0].candidate.lost(Ending::Lost(loss.clone()));
                        effects.push(Effect::Seen(Observation::Lost(self.term(lease, token), loss)));
                    }
                }
                _ => {}
            }
        }
        let slot = &mut self.slots[lease.0];
        if let Some(outlook) = slot.lease.as_ref().and_then(Lease::outlook) {
            let told = slot.candidate.sees(outlook);
            self.tell(lease, told, effects);
        }
        let slot = &mut self.slots[lease.0];
        if slot.lease.as_ref().is_some_and(|machine| machine.ending().is_some()) {
            slot.spent = slot.lease.take().and_then(|machine| machine.spent());
            let chance = self.rng.f64();
            let setback = slot.setback.take().unwrap_or(Setback::Resigned);
            let pause = slot.candidate.pause(setback, &self.settings, chance).mul_f64(chance);
            effects.push(Effect::Wake(pause, Timer::Pursue(lease)));
        }
    }

    /// What a candidate says about its election.
    fn tell(&mut self, lease: LeaseId, told: Told, effects: &mut Vec<Effect>) {
        let process = self.id;
        let seen = |(token, news)| Effect::Seen(Observation::Told { process, lease, token, news });
        effects.extend(told.into_iter().map(seen));
    }

    fn must_stop(&mut self, local: Moment, lease: LeaseId, effects: &mut Vec<Effect>) {
        if self.flaw == Some(SimFlaw::SilentDemotion) {
            return;
        }
        let (told, setback) = self.slots[lease.0].candidate.must_stop(local);
        self.slots[lease.0].setback = setback.or(self.slots[lease.0].setback);
        self.tell(lease, told, effects);
    }

    fn pursue(&mut self, lease: LeaseId, directory: &Directory) {
        let slot = &mut self.slots[lease.0];
        if slot.lease.is_some() || !matches!(self.link, Link::Up(_)) {
            // Without a connection, the next entry pursues it.
            return;
        }
        let mut machine =
            Lease::new(directory.name(lease).clone(), self.instance.clone(), self.settings.clone(), self.rng.u64(..))
                .after(slot.spent);
        if let Some(SimFlaw::Core(flaw)) = self.flaw {
            machine.plant(flaw);
        }
        slot.lease = Some(machine);
        slot.number += 1;
        self.inbox.push_back((lease, Input::Tick));
    }

    fn send_for_machine(
        &mut self,
        local: Moment,
        lease: LeaseId,
        attempt: Attempt,
        request: Request,
        give_up_at: Moment,
        effects: &mut Vec<Effect>,
    ) {
        match &request {
            Request::Renew { holding, .. } => {
                effects.push(Effect::Seen(Observation::RenewSent(self.term(lease, holding.token))));
            }
            Request::Release { holding, .. } | Request::HandOver { holding, .. } => {
                effects.push(Effect::Seen(Observation::GoodbyeSent(self.term(lease, holding.token))));
            }
            _ => {}
        }
        let Link::Up(connection) = self.link else {
            self.inbox.push_back((lease, Input::Failed { attempt, error: unreachable() }));
            return;
        };
        self.requests += 1;
        let number = self.slots[lease.0].number;
        self.pending.insert(self.requests, Pending::Machine { lease, number, attempt, sent: local });
        effects.push(Effect::Send(connection, Packet::Request(self.requests, request)));
        effects.push(Effect::Wake(give_up_at.since(local), Timer::GiveUp(self.requests)));
    }

    fn answered(&mut self, now: TrueTime, request: u64, reply: Reply) {
        if let Some(memory) = &mut self.memory {
            memory.learn(&reply);
        }
        let (lease, number, attempt, sent) = match self.pending.remove(&request) {
            Some(Pending::Machine { lease, number, attempt, sent }) => (lease, number, attempt, sent),
            Some(Pending::Publication { lease, token }) => {
                if let Reply::Refused(refusal) = reply {
                    self.inbox.push_back((lease, Input::Refused { token, refusal }));
                }
                return;
            }
            Some(Pending::Other) | None => return,
        };
        let slot = &mut self.slots[lease.0];
        if slot.number != number {
            return;
        }
        let local = self.clock.read(now).moment;
        let valid_until = deadline(sent, self.settings.ttl(), self.settings.clock_error());
        match &reply {
            Reply::Granted(_) => slot.valid_until = valid_until,
            // A renewal that is answered after the deadline is no success.
            Reply::Renewed { .. } if local < slot.valid_until => slot.valid_until = slot.valid_until.max(valid_until),
            _ => {}
        }
        self.inbox.push_back((lease, Input::Answered { attempt, reply }));
    }

    fn entered(&mut self, entered: &Entered, effects: &mut Vec<Effect>) {
        let continuity = match &mut self.memory {
            Some(memory) => memory.reenter(entered),
            None => {
                self.memory = Some(NamespaceMemory::of(entered));
                Continuity::Changed
            }
        };
        self.tell_all(Input::Entered(continuity));
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.lease.is_none() {
                let pause = Duration::from_micros(self.rng.u64(1..5_000));
                effects.push(Effect::Wake(pause, Timer::Pursue(LeaseId(index))));
            }
        }
    }

    /// Gives the connection up, with a reset unless the other side did, and connects again.
    fn drop_link(&mut self, reset: bool, effects: &mut Vec<Effect>) {
        if let Link::Entering(connection) | Link::Up(connection) = self.link {
            if reset {
                effects.push(Effect::Send(connection, Packet::Reset));
            }
            self.link = Link::Down;
            self.pending.clear();
            self.tell_all(Input::ConnectionLost);
            let longest = self.settings.renew_every();
            let pause = Duration::from_millis(2).saturating_mul(1 << self.failures.min(12)).min(longest);
            self.failures += 1;
            let pause = pause.mul_f64(0.5 + 0.5 * self.rng.f64());
            effects.push(Effect::Wake(pause, Timer::Connect));
        }
    }

    fn permit(&mut self, local: Moment, lease: LeaseId, permission: Permission, effects: &mut Vec<Effect>) {
        if matches!(permission, Permission::MustCancel { .. } | Permission::MustBeGone) {
            self.must_stop(local, lease, effects);
        }
        let slot = &mut self.slots[lease.0];
        slot.believed = matches!(permission, Permission::MayStart { .. });
        match permission {
            Permission::MayStart { token } => {
                let told = slot.candidate.may_start(token, local);
                self.tell(lease, told, effects);
                effects.push(Effect::Seen(Observation::MayStart(TermId { process: self.id, lease, token })));
                self.schedule_work(lease, effects);
            }
            Permission::MustCancel { gone_by } => match &mut slot.work {
                Some(work) => {
                    let told_before = work.gone_by.replace(gone_by).is_some();
                    let budget = gone_by.since(local).min(self.settings.stop_budget());
                    let clean_up = if work.stubborn { gone_by.since(local) } else { budget.mul_f64(self.rng.f64()) };
                    if !told_before || work.stubborn {
                        effects.push(Effect::Wake(clean_up, Timer::CleanedUp(lease, work.number)));
                    }
                }
                None => self.inbox.push_back((lease, Input::WorkEnded)),
            },
            Permission::MustBeGone => {
                if slot.work.is_some() {
                    self.end_work(lease, effects);
                } else {
                    self.inbox.push_back((lease, Input::WorkEnded));
                }
            }
            _ => {}
        }
    }

    fn schedule_work(&mut self, lease: LeaseId, effects: &mut Vec<Effect>) {
        let pause = self.up_to(self.settings.ttl() / 50);
        effects.push(Effect::Wake(pause, Timer::StartWork(lease, self.slots[lease.0].number)));
    }

    fn start_work(&mut self, now: TrueTime, lease: LeaseId, number: u64, effects: &mut Vec<Effect>) {
        let local = self.clock.read(now).moment;
        let slot = &mut self.slots[lease.0];
        let Some(machine) = &slot.lease else { return };
        if slot.number != number || slot.work.is_some() {
            return;
        }
        let allowed = match self.flaw {
            Some(SimFlaw::CachedBoolean) => slot.believed,
            _ => matches!(machine.permission(self.clock.read(now)), Permission::MayStart { .. }),
        };
        let Some(token) = machine.token().filter(|_| allowed) else { return };
        self.units += 1;
        let unit = self.units;
        let length = self.settings.ttl().mul_f64(0.02 + 0.6 * self.rng.f64() * self.rng.f64());
        slot.work = Some(Work {
            number: unit,
            token,
            done_at: local + length,
            stubborn: self.rng.f64() < 0.3,
            gone_by: None,
            check_passed: false,
        });
        effects.push(Effect::Seen(Observation::WorkStarted(TermId { process: self.id, lease, token })));
        effects.push(Effect::Wake(Duration::ZERO, Timer::Act(lease, unit)));
    }

    fn act(&mut self, now: TrueTime, lease: LeaseId, unit: u64, directory: &Directory, effects: &mut Vec<Effect>) {
        let clocks = self.clock.read(now);
        let local = clocks.moment;
        let slot = &self.slots[lease.0];
        let (Some(machine), Some(work)) = (&slot.lease, &slot.work) else { return };
        if work.number != unit {
            return;
        }
        let allowed = match (self.flaw, work.gone_by) {
            (Some(SimFlaw::CachedBoolean), _) => true,
            (_, Some(gone_by)) => local < gone_by,
            (_, None) => machine.is_valid(clocks),
        };
        if !allowed {
            self.end_work(lease, effects);
            return;
        }
        let (token, valid_until) = (work.token, slot.valid_until);
        let done = local >= work.done_at && work.gone_by.is_none();
        effects.push(Effect::Seen(Observation::Acted { term: self.term(lease, token), local, valid_until }));
        if !slot.hung {
            self.inbox.push_back((lease, Input::Progress));
        }
        if done && !slot.hung {
            self.publish(lease, token, directory, effects);
            self.end_work(lease, effects);
            self.schedule_work(lease, effects);
        } else {
            let pause = self.up_to(self.settings.ttl() / 25);
            effects.push(Effect::Wake(pause, Timer::Act(lease, unit)));
        }
    }

    fn end_work(&mut self, lease: LeaseId, effects: &mut Vec<Effect>) {
        if let Some(work) = self.slots[lease.0].work.take() {
            self.slots[lease.0].hung = false;
            effects.push(Effect::Seen(Observation::WorkEnded(self.term(lease, work.token))));
            self.inbox.push_back((lease, Input::WorkEnded));
        }
    }

    fn publish(&mut self, lease: LeaseId, token: Token, directory: &Directory, effects: &mut Vec<Effect>) {
        let holding = Holding { name: directory.name(lease).clone(), holder: self.instance.clone(), token };
        let request = Request::Publish { holding, record: "state".to_owned(), value: Vec::new(), announced: true };
        self.send(Pending::Publication { lease, token }, request, effects);
    }

    fn send_other(&mut self, request: Request, effects: &mut Vec<Effect>) {
        self.send(Pending::Other, request, effects);
    }

    fn send(&mut self, pending: Pending, request: Request, effects: &mut Vec<Effect>) {
        if let Link::Up(connection) = self.link {
            self.requests += 1;
            self.pending.insert(self.requests, pending);
            effects.push(Effect::Send(connection, Packet::Request(self.requests, request)));
            effects.push(Effect::Wake(self.settings.attempt_timeout(), Timer::GiveUp(self.requests)));
        }
    }

    /// What users and operators do.
    fn whim(&mut self, now: TrueTime, directory: &Directory, effects: &mut Vec<Effect>) {
        let lease = LeaseId(self.rng.usize(..self.slots.len()));
        let clocks = self.clock.read(now);
        let receiver = directory.instance(ProcessId(self.rng.usize(..directory.processes()))).clone();
        let held = self.slots[lease.0].lease.as_ref().filter(|machine| machine.is_valid(clocks));
        let token = held.and_then(Lease::token);
        let known = token.or(self.memory.as_ref().map(|memory| memory.high_water));
        let wish = match self.rng.u32(..10) {
            0..3 => Some(Wish::Release(ReleaseReason::Voluntary)),
            3..5 => Some(Wish::Drain(ReleaseReason::Rebalance)),
            5..7 => token.map(|_| Wish::HandOver(receiver)),
            7 => {
                self.slots[lease.0].hung = true;
                None
            }
            8 => {
                if let Some(token) = known {
                    self.send_other(Request::Revoke { name: directory.name(lease).clone(), token }, effects);
                }
                None
            }
            _ => {
                if let Some(token) = known {
                    let to = self.rng.bool().then_some(receiver);
                    let ask = Ask::StepDown { to };
                    self.send_other(Request::Ask { name: directory.name(lease).clone(), token, ask }, effects);
                }
                None
            }
        };
        if let Some(wish) = wish
            && self.slots[lease.0].lease.is_some()
        {
            let idle = self.slots[lease.0].work.is_none();
            let drain = matches!(wish, Wish::Drain(_));
            self.inbox.push_back((lease, Input::Wish(wish)));
            if drain && idle {
                self.inbox.push_back((lease, Input::WorkEnded));
            }
        }
    }

    fn tell_all(&mut self, input: Input) {
        for index in 0..self.slots.len() {
            self.inbox.push_back((LeaseId(index), input.clone()));
        }
    }

    fn term(&self, lease: LeaseId, token: Token) -> TermId {
        TermId { process: self.id, lease, token }
    }

    fn up_to(&mut self, span: Duration) -> Duration {
        span.mul_f64(self.rng.f64())
    }
}

fn unreachable() -> StoreError {
    StoreError::new(ErrorKind::Unreachable, "simulated: no answer")
}
