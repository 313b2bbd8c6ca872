//! One instance of a simulated fleet: it executes what the library's lease manager and pool manager decide.

mod work;
pub(super) mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tenure_core::fleet::InstanceRecord;
use tenure_core::lease::{Intent, LeaseSettings, Permission};
use tenure_core::manager::{
    AcquireMode, AcquireRefusal, AcquireRequest, CallId, Heartbeat, LeaseId, LeaseManager, LinkId, ManagerConfig,
    Output, Recipients, StoreCall, Validity, WaiterId,
};
use tenure_core::pool::{PoolConfig, PoolManager, PoolOutput, QueryId, TargetName, WorkerCommand};
use tenure_core::store::{
    Announcement, AttachRequest, Attached, DocumentRequest, ErrorKind, LeaseRequest, Outcome, Reply, Request,
    StoreError,
};
use tenure_core::time::{Moment, Now, ServerTime};
use tenure_core::{Group, InstanceId, Token};
use worker::{Doing, SimWorker, WorkerCall, WorkerTimer};

use super::world::{FleetMutation, TTL};

/// How long a wedged instance takes to fail a claim.
const WEDGED_CLAIM_TIME: Duration = Duration::from_secs(5);

/// A message to the store.
#[derive(Clone, Debug)]
pub(super) enum ToStore {
    Attach(LinkId, Box<AttachRequest>),
    Batch(u64, Vec<Request>),
}

/// A message from the store.
#[derive(Clone, Debug)]
pub(super) enum FromStore {
    Attached(LinkId, Box<Attached>),
    Replies(u64, Vec<Reply>),
    Announced(Announcement),
}

/// A reason to wake an instance.
#[derive(Clone, Debug)]
pub(super) enum InstanceTimer {
    /// A manager has something to do.
    Alarm(Moment),
    /// A batch got no reply in time.
    BatchTimeout(u64),
    /// An attach got no reply in time.
    AttachTimeout(LinkId),
    /// A wedged instance fails a claim.
    ClaimFailed(TargetName),
    /// A worker has slept, or its work has ended.
    Worker(TargetName, LeaseId, u64, WorkerTimer),
}

/// An effect of an instance on its world.
#[derive(Debug)]
pub(super) enum InstanceEffect {
    Send(ToStore),
    Wake(Moment, InstanceTimer),
    /// A target was acquired.
    Acquired(TargetName),
    /// Work on a tick of a target begins.
    Worked(TargetName, ServerTime),
}

/// A term of a target.
#[derive(Debug)]
struct HeldTarget {
    target: TargetName,
    token: Token,
    deadline: Moment,
    permission: Permission,
    /// Whether the pool was told of it.
    is_granted: bool,
    /// Whether the lease is to be released or handed over when the work has ended.
    is_draining: bool,
}

/// One instance.
#[derive(Debug)]
pub(super) struct FleetInstance {
    id: InstanceId,
    pub(super) manager: LeaseManager,
    pub(super) pool: PoolManager,
    naming: tenure_core::pool::Naming,
    record: InstanceRecord,
    settings: Arc<LeaseSettings>,
    batches: BTreeMap<u64, (LinkId, Recipients, usize)>,
    claims: BTreeMap<WaiterId, TargetName>,
    queries: BTreeMap<CallId, QueryId>,
    terms: BTreeMap<LeaseId, HeldTarget>,
    workers: BTreeMap<LeaseId, SimWorker>,
    worker_calls: BTreeMap<CallId, (LeaseId, WorkerCall)>,
    rng: fastrand::Rng,
    last_number: u64,
    alarm_at: Moment,
    /// Whether it is alive and sends heartbeats, but never claims a target.
    pub(super) is_wedged: bool,
    /// Whether it has left the pool and releases what is left.
    pub(super) is_leaving: bool,
    /// Whether its work is late, stuck or panics now and then.
    pub(super) has_work_faults: bool,
    mutation: Option<FleetMutation>,
}

impl FleetInstance {
    pub(super) fn new(
        now: Moment,
        config: PoolConfig,
        record: InstanceRecord,
        mutation: Option<FleetMutation>,
        seed: u64,
    ) -> Self {
        let manager_config = ManagerConfig {
            instance: config.instance.clone(),
            location: "simulated:".to_owned(),
            assumed_ttl: TTL,
            observer: false,
            bootstrap: false,
            durable: false,
        };
        let mut manager = LeaseManager::new(manager_config, seed);
        let (id, naming) = (config.instance.clone(), config.naming.clone());
        let mut pool = PoolManager::new(now, config);
        if let Some(FleetMutation::Core(mutation)) = mutation {
            manager.plant(mutation);
            pool.plant(mutation);
        }
        Self {
            id,
            manager,
            naming,
            pool,
            record,
            settings: Arc::new(LeaseSettings::default()),
            batches: BTreeMap::new(),
            claims: BTreeMap::new(),
            queries: BTreeMap::new(),
            terms: BTreeMap::new(),
            workers: BTreeMap::new(),
            worker_calls: BTreeMap::new(),
            rng: fastrand::Rng::with_seed(seed ^ 1),
            last_number: 0,
            alarm_at: Moment::END,
            is_wedged: false,
            is_leaving: false,
            has_work_faults: false,
            mutation,
        }
    }

    // What the world looks at.

    /// The targets that it holds for sure, with their tokens.
    pub(super) fn held_targets(&self) -> impl Iterator<Item = (&TargetName, Token)> {
        let is_held = |term: &&HeldTarget| term.is_granted && matches!(term.permission, Permission::MayStart { .. });
        self.terms.values().filter(is_held).map(|term| (&term.target, term.token))
    }

    // Inputs.

    pub(super) fn wake(&mut self, now: Moment, timer: InstanceTimer, effects: &mut Vec<InstanceEffect>) {
        let local = Now::undisturbed(now);
        match timer {
            InstanceTimer::Alarm(at) if at == self.alarm_at => self.alarm_at = Moment::END,
            InstanceTimer::Alarm(_) => return,
            InstanceTimer::BatchTimeout(number) => {
                let Some((link, recipients, len)) = self.batches.remove(&number) else { return };
                self.manager.answered(local, link, recipients, vec![Outcome::Unknown(no_reply()); len]);
            }
            InstanceTimer::AttachTimeout(link) => {
                if self.manager.is_attaching(link) {
                    self.manager.attached(local, link, Err(no_reply()));
                }
            }
            InstanceTimer::ClaimFailed(target) => {
                self.pool.refused(now, target, AcquireRefusal::Store(no_reply()));
            }
            InstanceTimer::Worker(target, lease, number, why) => {
                self.wake_worker(now, &target, lease, number, why, effects);
            }
        }
        self.finish_round(now, effects);
    }

    pub(super) fn receive(&mut self, now: Moment, message: FromStore, effects: &mut Vec<InstanceEffect>) {
        let local = Now::undisturbed(now);
        match message {
            FromStore::Attached(link, attached) => {
                if self.manager.is_attaching(link) {
                    self.manager.attached(local, link, Ok(&attached));
                    // The subscription is made anew.
                    self.manager.announcements_missed(local);
                }
            }
            FromStore::Replies(number, replies) => {
                if let Some((link, recipients, _)) = self.batches.remove(&number) {
                    let outcomes = replies.into_iter().map(Outcome::Answered);
                    self.manager.answered(local, link, recipients, outcomes);
                }
            }
            FromStore::Announced(announcement) => self.manager.announced(local, announcement),
        }
        self.finish_round(now, effects);
    }

    /// Leaves the pool, and releases what is left.
    pub(super) fn leave(&mut self, now: Moment, effects: &mut Vec<InstanceEffect>) {
        self.execute_outputs(now, effects);
        self.is_leaving = true;
        self.pool.leave();
        self.execute_outputs(now, effects);
        self.manager.shut_down(Now::undisturbed(now));
        self.finish_round(now, effects);
    }

    /// Does what the keeper's thread and the pool's driver do after each input.
    pub(super) fn finish_round(&mut self, now: Moment, effects: &mut Vec<InstanceEffect>) {
        let local = Now::undisturbed(now);
        self.execute_outputs(now, effects);
        self.manager.check_timers(local);
        if !self.is_leaving && self.pool.next_wake().is_some_and(|at| at <= now) {
            self.pool.check_timers(now);
        }
        loop {
            self.execute_outputs(now, effects);
            self.manager.flush(local);
            if !self.execute_outputs(now, effects) {
                break;
            }
        }
        let pool = self.pool.next_wake().filter(|_| !self.is_leaving);
        let wake = [self.manager.next_wake(), pool].into_iter().flatten().min().unwrap_or(Moment::END);
        if wake < self.alarm_at {
            self.alarm_at = wake;
            effects.push(InstanceEffect::Wake(wake.max(now + Duration::from_micros(1)), InstanceTimer::Alarm(wake)));
        }
    }

    fn execute_outputs(&mut self, now: Moment, effects: &mut Vec<InstanceEffect>) -> bool {
        let mut any = false;
        loop {
            let (outputs, pool_outputs) = (self.manager.take_outputs(), self.pool.take_outputs());
            if outputs.is_empty() && pool_outputs.is_empty() {
                return any;
            }
            any = true;
            outputs.into_iter().for_each(|output| self.execute(now, output, effects));
            pool_outputs.into_iter().for_each(|output| self.execute_for_pool(now, output, effects));
        }
    }

    fn execute(&mut self, now: Moment, output: Output, effects: &mut Vec<InstanceEffect>) {
        match output {
            Output::Attach { link, request, timeout } => {
                effects.push(InstanceEffect::Send(ToStore::Attach(link, request)));
                effects.push(InstanceEffect::Wake(now + timeout, InstanceTimer::AttachTimeout(link)));
            }
            Output::Send(batch) => {
                let number = self.next_number();
                self.batches.insert(number, (batch.link, batch.recipients, batch.requests.len()));
                effects.push(InstanceEffect::Send(ToStore::Batch(number, batch.requests)));
                effects.push(InstanceEffect::Wake(now + batch.timeout, InstanceTimer::BatchTimeout(number)));
            }
            Output::Disconnect => self.batches.clear(),
            Output::Announced(announcement) if !self.is_leaving => self.pool.announced(now, &announcement),
            Output::MissedAnnouncements if !self.is_leaving => self.pool.announcements_missed(now),
            Output::Granted { waiter, lease } => self.granted(now, waiter, lease, effects),
            Output::Refused { waiter, refusal } => {
                if let Some(target) = self.claims.remove(&waiter) {
                    self.pool.refused(now, target, refusal);
                }
            }
            Output::TermBegan { lease, name, .. } => {
                if let Some(target) = self.naming.target(&name) {
                    let (token, deadline, permission) = (Token::ZERO, Moment::ZERO, Permission::None);
                    self.terms.insert(
                        lease,
                        HeldTarget { target, token, deadline, permission, is_granted: false, is_draining: false },
                    );
                }
            }
            Output::TermUpdated { lease, validity: Validity { token, deadline, .. } } => {
                if let Some(term) = self.terms.get_mut(&lease) {
                    term.token = token.unwrap_or(term.token);
                    term.deadline = deadline;
                }
            }
            Output::Permit { lease, permission } => {
                if let Some(term) = self.terms.get_mut(&lease) {
                    term.permission = permission;
                }
                if matches!(permission, Permission::MustCancel { .. } | Permission::MustBeGone) {
                    self.workers.remove(&lease);
                    self.manager.work_ended(Now::undisturbed(now), lease);
                }
                self.work(now, lease, effects);
            }
            Output::Drain { lease } => {
                if let Some(term) = self.terms.get_mut(&lease) {
                    term.is_draining = true;
                }
                if self.workers.get(&lease).is_none_or(|worker| worker.doing == Doing::Ended) {
                    self.manager.work_ended(Now::undisturbed(now), lease);
                }
                self.work(now, lease, effects);
            }
            Output::TermEnded { lease, ending, .. } => {
                self.workers.remove(&lease);
                if let Some(term) = self.terms.remove(&lease).filter(|term| term.is_granted && !self.is_leaving) {
                    self.pool.term_ended(now, term.target, ending);
                }
            }
            Output::Replied { call, outcome } if self.worker_calls.contains_key(&call) => {
                self.worker_replied(now, call, &outcome, effects);
            }
            Output::Replied { call, outcome } => {
                if let Some(query) = self.queries.remove(&call).filter(|_| !self.is_leaving) {
                    let outcome = match outcome {
                        Outcome::Answered(reply) => Ok(reply),
                        Outcome::Failed(error) | Outcome::Unknown(error) => Err(error),
                    };
                    self.pool.answered(now, query, outcome, self.manager.server_offset());
                }
            }
            Output::Announced(_)
            | Output::MissedAnnouncements
            | Output::Connection(_)
            | Output::Status { .. }
            | Output::TermCause { .. }
            | Output::Emit(_)
            | Output::Renewed(_) => {}
        }
    }

    fn granted(&mut self, now: Moment, waiter: WaiterId, lease: LeaseId, effects: &mut Vec<InstanceEffect>) {
        match (self.claims.remove(&waiter), self.terms.get_mut(&lease)) {
            (Some(target), Some(term)) => {
                term.is_granted = true;
                let token = term.token;
                effects.push(InstanceEffect::Acquired(target.clone()));
                self.workers.insert(lease, SimWorker::new(lease, &target, self.settings.attempt_timeout()));
                self.pool.granted(now, target, token);
                self.work(now, lease, effects);
            }
            _ => {
                let intent = Intent::Release(tenure_core::ending::ReleaseReason::Voluntary);
                self.manager.apply_intent(Now::undisturbed(now), lease, intent);
            }
        }
    }

    fn execute_for_pool(&mut self, now: Moment, output: PoolOutput, effects: &mut Vec<InstanceEffect>) {
        match (self.mutation, &output) {
            (Some(FleetMutation::SkipIndexLookup), PoolOutput::Query { request, .. }) if is_held_index(request) => {
                return;
            }
            (
                Some(FleetMutation::SkipHolderCheck),
                PoolOutput::Query { id, request: Request::Lease(LeaseRequest::Holders { .. }), .. },
            ) => {
                self.pool.answered(now, *id, Ok(Reply::Holders(Vec::new())), 0);
                return;
            }
            (Some(FleetMutation::SkipHandOver), PoolOutput::Worker { command: WorkerCommand::HandOver(..), .. }) => {
                return;
            }
            _ => {}
        }
        match output {
            PoolOutput::Query { id, request, is_work } => {
                let call = self.call(now, request, is_work);
                self.queries.insert(call, id);
            }
            PoolOutput::Send(request) => drop(self.call(now, request, true)),
            PoolOutput::Claim { target, .. } if self.is_wedged => {
                effects.push(InstanceEffect::Wake(now + WEDGED_CLAIM_TIME, InstanceTimer::ClaimFailed(target)));
            }
            PoolOutput::Claim { target, name } => {
                let waiter = WaiterId(self.next_number());
                self.claims.insert(waiter, target);
                let (settings, mode) = (self.settings.clone(), AcquireMode::Try);
                let timeout = Some(settings.ttl() / 2);
                let (heartbeat, wants_status) = (None, false);
                let request = AcquireRequest { waiter, name, settings, mode, timeout, heartbeat, wants_status };
                self.manager.acquire(Now::undisturbed(now), request);
            }
            PoolOutput::Worker { target, command } => {
                let held = self.terms.iter().find(|(_, term)| term.is_granted && term.target == target);
                if let Some((lease, _)) = held {
                    let intent = match command {
                        WorkerCommand::Release(reason) => Intent::Drain(reason),
                        WorkerCommand::HandOver(to, reason) => Intent::DrainTo(to, reason),
                        WorkerCommand::Stop(reason) => Intent::Release(reason),
                    };
                    self.manager.apply_intent(Now::undisturbed(now), *lease, intent);
                }
            }
            PoolOutput::UpdateRecord => {
                let wall = SystemTime::UNIX_EPOCH + now.since(Moment::ZERO);
                self.pool.update_record(now, wall, &mut self.record);
                let (ttl, record) = (self.record.heartbeat_ttl, self.record.encode());
                let heartbeat = Arc::new(Heartbeat { group: Group::FLEET, ttl, record });
                self.manager.join_fleet(heartbeat, self.record.heartbeat_every);
            }
            PoolOutput::ClaimFailed { .. }
            | PoolOutput::Live(_)
            | PoolOutput::Emit(_)
            | PoolOutput::HandedOver(_)
            | PoolOutput::TakenOver(_) => {}
        }
    }

    fn call(&mut self, now: Moment, request: Request, is_work: bool) -> CallId {
        let (id, timeout) = (CallId(self.next_number()), self.settings.attempt_timeout());
        self.manager.call(Now::undisturbed(now), StoreCall { id, request, timeout, is_work });
        id
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(super) fn id(&self) -> &InstanceId {
        &self.id
    }
}

fn is_held_index(request: &Request) -> bool {
    matches!(request, Request::Document(DocumentRequest::IndexList { index }) if index.starts_with("held:"))
}

fn no_reply() -> StoreError {
    StoreError::new(ErrorKind::Unreachable, "simulated: no reply")
}
