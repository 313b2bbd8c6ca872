//! The keeper's thread: a loop that passes inputs to the lease manager and executes its outputs.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use slotmap::SecondaryMap;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::{oneshot, watch};

use tenure_core::manager::{AcquireRequest, CallId, LeaseManager, ManagerConfig, Output, StoreCall};

use super::alarm::Alarm;
use super::event_queue::EventQueue;
use super::link::{LinkEvent, StoreLink};
use super::listeners::Listeners;
use super::observers::Observers;
use super::shared::SharedTerm;
use super::subscribers::Subscribers;
use super::{
    AcquireError, Command, ConnectionState, Gauges, KeeperHandle, LeaseId, PendingAcquire, PendingCall, StatusSender,
    TermGuard, WaiterId,
};
use crate::event::Event;
use crate::fleet::FleetEvent;
use crate::lease::{Ending, Intent, Loss, Permission, ReleaseReason};
use crate::name::InstanceId;
use crate::store::{Outcome, Store, SubscriptionItem};
use crate::time::{LeaseClock, Moment, Now, SystemClock};

/// How often both clocks are read, whatever the alarm does: a wall clock that jumps ahead fires no alarm.
const MAX_SLEEP: Duration = Duration::from_millis(250);

/// Number of inputs processed before requests are sent.
const MAX_INPUTS_PER_ROUND: usize = 1_024;

/// How long the last requests may take after the last handle was dropped.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// The configuration of a keeper.
pub(crate) struct KeeperConfig {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) instance: InstanceId,
    /// The longest ttl that other instances are assumed to rely on, while it is not known.
    pub(crate) assumed_ttl: Duration,
    pub(crate) observer: bool,
    pub(crate) bootstrap: bool,
    pub(crate) durable: bool,
    /// Whether events are announced to the whole fleet.
    pub(crate) shares_events: bool,
    pub(crate) event_queue: EventQueue,
    pub(crate) listeners: Arc<Listeners>,
    pub(crate) gauges: Arc<Gauges>,
}

/// Starts a keeper. It ends when its last handle was dropped and all its leases are released.
pub(crate) fn start(config: KeeperConfig) -> io::Result<Arc<KeeperHandle>> {
    let (commands, command_receiver) = mpsc::unbounded_channel();
    let (state_sender, connection_state) = watch::channel(ConnectionState::Pending);
    let handle = Arc::new(KeeperHandle {
        instance: config.instance.clone(),
        location: config.store.location().to_owned(),
        commands,
        connection_state,
        gauges: config.gauges.clone(),
        listeners: config.listeners.clone(),
        next_waiter_id: AtomicU64::new(1),
        deferred_calls: Mutex::default(),
        process: rustix::process::getpid(),
    });
    let (report, reported) = std::sync::mpsc::sync_channel(1);
    let weak_handle = Arc::downgrade(&handle);
    std::thread::Builder::new().name("tenure-keeper".to_owned()).spawn(move || {
        // Made here, because a runtime must not be dropped inside another one if the alarm cannot be made.
        let made = tokio::runtime::Builder::new_current_thread().enable_all().build().and_then(|runtime| {
            let alarm = {
                let _runtime = runtime.enter();
                Alarm::new()?
            };
            Ok((runtime, alarm))
        });
        let (runtime, alarm) = match made {
            Ok(made) => made,
            Err(error) => {
                let _ = report.send(Err(error));
                return;
            }
        };
        let _ = report.send(Ok(()));
        let (link_event_sender, link_events) = mpsc::unbounded_channel();
        let keeper = Keeper::new(config, weak_handle, link_event_sender, state_sender);
        // As a task: the future that `block_on` polls is woken through the kernel, even by tasks of the same runtime.
        let task = runtime.spawn(keeper.run(command_receiver, link_events, alarm));
        // The panic hook has reported a panic; dropping the keeper notifies every caller that waits.
        let _ = runtime.block_on(task);
        // Tasks that still run have no receiver for their reports.
        runtime.shutdown_background();
    })?;
    reported.recv().unwrap_or_else(|_| Err(io::Error::other("the keeper thread has ended")))?;
    Ok(handle)
}

struct Keeper {
    handle: Weak<KeeperHandle>,
    manager: LeaseManager,
    link: StoreLink,
    terms: Terms,
    waiters: HashMap<WaiterId, WaitingCaller>,
    calls: HashMap<CallId, oneshot::Sender<Outcome>>,
    next_call_id: u64,
    observers: Observers,
    subscribers: Subscribers,
    connection_state: watch::Sender<ConnectionState>,
    shares_events: bool,
    event_queue: EventQueue,
    events: Vec<Event>,
    gauges: Arc<Gauges>,
    /// Once the last handle was dropped: until when it still sends its last requests to the store.
    give_up_at: Option<Moment>,
}

/// A caller that acquires a lease.
struct WaitingCaller {
    reply: oneshot::Sender<Result<TermGuard, AcquireError>>,
    status_sender: Option<StatusSender>,
}

/// The terms that have begun and are not over.
#[derive(Default)]
struct Terms(SecondaryMap<LeaseId, Arc<SharedTerm>>);

impl Drop for Terms {
    /// Ends the terms, so that a keeper that ends for any reason leaves no caller waiting.
    fn drop(&mut self) {
        self.0.values().for_each(|term| term.end(Ending::Lost(Loss::Unreachable), false));
    }
}

impl Keeper {
    fn new(
        config: KeeperConfig,
        handle: Weak<KeeperHandle>,
        link_events: mpsc::UnboundedSender<LinkEvent>,
        connection_state: watch::Sender<ConnectionState>,
    ) -> Self {
        let manager_config = ManagerConfig {
            instance: config.instance,
            location: config.store.location().to_owned(),
            assumed_ttl: config.assumed_ttl,
            observer: config.observer,
            bootstrap: config.bootstrap,
            durable: config.durable,
        };
        Self {
            handle,
            manager: LeaseManager::new(manager_config, fastrand::u64(..)),
            link: StoreLink::new(config.store, link_events),
            terms: Terms::default(),
            waiters: HashMap::new(),
            calls: HashMap::new(),
            next_call_id: 0,
            observers: Observers::default(),
            subscribers: Subscribers::default(),
            connection_state,
            shares_events: config.shares_events,
            event_queue: config.event_queue,
            events: Vec::new(),
            gauges: config.gauges,
            give_up_at: None,
        }
    }

    async fn run(
        mut self,
        mut command_receiver: UnboundedReceiver<Command>,
        mut link_events: UnboundedReceiver<LinkEvent>,
        alarm: Alarm,
    ) {
        let mut alarm_at = Moment::END;
        loop {
            let now = SystemClock.read();
            self.manager.check_timers(now);
            self.execute_outputs(now);
            loop {
                self.manager.flush(now);
                if !self.execute_outputs(now) {
                    break;
                }
            }
            self.report();
            if !command_receiver.is_empty() || !link_events.is_empty() {
                // Let the tasks send what is queued, however much input there is.
                tokio::task::yield_now().await;
            }
            if self.is_done(now.moment) {
                break;
            }
            let longest = now.moment + MAX_SLEEP;
            let wake = self.manager.next_wake().map_or(longest, |at| at.min(longest));
            // An alarm that fires too early does no harm, and setting it costs more than most rounds.
            if wake < alarm_at || alarm_at <= now.moment {
                alarm_at = wake;
                if alarm.set(wake.since(SystemClock.now())).is_err() {
                    // Cannot happen to a timer that exists. A busy loop keeps every guarantee, too.
                    alarm_at = Moment::ZERO;
                    tokio::task::yield_now().await;
                    continue;
                }
            }
            tokio::select! {
                command = command_receiver.recv(), if self.give_up_at.is_none() => match command {
                    Some(command) => self.handle_command(command),
                    None => self.handles_dropped(),
                },
                Some(event) = link_events.recv() => self.handle_link_event(event),
                // Continue even if the timer reports an error.
                _ = alarm.fired() => alarm_at = Moment::END,
            }
            for _ in 0..MAX_INPUTS_PER_ROUND {
                match command_receiver.try_recv() {
                    Ok(command) => self.handle_command(command),
                    Err(_) => break,
                }
            }
            for _ in 0..MAX_INPUTS_PER_ROUND {
                match link_events.try_recv() {
                    Ok(event) => self.handle_link_event(event),
                    Err(_) => break,
                }
            }
        }
        // The last events, sent while the keeper was ending. Later ones go to the listeners directly.
        command_receiver.close();
        while let Ok(command) = command_receiver.try_recv() {
            if matches!(command, Command::Emit(_) | Command::RemoveListener(_)) {
                self.handle_command(command);
            }
        }
        self.report();
        self.connection_state.send_replace(ConnectionState::Closed);
    }

    /// No command can come any more. Terms that are still held have no holder, so they are released.
    fn handles_dropped(&mut self) {
        let now = SystemClock.read();
        self.give_up_at = Some(now.moment + SHUTDOWN_GRACE);
        self.manager.close();
    }

    fn is_done(&self, now: Moment) -> bool {
        let is_too_late = self.give_up_at.is_some_and(|at| now >= at);
        is_too_late || self.manager.is_shutting_down() && self.manager.is_done()
    }

    fn handle_command(&mut self, command: Command) {
        let now = SystemClock.read();
        match command {
            Command::Acquire(pending) => self.acquire(now, pending),
            Command::GiveUp(waiter) => {
                self.waiters.remove(&waiter);
                self.manager.give_up(now, waiter);
            }
            Command::Intent(lease, intent) => self.manager.apply_intent(now, lease, intent),
            Command::WorkEnded(lease) => self.check_work(now, lease),
            Command::Progress(lease) => {
                if let Some(term) = self.terms.0.get(lease) {
                    term.take_progress();
                    self.manager.progress(now, lease);
                }
            }
            Command::Call(pending) => self.call(now, pending),
            Command::CallAll(pending) => pending.into_iter().for_each(|pending| self.call(now, pending)),
            Command::Subscribe(queue) => self.subscribers.add(queue),
            Command::JoinFleet { heartbeat, every } => self.manager.join_fleet(heartbeat, every),
            Command::LeaveFleet => self.manager.leave_fleet(now.moment),
            Command::Observe(name, observer) => self.observers.add(name, observer),
            Command::Emit(event) => self.manager.emit(event),
            Command::RemoveListener(id) => {
                self.report();
                self.event_queue.remove_listener(id);
            }
            Command::ShutDown => self.manager.shut_down(now),
        }
        self.execute_outputs(now);
    }

    fn acquire(&mut self, now: Now, pending: PendingAcquire) {
        let PendingAcquire { waiter, name, settings, mode, timeout, heartbeat, reply, status_sender } = pending;
        let wants_status = status_sender.is_some();
        self.waiters.insert(waiter, WaitingCaller { reply, status_sender });
        let request = AcquireRequest { waiter, name, settings, mode, timeout, heartbeat, wants_status };
        self.manager.acquire(now, request);
    }

    fn call(&mut self, now: Now, pending: PendingCall) {
        let PendingCall { request, timeout, is_work, reply } = pending;
        self.next_call_id += 1;
        let id = CallId(self.next_call_id);
        self.calls.insert(id, reply);
        self.manager.call(now, StoreCall { id, request, timeout, is_work });
    }

    fn handle_link_event(&mut self, event: LinkEvent) {
        let now = SystemClock.read();
        match event {
            LinkEvent::Attached { link, result } if self.manager.is_current(link) => match result {
                Ok(connection) => {
                    let attached = connection.attached().clone();
                    self.link.connected(connection);
                    self.manager.attached(now, link, Ok(&attached));
                }
                Err(error) => self.manager.attached(now, link, Err(error)),
            },
            LinkEvent::Attached { .. } => {}
            LinkEvent::Outcomes { link, recipients, outcomes } => {
                self.manager.answered(now, link, recipients, outcomes);
            }
            LinkEvent::Closed { link } => self.manager.closed(now, link),
            LinkEvent::Heard(SubscriptionItem::Announced(announcement)) => self.manager.announced(now, announcement),
            LinkEvent::Heard(_) => self.manager.announcements_missed(now),
            LinkEvent::SubscribeFailed(error) => self.manager.subscribe_failed(&error),
        }
        self.execute_outputs(now);
    }

    /// Executes what the manager wants, until it wants no more. Returns whether it wanted anything.
    fn execute_outputs(&mut self, now: Now) -> bool {
        let mut any = false;
        loop {
            let outputs = self.manager.take_outputs();
            if outputs.is_empty() {
                return any;
            }
            any = true;
            outputs.into_iter().for_each(|output| self.execute(now, output));
        }
    }

    fn execute(&mut self, now: Now, output: Output) {
        match output {
            Output::Attach { link, request, timeout } => self.link.attach(link, *request, timeout),
            Output::Send(batch) => self.link.send(batch),
            Output::Disconnect => {
                self.link.disconnect();
                self.observers.notify_all();
            }
            Output::Connection(change) => {
                self.connection_state.send_replace(change.into());
            }
            Output::Announced(announcement) => {
                self.subscribers.publish(&announcement);
                announcement.lease().into_iter().for_each(|name| self.observers.notify(name));
            }
            Output::MissedAnnouncements => {
                self.observers.notify_all();
                self.subscribers.mark_gap();
            }
            Output::Granted { waiter, lease } => {
                let granted = self.waiters.remove(&waiter).zip(self.terms.0.get(lease));
                let is_taken =
                    granted.is_some_and(|(caller, term)| caller.reply.send(Ok(TermGuard::new(term.clone()))).is_ok());
                if !is_taken {
                    self.manager.apply_intent(now, lease, Intent::Release(ReleaseReason::Voluntary));
                }
            }
            Output::Refused { waiter, refusal } => {
                if let Some(caller) = self.waiters.remove(&waiter) {
                    // The caller may have given up.
                    let _ = caller.reply.send(Err(refusal.into()));
                }
            }
            Output::Status { waiter, status } => {
                let status_sender = self.waiters.get(&waiter).and_then(|caller| caller.status_sender.as_ref());
                // The receiver may have been dropped.
                drop(status_sender.map(|status_sender| status_sender.send(status)));
            }
            Output::TermBegan { lease, name, settings } => {
                if let Some(handle) = self.handle.upgrade() {
                    self.terms.0.insert(lease, Arc::new(SharedTerm::new(lease, name, settings, handle)));
                }
            }
            Output::TermUpdated { lease, validity } => self.with_term(lease, |term| term.update(&validity)),
            Output::TermCause { lease, cause } => self.with_term(lease, |term| term.set_cause(cause)),
            Output::Permit { lease, permission } => {
                self.with_term(lease, |term| term.permit(permission));
                if matches!(permission, Permission::MustCancel { .. } | Permission::MustBeGone) {
                    self.check_work(now, lease);
                }
            }
            Output::Drain { lease } => {
                self.with_term(lease, SharedTerm::set_draining);
                // Without running work there is nothing to wait for.
                self.check_work(now, lease);
            }
            Output::TermEnded { lease, ending, is_release_unknown } => {
                if let Some(term) = self.terms.0.remove(lease) {
                    term.end(ending, is_release_unknown);
                }
            }
            Output::Replied { call, outcome } => {
                if let Some(reply) = self.calls.remove(&call) {
                    // The caller may have given up.
                    let _ = reply.send(outcome);
                }
            }
            Output::Emit(event) => {
                if self.shares_events && FleetEvent::is_fleet_wide(&event.kind) {
                    self.manager.announce_event(now.moment, &FleetEvent::of(&event, SystemTime::now()));
                }
                self.events.push(event);
            }
            Output::Renewed(round_trip) => self.gauges.renewals.record(round_trip),
        }
    }

    /// Reports that the work of a term has ended, if none is running. Counted again here: more work may have started
    /// before it was forbidden.
    fn check_work(&mut self, now: Now, lease: LeaseId) {
        if self.terms.0.get(lease).is_none_or(|term| term.running_work() == 0) {
            self.manager.work_ended(now, lease);
        }
    }

    fn with_term(&self, lease: LeaseId, change: impl FnOnce(&SharedTerm)) {
        if let Some(term) = self.terms.0.get(lease) {
            change(term);
        }
    }

    fn report(&mut self) {
        if !self.events.is_empty() {
            self.event_queue.push(std::mem::take(&mut self.events));
        }
        let gauges = &self.gauges;
        gauges.held.store(self.manager.held() as u64, Ordering::Relaxed);
        gauges.heartbeats_refused.store(self.manager.are_heartbeats_refused(), Ordering::Relaxed);
        gauges.server_offset.store(self.manager.server_offset(), Ordering::Relaxed);
        gauges.notes_dropped.store(self.manager.notes_dropped(), Ordering::Relaxed);
        let lag = self.manager.take_lag();
        if !lag.is_zero() {
            gauges.lag.record(SystemClock.now(), lag);
        }
    }
}
