//! The store's side: the ledger behind connections, with a clock of its own and a disk that may lag.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::Token;
use tenure::store::{
    Announcement, Ended, Generation, Ledger, Quarantine, QuarantineReason, Reply, Request, Server as ServerFacts,
    ServerRun,
};

use crate::clock::ServerClock;
use crate::directory::Directory;
use crate::faults::Survival;
use crate::observation::{LeaseId, Observation, ProcessId, TermId};
use crate::timeline::TrueTime;
use crate::wire::{ConnectionId, Packet};

/// How long the server has been running when the world begins.
const FIRST_UPTIME: Duration = Duration::from_secs(3_600);

/// The simulated store.
#[derive(Debug)]
pub struct Server {
    /// Its clock.
    pub clock: ServerClock,
    ledger: Ledger,
    run: u128,
    started: Option<TrueTime>,
    up: bool,
    connections: BTreeMap<ConnectionId, Peer>,
    on_disk: Ledger,
    backup: Ledger,
    longest_ttl: Duration,
    was_founded: bool,
    flushed_since_start: bool,
    /// Whether this run was entered before.
    has_served: bool,
    /// The last term seen of each lease, kept by the observer and not by the store.
    last_granted: BTreeMap<LeaseId, Token>,
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
    pub fn new(clock: ServerClock, ledger: Ledger, longest_ttl: Duration) -> Self {
        Self {
            clock,
            on_disk: ledger.clone(),
            backup: ledger.clone(),
            ledger,
            run: 1,
            started: None,
            up: true,
            connections: BTreeMap::new(),
            longest_ttl,
            was_founded: false,
            flushed_since_start: false,
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
                // A newcomer closes a namespace that was lost for the longest ttl that it knows of, if at all.
                // What was lost by the restart was granted before it; what was flushed since was not.
                let by_restart =
                    entered.began_because() == Some(QuarantineReason::ServerTooYoung) && !self.flushed_since_start;
                let covered = entered.quarantined_for() + if by_restart { facts.uptime } else { Duration::ZERO };
                let newcomer = entered.minted && entry.memory.is_none() && self.was_founded;
                if newcomer && covered < self.longest_ttl {
                    out.seen.push(Observation::FoundedTooSoon);
                }
                self.was_founded = true;
                self.has_served = true;
                self.observe_closed(now, out);
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
    pub fn sync_disk(&mut self) {
        self.on_disk = self.ledger.clone();
    }

    /// A backup is made.
    pub fn make_backup(&mut self) {
        self.backup = self.ledger.clone();
    }

    /// Stops the server, which is going to have this much of its data when it starts again.
    pub fn stop(&mut self, survival: Survival, out: &mut Output) {
        match survival {
            Survival::All => {}
            Survival::AllButTheLastWrites => self.ledger = self.on_disk.clone(),
            Survival::Backup => self.ledger = self.backup.clone(),
            Survival::Nothing => self.ledger.flush(),
        }
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
            self.flushed_since_start = false;
            self.has_served = false;
            self.on_disk = self.ledger.clone();
        }
    }

    /// Whether it is running.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Forgets everything.
    pub fn flush(&mut self) {
        self.flushed_since_start = true;
        self.ledger.flush();
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
            let current = before.and_then(|(_, token)| token);
            let held_after = self.ledger.holder_of(time, directory.name(lease)).is_some();
            self.observe(lease, from, request, &reply, current, held_after, directory, out);
        }
        if matches!(request, Request::Acquire { .. }) {
            self.observe_closed(now, out);
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
        lease: LeaseId,
        process: ProcessId,
        request: &Request,
        reply: &Reply,
        current: Option<Token>,
        held_after: bool,
        directory: &Directory,
        out: &mut Output,
    ) {
        let term = |token| TermId { process, lease, token };
        let mut granted = |process, token| {
            let news = self.last_granted.insert(lease, token) != Some(token);
            news.then_some(Observation::Granted(TermId { process, lease, token }))
        };
        match (request, reply) {
            (_, Reply::Granted(grant)) => {
                let begun = granted(process, grant.token);
                let ended = grant.previous.as_ref().map(|previous| previous.ended);
                if begun.is_some() && ended == Some(Ended::TakenOver) {
                    out.seen.push(Observation::PassedOn { handed_over: false });
                }
                out.seen.extend(begun);
            }
            (Request::HandOver { holding, to, .. }, Reply::HandedOver { token }) => {
                out.seen.push(Observation::Touched { term: term(holding.token), current, ended: true });
                out.seen.push(Observation::PassedOn { handed_over: true });
                out.seen.extend(directory.process(to).and_then(|to| granted(to, *token)));
            }
            (Request::Renew { holding, .. }, Reply::Renewed { .. }) => {
                out.seen.push(Observation::Touched { term: term(holding.token), current, ended: false });
            }
            (Request::Release { holding, .. }, Reply::Done) if current.is_some() && !held_after => {
                out.seen.push(Observation::Touched { term: term(holding.token), current, ended: true });
            }
            (Request::Publish { holding, .. }, Reply::Done) => {
                out.seen.push(Observation::Published(term(holding.token)))
            }
            (Request::Revoke { .. }, Reply::Done) => out.seen.push(Observation::Revoked(lease)),
            _ => {}
        }
    }

    fn observe_closed(&self, now: TrueTime, out: &mut Output) {
        if let Some(Quarantine { remaining, .. }) = self.ledger.report(self.clock.read(now)).quarantine {
            out.seen.push(Observation::Closed { remaining, max_ttl: self.longest_ttl });
        }
    }

    fn announce(&self, announcement: &Announcement, out: &mut Output) {
        for (id, peer) in &self.connections {
            out.packets.push((peer.process, *id, Packet::Announcement(announcement.clone())));
        }
    }
}
