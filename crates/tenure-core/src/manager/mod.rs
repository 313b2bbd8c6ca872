//! The manager: all leases of one process on one store, with their timing, their requests and what is told to callers.
//!
//! It performs no I/O and reads no clock. An executor passes inputs to it, carries out the [`Output`]s after each, and
//! calls [`flush`](LeaseManager::flush) when no more inputs wait. The thread of a program and the simulator are executors
//! of the same manager.
//!
//! | file | contents |
//! |---|---|
//! | `output.rs` | what goes in and what comes out: plain data |
//! | `driving.rs` | one lease after the other: inputs, actions, the end |
//! | `store.rs` | what comes from the store: connections, replies, announcements |
//! | `waiters.rs` | the callers that acquire, and their order |
//! | `lease_table.rs`, `ended_terms.rs` | the leases, and the last term of each name |
//! | `outbox.rs`, `calls.rs`, `notes.rs` | the requests on their way to the store, by urgency |
//! | `link.rs` | when to connect, and when to try again |
//! | `knowledge.rs`, `server_clock.rs` | what is known of the namespace and of the store's clock |
//! | `heartbeat.rs`, `timers.rs` | the heartbeats of this instance; a queue of wake-ups |

mod calls;
mod driving;
mod ended_terms;
mod heartbeat;
mod knowledge;
mod lease_table;
mod link;
mod notes;
mod outbox;
mod output;
mod server_clock;
mod store;
mod timers;
mod waiters;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ended_terms::EndedTerms;
use heartbeat::HeartbeatTimer;
use knowledge::Knowledge;
use lease_table::LeaseTable;
use link::Link;
use outbox::Outbox;
use output::Unawaited;
use timers::Timers;
use waiters::{Waiter, Waiters, Withdrawn};

pub use heartbeat::Heartbeat;
pub use output::{
    AcquireMode, AcquireRefusal, AcquireRequest, Batch, CallId, ConnectionChange, LeaseId, LinkId, Output, Recipients,
    StoreCall, Validity, WaiterId,
};
pub use server_clock::{local_moment, server_time};

use crate::ending::ReleaseReason;
use crate::event::{Event, EventKind};
use crate::fleet::FleetEvent;
use crate::lease::{AcquireStatus, Input, Intent, Lease};
use crate::mutation::{Mutation, Mutations};
use crate::name::{Group, InstanceId, LeaseName};
use crate::store::{
    Announcement, AttachRequest, ErrorKind, LeaseRequest, MAX_TTL, NamespaceMemory, Request, StoreError,
};
use crate::time::{Moment, Now};

/// The configuration of a manager.
#[derive(Clone, Debug)]
pub struct ManagerConfig {
    /// This process.
    pub instance: InstanceId,
    /// Names the store in errors.
    pub location: String,
    /// The longest ttl that other instances are assumed to rely on, while it is not known.
    pub assumed_ttl: Duration,
    /// Whether it only observes: it acquires nothing.
    pub observer: bool,
    /// Whether the operator states that the server is new.
    pub bootstrap: bool,
    /// Whether the operator states that a restart loses nothing.
    pub durable: bool,
}

/// All leases of one process on one store.
#[derive(Debug)]
pub struct LeaseManager {
    config: ManagerConfig,
    rng: fastrand::Rng,
    leases: LeaseTable,
    held: usize,
    waiters: Waiters,
    wake_ups: Timers<LeaseId>,
    ended_terms: EndedTerms,
    heartbeat_timer: Option<HeartbeatTimer>,
    link: Link,
    outbox: Outbox,
    knowledge: Knowledge,
    /// Why the last attach failed, until one succeeds.
    attach_error: Option<StoreError>,
    /// The kind of error that was last reported, while there is no connection.
    reported_loss: Option<ErrorKind>,
    /// The requests without a caller that are refused for good, as reported.
    refused: BTreeSet<Unawaited>,
    /// Whether it was reported that announcements cannot be received.
    silence_reported: bool,
    /// Why the store is to be attached again, if it is.
    reattach: Option<&'static str>,
    is_shutting_down: bool,
    /// The longest delay of a wake-up since the last look.
    lag: Duration,
    outputs: Vec<Output>,
    mutations: Mutations,
}

impl LeaseManager {
    /// Creates a manager without leases. All randomness comes from the seed, so the seed must differ every time.
    pub fn new(config: ManagerConfig, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        Self {
            leases: LeaseTable::new(rng.u64(..)),
            held: 0,
            waiters: Waiters::new(),
            wake_ups: Timers::new(),
            ended_terms: EndedTerms::new(),
            heartbeat_timer: None,
            link: Link::new(),
            outbox: Outbox::default(),
            knowledge: Knowledge::default(),
            attach_error: None,
            reported_loss: None,
            refused: BTreeSet::new(),
            silence_reported: false,
            reattach: None,
            is_shutting_down: false,
            lag: Duration::ZERO,
            outputs: Vec::new(),
            config,
            rng,
            mutations: Mutations::default(),
        }
    }

    /// Plants a bug, also into every lease, for the simulator to find.
    #[cfg(feature = "mutations")]
    pub fn plant(&mut self, mutation: Mutation) {
        self.mutations.plant(mutation);
    }

    /// The number of driven leases, held or not.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether no lease is driven.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of held leases.
    pub fn held(&self) -> usize {
        self.held
    }

    /// One of the leases, while it is driven.
    pub fn lease(&self, id: LeaseId) -> Option<&Lease> {
        self.leases.peek(id).map(|entry| &entry.lease)
    }

    /// What is remembered of the namespace, once attached.
    pub fn memory(&self) -> Option<&NamespaceMemory> {
        self.knowledge.memory()
    }

    /// Server time minus the lease clock, in microseconds.
    pub fn server_offset(&self) -> i64 {
        self.knowledge.server_offset()
    }

    /// The number of notes dropped because too many waited.
    pub fn notes_dropped(&self) -> u64 {
        self.outbox.notes_dropped()
    }

    /// Whether the store refuses the heartbeats of this instance, so that no other instance counts with it.
    pub fn are_heartbeats_refused(&self) -> bool {
        self.refused.contains(&Unawaited::Heartbeat(Group::FLEET))
    }

    /// The longest delay of a wake-up since the last call.
    pub fn take_lag(&mut self) -> Duration {
        std::mem::take(&mut self.lag)
    }

    /// Whether this is the current connection, or the current attempt to make one.
    pub fn is_current(&self, link: LinkId) -> bool {
        self.link.id() == link
    }

    /// Whether this is an attempt to connect that has not ended.
    pub fn is_attaching(&self, link: LinkId) -> bool {
        self.is_current(link) && self.link.is_attaching()
    }

    /// Whether a shutdown has begun.
    pub fn is_shutting_down(&self) -> bool {
        self.is_shutting_down
    }

    /// Whether nothing is left to do: all leases are released and the store knows, or cannot be told. Work that did not
    /// stop in time is not waited for: there is nothing left to release.
    pub fn is_done(&self) -> bool {
        let has_only_overdue = self.waiters.has_no_queue() && self.leases.iter().all(|entry| entry.is_overdue());
        has_only_overdue && (!self.is_empty() || self.outbox.is_idle())
    }

    /// The latest time of the next call of [`check_timers`](Self::check_timers) and [`flush`](Self::flush).
    pub fn next_wake(&self) -> Option<Moment> {
        let online = self.outbox.is_online();
        let beat = self.heartbeat_timer.as_ref().map(HeartbeatTimer::due).filter(|_| online);
        let refresh = online.then_some(self.knowledge.refresh_at());
        let own = [self.wake_ups.next(), self.waiters.next_timeout(), self.outbox.next_wake(), beat, refresh];
        own.into_iter().chain([self.link.retry_at()]).flatten().min()
    }

    /// Takes what the executor must do now, in order.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// Ends a round of inputs: connects if it is time to, and puts the queued requests into batches. The executor repeats
    /// it until there are no more outputs.
    pub fn flush(&mut self, now: Now) {
        // Replies on their way are waited for: the outcome of their requests would be unknown.
        if let Some(why) = self.reattach.filter(|_| !self.outbox.has_batches_in_flight()) {
            self.reattach = None;
            self.replace_link(now, why);
        }
        if self.link.retry_at().is_some_and(|at| now.moment >= at) {
            self.attach(now.moment);
        }
        if self.is_shutting_down && self.is_empty() {
            self.outbox.send_all_notes(now.moment);
        }
        if self.outbox.is_online() && self.reattach.is_none() {
            let token = |id| self.leases.peek(id).and_then(|entry| entry.lease.token());
            self.outbox.drop_renewals(|id, renewed| token(id) != Some(renewed));
            let batches = self.outbox.take_batches(now.moment, self.link.id());
            self.outputs.extend(batches);
        }
    }

    fn attach(&mut self, now: Moment) {
        let waits_longer = self.mutations.has(Mutation::LongAttachTimeout);
        let assumed_ttl = if waits_longer { MAX_TTL } else { self.config.assumed_ttl };
        let leases = self.leases.iter().map(|entry| &**entry.settings()).filter(|_| !waits_longer);
        let timeout = self.link.attach_timeout(assumed_ttl, leases);
        let own = self.leases.iter().map(|entry| entry.settings().ttl()).max().unwrap_or_default();
        let assumed = if self.knowledge.has_recent_ttls(now) { Duration::ZERO } else { self.config.assumed_ttl };
        let request = AttachRequest {
            memory: self.knowledge.memory().cloned(),
            max_ttl: own.max(assumed),
            observer: self.config.observer,
            bootstrap: self.config.bootstrap,
            durable: self.config.durable,
            timeout: timeout.mul_f64(0.75),
            ..AttachRequest::new(self.rng.u64(..))
        };
        let (link, request) = (self.link.begin_attach(), Box::new(request));
        self.outputs.push(Output::Attach { link, request, timeout });
    }

    // Commands of callers.

    /// Acquires a lease for a caller, which gets [`Output::Granted`] or [`Output::Refused`].
    pub fn acquire(&mut self, now: Now, request: AcquireRequest) {
        let waiter = request.waiter;
        let refusal = match () {
            () if self.is_shutting_down => Some(AcquireRefusal::ShutDown),
            () if self.config.observer => Some(AcquireRefusal::Observer),
            () => None,
        };
        if let Some(refusal) = refusal {
            self.outputs.push(Output::Refused { waiter, refusal });
            return;
        }
        if let Some(at) = request.timeout.map(|timeout| now.moment + timeout).filter(|at| *at != Moment::END) {
            self.waiters.limit(waiter, at);
        }
        let sibling = self.leases.find(&request.name);
        // A term that is being released is as good as unheld.
        let is_leaving = sibling
            .and_then(|id| self.leases.peek(id))
            .is_some_and(|entry| entry.waiter.is_none() && entry.lease.token().is_none());
        match (sibling, request.mode) {
            (None, _) => self.drive(now, Waiter::new(request)),
            (Some(_), AcquireMode::Try) if !is_leaving => {
                let refusal = AcquireRefusal::Held { holder: self.config.instance.clone(), remaining: None };
                self.outputs.push(Output::Refused { waiter, refusal });
            }
            (Some(_), _) => {
                let mut waiter = Waiter::new(request);
                let status = AcquireStatus::Held { holder: self.config.instance.clone() };
                self.outputs.extend(waiter.update_status(status));
                self.waiters.queue(waiter);
            }
        }
    }

    /// Ends the wait of a caller. A term that is granted meanwhile is released.
    pub fn give_up(&mut self, now: Now, waiter: WaiterId) {
        self.withdraw(now, waiter);
    }

    /// Applies what a holder intends for its lease.
    pub fn apply_intent(&mut self, now: Now, id: LeaseId, intent: Intent) {
        let Some(entry) = self.leases.get(id) else { return };
        entry.release_reason = Some(match &intent {
            Intent::Release(reason) | Intent::Drain(reason) | Intent::DrainTo(_, reason) => *reason,
            Intent::HandOver(_) => ReleaseReason::HandedOver,
        });
        let drains = matches!(intent, Intent::Drain(_) | Intent::DrainTo(..));
        self.step(now, id, Input::Intent(intent));
        if drains && let Some(entry) = self.leases.peek(id) {
            if entry.has_begun() {
                self.outputs.push(Output::Drain { lease: id });
            } else {
                self.work_ended(now, id);
            }
        }
    }

    /// Records that none of the work of a term is running.
    pub fn work_ended(&mut self, now: Now, id: LeaseId) {
        if let Some(entry) = self.leases.get(id) {
            if entry.is_stopped {
                entry.demoted = entry.demoted.min(now.moment);
            }
            self.step(now, id, Input::WorkEnded);
        }
    }

    /// Records that the work of a term has made progress.
    pub fn progress(&mut self, now: Now, id: LeaseId) {
        self.step(now, id, Input::Progress);
    }

    /// Sends a request on behalf of a caller, which gets [`Output::Replied`].
    pub fn call(&mut self, now: Now, call: StoreCall) {
        let failed = self.outbox.call(now.moment, call);
        self.outputs.extend(failed);
    }

    /// Joins the fleet, or changes the record of this instance.
    pub fn join_fleet(&mut self, heartbeat: Arc<Heartbeat>, every: Duration) {
        self.heartbeat_timer = Some(HeartbeatTimer::new(heartbeat, every));
    }

    /// Leaves the fleet.
    pub fn leave_fleet(&mut self, now: Moment) {
        let timer = self.heartbeat_timer.take();
        let leave = timer.map(|heartbeat_timer| heartbeat_timer.leave_request(&self.config.instance));
        self.outbox.send_unawaited(now, leave);
    }

    /// Emits an event of the program.
    pub fn emit(&mut self, event: Event) {
        self.outputs.push(Output::Emit(event));
    }

    /// Announces an event to the whole fleet.
    pub fn announce_event(&mut self, now: Moment, event: &FleetEvent) {
        self.outbox.note(now, Request::Announce(Announcement::Event { event: event.encode() }));
    }

    /// Releases all leases and refuses all waiters, from now on.
    pub fn shut_down(&mut self, now: Now) {
        self.is_shutting_down = true;
        self.leave_fleet(now.moment);
        self.refuse_queued(&AcquireRefusal::ShutDown);
        for id in self.leases.ids() {
            let Some(entry) = self.leases.get(id) else { continue };
            if let Some(waiter) = entry.waiter.take() {
                self.refuse_waiter(waiter.request.waiter, AcquireRefusal::ShutDown);
            }
            let leave = self.leases.take_heartbeat(id).map(|heartbeat| heartbeat.leave_request(&self.config.instance));
            self.outbox.send_unawaited(now.moment, leave);
            self.apply_intent(now, id, Intent::Release(ReleaseReason::Shutdown));
        }
    }

    /// Ends when everything is released. No command can come any more, and every term was given back.
    pub fn close(&mut self) {
        self.is_shutting_down = true;
    }

    // Time.

    /// Does everything that is due.
    pub fn check_timers(&mut self, now: Now) {
        // Collect everything due first: a lease that is due again at once waits for the next round.
        let due: Vec<(Moment, LeaseId)> = std::iter::from_fn(|| self.wake_ups.pop_due(now.moment)).collect();
        for (at, id) in due {
            let Some(entry) = self.leases.get(id) else { continue };
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
        let failed = self.outbox.give_up_calls(now.moment, self.attach_error.as_ref());
        self.outputs.extend(failed);
        while let Some(waiter) = self.waiters.pop_timed_out(now.moment) {
            self.time_out(now, waiter);
        }
        if self.outbox.is_online() {
            self.outbox.send_due_notes(now.moment);
            let (timer, instance) = (self.heartbeat_timer.as_mut(), &self.config.instance);
            let beat = timer.and_then(|timer| timer.take_due(now.moment, instance, &mut self.rng));
            self.outbox.send_unawaited(now.moment, beat);
            if now.moment >= self.knowledge.refresh_at() {
                self.refresh_ttls(now.moment);
            }
        }
    }

    fn time_out(&mut self, now: Now, waiter: WaiterId) {
        let lease = self.waiters.active_lease(waiter).and_then(|id| self.leases.peek(id));
        let status = lease.and_then(|entry| entry.lease.acquire_status());
        let Some(request) = self.withdraw(now, waiter) else { return };
        let (holder, why) = match status {
            Some(AcquireStatus::Held { holder }) => (Some(holder), None),
            Some(AcquireStatus::Blocked { why }) => (None, why),
            _ => (None, None),
        };
        let because = self.attach_error.clone().or(why.map(|why| StoreError::new(ErrorKind::Unavailable, why)));
        let waited = request.timeout.unwrap_or_default();
        self.outputs.push(Output::Refused { waiter, refusal: AcquireRefusal::TimedOut { waited, holder, because } });
    }

    /// Asks for the ttls that are relied on.
    fn refresh_ttls(&mut self, now: Moment) {
        if self.outbox.is_online() {
            self.knowledge.ttls_asked(now);
            self.outbox.send_unawaited(now, [LeaseRequest::InspectNamespace]);
        }
    }

    // Waiters.

    /// Removes a waiter, wherever it is, and gives up on its lease.
    fn withdraw(&mut self, now: Now, waiter: WaiterId) -> Option<AcquireRequest> {
        match self.waiters.withdraw(waiter)? {
            Withdrawn::Queued(waiter) => Some(waiter.request),
            Withdrawn::Active(id) => {
                let waiter = self.leases.get(id)?.waiter.take()?;
                self.apply_intent(now, id, Intent::Release(ReleaseReason::Voluntary));
                Some(waiter.request)
            }
        }
    }

    /// Refuses all waiters that are queued behind another caller of this process.
    fn refuse_queued(&mut self, refusal: &AcquireRefusal) {
        for waiter in self.waiters.take_queued() {
            self.refuse_waiter(waiter.request.waiter, refusal.clone());
        }
    }

    /// Refuses the waiter of a lease, and gives up on the lease.
    fn refuse(&mut self, now: Now, id: LeaseId, refusal: AcquireRefusal) {
        let waiter = self.leases.peek(id).and_then(|entry| entry.waiter.as_ref());
        if let Some(waiter) = waiter.map(|waiter| waiter.request.waiter)
            && self.withdraw(now, waiter).is_some()
        {
            self.outputs.push(Output::Refused { waiter, refusal });
        }
    }

    fn refuse_waiter(&mut self, waiter: WaiterId, refusal: AcquireRefusal) {
        self.waiters.forget(waiter);
        self.outputs.push(Output::Refused { waiter, refusal });
    }

    fn emit_kind(&mut self, kind: EventKind) {
        self.outputs.push(Output::Emit(Event {
            instance: self.config.instance.clone(),
            lease: None,
            token: None,
            kind,
        }));
    }

    /// The driven lease of a name.
    fn find(&self, name: &LeaseName) -> Option<LeaseId> {
        self.leases.find(name)
    }
}

#[cfg(test)]
mod tests;
