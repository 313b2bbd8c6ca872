//! What a store answers.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::lease::Ending;
use crate::name::InstanceId;
use crate::time::ServerTime;
use crate::token::Token;

use super::{Ask, Generation, Quarantine, TermNote};

/// An answer to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// The lease is the claimant's.
    Granted(Grant),
    /// The lease is somebody else's.
    Held(Held),
    /// No lease is granted for now: the store has lost data, and leases from before may still be relied on.
    Quarantined(Quarantine),
    /// The namespace is not the one that was attached: attach again.
    NotAttached,
    /// The claim was granted once and that term is over. Use a new nonce.
    TermOver,
    /// There is no larger token left.
    TokensExhausted,
    /// The term goes on.
    Renewed {
        /// The store's clock.
        server: ServerTime,
        /// The longest ttl that can be relied on, to be remembered: it is how long a quarantine lasts after a loss of data.
        max_ttl: Duration,
        /// What is asked of the holder.
        asked: Option<Ask>,
    },
    /// The term is over; nothing was done.
    Refused(Refusal),
    /// Done.
    Done,
    /// It is in use, or was until just now; nothing was done.
    InUse,
    /// The lease is kept for its new holder under this token.
    HandedOver {
        /// The new term.
        token: Token,
    },
    /// What is known about a lease.
    Lease(LeaseReport),
    /// What is known about the namespace.
    Namespace(NamespaceReport),
    /// Who has each lease, in the order in which they were asked for.
    Holders(Vec<Option<InstanceId>>),
    /// What stands in a record.
    Record(Option<PublishedRecord>),
    /// Entries of a log, the oldest first.
    LogEntries(Vec<LogEntry>),
    /// Each session in the order in which they were asked for, if it is there.
    Sessions(Vec<Option<Vec<u8>>>),
    /// A session is not what its writer has seen, but this; nothing was done.
    Conflict(Option<Vec<u8>>),
    /// Who is alive.
    Instances(Vec<LiveInstance>),
    /// A piece of what was looked for, and where to go on; there is no more at 0. A store into which no other program can write has nothing
    /// to be looked for, and says [`Done`](Self::Done).
    Found {
        /// What stands after the prefix of each. Some may be named twice.
        names: Vec<String>,
        /// Where this piece ends.
        cursor: u64,
    },
    /// The entries of an index.
    Index(Vec<String>),
    /// What was written down about terms, the latest last.
    Notes(Vec<TermNote>),
}

/// A lease that was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The term.
    pub token: Token,
    /// The store's clock.
    pub server: ServerTime,
    /// The longest ttl that can be relied on, to be remembered.
    pub max_ttl: Duration,
    /// How long the term before may still be relied on by its holder. No work may start earlier.
    pub wait_out: Duration,
    /// The term before, when there is a record of one.
    pub previous: Option<PreviousTerm>,
}

/// The term before the one that was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviousTerm {
    /// Its token.
    pub token: Token,
    /// Who held it.
    pub holder: InstanceId,
    /// How it ended, as far as the store knows.
    pub ended: RecordedEnd,
}

/// How a term ended, as far as the store knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedEnd {
    /// Nobody said that it ended: it ran out, or an outsider removed it.
    Unreported,
    /// Its holder let go of it.
    Released,
    /// Its holder handed it over.
    HandedOver,
    /// An operator ended it.
    Revoked,
    /// It was taken from a holder that made no progress.
    TakenOver,
}

impl RecordedEnd {
    const ALL: [Self; 5] = [Self::Unreported, Self::Released, Self::HandedOver, Self::Revoked, Self::TakenOver];

    /// The word for stores and interfaces.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreported => "silently",
            Self::Released => "released",
            Self::HandedOver => "handed_over",
            Self::Revoked => "revoked",
            Self::TakenOver => "taken_over",
        }
    }

    /// Reads that word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ended| ended.as_str() == word)
    }
}

/// A lease that somebody else has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Who has it.
    pub holder: InstanceId,
    /// The term, unless a foreign program holds it.
    pub token: Option<Token>,
    /// How long it is theirs without renewal, never more than the ttl of their term. `None`: for ever, the lease is stuck.
    pub remaining: Option<Duration>,
    /// How long ago its work last made progress, when that is known.
    pub idle: Option<Duration>,
    /// The longest ttl that can be relied on, to be remembered.
    pub max_ttl: Duration,
    /// The store's clock.
    pub server: ServerTime,
}

/// Why a request about a term was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another term has the lease.
    Taken {
        /// Who has it.
        holder: InstanceId,
    },
    /// The lease was taken because its holder made no progress.
    Stalled,
    /// The lease is free.
    Missing,
    /// The store knows nothing of this lease: it has lost its data.
    StoreReset,
    /// An operator ended the term.
    Revoked,
}

/// What is known about a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceReport {
    /// Its generation; `None` when there is no record of the namespace.
    pub generation: Option<Generation>,
    /// The time in which nothing is granted, when that is so.
    pub quarantine: Option<Quarantine>,
    /// The longest ttl that can be relied on.
    pub max_ttl: Duration,
    /// The store's clock.
    pub server: ServerTime,
}

/// What is known about a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseReport {
    /// Who has it now.
    pub held: Option<Held>,
    /// The last term on record: the present one, while it is held and did not say otherwise.
    pub last: Option<PreviousTerm>,
    /// When that term began, by the store's clock.
    pub since: Option<ServerTime>,
    /// How its holder said that it ended, if it did.
    pub ending: Option<Ending>,
    /// What is asked of the holder.
    pub asked: Option<Ask>,
}

impl LeaseReport {
    /// Whether it is held by a term that was revoked: its holder has not let go yet, and its ttl has not ended.
    pub fn is_revoked(&self) -> bool {
        let revoked = |last: &PreviousTerm| last.ended == RecordedEnd::Revoked;
        self.held
            .as_ref()
            .zip(self.last.as_ref())
            .is_some_and(|(held, last)| held.holder == last.holder && revoked(last))
    }
}

/// A record beside a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedRecord {
    /// The term it was published in.
    pub token: Token,
    /// When, by the store's clock.
    pub at: ServerTime,
    /// What was published.
    pub value: Vec<u8>,
}

/// Which entry of a log: the store's time in milliseconds when it was added, and how many were added before it in that one. The later, the larger.
///
/// ```
/// use tenure::store::EntryId;
///
/// let id: EntryId = "1736598400000-3".parse()?;
/// assert_eq!((id.millis, id.number, id.to_string().as_str()), (1_736_598_400_000, 3, "1736598400000-3"));
/// assert!("yesterday".parse::<EntryId>().is_err());
/// # Ok::<(), tenure::store::ParseEntryIdError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// When, in milliseconds of the store's clock; never less than that of the entry before.
    pub millis: u64,
    /// Which of those of this millisecond.
    pub number: u64,
}

impl EntryId {
    /// The smallest that is larger, if there is one.
    pub fn next(self) -> Option<Self> {
        match self.number.checked_add(1) {
            Some(number) => Some(Self { number, ..self }),
            None => Some(Self { millis: self.millis.checked_add(1)?, number: 0 }),
        }
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.millis, self.number)
    }
}

impl FromStr for EntryId {
    type Err = ParseEntryIdError;

    fn from_str(text: &str) -> Result<Self, ParseEntryIdError> {
        let (millis, number) = text.split_once('-').ok_or(ParseEntryIdError)?;
        let parse = |digits: &str| digits.parse().map_err(|_| ParseEntryIdError);
        Ok(Self { millis: parse(millis)?, number: parse(number)? })
    }
}

/// A text that names no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the name of an entry is two numbers with a hyphen between, such as 1736598400000-0")]
pub struct ParseEntryIdError;

/// An entry of a log beside a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Which.
    pub id: EntryId,
    /// The term it was added in.
    pub token: Token,
    /// What was added.
    pub value: Vec<u8>,
}

/// An instance that is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveInstance {
    /// Who.
    pub instance: InstanceId,
    /// What it says about itself.
    pub record: Vec<u8>,
    /// How long that may be believed.
    pub remaining: Duration,
}
