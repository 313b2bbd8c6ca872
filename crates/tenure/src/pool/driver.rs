//! Drives the manager of a pool: sends its queries and claims, and runs the work.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use tenure_core::manager::AcquireRefusal;
use tenure_core::pool::{PoolConfig, PoolManager, PoolOutput, QueryId, WorkerCommand};
use tokio::sync::{mpsc, oneshot, watch};

use super::outcome::{StopReport, TargetInfo};
use super::reconciler::{Reconciler, ReconcilerTerm};
use super::worker::{PoolWork, RemovalReason, WorkSettings, run_worker};
use super::{Naming, PoolSettings, PoolStats, PoolStatus, TargetError, TargetName, TargetStatus};
use crate::keeper::AcquireError;
use crate::lease::{Ending, LeaseState, ReleaseReason};
use crate::name::{InstanceId, LeaseName};
use crate::store::{ErrorKind, Reply, StoreError, SubscriptionItem};
use crate::tenure::{Tenure, Term, TermHandle};
use crate::time::{LeaseClock, SystemClock};

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
    /// The store has replied to a query, or will not.
    Answered(QueryId, Result<Reply, StoreError>),
    /// A claim was granted.
    Granted(TargetName, Term),
    /// A claim was not granted.
    Refused(TargetName, AcquireRefusal),
    /// A term and its work have ended.
    TermEnded(TargetName, Ending),
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
        let config = PoolConfig {
            instance: tenure.instance().clone(),
            is_named: tenure.is_named(),
            naming: naming.clone(),
            weight: settings.weight,
            engine: settings.engine(),
            retry_claim_after: settings.lease.renew_every(),
            heartbeat_every: settings.heartbeat_every,
            heartbeat_ttl: settings.heartbeat_ttl,
        };
        let (events, mut incoming) = mpsc::unbounded_channel();
        let mut announcements = tenure.announcements();
        let work = WorkSettings { work, restart_backoff: settings.restart_backoff, stats: stats.clone() };
        let mut state = DriverState {
            manager: PoolManager::new(SystemClock.now(), config),
            tenure,
            settings,
            work,
            removal_reason,
            held,
            live,
            events,
            workers: HashMap::new(),
            waiting: HashMap::new(),
            releasing: HashMap::new(),
            stats,
        };
        let (reconciler, mut reconciler_changes) =
            Reconciler::spawn(state.tenure.clone(), &naming, &state.settings, discover, reconciler_term);
        let mut stopping: Option<(tokio::time::Instant, Vec<oneshot::Sender<StopReport>>)> = None;
        loop {
            state.execute_outputs();
            let now = SystemClock.now();
            let longest = state.settings.read_every;
            let wake = state.manager.next_wake().map_or(longest, |at| at.since(now).min(longest));
            let give_up_at = stopping.as_ref().map(|(at, _)| *at);
            tokio::select! {
                command = commands.recv() => match command {
                    Some(PoolCommand::Stop(done)) => match &mut stopping {
                        Some((_, waiting)) => waiting.push(done),
                        None => {
                            state.manager.stop(now);
                            stopping = Some((tokio::time::Instant::now() + state.settings.drain_timeout, vec![done]));
                        }
                    },
                    Some(command) => state.handle_command(command),
                    // The last handle is gone.
                    None => break,
                },
                Some(event) = incoming.recv() => state.handle_event(event),
                heard = announcements.next() => match heard {
                    SubscriptionItem::Announced(announcement) => {
                        state.manager.announced(SystemClock.now(), &announcement);
                    }
                    SubscriptionItem::Gap => state.manager.announcements_missed(SystemClock.now()),
                    SubscriptionItem::Closed => break,
                },
                Some(is_reconciler) = reconciler_changes.recv() => {
                    state.manager.set_reconciler(SystemClock.now(), is_reconciler);
                }
                () = tokio::time::sleep(wake) => state.manager.check_timers(SystemClock.now()),
                () = sleep_until(give_up_at) => {}
            }
            if let Some((give_up_at, _)) = &stopping
                && (state.manager.is_empty() || tokio::time::Instant::now() >= *give_up_at)
            {
                break;
            }
        }
        state.execute_outputs();
        // Stop all remaining workers and wait for them.
        state.stop_all().await;
        reconciler.stop().await;
        state.manager.leave();
        state.execute_outputs();
        state.tenure.leave_pool(naming.pool()).await;
        let not_handed_over: Vec<TargetName> = state.manager.not_handed_over().cloned().collect();
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
    manager: PoolManager,
    tenure: Tenure,
    settings: PoolSettings,
    work: WorkSettings,
    removal_reason: RemovalReason,
    held: HeldTerms,
    live: watch::Sender<Vec<InstanceId>>,
    events: mpsc::UnboundedSender<DriverEvent>,
    workers: HashMap<TargetName, WorkerHandle>,
    /// Callers waiting for a target, or for an error.
    waiting: HashMap<TargetName, Vec<AcquireReply>>,
    /// Callers waiting for the end of a term they released.
    releasing: HashMap<TargetName, Vec<oneshot::Sender<Result<(), TargetError>>>>,
    stats: Arc<PoolStats>,
}

struct WorkerHandle {
    commands: mpsc::UnboundedSender<WorkerCommand>,
    task: tokio::task::JoinHandle<()>,
}

impl DriverState {
    fn handle_command(&mut self, command: PoolCommand) {
        let (now, engine) = (SystemClock.now(), self.manager.engine());
        match command {
            PoolCommand::Targets(targets) => self.manager.set_targets(now, targets),
            PoolCommand::Drain(is_draining) => self.manager.set_draining(now, is_draining),
            PoolCommand::Able(is_able) => self.manager.set_able(now, is_able),
            PoolCommand::Release(target, reply) => match self.manager.release(now, &target) {
                Ok(()) => self.releasing.entry(target).or_default().push(reply),
                Err(error) => drop(reply.send(Err(error))),
            },
            PoolCommand::TryAcquire(target, reply) => self.try_acquire(target, reply),
            PoolCommand::Inspect(target, reply) => drop(reply.send(self.info(&target))),
            PoolCommand::TargetStatus(target, reply) => drop(reply.send(engine.target_status(now, &target))),
            PoolCommand::PoolStatus(reply) => drop(reply.send(engine.status(now))),
            PoolCommand::TargetStatuses(reply) => drop(reply.send(engine.target_statuses(now))),
            // The loop handles it.
            PoolCommand::Stop(_) => {}
        }
    }

    fn try_acquire(&mut self, target: TargetName, reply: AcquireReply) {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner).get(&target).cloned();
        if let Some(term) = held.filter(|term| term.is_valid() && !term.is_draining()) {
            let _ = reply.send(Ok(term));
            return;
        }
        match self.manager.try_acquire(SystemClock.now(), &target) {
            Ok(()) => self.waiting.entry(target).or_default().push(reply),
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    fn reply_acquired(&mut self, target: &TargetName, outcome: &Result<TermHandle, TargetError>) {
        for reply in self.waiting.remove(target).into_iter().flatten() {
            let _ = reply.send(outcome.clone());
        }
    }

    /// What the engine knows about a target.
    fn info(&self, target: &TargetName) -> Option<TargetInfo> {
        let engine = self.manager.engine();
        let status = engine.target_status(SystemClock.now(), target)?;
        let holder = engine.holder(target).cloned();
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

    fn handle_event(&mut self, event: DriverEvent) {
        let now = SystemClock.now();
        match event {
            DriverEvent::Answered(id, outcome) => {
                self.manager.answered(now, id, outcome, self.tenure.server_offset());
            }
            DriverEvent::Granted(target, term) => self.start_worker(target, term),
            DriverEvent::Refused(target, refusal) => self.manager.refused(now, target, refusal),
            DriverEvent::TermEnded(target, ending) => {
                for reply in self.releasing.remove(&target).into_iter().flatten() {
                    let _ = reply.send(Ok(()));
                }
                self.workers.remove(&target);
                self.lock_held().remove(&target);
                self.manager.term_ended(now, target, ending);
            }
        }
    }

    fn start_worker(&mut self, target: TargetName, term: Term) {
        let handle = (*term).clone();
        self.lock_held().insert(target.clone(), handle.clone());
        let (commands, commands_in) = mpsc::unbounded_channel();
        let (events, work, held) = (self.events.clone(), self.work.clone(), (target.clone(), handle.clone()));
        let task = tokio::spawn(async move {
            let (target, handle) = held;
            run_worker(target.clone(), term, work, commands_in).await;
            let _ = events.send(DriverEvent::TermEnded(target, handle.final_ending()));
        });
        self.workers.insert(target.clone(), WorkerHandle { commands, task });
        let token = handle.token();
        self.reply_acquired(&target, &Ok(handle));
        self.manager.granted(SystemClock.now(), target, token);
    }

    /// Executes what the manager wants, until it wants no more.
    fn execute_outputs(&mut self) {
        loop {
            let outputs = self.manager.take_outputs();
            if outputs.is_empty() {
                return;
            }
            outputs.into_iter().for_each(|output| self.execute(output));
        }
    }

    fn execute(&mut self, output: PoolOutput) {
        match output {
            PoolOutput::Query { id, request, is_work } => {
                let (tenure, events) = (self.tenure.clone(), self.events.clone());
                tokio::spawn(async move {
                    let outcome = tenure.call_with_priority(request, is_work).await;
                    let _ = events.send(DriverEvent::Answered(id, outcome));
                });
            }
            PoolOutput::Send(request) => self.tenure.call_detached(request),
            PoolOutput::Claim { target, name } => self.claim(target, name),
            PoolOutput::ClaimFailed { target, error } => self.reply_acquired(&target, &Err(error)),
            PoolOutput::Worker { target, command } => self.send_to_worker(&target, command),
            PoolOutput::UpdateRecord => {
                let (now, wall, manager) = (SystemClock.now(), SystemTime::now(), &self.manager);
                self.tenure.update_record(|record| manager.update_record(now, wall, record));
            }
            PoolOutput::Live(live) => drop(self.live.send_replace(live)),
            PoolOutput::Emit(kind) => self.tenure.emit(kind),
            PoolOutput::HandedOver(took) => self.stats.handovers.record(took),
            PoolOutput::TakenOver(took) => self.stats.takeovers.record(took),
        }
    }

    fn claim(&self, target: TargetName, name: LeaseName) {
        let (tenure, events, lease) = (self.tenure.clone(), self.events.clone(), self.settings.lease);
        tokio::spawn(async move {
            let claim = tenure.lease(name).settings(lease).timeout(lease.ttl() / 2);
            let _ = events.send(match claim.try_acquire().await {
                Ok(term) => DriverEvent::Granted(target, term),
                Err(error) => DriverEvent::Refused(target, refusal(error)),
            });
        });
    }

    fn send_to_worker(&self, target: &TargetName, command: WorkerCommand) {
        let command = match command {
            WorkerCommand::Release(ReleaseReason::Removed) => WorkerCommand::Release((self.removal_reason)(target)),
            command => command,
        };
        if let Some(worker) = self.workers.get(target) {
            // A worker that has just ended reports that itself.
            let _ = worker.commands.send(command);
        }
    }

    async fn stop_all(&mut self) {
        for worker in self.workers.values() {
            let _ = worker.commands.send(WorkerCommand::Stop(ReleaseReason::Shutdown));
        }
        for (target, worker) in std::mem::take(&mut self.workers) {
            let _ = worker.task.await;
            self.lock_held().remove(&target);
        }
    }

    fn lock_held(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<TargetName, TermHandle>> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a claim was refused. Its name and settings were checked when the pool started.
fn refusal(error: AcquireError) -> AcquireRefusal {
    match error {
        AcquireError::Held { holder, remaining } => AcquireRefusal::Held { holder, remaining },
        AcquireError::Quarantined(quarantine) => AcquireRefusal::Quarantined(quarantine),
        AcquireError::Observer => AcquireRefusal::Observer,
        AcquireError::TimedOut { waited, holder, because } => AcquireRefusal::TimedOut { waited, holder, because },
        AcquireError::Store(error) => AcquireRefusal::Store(error),
        AcquireError::ShutDown => AcquireRefusal::ShutDown,
        other => AcquireRefusal::Store(StoreError::new(ErrorKind::Configuration, other.to_string())),
    }
}
