//! The reply to a request.

use std::time::Duration;

use crate::name::InstanceId;
use crate::time::ServerTime;
use crate::token::Token;

use super::{
    Ask, Grant, Held, LeaseReport, LiveInstance, LogEntry, NamespaceReport, PublishedRecord, Quarantine, Refusal,
    TermNote,
};

/// The reply to one request.
///
/// ```
/// use std::time::Duration;
/// use tenure::store::{AttachRequest, Claim, Keyspace, Outcome, Reply, LeaseRequest, open};
/// use tenure::{InstanceId, LeaseName, Nonce};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?;
/// let (name, holder) = (LeaseName::lease("report")?, InstanceId::new("api-1")?);
/// let claim = Claim { name, holder, nonce: Nonce::new(fastrand::u128(..)), ttl: Duration::from_secs(30) };
/// let acquire = LeaseRequest::Acquire { claim, ended: None };
/// match connection.submit(vec![acquire.into()], Duration::from_secs(1)).await.remove(0) {
///     Outcome::Answered(Reply::Granted(grant)) => println!("granted under token {}", grant.token),
///     Outcome::Answered(Reply::Held(held)) => println!("{} holds it", held.holder),
///     Outcome::Answered(Reply::Quarantined(quarantine)) => println!("{quarantine}"),
///     other => println!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// The documents in the order of the request; `None` where there is none.
    Documents(Vec<Option<Vec<u8>>>),
    /// The document is not what its writer has seen, but this; nothing was done.
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
