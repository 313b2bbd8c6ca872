//! A namespace: the version of its data, the server it is on, and its quarantine.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The version of a namespace's data.
///
/// The number increases and is minted like a token. It would not suffice alone: two processes that remember the same
/// number can each mint the next one, for two different losses. So the minting instance adds a random stamp.
///
/// ```
/// use tenure::Tenure;
/// use tenure::store::Generation;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let admin = Tenure::connect("memory:").await?.admin();
/// let generation = admin.namespace().await?.generation.ok_or("no record of the namespace")?;
/// let outdated = Generation { stamp: generation.stamp ^ 1, ..generation };
/// assert!(!admin.reopen(outdated).await?); // the operator has seen another loss of data
/// assert!(admin.reopen(generation).await?);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Generation {
    /// Increases with every generation.
    pub number: u64,
    /// Random, to distinguish generations with the same number.
    pub stamp: u64,
}

/// The run of the server: it differs after every restart, failover included.
///
/// ```
/// use tenure::store::memory::{MemoryStore, Survival};
/// use tenure::store::{AttachRequest, Store};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = MemoryStore::default();
/// let before = store.attach(AttachRequest::new(fastrand::u64(..))).await?.attached().run;
/// store.faults().restart(Survival::All);
/// let after = store.attach(AttachRequest::new(fastrand::u64(..))).await?.attached().run;
/// assert_ne!(before, after);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ServerRun(pub u128);

impl fmt::Display for ServerRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The history of the server's data, as replication identifies it.
///
/// The id changes when the data is replaced by another server's. It also changes with the data intact, when replication
/// begins or ends. The id before distinguishes the two.
///
/// ```
/// use tenure::store::Lineage;
///
/// let recorded = 1;
/// let promoted = Lineage { id: 3, before: Some(1) }; // a replica with the recorded data, now a primary
/// assert!(promoted.is_continuation_of(recorded));
/// let replaced = Lineage { id: 3, before: Some(2) }; // the data of another server
/// assert!(!replaced.is_continuation_of(recorded));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lineage {
    /// The present id.
    pub id: u128,
    /// The id of the data that the present history began with. `None` when it began with the data that was there.
    pub before: Option<u128>,
}

impl Lineage {
    /// Whether this is still the data that had the recorded id.
    pub fn is_continuation_of(&self, recorded: u128) -> bool {
        self.id == recorded || self.before.is_none_or(|before| before == recorded)
    }
}

/// A time in which nothing is granted, because holders may still rely on leases from before a loss of data.
///
/// ```
/// use std::sync::Arc;
/// use tenure::store::memory::{MemoryStore, Survival};
/// use tenure::{AcquireError, Tenure};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = MemoryStore::default();
/// store.faults().restart(Survival::None); // the server may have lost data
/// let tenure = Tenure::with_store(Arc::new(store)).connect().await?;
/// match tenure.lease("report").try_acquire().await {
///     Err(AcquireError::Quarantined(quarantine)) => println!("{}; {}", quarantine.reason, quarantine.advice()),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// How long it still lasts.
    pub remaining: Duration,
    /// Why it began.
    pub reason: QuarantineReason,
}

impl Quarantine {
    /// What an operator can do about it.
    pub fn advice(&self) -> &'static str {
        match self.reason {
            QuarantineReason::ServerTooYoung => {
                "if nothing else uses this server: --bootstrap (in a program: TenureBuilder::bootstrap), or tenure reopen"
            }
            _ => "if no holder from before is alive: tenure reopen",
        }
    }
}

impl fmt::Display for Quarantine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.remaining.as_millis().div_ceil(1_000);
        write!(f, "quarantine: {seconds} s left, because {}; {}", self.reason, self.advice())
    }
}

/// Why a quarantine began.
///
/// ```
/// use tenure::Tenure;
/// use tenure::store::QuarantineReason;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// match tenure.admin().namespace().await?.quarantine.map(|quarantine| quarantine.reason) {
///     None => println!("leases are granted"),
///     Some(QuarantineReason::ServerTooYoung) => println!("is the server new? then use `TenureBuilder::bootstrap`"),
///     Some(reason) => println!("{reason}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum QuarantineReason {
    /// The record was missing.
    RecordMissing,
    /// The record was of an older generation than remembered.
    OlderGeneration,
    /// The server was restarted.
    ServerRestarted,
    /// The data was replaced: by another server's, or by a file without its latest writes.
    DataReplaced,
    /// The store had lost a remembered token.
    TokensWentBack,
    /// There was no record, and there are other subscribers: they may hold leases.
    OthersListening,
    /// There was no record, although this run of the server had one before.
    RecordErased,
    /// There was no record, and the server's uptime is too short to distinguish a new namespace from a lost one.
    ServerTooYoung,
}

impl QuarantineReason {
    const ALL: [Self; 8] = [
        Self::RecordMissing,
        Self::OlderGeneration,
        Self::ServerRestarted,
        Self::DataReplaced,
        Self::TokensWentBack,
        Self::OthersListening,
        Self::RecordErased,
        Self::ServerTooYoung,
    ];

    /// The word for stores and interfaces.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RecordMissing => "record_missing",
            Self::OlderGeneration => "older_generation",
            Self::ServerRestarted => "server_restarted",
            Self::DataReplaced => "data_replaced",
            Self::TokensWentBack => "tokens_went_back",
            Self::OthersListening => "others_listening",
            Self::RecordErased => "record_erased",
            Self::ServerTooYoung => "server_too_young",
        }
    }

    /// Reads that word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word)
    }
}

impl fmt::Display for QuarantineReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RecordMissing => "the store has lost its data",
            Self::OlderGeneration => "the store was restored from older data",
            Self::ServerRestarted => "the server was restarted",
            Self::DataReplaced => "the store's data was replaced by other data",
            Self::TokensWentBack => "the store has forgotten tokens it had granted",
            Self::OthersListening => "there is no namespace record, yet other instances are connected",
            Self::RecordErased => "the namespace record was erased while the server was running",
            Self::ServerTooYoung => "there is no namespace record and the server started only recently",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_read_back_as_they_were_written() {
        for reason in QuarantineReason::ALL {
            assert_eq!(QuarantineReason::from_word(reason.as_str()), Some(reason));
        }
        assert_eq!(QuarantineReason::from_word("rain"), None);
    }
}
