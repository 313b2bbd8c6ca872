//! One simulated instance: it executes what the library's lease manager decides, as the keeper's thread does in a program.
//!
//! On its own it decides nothing about leases. Its users (`user.rs`) acquire, work, release and hang.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::ending::Ending;
use tenure_core::lease::{LeaseSettings, Permission};
use tenure_core::manager::{
    AcquireRefusal, Batch, CallId, LeaseId, LeaseManager, LinkId, ManagerConfig, Output, Recipients, StoreCall,
    WaiterId,
};
use tenure_core::store::{AttachRequest, Attached, ErrorKind, LeaseRequest, Outcome, Reply, Request, StoreError};
use tenure_core::time::{Moment, Now, deadline};
use tenure_core::{EventKind, InstanceId, LeaseName, Token};

use crate::clock::LocalClock;
use crate::mutation::SimMutation;
use crate::names::NameTable;
use crate::network::{ConnectionId, Packet};
use crate::observation::{LeaseIndex, Observation, ProcessId, TermId};
use crate::timeline::SimTime;
use crate::user::{LeaseUser, SimTerm};

/// The longest time between two looks at the clocks, regardless of timers.
const MAX_SLEEP: Duration = Duration::from_millis(250);

/// A reason to wake a process.
#[derive(Clone, Debug)]
pub enum Timer {
    /// The manager has something to do, or the clocks are to be read.
    Alarm(Moment),
    /// A batch got no reply in time.
    BatchTimeout(u64),
    /// An attach got no reply in time.
    AttachTimeout(ConnectionId),
    /// Acquire a lease (again).
    Acquire(LeaseIndex),
    /// Start a unit of work, if the term permits it.
    StartWork(LeaseIndex, Token),
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
    /// Count a transition that some world must reach.
    Reached(&'static str),
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
    pub(crate) id: ProcessId,
    pub(crate) instance: InstanceId,
    pub(crate) settings: Arc<LeaseSettings>,
    pub(crate) rng: fastrand::Rng,
    pub(crate) manager: LeaseManager,
    /// The longest ttl that it assumes for the leases of others until it knows better.
    assumed_ttl: Duration,
    link: SimLink,
    batches: BTreeMap<u64, PendingBatch>,
    /// The batch of each request without a reply, and its place there.
    requests: BTreeMap<u64, (u64, usize)>,
    /// The last number given to a request, batch, call or waiter.
    last_number: u64,
    /// The next alarm. Others are stale.
    alarm_at: Moment,
    pub(crate) users: Vec<LeaseUser>,
    /// The lease of each term and each waiter.
    pub(crate) terms: BTreeMap<LeaseId, LeaseIndex>,
    pub(crate) waiters: BTreeMap<WaiterId, LeaseIndex>,
    /// Whether its users act.
    pub user_actions_enabled: bool,
    pub(crate) mutation: Option<SimMutation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimLink {
    Down,
    Attaching(LinkId, ConnectionId),
    Up(LinkId, ConnectionId),
}

/// A batch without replies to all of its requests.
#[derive(Debug)]
struct PendingBatch {
    link: LinkId,
    recipients: Recipients,
    outcomes: Vec<Outcome>,
    missing: usize,
    /// The claims and renewals in it, with their leases.
    extensions: Vec<(usize, LeaseIndex)>,
    sent: Moment,
}

impl SimProcess {
    /// Starts a process.
    pub fn start(
        id: ProcessId,
        names: &NameTable,
        clock: LocalClock,
        config: ProcessConfig,
        mut rng: fastrand::Rng,
        effects: &mut Vec<Effect>,
    ) -> Self {
        let ProcessConfig { settings, assumed_ttl, mutation } = config;
        let manager_config = ManagerConfig {
            instance: names.instance(id).clone(),
            location: "simulated:".to_owned(),
            assumed_ttl,
            observer: false,
            bootstrap: false,
            durable: false,
        };
        let mut manager = LeaseManager::new(manager_config, rng.u64(..));
        if let Some(SimMutation::Core(mutation)) = mutation {
            manager.plant(mutation);
        }
        let mut process = Self {
            clock,
            id,
            instance: names.instance(id).clone(),
            settings,
            rng,
            manager,
            assumed_ttl,
            link: SimLink::Down,
            batches: BTreeMap::new(),
            requests: BTreeMap::new(),
            last_number: 0,
            alarm_at: Moment::END,
            users: (0..names.leases()).map(|lease| LeaseUser::new(names.name(LeaseIndex(lease)).clone())).collect(),
            terms: BTreeMap::new(),
            waiters: BTreeMap::new(),
            user_actions_enabled: true,
            mutation,
        };
        for lease in 0..names.leases() {
            let soon = process.random_up_to(MAX_SLEEP / 5);
            effects.push(Effect::Wake(soon, Timer::Acquire(LeaseIndex(lease))));
        }
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
        connections: &mut u64,
        effects: &mut Vec<Effect>,
    ) {
        let local = self.clock.read(now);
        match timer {
            Timer::Alarm(at) if at == self.alarm_at => self.alarm_at = Moment::END,
            Timer::Alarm(_) => return,
            Timer::BatchTimeout(batch) => self.finish_batch(local, batch),
            Timer::AttachTimeout(connection) => {
                if let SimLink::Attaching(link, current) = self.link
                    && current == connection
                {
                    effects.push(Effect::Send(connection, Packet::Reset));
                    self.link = SimLink::Down;
                    self.manager.attached(local, link, Err(unreachable_error()));
                }
            }
            Timer::Acquire(lease) => self.acquire(local, lease),
            Timer::StartWork(lease, token) => self.start_work(local, lease, token, effects),
            Timer::Act(lease, unit) => self.act(local, lease, unit, effects),
            Timer::CleanupDone(lease, unit) => {
                if self.users[lease.0].work.as_ref().is_some_and(|work| work.number == unit) {
                    self.end_work(local, lease, effects);
                }
            }
            Timer::UserAction => {
                if self.user_actions_enabled {
                    self.perform_user_action(local, names, effects);
                }
                let next = self.random_up_to(self.settings.ttl() * 4);
                effects.push(Effect::Wake(next, Timer::UserAction));
            }
        }
        self.finish_round(local, connections, effects);
    }

    /// Handles a packet.
    pub fn receive(
        &mut self,
        now: SimTime,
        connection: ConnectionId,
        packet: Packet,
        connections: &mut u64,
        effects: &mut Vec<Effect>,
    ) {
        let local = self.clock.read(now);
        match (packet, self.link) {
            (Packet::Attached(attached), SimLink::Attaching(link, current)) if current == connection => {
                self.link = SimLink::Up(link, connection);
                self.on_attached(local, link, &attached);
            }
            (Packet::Reply(request, reply), SimLink::Up(_, current)) if current == connection => {
                self.on_reply(local, request, reply);
            }
            (Packet::Announcement(announcement), SimLink::Up(_, current)) if current == connection => {
                self.manager.announced(local, announcement);
            }
            (Packet::Reset, SimLink::Attaching(link, current)) if current == connection => {
                self.link = SimLink::Down;
                self.manager.attached(local, link, Err(unreachable_error()));
            }
            (Packet::Reset, SimLink::Up(link, current)) if current == connection => self.manager.closed(local, link),
            _ => return,
        }
        self.finish_round(local, connections, effects);
    }

    /// The ttl of its leases.
    pub fn ttl(&self) -> Duration {
        self.settings.ttl()
    }

    /// The longest ttl that it would wait for after a data loss.
    pub fn longest_known_ttl(&self) -> Duration {
        let known = self.manager.memory().map_or(Duration::ZERO, |memory| memory.max_ttl);
        known.max(self.settings.ttl()).max(self.assumed_ttl)
    }

    /// Prepares for a stop: work may be between its check and its action.
    pub fn before_stop(&mut self, now: SimTime) {
        let local = self.clock.read(now).moment;
        for user in &mut self.users {
            if let (Some(term), Some(work)) = (&user.term, &mut user.work) {
                work.check_passed = work.gone_by.is_none() && term.is_valid(local) && self.rng.f64() < 0.3;
            }
        }
    }

    /// Resumes the process. Actions whose check had passed are carried out, whatever has happened since.
    pub fn resume(&mut self, now: SimTime, connections: &mut u64, effects: &mut Vec<Effect>) {
        let local = self.clock.read(now);
        for index in 0..self.users.len() {
            let lease = LeaseIndex(index);
            let work = self.users[index].work.as_mut();
            let late = work.and_then(|work| std::mem::take(&mut work.check_passed).then_some(work.token));
            if let Some(token) = late {
                effects.push(Effect::Observed(Observation::ActedLate(self.term(lease, token))));
                self.publish(local, lease, token);
            }
        }
        // Either the manager or the work may run first.
        if self.rng.bool() {
            self.finish_round(local, connections, effects);
        }
    }

    /// Stops user actions and unblocks hung work.
    pub fn quiesce(&mut self) {
        self.user_actions_enabled = false;
        self.users.iter_mut().for_each(|user| user.hung = false);
    }

    /// Does what the keeper's thread does after each input.
    fn finish_round(&mut self, now: Now, connections: &mut u64, effects: &mut Vec<Effect>) {
        self.execute_outputs(now, connections, effects);
        self.manager.check_timers(now);
        loop {
            self.execute_outputs(now, connections, effects);
            self.manager.flush(now);
            if !self.execute_outputs(now, connections, effects) {
                break;
            }
        }
        let longest = now.moment + MAX_SLEEP;
        let wake = self.manager.next_wake().map_or(longest, |at| at.min(longest));
        if wake < self.alarm_at || self.alarm_at <= now.moment {
            self.alarm_at = wake;
            effects.push(Effect::Wake(wake.since(now.moment) + Duration::from_micros(1), Timer::Alarm(wake)));
        }
    }

    fn execute_outputs(&mut self, now: Now, connections: &mut u64, effects: &mut Vec<Effect>) -> bool {
        let mut any = false;
        loop {
            let outputs = self.manager.take_outputs();
            if outputs.is_empty() {
                return any;
            }
            any = true;
            for output in outputs {
                self.execute(now, output, connections, effects);
            }
        }
    }

    fn execute(&mut self, now: Now, output: Output, connections: &mut u64, effects: &mut Vec<Effect>) {
        match output {
            Output::Attach { link, request, timeout } => {
                *connections += 1;
                self.attach(link, ConnectionId(*connections), *request, timeout, effects);
            }
            Output::Send(batch) => self.send_batch(now.moment, batch, effects),
            Output::Disconnect => {
                if let SimLink::Up(_, connection) = self.link {
                    effects.push(Effect::Send(connection, Packet::Reset));
                }
                self.link = SimLink::Down;
                self.batches.clear();
                self.requests.clear();
            }
            Output::Granted { waiter, lease } => self.granted(now, waiter, lease),
            Output::Refused { waiter, refusal } => {
                effects.push(Effect::Reached(match refusal {
                    AcquireRefusal::Held { .. } => "refused: held",
                    AcquireRefusal::Quarantined(_) => "refused: quarantined",
                    AcquireRefusal::TimedOut { .. } => "refused: timed out",
                    AcquireRefusal::Store(_) => "refused: store error",
                    AcquireRefusal::Observer => "refused: observer",
                    AcquireRefusal::ShutDown => "refused: shut down",
                }));
                self.refused(waiter, effects);
            }
            Output::Status { waiter, status } => {
                if let Some(lease) = self.waiters.get(&waiter).copied() {
                    let events = self.users[lease.0].candidate.on_status(status);
                    self.observe_election(lease, events, effects);
                }
            }
            Output::TermBegan { lease, name, .. } => {
                if let Some(index) = self.index(&name) {
                    self.terms.insert(lease, index);
                    self.users[index.0].term = Some(SimTerm::new(lease));
                }
            }
            Output::TermUpdated { lease, validity } => {
                if let Some(term) = self.term_of(lease) {
                    term.update(&validity);
                }
            }
            Output::Permit { lease, permission } => self.permit(now, lease, permission, effects),
            Output::Drain { lease } => {
                effects.push(Effect::Reached("a term is drained"));
                self.check_work(now, lease);
            }
            Output::TermEnded { lease, .. } => self.term_ended(lease, effects),
            Output::Emit(event) => {
                effects.push(Effect::Reached(event.kind.name()));
                if let (EventKind::Lost(loss), Some(token), Some(name)) = (event.kind, event.token, event.lease)
                    && let Some(lease) = self.index(&name)
                {
                    self.users[lease.0].candidate.on_lost(Ending::Lost(loss.clone()));
                    effects.push(Effect::Observed(Observation::Lost(self.term(lease, token), loss)));
                }
            }
            Output::Connection(_)
            | Output::Announced(_)
            | Output::MissedAnnouncements
            | Output::TermCause { .. }
            | Output::Replied { .. }
            | Output::Renewed(_) => {}
        }
    }

    // The connection.

    fn attach(
        &mut self,
        link: LinkId,
        connection: ConnectionId,
        request: AttachRequest,
        timeout: Duration,
        effects: &mut Vec<Effect>,
    ) {
        self.link = SimLink::Attaching(link, connection);
        effects.push(Effect::Send(connection, Packet::Attach(request)));
        effects.push(Effect::Wake(timeout, Timer::AttachTimeout(connection)));
    }

    fn on_attached(&mut self, now: Now, link: LinkId, attached: &Attached) {
        self.manager.attached(now, link, Ok(attached));
        // The subscription is made anew.
        self.manager.announcements_missed(now);
    }

    fn send_batch(&mut self, local: Moment, batch: Batch, effects: &mut Vec<Effect>) {
        let SimLink::Up(_, connection) = self.link else { return };
        let Batch { link, requests, recipients, timeout } = batch;
        let number = self.next_number();
        let mut extensions = Vec::new();
        let outcomes = vec![Outcome::Unknown(unreachable_error()); requests.len()];
        let missing = requests.len();
        for (place, request) in requests.into_iter().enumerate() {
            self.observe_request(&request, effects);
            extensions.extend(self.extended_lease(&request).map(|lease| (place, lease)));
            let request_number = self.next_number();
            self.requests.insert(request_number, (number, place));
            effects.push(Effect::Send(connection, Packet::Request(request_number, request)));
        }
        let pending = PendingBatch { link, recipients, outcomes, missing, extensions, sent: local };
        self.batches.insert(number, pending);
        effects.push(Effect::Wake(timeout, Timer::BatchTimeout(number)));
    }

    fn observe_request(&self, request: &Request, effects: &mut Vec<Effect>) {
        let (holding, is_renewal) = match request {
            Request::Lease(LeaseRequest::Renew { holding, .. }) => (holding, true),
            Request::Lease(LeaseRequest::Release { holding, .. } | LeaseRequest::HandOver { holding, .. }) => {
                (holding, false)
            }
            _ => return,
        };
        if let Some(lease) = self.index(&holding.name) {
            let term = self.term(lease, holding.token);
            effects.push(Effect::Observed(match is_renewal {
                true => Observation::RenewSent(term),
                false => Observation::ReleaseSent(term),
            }));
        }
    }

    /// The lease that this request acquires or renews.
    fn extended_lease(&self, request: &Request) -> Option<LeaseIndex> {
        match request {
            Request::Lease(LeaseRequest::Acquire { claim, .. } | LeaseRequest::TakeOver { claim, .. }) => {
                self.index(&claim.name)
            }
            Request::Lease(LeaseRequest::Renew { holding, .. }) => self.index(&holding.name),
            _ => None,
        }
    }

    fn on_reply(&mut self, now: Now, request: u64, reply: Reply) {
        let Some((number, place)) = self.requests.remove(&request) else { return };
        let Some(batch) = self.batches.get_mut(&number) else { return };
        batch.outcomes[place] = Outcome::Answered(reply);
        batch.missing -= 1;
        if batch.missing == 0 {
            self.finish_batch(now, number);
        }
    }

    /// Reports the outcomes of a batch: what was not answered by now is unknown.
    fn finish_batch(&mut self, now: Now, number: u64) {
        let Some(batch) = self.batches.remove(&number) else { return };
        for (place, lease) in &batch.extensions {
            let valid_until = deadline(batch.sent, self.settings.ttl(), self.settings.clock_tolerance());
            let until = &mut self.users[lease.0].valid_until;
            match &batch.outcomes[*place] {
                // Each grant was asked for after the last renewal of the term before it.
                Outcome::Answered(Reply::Granted(_)) => *until = valid_until.max(*until),
                // A renewal that is answered after the deadline does not extend the term.
                Outcome::Answered(Reply::Renewed { .. }) if now.moment < *until => *until = valid_until.max(*until),
                _ => {}
            }
        }
        self.manager.answered(now, batch.link, batch.recipients, batch.outcomes);
    }

    pub(crate) fn call(&mut self, now: Now, request: impl Into<Request>, is_work: bool) {
        let (id, timeout) = (CallId(self.next_number()), self.settings.attempt_timeout());
        self.manager.call(now, StoreCall { id, request: request.into(), timeout, is_work });
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn index(&self, name: &LeaseName) -> Option<LeaseIndex> {
        self.users.iter().position(|user| user.name == *name).map(LeaseIndex)
    }

    fn term_of(&mut self, lease: LeaseId) -> Option<&mut SimTerm> {
        let index = self.terms.get(&lease)?;
        self.users[index.0].term.as_mut().filter(|term| term.lease == lease)
    }

    pub(crate) fn term(&self, lease: LeaseIndex, token: Token) -> TermId {
        TermId { process: self.id, lease, token }
    }

    pub(crate) fn random_up_to(&mut self, span: Duration) -> Duration {
        span.mul_f64(self.rng.f64())
    }

    /// Reports that the work of a term has ended, if none is running.
    pub(crate) fn check_work(&mut self, now: Now, lease: LeaseId) {
        let is_running = self.terms.get(&lease).is_some_and(|index| self.users[index.0].work.is_some());
        if !is_running {
            self.manager.work_ended(now, lease);
        }
    }

    fn permit(&mut self, now: Now, lease: LeaseId, permission: Permission, effects: &mut Vec<Effect>) {
        let Some(index) = self.terms.get(&lease).copied() else { return };
        if let Some(term) = self.term_of(lease) {
            let before = std::mem::replace(&mut term.permission, permission);
            effects.push(Effect::Reached(transition(before, permission)));
        }
        self.apply_permission(now, index, permission, effects);
        if matches!(permission, Permission::MustCancel { .. } | Permission::MustBeGone) {
            self.check_work(now, lease);
        }
    }
}

/// The name of a change of permission.
fn transition(from: Permission, to: Permission) -> &'static str {
    use Permission::{HoldStarts, MayStart, MustBeGone, MustCancel, None};
    match (from, to) {
        (None, MayStart { .. }) => "a term begins",
        (None, HoldStarts { .. }) => "a term waits for its predecessor",
        (HoldStarts { .. }, MayStart { .. }) => "starts are permitted again",
        (MayStart { .. }, HoldStarts { .. }) => "starts are held back",
        (MayStart { .. }, MustCancel { .. }) => "running work is cancelled",
        (HoldStarts { .. }, MustCancel { .. }) => "work is cancelled while starts are held back",
        (MustCancel { .. }, MustCancel { .. }) => "the time to stop changes",
        (MustCancel { .. }, MustBeGone) => "cancelled work must be gone",
        (_, MustBeGone) => "work must be gone at once",
        _ => "another change of permission",
    }
}

fn unreachable_error() -> StoreError {
    StoreError::new(ErrorKind::Unreachable, "simulated: no reply")
}
