//! Drives the engine of a pool: sends its queries and claims, and runs the work.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot, watch};

use super::naming::Naming;
use super::outcome::{StopReport, TargetError, TargetInfo};
use super::reconciler::{Reconciler, ReconcilerTerm};
use super::stats::{MoveTimer, PoolStats};
use super::worker::{PoolWork, RemovalReason, WorkSettings, WorkerCommand, run_worker};
use super::{Engine, PoolAction, PoolInput, release_reason};
use super::{PoolSettings, PoolStatus, TargetName, TargetStatus};
use crate::event::EventKind;
use crate::fleet::{CrashBackoff, DRAINING_INDEX, InstanceRecord};
use crate::keeper::AcquireError;
use crate::lease::{Ending, LeaseState, ReleaseReason};
use crate::name::{Group, InstanceId, LeaseName};
use crate::placement::{Move, MoveReason};
use crate::store::{
    Announcement, DocumentRequest, ErrorKind, Held as HeldLease, LeaseRequest, MembershipRequest, Reply, Request,
    StoreError, SubscriptionItem,
};
use crate::tenure::{Tenure, TermHandle};
use crate::time::{LeaseClock, SystemClock};
use tenure_core::pool::HAND_BACK_WINDOW;

/// The limit of targets per query. The next query follows the reply, so that urgent requests do not queue behind all of
/// them.
const MAX_HOLDERS_PER_REQUEST: usize = 500;

/// The delay until a new count of held targets is published, because many targets change at once.
const PUBLISH_RECORD_DELAY: Duration = Duration::from_millis(200);

/// The backoff after a failed query.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The record beside a lease that says why the target moved to its holder.
pub(super) const MOVE_RECORD: &str = "moved";

/// The terms held now, shared with the pool's handles.
pub(super) type HeldTerms = Arc<RwLock<HashMap<TargetName, TermHandle>>>;

/// The commands of a pool's users.
pub(super) enum PoolCommand {
    Targets(BTreeSet<TargetName>),
    Drain(bool),
    /// Whether this instance can work.
    Able(bool),
    /// Releases all targets and ends.
    Stop(oneshot::Sender<StopReport>),
    Release(TargetName, oneshot::Sender<Result<(), TargetError>>),
    /// Claims a target at once.
    TryAcquire(TargetName, AcquireReply),
    /// Returns what is known about a target.
    Inspect(TargetName, oneshot::Sender<Option<TargetInfo>>),
    /// Returns the status of a target.
    TargetStatus(TargetName, oneshot::Sender<Option<TargetStatus>>),
    /// Returns the status of the pool.
    PoolStatus(oneshot::Sender<PoolStatus>),
    /// Returns the status of each target.
    TargetStatuses(oneshot::Sender<BTreeMap<TargetName, TargetStatus>>),
}

/// Replies whether a target was acquired.
type AcquireReply = oneshot::Sender<Result<TermHandle, TargetError>>;

/// Events from tasks.
enum DriverEvent {
    Input(PoolInput),
    /// A claim was granted.
    Granted(TargetName, crate::tenure::Term),
    /// A claim was not granted.
    Refused {
        target: TargetName,
        error: TargetError,
        input: PoolInput,
    },
    /// Whether an operator asks this instance to drain.
    DrainRequested(bool),
}

pub(super) struct Driver {
    pub(super) tenure: Tenure,
    pub(super) naming: Naming,
    pub(super) settings: PoolSettings,
    pub(super) discover: Vec<String>,
    pub(super) work: PoolWork,
    pub(super) removal_reason: RemovalReason,
    pub(super) held: HeldTerms,
    pub(super) commands: mpsc::UnboundedReceiver<PoolCommand>,
    pub(super) live: watch::Sender<Vec<InstanceId>>,
    pub(super) stats: Arc<PoolStats>,
    pub(super) reconciler_term: ReconcilerTerm,
}

impl Driver {
    pub(super) async fn run(self) {
        let Self {
            tenure,
            naming,
            settings,
            discover,
            work,
            removal_reason,
            held,
            mut commands,
            live,
            stats,
            reconciler_term,
        } = self;
        let engine = Engine::new(tenure.instance().clone(), naming.pool(), settings.weight, settings.engine());
        let (events, mut incoming) = mpsc::unbounded_channel();
        let mut announcements = tenure.announcements();
        let work = WorkSettings { work, restart_backoff: settings.restart_backoff, stats: stats.clone() };
        let mut state = DriverState {
            tenure,
            naming,
            settings,
            work,
            removal_reason,
            held,
            live,
            engine,
            events,
            workers: HashMap::new(),
            waiting: HashMap::new(),
            releasing: HashMap::new(),
            not_handed_over: None,
            publish_at: None,
            move_timer: MoveTimer::default(),
            started: std::time::Instant::now(),
            stats,
            drained_by_program: false,
            drained_by_operator: false,
        };
        state.publish_record();
        let (reconciler, mut reconciler_changes) =
            Reconciler::spawn(state.tenure.clone(), &state.naming, &state.settings, discover, reconciler_term);
        let mut stopping: Option<(tokio::time::Instant, Vec<oneshot::Sender<StopReport>>)> = None;
        loop {
            let wake = state.engine.next_wake().map(|at| at.since(SystemClock.now()));
            let wake = wake.unwrap_or(state.settings.read_every).min(state.settings.read_every);
            let publish_at = state.publish_at;
            let give_up_at = stopping.as_ref().map(|(at, _)| *at);
            tokio::select! {
                command = commands.recv() => match command {
                    Some(PoolCommand::Targets(targets)) => state.step(PoolInput::Targets(targets)),
                    Some(PoolCommand::Drain(drain)) => {
                        // A stopping pool cannot be undrained.
                        state.drained_by_program = drain || stopping.is_some();
                        state.apply_drain();
                    }
                    Some(PoolCommand::Able(able)) => state.set_able(able),
                    Some(PoolCommand::Stop(done)) => match &mut stopping {
                        Some((_, waiting)) => waiting.push(done),
                        None => {
                            state.not_handed_over.get_or_insert_default();
                            state.drained_by_program = true;
                            state.apply_drain();
                            stopping = Some((tokio::time::Instant::now() + state.settings.drain_timeout, vec![done]));
                        }
                    },
                    Some(PoolCommand::Release(target, reply)) => state.release(target, reply),
                    Some(PoolCommand::Inspect(target, reply)) => drop(reply.send(state.info(&target))),
                    Some(PoolCommand::TryAcquire(target, reply)) => state.try_acquire(target, reply),
                    Some(PoolCommand::TargetStatus(target, reply)) => {
                        let _ = reply.send(state.engine.target_status(SystemClock.now(), &target));
                    }
                    Some(PoolCommand::PoolStatus(reply)) => drop(reply.send(state.engine.status(SystemClock.now()))),
                    Some(PoolCommand::TargetStatuses(reply)) => drop(reply.send(state.engine.target_statuses(SystemClock.now()))),
                    // The last handle is gone.
                    None => break,
                },
                Some(event) = incoming.recv() => state.handle(event),
                heard = announcements.next() => match heard {
                    SubscriptionItem::Announced(announcement) => state.handle_announcement(announcement),
                    SubscriptionItem::Gap => state.step(PoolInput::Gap),
                    SubscriptionItem::Closed => break,
                },
                Some(is_reconciler) = reconciler_changes.recv() => state.step(PoolInput::Reconciler(is_reconciler)),
                () = tokio::time::sleep(wake) => state.step(PoolInput::Tick),
                () = sleep_until(publish_at) => {
                    state.publish_at = None;
                    state.publish_record();
                }
                () = sleep_until(give_up_at) => {}
            }
            if let Some((give_up_at, _)) = &stopping
                && (state.engine.is_empty() || tokio::time::Instant::now() >= *give_up_at)
            {
                break;
            }
        }
        // Stop all remaining workers and wait for them.
        state.stop_all().await;
        reconciler.stop().await;
        state.tenure.call_detached(list_holder_request(state.naming.pool(), state.tenure.instance(), false));
        state.tenure.leave_pool(state.naming.pool()).await;
        let not_handed_over: Vec<TargetName> = state.not_handed_over.into_iter().flatten().collect();
        for done in stopping.into_iter().flat_map(|(_, waiting)| waiting) {
            let _ = done.send(StopReport { not_handed_over: not_handed_over.clone() });
        }
    }
}

async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The state of the loop.
struct DriverState {
    tenure: Tenure,
    naming: Naming,
    settings: PoolSettings,
    work: WorkSettings,
    removal_reason: RemovalReason,
    held: HeldTerms,
    live: watch::Sender<Vec<InstanceId>>,
    engine: Engine,
    events: mpsc::UnboundedSender<DriverEvent>,
    workers: HashMap<TargetName, WorkerHandle>,
    /// Callers waiting for a target, or for an error.
    waiting: HashMap<TargetName, Vec<AcquireReply>>,
    /// Callers waiting for the end of a term they released.
    releasing: HashMap<TargetName, Vec<oneshot::Sender<Result<(), TargetError>>>>,
    /// Targets that ended without another holder, while the pool is stopping.
    not_handed_over: Option<BTreeSet<TargetName>>,
    /// When to publish the number of held targets.
    publish_at: Option<tokio::time::Instant>,
    move_timer: MoveTimer,
    started: std::time::Instant,
    stats: Arc<PoolStats>,
    /// Whether the program has asked for a drain, and whether an operator has.
    drained_by_program: bool,
    drained_by_operator: bool,
}

struct WorkerHandle {
    commands: mpsc::UnboundedSender<WorkerCommand>,
    task: tokio::task::JoinHandle<()>,
}

impl DriverState {
    fn step(&mut self, input: PoolInput) {
        let members = matches!(input, PoolInput::Instances(_));
        for action in self.engine.step(SystemClock.now(), input) {
            self.act(action);
        }
        if members {
            let mut ids: Vec<InstanceId> =
                self.engine.loads(SystemClock.now()).into_iter().map(|load| load.instance).collect();
            ids.sort_unstable();
            let before = self.live.send_replace(ids.clone());
            for instance in ids.iter().filter(|id| before.binary_search(id).is_err()) {
                self.tenure.emit(EventKind::Joined { instance: instance.clone() });
            }
            for instance in before.into_iter().filter(|id| ids.binary_search(id).is_err()) {
                self.move_timer.start_takeover(&instance);
                self.tenure.emit(EventKind::Left { instance });
            }
        }
    }

    fn try_acquire(&mut self, target: TargetName, reply: AcquireReply) {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner).get(&target).cloned();
        if let Some(term) = held.filter(|term| term.is_valid() && !term.is_draining()) {
            let _ = reply.send(Ok(term));
            return;
        }
        self.step(PoolInput::ClaimNow(target.clone()));
        if self.engine.is_claiming(&target) {
            self.waiting.entry(target).or_default().push(reply);
            return;
        }
        // No claim is in flight.
        let error = match self.engine.holder(&target) {
            _ if self.engine.target_status(SystemClock.now(), &target).is_none() => TargetError::NotATarget,
            _ if self.engine.is_draining() => TargetError::Draining,
            Some(holder) => TargetError::Held { holder: holder.clone(), remaining: None },
            None => TargetError::NotATarget,
        };
        let _ = reply.send(Err(error));
    }

    fn reply_acquired(&mut self, target: &TargetName, outcome: &Result<TermHandle, TargetError>) {
        for reply in self.waiting.remove(target).into_iter().flatten() {
            let _ = reply.send(outcome.clone());
        }
    }

    fn release(&mut self, target: TargetName, reply: oneshot::Sender<Result<(), TargetError>>) {
        if self.workers.contains_key(&target) {
            self.send_to_worker(&target, WorkerCommand::Release(ReleaseReason::Voluntary));
            self.releasing.entry(target).or_default().push(reply);
            return;
        }
        let is_target = self.engine.target_status(SystemClock.now(), &target).is_some();
        let _ = reply.send(Err(if is_target { TargetError::NotHeld } else { TargetError::NotATarget }));
    }

    /// What the engine knows about a target.
    fn info(&self, target: &TargetName) -> Option<TargetInfo> {
        let status = self.engine.target_status(SystemClock.now(), target)?;
        let holder = self.engine.holder(target).cloned();
        let state = if holder.is_some() { LeaseState::Other } else { LeaseState::Unknown };
        Some(TargetInfo {
            target: target.clone(),
            state,
            holder,
            token: None,
            acquired_at: None,
            last_renewed_at: None,
            preferred: status.preferred,
            unheld_for: status.unheld_for,
        })
    }

    fn handle(&mut self, event: DriverEvent) {
        match event {
            DriverEvent::Input(input) => {
                if let PoolInput::TermEnded { target, ending } = &input {
                    let handed_over = matches!(
                        ending,
                        Ending::Released(ReleaseReason::HandedOver | ReleaseReason::Rebalance | ReleaseReason::Unable)
                    );
                    for reply in self.releasing.remove(target).into_iter().flatten() {
                        let _ = reply.send(Ok(()));
                    }
                    if let Some(targets) = self.not_handed_over.as_mut().filter(|_| !handed_over) {
                        targets.insert(target.clone());
                    }
                    self.move_timer.finish_handover(target, handed_over, &self.stats);
                    self.workers.remove(target);
                    self.lock_held().remove(target);
                    self.update_held_index(target, false);
                }
                self.step(input);
            }
            DriverEvent::Refused { target, error, input } => {
                self.reply_acquired(&target, &Err(error));
                self.step(input);
            }
            DriverEvent::DrainRequested(asked) => {
                self.drained_by_operator = asked;
                self.apply_drain();
            }
            DriverEvent::Granted(target, term) => {
                let handle = (*term).clone();
                let term_handle = handle.clone();
                self.lock_held().insert(target.clone(), handle.clone());
                let (commands, commands_in) = mpsc::unbounded_channel();
                let (events, work, held_target) = (self.events.clone(), self.work.clone(), target.clone());
                let task = tokio::spawn(async move {
                    run_worker(held_target.clone(), term, work, commands_in).await;
                    let _ = events.send(DriverEvent::Input(PoolInput::TermEnded {
                        target: held_target,
                        ending: handle.final_ending(),
                    }));
                });
                self.workers.insert(target.clone(), WorkerHandle { commands, task });
                self.reply_acquired(&target, &Ok(term_handle));
                self.step(PoolInput::Granted(target.clone()));
                self.check_handed_back(target);
            }
        }
    }

    fn handle_announcement(&mut self, announcement: Announcement) {
        match announcement {
            Announcement::Unheld { name } => {
                if let Some(target) = self.naming.target(&name) {
                    self.step(PoolInput::Unheld(target));
                }
            }
            Announcement::Released { name, .. } => {
                if let Some(target) = self.naming.target(&name) {
                    self.step(PoolInput::Released(target));
                }
            }
            Announcement::HandedOver { name, to, .. } => {
                if let Some(target) = self.naming.target(&name) {
                    self.step(PoolInput::HandedOver { target, to });
                }
            }
            Announcement::Joined { group: Group::FLEET, instance }
            | Announcement::Left { group: Group::FLEET, instance }
                if instance != *self.tenure.instance() =>
            {
                self.step(PoolInput::FleetChanged);
            }
            Announcement::IndexChanged { index } if index == DRAINING_INDEX => self.check_drain_request(),
            // Claims refused because of the quarantine need not wait for its scheduled end.
            Announcement::Reopened => self.step(PoolInput::Gap),
            _ => {}
        }
    }

    fn act(&mut self, action: PoolAction) {
        match action {
            PoolAction::ReadInstances => {
                self.check_drain_request();
                self.spawn_query(|tenure, _| async move {
                    match tenure.call_for_work(MembershipRequest::List { group: Group::FLEET }).await {
                        Ok(Reply::Instances(members)) => Some(PoolInput::Instances(members)),
                        _ => Some(PoolInput::ReadFailed),
                    }
                })
            }
            PoolAction::QueryHolders(targets) => {
                let (tenure, naming, events) = (self.tenure.clone(), self.naming.clone(), self.events.clone());
                tokio::spawn(async move {
                    for chunk in targets.chunks(MAX_HOLDERS_PER_REQUEST) {
                        let seen = query_holders(&tenure, &naming, chunk.to_vec()).await;
                        if events.send(DriverEvent::Input(seen)).is_err() {
                            return;
                        }
                    }
                });
            }
            PoolAction::Inspect(target) => {
                self.spawn_query(move |tenure, naming| async move { query_lease(&tenure, &naming, target).await })
            }
            PoolAction::QueryHeldIndex(instance) => self.spawn_query(move |tenure, naming| async move {
                query_held_index(&tenure, naming.pool(), instance).await
            }),
            PoolAction::Claim(target) => self.claim(target),
            PoolAction::Release { target, reason } => {
                let removed = reason == ReleaseReason::Removed;
                let reason = if removed { (self.removal_reason)(&target) } else { reason };
                self.send_to_worker(&target, WorkerCommand::Release(reason));
            }
            PoolAction::HandOver { target, to, reason } => {
                // Recorded while this instance still holds it.
                self.record_move(&target, Some(self.tenure.instance().clone()), to.clone(), reason);
                // If the receiver is dead, the target is found in the list of its targets.
                self.tenure.call_detached(held_index_request(self.naming.pool(), &to, &target, true));
                self.move_timer.start_handover(&target);
                self.send_to_worker(&target, WorkerCommand::HandOver(to, release_reason(reason)));
            }
            PoolAction::RecordTakeover { target, from } => {
                self.move_timer.finish_takeover(&from, &self.stats);
                self.record_move(&target, Some(from), self.tenure.instance().clone(), MoveReason::HolderGone);
            }
            PoolAction::AnnounceUnheld(target) => {
                if let Ok(name) = self.naming.lease(&target) {
                    self.tenure.call_detached(Request::Announce(Announcement::Unheld { name }));
                }
            }
            PoolAction::Forget { instance, target } => {
                self.tenure.call_detached(held_index_request(self.naming.pool(), &instance, &target, false));
            }
            PoolAction::PublishRecord => {
                self.publish_at.get_or_insert(tokio::time::Instant::now() + PUBLISH_RECORD_DELAY);
            }
        }
    }

    /// Records beside the lease why a target moves.
    fn record_move(&self, target: &TargetName, from: Option<InstanceId>, to: InstanceId, reason: MoveReason) {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(term) = held.get(target) {
            let moved = Move { target: target.to_string(), from, to, reason };
            let (record, value) = (MOVE_RECORD.to_owned(), moved.encode().into_bytes());
            self.tenure.call_detached(DocumentRequest::Publish {
                holding: term.holding(),
                record,
                value,
                announced: false,
            });
        }
    }

    /// Checks whether a target was handed back to this instance after a restart; the giver has recorded that.
    fn check_handed_back(&self, target: TargetName) {
        if !self.tenure.is_named() || self.started.elapsed() >= HAND_BACK_WINDOW {
            return;
        }
        self.spawn_query(move |tenure, naming| async move {
            let name = naming.lease(&target).ok()?;
            let record = tenure.read_record(&name, MOVE_RECORD).await.ok()??;
            let moved = Move::decode(&target, std::str::from_utf8(&record.value).ok()?)?;
            let is_ours = moved.reason == MoveReason::HandBack && moved.to == *tenure.instance();
            is_ours.then_some(PoolInput::HandedBack(target))
        });
    }

    fn check_drain_request(&self) {
        let (tenure, events) = (self.tenure.clone(), self.events.clone());
        tokio::spawn(async move {
            if let Ok(asked) = tenure.is_asked_to_drain().await {
                let _ = events.send(DriverEvent::DrainRequested(asked));
            }
        });
    }

    /// Runs a query outside the loop and feeds its result to the engine.
    fn spawn_query<F, Fut>(&self, query: F)
    where
        F: FnOnce(Tenure, Naming) -> Fut,
        Fut: Future<Output = Option<PoolInput>> + Send + 'static,
    {
        let (events, reply) = (self.events.clone(), query(self.tenure.clone(), self.naming.clone()));
        tokio::spawn(async move {
            if let Some(input) = reply.await {
                let _ = events.send(DriverEvent::Input(input));
            }
        });
    }

    fn claim(&mut self, target: TargetName) {
        let Ok(name) = self.naming.lease(&target) else { return };
        let (tenure, events) = (self.tenure.clone(), self.events.clone());
        let (lease, pool) = (self.settings.lease, self.naming.pool().to_owned());
        tokio::spawn(async move {
            // Listed before the claim, so that a reader of our list misses no target. An entry too many does no harm.
            tenure.call_detached(held_index_request(&pool, tenure.instance(), &target, true));
            let claim = tenure.lease(name).settings(lease).timeout(lease.ttl() / 2);
            let retry_after = lease.renew_every();
            let outcome = match claim.try_acquire().await {
                Ok(term) => DriverEvent::Granted(target, term),
                Err(error) => {
                    let ours = matches!(&error, AcquireError::Held { holder, .. } if holder == tenure.instance());
                    if !ours {
                        tenure.call_detached(held_index_request(&pool, tenure.instance(), &target, false));
                    }
                    let (reason, input) = match error {
                        AcquireError::Held { holder, remaining } => (
                            TargetError::Held { holder: holder.clone(), remaining },
                            PoolInput::Refused { target: target.clone(), holder, remaining },
                        ),
                        AcquireError::Quarantined(quarantine) => (
                            TargetError::Quarantined(quarantine),
                            PoolInput::Failed { target: target.clone(), retry_after: quarantine.remaining },
                        ),
                        other => (claim_error(other), PoolInput::Failed { target: target.clone(), retry_after }),
                    };
                    DriverEvent::Refused { target, error: reason, input }
                }
            };
            let _ = events.send(outcome);
        });
    }

    fn send_to_worker(&mut self, target: &TargetName, command: WorkerCommand) {
        if let Some(worker) = self.workers.get(target) {
            // A worker that has just ended reports that itself.
            let _ = worker.commands.send(command);
        }
    }

    fn update_held_index(&self, target: &TargetName, held: bool) {
        self.tenure.call_detached(held_index_request(self.naming.pool(), self.tenure.instance(), target, held));
    }

    fn apply_drain(&mut self) {
        let drain = self.drained_by_program || self.drained_by_operator;
        if drain == self.engine.is_draining() {
            return;
        }
        self.step(if drain { PoolInput::Drain } else { PoolInput::Undrain });
        self.publish_record_now();
    }

    fn set_able(&mut self, able: bool) {
        if able != self.engine.is_able() {
            self.step(PoolInput::Able(able));
            self.publish_record_now();
        }
    }

    fn publish_record_now(&self) {
        self.publish_record();
        // A heartbeat alone is not announced.
        let instance = self.tenure.instance().clone();
        self.tenure.call_detached(Request::Announce(Announcement::Joined { group: Group::FLEET, instance }));
    }

    /// Publishes the record of this instance. It may be in other pools, too, whose entries stay unchanged.
    fn publish_record(&self) {
        // For the reconciler's cleanup.
        self.tenure.call_detached(list_holder_request(self.naming.pool(), self.tenure.instance(), true));
        let (leaving, able) = (self.engine.is_draining(), self.engine.is_able());
        let (now, wall) = (SystemClock.now(), SystemTime::now());
        let waits = |(id, left, crashes)| (id, CrashBackoff { until: wall + left, crashes });
        let waiting: BTreeMap<_, _> = self.engine.crash_backoffs(now).into_iter().map(waits).collect();
        let settings = &self.settings;
        self.tenure.update_record(|record: &mut InstanceRecord| {
            let ours = self.naming.pool();
            let alone = record.held.keys().all(|pool| pool == ours);
            let least = |theirs: Duration, ours: Duration| if alone { ours } else { theirs.min(ours) };
            record.set_weight(ours, settings.weight);
            record.heartbeat_every = least(record.heartbeat_every, settings.heartbeat_every);
            record.heartbeat_ttl = least(record.heartbeat_ttl, settings.heartbeat_ttl);
            record.set_held(ours, self.engine.held(), leaving);
            record.set_able(ours, able);
            record.crash_backoffs = waiting;
        });
    }

    async fn stop_all(&mut self) {
        for worker in self.workers.values() {
            let _ = worker.commands.send(WorkerCommand::Stop(ReleaseReason::Shutdown));
        }
        for (target, worker) in std::mem::take(&mut self.workers) {
            if let Some(targets) = &mut self.not_handed_over {
                targets.insert(target.clone());
            }
            let _ = worker.task.await;
            self.lock_held().remove(&target);
            self.update_held_index(&target, false);
        }
    }

    fn lock_held(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<TargetName, TermHandle>> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error of a claim that failed for a reason other than a holder or a quarantine.
fn claim_error(error: AcquireError) -> TargetError {
    match error {
        AcquireError::Store(error) | AcquireError::TimedOut { because: Some(error), .. } => TargetError::Store(error),
        AcquireError::ShutDown => TargetError::Stopped,
        other => TargetError::Store(StoreError::new(ErrorKind::Unavailable, other.to_string())),
    }
}

/// The index of the instances that hold, or held, targets of a pool.
pub(super) fn holders_index(pool: &str) -> String {
    format!("holders:{pool}")
}

fn list_holder_request(pool: &str, instance: &InstanceId, listed: bool) -> DocumentRequest {
    let (index, entry, announced) = (holders_index(pool), instance.to_string(), false);
    if listed {
        DocumentRequest::IndexAdd { index, entry, announced }
    } else {
        DocumentRequest::IndexRemove { index, entry, announced }
    }
}

/// The index of the targets that an instance holds.
pub(super) fn held_index(pool: &str, instance: &InstanceId) -> String {
    format!("held:{pool}:{instance}")
}

fn held_index_request(pool: &str, instance: &InstanceId, target: &TargetName, held: bool) -> DocumentRequest {
    let (index, entry, announced) = (held_index(pool, instance), target.to_string(), false);
    if held {
        DocumentRequest::IndexAdd { index, entry, announced }
    } else {
        DocumentRequest::IndexRemove { index, entry, announced }
    }
}

async fn query_holders(tenure: &Tenure, naming: &Naming, targets: Vec<TargetName>) -> PoolInput {
    let named = targets.into_iter().filter_map(|target| Some((naming.lease(&target).ok()?, target)));
    let (names, targets): (Vec<LeaseName>, Vec<TargetName>) = named.unzip();
    match ask_until_answered(tenure, LeaseRequest::Holders { names }).await {
        Some(Reply::Holders(holders)) => PoolInput::Holders(targets.into_iter().zip(holders).collect()),
        _ => PoolInput::Holders(Vec::new()),
    }
}

async fn query_lease(tenure: &Tenure, naming: &Naming, target: TargetName) -> Option<PoolInput> {
    let name = naming.lease(&target).ok()?;
    let Reply::Lease(report) = ask_until_answered(tenure, LeaseRequest::Inspect { name }).await? else { return None };
    // By the store's clock: the reply may have been in transit for longer than the other instances need to take the
    // target over.
    let ends = |held: &HeldLease| Some(tenure.local_moment(held.server + held.remaining?));
    Some(PoolInput::Report { target, held: report.held.map(|held| (held.holder.clone(), ends(&held))) })
}

async fn query_held_index(tenure: &Tenure, pool: &str, instance: InstanceId) -> Option<PoolInput> {
    let index = held_index(pool, &instance);
    let Reply::Index(entries) = ask_until_answered(tenure, DocumentRequest::IndexList { index }).await? else {
        return None;
    };
    Some(PoolInput::PreviouslyHeld { instance, targets: entries.into_iter().map(TargetName::from).collect() })
}

/// Sends a request until the store replies, or refuses for good.
pub(super) async fn ask_until_answered(tenure: &Tenure, request: impl Into<Request>) -> Option<Reply> {
    let request = request.into();
    loop {
        match tenure.call_for_work(request.clone()).await {
            Ok(reply) => return Some(reply),
            Err(error) if error.is_retryable() => tokio::time::sleep(RETRY_AFTER).await,
            Err(_) => return None,
        }
    }
}
