//! The reference behaviour of every store, as a pure state machine.
//!
//! The memory store wraps the ledger, the simulator runs it behind a simulated network, and the conformance suite holds
//! every other store to the same replies. The SQLite store loads the rows that a request needs into a ledger, lets it
//! decide, and writes back the changes. The ledger has no clock; the caller passes the server's time.

mod documents;
mod leases;
mod logs;
mod membership;
mod namespace;
mod ttls;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ending::Ending;
use crate::json;
use crate::mutation::Mutations;
use crate::name::{Group, InstanceId, LeaseName};
use crate::time::ServerTime;
use crate::token::{Nonce, Token};

use crate::store::{
    Announcement, Ask, DocumentId, Generation, Lineage, LogEntry, NamespaceReport, PreviousTerm, PublishedRecord,
    QuarantineReason, RecordedEnd, Reply, Request, ServerRun, TermNote,
};
pub use ttls::LiveTtls;
pub use ttls::TtlClass;

/// The contents of one namespace.
///
/// ```
/// use std::time::Duration;
/// use tenure::store::{AttachRequest, Claim, LeaseRequest, Ledger, Reply, ServerInfo, ServerRun};
/// use tenure::time::ServerTime;
/// use tenure::{InstanceId, LeaseName, Nonce};
///
/// let mut ledger = Ledger::default();
/// let request = AttachRequest { max_ttl: Duration::from_secs(30), ..AttachRequest::new(fastrand::u64(..)) };
/// let now = ServerTime::from_micros(1_736_598_400_000_000);
/// let uptime = Duration::from_secs(3_600);
/// let server = ServerInfo { now, run: ServerRun(1), uptime, subscribers: 0, has_served: false };
/// let attached = ledger.attach(&server, &request, &mut Vec::new());
///
/// let claim = Claim {
///     name: LeaseName::role("cleanup")?,
///     holder: InstanceId::new("api-1")?,
///     nonce: Nonce::new(fastrand::u128(..)),
///     ttl: Duration::from_secs(30),
/// };
/// let reply = ledger.apply(now, attached.generation, &LeaseRequest::Acquire { claim, ended: None }.into(), &mut Vec::new());
/// assert!(matches!(reply, Reply::Granted(grant) if grant.token.get() == 1_736_598_400_000_000));
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// The namespace record, unless there is none.
    #[doc(hidden)]
    pub namespace: Option<Namespace>,
    /// The lease keys.
    #[doc(hidden)]
    pub leases: BTreeMap<String, LeaseKey>,
    /// The records of the last terms.
    #[doc(hidden)]
    pub terms: BTreeMap<String, TermRecord>,
    /// Records beside leases, by lease and name.
    #[doc(hidden)]
    #[serde(with = "json::pairs")]
    pub records: BTreeMap<(String, String), PublishedRecord>,
    /// Logs beside leases, by lease and name.
    #[doc(hidden)]
    #[serde(with = "json::pairs")]
    pub logs: BTreeMap<(String, String), Vec<LogRecord>>,
    /// The leases whose logs are watched, and until when.
    #[doc(hidden)]
    pub watched: BTreeMap<String, ServerTime>,
    /// The documents.
    #[doc(hidden)]
    #[serde(with = "json::pairs")]
    pub documents: BTreeMap<DocumentId, Vec<u8>>,
    /// The heartbeats.
    #[doc(hidden)]
    #[serde(with = "json::pairs")]
    pub instances: BTreeMap<(Group, InstanceId), HeartbeatRecord>,
    /// The indexes.
    #[doc(hidden)]
    pub indexes: BTreeMap<String, BTreeSet<String>>,
    notes: VecDeque<TermNote>,
    /// The history of the server's data, which a flush does not change.
    lineage: Lineage,
    #[serde(skip)]
    mutations: Mutations,
}

/// What a server knows about itself when a client attaches.
///
/// ```
/// use std::time::Duration;
/// use tenure::store::{AttachRequest, Ledger, QuarantineReason, ServerInfo, ServerRun};
/// use tenure::time::ServerTime;
///
/// let (now, uptime) = (ServerTime::from_micros(1_736_598_400_000_000), Duration::from_secs(1));
/// let young = ServerInfo { now, run: ServerRun(1), uptime, subscribers: 0, has_served: false };
/// let attached = Ledger::default().attach(&young, &AttachRequest::new(fastrand::u64(..)), &mut Vec::new());
/// assert_eq!(attached.new_quarantine_reason(), Some(QuarantineReason::ServerTooYoung));
///
/// let old = ServerInfo { uptime: Duration::from_secs(3_600), ..young };
/// let attached = Ledger::default().attach(&old, &AttachRequest::new(fastrand::u64(..)), &mut Vec::new());
/// assert_eq!(attached.quarantine, None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// Its clock.
    pub now: ServerTime,
    /// Its run.
    pub run: ServerRun,
    /// How long it has been running.
    pub uptime: Duration,
    /// How many other subscribers the namespace's announcements have.
    pub subscribers: usize,
    /// Whether this run of the server has served the namespace before, even if its data is lost.
    pub has_served: bool,
}

/// The namespace record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// The version of the data.
    pub generation: Generation,
    /// The server run in which an instance last attached.
    pub run: ServerRun,
    /// The id of the data's history when it was last checked.
    pub lineage: u128,
    /// `None` once it is over, so that a clock that is set back does not restart it.
    pub quarantine: Option<QuarantineRecord>,
    /// The ttls that can still be relied on.
    pub ttls: LiveTtls,
    /// No smaller or equal token is minted.
    pub token_floor: Token,
}

/// A quarantine in the namespace record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantineRecord {
    /// When it ends.
    pub until: ServerTime,
    /// The length it had when it began. It never lasts longer, whatever the server's clock does.
    pub length: Duration,
    /// Why it began.
    pub reason: QuarantineReason,
    /// Whether the instance that began it remembered the namespace. Other instances only assume how long leases are.
    pub informed: bool,
}

impl QuarantineRecord {
    /// Whether an operator has ended it.
    pub fn is_reopened(&self) -> bool {
        self.length.is_zero()
    }
}

/// The lease key, all that a foreign program sees: a holder and an expiry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseKey {
    /// The holder.
    pub holder: InstanceId,
    /// When it expires.
    pub expires: Option<ServerTime>,
}

/// The record of the last term, which outlives the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermRecord {
    /// The token.
    pub token: Token,
    /// The holder.
    pub holder: InstanceId,
    /// `None` while the lease is reserved for the receiver of a hand-over.
    pub nonce: Option<Nonce>,
    /// The ttl of its class. The lease never has more than this left.
    pub ttl: Duration,
    /// When it began.
    pub since: ServerTime,
    /// How it ended, as far as the store knows.
    pub ended: RecordedEnd,
    /// Until when an earlier holder may rely on its term, which was taken over. `None` when there is nothing to wait
    /// for, so that a clock that is set back does not cause a wait.
    pub wait_out_until: Option<ServerTime>,
    /// When its work last made progress.
    pub progress: ServerTime,
    /// Whether it was renewed without progress since. Until then a lack of progress is not established.
    pub idled: bool,
    /// What is asked of its holder.
    pub asked: Option<Ask>,
    /// How its holder reported that it ended.
    pub ending: Option<Ending>,
    /// The term that was taken over, so that its holder can learn the reason.
    pub superseded: Option<Token>,
    /// The term before.
    pub previous: Option<PreviousTerm>,
}

/// An entry of a log, and the attempt that appended it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRecord {
    /// The entry.
    pub entry: LogEntry,
    /// The attempt.
    pub nonce: Nonce,
}

/// A heartbeat. It stays until heartbeats are listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatRecord {
    /// What the instance publishes about itself.
    pub record: Vec<u8>,
    /// When it expires.
    pub expires: ServerTime,
}

impl Ledger {
    /// Creates the ledger of a namespace with nothing loaded but its record.
    #[doc(hidden)]
    pub fn with_namespace(namespace: Option<Namespace>) -> Self {
        Self { namespace, ..Self::default() }
    }

    /// Carries out one request of a connection that attached to this generation, and collects the announcements.
    pub fn apply(
        &mut self,
        now: ServerTime,
        generation: Generation,
        request: &Request,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        match request {
            Request::Lease(request) => self.apply_to_leases(now, generation, request, announcements),
            Request::Membership(request) => self.apply_to_membership(now, request, announcements),
            Request::Document(request) => self.apply_to_documents(now, request, announcements),
            Request::Log(request) => self.apply_to_logs(now, request, announcements),
            Request::Announce(announcement) => {
                announcements.push(announcement.clone());
                Reply::Done
            }
        }
    }

    /// Deletes everything, as a flush does.
    pub fn flush(&mut self) {
        *self = Self { mutations: self.mutations, lineage: self.lineage, ..Self::default() };
    }

    /// Replaces the contents, in a way that leaves no trace in the history of the data.
    pub fn restore(&mut self, contents: Self) {
        *self = Self { lineage: self.lineage, ..contents };
    }

    /// Gives the server's data another history from now on.
    pub fn set_lineage(&mut self, lineage: Lineage) {
        self.lineage = lineage;
    }

    /// Writes a lease as a foreign program would: no term, no token.
    pub fn write_foreign(&mut self, name: &LeaseName, holder: &InstanceId, expires: Option<ServerTime>) {
        self.leases.insert(name.key().to_owned(), LeaseKey { holder: holder.clone(), expires });
    }

    /// Deletes a lease as a foreign program would.
    pub fn delete_foreign(&mut self, name: &LeaseName) {
        self.leases.remove(name.key());
    }

    /// Deletes the record of a lease's last term, as an eviction would.
    pub fn evict_term(&mut self, name: &LeaseName) {
        self.terms.remove(name.key());
    }

    /// Deletes the namespace record, as an eviction would.
    pub fn evict_namespace(&mut self) {
        self.namespace = None;
    }

    /// Overwrites the token in the record of a lease's last term, as a foreign program would.
    pub fn corrupt_token(&mut self, name: &LeaseName, token: Token) {
        if let Some(term) = self.terms.get_mut(name.key()) {
            term.token = token;
        }
    }

    /// The present holder of a lease, and the token that it was granted under.
    pub fn holder_of(&self, now: ServerTime, name: &LeaseName) -> Option<(InstanceId, Option<Token>)> {
        let lease = self.leases.get(name.key()).filter(|lease| lease.is_alive(now))?;
        Some((lease.holder.clone(), self.terms.get(name.key()).map(leases::granted_under)))
    }

    /// The state of the namespace.
    pub fn report(&self, now: ServerTime) -> NamespaceReport {
        let namespace = self.namespace.as_ref();
        NamespaceReport {
            generation: namespace.map(|namespace| namespace.generation),
            quarantine: namespace.and_then(|namespace| namespace.quarantine(now)),
            max_ttl: namespace.map_or(Duration::ZERO, |namespace| namespace.max_ttl(now)),
            server: now,
        }
    }

    /// Whether there is a record of any term.
    pub fn has_terms(&self) -> bool {
        !self.terms.is_empty()
    }

    /// Plants a mutation for the simulator to find.
    #[cfg(feature = "mutations")]
    #[doc(hidden)]
    pub fn plant(&mut self, mutation: crate::mutation::Mutation) {
        self.mutations.plant(mutation);
    }
}

impl LeaseKey {
    fn is_alive(&self, now: ServerTime) -> bool {
        self.expires.is_none_or(|expires| expires > now)
    }
}
