//! Tracks which ttls can still be relied on, from the observed grants and not from the store's own records. This bounds
//! from both sides how long a quarantine lasts.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::Token;

use crate::observation::LeaseIndex;
use crate::timeline::SimTime;

/// Factor by which a store may count a ttl for longer than its lease could be relied on: an eighth of the ttl, which
/// saves the store writes, and clock drift.
const MAX_OVERCOUNT_FACTOR: f64 = 1.135;

/// Factor by which a lease may last longer in true time than by the server's clock.
pub const MAX_CLOCK_DRIFT_FACTOR: f64 = 1.01;

/// Every granted term and the end of its validity.
#[derive(Debug, Default)]
pub struct ValidityTracker {
    terms: BTreeMap<(LeaseIndex, Token), GrantedTerm>,
    /// The ttl that each quarantine waited for, and its end. Until then that ttl may be relied on.
    quarantines: Vec<(Duration, SimTime)>,
    clock_stepped: bool,
}

#[derive(Debug)]
struct GrantedTerm {
    /// The longest ttl that it was granted or renewed with: a hand-over keeps that of the previous holder.
    ttl: Duration,
    /// The ttl of the last grant or renewal, in whose class the store counts it.
    last_ttl: Duration,
    granted_at: SimTime,
    extended_at: SimTime,
    released_at: Option<SimTime>,
}

impl ValidityTracker {
    /// Records a grant or renewal of a term for this ttl.
    pub fn record_extension(&mut self, now: SimTime, lease: LeaseIndex, token: Token, ttl: Duration) {
        let new = GrantedTerm { ttl, last_ttl: ttl, granted_at: now, extended_at: now, released_at: None };
        let term = self.terms.entry((lease, token)).or_insert(new);
        (term.ttl, term.last_ttl) = (term.ttl.max(ttl), ttl);
        (term.extended_at, term.released_at) = (now, None);
    }

    /// The ttl that a term was last granted or renewed with.
    pub fn ttl(&self, lease: LeaseIndex, token: Token) -> Option<Duration> {
        self.terms.get(&(lease, token)).map(|term| term.ttl)
    }

    /// Records a quarantine that waits for this ttl until that time.
    pub fn record_quarantine(&mut self, waits_for: Duration, until: SimTime) {
        match self.quarantines.last_mut() {
            Some((longest, end)) if *longest == waits_for && until.since(*end) < waits_for => *end = until.max(*end),
            _ => self.quarantines.push((waits_for, until)),
        }
    }

    /// Records a step of the server's clock. From then on any ttl may count for longer, in the store and in the memory
    /// of processes.
    pub fn record_clock_step(&mut self) {
        self.clock_stepped = true;
    }

    /// Records the release of a term by its holder.
    pub fn record_release(&mut self, now: SimTime, lease: LeaseIndex, token: Token) {
        if let Some(term) = self.terms.get_mut(&(lease, token)) {
            term.released_at = Some(now);
        }
    }

    /// Returns whether a term can still be relied on, by its last renewal and the maximal clock drift. A store that went
    /// back in time knows no later release.
    pub fn is_alive(&self, now: SimTime, lease: LeaseIndex, token: Token, rolled_back_to: Option<SimTime>) -> bool {
        let term = self.terms.get(&(lease, token));
        let is_known = |released: SimTime| rolled_back_to.is_none_or(|at| released < at);
        term.is_some_and(|term| {
            !term.released_at.is_some_and(is_known)
                && term.extended_at + term.ttl.mul_f64(MAX_CLOCK_DRIFT_FACTOR) >= now
        })
    }

    /// The longest ttl that a quarantine may wait for if it begins with the knowledge of time `since`. A store keeps
    /// ttls by class. A class counts until all of its leases have expired or, with `strictly`, have been released.
    pub fn longest_counted_ttl(&self, since: SimTime, strictly: bool) -> Duration {
        let waited_for = |since| {
            let lasted = move |(_, end): &&(Duration, SimTime)| *end >= since;
            self.quarantines.iter().filter(lasted).map(|(longest, _)| *longest)
        };
        if self.clock_stepped {
            let ever = self.terms.values().map(|term| term.ttl).chain(waited_for(SimTime::default()));
            return ever.max().unwrap_or_default();
        }
        let mut classes: BTreeMap<Duration, (SimTime, bool)> = BTreeMap::new();
        for (class, term) in self.terms.values().flat_map(|term| [(term.ttl, term), (term.last_ttl, term)]) {
            let (extended_at, is_held) = classes.entry(class).or_default();
            *extended_at = term.extended_at.max(*extended_at);
            *is_held |= term.released_at.is_none_or(|released| released >= since);
        }
        let counts = |(ttl, (extended_at, is_held)): &(Duration, (SimTime, bool))| {
            let lapsed_at = *extended_at + ttl.mul_f64(MAX_OVERCOUNT_FACTOR);
            let is_on_record = lapsed_at >= since || !self.has_rewritten_classes(*extended_at, lapsed_at, since);
            is_on_record && (*is_held || !strictly)
        };
        let counted = classes.into_iter().filter(counts).map(|(ttl, _)| ttl);
        counted.chain(waited_for(since)).max().unwrap_or_default()
    }

    /// Returns whether the store must have rewritten its classes between these times and dropped the lapsed ones. It
    /// does so with every grant, and with renewals at least every eighth of a ttl, but not in a quarantine.
    fn has_rewritten_classes(&self, last_used_at: SimTime, lapsed_at: SimTime, until: SimTime) -> bool {
        let in_quarantine = self.quarantines.iter().any(|(_, end)| *end >= last_used_at);
        let writes =
            |term: &GrantedTerm| lapsed_at + term.ttl.mul_f64(0.13) < term.extended_at && term.extended_at <= until;
        !in_quarantine && self.terms.values().any(writes)
    }

    /// Time for which the last lease can still be relied on, and thus the shortest safe quarantine.
    pub fn longest_remaining(&self, now: SimTime) -> Duration {
        self.longest_remaining_since(now, SimTime::default())
    }

    /// Like [`longest_remaining`](Self::longest_remaining), of the leases granted since then.
    pub fn longest_remaining_since(&self, now: SimTime, since: SimTime) -> Duration {
        let relied_on = self.terms.values().filter(|term| term.released_at.is_none() && term.granted_at >= since);
        relied_on.map(|term| (term.extended_at + term.ttl).since(now)).max().unwrap_or_default()
    }
}
