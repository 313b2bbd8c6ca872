//! The replies of a store.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::lease::Ending;
use crate::name::InstanceId;
use crate::time::ServerTime;
use crate::token::Token;

use super::{Ask, Generation, Quarantine, TermNote};

/// The reply to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// The claimant holds the lease.
    Granted(Grant),
    /// Another instance holds the lease.
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
        /// The longest ttl that can be relied on. The holder must remember it: it is how long a quarantine lasts after
        /// a loss of data.
        max_ttl: Duration,
        /// What is asked of the holder.
        asked: Option<Ask>,
    },
    /// The term is over; nothing was done.
    Refused(Refusal),
    /// Done.
    Done,
    /// The object is in use, or was until just now; nothing was done.
    InUse,
    /// The lease is reserved for its new holder under this token.
    HandedOver {
        /// The new term.
        token: Token,
    },
    /// The state of a lease.
    Lease(LeaseReport),
    /// The state of the namespace.
    Namespace(NamespaceReport),
    /// The holder of each lease, in the order of the request.
    Holders(Vec<Option<InstanceId>>),
    /// The content of a record.
    Record(Option<PublishedRecord>),
    /// Entries of a log, the oldest first.
    LogEntries(Vec<LogEntry>),
    /// The sessions in the order of the request; `None` where there is none.
    Sessions(Vec<Option<Vec<u8>>>),
    /// The session is not what its writer has seen, but this; nothing was done.
    Conflict(Option<Vec<u8>>),
    /// The instances that are alive.
    Instances(Vec<LiveInstance>),
    /// A piece of a scan, and the cursor to continue at; 0 means that the scan is complete. A store that no other
    /// program can write to has nothing to scan, and replies [`Done`](Self::Done).
    Found {
        /// The part after the prefix of each key. A name may occur twice.
        names: Vec<String>,
        /// The cursor of the next piece.
        cursor: u64,
    },
    /// The entries of an index.
    Index(Vec<String>),
    /// Notes about terms, the latest last.
    Notes(Vec<TermNote>),
}

/// A lease that was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The term.
    pub token: Token,
    /// The store's clock.
    pub server: ServerTime,
    /// The longest ttl that can be relied on. The holder must remember it.
    pub max_ttl: Duration,
    /// How long the previous holder may still rely on its term. No work may start earlier.
    pub wait_out: Duration,
    /// The previous term, when there is a record of one.
    pub previous: Option<PreviousTerm>,
}

/// The term before the granted one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviousTerm {
    /// Its token.
    pub token: Token,
    /// Its holder.
    pub holder: InstanceId,
    /// How it ended, as far as the store knows.
    pub ended: RecordedEnd,
}

/// How a term ended, as far as the store knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedEnd {
    /// No end was reported: it expired, or another program deleted it.
    Unreported,
    /// Its holder released it.
    Released,
    /// Its holder handed it over.
    HandedOver,
    /// An operator ended it.
    Revoked,
    /// Another instance took it over from a holder that made no progress.
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

/// A lease that another instance holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The holder.
    pub holder: InstanceId,
    /// The term, unless a foreign program holds it.
    pub token: Option<Token>,
    /// How long the holder keeps it without renewal, at most the ttl of its term. `None`: for ever, the lease is stuck.
    pub remaining: Option<Duration>,
    /// How long ago the work last made progress, when that is known.
    pub idle: Option<Duration>,
    /// The longest ttl that can be relied on. The claimant must remember it.
    pub max_ttl: Duration,
    /// The store's clock.
    pub server: ServerTime,
}

/// Why a request about a term was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another term holds the lease.
    Taken {
        /// The holder.
        holder: InstanceId,
    },
    /// Another instance took the lease over because its holder made no progress.
    Stalled,
    /// The lease is unheld.
    Missing,
    /// The store has no record of this lease: it has lost its data.
    StoreReset,
    /// An operator ended the term.
    Revoked,
}

/// The state of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceReport {
    /// Its generation; `None` when there is no record of the namespace.
    pub generation: Option<Generation>,
    /// The quarantine, if there is one.
    pub quarantine: Option<Quarantine>,
    /// The longest ttl that can be relied on.
    pub max_ttl: Duration,
    /// The store's clock.
    pub server: ServerTime,
}

/// The state of a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseReport {
    /// The present holder.
    pub held: Option<Held>,
    /// The last term on record: the present one, if the lease is held and that term has not ended.
    pub last: Option<PreviousTerm>,
    /// When that term began, by the store's clock.
    pub since: Option<ServerTime>,
    /// How the holder reported that the term ended, if it did.
    pub ending: Option<Ending>,
    /// What is asked of the holder.
    pub asked: Option<Ask>,
}

impl LeaseReport {
    /// Whether the lease is held by a revoked term: its holder has not released it yet, and its ttl has not ended.
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
    /// The published value.
    pub value: Vec<u8>,
}

impl PublishedRecord {
    /// The value as text, if it is text.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.value).ok()
    }
}

/// The position of an entry in a log: the store's time in milliseconds when it was added, and the number of entries
/// added before it in the same millisecond. A later entry has a larger id.
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
    /// The store's time in milliseconds; never less than that of the entry before.
    pub millis: u64,
    /// The number within this millisecond.
    pub number: u64,
}

impl EntryId {
    /// The next larger id, if there is one.
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

/// A text that is not a valid entry id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("cannot parse the entry id: expected two numbers with a hyphen between, such as 1736598400000-0")]
pub struct ParseEntryIdError;

/// An entry of a log beside a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its id.
    pub id: EntryId,
    /// The term it was added in.
    pub token: Token,
    /// The added value.
    pub value: Vec<u8>,
}

impl LogEntry {
    /// The value as text, if it is text.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.value).ok()
    }
}

/// An instance that is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveInstance {
    /// The instance.
    pub instance: InstanceId,
    /// What the instance publishes about itself.
    pub record: Vec<u8>,
    /// How long the heartbeat is still valid.
    pub remaining: Duration,
}
