//! The store's side: the ledger behind connections, with a clock of its own and a disk that may lag.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::store::{
    Announcement, Ended, Generation, Ledger, Quarantine, Reply, Request, Server as ServerFacts, ServerRun,
};
use tenure::{InstanceId, Token};

use crate::clock::ServerClock;
use crate::directory::Directory;
use crate::faults::Survival;
use crate::observation::{LeaseId, Observation, ProcessId, TermId};
use crate::reliance::{CLOCKS_OFF, Reliance};
use crate::timeline::TrueTime;
use crate::wire::{ConnectionId, Packet};

/// How long the server has been running when the world begins.
const FIRST_UPTIME: Duration = Duration::from_secs(3_600);

/// The simulated store.
#[derive(Debug)]
pub struct Server {
    clock: ServerClock,
    ledger: Ledger,
    run: u128,
    started: Option<TrueTime>,
    up: bool,
    connections: BTreeMap<ConnectionId, Peer>,
    on_disk: Ledger,
    backup: Ledger,
    reliance: Reliance,
    /// The longest that the quarantine may last.
    quarantine_at_most: Duration,
    /// Since when the data is what it is: the last start, the last flush, or what it was restored from.
    data_as_of: TrueTime,
    synced_at: TrueTime,
    backed_up_at: TrueTime,
    losses: u32,
    clock_was_set: bool,
    was_founded: bool,
    /// Whether this run was entered before.
    has_served: bool,
    /// The last term seen of each lease, kept by the observer and not by the store.
    last_granted: BTreeMap<LeaseId, (InstanceId, Token)>,
}

#[derive(Debug)]
struct Peer {
    process: ProcessId,
    generation: Generation,
}

/// What the server wants sent and what was seen of it.
#[derive(Debug, Default)]
pub struct Output {
    /// Packets to send.
    pub packets: Vec<(ProcessId, ConnectionId, Packet)>,
    /// What was seen.
    pub seen: Vec<Observation>,
}

impl Server {
    /// An empty store.
    pub fn new(clock: ServerClock, ledger: Ledger) -> Self {
        Self {
            clock,
            on_disk: ledger.clone(),
            backup: ledger.clone(),
            ledger,
            run: 1,
            started: None,
            up: true,
            connections: BTreeMap::new(),
            reliance: Reliance::default(),
            quarantine_at_most: Duration::ZERO,
            data_as_of: TrueTime::default(),
            synced_at: TrueTime::default(),
            backed_up_at: TrueTime::default(),
            losses: 0,
            clock_was_set: false,
            was_founded: false,
            has_served: false,
            last_granted: BTreeMap::new(),
        }
    }

    /// Takes in a packet.
    pub fn receive(
        &mut self,
        now: TrueTime,
        from: ProcessId,
        connection: ConnectionId,
        packet: Packet,
        directory: &Directory,
        out: &mut Output,
    ) {
        if !self.up {
            out.packets.push((from, connection, Packet::Reset));
            return;
        }
        match packet {
            Packet::Enter(entry) => {
                let others = self.connections.keys().filter(|id| **id != connection);
                let facts = ServerFacts {
                    now: self.clock.read(now),
                    run: ServerRun(self.run),
                    uptime: self.started.map_or(FIRST_UPTIME, |started| now.since(started)),
                    listeners: others.count(),
                    has_served: self.has_served,
                };
                let mut announcements = Vec::new();
                let entered = self.ledger.enter(&facts, &entry, &mut announcements);
                // A newcomer closes a namespace that was lost for the longest ttl that it assumes, if at all.
                let newcomer = entered.minted && entry.memory.is_none() && self.was_founded;
                if newcomer && entered.quarantined_for() < self.reliance.relied_on_for(now) {
                    out.seen.push(Observation::FoundedTooSoon);
                }
                let high_water = entry.memory.as_ref().map(|memory| memory.high_water);
                out.seen.push(Observation::Entered { high_water });
                self.was_founded = true;
                self.has_served = true;
                // What the process has heard last, and what the data says, may be older than what is so.
                let age = entry.memory.as_ref().map_or(Duration::ZERO, |memory| facts.now.since(memory.as_of()));
                let heard_at = now.earlier_by(age.mul_f64(CLOCKS_OFF));
                let since = heard_at.min(self.data_as_of);
                let strictly = self.losses <= 1;
                let counted = self.reliance.longest_counted(since, strictly).max(entry.max_ttl);
                self.quarantine_at_most = self.quarantine_at_most.max(counted);
                self.observe_quarantine(now, out);
                announcements.iter().for_each(|announcement| self.announce(announcement, out));
                self.connections.insert(connection, Peer { process: from, generation: entered.generation });
                out.packets.push((from, connection, Packet::Entered(entered)));
            }
            Packet::Request(number, request) => match self.connections.get(&connection) {
                Some(peer) => {
                    let generation = peer.generation;
                    let reply = self.carry_out(now, from, generation, &request, directory, out);
                    out.packets.push((from, connection, Packet::Reply(number, reply)));
                }
                None => out.packets.push((from, connection, Packet::Reset)),
            },
            Packet::Reset => {
                if self.connections.get(&connection).is_some_and(|peer| peer.process == from) {
                    self.connections.remove(&connection);
                }
            }
            Packet::Entered(_) | Packet::Reply(..) | Packet::Announcement(_) => {}
        }
    }

    /// The disk catches up.
    pub fn sync_disk(&mut self, now: TrueTime) {
        self.synced_at = self.written_at(now);
        self.on_disk = self.ledger.clone();
    }

    /// Up to when the data is what was so: data that was restored is old until a process enters.
    fn written_at(&self, now: TrueTime) -> TrueTime {
        if self.has_served { now } else { self.data_as_of }
    }

    /// A backup is made.
    pub fn make_backup(&mut self, now: TrueTime) {
        self.backed_up_at = self.written_at(now);
        self.backup = self.ledger.clone();
    }

    /// Stops the server, which is going to have this much of its data when it starts again.
    pub fn stop(&mut self, now: TrueTime, survival: Survival, out: &mut Output) {
        self.data_as_of = match survival {
            Survival::All => self.written_at(now),
            Survival::AllButTheLastWrites => {
                self.ledger = self.on_disk.clone();
                self.synced_at
            }
            Survival::Backup => {
                self.ledger = self.backup.clone();
                self.backed_up_at
            }
            Survival::Nothing => {
                self.ledger.flush();
                now
            }
        };
        self.losses += u32::from(survival != Survival::All);
        self.up = false;
        for (id, peer) in std::mem::take(&mut self.connections) {
            out.packets.push((peer.process, id, Packet::Reset));
        }
    }

    /// Starts the server again.
    pub fn start(&mut self, now: TrueTime) {
        if !self.up {
            self.up = true;
            self.run += 1;
            self.started = Some(now);
            self.has_served = false;
            self.on_disk = self.ledger.clone();
            self.synced_at = self.data_as_of;
        }
    }

    /// Whether it is running.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Forgets everything.
    pub fn flush(&mut self, now: TrueTime) {
        self.data_as_of = now;
        self.losses += 1;
        self.ledger.flush();
    }

    /// Sets its clock.
    pub fn step_clock(&mut self, micros: i64) {
        self.clock_was_set = true;
        self.reliance.clock_was_set();
        self.clock.step(micros);
    }

    /// The longest ttl that anything may still wait for.
    pub fn longest_counted(&self, now: TrueTime) -> Duration {
        self.reliance.longest_counted(now, false).max(self.ledger.report(self.clock.read(now)).max_ttl)
    }

    /// For how long nothing is granted.
    pub fn quarantined_for(&self, now: TrueTime) -> Duration {
        let quarantine = self.ledger.report(self.clock.read(now)).quarantine;
        quarantine.map_or(Duration::ZERO, |quarantine| quarantine.remaining)
    }

    /// Deletes a lease as an outsider would.
    pub fn delete(&mut self, lease: LeaseId, directory: &Directory) {
        self.ledger.delete_foreign(directory.name(lease));
    }

    /// Who holds a lease.
    pub fn holder(&self, now: TrueTime, lease: LeaseId, directory: &Directory) -> Option<ProcessId> {
        let (holder, _) = self.ledger.holder_of(self.clock.read(now), directory.name(lease))?;
        directory.process(&holder)
    }

    fn carry_out(
        &mut self,
        now: TrueTime,
        from: ProcessId,
        generation: Generation,
        request: &Request,
        directory: &Directory,
        out: &mut Output,
    ) -> Reply {
        let time = self.clock.read(now);
        let lease = directory.lease_of(request);
        let before = lease.and_then(|lease| self.ledger.holder_of(time, directory.name(lease)));
        let mut announcements = Vec::new();
        let reply = self.ledger.apply(time, generation, request, &mut announcements);
        if let Some(lease) = lease {
            let held_after = self.ledger.holder_of(time, directory.name(lease)).is_some();
            self.observe(now, lease, from, request, &reply, before, held_after, directory, out);
        }
        if matches!(request, Request::Acquire { .. }) {
            self.observe_quarantine(now, out);
        }
        for announcement in announcements {
            self.announce(&announcement, out);
        }
        reply
    }

    /// Puts down what was done, by what the store held before and after and not by what it says.
    #[expect(clippy::too_many_arguments, reason = "one look at one request, from every side")]
    fn observe(
        &mut self,
        now: TrueTime,
        lease: LeaseId,
        process: ProcessId,
        request: &Request,
        reply: &Reply,
        before: Option<(InstanceId, Option<Token>)>,
        held_after: bool,
        directory: &Directory,
        out: &mut Output,
    ) {
        let term = |token| TermId { process, lease, token };
        let current = before.as_ref().and_then(|(_, token)| *token);
        // The same token for another holder is another term, and one that must not be.
        let mut granted = |process, holder: &InstanceId, token| {
            let term = (holder.clone(), token);
            let news = self.last_granted.insert(lease, term.clone()) != Some(term);
            news.then_some(Observation::Granted(TermId { process, lease, token }))
        };
        match (request, reply) {
            (Request::Acquire { claim, .. } | Request::TakeOver { claim, .. }, Reply::Granted(grant)) => {
                let begun = granted(process, &claim.holder, grant.token);
                self.reliance.extended(now, lease, grant.token, claim.ttl);
                let ended = grant.previous.as_ref().map(|previous| previous.ended);
                if begun.is_some() && ended == Some(Ended::TakenOver) {
                    out.seen.push(Observation::PassedOn { handed_over: false });
                }
                out.seen.extend(begun);
            }
            (Request::HandOver { holding, to, window }, Reply::HandedOver { token }) => {
                out.seen.push(Observation::Touched { term: term(holding.token), current, ended: true });
                out.seen.push(Observation::PassedOn { handed_over: true });
                out.seen.extend(directory.process(to).and_then(|process| granted(process, to, *token)));
                let ttl = self.reliance.ttl(lease, holding.token).unwrap_or_default();
                self.reliance.extended(now, lease, *token, ttl.max(*window));
                self.reliance.released(now, lease, holding.token);
            }
            (Request::Renew { holding, ttl, .. }, Reply::Renewed { .. }) => {
                self.reliance.extended(now, lease, holding.token, *ttl);
                out.seen.push(Observation::Touched { term: term(holding.token), current, ended: false });
            }
            (Request::Release { holding, .. }, Reply::Done) if current.is_some() && !held_after => {
                self.reliance.released(now, lease, holding.token);
                out.seen.push(Observation::Touched { term: term(holding.token), current, ended: true });
            }
            (Request::Publish { holding, .. }, Reply::Done) => {
                let is_current = before == Some((holding.holder.clone(), Some(holding.token)));
                // A clock that is set back makes leases last longer.
                let is_alive = self.clock_was_set || self.reliance.is_alive(now, lease, holding.token);
                out.seen.push(Observation::Published { term: term(holding.token), is_current, is_alive });
            }
            (Request::Revoke { .. }, Reply::Done) => out.seen.push(Observation::Revoked(lease)),
            _ => {}
        }
    }

    fn observe_quarantine(&mut self, now: TrueTime, out: &mut Output) {
        match self.ledger.report(self.clock.read(now)).quarantine {
            Some(Quarantine { remaining, .. }) => {
                self.reliance.quarantined(self.quarantine_at_most, now + remaining);
                out.seen.push(Observation::Quarantined { remaining, at_most: self.quarantine_at_most });
            }
            None => {
                // What began it is over, whatever the data was restored from.
                self.quarantine_at_most = Duration::ZERO;
                self.data_as_of = now;
            }
        }
    }

    fn announce(&self, announcement: &Announcement, out: &mut Output) {
        for (id, peer) in &self.connections {
            out.packets.push((peer.process, *id, Packet::Announcement(announcement.clone())));
        }
    }
}
