//! Leases and terms: the part of a store that decides which instance may act.

use std::time::Duration;

use super::ttls::Extension;
use super::{LeaseKey, Ledger, LiveTtls, QuarantineRecord, TermRecord};
use crate::ending::Ending;
use crate::mutation::Mutation;
use crate::name::{InstanceId, LeaseName};
use crate::store::{
    Announcement, Ask, Claim, DocumentId, Generation, Grant, Held, Holding, LeaseReport, LeaseRequest, MAX_TTL,
    PreviousTerm, RecordedEnd, Refusal, Reply, deleted_index,
};
use crate::time::ServerTime;
use crate::token::{Nonce, Token};

impl Ledger {
    /// Carries out one request of this group.
    pub fn apply_to_leases(
        &mut self,
        now: ServerTime,
        generation: Generation,
        request: &LeaseRequest,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        match request {
            LeaseRequest::Acquire { claim, ended } => self.acquire(now, generation, claim, *ended, announcements),
            LeaseRequest::TakeOver { claim, victim, stale_after } => {
                self.take_over(now, generation, claim, (*victim, *stale_after), announcements)
            }
            LeaseRequest::Renew { holding, ttl, progressed } => {
                self.renew(now, holding, *ttl, *progressed, announcements)
            }
            LeaseRequest::Release { holding, ending } => self.release(now, holding, ending, announcements),
            LeaseRequest::Abandon { name, holder, nonce } => self.abandon(now, name, holder, *nonce, announcements),
            LeaseRequest::HandOver { holding, to, window } => self.hand_over(now, holding, to, *window, announcements),
            LeaseRequest::Revoke { name, token } => self.revoke(now, name, *token, announcements),
            LeaseRequest::Ask { name, token, ask } => self.ask(now, name, *token, ask, announcements),
            LeaseRequest::Inspect { name } => self.inspect(now, name),
            LeaseRequest::Holders { names } => {
                Reply::Holders(names.iter().map(|name| self.holder(now, name)).collect())
            }
            LeaseRequest::Forget { name, idle_for, document, .. } => {
                self.forget(now, name, *idle_for, document.as_ref())
            }
            LeaseRequest::InspectNamespace => Reply::Namespace(self.report(now)),
            LeaseRequest::Reopen { generation } => self.reopen(now, *generation, announcements),
        }
    }

    fn acquire(
        &mut self,
        now: ServerTime,
        generation: Generation,
        claim: &Claim,
        ended: Option<Token>,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        if let Some(refused) = self.refuse_claims(now, generation) {
            return refused;
        }
        self.clamp_expiry(now, &claim.name);
        let term = self.terms.get(claim.name.key()).cloned();
        match (self.live_lease(now, &claim.name), term) {
            (Some(lease), Some(term)) if lease.holder == claim.holder && term.holder == claim.holder => {
                let same = term.nonce == Some(claim.nonce) || term.nonce.is_none();
                if ended.is_some_and(|ended| term.was_granted_under(ended)) {
                    // Its process has ended that term. This is a new one, even if a store that went back in time shows
                    // it as an offer that was not accepted.
                    let replaced = self.class_of(&claim.name);
                    let reply = self.grant(now, claim, Some(term.with_end(RecordedEnd::Released)), None, announcements);
                    if matches!(reply, Reply::Granted(_)) {
                        self.release_ttl(now, replaced, announcements);
                    }
                    reply
                } else if same && term.ended == RecordedEnd::Unreported {
                    // The same claim again, or an accepted offer: the same term, for a whole ttl from now.
                    self.write_term(now, claim, &term, announcements)
                } else {
                    Reply::Held(self.held(now, &claim.name))
                }
            }
            (Some(_), _) => Reply::Held(self.held(now, &claim.name)),
            (None, Some(term)) if term.nonce == Some(claim.nonce) => Reply::TermOver,
            (None, term) => self.grant(now, claim, term, None, announcements),
        }
    }

    fn take_over(
        &mut self,
        now: ServerTime,
        generation: Generation,
        claim: &Claim,
        (victim, stale_after): (Token, Duration),
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        if let Some(refused) = self.refuse_claims(now, generation) {
            return refused;
        }
        let Some(term) = self.terms.get(claim.name.key()).cloned() else {
            return self.acquire(now, generation, claim, None, announcements);
        };
        let Some(lease) = self.live_lease(now, &claim.name) else {
            return self.acquire(now, generation, claim, None, announcements);
        };
        let stale = term.idled && now.since(term.progress) >= stale_after;
        if term.token == victim && term.holder == lease.holder && stale {
            // Whatever became of the expiry, the holder relies on one ttl at most.
            let furthest = now + term.ttl;
            let until = lease.expires.unwrap_or(furthest).min(furthest);
            let superseded = TermRecord { superseded: Some(victim), ..term.with_end(RecordedEnd::TakenOver) };
            return self.grant(now, claim, Some(superseded), Some(until), announcements);
        }
        self.acquire(now, generation, claim, None, announcements)
    }

    fn renew(
        &mut self,
        now: ServerTime,
        holding: &Holding,
        ttl: Duration,
        progressed: bool,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        if let Err(refusal) = self.check_accepted(now, holding) {
            return Reply::Refused(refusal);
        }
        let before = self.terms.get(holding.name.key()).map(|term| term.ttl);
        let class = self.extend_ttl(now, ttl, before, announcements);
        self.set_expiry(&holding.name, now + ttl);
        let max_ttl = self.longest_ttl(now);
        let furthest = now + max_ttl;
        let asked = self.terms.get_mut(holding.name.key()).and_then(|term| {
            term.ttl = class;
            if progressed {
                // A holder that must wait cannot make progress, and must not lose its lease for that.
                term.progress = term.wait_out_until.map_or(now, |until| now.max(until.min(furthest)));
            }
            term.idled = !progressed;
            term.asked.clone()
        });
        Reply::Renewed { server: now, max_ttl, asked }
    }

    fn release(
        &mut self,
        now: ServerTime,
        holding: &Holding,
        ending: &Ending,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        match self.check(now, holding) {
            Ok(()) => {}
            // The holder of a revoked term releases the lease that it still occupies.
            Err(Refusal::Revoked)
                if self.live_lease(now, &holding.name).is_some_and(|l| l.holder == holding.holder) => {}
            Err(refusal) => {
                let again = self.terms.get(holding.name.key()).is_some_and(|term| {
                    term.was_granted_under(holding.token)
                        && term.holder == holding.holder
                        && term.ended == RecordedEnd::Released
                });
                return if again { Reply::Done } else { Reply::Refused(refusal) };
            }
        }
        let class = self.class_of(&holding.name);
        self.release_ttl(now, class, announcements);
        self.leases.remove(holding.name.key());
        let mut token = holding.token;
        if let Some(term) = self.terms.get_mut(holding.name.key()) {
            term.ended = RecordedEnd::Released;
            term.ending = Some(ending.clone());
            token = term.token;
        }
        announcements.push(Announcement::Released { name: holding.name.clone(), token });
        Reply::Done
    }

    fn abandon(
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

    fn hand_over(
        &mut self,
        now: ServerTime,
        holding: &Holding,
        to: &InstanceId,
        window: Duration,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        if let Err(refusal) = self.check_accepted(now, holding) {
            return Reply::Refused(refusal);
        }
        let floor = self.namespace.as_ref().map_or(Token::ZERO, |namespace| namespace.token_floor);
        let Some(token) = holding.token.next(floor, now.as_micros()) else {
            return Reply::TokensExhausted;
        };
        let class = self.class_of(&holding.name);
        self.release_ttl(now, class, announcements);
        let ended = self.terms.get(holding.name.key()).map(|term| term.with_end(RecordedEnd::HandedOver));
        // The receiver relies on nothing before it has accepted the offer.
        let term = TermRecord { ttl: window.min(MAX_TTL), ..TermRecord::new(now, token, to.clone(), ended.as_ref()) };
        self.terms.insert(holding.name.key().to_owned(), term);
        let lease = LeaseKey { holder: to.clone(), expires: Some(now + window) };
        self.leases.insert(holding.name.key().to_owned(), lease);
        self.raise_floor(now, token);
        announcements.push(Announcement::HandedOver { name: holding.name.clone(), token, to: to.clone() });
        Reply::HandedOver { token }
    }

    fn revoke(
        &mut self,
        now: ServerTime,
        name: &LeaseName,
        token: Token,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        let Some(lease) = self.live_lease(now, name).cloned() else {
            return Reply::Refused(Refusal::Missing);
        };
        let floor = self.namespace.as_ref().map_or(Token::ZERO, |namespace| namespace.token_floor);
        match self.terms.get_mut(name.key()) {
            Some(term) if term.holder == lease.holder && term.was_granted_under(token) => {
                // The key stays until its holder releases the lease or the ttl ends: the work may still be running, and
                // only the holder knows. A repeated revocation changes nothing.
                if term.ended == RecordedEnd::Unreported {
                    term.ended = RecordedEnd::Revoked;
                    term.asked = None;
                    // Services that compare tokens refuse the holder from now on.
                    let raised = term.token.next(floor, now.as_micros());
                    if let Some(raised) = raised {
                        (term.superseded, term.token) = (Some(token), raised);
                    }
                    announcements.push(Announcement::Revoked { name: name.clone(), token });
                    raised.into_iter().for_each(|raised| self.raise_floor(now, raised));
                }
                Reply::Done
            }
            _ => Reply::Refused(Refusal::Taken { holder: lease.holder }),
        }
    }

    fn ask(
        &mut self,
        now: ServerTime,
        name: &LeaseName,
        token: Token,
        ask: &Ask,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        let Some(lease) = self.live_lease(now, name).cloned() else {
            return Reply::Refused(Refusal::Missing);
        };
        match self.terms.get_mut(name.key()) {
            Some(term)
                if term.token == token && term.holder == lease.holder && term.ended == RecordedEnd::Unreported =>
            {
                term.asked = Some(ask.clone());
                announcements.push(Announcement::Asked { name: name.clone(), token });
                Reply::Done
            }
            Some(_) => Reply::Refused(Refusal::Taken { holder: lease.holder }),
            None => Reply::Refused(Refusal::StoreReset),
        }
    }

    fn inspect(&self, now: ServerTime, name: &LeaseName) -> Reply {
        let term = self.terms.get(name.key());
        Reply::Lease(LeaseReport {
            held: self.live_lease(now, name).map(|_| self.held(now, name)),
            last: term.map(TermRecord::as_previous),
            since: term.map(|term| term.since),
            ending: term.and_then(|term| term.ending.clone()),
            asked: term.filter(|term| term.ended == RecordedEnd::Unreported).and_then(|term| term.asked.clone()),
        })
    }

    fn holder(&self, now: ServerTime, name: &LeaseName) -> Option<InstanceId> {
        self.live_lease(now, name).map(|lease| lease.holder.clone())
    }

    fn forget(
        &mut self,
        now: ServerTime,
        name: &LeaseName,
        idle_for: Duration,
        document: Option<&DocumentId>,
    ) -> Reply {
        if self.live_lease(now, name).is_some() || document.is_some_and(|id| self.documents.contains_key(id)) {
            return Reply::InUse;
        }
        let key = name.key();
        if let Some(term) = self.terms.get(key) {
            let waits = term.wait_out_until.is_some_and(|until| until > now);
            // A start in the future has no age, and the lease counts as in use.
            let idle = now.as_micros().checked_sub(term.since.as_micros()).map(Duration::from_micros);
            let token = term.token;
            if self.namespace.is_none() || waits || idle < Some(idle_for) {
                return Reply::InUse;
            }
            self.raise_floor(now, token);
        }
        if let Some(document) = document
            && let Some(deleted) = self.indexes.get_mut(&deleted_index(&document.collection))
        {
            deleted.remove(&document.id);
        }
        self.leases.remove(key);
        self.terms.remove(key);
        self.records.retain(|(of, _), _| of != key);
        self.logs.retain(|(of, _), _| of != key);
        Reply::Done
    }

    /// Checks that the term is the current one: holder and token are equal, and the lease has not ended.
    fn check(&self, now: ServerTime, holding: &Holding) -> Result<(), Refusal> {
        let term = self.terms.get(holding.name.key());
        let superseded = term.is_some_and(|term| term.superseded == Some(holding.token));
        let same = |term: &TermRecord| term.holder == holding.holder && term.was_granted_under(holding.token);
        if term.is_some_and(|term| same(term) && term.ended == RecordedEnd::Revoked) {
            return Err(Refusal::Revoked);
        }
        match (self.live_lease(now, &holding.name), term) {
            (None, None) => Err(Refusal::StoreReset),
            (None, Some(_)) => Err(Refusal::Missing),
            (Some(lease), Some(term)) if lease.holder == holding.holder && term.holder == holding.holder => {
                if term.ended != RecordedEnd::Unreported {
                    // Another program has written the holder's name back: that revives nothing.
                    Err(Refusal::Missing)
                } else if term.token == holding.token || self.mutations.has(Mutation::CompareByHolderOnly) {
                    Ok(())
                } else {
                    Err(Refusal::Taken { holder: lease.holder.clone() })
                }
            }
            (Some(lease), None) if lease.holder == holding.holder => Err(Refusal::StoreReset),
            (Some(_), Some(_)) if superseded => Err(Refusal::Stalled),
            (Some(lease), _) => Err(Refusal::Taken { holder: lease.holder.clone() }),
        }
    }

    /// Checks that the term is the current one and that its holder has accepted it. No instance may use an offer before
    /// it is accepted. Only a store that went back in time can show an unaccepted offer to an instance that has
    /// accepted it.
    pub(super) fn check_accepted(&self, now: ServerTime, holding: &Holding) -> Result<(), Refusal> {
        self.check(now, holding)?;
        let offered = self.terms.get(holding.name.key()).is_some_and(|term| term.nonce.is_none());
        if offered { Err(Refusal::StoreReset) } else { Ok(()) }
    }

    /// The reply to every claim while the namespace is not the attached one, or is in quarantine.
    fn refuse_claims(&mut self, now: ServerTime, generation: Generation) -> Option<Reply> {
        let lineage = self.lineage;
        match &mut self.namespace {
            Some(namespace)
                if namespace.generation == generation
                    && (lineage.is_continuation_of(namespace.lineage)
                        || self.mutations.has(Mutation::IgnoreLineage)) =>
            {
                namespace.lineage = lineage.id;
                if let Some(quarantine) = namespace.quarantine(now) {
                    // A server clock that was set back must not make it longer.
                    let until = now + quarantine.remaining;
                    namespace.quarantine = namespace.quarantine.map(|record| QuarantineRecord { until, ..record });
                    return Some(Reply::Quarantined(quarantine));
                }
                namespace.quarantine = namespace.quarantine.filter(QuarantineRecord::is_reopened);
                if !self.mutations.has(Mutation::MaxTtlNeverFalls) {
                    namespace.ttls.expire(now);
                }
                None
            }
            _ => Some(Reply::NotAttached),
        }
    }

    /// Grants a new term, whose work may start once `wait_out_until` has passed.
    fn grant(
        &mut self,
        now: ServerTime,
        claim: &Claim,
        term: Option<TermRecord>,
        wait_out_until: Option<ServerTime>,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        let stored = term.as_ref().map_or(Token::ZERO, |term| term.token);
        let floor = self.namespace.as_ref().map_or(Token::ZERO, |namespace| namespace.token_floor);
        let minted = if self.mutations.has(Mutation::SequentialTokens) {
            stored.next(Token::ZERO, 0)
        } else {
            stored.next(floor, now.as_micros())
        };
        let Some(token) = minted else {
            return Reply::TokensExhausted;
        };
        let mut begun = TermRecord::new(now, token, claim.holder.clone(), term.as_ref());
        begun.wait_out_until = begun.wait_out_until.max(wait_out_until);
        begun.superseded = term.filter(|term| term.ended == RecordedEnd::TakenOver).and_then(|term| term.superseded);
        self.write_term(now, claim, &begun, announcements)
    }

    /// Writes a term's record and its lease key for a whole ttl from now.
    fn write_term(
        &mut self,
        now: ServerTime,
        claim: &Claim,
        term: &TermRecord,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        let before = term.nonce.map(|_| term.ttl);
        let class = self.extend_ttl(now, claim.ttl, before, announcements);
        let max_ttl = self.longest_ttl(now);
        // Never later than the longest ttl from now, whatever the server's clock did meanwhile.
        let furthest = now + max_ttl;
        let wait_out_until = term.wait_out_until.map(|until| until.min(furthest)).filter(|until| *until > now);
        let term = TermRecord {
            nonce: Some(claim.nonce),
            ttl: class,
            wait_out_until,
            progress: wait_out_until.map_or(term.progress, |until| until.max(term.progress)),
            ..term.clone()
        };
        let lease = LeaseKey { holder: claim.holder.clone(), expires: Some(now + claim.ttl) };
        let grant = Grant {
            token: term.token,
            server: now,
            max_ttl,
            wait_out: term.wait_out_until.map_or(Duration::ZERO, |until| until.since(now)),
            previous: term.previous.clone(),
        };
        self.raise_floor(now, term.token);
        self.leases.insert(claim.name.key().to_owned(), lease);
        self.terms.insert(claim.name.key().to_owned(), term);
        Reply::Granted(grant)
    }

    /// Raises the floor of future tokens, over all leases, to a granted token. So an instance that remembers a token
    /// above the floor knows that the store went back in time. An implausible token counts for its own lease alone. But
    /// the token directly after the floor is always accepted, since a clock that was ahead may have been set back.
    fn raise_floor(&mut self, now: ServerTime, token: Token) {
        if let Some(namespace) = &mut self.namespace {
            let floor = namespace.token_floor;
            if token > floor && (token.is_credible(now) || token.get() == floor.get() + 1) {
                namespace.token_floor = token;
            }
        }
    }

    /// The longest ttl that can be relied on.
    #[doc(hidden)]
    pub fn longest_ttl(&self, now: ServerTime) -> Duration {
        self.namespace.as_ref().map_or(Duration::ZERO, |namespace| namespace.max_ttl(now))
    }

    /// Counts a granted or renewed lease: its ttl is relied on from now. `before` is the class in which it counts
    /// already. Returns the class in which it counts now.
    #[doc(hidden)]
    pub fn extend_ttl(
        &mut self,
        now: ServerTime,
        ttl: Duration,
        before: Option<Duration>,
        announcements: &mut Vec<Announcement>,
    ) -> Duration {
        let Some(namespace) = &mut self.namespace else { return ttl.min(MAX_TTL) };
        let longest = namespace.max_ttl(now);
        let (class, extension) = match before.filter(|class| LiveTtls::is_in_class(ttl, *class)) {
            Some(class) => (class, Extension::Renewed),
            None => (namespace.ttls.class_of(ttl), Extension::Granted),
        };
        let changed = namespace.ttls.extend(now, class, extension);
        // After a restart, every class on record is waited for, so lapsed classes must not stay there, except
        // in a quarantine, which may be waiting for them.
        if changed && namespace.quarantine(now).is_none() && !self.mutations.has(Mutation::MaxTtlNeverFalls) {
            namespace.ttls.expire(now);
        }
        if class > longest {
            announcements.push(Announcement::LongestTtl { ttl: class, server: now });
        }
        class
    }

    /// Removes a lease from its class: its holder relies on it no longer.
    fn release_ttl(&mut self, now: ServerTime, class: Option<Duration>, announcements: &mut Vec<Announcement>) {
        if let (Some(class), Some(namespace)) = (class, &mut self.namespace)
            && !self.mutations.has(Mutation::MaxTtlNeverFalls)
        {
            let before = namespace.max_ttl(now);
            namespace.ttls.release(class);
            let ttl = namespace.max_ttl(now);
            if ttl != before {
                announcements.push(Announcement::LongestTtl { ttl, server: now });
            }
        }
    }

    /// The class in which a lease counts. An unaccepted offer is in none. A lease whose expiry another program has
    /// removed may have lapsed with its class.
    fn class_of(&self, name: &LeaseName) -> Option<Duration> {
        let ends = self.leases.get(name.key()).is_some_and(|lease| lease.expires.is_some());
        self.terms.get(name.key()).filter(|term| ends && term.nonce.is_some()).map(|term| term.ttl)
    }

    fn live_lease(&self, now: ServerTime, name: &LeaseName) -> Option<&LeaseKey> {
        self.leases.get(name.key()).filter(|lease| lease.is_alive(now))
    }

    fn held(&self, now: ServerTime, name: &LeaseName) -> Held {
        let lease = self.leases.get(name.key());
        let term = self.terms.get(name.key()).filter(|term| lease.is_some_and(|lease| lease.holder == term.holder));
        let longest = term.map_or(MAX_TTL, |term| term.ttl);
        Held {
            holder: lease.map_or_else(|| InstanceId::foreign(""), |lease| lease.holder.clone()),
            token: term.map(|term| term.token),
            remaining: lease.and_then(|lease| lease.expires).map(|expires| expires.since(now).min(longest)),
            idle: term.map(|term| now.since(term.progress)),
            max_ttl: self.longest_ttl(now),
            server: now,
        }
    }

    /// Limits the time left of a term to its ttl, and its progress to the longest ttl from now. They can exceed these
    /// when the server's clock was set back. Leases of foreign programs are not changed.
    fn clamp_expiry(&mut self, now: ServerTime, name: &LeaseName) {
        let longest = self.longest_ttl(now);
        if let (Some(lease), Some(term)) = (self.leases.get_mut(name.key()), self.terms.get_mut(name.key()))
            && lease.holder == term.holder
        {
            lease.expires = lease.expires.map(|expires| expires.min(now + term.ttl));
            term.progress = term.progress.min(now + longest.max(term.ttl));
        }
    }

    fn set_expiry(&mut self, name: &LeaseName, expires: ServerTime) {
        if let Some(lease) = self.leases.get_mut(name.key()) {
            lease.expires = Some(expires);
        }
    }
}

/// The token that a term was granted under, which a revocation may have raised since.
pub(super) fn granted_under(term: &TermRecord) -> Token {
    term.superseded.filter(|_| term.ended == RecordedEnd::Revoked).unwrap_or(term.token)
}

impl TermRecord {
    /// Whether the term was granted under this token, which a revocation may have raised since.
    fn was_granted_under(&self, token: Token) -> bool {
        let was_raised = matches!(self.ended, RecordedEnd::Revoked | RecordedEnd::Released);
        self.token == token || was_raised && self.superseded == Some(token)
    }

    /// A new term that is not claimed yet.
    fn new(now: ServerTime, token: Token, holder: InstanceId, before: Option<&Self>) -> Self {
        Self {
            token,
            holder,
            nonce: None,
            ttl: Duration::ZERO,
            since: now,
            ended: RecordedEnd::Unreported,
            // A holder whose term was taken over may rely on it for as long as before, however many terms follow.
            wait_out_until: before.and_then(|before| before.wait_out_until),
            progress: now,
            idled: false,
            asked: None,
            ending: None,
            superseded: None,
            previous: before.map(Self::as_previous),
        }
    }

    fn with_end(&self, ended: RecordedEnd) -> Self {
        Self { ended, ..self.clone() }
    }

    fn as_previous(&self) -> PreviousTerm {
        PreviousTerm { token: self.token, holder: self.holder.clone(), ended: self.ended }
    }
}
