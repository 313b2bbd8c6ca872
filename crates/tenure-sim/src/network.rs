//! The network: it delays, drops, holds back and duplicates packets, and delivers some long after their connection was
//! dropped.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::store::{Announcement, AttachRequest, Attached, Reply, Request};

use crate::timeline::SimTime;

/// One connection of a process to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// A packet.
#[derive(Clone, Debug)]
pub enum Packet {
    /// To the store: attach.
    Attach(AttachRequest),
    /// To the store: a request.
    Request(u64, Request),
    /// From the store: the result of attaching.
    Attached(Attached),
    /// From the store: a reply.
    Reply(u64, Reply),
    /// From the store: a hint.
    Announcement(Announcement),
    /// Either way: the connection is closed.
    Reset,
}

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// To the store.
    ToStore,
    /// From the store.
    FromStore,
}

/// The network between the processes and the store.
#[derive(Debug)]
pub struct Network {
    rng: fastrand::Rng,
    latency: Duration,
    slow: (Duration, SimTime),
    partitioned_until: BTreeMap<(usize, Direction), SimTime>,
    deaf_until: BTreeMap<usize, SimTime>,
    last_delivery: BTreeMap<(ConnectionId, Direction), SimTime>,
}

impl Network {
    /// Creates a network whose packets usually take up to this long.
    pub fn new(rng: fastrand::Rng, latency: Duration) -> Self {
        Self {
            rng,
            latency,
            slow: Default::default(),
            partitioned_until: BTreeMap::new(),
            deaf_until: BTreeMap::new(),
            last_delivery: BTreeMap::new(),
        }
    }

    /// Drops packets of a process until the given time.
    pub fn partition(&mut self, process: usize, direction: Direction, until: SimTime) {
        let end = self.partitioned_until.entry((process, direction)).or_default();
        *end = until.max(*end);
    }

    /// Drops announcements to a process until the given time.
    pub fn deafen(&mut self, process: usize, until: SimTime) {
        let end = self.deaf_until.entry(process).or_default();
        *end = until.max(*end);
    }

    /// Delays every packet until the given time.
    pub fn slow_down(&mut self, delay: Duration, until: SimTime) {
        self.slow = (delay, until);
    }

    /// Ends every fault.
    pub fn heal(&mut self) {
        self.slow = Default::default();
        self.partitioned_until.clear();
        self.deaf_until.clear();
    }

    /// Arrival times of a packet: usually one, sometimes none, rarely two.
    pub fn deliveries(
        &mut self,
        now: SimTime,
        process: usize,
        connection: ConnectionId,
        direction: Direction,
        packet: &Packet,
    ) -> Vec<SimTime> {
        let delay = self.latency.mul_f64(0.1 + 0.9 * self.rng.f64());
        let slow = if now < self.slow.1 { self.slow.0.mul_f64(self.rng.f64()) } else { Duration::ZERO };
        let mut at = now + delay + slow;
        if let Some(&healed) = self.partitioned_until.get(&(process, direction))
            && now < healed
        {
            // Half of the packets that a partition drops are retransmitted once it has healed.
            if matches!(packet, Packet::Announcement(_)) || self.rng.bool() {
                return Vec::new();
            }
            at = healed + delay;
        }
        let is_deaf = self.deaf_until.get(&process).is_some_and(|until| now < *until);
        if matches!(packet, Packet::Announcement(_)) && (self.rng.f64() < 0.1 || is_deaf) {
            return Vec::new();
        }
        // A connection keeps the order of its packets.
        let last = self.last_delivery.entry((connection, direction)).or_default();
        at = at.max(*last);
        *last = at;
        if matches!(packet, Packet::Request(..)) && self.rng.f64() < 0.01 {
            return vec![at, at + self.latency.mul_f64(self.rng.f64() * 400.0)];
        }
        vec![at]
    }
}
