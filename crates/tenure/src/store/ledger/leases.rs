//! Leases and terms: the part of a store that decides who may act.

use std::time::Duration;

use super::{LeaseKey, Ledger, Namespace, TermRecord};
use crate::flaw::Flaw;
use crate::lease::{Ending, LONGEST_TTL};
use crate::name::{InstanceId, LeaseName};
use crate::store::{
    Announcement, Ask, Claim, Ended, EntryId, GONE, Generation, Grant, Held, Holding, LeaseReport, LogEntry,
    PreviousTerm, Published, Refusal, Reply,
};
use crate::time::ServerTime;
use crate::token::{Nonce, Token};

impl Ledger {
    pub(super) fn acquire(
        &mut self,
        now: ServerTime,
        generation: Generation,
        claim: &Claim,
        ended: Option<Token>,
    ) -> Reply {
        let namespace = match self.open_namespace(now, generation) {
            Ok(namespace) => namespace,
            Err(gate) => return gate.into(),
        };
        self.clamp_expiry(now, namespace.max_ttl, &claim.name);
        let term = self.terms.get(claim.name.key()).cloned();
        match (self.alive(now, &claim.name), term) {
            (Some(lease), Some(term)) if lease.holder == claim.holder && term.holder == claim.holder => {
                let same = term.nonce == Some(claim.nonce) || term.nonce.is_none();
                if ended == Some(term.token) {
                    // Its process is done with that term: this is a new one, even if a store that went back in time
                    // shows it as an offer not taken up.
                    self.grant(now, namespace, claim, Some(term.closed(Ended::Released)), None)
                } else if same && term.ended == Ended::Silently {
                    // The same claim again, or an offer taken up: the same term, for a whole ttl from now.
                    self.go_on(now, claim, &term)
                } else {
                    Reply::Held(self.held(now, namespace.max_ttl, &claim.name))
                }
            }
            (Some(_), _) => Reply::Held(self.held(now, namespace.max_ttl, &claim.name)),
            (None, Some(term)) if term.nonce == Some(claim.nonce) => Reply::TermOver,
            (None, term) => self.grant(now, namespace, claim, term, None),
        }
    }

    pub(super) fn take_over(
        &mut self,
        now: ServerTime,
        generation: Generation,
        claim: &Claim,
        victim: Token,
        stale_after: Duration,
    ) -> Reply {
        let namespace = match self.open_namespace(now, generation) {
            Ok(namespace) => namespace,
            Err(gate) => return gate.into(),
        };
        let Some(term) = self.terms.get(claim.name.key()).cloned() else {
            return self.acquire(now, generation, claim, None);
        };
        let Some(lease) = self.alive(now, &claim.name) else {
            return self.acquire(now, generation, claim, None);
        };
        let stale = term.idled && now.since(term.progress) >= stale_after;
        if term.token == victim && term.holder == lease.holder && stale {
            // Without a ttl the holder can only have relied on the longest one there is.
            let until = lease.expires.unwrap_or(now + namespace.max_ttl).min(now + namespace.max_ttl);
            let deposed = TermRecord { deposed: Some(victim), ..term.closed(Ended::TakenOver) };
            return self.grant(now, namespace, claim, Some(deposed), Some(until));
        }
        self.acquire(now, generation, claim, None)
    }

    pub(super) fn renew(&mut self, now: ServerTime, holding: &Holding, ttl: Duration, progressed: bool) -> Reply {
        if let Err(refusal) = self.check_taken_up(now, holding) {
            return Reply::Refused(refusal);
        }
        self.raise_max_ttl(ttl);
        self.set_expiry(&holding.name, now + ttl);
        let furthest = now + self.longest_ttl();
        let asked = self.terms.get_mut(holding.name.key()).and_then(|term| {
            if progressed {
                // Whoever has to wait cannot make progress, and must not be deposed for it.
                term.progress = term.wait_out_until.map_or(now, |until| now.max(until.min(furthest)));
            }
            term.idled = !progressed;
            term.asked.clone()
        });
        Reply::Renewed { server: now, max_ttl: self.longest_ttl(), asked }
    }

    pub(super) fn release(
        &mut self,
        now: ServerTime,
        holding: &Holding,
        ending: &Ending,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        match self.check(now, holding) {
            Ok(()) => {}
            // A holder whose term was revoked lets go of what it still occupies.
            Err(Refusal::Revoked) if self.alive(now, &holding.name).is_some_and(|l| l.holder == holding.holder) => {}
            Err(refusal) => {
                let again = self.terms.get(holding.name.key()).is_some_and(|term| {
                    term.token == holding.token && term.holder == holding.holder && term.ended == Ended::Released
                });
                return if again { Reply::Done } else { Reply::Refused(refusal) };
            }
        }
        self.leases.remove(holding.name.key());
        if let Some(term) = self.terms.get_mut(holding.name.key()) {
            term.ended = Ended::Released;
            term.ending = Some(ending.clone());
        }
        announcements.push(Announcement::Released { name: holding.name.clone(), token: holding.token });
        Reply::Done
    }

    pub(super) fn abandon(
        &mut self,
        now: ServerTime,
        name: &LeaseName,
        holder: &InstanceId,
        nonce: Nonce,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        let token = self
            .terms
            .get(name.key())
            .filter(|term| term.nonce == Some(nonce) && term.holder == *holder)
            .map(|term| term.token);
        if let Some(token) = token {
            let holding = Holding { name: name.clone(), holder: holder.clone(), token };
            self.release(now, &holding, &Ending::GivenUp, announcements);
        }
        Reply::Done
    }

    pub(super) fn hand_over(
        &mut self,
        now: ServerTime,
        holding: &Holding,
        to: &InstanceId,
        window: Duration,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        if let Err(refusal) = self.check_taken_up(now, holding) {
            return Reply::Refused(refusal);
        }
        let floor = self.namespace.map_or(Token::ZERO, |namespace| namespace.token_floor);
        let Some(token) = holding.token.next(floor, now.as_micros()) else {
            return Reply::TokensExhausted;
        };
        let ended = self.terms.get(holding.name.key()).map(|term| term.closed(Ended::HandedOver));
        let term = TermRecord::begun(now, token, to.clone(), ended.as_ref());
        self.terms.insert(holding.name.key().to_owned(), term);
        let lease = LeaseKey { holder: to.clone(), expires: Some(now + window) };
        self.leases.insert(holding.name.key().to_owned(), lease);
        self.raise_floor(token);
        announcements.push(Announcement::HandedOver { name: holding.name.clone(), token, to: to.clone() });
        Reply::HandedOver { token }
    }

    pub(super) fn revoke(
        &mut self,
        now: ServerTime,
        name: &LeaseName,
        token: Token,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        let Some(lease) = self.alive(now, name).cloned() else {
            return Reply::Refused(Refusal::Missing);
        };
        match self.terms.get_mut(name.key()) {
            Some(term) if term.holder == lease.holder && term.token == token => {
                // The key stays until its holder lets go or the ttl ends: its work may be running, and only the holder
                // knows. Said again, it changes nothing.
                if term.ended == Ended::Silently {
                    term.ended = Ended::Revoked;
                    term.asked = None;
                    announcements.push(Announcement::Revoked { name: name.clone(), token });
                }
                Reply::Done
            }
            _ => Reply::Refused(Refusal::Taken { by: lease.holder }),
        }
    }

    pub(super) fn ask(
        &mut self,
        now: ServerTime,
        name: &LeaseName,
        token: Token,
        ask: &Ask,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        let Some(lease) = self.alive(now, name).cloned() else {
            return Reply::Refused(Refusal::Missing);
        };
        match self.terms.get_mut(name.key()) {
            Some(term) if term.token == token && term.holder == lease.holder && term.ended == Ended::Silently => {
                term.asked = Some(ask.clone());
                announcements.push(Announcement::Asked { name: name.clone(), token });
                Reply::Done
            }
            Some(_) => Reply::Refused(Refusal::Taken { by: lease.holder }),
            None => Reply::Refused(Refusal::StoreReset),
        }
    }

    pub(super) fn inspect(&self, now: ServerTime, name: &LeaseName) -> Reply {
        let max_ttl = self.namespace.map_or(LONGEST_TTL, |namespace| namespace.max_ttl);
        let term = self.terms.get(name.key());
        Reply::Lease(LeaseReport {
            held: self.alive(now, name).map(|_| self.held(now, max_ttl, name)),
            last: term.map(TermRecord::as_previous),
            since: term.map(|term| term.since),
            ending: term.and_then(|term| term.ending.clone()),
            asked: term.filter(|term| term.ended == Ended::Silently).and_then(|term| term.asked.clone()),
        })
    }

    pub(super) fn holder(&self, now: ServerTime, name: &LeaseName) -> Option<InstanceId> {
        self.alive(now, name).map(|lease| lease.holder.clone())
    }

    pub(super) fn forget(&mut self, now: ServerTime, name: &LeaseName, idle_for: Duration, session: &str) -> Reply {
        if self.alive(now, name).is_some() || self.sessions.contains_key(session) {
            return Reply::InUse;
        }
        let key = name.key();
        if let Some(term) = self.terms.get(key) {
            let waits = term.wait_out_until.is_some_and(|until| until > now);
            // A time in the future is no time ago.
            let idle = now.as_micros().checked_sub(term.since.as_micros()).map(Duration::from_micros);
            let Some(namespace) = self.namespace.as_mut().filter(|_| !waits && idle >= Some(idle_for)) else {
                return Reply::InUse;
            };
            namespace.token_floor = namespace.token_floor.max(term.token);
        }
        if let Some(gone) = self.indexes.get_mut(GONE) {
            gone.remove(session);
        }
        self.leases.remove(key);
        self.terms.remove(key);
        self.records.retain(|(of, _), _| of != key);
        self.logs.retain(|(of, _), _| of != key);
        Reply::Done
    }

    pub(super) fn publish(
        &mut self,
        now: ServerTime,
        holding: &Holding,
        record: &str,
        value: &[u8],
        announcements: Option<&mut Vec<Announcement>>,
    ) -> Reply {
        if let Err(refusal) = self.check_taken_up(now, holding) {
            return Reply::Refused(refusal);
        }
        let published = Published { token: holding.token, at: now, value: value.to_vec() };
        self.records.insert((holding.name.key().to_owned(), record.to_owned()), published);
        if let Some(announcements) = announcements {
            let (name, record, token) = (holding.name.clone(), record.to_owned(), holding.token);
            announcements.push(Announcement::Published { name, record, token });
        }
        Reply::Done
    }

    pub(super) fn read(&self, name: &LeaseName, record: &str) -> Reply {
        Reply::Record(self.records.get(&(name.key().to_owned(), record.to_owned())).cloned())
    }

    pub(super) fn append(
        &mut self,
        now: ServerTime,
        holding: &Holding,
        log: &str,
        value: &[u8],
        kept: usize,
        mark: Option<&(String, Vec<u8>)>,
    ) -> Reply {
        if let Err(refusal) = self.check_taken_up(now, holding) {
            return Reply::Refused(refusal);
        }
        if let Some((record, value)) = mark {
            let published = Published { token: holding.token, at: now, value: value.clone() };
            self.records.insert((holding.name.key().to_owned(), record.clone()), published);
        }
        let entries = self.logs.entry((holding.name.key().to_owned(), log.to_owned())).or_default();
        if entries.last().is_some_and(|last| last.token == holding.token && last.value == value) {
            return Reply::Done;
        }
        let millis = now.as_micros() / 1_000;
        let id = match entries.last() {
            Some(last) if last.id.millis >= millis => EntryId { number: last.id.number + 1, ..last.id },
            _ => EntryId { millis, number: 0 },
        };
        entries.push(LogEntry { id, token: holding.token, value: value.to_vec() });
        entries.drain(..entries.len().saturating_sub(kept.max(1)));
        Reply::Done
    }

    pub(super) fn recent(&self, name: &LeaseName, log: &str, after: Option<EntryId>, limit: usize) -> Reply {
        let entries = self.logs.get(&(name.key().to_owned(), log.to_owned())).map_or(&[][..], Vec::as_slice);
        Reply::Recent(match after {
            Some(after) => entries.iter().filter(|entry| entry.id > after).take(limit).cloned().collect(),
            None => entries[entries.len().saturating_sub(limit)..].to_vec(),
        })
    }

    /// Whether the term is the current one: holder and token both equal, and the lease not over.
    fn check(&self, now: ServerTime, holding: &Holding) -> Result<(), Refusal> {
        let term = self.terms.get(holding.name.key());
        let deposed = term.is_some_and(|term| term.deposed == Some(holding.token));
        let same = |term: &TermRecord| term.holder == holding.holder && term.token == holding.token;
        if term.is_some_and(|term| same(term) && term.ended == Ended::Revoked) {
            return Err(Refusal::Revoked);
        }
        match (self.alive(now, &holding.name), term) {
            (None, None) => Err(Refusal::StoreReset),
            (None, Some(_)) => Err(Refusal::Missing),
            (Some(lease), Some(term)) if lease.holder == holding.holder && term.holder == holding.holder => {
                if term.ended != Ended::Silently {
                    // An outsider has written the holder's name back: that revives nothing.
                    Err(Refusal::Missing)
                } else if term.token == holding.token || self.planted.has(Flaw::CompareByHolderOnly) {
                    Ok(())
                } else {
                    Err(Refusal::Taken { by: lease.holder.clone() })
                }
            }
            (Some(lease), None) if lease.holder == holding.holder => Err(Refusal::StoreReset),
            (Some(_), Some(_)) if deposed => Err(Refusal::Stalled),
            (Some(lease), _) => Err(Refusal::Taken { by: lease.holder.clone() }),
        }
    }

    /// Whether the term is the current one and was taken up by its holder. An offer that was not is nobody's to use,
    /// and only a store that went back in time can show one to somebody who thinks otherwise.
    fn check_taken_up(&self, now: ServerTime, holding: &Holding) -> Result<(), Refusal> {
        self.check(now, holding)?;
        let offered = self.terms.get(holding.name.key()).is_some_and(|term| term.nonce.is_none());
        if offered { Err(Refusal::StoreReset) } else { Ok(()) }
    }

    fn open_namespace(&mut self, now: ServerTime, generation: Generation) -> Result<Namespace, Gate> {
        match &mut self.namespace {
            Some(namespace) if namespace.generation == generation => {
                let remaining = namespace.closed_for(now);
                // A server clock that was set back must not keep the namespace closed.
                namespace.closed_until = (!remaining.is_zero()).then(|| now + remaining);
                let namespace = *namespace;
                if remaining.is_zero() { Ok(namespace) } else { Err(Gate::Closed { remaining }) }
            }
            _ => Err(Gate::NotEntered),
        }
    }

    /// A new term, which may work once `wait_out_until` has passed.
    fn grant(
        &mut self,
        now: ServerTime,
        namespace: Namespace,
        claim: &Claim,
        term: Option<TermRecord>,
        wait_out_until: Option<ServerTime>,
    ) -> Reply {
        let stored = term.as_ref().map_or(Token::ZERO, |term| term.token);
        let minted = if self.planted.has(Flaw::CountedTokens) {
            stored.next(Token::ZERO, 0)
        } else {
            stored.next(namespace.token_floor, now.as_micros())
        };
        let Some(token) = minted else {
            return Reply::TokensExhausted;
        };
        let mut begun = TermRecord::begun(now, token, claim.holder.clone(), term.as_ref());
        begun.wait_out_until = begun.wait_out_until.max(wait_out_until);
        begun.deposed = term.filter(|term| term.ended == Ended::TakenOver).and_then(|term| term.deposed);
        self.go_on(now, claim, &begun)
    }

    /// Writes a term's record and its key for a whole ttl from now.
    fn go_on(&mut self, now: ServerTime, claim: &Claim, term: &TermRecord) -> Reply {
        self.raise_max_ttl(claim.ttl);
        // Never further away than the longest ttl, whatever the server's clock did meanwhile.
        let furthest = now + self.longest_ttl();
        let wait_out_until = term.wait_out_until.map(|until| until.min(furthest)).filter(|until| *until > now);
        let term = TermRecord {
            nonce: Some(claim.nonce),
            wait_out_until,
            progress: wait_out_until.map_or(term.progress, |until| until.max(term.progress)),
            ..term.clone()
        };
        let lease = LeaseKey { holder: claim.holder.clone(), expires: Some(now + claim.ttl) };
        let grant = Grant {
            token: term.token,
            server: now,
            max_ttl: self.longest_ttl(),
            wait_out: term.wait_out_until.map_or(Duration::ZERO, |until| until.since(now)),
            previous: term.previous.clone(),
        };
        self.raise_floor(term.token);
        self.leases.insert(claim.name.key().to_owned(), lease);
        self.terms.insert(claim.name.key().to_owned(), term);
        Reply::Granted(grant)
    }

    /// Every token that was granted is below the floor of the next, over all leases: whoever remembers a larger one than
    /// the floor knows that the store went back in time.
    fn raise_floor(&mut self, token: Token) {
        if let Some(namespace) = &mut self.namespace {
            namespace.token_floor = namespace.token_floor.max(token);
        }
    }

    fn longest_ttl(&self) -> Duration {
        self.namespace.map_or(Duration::ZERO, |namespace| namespace.max_ttl)
    }

    /// A ttl above the longest one raises that first: it is how long the namespace closes after a loss.
    fn raise_max_ttl(&mut self, ttl: Duration) {
        if let Some(namespace) = &mut self.namespace {
            namespace.max_ttl = namespace.max_ttl.max(ttl.min(LONGEST_TTL));
        }
    }

    fn alive(&self, now: ServerTime, name: &LeaseName) -> Option<&LeaseKey> {
        self.leases.get(name.key()).filter(|lease| lease.alive(now))
    }

    fn held(&self, now: ServerTime, max_ttl: Duration, name: &LeaseName) -> Held {
        let lease = self.leases.get(name.key());
        let term = self.terms.get(name.key()).filter(|term| lease.is_some_and(|lease| lease.holder == term.holder));
        Held {
            by: lease.map_or_else(|| InstanceId::foreign(""), |lease| lease.holder.clone()),
            token: term.map(|term| term.token),
            remaining: lease.and_then(|lease| lease.expires).map(|expires| expires.since(now).min(max_ttl)),
            idle: term.map(|term| now.since(term.progress)),
            max_ttl,
        }
    }

    /// A term cannot have longer than the longest ttl left, nor progress from the future; it seems to when the server's
    /// clock was set back. Leases of foreign programs are left alone.
    fn clamp_expiry(&mut self, now: ServerTime, max_ttl: Duration, name: &LeaseName) {
        if let (Some(lease), Some(term)) = (self.leases.get_mut(name.key()), self.terms.get_mut(name.key()))
            && lease.holder == term.holder
        {
            let furthest = now + max_ttl;
            lease.expires = lease.expires.map(|expires| expires.min(furthest));
            term.progress = term.progress.min(furthest);
        }
    }

    fn set_expiry(&mut self, name: &LeaseName, expires: ServerTime) {
        if let Some(lease) = self.leases.get_mut(name.key()) {
            lease.expires = Some(expires);
        }
    }
}

/// Why nothing is granted at all.
enum Gate {
    NotEntered,
    Closed { remaining: Duration },
}

impl From<Gate> for Reply {
    fn from(gate: Gate) -> Self {
        match gate {
            Gate::NotEntered => Self::NotEntered,
            Gate::Closed { remaining } => Self::Quarantined { remaining },
        }
    }
}

impl TermRecord {
    /// A new term, not claimed by anybody yet.
    fn begun(now: ServerTime, token: Token, holder: InstanceId, before: Option<&Self>) -> Self {
        Self {
            token,
            holder,
            nonce: None,
            since: now,
            ended: Ended::Silently,
            // Whoever was deposed may rely on its term for as long as before, however many terms come in between.
            wait_out_until: before.and_then(|before| before.wait_out_until),
            progress: now,
            idled: false,
            asked: None,
            ending: None,
            deposed: None,
            previous: before.map(Self::as_previous),
        }
    }

    fn closed(&self, ended: Ended) -> Self {
        Self { ended, ..self.clone() }
    }

    fn as_previous(&self) -> PreviousTerm {
        PreviousTerm { token: self.token, holder: self.holder.clone(), ended: self.ended }
    }
}
