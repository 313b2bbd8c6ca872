//! Aligns what may differ between the ledger and the store: which numbers correspond, and which spans are close enough.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::Token;
use tenure::store::{Announcement, Held, Quarantine, Reply};
use tenure::time::ServerTime;

use crate::sequence::TokenTemplate;

/// Maximal difference of two spans, which is how long a request may take.
pub(crate) const MAX_SPAN_DIFFERENCE: Duration = Duration::from_secs(60);
/// Distance of made-up tokens from existing ones: further than any clock advances during the test.
pub(crate) const TOKEN_OFFSET: u64 = 1 << 40;

/// Corresponding numbers of the ledger and the store.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    theirs: BTreeMap<u64, u64>,
    ours: BTreeMap<u64, u64>,
    /// In the order of their first appearance.
    seen: Vec<(Token, Token)>,
}

impl Pairs {
    /// Returns whether the two numbers may correspond: neither has another partner, and both have the same position in
    /// the order.
    pub(crate) fn pair(&mut self, ours: u64, theirs: u64) -> bool {
        if let Some(known) = self.theirs.get(&ours) {
            return *known == theirs;
        }
        if self.ours.contains_key(&theirs) {
            return false;
        }
        let below = self.theirs.range(..ours).next_back().is_none_or(|(_, below)| *below < theirs);
        let above = self.theirs.range(ours..).next().is_none_or(|(_, above)| *above > theirs);
        self.theirs.insert(ours, theirs);
        self.ours.insert(theirs, ours);
        below && above
    }

    fn pair_token(&mut self, ours: Token, theirs: Token) -> bool {
        let known = self.theirs.contains_key(&ours.get());
        let same = self.pair(ours.get(), theirs.get());
        if !known {
            self.seen.push((ours, theirs));
        }
        same
    }

    /// Resolves a token for the ledger and for the store.
    pub(crate) fn resolve(&mut self, which: TokenTemplate) -> (Token, Token) {
        let nth = |n: usize| {
            let latest = self.seen.len().checked_sub(1)?;
            self.seen.get(latest.saturating_sub(n)).copied()
        };
        let aside = |n, move_aside: fn(u64) -> u64| {
            let (ours, theirs) = nth(n)?;
            Some((Token::new(move_aside(ours.get()))?, Token::new(move_aside(theirs.get()))?))
        };
        let last = |n: u64| Token::new(Token::MAX.get() - n).unwrap();
        let pair = match which {
            TokenTemplate::Seen(n) => nth(n),
            TokenTemplate::Below(n) => aside(n, |token| token.saturating_sub(TOKEN_OFFSET)),
            TokenTemplate::Above(n) => aside(n, |token| token + TOKEN_OFFSET),
            TokenTemplate::Last(n) => Some((last(n), last(n))),
            TokenTemplate::Zero => None,
        };
        let (ours, theirs) = pair.unwrap_or_default();
        // This pair never conflicts: both were made the same way.
        self.pair(ours.get(), theirs.get());
        (ours, theirs)
    }
}

/// The parts of a reply that may differ.
#[derive(Default)]
pub(crate) struct ReplyParts<'a> {
    tokens: Vec<&'a mut Token>,
    times: Vec<&'a mut ServerTime>,
    /// Spans for which it matters whether any time is left.
    left: Vec<&'a mut Duration>,
    /// Spans that may have just begun.
    idle: Vec<&'a mut Duration>,
}

impl<'a> ReplyParts<'a> {
    pub(crate) fn new(reply: &'a mut Reply) -> Self {
        let mut parts = Self::default();
        match reply {
            Reply::Granted(grant) => {
                parts.tokens.push(&mut grant.token);
                parts.times.push(&mut grant.server);
                parts.left.push(&mut grant.wait_out);
                parts.tokens.extend(grant.previous.as_mut().map(|previous| &mut previous.token));
            }
            Reply::Held(held) => parts.held(held),
            Reply::Quarantined(Quarantine { remaining, .. }) => parts.left.push(remaining),
            Reply::Renewed { server, .. } => parts.times.push(server),
            Reply::Namespace(report) => {
                parts.times.push(&mut report.server);
                parts.left.extend(report.quarantine.as_mut().map(|quarantine| &mut quarantine.remaining));
            }
            Reply::HandedOver { token } => parts.tokens.push(token),
            Reply::Lease(report) => {
                if let Some(held) = &mut report.held {
                    parts.held(held);
                }
                parts.tokens.extend(report.last.as_mut().map(|last| &mut last.token));
                parts.times.extend(report.since.as_mut());
            }
            Reply::Record(Some(published)) => {
                parts.tokens.push(&mut published.token);
                parts.times.push(&mut published.at);
            }
            Reply::Instances(members) => parts.left.extend(members.iter_mut().map(|member| &mut member.remaining)),
            Reply::Notes(notes) => parts.tokens.extend(notes.iter_mut().map(|note| &mut note.token)),
            _ => {}
        }
        parts
    }

    fn held(&mut self, held: &'a mut Held) {
        self.tokens.extend(held.token.as_mut());
        self.left.extend(held.remaining.as_mut());
        self.idle.extend(held.idle.as_mut());
        self.times.push(&mut held.server);
    }

    /// Replaces each part by that of the ledger where the two correspond.
    pub(crate) fn align(self, ours: Self, pairs: &mut Pairs) {
        for (ours, theirs) in ours.tokens.into_iter().zip(self.tokens) {
            if pairs.pair_token(*ours, *theirs) {
                *theirs = *ours;
            }
        }
        for (ours, theirs) in ours.times.into_iter().zip(self.times) {
            *theirs = *ours;
        }
        for (ours, theirs) in ours.left.into_iter().zip(self.left) {
            if ours.is_zero() == theirs.is_zero() && ours.abs_diff(*theirs) <= MAX_SPAN_DIFFERENCE {
                *theirs = *ours;
            }
        }
        for (ours, theirs) in ours.idle.into_iter().zip(self.idle) {
            if ours.abs_diff(*theirs) <= MAX_SPAN_DIFFERENCE {
                *theirs = *ours;
            }
        }
    }
}

pub(crate) fn token_of(announcement: &Announcement) -> Option<Token> {
    match announcement {
        Announcement::Released { token, .. }
        | Announcement::HandedOver { token, .. }
        | Announcement::Revoked { token, .. }
        | Announcement::Asked { token, .. }
        | Announcement::Published { token, .. } => Some(*token),
        _ => None,
    }
}

pub(crate) fn with_token(announcement: &Announcement, new: Token) -> Announcement {
    let mut announcement = announcement.clone();
    match &mut announcement {
        Announcement::Released { token, .. }
        | Announcement::HandedOver { token, .. }
        | Announcement::Revoked { token, .. }
        | Announcement::Asked { token, .. }
        | Announcement::Published { token, .. } => *token = new,
        _ => {}
    }
    announcement
}
