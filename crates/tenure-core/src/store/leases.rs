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
///
/// ```
/// use std::time::Duration;
/// use tenure::store::{AttachRequest, Claim, Keyspace, Outcome, Reply, Request, open};
/// use tenure::{InstanceId, LeaseName, Nonce};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let connection = store.attach(AttachRequest::default()).await?;
/// let (name, holder) = (LeaseName::lease("report")?, InstanceId::new("api-1")?);
/// let claim = Claim { name, holder, nonce: Nonce::new(fastrand::u128(..)), ttl: Duration::from_secs(30) };
/// let acquire = Request::Acquire { claim, ended: None };
/// match connection.submit(vec![acquire], Duration::from_secs(1)).await.remove(0) {
///     Outcome::Answered(Reply::Granted(grant)) => println!("granted under token {}", grant.token),
///     Outcome::Answered(Reply::Held(held)) => println!("{} holds it", held.holder),
///     Outcome::Answered(Reply::Quarantined(quarantine)) => println!("{quarantine}"),
///     other => println!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
///
/// ```
/// use std::time::Duration;
/// use tenure::store::{AttachRequest, Keyspace, Outcome, Reply, open};
///
/// # fn acquire(holder: &str) -> Result<tenure::store::Request, tenure::NameError> {
/// #     let (name, holder) = (tenure::LeaseName::lease("report")?, tenure::InstanceId::new(holder)?);
/// #     let (nonce, ttl) = (tenure::Nonce::new(fastrand::u128(..)), std::time::Duration::from_secs(30));
/// #     let claim = tenure::store::Claim { name, holder, nonce, ttl };
/// #     Ok(tenure::store::Request::Acquire { claim, ended: None })
/// # }
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let connection = store.attach(AttachRequest::default()).await?;
/// let outcome = connection.submit(vec![acquire("api-1")?], Duration::from_secs(1)).await.remove(0);
/// let Outcome::Answered(Reply::Granted(grant)) = outcome else { panic!("{outcome:?}") };
/// assert!(grant.wait_out.is_zero()); // work may start at once
/// assert_eq!(grant.previous, None); // the first term of this lease
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
///
/// ```
/// use tenure::Tenure;
/// use tenure::store::RecordedEnd;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("report").acquire().await?;
/// let token = lease.token();
/// lease.release().await?;
/// let last = tenure.admin().inspect("report").await?.last.ok_or("never held")?;
/// assert_eq!((last.token, &last.holder, last.ended), (token, tenure.instance(), RecordedEnd::Released));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
///
/// ```
/// use tenure::Tenure;
/// use tenure::store::RecordedEnd;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("report").acquire().await?;
/// # tenure.admin().revoke("report").await?;
/// let last = tenure.admin().inspect("report").await?.last.ok_or("never held")?;
/// match last.ended {
///     RecordedEnd::Released | RecordedEnd::HandedOver => println!("its work had ended"),
///     RecordedEnd::Revoked => println!("an operator ended it"),
///     RecordedEnd::Unreported | RecordedEnd::TakenOver => println!("in progress, crashed or stuck"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
///
/// ```
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("report").acquire().await?;
/// let held = tenure.admin().inspect("report").await?.held.ok_or("unheld")?;
/// assert_eq!((&held.holder, held.token), (tenure.instance(), Some(lease.token())));
/// match held.remaining {
///     Some(remaining) => println!("{} holds it for {remaining:?} without renewal", held.holder),
///     None => println!("{} holds it for ever: delete the key", held.holder),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
///
/// ```
/// use std::time::Duration;
/// use tenure::store::{AttachRequest, Holding, Keyspace, Outcome, Refusal, Reply, Request, open};
/// use tenure::{InstanceId, LeaseName, Token};
///
/// # fn acquire(holder: &str) -> Result<tenure::store::Request, tenure::NameError> {
/// #     let (name, holder) = (tenure::LeaseName::lease("report")?, tenure::InstanceId::new(holder)?);
/// #     let (nonce, ttl) = (tenure::Nonce::new(fastrand::u128(..)), std::time::Duration::from_secs(30));
/// #     let claim = tenure::store::Claim { name, holder, nonce, ttl };
/// #     Ok(tenure::store::Request::Acquire { claim, ended: None })
/// # }
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let connection = store.attach(AttachRequest::default()).await?;
/// let (name, holder) = (LeaseName::lease("report")?, InstanceId::new("api-2")?);
/// let holding = Holding { name, holder, token: Token::ZERO }; // a term that is over
/// let renew = Request::Renew { holding, ttl: Duration::from_secs(30), progressed: true };
/// let outcomes = connection.submit(vec![acquire("api-1")?, renew], Duration::from_secs(1)).await;
/// let holder = InstanceId::new("api-1")?;
/// assert_eq!(outcomes[1], Outcome::Answered(Reply::Refused(Refusal::Taken { holder })));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
///
/// ```
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let report = tenure.admin().namespace().await?;
/// match (report.generation, report.quarantine) {
///     (Some(generation), Some(quarantine)) => println!("{quarantine}, or reopen generation {generation:?}"),
///     (Some(_), None) => println!("leases are granted, for up to {:?}", report.max_ttl),
///     (None, _) => println!("this store was never used"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
///
/// ```
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let report = tenure.admin().inspect("report").await?;
/// assert!(report.held.is_none() && report.last.is_none()); // it was never held
///
/// let lease = tenure.lease("report").acquire().await?;
/// let report = tenure.admin().inspect("report").await?;
/// assert_eq!(report.last.map(|last| last.token), Some(lease.token()));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
///
/// ```
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("import").acquire().await?;
/// lease.publish("position", "row 17").await?;
///
/// let record = tenure.read("import", "position").await?.ok_or("not published")?;
/// assert_eq!(record.text(), Some("row 17"));
/// if record.token < lease.token() {
///     println!("written in an earlier term");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
/// # #[cfg(feature = "memory")]
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
///
/// ```
/// use tenure::Tenure;
/// use tenure::fleet::InstanceRecord;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// tenure.fleet().join(&InstanceRecord::new("api-1"));
/// # while tenure.fleet().instances().await?.is_empty() {
/// #     tokio::time::sleep(std::time::Duration::from_millis(5)).await;
/// # }
/// let live = tenure.fleet().instances().await?.remove(0);
/// let record = InstanceRecord::decode(&live.record).ok_or("does not use Tenure")?;
/// assert_eq!((&live.instance, record.name.as_str()), (tenure.instance(), "api-1"));
/// assert!(live.remaining <= record.heartbeat_ttl);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveInstance {
    /// The instance.
    pub instance: InstanceId,
    /// What the instance publishes about itself.
    pub record: Vec<u8>,
    /// How long the heartbeat is still valid.
    pub remaining: Duration,
}
