//! The keeper's thread: a loop that receives inputs, lets the lease manager decide, and executes its decisions.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;

use super::alarm::Alarm;
use super::event_queue::EventQueue;
use super::link::{LinkEvent, StoreLink};
use super::listeners::Listeners;
use super::manager::LeaseManager;
use super::{AcquireError, Command, ConnectionState, Gauges, KeeperHandle};
use crate::event::{Event, EventKind};
use crate::fleet::FleetEvent;
use crate::lease::LeaseSettings;
use crate::name::InstanceId;
use crate::store::{
    AttachRequest, Connection, Continuity, NamespaceMemory, Outcome, Store, StoreError, SubscriptionItem,
};
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
        let keeper = Keeper {
            link: StoreLink::new(config.store.clone(), link_event_sender),
            manager: LeaseManager::new(config.instance.clone()),
            connection_state: state_sender,
            shutdown: None,
            subscribe_failure_reported: false,
            config,
        };
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
    config: KeeperConfig,
    manager: LeaseManager,
    link: StoreLink,
    connection_state: watch::Sender<ConnectionState>,
    /// Once the keeper is shutting down: until when it still sends its last requests to the store.
    shutdown: Option<Shutdown>,
    /// Whether it was reported that announcements cannot be received.
    subscribe_failure_reported: bool,
}

#[derive(Clone, Copy)]
struct Shutdown {
    /// `None` while a caller waits for all leases to be released.
    until: Option<Moment>,
}

impl Keeper {
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
            self.maintain_link(now);
            self.link.send(now.moment, &mut self.manager.outbox);
            self.report();
            if !command_receiver.is_empty() || !link_events.is_empty() {
                // Let the tasks send what is queued, however much input there is.
                tokio::task::yield_now().await;
            }
            if self.is_done(now.moment) {
                break;
            }
            let wake = [self.manager.next_wake(), self.link.retry_at()].into_iter().flatten().min();
            let wake = wake.map_or(now.moment + MAX_SLEEP, |at| at.min(now.moment + MAX_SLEEP));
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
                command = command_receiver.recv(), if self.accepts_commands() => match command {
                    Some(command) => self.handle_command(command),
                    None => self.shutdown = Some(Shutdown { until: Some(SystemClock.now() + SHUTDOWN_GRACE) }),
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

    fn accepts_commands(&self) -> bool {
        self.shutdown.is_none_or(|shutdown| shutdown.until.is_none())
    }

    fn is_done(&mut self, now: Moment) -> bool {
        let Some(shutdown) = self.shutdown else { return false };
        let too_late = shutdown.until.is_some_and(|until| now >= until);
        if self.manager.len() == 0 && self.link.is_up() {
            self.manager.send_notes(now);
            self.link.send(now, &mut self.manager.outbox);
        }
        too_late
            || self.manager.has_only_overdue()
                && (self.manager.len() > 0 || self.manager.is_idle() && self.link.is_idle())
    }

    fn handle_command(&mut self, command: Command) {
        let now = SystemClock.read();
        match command {
            Command::Acquire(waiter) if self.shutdown.is_some() => waiter.refuse(AcquireError::ShutDown),
            Command::Acquire(waiter) if self.config.observer => waiter.refuse(AcquireError::Observer),
            Command::Acquire(waiter) => self.manager.acquire(now, waiter),
            Command::GiveUp(waiter_id) => self.manager.give_up(now, waiter_id),
            Command::Intent(id, intent) => self.manager.apply_intent(now, id, intent),
            Command::WorkEnded(id) => self.manager.work_ended(now, id),
            Command::Progress(id) => self.manager.progress(now, id),
            Command::Call(call) => self.manager.call(now, call),
            Command::CallAll(store_calls) => store_calls.into_iter().for_each(|call| self.manager.call(now, call)),
            Command::Subscribe(queue) => self.manager.subscribers.add(queue),
            Command::JoinFleet { heartbeat, every } => self.manager.join_fleet(heartbeat, every),
            Command::LeaveFleet => self.manager.leave_fleet(now.moment),
            Command::Observe(name, observer) => self.manager.observers.add(name, observer),
            Command::Emit(event) => self.manager.events.push(event),
            Command::RemoveListener(id) => {
                self.report();
                self.config.event_queue.remove_listener(id);
            }
            Command::ShutDown => {
                self.shutdown.get_or_insert(Shutdown { until: None });
                self.manager.shut_down(now);
            }
        }
    }

    fn handle_link_event(&mut self, event: LinkEvent) {
        let now = SystemClock.read();
        match event {
            LinkEvent::Attached { link, .. } | LinkEvent::Outcomes { link, .. } | LinkEvent::Closed { link }
                if !self.link.is_current(link) => {}
            LinkEvent::Attached { result: Ok(connection), .. } => self.attached(now, connection),
            LinkEvent::Attached { result: Err(error), .. } => {
                self.link.attach_failed(now.moment, &error);
                self.manager.attach_failed(now, &error);
                self.report_disconnect(error);
            }
            LinkEvent::Outcomes { recipients, outcomes, .. } => {
                let (mut usable, mut answers) = (true, false);
                for (reply_to, outcome) in recipients.into_iter().zip(outcomes) {
                    answers |= matches!(outcome, Outcome::Answered(_));
                    usable &= self.manager.answered(now, reply_to, outcome);
                }
                if !usable {
                    self.drop_link(now, "a reply did not arrive in time");
                } else if answers {
                    self.link.confirm_working(now.moment);
                }
            }
            LinkEvent::Closed { .. } => self.drop_link(now, "the connection was closed"),
            LinkEvent::Heard(SubscriptionItem::Announced(announcement)) => {
                if self.manager.announced(now, announcement) {
                    self.drop_link(now, "the store has lost its data");
                }
            }
            LinkEvent::Heard(_) => {
                self.subscribe_failure_reported = false;
                self.manager.recheck(now);
            }
            // The link reports a store that is down.
            LinkEvent::SubscribeFailed(error) if error.is_retryable() => {}
            LinkEvent::SubscribeFailed(error) => {
                if !std::mem::replace(&mut self.subscribe_failure_reported, true) {
                    self.emit(EventKind::StoreSilent { error: error.to_string() });
                }
            }
        }
    }

    fn maintain_link(&mut self, now: Now) {
        if std::mem::take(&mut self.manager.wants_reattach) {
            self.drop_link(now, "the store's data has changed");
        }
        if self.link.retry_at().is_some_and(|at| now.moment >= at) {
            // Time for several round trips, but no longer than leases can wait.
            let attempt = self.manager.shortest_attempt().unwrap_or(LeaseSettings::default().attempt_timeout());
            let timeout = (attempt * 2).max(Duration::from_millis(250)).saturating_mul(self.link.timeout_factor());
            let timeout = timeout.min(Duration::from_secs(5));
            let memory = self.manager.memory.clone();
            let own = self.manager.longest_ttl().unwrap_or_default();
            let entry = AttachRequest {
                max_ttl: if self.manager.has_recent_ttls(now.moment) { own } else { own.max(self.config.assumed_ttl) },
                memory,
                observer: self.config.observer,
                bootstrap: self.config.bootstrap,
                durable: self.config.durable,
                timeout: timeout.mul_f64(0.75),
                ..AttachRequest::new(fastrand::u64(..))
            };
            self.link.attach(entry, timeout);
        }
    }

    fn attached(&mut self, now: Now, connection: Arc<dyn Connection>) {
        let entered = connection.attached().clone();
        let continuity = match &mut self.manager.memory {
            Some(memory) => memory.reattach(&entered),
            None => {
                self.manager.memory = Some(NamespaceMemory::new(&entered));
                Continuity::Changed
            }
        };
        self.link.connected(now.moment, connection);
        self.connection_state.send_replace(ConnectionState::Attached);
        self.emit(EventKind::StoreAttached);
        if let Some(quarantine) = entered.quarantine {
            self.emit(EventKind::StoreQuarantined(quarantine));
        }
        if let Some(why) = &entered.publish_error
            && !std::mem::replace(&mut self.subscribe_failure_reported, true)
        {
            self.emit(EventKind::StoreSilent { error: why.clone() });
        }
        self.manager.attached(now, continuity);
    }

    fn drop_link(&mut self, now: Now, why: &str) {
        if self.link.is_up() {
            self.link.disconnect(now.moment);
            self.manager.connection_lost(now, why);
            let message = format!("{}: {why}", self.config.store.location());
            self.report_disconnect(StoreError::new(crate::store::ErrorKind::Unreachable, message));
        }
    }

    /// Reports once that the store cannot be reached.
    fn report_disconnect(&mut self, error: StoreError) {
        let known =
            matches!(&*self.connection_state.borrow(), ConnectionState::Lost(before) if before.kind() == error.kind());
        if !known {
            self.emit(EventKind::StoreLost { error: error.to_string() });
        }
        self.connection_state.send_replace(ConnectionState::Lost(error));
    }

    fn emit(&mut self, kind: EventKind) {
        let instance = self.config.instance.clone();
        self.manager.events.push(Event { instance, lease: None, token: None, kind });
    }

    fn report(&mut self) {
        if !self.manager.events.is_empty() {
            let events = std::mem::take(&mut self.manager.events);
            if self.config.shares_events {
                let (now, at) = (SystemClock.now(), SystemTime::now());
                let all = events.iter().filter(|event| FleetEvent::is_fleet_wide(&event.kind));
                self.manager.announce_events(now, all.map(|event| FleetEvent::of(event, at)));
            }
            self.config.event_queue.push(events);
        }
        for span in self.manager.renewals.drain(..) {
            self.config.gauges.renewals.record(span);
        }
        let gauges = &self.config.gauges;
        gauges.held.store(self.manager.held() as u64, Ordering::Relaxed);
        gauges.server_offset.store(self.manager.server_offset(), Ordering::Relaxed);
        gauges.notes_dropped.store(self.manager.notes_dropped(), Ordering::Relaxed);
        let lag = std::mem::take(&mut self.manager.lag);
        if !lag.is_zero() {
            gauges.lag.record(SystemClock.now(), lag);
        }
    }
}
