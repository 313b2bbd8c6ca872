//! The reference behaviour of every store, as a pure state machine.
//!
//! The memory store wraps the ledger, the simulator runs it behind a simulated network, and the conformance suite holds
//! every other store to the same replies. The SQLite store loads the rows that a request needs into a ledger, lets it
//! decide, and writes back the changes. The ledger has no clock; the caller passes the server's time.

mod fleet;
mod leases;
mod namespace;
mod notes;
mod sessions;
mod ttls;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::lease::Ending;
use crate::mutation::Mutations;
use crate::name::{Group, InstanceId, LeaseName};
use crate::time::ServerTime;
use crate::token::{Nonce, Token};

use super::{
    Announcement, Ask, Generation, Lineage, LogEntry, NamespaceReport, PreviousTerm, PublishedRecord, QuarantineReason,
    RecordedEnd, Reply, Request, ServerRun, TermNote,
};
pub(super) use ttls::LiveTtls;
#[cfg(feature = "sqlite")]
pub(super) use ttls::TtlClass;

/// The contents of one namespace.
///
/// ```
/// use std::time::Duration;
/// use tenure::store::{Claim, AttachRequest, Ledger, Reply, Request, ServerInfo, ServerRun};
/// use tenure::time::ServerTime;
/// use tenure::{InstanceId, LeaseName, Nonce};
///
/// let mut ledger = Ledger::default();
/// let request = AttachRequest { max_ttl: Duration::from_secs(30), ..AttachRequest::default() };
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
/// let reply = ledger.apply(now, attached.generation, &Request::Acquire { claim, ended: None }, &mut Vec::new());
/// assert!(matches!(reply, Reply::Granted(grant) if grant.token.get() == 1_736_598_400_000_000));
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub(super) namespace: Option<Namespace>,
    pub(super) leases: BTreeMap<String, LeaseKey>,
    pub(super) terms: BTreeMap<String, TermRecord>,
    pub(super) records: BTreeMap<(String, String), PublishedRecord>,
    pub(super) logs: BTreeMap<(String, String), Vec<LogEntry>>,
    pub(super) sessions: BTreeMap<String, Vec<u8>>,
    pub(super) instances: BTreeMap<(Group, InstanceId), HeartbeatRecord>,
    pub(super) indexes: BTreeMap<String, BTreeSet<String>>,
    notes: VecDeque<TermNote>,
    /// The history of the server's data, which a flush does not change.
    lineage: Lineage,
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
/// let attached = Ledger::default().attach(&young, &AttachRequest::default(), &mut Vec::new());
/// assert_eq!(attached.new_quarantine_reason(), Some(QuarantineReason::ServerTooYoung));
///
/// let old = ServerInfo { uptime: Duration::from_secs(3_600), ..young };
/// let attached = Ledger::default().attach(&old, &AttachRequest::default(), &mut Vec::new());
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Namespace {
    pub(super) generation: Generation,
    pub(super) run: ServerRun,
    /// The id of the data's history when it was last checked.
    pub(super) lineage: u128,
    /// `None` once it is over, so that a clock that is set back does not restart it.
    pub(super) quarantine: Option<QuarantineRecord>,
    pub(super) ttls: LiveTtls,
    pub(super) token_floor: Token,
}

/// A quarantine in the namespace record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QuarantineRecord {
    pub(super) until: ServerTime,
    /// The length it had when it began. It never lasts longer, whatever the server's clock does.
    pub(super) length: Duration,
    pub(super) reason: QuarantineReason,
    /// Whether the instance that began it remembered the namespace. Other instances only assume how long leases are.
    pub(super) informed: bool,
}

impl QuarantineRecord {
    /// Whether an operator has ended it.
    pub(super) fn is_reopened(&self) -> bool {
        self.length.is_zero()
    }
}

/// The lease key, all that a foreign program sees: a holder and an expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaseKey {
    pub(super) holder: InstanceId,
    pub(super) expires: Option<ServerTime>,
}

/// The record of the last term, which outlives the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TermRecord {
    pub(super) token: Token,
    pub(super) holder: InstanceId,
    /// `None` while the lease is reserved for the receiver of a hand-over.
    pub(super) nonce: Option<Nonce>,
    /// The ttl of its class. The lease never has more than this left.
    pub(super) ttl: Duration,
    pub(super) since: ServerTime,
    pub(super) ended: RecordedEnd,
    /// Until when an earlier holder may rely on its term, which was taken over. `None` when there is nothing to wait
    /// for, so that a clock that is set back does not cause a wait.
    pub(super) wait_out_until: Option<ServerTime>,
    pub(super) progress: ServerTime,
    /// Whether it was renewed without progress since. Until then a lack of progress is not established.
    pub(super) idled: bool,
    pub(super) asked: Option<Ask>,
    /// How its holder reported that it ended.
    pub(super) ending: Option<Ending>,
    /// The term that was taken over, so that its holder can learn the reason.
    pub(super) superseded: Option<Token>,
    pub(super) previous: Option<PreviousTerm>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeartbeatRecord {
    pub(super) record: Vec<u8>,
    pub(super) expires: ServerTime,
}

impl Ledger {
    /// Creates the ledger of a namespace with nothing loaded but its record.
    #[cfg(feature = "sqlite")]
    pub(super) fn with_namespace(namespace: Option<Namespace>) -> Self {
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
            Request::Acquire { claim, ended } => self.acquire(now, generation, claim, *ended, announcements),
            Request::TakeOver { claim, victim, stale_after } => {
                self.take_over(now, generation, claim, (*victim, *stale_after), announcements)
            }
            Request::Renew { holding, ttl, progressed } => self.renew(now, holding, *ttl, *progressed, announcements),
            Request::Release { holding, ending } => self.release(now, holding, ending, announcements),
            Request::Abandon { name, holder, nonce } => self.abandon(now, name, holder, *nonce, announcements),
            Request::HandOver { holding, to, window } => self.hand_over(now, holding, to, *window, announcements),
            Request::Revoke { name, token } => self.revoke(now, name, *token, announcements),
            Request::Ask { name, token, ask } => self.ask(now, name, *token, ask, announcements),
            Request::Inspect { name } => self.inspect(now, name),
            Request::InspectNamespace => Reply::Namespace(self.report(now)),
            Request::Reopen { generation } => self.reopen(now, *generation, announcements),
            Request::Holders { names } => Reply::Holders(names.iter().map(|name| self.holder(now, name)).collect()),
            Request::Publish { holding, record, value, announced } => {
                self.publish(now, holding, record, value, announced.then_some(announcements))
            }
            Request::Read { name, record } => self.read(name, record),
            Request::Append { holding, log, value, kept, records } => {
                self.append(now, holding, log, value, *kept, records)
            }
            Request::ReadLog { name, log, after, limit } => self.read_log(name, log, *after, *limit),
            Request::Forget { name, idle_for, session, .. } => self.forget(now, name, *idle_for, session),
            Request::WriteSession { id, expected: seen, value, fresh } => {
                self.write_session(id, seen.as_deref(), value.as_deref(), *fresh, announcements)
            }
            Request::ReadSessions { ids } => {
                Reply::Sessions(ids.iter().map(|id| self.sessions.get(id).cloned()).collect())
            }
            Request::Announce(announcement) => {
                announcements.push(announcement.clone());
                Reply::Done
            }
            Request::Heartbeat { group, instance, ttl, record } => {
                self.beat(now, group, instance, *ttl, record, announcements)
            }
            Request::Leave { group, instance } => self.leave(now, group, instance, announcements),
            Request::Instances { group } => self.list_instances(now, group),
            // Only Tenure writes to this store, so every record is already in its index.
            Request::Adopt { .. } | Request::Scan { .. } => Reply::Done,
            Request::IndexAdd { index, entry, announced } => self.index_add(index, entry, *announced, announcements),
            Request::IndexRemove { index, entry, announced } => {
                self.index_remove(index, entry, *announced, announcements)
            }
            Request::IndexList { index } => self.index_list(index),
            Request::Note(note) => self.write_note(note),
            Request::Notes { limit } => self.latest_notes(*limit),
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
    pub fn plant(&mut self, mutation: crate::mutation::Mutation) {
        self.mutations.plant(mutation);
    }
}

impl LeaseKey {
    fn is_alive(&self, now: ServerTime) -> bool {
        self.expires.is_none_or(|expires| expires > now)
    }
}
