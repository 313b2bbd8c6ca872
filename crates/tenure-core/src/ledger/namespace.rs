//! Attaching: checks whether the store's data is the data that the instance knew.

use std::time::Duration;

use crate::mutation::Mutation;
use crate::time::ServerTime;
use crate::token::Token;

use super::{Ledger, LiveTtls, Namespace, QuarantineRecord, ServerInfo};
use crate::store::{
    Announcement, AttachRequest, Attached, Generation, Lineage, Quarantine, QuarantineReason, Reply, ServerRun,
};

impl Ledger {
    /// Attaches to the namespace, as every connection does first.
    pub fn attach(
        &mut self,
        server: &ServerInfo,
        request: &AttachRequest,
        announcements: &mut Vec<Announcement>,
    ) -> Attached {
        if request.observer {
            return self.observe(server);
        }
        let now = server.now;
        let found = self.take_namespace(request);
        let begun = self.detect_loss(server, request, found.as_ref());
        let minted = found.is_none() || begun.is_some_and(|(reason, _)| reason == QuarantineReason::OlderGeneration);
        let rolled_back = found.as_ref().is_some_and(|record| has_rolled_back(now, record, request));
        let begun =
            begun.filter(|_| !self.mutations.has(Mutation::NoQuarantine)).map(|(reason, length)| QuarantineRecord {
                // A server without data lost it when it started.
                until: if reason == QuarantineReason::ServerTooYoung {
                    now + (length - server.uptime)
                } else {
                    now + length
                },
                length,
                reason,
                informed: request.memory.is_some(),
            });
        let kept = found.as_ref().and_then(|record| ongoing_quarantine(server, record, request));
        let was_until = found.as_ref().and_then(|record| Some(now + record.quarantine(now)?.remaining));
        let quarantine = begun.into_iter().chain(kept).max_by_key(|quarantine| quarantine.until);
        // The operator's word holds until there is another loss.
        let reopened = found.as_ref().and_then(|record| record.quarantine).filter(|_| !minted && begun.is_none());
        let reopened = reopened.filter(|quarantine| quarantine.is_reopened());
        if !minted && was_until > quarantine.map(|quarantine| quarantine.until) {
            // Refused waiters wait for the end that the store reported to them.
            announcements.push(Announcement::Reopened);
        }

        let high_water = request.memory.as_ref().map_or(Token::ZERO, |memory| memory.high_water.bounded(now));
        let mut record = found.unwrap_or_else(|| Namespace::new(server.run, self.lineage.id));
        if minted {
            // Minted like a token, so that a newcomer without a memory still exceeds every number that others remember.
            let number = remembered_generation(now, request).saturating_add(1).max(now.as_micros());
            record.generation = Generation { number, stamp: request.stamp };
            // Instances that know of longer leases must attach and lengthen the quarantine.
            announcements.push(Announcement::GenerationMinted { generation: record.generation });
        }
        // An instance that trusts the store to be durable must not hide a restart from those that do not.
        if begun.is_some() || !request.durable {
            record.run = server.run;
        }
        record.lineage = self.lineage.id;
        // Without any lease to wait for there is no quarantine. A record without a length means that it was ended.
        record.quarantine = quarantine.filter(|quarantine| !quarantine.length.is_zero()).or(reopened);
        record.token_floor = record.token_floor.max(high_water);
        if quarantine.is_none() && !self.mutations.has(Mutation::MaxTtlNeverFalls) {
            record.ttls.expire(now);
        }
        let record = self.namespace.insert(record);
        Attached { minted, rolled_back, began_quarantine: begun.is_some(), ..record.to_attached(server, self.lineage) }
    }

    /// Attaches without writing.
    fn observe(&self, server: &ServerInfo) -> Attached {
        let nothing = Namespace::new(server.run, self.lineage.id);
        self.namespace.as_ref().unwrap_or(&nothing).to_attached(server, self.lineage)
    }

    /// Whether holders may rely on leases that the store has lost: the reason, and for how long.
    fn detect_loss(
        &self,
        server: &ServerInfo,
        request: &AttachRequest,
        found: Option<&Namespace>,
    ) -> Option<(QuarantineReason, Duration)> {
        use QuarantineReason as Reason;
        let known = request.known_ttl();
        let Some(record) = found else {
            return match () {
                () if request.memory.is_some() => Some((Reason::RecordMissing, known)),
                () if server.subscribers > 0 => Some((Reason::OthersListening, known)),
                () if server.has_served => Some((Reason::RecordErased, known)),
                () if server.uptime < known && !request.bootstrap => Some((Reason::ServerTooYoung, known)),
                () => None,
            };
        };
        let reason = if record.generation.number < remembered_generation(server.now, request) {
            Reason::OlderGeneration
        } else if record.run != server.run && !request.durable {
            Reason::ServerRestarted
        } else if !self.lineage.is_continuation_of(record.lineage) || self.is_foreign(server.now, record, request) {
            Reason::DataReplaced
        } else if has_rolled_back(server.now, record, request) {
            Reason::TokensWentBack
        } else {
            return None;
        };
        Some((reason, known.max(record.ttls.longest_on_record())))
    }

    /// Whether the record may have come from elsewhere: with a history of its own, or with a generation whose minter
    /// has not waited for our leases. That is so if the generation existed while the store still replied as of ours, or
    /// if it is too young, there is no quarantine, and no operator has ended one.
    fn is_foreign(&self, now: ServerTime, record: &Namespace, request: &AttachRequest) -> bool {
        request.memory.as_ref().is_some_and(|memory| {
            let minted_at = ServerTime::from_micros(record.generation.number);
            let was_there = minted_at <= memory.answered_at();
            let is_reopened = record.quarantine.is_some_and(|quarantine| quarantine.is_reopened());
            let waited = minted_at + request.known_ttl() <= now || record.quarantine(now).is_some() || is_reopened;
            let is_another = record.generation != memory.generation;
            !self.lineage.is_continuation_of(memory.lineage) || is_another && (was_there || !waited)
        })
    }

    /// Ends the quarantine on the operator's authority.
    pub(super) fn reopen(
        &mut self,
        now: ServerTime,
        generation: Generation,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        match &mut self.namespace {
            Some(namespace) if namespace.generation == generation => {
                namespace.quarantine = if namespace.quarantine(now).is_some() {
                    announcements.push(Announcement::Reopened);
                    // Kept without a length: an instance that attaches later and remembers the lost data begins no other.
                    namespace.quarantine.map(|quarantine| QuarantineRecord { length: Duration::ZERO, ..quarantine })
                } else {
                    namespace.quarantine.filter(QuarantineRecord::is_reopened)
                };
                Reply::Done
            }
            _ => Reply::NotAttached,
        }
    }

    /// Takes the record, falsified if a mutation is planted.
    fn take_namespace(&mut self, request: &AttachRequest) -> Option<Namespace> {
        let found = self.namespace.take();
        match (found, &request.memory) {
            (Some(record), Some(memory))
                if self.mutations.has(Mutation::OverwriteNewerGeneration)
                    && record.generation.number > memory.generation.number =>
            {
                Some(Namespace { generation: memory.generation, quarantine: None, ..record })
            }
            (found, _) => found,
        }
    }
}

/// The number of the generation that an instance remembers; 0 if it is implausible.
fn remembered_generation(now: ServerTime, request: &AttachRequest) -> u64 {
    let number = request.memory.as_ref().map_or(0, |memory| memory.generation.number);
    if Token::new(number).is_some_and(|number| number.is_credible(now)) { number } else { 0 }
}

/// Whether the store has lost a token that an instance remembers.
fn has_rolled_back(now: ServerTime, record: &Namespace, request: &AttachRequest) -> bool {
    request.memory.as_ref().is_some_and(|memory| {
        record.generation == memory.generation && record.token_floor < memory.high_water.bounded(now)
    })
}

/// Continues a quarantine when an instance attaches during it. Returns `None` if it is over.
fn ongoing_quarantine(server: &ServerInfo, record: &Namespace, request: &AttachRequest) -> Option<QuarantineRecord> {
    let quarantine = record.quarantine?;
    let remaining = record.quarantine(server.now)?.remaining;
    // Only the server's age was missing, and the operator vouches for it.
    if quarantine.reason == QuarantineReason::ServerTooYoung && request.bootstrap && server.subscribers == 0 {
        return None;
    }
    let known = request.known_ttl();
    let remembers_before = request.memory.as_ref().is_some_and(|memory| {
        let same_data = memory.generation == record.generation && memory.run == server.run;
        !same_data
    });
    let length = if remembers_before && !quarantine.informed {
        // The first instance with a memory replaces what a newcomer could only assume.
        known.max(record.ttls.longest_on_record())
    } else if request.memory.is_some() || !quarantine.informed {
        // A longer lease may have been granted before the quarantine began.
        quarantine.length.max(known)
    } else {
        // An assumption must not overrule an instance with a memory.
        quarantine.length
    };
    // The quarantine keeps its start: leases from before were granted before it.
    let remaining = (remaining + length).saturating_sub(quarantine.length);
    let informed = quarantine.informed || remembers_before;
    (!remaining.is_zero()).then(|| QuarantineRecord { until: server.now + remaining, length, informed, ..quarantine })
}

impl Namespace {
    /// An empty record.
    fn new(run: ServerRun, lineage: u128) -> Self {
        let (ttls, token_floor) = (LiveTtls::default(), Token::ZERO);
        Self { generation: Generation::default(), run, lineage, quarantine: None, ttls, token_floor }
    }

    /// The record as seen by an attaching instance that changes nothing.
    fn to_attached(&self, server: &ServerInfo, lineage: Lineage) -> Attached {
        Attached {
            generation: self.generation,
            minted: false,
            run: server.run,
            lineage,
            server: server.now,
            max_ttl: self.max_ttl(server.now),
            token_floor: self.token_floor,
            rolled_back: false,
            quarantine: self.quarantine(server.now),
            began_quarantine: false,
            publish_error: None,
        }
    }

    /// The quarantine, unless it is over. It never exceeds its length, whatever the server's clock did meanwhile.
    pub(super) fn quarantine(&self, now: ServerTime) -> Option<Quarantine> {
        let QuarantineRecord { until, length, reason, .. } = self.quarantine?;
        let remaining = until.since(now).min(length);
        (!remaining.is_zero()).then_some(Quarantine { remaining, reason })
    }

    /// The longest ttl that can still be relied on. During a quarantine it covers what the quarantine waits for.
    pub(super) fn max_ttl(&self, now: ServerTime) -> Duration {
        let waited_for = self.quarantine.filter(|_| self.quarantine(now).is_some());
        self.ttls.longest(now).max(waited_for.map_or(Duration::ZERO, |quarantine| quarantine.length))
    }
}
