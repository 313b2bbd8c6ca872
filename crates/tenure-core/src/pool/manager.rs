//! The manager of a pool: one instance's part in it, without I/O.
//!
//! The [engine](Engine) decides about targets. The manager turns its actions into requests and claims, and replies,
//! announcements and the ends of terms into its inputs. An executor carries out the [`PoolOutput`]s after each input: a
//! task of a program, or the simulator.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use super::index::{MOVE_RECORD, list_held, list_holder};
use super::manager_io::{PoolOutput, QueryId, TargetError, WorkerCommand};
use super::membership::HAND_BACK_WINDOW;
use super::move_timer::MoveTimer;
use super::naming::Naming;
use super::queries::{Finished, Queries, Query};
use super::{Engine, EngineSettings, PoolAction, PoolInput, TargetName, release_reason};
use crate::ending::{Ending, ReleaseReason};
use crate::event::EventKind;
use crate::fleet::{CrashBackoff, DRAINING_INDEX, InstanceRecord};
use crate::manager::AcquireRefusal;
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::name::{Group, InstanceId};
use crate::placement::{Move, MoveReason};
use crate::store::{Announcement, DocumentRequest, ErrorKind, Holding, Reply, Request, StoreError};
use crate::time::Moment;
use crate::token::Token;

/// The delay until a new count of held targets is published, because many targets change at once.
const PUBLISH_RECORD_DELAY: Duration = Duration::from_millis(200);

/// The configuration of one instance's part in a pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// This instance.
    pub instance: InstanceId,
    /// Whether its name was chosen, so that an earlier instance of the same name is known.
    pub is_named: bool,
    /// The pool, and the names of its leases.
    pub naming: Naming,
    /// The weight of this instance.
    pub weight: u32,
    /// The settings of the engine.
    pub engine: EngineSettings,
    /// How soon a failed claim is retried.
    pub retry_claim_after: Duration,
    /// The interval of heartbeats, and how long each is valid.
    pub heartbeat_every: Duration,
    /// How long each heartbeat is valid.
    pub heartbeat_ttl: Duration,
}

/// One instance's part in a pool.
#[derive(Debug)]
pub struct PoolManager {
    config: PoolConfig,
    engine: Engine,
    started_at: Moment,
    queries: Queries,
    /// The tokens of the terms held now.
    terms: BTreeMap<TargetName, Token>,
    /// The instances that count as present, as last told.
    live: Vec<InstanceId>,
    move_timer: MoveTimer,
    /// When to publish the number of held targets.
    publish_at: Option<Moment>,
    /// Targets that ended without another holder, while the pool is stopping.
    not_handed_over: Option<BTreeSet<TargetName>>,
    /// Whether the program has asked for a drain, and whether an operator has.
    drained_by_program: bool,
    drained_by_operator: bool,
    outputs: Vec<PoolOutput>,
}

impl PoolManager {
    /// Begins to take part.
    pub fn new(now: Moment, config: PoolConfig) -> Self {
        let engine = Engine::new(config.instance.clone(), config.naming.pool(), config.weight, config.engine);
        let mut manager = Self {
            engine,
            started_at: now,
            queries: Queries::default(),
            terms: BTreeMap::new(),
            live: Vec::new(),
            move_timer: MoveTimer::default(),
            publish_at: None,
            not_handed_over: None,
            drained_by_program: false,
            drained_by_operator: false,
            outputs: Vec::new(),
            config,
        };
        manager.publish_record();
        manager
    }

    /// Plants a bug, for the simulator to find.
    #[cfg(feature = "mutations")]
    pub fn plant(&mut self, mutation: Mutation) {
        self.engine.plant(mutation);
    }

    /// What is known about the pool and its targets.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether the count of held targets is to be published.
    pub fn is_publishing(&self) -> bool {
        self.publish_at.is_some()
    }

    /// Takes what the executor must do now, in order.
    pub fn take_outputs(&mut self) -> Vec<PoolOutput> {
        std::mem::take(&mut self.outputs)
    }

    /// The latest time of the next call of [`check_timers`](Self::check_timers).
    pub fn next_wake(&self) -> Option<Moment> {
        [self.engine.next_wake(), self.publish_at, self.queries.next_retry()].into_iter().flatten().min()
    }

    /// Does everything that is due.
    pub fn check_timers(&mut self, now: Moment) {
        if self.publish_at.is_some_and(|at| now >= at) {
            self.publish_at = None;
            self.publish_record();
        }
        let retries = self.queries.take_retries(now);
        self.outputs.extend(retries);
        self.step(now, PoolInput::Tick);
    }

    // Commands of the program.

    /// Replaces the set of targets.
    pub fn set_targets(&mut self, now: Moment, targets: BTreeSet<TargetName>) {
        self.step(now, PoolInput::Targets(targets));
    }

    /// Drains this instance, or undrains it. A stopping pool cannot be undrained.
    pub fn set_draining(&mut self, now: Moment, is_draining: bool) {
        self.drained_by_program = is_draining || self.not_handed_over.is_some();
        self.apply_drain(now);
    }

    /// Sets whether this instance can work.
    pub fn set_able(&mut self, now: Moment, is_able: bool) {
        if is_able != self.engine.is_able() {
            self.step(now, PoolInput::Able(is_able));
            self.publish_record_now();
        }
    }

    /// Sets whether this instance is the reconciler.
    pub fn set_reconciler(&mut self, now: Moment, is_reconciler: bool) {
        self.step(now, PoolInput::Reconciler(is_reconciler));
    }

    /// Begins to stop: all targets are handed over.
    pub fn stop(&mut self, now: Moment) {
        self.not_handed_over.get_or_insert_default();
        self.set_draining(now, true);
    }

    /// Whether no target is held or being claimed.
    pub fn is_empty(&self) -> bool {
        self.engine.is_empty()
    }

    /// Leaves the pool, when all workers have ended: no claim follows any more.
    pub fn leave(&mut self) {
        let ended: Vec<TargetName> = std::mem::take(&mut self.terms).into_keys().collect();
        for target in &ended {
            self.send(list_held(self.config.naming.pool(), &self.config.instance, target, false));
        }
        if let Some(targets) = &mut self.not_handed_over {
            targets.extend(ended);
        }
        self.send(list_holder(self.config.naming.pool(), &self.config.instance, false));
    }

    /// The targets that ended without another holder since the pool began to stop.
    pub fn not_handed_over(&self) -> impl Iterator<Item = &TargetName> {
        self.not_handed_over.iter().flatten()
    }

    /// Claims a target at once. A success means that the claim is on its way: [`granted`](Self::granted) or
    /// [`PoolOutput::ClaimFailed`] follows.
    ///
    /// # Errors
    /// When no claim was sent.
    pub fn try_acquire(&mut self, now: Moment, target: &TargetName) -> Result<(), TargetError> {
        self.step(now, PoolInput::ClaimNow(target.clone()));
        if self.engine.is_claiming(target) {
            return Ok(());
        }
        Err(match self.engine.holder(target) {
            _ if !self.is_target(now, target) => TargetError::NotATarget,
            _ if self.engine.is_draining() => TargetError::Draining,
            Some(holder) => TargetError::Held { holder: holder.clone(), remaining: None },
            None => TargetError::NotATarget,
        })
    }

    /// Releases a target. [`term_ended`](Self::term_ended) follows a success.
    ///
    /// # Errors
    /// When this instance does not hold it.
    pub fn release(&mut self, now: Moment, target: &TargetName) -> Result<(), TargetError> {
        if self.terms.contains_key(target) {
            self.command(target, WorkerCommand::Release(ReleaseReason::Voluntary));
            return Ok(());
        }
        Err(if self.is_target(now, target) { TargetError::NotHeld } else { TargetError::NotATarget })
    }

    fn is_target(&self, now: Moment, target: &TargetName) -> bool {
        self.engine.target_status(now, target).is_some()
    }

    // Claims and terms.

    /// Handles a granted claim: a worker has been started.
    pub fn granted(&mut self, now: Moment, target: TargetName, token: Token) {
        self.terms.insert(target.clone(), token);
        self.step(now, PoolInput::Granted(target.clone()));
        self.check_handed_back(now, target);
    }

    /// Handles a claim that was not granted.
    pub fn refused(&mut self, now: Moment, target: TargetName, refusal: AcquireRefusal) {
        let is_ours = matches!(&refusal, AcquireRefusal::Held { holder, .. } if *holder == self.config.instance);
        if !is_ours {
            self.send(list_held(self.config.naming.pool(), &self.config.instance, &target, false));
        }
        let retry_after = self.config.retry_claim_after;
        let (error, input) = match refusal {
            AcquireRefusal::Held { holder, remaining } => (
                TargetError::Held { holder: holder.clone(), remaining },
                PoolInput::Refused { target: target.clone(), holder, remaining },
            ),
            AcquireRefusal::Quarantined(quarantine) => (
                TargetError::Quarantined(quarantine),
                PoolInput::Failed { target: target.clone(), retry_after: quarantine.remaining },
            ),
            other => (other.into(), PoolInput::Failed { target: target.clone(), retry_after }),
        };
        self.outputs.push(PoolOutput::ClaimFailed { target, error });
        self.step(now, input);
    }

    /// Handles the end of a term and of its work.
    pub fn term_ended(&mut self, now: Moment, target: TargetName, ending: Ending) {
        let is_handed_over = matches!(
            ending,
            Ending::Released(ReleaseReason::HandedOver | ReleaseReason::Rebalance | ReleaseReason::Unable)
        );
        if let Some(targets) = self.not_handed_over.as_mut().filter(|_| !is_handed_over) {
            targets.insert(target.clone());
        }
        let took = self.move_timer.finish_handover(now, &target);
        self.outputs.extend(took.filter(|_| is_handed_over).map(PoolOutput::HandedOver));
        self.terms.remove(&target);
        self.send(list_held(self.config.naming.pool(), &self.config.instance, &target, false));
        self.step(now, PoolInput::TermEnded { target, ending });
    }

    // The store.

    /// Handles an announcement.
    pub fn announced(&mut self, now: Moment, announcement: &Announcement) {
        let naming = &self.config.naming;
        let input = match announcement {
            Announcement::Unheld { name } => naming.target(name).map(PoolInput::Unheld),
            Announcement::Released { name, .. } => naming.target(name).map(PoolInput::Released),
            Announcement::HandedOver { name, to, .. } => {
                naming.target(name).map(|target| PoolInput::HandedOver { target, to: to.clone() })
            }
            Announcement::Joined { group, instance } | Announcement::Left { group, instance } => {
                let is_other = *group == Group::FLEET && *instance != self.config.instance;
                is_other.then_some(PoolInput::FleetChanged)
            }
            Announcement::IndexChanged { index } if index == DRAINING_INDEX => {
                self.query(Query::DrainRequest);
                None
            }
            // Claims refused because of the quarantine need not wait for its scheduled end.
            Announcement::Reopened => Some(PoolInput::Gap),
            _ => None,
        };
        if let Some(input) = input {
            self.step(now, input);
        }
    }

    /// Handles missed announcements.
    pub fn announcements_missed(&mut self, now: Moment) {
        self.step(now, PoolInput::Gap);
    }

    /// Handles the outcome of a query. `server_offset` is the store's clock minus the lease clock, in microseconds.
    pub fn answered(&mut self, now: Moment, id: QueryId, outcome: Result<Reply, StoreError>, server_offset: i64) {
        match self.queries.finish(now, id, outcome, server_offset) {
            Finished::Input(input, next) => {
                self.step(now, input);
                next.into_iter().for_each(|query| self.query(query));
            }
            Finished::DrainRequests(instances) => {
                self.drained_by_operator = instances.iter().any(|one| one == self.config.instance.as_str());
                self.apply_drain(now);
            }
            Finished::MoveRecord(target, record) => {
                let moved = record.and_then(|record| Move::decode(&target, std::str::from_utf8(&record.value).ok()?));
                let is_ours = |moved: &Move| moved.reason == MoveReason::HandBack && moved.to == self.config.instance;
                if moved.as_ref().is_some_and(is_ours) {
                    self.step(now, PoolInput::HandedBack(target));
                }
            }
            Finished::Nothing => {}
        }
    }

    fn query(&mut self, query: Query) {
        let output = self.queries.begin(&self.config.naming, query);
        self.outputs.extend(output);
    }

    fn send(&mut self, request: impl Into<Request>) {
        self.outputs.push(PoolOutput::Send(request.into()));
    }

    fn command(&mut self, target: &TargetName, command: WorkerCommand) {
        self.outputs.push(PoolOutput::Worker { target: target.clone(), command });
    }

    // The engine.

    fn step(&mut self, now: Moment, input: PoolInput) {
        let has_members = matches!(input, PoolInput::Instances(_));
        for action in self.engine.step(now, input) {
            self.act(now, action);
        }
        if has_members {
            self.update_live(now);
        }
    }

    /// Tells which instances count as present, if that has changed.
    fn update_live(&mut self, now: Moment) {
        let mut live: Vec<InstanceId> = self.engine.loads(now).into_iter().map(|load| load.instance).collect();
        live.sort_unstable();
        if live == self.live {
            return;
        }
        let before = std::mem::replace(&mut self.live, live.clone());
        let missing_in = |ids: &[InstanceId], one: &InstanceId| ids.binary_search(one).is_err();
        for instance in live.iter().filter(|one| missing_in(&before, one)) {
            self.outputs.push(PoolOutput::Emit(EventKind::Joined { instance: instance.clone() }));
        }
        for instance in before.into_iter().filter(|one| missing_in(&live, one)) {
            self.move_timer.start_takeover(now, &instance);
            self.outputs.push(PoolOutput::Emit(EventKind::Left { instance }));
        }
        self.outputs.push(PoolOutput::Live(live));
    }

    fn act(&mut self, now: Moment, action: PoolAction) {
        match action {
            PoolAction::ReadInstances => {
                self.query(Query::DrainRequest);
                self.query(Query::Instances);
            }
            PoolAction::QueryHolders(targets) => self.query(Query::holders(targets)),
            PoolAction::Inspect(target) => self.query(Query::Lease(target)),
            PoolAction::QueryHeldIndex(instance) => self.query(Query::HeldIndex(instance)),
            PoolAction::Claim(target) => self.claim(target),
            PoolAction::Release { target, reason } => self.command(&target, WorkerCommand::Release(reason)),
            PoolAction::HandOver { target, to, reason } => {
                // Recorded while this instance still holds it.
                self.record_move(&target, Some(self.config.instance.clone()), to.clone(), reason);
                // If the receiver is dead, the target is found in the list of its targets.
                self.send(list_held(self.config.naming.pool(), &to, &target, true));
                self.move_timer.start_handover(now, &target);
                self.command(&target, WorkerCommand::HandOver(to, release_reason(reason)));
            }
            PoolAction::RecordTakeover { target, from } => {
                let took = self.move_timer.finish_takeover(now, &from);
                self.outputs.extend(took.map(PoolOutput::TakenOver));
                self.record_move(&target, Some(from), self.config.instance.clone(), MoveReason::HolderGone);
            }
            PoolAction::AnnounceUnheld(target) => {
                if let Ok(name) = self.config.naming.lease(&target) {
                    self.send(Request::Announce(Announcement::Unheld { name }));
                }
            }
            PoolAction::Forget { instance, target } => {
                self.send(list_held(self.config.naming.pool(), &instance, &target, false));
            }
            PoolAction::PublishRecord => {
                self.publish_at.get_or_insert(now + PUBLISH_RECORD_DELAY);
            }
        }
    }

    fn claim(&mut self, target: TargetName) {
        if let Ok(name) = self.config.naming.lease(&target) {
            // Listed before the claim, so that a reader of our list misses no target. An entry too many does no harm.
            self.send(list_held(self.config.naming.pool(), &self.config.instance, &target, true));
            self.outputs.push(PoolOutput::Claim { target, name });
        }
    }

    /// Records beside the lease why a target moves.
    fn record_move(&mut self, target: &TargetName, from: Option<InstanceId>, to: InstanceId, reason: MoveReason) {
        if let (Some(token), Ok(name)) = (self.terms.get(target).copied(), self.config.naming.lease(target)) {
            let moved = Move { target: target.to_string(), from, to, reason };
            let holding = Holding { name, holder: self.config.instance.clone(), token };
            let (record, value) = (MOVE_RECORD.to_owned(), moved.encode().into_bytes());
            self.send(DocumentRequest::Publish { holding, record, value, announced: false });
        }
    }

    /// Checks whether a target was handed back to this instance after a restart; the giver has recorded that.
    fn check_handed_back(&mut self, now: Moment, target: TargetName) {
        if self.config.is_named && now.since(self.started_at) < HAND_BACK_WINDOW {
            self.query(Query::MoveRecord(target));
        }
    }

    fn apply_drain(&mut self, now: Moment) {
        let is_draining = self.drained_by_program || self.drained_by_operator;
        if is_draining != self.engine.is_draining() {
            self.step(now, if is_draining { PoolInput::Drain } else { PoolInput::Undrain });
            self.publish_record_now();
        }
    }

    // The record of this instance.

    fn publish_record(&mut self) {
        // For the reconciler's cleanup.
        self.send(list_holder(self.config.naming.pool(), &self.config.instance, true));
        self.outputs.push(PoolOutput::UpdateRecord);
    }

    fn publish_record_now(&mut self) {
        self.publish_record();
        // A heartbeat alone is not announced.
        let instance = self.config.instance.clone();
        self.send(Request::Announce(Announcement::Joined { group: Group::FLEET, instance }));
    }

    /// Writes this pool's part of the record of this instance. It may be in other pools, too, whose entries stay unchanged.
    pub fn update_record(&self, now: Moment, wall: SystemTime, record: &mut InstanceRecord) {
        let ours = self.config.naming.pool();
        let is_alone = record.held.keys().all(|pool| pool == ours);
        let least = |theirs: Duration, ours: Duration| if is_alone { ours } else { theirs.min(ours) };
        record.set_weight(ours, self.config.weight);
        record.heartbeat_every = least(record.heartbeat_every, self.config.heartbeat_every);
        record.heartbeat_ttl = least(record.heartbeat_ttl, self.config.heartbeat_ttl);
        record.set_held(ours, self.engine.held(), self.engine.is_draining());
        record.set_able(ours, self.engine.is_able());
        let waits = |(id, left, crashes)| (id, CrashBackoff { until: wall + left, crashes });
        record.crash_backoffs = self.engine.crash_backoffs(now).into_iter().map(waits).collect();
    }
}

impl From<AcquireRefusal> for TargetError {
    fn from(refusal: AcquireRefusal) -> Self {
        match refusal {
            AcquireRefusal::Held { holder, remaining } => Self::Held { holder, remaining },
            AcquireRefusal::Quarantined(quarantine) => Self::Quarantined(quarantine),
            AcquireRefusal::Store(error) | AcquireRefusal::TimedOut { because: Some(error), .. } => Self::Store(error),
            AcquireRefusal::ShutDown => Self::Stopped,
            AcquireRefusal::Observer => {
                let message = "cannot acquire a target: this instance only observes";
                Self::Store(StoreError::new(ErrorKind::Configuration, message))
            }
            AcquireRefusal::TimedOut { waited, .. } => {
                let message = format!("target not acquired within {waited:.1?}");
                Self::Store(StoreError::new(ErrorKind::Unavailable, message))
            }
        }
    }
}
