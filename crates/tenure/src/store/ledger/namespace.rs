//! Entering: is this still the store that we knew?

use std::time::Duration;

use crate::flaw::Flaw;
use crate::lease::LONGEST_TTL;
use crate::time::ServerTime;
use crate::token::Token;

use super::{Ledger, Namespace, Server};
use crate::store::{Announcement, Entered, Entry, Generation, QuarantineReason};

impl Ledger {
    /// Enters the namespace, as every connection does first.
    pub fn enter(&mut self, server: &Server, entry: &Entry, announcements: &mut Vec<Announcement>) -> Entered {
        let memory = entry.memory.as_ref();
        let found = self.namespace;
        let known_ttl = memory.map_or(Duration::ZERO, |memory| memory.max_ttl).max(entry.max_ttl).min(LONGEST_TTL);
        let restamp = self.planted.has(Flaw::RestampingGeneration);
        let found = match (found, memory) {
            (Some(record), Some(memory)) if restamp && record.generation.number > memory.generation.number => {
                Some(Namespace { generation: memory.generation, closed_until: None, ..record })
            }
            (found, _) => found,
        };
        let max_ttl = found.map_or(known_ttl, |record| record.max_ttl.max(known_ttl));
        let remembered = memory.map_or(0, |memory| memory.generation.number);
        let rolled_back = match (&found, memory) {
            (Some(record), Some(memory)) if record.generation == memory.generation => {
                record.token_floor < memory.high_water
            }
            _ => false,
        };

        let (minted, closing) = match &found {
            None if memory.is_some() => (true, Some((QuarantineReason::RecordMissing, max_ttl))),
            None if entry.bootstrap => (true, None),
            None if server.listeners > 0 => (true, Some((QuarantineReason::OthersListening, max_ttl))),
            None if server.uptime < max_ttl => {
                (true, Some((QuarantineReason::ServerTooYoung, max_ttl - server.uptime)))
            }
            None => (true, None),
            Some(record) if record.generation.number < remembered => {
                (true, Some((QuarantineReason::OlderGeneration, max_ttl)))
            }
            Some(_) if entry.durable => (false, None),
            Some(record) if record.run != server.run => (false, Some((QuarantineReason::ServerRestarted, max_ttl))),
            Some(_) if rolled_back => (false, Some((QuarantineReason::TokensWentBack, max_ttl))),
            Some(_) => (false, None),
        };

        let generation = match &found {
            Some(record) if !minted => record.generation,
            // Minted like a token, so that a newcomer without memory is still above whoever remembers.
            _ => Generation { number: remembered.saturating_add(1).max(server.now.as_micros()), stamp: entry.stamp },
        };
        // A lease longer than any known so far may have been granted before the namespace was closed.
        let already = found.map_or(Duration::ZERO, |record| {
            let closed = record.closed_for(server.now);
            if closed.is_zero() { closed } else { closed + max_ttl.saturating_sub(record.max_ttl) }
        });
        let closing = closing.filter(|_| !self.planted.has(Flaw::NoQuarantine));
        let closed_for = closing.map_or(Duration::ZERO, |(_, span)| span).max(already);
        let token_floor = found
            .map_or(Token::ZERO, |record| record.token_floor)
            .max(memory.map_or(Token::ZERO, |memory| memory.high_water));
        let closed_until = (!closed_for.is_zero()).then(|| server.now + closed_for);
        self.namespace = Some(Namespace { generation, run: server.run, closed_until, max_ttl, token_floor });
        if minted {
            // Whoever knows of longer leases than we do must come and make the closing longer.
            announcements.push(Announcement::GenerationMinted { generation });
        }
        Entered {
            generation,
            minted,
            run: server.run,
            max_ttl,
            token_floor,
            rolled_back,
            closed_for,
            closing: closing.map(|(why, _)| why),
            silent: None,
        }
    }
}

impl Namespace {
    /// How long nothing is granted: never longer than the longest ttl, whatever the server's clock did meanwhile.
    pub(super) fn closed_for(&self, now: ServerTime) -> Duration {
        self.closed_until.map_or(Duration::ZERO, |until| until.since(now).min(self.max_ttl))
    }
}
