//! Logs: entries that the holder of a lease appends, and notes about terms.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use serde::{Deserialize, Serialize};

use crate::name::LeaseName;
use crate::token::{Nonce, Token};

use super::{Holding, TermNote};

/// Requests about logs.
///
/// ```
/// use std::time::Duration;
/// use tenure::LeaseName;
/// use tenure::store::{AttachRequest, Keyspace, LogRequest, Outcome, Reply, open};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?;
/// let read = LogRequest::Read { name: LeaseName::lease("import")?, log: "imported".to_owned(), after: None, limit: 10 };
/// let outcomes = connection.submit(vec![read.into()], Duration::from_secs(1)).await;
/// assert_eq!(outcomes[0], Outcome::Answered(Reply::LogEntries(Vec::new())));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogRequest {
    /// Adds an entry to a log beside a lease, unless the term is over. A repeated request adds
    /// nothing.
    Append {
        /// The term.
        holding: Holding,
        /// Which log.
        log: String,
        /// The entry.
        value: Vec<u8>,
        /// How many of the latest entries to keep; at least one.
        kept: usize,
        /// The attempt: a repeated request with the same nonce is the same attempt.
        nonce: Nonce,
        /// Records beside the lease to write with the entry, and their values.
        records: Vec<(String, Vec<u8>)>,
    },
    /// Reads a log, the oldest entry first: the latest entries, or the first ones after a known entry.
    Read {
        /// Which lease.
        name: LeaseName,
        /// Which log.
        log: String,
        /// The known entry.
        after: Option<EntryId>,
        /// The maximum number of entries.
        limit: usize,
    },
    /// Asks that entries appended to the logs of a lease are announced, for a while: each is an
    /// [`Appended`](super::Announcement::Appended).
    Watch {
        /// Which lease.
        name: LeaseName,
        /// For how long, from now.
        ttl: Duration,
    },
    /// Writes a note about a term. Only a limited number of notes is kept.
    Note(TermNote),
    /// Lists the latest notes.
    Notes {
        /// The maximum number of notes.
        limit: usize,
    },
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
///
/// ```
/// use tenure::store::EntryId;
///
/// let saved = "1736598400000"; // the position up to which a reader has read
/// match saved.parse::<EntryId>() {
///     Ok(after) => println!("continue after {after}"),
///     Err(error) => println!("{error}; begin with the oldest entry"),
/// }
/// # assert!(saved.parse::<EntryId>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("cannot parse the entry id: expected two numbers with a hyphen between, such as 1736598400000-0")]
pub struct ParseEntryIdError;

/// An entry of a log beside a lease.
///
/// ```
/// use tenure::Tenure;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("import").acquire().await?;
/// lease.append("imported", "monday", 100).await?;
/// let mut position = None;
/// for entry in tenure.recent("import", "imported", position, 10).await? {
///     println!("{:?}, in term {}", entry.text(), entry.token);
///     position = Some(entry.id);
/// }
/// assert!(tenure.recent("import", "imported", position, 10).await?.is_empty()); // nothing new
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
