//! The lease manager: timing, requests and notifications of all leases of one process on one store. No I/O, no clock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::ended_terms::EndedTerms;
use super::heartbeat_timer::HeartbeatTimer;
use super::lease_table::{LeaseEntry, LeaseTable};
use super::notes::Notes;
use super::observers::Observers;
use super::server_clock::ServerClock;
use super::shared::SharedTerm;
use super::store_calls::StoreCalls;
use super::subscribers::Subscribers;
use super::timers::Timers;
use super::{AcquireError, AcquireMode, Heartbeat, LeaseId, StoreCall, TermGuard, Waiter, WaiterId};
use crate::event::{Event, EventKind};
use crate::fleet::FleetEvent;
use crate::lease::{
    AcquireStatus, Action, Attempt, Ending, Input, Intent, Lease, LeaseSettings, Permission, ReleaseReason,
};
use crate::name::{InstanceId, LeaseKind, LeaseName};
use crate::store::{
    Announcement, Continuity, DocumentRequest, ErrorKind, Holding, LeaseRequest, LogRequest, MembershipRequest,
    NamespaceMemory, Outcome, ROLES, Refusal, Reply, Request, StoreError, TermNote,
};
use crate::time::{Moment, Now};
use crate::token::Token;

/// Wake-ups of held leases are rounded to this fraction of their ttl, so that renewals share a batch.
const WAKE_UPS_PER_TTL: u32 = 2_000;
const MAX_WAKE_UP_GRANULARITY: Duration = Duration::from_millis(10);

/// How old the knowledge of the longest ttl that is relied on may become. It decides how long a quarantine started by
/// this process lasts. Every reply about a lease refreshes it.
const REFRESH_TTLS_EVERY: Duration = Duration::from_secs(15);

/// How long that knowledge is valid while the store cannot be reached. Others may hold longer leases by now.
const TTLS_VALID_FOR: Duration = Duration::from_secs(5 * 60);

/// A request to be sent, and the recipient of its reply.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) request: Request,
    pub(super) give_up_at: Moment,
    pub(super) reply_to: ReplyTo,
}

impl Outgoing {
    fn store_call(give_up_at: Moment, call: StoreCall) -> Self {
        let reply_to = match &call.request {
            Request::Document(DocumentRequest::Publish { holding, .. })
            | Request::Log(LogRequest::Append { holding, .. }) => {
                ReplyTo::Publication(Box::new(holding.clone()), call.reply)
            }
            _ if call.is_work => ReplyTo::Caller(call.reply),
            _ => ReplyTo::LowPriority(call.reply),
        };
        Self { request: call.request, give_up_at, reply_to }
    }
}

/// The recipient of a reply.
#[derive(Debug)]
pub(super) enum ReplyTo {
    Lease(LeaseId, Attempt),
    Caller(tokio::sync::oneshot::Sender<Outcome>),
    /// A caller that no work depends on.
    LowPriority(tokio::sync::oneshot::Sender<Outcome>),
    /// A caller that publishes a result of this term.
    Publication(Box<Holding>, tokio::sync::oneshot::Sender<Outcome>),
    /// No caller waits for the reply.
    Discard,
}

pub(super) struct LeaseManager {
    instance: InstanceId,
    leases: LeaseTable,
    held: usize,
    /// Waiters for a name that another caller in this process holds or acquires.
    queues: HashMap<LeaseName, VecDeque<Waiter>>,
    places: HashMap<WaiterId, WaiterPlace>,
    timers: Timers<LeaseId>,
    timeouts: Timers<WaiterId>,
    ended_terms: EndedTerms,
    notes: Notes,
    pub(super) observers: Observers,
    pub(super) subscribers: Subscribers,
    heartbeat_timer: Option<HeartbeatTimer>,
    /// Whether a refusal of requests without a caller was reported.
    refusal_reported: bool,
    online: bool,
    /// Why there is no connection, once known.
    store_error: Option<StoreError>,
    server_clock: ServerClock,
    pub(super) memory: Option<NamespaceMemory>,
    /// When the store last reported the ttls that are relied on, or was asked to.
    ttls_known_at: Moment,
    /// Requests on behalf of callers.
    store_calls: StoreCalls,
    /// Whether a lease needs the store to be attached again.
    pub(super) wants_reattach: bool,
    pub(super) outbox: Vec<Outgoing>,
    pub(super) events: Vec<Event>,
    /// Round-trip times of the answered renewals.
    pub(super) renewals: Vec<Duration>,
    pub(super) lag: Duration,
}

/// Where a waiter is.
enum WaiterPlace {
    Queued(LeaseName),
    Active(LeaseId),
}

impl LeaseManager {
    pub(super) fn new(instance: InstanceId) -> Self {
        Self {
            instance,
            leases: LeaseTable::default(),
            held: 0,
            queues: HashMap::new(),
            places: HashMap::new(),
            timers: Timers::new(),
            timeouts: Timers::new(),
            ended_terms: EndedTerms::new(),
            notes: Notes::default(),
            observers: Observers::default(),
            subscribers: Subscribers::default(),
            heartbeat_timer: None,
            refusal_reported: false,
            online: false,
            store_error: None,
            server_clock: ServerClock::default(),
            memory: None,
            ttls_known_at: Moment::ZERO,
            store_calls: StoreCalls::default(),
            wants_reattach: false,
            outbox: Vec::new(),
            events: Vec::new(),
            renewals: Vec::new(),
            lag: Duration::ZERO,
        }
    }

    /// The number of driven leases, held or not.
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    /// The number of held leases.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Server time minus the lease clock, in microseconds.
    pub(super) fn server_offset(&self) -> i64 {
        self.server_clock.offset()
    }

    /// The number of notes dropped because too many waited.
    pub(super) fn notes_dropped(&self) -> u64 {
        self.notes.dropped
    }

    /// Whether the ttls of the fleet's leases are known: the store has reported them, recently enough.
    pub(super) fn has_recent_ttls(&self, now: Moment) -> bool {
        let is_recent = now.since(self.ttls_known_at) <= TTLS_VALID_FOR;
        is_recent && self.memory.as_ref().is_some_and(|memory| !memory.max_ttl.is_zero())
    }

    /// The longest ttl of any lease here.
    pub(super) fn longest_ttl(&self) -> Option<Duration> {
        self.leases.iter().map(|entry| entry.shared.settings.ttl()).max()
    }

    /// The shortest attempt timeout of any lease here.
    pub(super) fn shortest_attempt(&self) -> Option<Duration> {
        self.leases.iter().map(|entry| entry.shared.settings.attempt_timeout()).min()
    }

    /// Whether only work that did not stop in time is left: there is nothing left to release.
    pub(super) fn has_only_overdue(&self) -> bool {
        self.queues.is_empty() && self.leases.iter().all(|entry| entry.shared.is_overdue())
    }

    /// Whether nothing is left to do.
    pub(super) fn is_idle(&self) -> bool {
        let said = self.notes.is_empty() && self.store_calls.is_empty();
        self.len() == 0 && self.queues.is_empty() && (said || !self.online)
    }

    /// The latest time of the next call of [`check_timers`](Self::check_timers).
    pub(super) fn next_wake(&self) -> Option<Moment> {
        let call = if self.online { None } else { self.store_calls.next_wake() };
        let note = self.notes.due().filter(|_| self.online);
        let beat = self.heartbeat_timer.as_ref().map(HeartbeatTimer::due).filter(|_| self.online);
        let refresh = self.online.then_some(self.ttls_known_at + REFRESH_TTLS_EVERY);
        [self.timers.next(), self.timeouts.next(), call, note, beat, refresh].into_iter().flatten().min()
    }

    // Commands of callers.

    pub(super) fn acquire(&mut self, now: Now, waiter: Waiter) {
        if let Some(at) = waiter.timeout.map(|timeout| now.moment + timeout).filter(|at| *at != Moment::END) {
            self.timeouts.add(at, waiter.id);
        }
        let sibling = self.leases.find(&waiter.name);
        // A term that is being released is as good as unheld.
        let leaving = sibling
            .and_then(|id| self.entry(id))
            .is_some_and(|entry| entry.waiter.is_none() && entry.lease.token().is_none());
        match (sibling, waiter.mode) {
            (None, _) => self.drive(now, waiter),
            (Some(_), AcquireMode::Try) if !leaving => {
                let holder = self.instance.clone();
                waiter.refuse(AcquireError::Held { holder, remaining: None });
            }
            (Some(_), _) => {
                let mut waiter = waiter;
                if let Some(status_sender) = &mut waiter.status_sender {
                    status_sender.send(AcquireStatus::Held { holder: self.instance.clone() });
                }
                self.places.insert(waiter.id, WaiterPlace::Queued(waiter.name.clone()));
                self.queues.entry(waiter.name.clone()).or_default().push_back(waiter);
            }
        }
    }

    pub(super) fn give_up(&mut self, now: Now, waiter_id: WaiterId) {
        drop(self.withdraw(now, waiter_id));
    }

    pub(super) fn apply_intent(&mut self, now: Now, id: LeaseId, intent: Intent) {
        if let Some(entry) = self.entry(id) {
            entry.release_reason = Some(match &intent {
                Intent::Release(reason) | Intent::Drain(reason) | Intent::DrainTo(_, reason) => *reason,
                Intent::HandOver(_) => ReleaseReason::HandedOver,
            });
            let drains = matches!(intent, Intent::Drain(_) | Intent::DrainTo(..));
            let shared = entry.shared.clone();
            self.step(now, id, Input::Intent(intent));
            if drains {
                shared.set_draining();
                // Without running work there is nothing to wait for.
                self.work_ended(now, id);
            }
        }
    }

    pub(super) fn work_ended(&mut self, now: Now, id: LeaseId) {
        // Counted again: more work may have started before it was forbidden.
        if let Some(entry) = self.entry(id)
            && entry.shared.running_work() == 0
        {
            if entry.shared.is_stopped() {
                entry.demoted = entry.demoted.min(now.moment);
            }
            self.step(now, id, Input::WorkEnded);
        }
    }

    pub(super) fn progress(&mut self, now: Now, id: LeaseId) {
        if let Some(entry) = self.entry(id) {
            entry.shared.take_progress();
            self.step(now, id, Input::Progress);
        }
    }

    pub(super) fn call(&mut self, now: Now, call: StoreCall) {
        self.store_calls.push(now.moment, call);
        if self.online {
            self.send_store_calls(now.moment);
        }
    }

    fn send_store_calls(&mut self, now: Moment) {
        while let Some(call) = self.store_calls.next() {
            self.outbox.push(Outgoing::store_call(now + call.timeout, call));
        }
    }

    /// Joins the fleet, or changes the record of this instance.
    pub(super) fn join_fleet(&mut self, heartbeat: Arc<Heartbeat>, every: Duration) {
        self.heartbeat_timer = Some(HeartbeatTimer::new(heartbeat, every));
    }

    pub(super) fn leave_fleet(&mut self, now: Moment) {
        let leave = self.heartbeat_timer.take().map(|heartbeat_timer| heartbeat_timer.leave_request(&self.instance));
        self.send_unawaited(now, leave);
    }

    /// Releases all leases and refuses all waiters.
    pub(super) fn shut_down(&mut self, now: Now) {
        self.leave_fleet(now.moment);
        self.refuse_queues(&AcquireError::ShutDown);
        for id in self.leases.ids() {
            let Some(entry) = self.entry(id) else { continue };
            let (waiter, heartbeat) = (entry.waiter.take(), entry.heartbeat.take());
            if let Some(waiter) = waiter {
                self.places.remove(&waiter.id);
                waiter.refuse(AcquireError::ShutDown);
            }
            let instance = self.instance.clone();
            self.send_unawaited(
                now.moment,
                heartbeat.map(|beat| MembershipRequest::Leave { group: beat.group.clone(), instance }),
            );
            self.apply_intent(now, id, Intent::Release(ReleaseReason::Shutdown));
        }
    }

    // Inputs from the store.

    pub(super) fn connection_lost(&mut self, now: Now, why: &str) {
        if std::mem::replace(&mut self.online, false) {
            self.store_calls.connection_lost();
            self.observers.notify_all();
            // These requests will not be sent.
            let unsent = std::mem::take(&mut self.outbox);
            let lost = StoreError::new(ErrorKind::Unreachable, format!("{why}, before the lease was granted"));
            for id in self.leases.ids() {
                self.step(now, id, Input::ConnectionLost);
                // `try_acquire` is one attempt. If it was granted after all, the lease is released.
                if self
                    .entry(id)
                    .is_some_and(|e| e.waiter.as_ref().is_some_and(|waiter| waiter.mode == AcquireMode::Try))
                {
                    self.refuse(now, id, AcquireError::Store(lost.clone()));
                }
            }
            let error = StoreError::new(ErrorKind::Unreachable, "the connection was lost before the request was sent");
            for outgoing in unsent {
                if let ReplyTo::Caller(reply) | ReplyTo::LowPriority(reply) | ReplyTo::Publication(_, reply) =
                    outgoing.reply_to
                {
                    let _ = reply.send(Outcome::Failed(error.clone()));
                }
            }
        }
    }

    pub(super) fn attached(&mut self, now: Now, continuity: Continuity) {
        self.online = true;
        self.ttls_known_at = now.moment;
        self.store_error = None;
        self.observers.notify_all();
        self.subscribers.mark_gap();
        if let Some(heartbeat_timer) = &mut self.heartbeat_timer {
            heartbeat_timer.fire_now();
        }
        for id in self.leases.ids() {
            self.step(now, id, Input::Attached(continuity));
        }
        self.send_store_calls(now.moment);
    }

    /// Handles a failed attach. Holders keep their leases while these last. Waiters are refused if a retry cannot help;
    /// those that only try are refused in any case.
    pub(super) fn attach_failed(&mut self, now: Now, error: &StoreError) {
        self.store_error = Some(error.clone());
        if !error.is_retryable() {
            self.refuse_queues(&AcquireError::Store(error.clone()));
        }
        for id in self.leases.ids() {
            let waits = self.entry(id).is_some_and(|entry| {
                entry.waiter.as_ref().is_some_and(|waiter| waiter.mode == AcquireMode::Try || !error.is_retryable())
            });
            if waits {
                self.refuse(now, id, AcquireError::Store(error.clone()));
            }
            self.send_status(id);
        }
    }

    /// Processes a reply. Returns whether its connection can still be used.
    pub(super) fn answered(&mut self, now: Now, reply_to: ReplyTo, outcome: Outcome) -> bool {
        let usable = !matches!(outcome, Outcome::Unknown(_));
        if let (Outcome::Answered(reply), Some(memory)) = (&outcome, &mut self.memory) {
            memory.learn(reply);
            if matches!(reply, Reply::Granted(_) | Reply::Renewed { .. } | Reply::Held(_) | Reply::Namespace(_)) {
                self.ttls_known_at = now.moment;
            }
            let server = match reply {
                Reply::Granted(grant) => Some(grant.server),
                Reply::Renewed { server, .. } => Some(*server),
                Reply::Held(held) => Some(held.server),
                Reply::Lease(report) => report.held.as_ref().map(|held| held.server),
                Reply::Namespace(report) => Some(report.server),
                _ => None,
            };
            server.into_iter().for_each(|server| self.server_clock.observe(now.moment, server));
            self.refresh_doubtful_ttls(now.moment);
        }
        if matches!(reply_to, ReplyTo::LowPriority(_)) {
            self.store_calls.answered();
            self.send_store_calls(now.moment);
        }
        match reply_to {
            ReplyTo::Discard => self.report_refusal(outcome),
            ReplyTo::Caller(reply) | ReplyTo::LowPriority(reply) => drop(reply.send(outcome)),
            ReplyTo::Publication(holding, reply) => {
                let refusal = match &outcome {
                    Outcome::Answered(Reply::Refused(refusal)) => Some(refusal.clone()),
                    _ => None,
                };
                drop(reply.send(outcome));
                if let Some(refusal) = refusal {
                    self.publication_refused(now, &holding, refusal);
                }
            }
            ReplyTo::Lease(id, attempt) => {
                let refusal = self.refusal(id, &outcome);
                let input = match outcome {
                    Outcome::Answered(reply) => Input::Answered { attempt, reply },
                    Outcome::Failed(error) => Input::Failed { attempt, error },
                    Outcome::Unknown(error) => Input::Unknown { attempt, error },
                };
                let renewed = matches!(&input, Input::Answered { reply: Reply::Renewed { .. }, .. });
                self.step(now, id, input);
                if renewed {
                    self.renewals.extend(self.leases.get(id).and_then(|entry| entry.lease.last_round_trip()));
                }
                if let Some(refusal) = refusal {
                    self.refuse(now, id, refusal);
                }
            }
        }
        usable
    }

    /// Reports, once, that requests without a caller are refused for good.
    fn report_refusal(&mut self, outcome: Outcome) {
        if let Outcome::Failed(error) = outcome
            && !error.is_retryable()
            && !std::mem::replace(&mut self.refusal_reported, true)
        {
            let (instance, kind) = (self.instance.clone(), EventKind::StoreRefused { error: error.to_string() });
            self.events.push(Event { instance, lease: None, token: None, kind });
        }
    }

    /// Processes an announcement. Returns whether the store must be attached again.
    pub(super) fn announced(&mut self, now: Now, announcement: Announcement) -> bool {
        if self.memory.as_ref().is_some_and(|memory| memory.is_outdated_by(&announcement)) {
            return true;
        }
        if let Some(memory) = &mut self.memory {
            memory.learn_announcement(&announcement);
            self.refresh_doubtful_ttls(now.moment);
        }
        if announcement == Announcement::Reopened {
            self.recheck(now);
        }
        self.subscribers.publish(&announcement);
        let Some(name) = announcement.lease() else { return false };
        self.observers.notify(name);
        // A publication does not change who holds the lease.
        if !matches!(announcement, Announcement::Published { .. })
            && let Some(id) = self.leases.find(name)
        {
            self.step(now, id, Input::Announced(announcement));
        }
        false
    }

    /// Rechecks everything, because announcements may have been missed.
    pub(super) fn recheck(&mut self, now: Now) {
        self.refresh_ttls(now.moment);
        self.observers.notify_all();
        self.subscribers.mark_gap();
        for id in self.leases.ids() {
            if self.entry(id).is_some_and(|entry| entry.waiter.is_some()) {
                self.step(now, id, Input::Recheck);
            }
        }
    }

    /// Does everything that is due.
    pub(super) fn check_timers(&mut self, now: Now) {
        // Collect everything due first: a lease that is due again at once waits for the next round.
        let due: Vec<(Moment, LeaseId)> = std::iter::from_fn(|| self.timers.pop_due(now.moment)).collect();
        for (at, id) in due {
            let Some(entry) = self.entry(id) else { continue };
            if entry.queued != at {
                continue;
            }
            entry.queued = Moment::END;
            match entry.lease.next_wake() {
                Some((due, epoch)) if due <= now.moment => {
                    self.lag = self.lag.max(now.moment.since(at));
                    self.step(now, id, Input::Wake(epoch));
                }
                Some((due, _)) => self.arm(id, due),
                None => {}
            }
        }
        if !self.online {
            self.store_calls.give_up(now.moment, self.store_error.as_ref());
        }
        while let Some((_, waiter_id)) = self.timeouts.pop_due(now.moment) {
            let status = match self.places.get(&waiter_id) {
                Some(WaiterPlace::Active(id)) => self.leases.peek(*id).and_then(|entry| entry.lease.acquire_status()),
                _ => None,
            };
            if let Some(waiter) = self.withdraw(now, waiter_id) {
                let waited = waiter.timeout.unwrap_or_default();
                let (holder, why) = match status {
                    Some(AcquireStatus::Held { holder }) => (Some(holder), None),
                    Some(AcquireStatus::Blocked { why }) => (None, why),
                    _ => (None, None),
                };
                let why = why.map(|why| StoreError::new(ErrorKind::Unavailable, why));
                waiter.refuse(AcquireError::TimedOut { waited, holder, because: self.store_error.clone().or(why) });
            }
        }
        if self.online {
            let due = self.notes.take_due(now.moment);
            self.send_unawaited(now.moment, due);
            let beat = self
                .heartbeat_timer
                .as_mut()
                .and_then(|heartbeat_timer| heartbeat_timer.take_due(now.moment, &self.instance));
            self.send_unawaited(now.moment, beat);
            if now.moment.since(self.ttls_known_at) >= REFRESH_TTLS_EVERY {
                self.refresh_ttls(now.moment);
            }
        }
    }

    /// Refreshes the ttls if they are doubtful. Replies and announcements use different connections. A delayed one may
    /// carry a ttl that no lease relies on any more, and an idle process would keep it.
    fn refresh_doubtful_ttls(&mut self, now: Moment) {
        if self.memory.as_mut().is_some_and(NamespaceMemory::take_ttl_doubt) {
            self.refresh_ttls(now);
        }
    }

    /// Requests the longest ttl that is relied on.
    fn refresh_ttls(&mut self, now: Moment) {
        if self.online {
            self.ttls_known_at = now;
            self.send_unawaited(now, [LeaseRequest::InspectNamespace]);
        }
    }

    /// Sends all notes now.
    pub(super) fn send_notes(&mut self, now: Moment) {
        let all = self.notes.take_all();
        self.send_unawaited(now, all);
    }

    /// Queues announcements of events to the whole fleet.
    pub(super) fn announce_events(&mut self, now: Moment, events: impl IntoIterator<Item = FleetEvent>) {
        for event in events {
            self.notes.add(now, Request::Announce(Announcement::Event { event: event.encode() }));
        }
    }

    /// Sends requests without a caller, if there is a connection.
    fn send_unawaited<R: Into<Request>>(&mut self, now: Moment, requests: impl IntoIterator<Item = R>) {
        if !self.online {
            return;
        }
        let give_up_at = now + LeaseSettings::default().attempt_timeout();
        let outgoing = |request: R| Outgoing { request: request.into(), give_up_at, reply_to: ReplyTo::Discard };
        self.outbox.extend(requests.into_iter().map(outgoing));
    }

    // Driving leases.

    /// Starts to drive a lease for a waiter.
    fn drive(&mut self, now: Now, waiter: Waiter) {
        let (name, settings) = (waiter.name.clone(), waiter.settings.clone());
        let ended_term = self.ended_terms.take(&name);
        let lease = Lease::new(name.clone(), self.instance.clone(), settings.clone(), fastrand::u64(..))
            .with_ended_term(ended_term);
        let shared = Arc::new(SharedTerm::new(name, settings, waiter.keeper.clone()));
        let heartbeat = waiter.heartbeat.clone();
        let waiter_id = waiter.id;
        let entry = LeaseEntry {
            lease,
            shared: shared.clone(),
            waiter: Some(Box::new(waiter)),
            heartbeat,
            release_reason: None,
            queued: Moment::END,
            demoted: Moment::END,
        };
        let id = self.leases.insert(entry);
        shared.set_id(id);
        self.places.insert(waiter_id, WaiterPlace::Active(id));
        if !self.online {
            self.step(now, id, Input::ConnectionLost);
        }
        self.step(now, id, Input::Tick);
    }

    /// Passes an input to a lease and executes its actions, until none produces another input.
    fn step(&mut self, now: Now, id: LeaseId, input: Input) {
        let mut next = Some(input);
        while let Some(input) = next.take() {
            let siblings = self.held;
            let Some(entry) = self.entry(id) else { return };
            let had = entry.lease.token().is_some();
            entry.lease.set_siblings(siblings);
            let actions = entry.lease.step(now, input);
            let has = entry.lease.token().is_some();
            if had || has {
                entry.shared.update(now, &entry.lease);
            }
            match (had, has) {
                (false, true) => self.term_began(now, id),
                (true, false) => self.held -= 1,
                _ => {}
            }
            for action in actions {
                match action {
                    Action::Send { attempt, request, give_up_at } => {
                        let beat = self.heartbeat_with(id, &request);
                        let reply_to = ReplyTo::Lease(id, attempt);
                        self.outbox.push(Outgoing { request: request.into(), give_up_at, reply_to });
                        self.outbox.extend(beat.map(|request| Outgoing {
                            request: request.into(),
                            give_up_at,
                            reply_to: ReplyTo::Discard,
                        }));
                    }
                    Action::Attach => self.wants_reattach = true,
                    Action::Wake { at, .. } => self.arm(id, at),
                    Action::Permit(permission) => next = self.permit(now, id, permission).or(next),
                    Action::Emit(event) => self.emit(now, id, event),
                    Action::Deadline(_) => {}
                }
            }
        }
        self.send_status(id);
        self.finish_if_over(now, id);
    }

    /// Sends the status of the acquisition to the waiter.
    fn send_status(&mut self, id: LeaseId) {
        let store_error = self.store_error.as_ref();
        if let Some(entry) = self.leases.get(id)
            && let Some(status_sender) = entry.waiter.as_mut().and_then(|waiter| waiter.status_sender.as_mut())
            && let Some(status) = entry.lease.acquire_status()
        {
            status_sender.send(match status {
                // The lease only knows that it is offline.
                AcquireStatus::Blocked { why } => {
                    AcquireStatus::Blocked { why: store_error.map(ToString::to_string).or(why) }
                }
                status => status,
            });
        }
    }

    /// Records that a term has begun.
    fn term_began(&mut self, now: Now, id: LeaseId) {
        self.held += 1;
        let Some(entry) = self.entry(id) else { return };
        let (name, token) = (entry.lease.name().clone(), entry.shared.token());
        let group = entry.heartbeat.as_ref().map(|heartbeat| heartbeat.group.clone());
        let from = self.server_clock.at(now.moment);
        let holder = self.instance.clone();
        // Listing the candidates removes the dead ones.
        self.send_unawaited(now.moment, group.map(|group| MembershipRequest::List { group }));
        if name.kind() == LeaseKind::Role {
            // For listings of all roles.
            let (index, entry) = (ROLES.to_owned(), name.encode());
            self.send_unawaited(now.moment, [DocumentRequest::IndexAdd { index, entry, announced: false }]);
        }
        let note = TermNote { name, token, holder, from, demoted: None, released: None, ending: None };
        self.notes.add(now.moment, LogRequest::Note(note).into());
    }

    /// Passes a permission on to the work. Returns an input for the lease if one follows at once: no work is running
    /// that would have to end, or the caller no longer waits.
    fn permit(&mut self, now: Now, id: LeaseId, permission: Permission) -> Option<Input> {
        let entry = self.leases.get(id)?;
        let stop = matches!(permission, Permission::MustCancel { .. } | Permission::MustBeGone);
        if stop {
            // Without a reason from this process, an operator requested it. A loss has already set its cause.
            entry.shared.set_cause(Ending::Released(entry.release_reason.unwrap_or(ReleaseReason::StepDown)));
        }
        entry.shared.permit(permission);
        if stop && entry.shared.running_work() == 0 {
            entry.demoted = entry.demoted.min(now.moment);
            return Some(Input::WorkEnded);
        }
        if matches!(permission, Permission::MayStart { .. })
            && let Some(waiter) = entry.waiter.take()
        {
            let granted = TermGuard::new(entry.shared.clone());
            self.places.remove(&waiter.id);
            if !waiter.grant(granted) {
                entry.release_reason = Some(ReleaseReason::Voluntary);
                return Some(Input::Intent(Intent::Release(ReleaseReason::Voluntary)));
            }
        }
        None
    }

    fn emit(&mut self, now: Now, id: LeaseId, mut event: Event) {
        if let Some(entry) = self.entry(id) {
            match &mut event.kind {
                EventKind::AcquireFailed { is_waiting, .. } => {
                    *is_waiting = entry.waiter.as_ref().is_some_and(|waiter| waiter.mode == AcquireMode::Wait);
                }
                EventKind::Lost(loss) => entry.shared.set_cause(Ending::Lost(loss.clone())),
                EventKind::Released(reason) => entry.shared.set_cause(Ending::Released(*reason)),
                // The heartbeat would outlive a dead holder. A holder that is alive after all sends another.
                EventKind::TakenOver { owner } => {
                    let group = entry.heartbeat.as_ref().map(|heartbeat| heartbeat.group.clone());
                    self.send_unawaited(
                        now.moment,
                        group.map(|group| MembershipRequest::Leave { group, instance: owner.clone() }),
                    );
                }
                _ => {}
            }
        }
        self.events.push(event);
    }

    /// The heartbeat to send with a request, if there is one.
    fn heartbeat_with(&self, id: LeaseId, request: &LeaseRequest) -> Option<MembershipRequest> {
        if !matches!(request, LeaseRequest::Acquire { .. } | LeaseRequest::TakeOver { .. } | LeaseRequest::Renew { .. })
        {
            return None;
        }
        let Heartbeat { group, ttl, record } = self.leases.peek(id)?.heartbeat.as_deref()?;
        let (group, ttl, record) = (group.clone(), *ttl, record.clone());
        Some(MembershipRequest::Heartbeat { group, instance: self.instance.clone(), ttl, record })
    }

    /// Ends a term whose publication was refused: it is over, even if no renewal has been refused yet.
    fn publication_refused(&mut self, now: Now, holding: &Holding, refusal: Refusal) {
        let owner = match &refusal {
            Refusal::Taken { holder } => Some(holder.clone()),
            _ => None,
        };
        let (lease, token) = (Some(holding.name.clone()), Some(holding.token));
        let kind = EventKind::PublishRefused { owner };
        self.events.push(Event { instance: self.instance.clone(), lease, token, kind });
        if let Some(id) = self.leases.find(&holding.name) {
            self.step(now, id, Input::Refused { token: holding.token, refusal });
        }
    }

    fn arm(&mut self, id: LeaseId, at: Moment) {
        let Some(entry) = self.entry(id) else { return };
        let at = if entry.lease.token().is_some() { rounded_up(at, entry.shared.settings.ttl()) } else { at };
        if at < entry.queued {
            entry.queued = at;
            self.timers.add(at, id);
        }
    }

    fn finish_if_over(&mut self, now: Now, id: LeaseId) {
        let Some(ending) = self.entry(id).and_then(|entry| entry.lease.ending().cloned()) else { return };
        let Some(mut entry) = self.leases.remove(id) else { return };
        let name = entry.lease.name().clone();
        if let Some(token) = entry.lease.ended_term() {
            self.ended_terms.remember(now.moment, &name, token, entry.shared.settings.ttl());
        }
        if entry.shared.token() != Token::ZERO {
            self.note_end(now.moment, &entry, ending.clone());
        }
        entry.shared.end(ending, entry.lease.is_release_unknown());
        // If the term ended before its work could start, its waiter waits for the next one.
        let next = entry.waiter.take().map(|waiter| *waiter).or_else(|| self.next_waiter(&name));
        if let Some(waiter) = next {
            self.drive(now, waiter);
        }
    }

    fn next_waiter(&mut self, name: &LeaseName) -> Option<Waiter> {
        let queue = self.queues.get_mut(name)?;
        let next = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(name);
        }
        next
    }

    /// Removes a waiter, wherever it is, and gives up on its lease.
    fn withdraw(&mut self, now: Now, waiter_id: WaiterId) -> Option<Waiter> {
        match self.places.remove(&waiter_id)? {
            WaiterPlace::Queued(name) => {
                let queue = self.queues.get_mut(&name)?;
                let at = queue.iter().position(|waiter| waiter.id == waiter_id)?;
                let waiter = queue.remove(at);
                if queue.is_empty() {
                    self.queues.remove(&name);
                }
                waiter
            }
            WaiterPlace::Active(id) => {
                let waiter = self.entry(id)?.waiter.take()?;
                self.apply_intent(now, id, Intent::Release(ReleaseReason::Voluntary));
                Some(*waiter)
            }
        }
    }

    /// The error for the waiter of this lease, if the outcome decides it.
    fn refusal(&mut self, id: LeaseId, outcome: &Outcome) -> Option<AcquireError> {
        let mode = self.entry(id)?.waiter.as_ref()?.mode;
        match (outcome, mode) {
            (Outcome::Failed(error), _) if !error.is_retryable() => Some(AcquireError::Store(error.clone())),
            (Outcome::Failed(error) | Outcome::Unknown(error), AcquireMode::Try) => {
                Some(AcquireError::Store(error.clone()))
            }
            (Outcome::Answered(Reply::Held(held)), AcquireMode::Try) => {
                Some(AcquireError::Held { holder: held.holder.clone(), remaining: held.remaining })
            }
            (Outcome::Answered(Reply::Quarantined(quarantine)), AcquireMode::Try) => {
                Some(AcquireError::Quarantined(*quarantine))
            }
            (Outcome::Answered(Reply::TokensExhausted), _) => {
                let message = "no larger token is left for this lease";
                Some(AcquireError::Store(StoreError::new(ErrorKind::Corrupt, message)))
            }
            _ => None,
        }
    }

    /// Refuses all waiters that are queued behind another caller of this process.
    fn refuse_queues(&mut self, error: &AcquireError) {
        for waiter in std::mem::take(&mut self.queues).into_values().flatten() {
            self.places.remove(&waiter.id);
            waiter.refuse(error.clone());
        }
    }

    fn refuse(&mut self, now: Now, id: LeaseId, error: AcquireError) {
        if let Some(waiter_id) = self.entry(id).and_then(|entry| entry.waiter.as_ref()).map(|waiter| waiter.id)
            && let Some(waiter) = self.withdraw(now, waiter_id)
        {
            waiter.refuse(error);
        }
    }

    fn note_end(&mut self, now: Moment, entry: &LeaseEntry, ending: Ending) {
        let released = matches!(ending, Ending::Released(_)).then(|| self.server_clock.at(now));
        let (from, _) = entry.shared.times();
        let note = TermNote {
            name: entry.lease.name().clone(),
            token: entry.shared.token(),
            holder: self.instance.clone(),
            from: self.server_clock.at(from),
            demoted: Some(self.server_clock.at(entry.demoted.min(now))),
            released,
            ending: Some(ending),
        };
        self.notes.add(now, LogRequest::Note(note).into());
    }

    fn entry(&mut self, id: LeaseId) -> Option<&mut LeaseEntry> {
        self.leases.get(id)
    }
}

/// Rounds up to a small fraction of the ttl, so that leases that are due at about the same time are due together.
fn rounded_up(at: Moment, ttl: Duration) -> Moment {
    let grain = (ttl / WAKE_UPS_PER_TTL).min(MAX_WAKE_UP_GRANULARITY).as_nanos().max(1);
    let nanos = u128::from(at.as_nanos()).div_ceil(grain) * grain;
    Moment::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
