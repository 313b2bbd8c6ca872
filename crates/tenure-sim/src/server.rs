//! The store's side: the ledger behind connections, with its own clock and a disk that may lag.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::ledger::{Ledger, ServerInfo};
use tenure_core::store::{
    Announcement, DocumentRequest, Generation, LeaseRequest, Lineage, Quarantine, RecordedEnd, Reply, Request,
    ServerRun,
};
use tenure_core::{InstanceId, Token};

use crate::clock::SimServerClock;
use crate::faults::DataSurvival;
use crate::names::NameTable;
use crate::network::{ConnectionId, Packet};
use crate::observation::{LeaseIndex, Observation, ProcessId, TermId};
use crate::timeline::SimTime;
use crate::validity::{MAX_CLOCK_DRIFT_FACTOR, ValidityTracker};

/// Uptime of the server when the world begins.
const INITIAL_UPTIME: Duration = Duration::from_secs(3_600);

/// The simulated store.
#[derive(Debug)]
pub struct SimServer {
    clock: SimServerClock,
    ledger: Ledger,
    run: u128,
    started: Option<SimTime>,
    up: bool,
    connections: BTreeMap<ConnectionId, AttachedProcess>,
    on_disk: Ledger,
    backup: Ledger,
    validity: ValidityTracker,
    /// The longest time that the quarantine may last.
    max_quarantine: Duration,
    /// Time up to which the data is current: the last start, the last flush, or the time of the restored copy.
    data_as_of: SimTime,
    synced_at: SimTime,
    backed_up_at: SimTime,
    data_losses: u32,
    /// The number of histories that the data has had.
    lineages: u128,
    /// Whether the data was replaced and no process has attached since.
    is_replaced: bool,
    /// The time of the older data that has replaced the store's, until the quarantine that follows is over.
    rolled_back_to: Option<SimTime>,
    clock_stepped: bool,
    was_bootstrapped: bool,
    /// Whether a process has attached to this run.
    has_served: bool,
    /// The last observed term of each lease, kept by the observer and not by the store.
    last_granted: BTreeMap<LeaseIndex, (InstanceId, Token)>,
}

#[derive(Debug)]
struct AttachedProcess {
    process: ProcessId,
    generation: Generation,
}

/// Packets to send and observations to record.
#[derive(Debug, Default)]
pub struct ServerOutput {
    /// Packets to send.
    pub packets: Vec<(ProcessId, ConnectionId, Packet)>,
    /// Observations to record.
    pub observations: Vec<Observation>,
}

impl SimServer {
    /// Creates an empty store.
    pub fn new(clock: SimServerClock, ledger: Ledger) -> Self {
        Self {
            clock,
            on_disk: ledger.clone(),
            backup: ledger.clone(),
            ledger,
            run: 1,
            started: None,
            up: true,
            connections: BTreeMap::new(),
            validity: ValidityTracker::default(),
            max_quarantine: Duration::ZERO,
            data_as_of: SimTime::default(),
            synced_at: SimTime::default(),
            backed_up_at: SimTime::default(),
            data_losses: 0,
            lineages: 0,
            is_replaced: false,
            rolled_back_to: None,
            clock_stepped: false,
            was_bootstrapped: false,
            has_served: false,
            last_granted: BTreeMap::new(),
        }
    }

    /// Handles a packet.
    pub fn receive(
        &mut self,
        now: SimTime,
        from: ProcessId,
        connection: ConnectionId,
        packet: Packet,
        names: &NameTable,
        out: &mut ServerOutput,
    ) {
        if !self.up {
            out.packets.push((from, connection, Packet::Reset));
            return;
        }
        match packet {
            Packet::Attach(request) => {
                let others = self.connections.keys().filter(|id| **id != connection);
                let facts = ServerInfo {
                    now: self.clock.read(now),
                    run: ServerRun(self.run),
                    uptime: self.started.map_or(INITIAL_UPTIME, |started| now.since(started)),
                    subscribers: others.count(),
                    has_served: self.has_served,
                };
                let mut announcements = Vec::new();
                let attached = self.ledger.attach(&facts, &request, &mut announcements);
                // A process without memory starts a quarantine of a lost namespace for the longest ttl that it assumes,
                // if at all.
                let handles_loss = attached.minted || attached.began_quarantine;
                let newcomer = handles_loss && request.memory.is_none() && self.was_bootstrapped;
                if newcomer && attached.quarantine_remaining() < self.validity.longest_remaining(now) {
                    out.observations.push(Observation::BootstrappedTooSoon);
                }
                // The data does not show a grant that is newer, and the process may not have heard of its ttl.
                let lost = self.validity.longest_remaining_since(now, self.data_as_of);
                if handles_loss && attached.quarantine_remaining() < lost {
                    out.observations.push(Observation::LostGrantUnknown);
                }
                let high_water = request.memory.as_ref().map(|memory| memory.high_water);
                out.observations.push(Observation::Attached { high_water });
                self.was_bootstrapped = true;
                self.has_served = true;
                self.is_replaced = false;
                // The memory of the process and the data of the store may both be out of date.
                let age = request.memory.as_ref().map_or(Duration::ZERO, |memory| facts.now.since(memory.as_of()));
                let remembered_at = now.earlier_by(age.mul_f64(MAX_CLOCK_DRIFT_FACTOR));
                let since = remembered_at.min(self.data_as_of);
                let strictly = self.data_losses <= 1;
                let counted = self.validity.longest_counted_ttl(since, strictly).max(request.max_ttl);
                self.max_quarantine = self.max_quarantine.max(counted);
                self.observe_quarantine(now, out);
                announcements.iter().for_each(|announcement| self.announce(announcement, out));
                self.connections.insert(connection, AttachedProcess { process: from, generation: attached.generation });
                out.packets.push((from, connection, Packet::Attached(attached)));
            }
            Packet::Request(number, request) => match self.connections.get(&connection) {
                Some(peer) => {
                    let generation = peer.generation;
                    let reply = self.apply(now, from, generation, &request, names, out);
                    out.packets.push((from, connection, Packet::Reply(number, reply)));
                }
                None => out.packets.push((from, connection, Packet::Reset)),
            },
            Packet::Reset => {
                if self.connections.get(&connection).is_some_and(|peer| peer.process == from) {
                    self.connections.remove(&connection);
                }
            }
            Packet::Attached(_) | Packet::Reply(..) | Packet::Announcement(_) => {}
        }
    }

    /// Writes the current data to the disk.
    pub fn sync_disk(&mut self, now: SimTime) {
        self.synced_at = self.written_at(now);
        self.on_disk = self.ledger.clone();
    }

    /// Time up to which the data is current. Restored data stays old until a process attaches.
    fn written_at(&self, now: SimTime) -> SimTime {
        if self.has_served && !self.is_replaced { now } else { self.data_as_of }
    }

    /// Makes a backup.
    pub fn make_backup(&mut self, now: SimTime) {
        self.backed_up_at = self.written_at(now);
        self.backup = self.ledger.clone();
    }

    /// Stops the server. `survival` decides how much of its data is left at the next start.
    pub fn stop(&mut self, now: SimTime, survival: DataSurvival, out: &mut ServerOutput) {
        self.data_as_of = match survival {
            DataSurvival::All => self.written_at(now),
            DataSurvival::AllButLastWrites => {
                self.ledger = self.on_disk.clone();
                self.synced_at
            }
            DataSurvival::Backup => {
                self.ledger = self.backup.clone();
                self.backed_up_at
            }
            DataSurvival::Nothing => {
                self.ledger.flush();
                now
            }
        };
        self.data_losses += u32::from(survival != DataSurvival::All);
        self.up = false;
        for (id, peer) in std::mem::take(&mut self.connections) {
            out.packets.push((peer.process, id, Packet::Reset));
        }
    }

    /// Starts the server again.
    pub fn start(&mut self, now: SimTime) {
        if !self.up {
            self.up = true;
            self.run += 1;
            self.started = Some(now);
            self.has_served = false;
            self.on_disk = self.ledger.clone();
            self.synced_at = self.data_as_of;
        }
    }

    /// Returns whether the server is running.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Deletes all data.
    pub fn flush(&mut self, now: SimTime) {
        self.data_as_of = now;
        self.data_losses += 1;
        self.ledger.flush();
    }

    /// Replaces the data by an older copy from another server, without a restart: connections stay.
    pub fn replace_data(&mut self) {
        self.data_as_of = self.synced_at;
        self.data_losses += 1;
        self.ledger.restore(self.on_disk.clone());
        self.lineages += 1;
        self.is_replaced = true;
        self.rolled_back_to = Some(self.synced_at);
        self.ledger.set_lineage(Lineage { id: self.lineages, before: Some(self.lineages) });
        self.on_disk = self.ledger.clone();
    }

    /// Evicts the record of a lease's last term.
    pub fn evict_term(&mut self, lease: LeaseIndex, names: &NameTable) {
        self.ledger.evict_term(names.name(lease));
    }

    /// Evicts the namespace record.
    pub fn evict_namespace(&mut self, now: SimTime) {
        self.data_as_of = now;
        self.data_losses += 1;
        self.ledger.evict_namespace();
    }

    /// Removes what is known of a lease, if its last term began this long ago.
    pub fn forget(&mut self, now: SimTime, lease: LeaseIndex, idle_for: Duration, names: &NameTable) {
        let (name, logs, document) = (names.name(lease).clone(), Vec::new(), None);
        let request = LeaseRequest::Forget { name, logs, idle_for, document };
        let generations = self.connections.values().map(|peer| peer.generation);
        let generation = generations.max_by_key(|generation| generation.number).unwrap_or_default();
        self.ledger.apply(self.clock.read(now), generation, &request.into(), &mut Vec::new());
    }

    /// Steps the server's clock.
    pub fn step_clock(&mut self, micros: i64) {
        self.clock_stepped = true;
        self.validity.record_clock_step();
        self.clock.step(micros);
    }

    /// The longest ttl that a quarantine may still wait for.
    pub fn longest_counted_ttl(&self, now: SimTime) -> Duration {
        self.validity.longest_counted_ttl(now, false).max(self.ledger.report(self.clock.read(now)).max_ttl)
    }

    /// Remaining time of the quarantine.
    pub fn quarantine_remaining(&self, now: SimTime) -> Duration {
        let quarantine = self.ledger.report(self.clock.read(now)).quarantine;
        quarantine.map_or(Duration::ZERO, |quarantine| quarantine.remaining)
    }

    /// Deletes a lease as a foreign program would.
    pub fn delete(&mut self, lease: LeaseIndex, names: &NameTable) {
        self.ledger.delete_foreign(names.name(lease));
    }

    /// The holder of a lease.
    pub fn holder(&self, now: SimTime, lease: LeaseIndex, names: &NameTable) -> Option<ProcessId> {
        let (holder, _) = self.ledger.holder_of(self.clock.read(now), names.name(lease))?;
        names.process_of(&holder)
    }

    fn apply(
        &mut self,
        now: SimTime,
        from: ProcessId,
        generation: Generation,
        request: &Request,
        names: &NameTable,
        out: &mut ServerOutput,
    ) -> Reply {
        let time = self.clock.read(now);
        let lease = names.lease_of(request);
        let before = lease.and_then(|lease| self.ledger.holder_of(time, names.name(lease)));
        let mut announcements = Vec::new();
        let reply = self.ledger.apply(time, generation, request, &mut announcements);
        if let Some(lease) = lease {
            let held_after = self.ledger.holder_of(time, names.name(lease)).is_some();
            self.observe(now, lease, from, request, &reply, before, held_after, names, out);
        }
        if matches!(request, Request::Lease(LeaseRequest::Acquire { .. })) {
            self.observe_quarantine(now, out);
        }
        for announcement in announcements {
            self.announce(&announcement, out);
        }
        reply
    }

    /// Records what a request did, by comparing the store's state before and after and not by the reply.
    #[expect(clippy::too_many_arguments, reason = "one look at one request, from every side")]
    fn observe(
        &mut self,
        now: SimTime,
        lease: LeaseIndex,
        process: ProcessId,
        request: &Request,
        reply: &Reply,
        before: Option<(InstanceId, Option<Token>)>,
        held_after: bool,
        names: &NameTable,
        out: &mut ServerOutput,
    ) {
        let term = |token| TermId { process, lease, token };
        let current = before.as_ref().and_then(|(_, token)| *token);
        // The same token with another holder is another term, which must not exist.
        let mut granted = |process, holder: &InstanceId, token| {
            let term = (holder.clone(), token);
            let is_new = self.last_granted.insert(lease, term.clone()) != Some(term);
            is_new.then_some(Observation::Granted(TermId { process, lease, token }))
        };
        match (request, reply) {
            (
                Request::Lease(LeaseRequest::Acquire { claim, .. } | LeaseRequest::TakeOver { claim, .. }),
                Reply::Granted(grant),
            ) => {
                let begun = granted(process, &claim.holder, grant.token);
                self.validity.record_extension(now, lease, grant.token, claim.ttl);
                let ended = grant.previous.as_ref().map(|previous| previous.ended);
                if begun.is_some() && ended == Some(RecordedEnd::TakenOver) {
                    out.observations.push(Observation::Transferred { handed_over: false });
                }
                out.observations.extend(begun);
            }
            (Request::Lease(LeaseRequest::HandOver { holding, to, window }), Reply::HandedOver { token }) => {
                out.observations.push(Observation::RequestApplied { term: term(holding.token), current, ended: true });
                out.observations.push(Observation::Transferred { handed_over: true });
                out.observations.extend(names.process_of(to).and_then(|process| granted(process, to, *token)));
                let ttl = self.validity.ttl(lease, holding.token).unwrap_or_default();
                self.validity.record_extension(now, lease, *token, ttl.max(*window));
                self.validity.record_release(now, lease, holding.token);
            }
            (Request::Lease(LeaseRequest::Renew { holding, ttl, .. }), Reply::Renewed { .. }) => {
                self.validity.record_extension(now, lease, holding.token, *ttl);
                out.observations.push(Observation::RequestApplied { term: term(holding.token), current, ended: false });
            }
            (Request::Lease(LeaseRequest::Release { holding, .. }), Reply::Done)
                if current.is_some() && !held_after =>
            {
                self.validity.record_release(now, lease, holding.token);
                out.observations.push(Observation::RequestApplied { term: term(holding.token), current, ended: true });
            }
            (Request::Document(DocumentRequest::Publish { holding, .. }), Reply::Done) => {
                let is_current = before == Some((holding.holder.clone(), Some(holding.token)));
                // A clock that is set back extends leases.
                let is_alive =
                    self.clock_stepped || self.validity.is_alive(now, lease, holding.token, self.rolled_back_to);
                out.observations.push(Observation::Published { term: term(holding.token), is_current, is_alive });
            }
            (Request::Lease(LeaseRequest::Revoke { .. }), Reply::Done) => {
                out.observations.push(Observation::Revoked(lease))
            }
            _ => {}
        }
    }

    fn observe_quarantine(&mut self, now: SimTime, out: &mut ServerOutput) {
        if self.is_replaced {
            // Nothing is granted before a process has attached to the new data.
            return;
        }
        match self.ledger.report(self.clock.read(now)).quarantine {
            Some(Quarantine { remaining, .. }) => {
                self.validity.record_quarantine(self.max_quarantine, now + remaining);
                out.observations.push(Observation::Quarantined { remaining, at_most: self.max_quarantine });
            }
            None => {
                // The cause of the quarantine is over, whatever the data was restored from.
                self.max_quarantine = Duration::ZERO;
                self.data_as_of = now;
                self.rolled_back_to = None;
            }
        }
    }

    fn announce(&self, announcement: &Announcement, out: &mut ServerOutput) {
        for (id, peer) in &self.connections {
            out.packets.push((peer.process, *id, Packet::Announcement(announcement.clone())));
        }
    }
}
