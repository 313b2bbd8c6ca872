//! Entering a namespace: how a process finds out that the store is not what it was.
//!
//! A store can lose everything (a flush, a restart without persistence), lose the last writes (a failover), or go back
//! in time (a restored backup). Leases that were granted before then may still be relied on by holders that have not
//! noticed. So the namespace has a record with a *generation*; whoever finds it missing or older than remembered
//! writes a new generation and *closes* the namespace, so that nothing is granted until every lease from before has
//! run out. Whoever finds a newer generation adopts it and never writes its own memory over it.

use std::fmt;
use std::time::Duration;

use super::{Announcement, Reply};
use crate::lease::LeaseSettings;
use crate::token::Token;

/// Which incarnation of a namespace's data this is.
///
/// The number grows and is minted like a token. It alone would not do: two processes that remember the same number can
/// each mint the next one, for two different losses. So whoever mints a generation stamps it, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Generation {
    /// Grows with every generation.
    pub number: u64,
    /// Chance, to tell generations with one number apart.
    pub stamp: u64,
}

/// Which run of the server this is: another value after every restart, failover included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerRun(pub u128);

impl fmt::Display for ServerRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// What a process brings along when it enters.
///
/// The default is for a process that is new, uses leases of the default length, and draws a stamp by chance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it remembers, unless it is new.
    pub memory: Option<NamespaceMemory>,
    /// A random number, which becomes the stamp of the generation if this entry mints one.
    pub stamp: u64,
    /// The longest ttl it uses, or that anybody uses as far as it knows. The namespace's own is raised to it. A newcomer
    /// that finds the namespace lost closes it for this long.
    pub max_ttl: Duration,
    /// The operator's word that nobody holds anything: a namespace without a record opens at once.
    pub bootstrap: bool,
    /// The operator's word that a restart loses nothing: it closes nothing.
    pub durable: bool,
    /// How long to wait for whatever is in the way. A store that knows what it is says so then.
    pub patience: Duration,
}

impl Default for Entry {
    fn default() -> Self {
        let max_ttl = LeaseSettings::default().ttl();
        Self {
            memory: None,
            stamp: fastrand::u64(..),
            max_ttl,
            bootstrap: false,
            durable: false,
            patience: Duration::from_secs(5),
        }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entered {
    /// The generation of the data.
    pub generation: Generation,
    /// Whether this entry wrote that generation.
    pub minted: bool,
    /// The run of the server.
    pub run: ServerRun,
    /// The longest ttl in the namespace.
    pub max_ttl: Duration,
    /// No token up to here is granted any more.
    pub token_floor: Token,
    /// Whether the store had forgotten a token that this process remembers.
    pub rolled_back: bool,
    /// How long nothing is granted.
    pub closed_for: Duration,
    /// Why this entry closed the namespace, if it did.
    pub closing: Option<QuarantineReason>,
    /// Why nothing is announced here, when that is so. Leases work; whoever waits for one learns of its release only
    /// when its ttl ends.
    pub silent: Option<String>,
}

/// Why an entry closed the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuarantineReason {
    /// The record was gone.
    RecordMissing,
    /// The record was of an older generation than remembered.
    OlderGeneration,
    /// The server was restarted.
    ServerRestarted,
    /// The store had forgotten a token that was remembered.
    TokensWentBack,
    /// There was no record, and others are listening: they may hold leases.
    OthersListening,
    /// There was no record, and the server is too young to tell a new namespace from a lost one.
    ServerTooYoung,
}

impl fmt::Display for QuarantineReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RecordMissing => "the store has lost its data",
            Self::OlderGeneration => "the store was restored from older data",
            Self::ServerRestarted => "the server was restarted",
            Self::TokensWentBack => "the store has forgotten tokens it had granted",
            Self::OthersListening => "there is no namespace record, yet other instances are connected",
            Self::ServerTooYoung => "there is no namespace record and the server started only recently",
        })
    }
}

/// How what was found relates to what a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuity {
    /// The same data in the same run: everything held goes on, with its old deadline.
    Same,
    /// Perhaps not the same: everything held must be verified by a renewal before new work starts.
    Changed,
    /// Other data: everything held is lost.
    Reset,
}

/// What a process remembers about a namespace between connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceMemory {
    /// The generation last entered.
    pub generation: Generation,
    /// The server run last entered.
    pub run: ServerRun,
    /// The highest token ever seen, over all leases.
    pub high_water: Token,
    /// The longest ttl known.
    pub max_ttl: Duration,
}

impl NamespaceMemory {
    /// The memory of a process that has just entered for the first time.
    pub fn of(entered: &Entered) -> Self {
        Self {
            generation: entered.generation,
            run: entered.run,
            high_water: entered.token_floor,
            max_ttl: entered.max_ttl,
        }
    }

    /// Remembers a token that was seen.
    pub fn saw(&mut self, token: Token) {
        self.high_water = self.high_water.max(token);
    }

    /// Remembers whatever a reply shows of tokens, one's own and those of others, and of the longest ttl. Every reply
    /// is to be shown: what nobody remembers cannot be restored after a loss.
    pub fn learn(&mut self, reply: &Reply) {
        match reply {
            Reply::Granted(grant) => {
                self.saw(grant.token);
                self.max_ttl = self.max_ttl.max(grant.max_ttl);
            }
            Reply::Renewed { max_ttl, .. } => self.max_ttl = self.max_ttl.max(*max_ttl),
            Reply::HandedOver { token } => self.saw(*token),
            Reply::Held(held) => {
                held.token.into_iter().for_each(|token| self.saw(token));
                self.max_ttl = self.max_ttl.max(held.max_ttl);
            }
            Reply::Lease(report) => report.last.iter().for_each(|last| self.saw(last.token)),
            _ => {}
        }
    }

    /// Whether an announcement says that the namespace is not the one that was entered: enter again.
    pub fn is_outdated_by(&self, announcement: &Announcement) -> bool {
        matches!(announcement, Announcement::GenerationMinted { generation } if *generation != self.generation)
    }

    /// Takes in what a later entry found, and says what that means for everything held.
    pub fn reenter(&mut self, entered: &Entered) -> Continuity {
        let continuity = if entered.minted {
            Continuity::Changed
        } else if entered.generation != self.generation {
            Continuity::Reset
        } else if entered.run != self.run || entered.rolled_back {
            Continuity::Changed
        } else {
            Continuity::Same
        };
        let high_water = self.high_water;
        *self = Self { max_ttl: self.max_ttl.max(entered.max_ttl), ..Self::of(entered) };
        self.saw(high_water);
        continuity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_later_entry_means_for_everything_held() {
        let entered = |number, minted, run| Entered {
            generation: Generation { number, stamp: 1 },
            minted,
            run: ServerRun(run),
            max_ttl: Duration::from_secs(30),
            token_floor: Token::ZERO,
            rolled_back: false,
            closed_for: Duration::ZERO,
            closing: None,
            silent: None,
        };
        let cases = [
            ("nothing happened", entered(5, false, 1), Continuity::Same),
            ("restarted, somebody else noticed first", entered(5, false, 2), Continuity::Changed),
            ("lost, we wrote the new generation", entered(6, true, 1), Continuity::Changed),
            ("lost, somebody else did", entered(6, false, 1), Continuity::Reset),
            (
                "lost, somebody else wrote a generation with the same number",
                Entered { generation: Generation { number: 5, stamp: 2 }, ..entered(5, false, 1) },
                Continuity::Reset,
            ),
            ("lost and restarted, somebody else wrote", entered(9, false, 2), Continuity::Reset),
            ("tokens went back", Entered { rolled_back: true, ..entered(5, false, 1) }, Continuity::Changed),
        ];
        for (case, later, expected) in cases {
            let mut memory = NamespaceMemory::of(&entered(5, true, 1));
            memory.saw(Token::MAX);
            assert_eq!(memory.reenter(&later), expected, "{case}");
            assert_eq!(memory.generation, later.generation, "{case}");
            assert_eq!(memory.high_water, Token::MAX, "{case}: the highest token is never forgotten");
        }
    }
}
