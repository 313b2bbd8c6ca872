//! The requests that a store answers.

use std::time::Duration;

use crate::lease::Ending;
use crate::name::{Group, InstanceId, LeaseName};
use crate::token::{Nonce, Token};

use super::{Announcement, EntryId, Generation, TermNote};

/// A request for a lease: the claimant and its attempt.
///
/// ```
/// use std::time::Duration;
/// use tenure::store::{AttachRequest, Claim, Keyspace, Request, open};
/// use tenure::{InstanceId, LeaseName, Nonce};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let connection = store.attach(AttachRequest::default()).await?;
/// let claim = Claim {
///     name: LeaseName::lease("report")?,
///     holder: InstanceId::new("api-1")?,
///     nonce: Nonce::new(fastrand::u128(..)),
///     ttl: Duration::from_secs(30),
/// };
/// let acquire = Request::Acquire { claim, ended: None };
/// let outcomes = connection.submit(vec![acquire.clone(), acquire], Duration::from_secs(1)).await;
/// assert_eq!(outcomes[0], outcomes[1]); // the same attempt, the same term
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which lease.
    pub name: LeaseName,
    /// The claimant.
    pub holder: InstanceId,
    /// The attempt: a repeated claim with the same nonce is the same attempt.
    pub nonce: Nonce,
    /// The ttl of the lease.
    pub ttl: Duration,
}

/// A term as its holder names it. The store refuses requests about a term unless holder *and* token are the current
/// ones.
///
/// ```
/// use std::time::Duration;
/// use tenure::store::{AttachRequest, Holding, Keyspace, Outcome, Reply, Request, open};
/// use tenure::{InstanceId, LeaseName};
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
/// let (name, holder) = (LeaseName::lease("report")?, InstanceId::new("api-1")?);
/// let holding = Holding { name, holder, token: grant.token };
/// let renew = Request::Renew { holding, ttl: Duration::from_secs(30), progressed: true };
/// let outcome = connection.submit(vec![renew], Duration::from_secs(1)).await.remove(0);
/// assert!(matches!(outcome, Outcome::Answered(Reply::Renewed { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Which lease.
    pub name: LeaseName,
    /// The holder.
    pub holder: InstanceId,
    /// The token of the term.
    pub token: Token,
}

/// Something asked of a holder. It is stored, so that it reaches a holder that missed the announcement.
///
/// ```
/// use tenure::InstanceId;
/// use tenure::store::Ask;
///
/// let ask = Ask::StepDown { to: Some(InstanceId::new("api-2")?) }; // as `Admin::step_down` stores it
/// assert_eq!(ask.encode(), "step_down api-2");
/// assert_eq!(Ask::decode("step_down"), Some(Ask::StepDown { to: None }));
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Release the lease, in favour of the named instance if there is one.
    StepDown {
        /// The preferred next holder.
        to: Option<InstanceId>,
    },
}

impl Ask {
    /// Encodes it as text that [`decode`](Self::decode) reads.
    pub fn encode(&self) -> String {
        match self {
            Self::StepDown { to: None } => "step_down".to_owned(),
            Self::StepDown { to: Some(to) } => format!("step_down {to}"),
        }
    }

    /// Reads what [`encode`](Self::encode) wrote; `None` for anything else.
    pub fn decode(text: &str) -> Option<Self> {
        let (what, to) = text.split_once(' ').map_or((text, None), |(what, to)| (what, Some(to)));
        let to = to.map(InstanceId::new).transpose().ok()?;
        (what == "step_down").then_some(Self::StepDown { to })
    }
}

/// Records that any program may write without adding them to an index.
///
/// ```
/// use std::time::Duration;
/// use tenure::store::{AttachRequest, ForeignKind, Keyspace, Outcome, Reply, Request, open};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?; // or "redis://localhost"
/// let connection = store.attach(AttachRequest::default()).await?;
/// let mut cursor = 0;
/// loop {
///     let scan = Request::Scan { kind: ForeignKind::Sessions, cursor };
///     match connection.submit(vec![scan], Duration::from_secs(1)).await.remove(0) {
///         Outcome::Answered(Reply::Found { names, cursor: next }) => {
///             println!("{names:?}");
///             cursor = next;
///         }
///         _ => break, // `Done`: no other program can write to this store
///     }
///     if cursor == 0 {
///         break;
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignKind {
    /// Heartbeats of the fleet.
    Nodes,
    /// Sessions.
    Sessions,
}

/// One request. Every request is safe to repeat, and a late one never harms a lease. (A late heartbeat keeps an
/// instance alive for its ttl. A late index entry stays until an instance removes it.)
///
/// ```
/// use std::time::Duration;
/// use tenure::LeaseName;
/// use tenure::store::{AttachRequest, Keyspace, Outcome, Reply, Request, open};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let connection = store.attach(AttachRequest::default()).await?;
/// let holders = Request::Holders { names: vec![LeaseName::lease("report")?, LeaseName::role("cleanup")?] };
/// let sessions = Request::ReadSessions { ids: vec!["eu-1".to_owned()] };
/// let outcomes = connection.submit(vec![holders, sessions], Duration::from_secs(1)).await;
/// assert_eq!(outcomes[0], Outcome::Answered(Reply::Holders(vec![None, None])));
/// assert_eq!(outcomes[1], Outcome::Answered(Reply::Sessions(vec![None])));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// Grants the lease if it is unheld, if this very claim already has it, or if it was handed over to this holder.
    Acquire {
        /// The claim.
        claim: Claim,
        /// A term of this holder that its process has ended. If the store still lists it, the new term may replace it.
        ended: Option<Token>,
    },
    /// Grants the lease although its holder still renews it, if that holder has reported no progress for too long.
    TakeOver {
        /// The claim.
        claim: Claim,
        /// The term to end.
        victim: Token,
        /// The time without progress after which a take-over is allowed.
        stale_after: Duration,
    },
    /// Extends the term for a whole ttl from now.
    Renew {
        /// The term.
        holding: Holding,
        /// The ttl, from now.
        ttl: Duration,
        /// Whether the work has made progress since the last renewal.
        progressed: bool,
    },
    /// Ends the term; its work is over.
    Release {
        /// The term.
        holding: Holding,
        /// How it ended.
        ending: Ending,
    },
    /// Cleans up after a claim whose outcome is unknown.
    Abandon {
        /// Which lease.
        name: LeaseName,
        /// The claimant.
        holder: InstanceId,
        /// The attempt.
        nonce: Nonce,
    },
    /// Ends the term in favour of another instance, which must [acquire](Request::Acquire) the lease within the window.
    HandOver {
        /// The term.
        holding: Holding,
        /// The receiver.
        to: InstanceId,
        /// How long the lease is reserved for the receiver.
        window: Duration,
    },
    /// Ends a term by force. The lease stays held until its holder has released it or the ttl has passed.
    Revoke {
        /// Which lease.
        name: LeaseName,
        /// The term, so that a late request does not end the next one.
        token: Token,
    },
    /// Asks something of the holder of a term.
    Ask {
        /// Which lease.
        name: LeaseName,
        /// The term whose holder is asked.
        token: Token,
        /// What the holder is asked to do.
        ask: Ask,
    },
    /// Reports the state of a lease.
    Inspect {
        /// Which lease.
        name: LeaseName,
    },
    /// Reports the state of the namespace.
    InspectNamespace,
    /// Ends the quarantine on the operator's authority. Does nothing if the namespace has another generation.
    Reopen {
        /// The generation whose quarantine the operator has seen.
        generation: Generation,
    },
    /// Returns the holder of each lease and nothing else, for callers that look at many leases.
    Holders {
        /// Which leases, at least one.
        names: Vec<LeaseName>,
    },
    /// Writes a record beside the lease, unless the term is over.
    Publish {
        /// The term.
        holding: Holding,
        /// Which record.
        record: String,
        /// The value.
        value: Vec<u8>,
        /// Whether to announce it.
        announced: bool,
    },
    /// Reads a record beside a lease.
    Read {
        /// Which lease.
        name: LeaseName,
        /// Which record.
        record: String,
    },
    /// Adds an entry to a log beside a lease, unless the term is over. An entry equal to the last one is not added
    /// again.
    Append {
        /// The term.
        holding: Holding,
        /// Which log.
        log: String,
        /// The entry.
        value: Vec<u8>,
        /// How many of the latest entries to keep; at least one.
        kept: usize,
        /// Records beside the lease to write with the entry, and their values.
        records: Vec<(String, Vec<u8>)>,
    },
    /// Reads a log, the oldest entry first: the latest entries, or the first ones after a known entry.
    ReadLog {
        /// Which lease.
        name: LeaseName,
        /// Which log.
        log: String,
        /// The known entry.
        after: Option<EntryId>,
        /// The maximum number of entries.
        limit: usize,
    },
    /// Deletes everything about the lease of a deleted session: its last term, its records, its logs, and its entry
    /// among the deleted sessions. Tokens keep increasing all the same.
    Forget {
        /// Which lease.
        name: LeaseName,
        /// Its logs.
        logs: Vec<String>,
        /// Refuse unless the last term began this long ago: requests sent during that term must have arrived.
        idle_for: Duration,
        /// The session. Refuse while it exists or the lease is held.
        session: String,
    },
    /// Sets or deletes a session, if it still is what its writer has seen or already is as requested. A change is
    /// announced. A deleted session is added to the index of deleted sessions.
    WriteSession {
        /// Which session.
        id: String,
        /// What the writer has seen; `None` if there was no session.
        expected: Option<Vec<u8>>,
        /// The new value; `None` to delete the session.
        value: Option<Vec<u8>>,
        /// Whether to refuse while anything is left of a deleted session with this id.
        fresh: bool,
    },
    /// Reads sessions.
    ReadSessions {
        /// Which ones.
        ids: Vec<String>,
    },
    /// Sends an announcement to all subscribers.
    Announce(Announcement),
    /// Reports that an instance is alive. The first heartbeat announces that it joined.
    Heartbeat {
        /// The group of the instance.
        group: Group,
        /// The instance.
        instance: InstanceId,
        /// How long the heartbeat is valid.
        ttl: Duration,
        /// What the instance publishes about itself.
        record: Vec<u8>,
    },
    /// Reports that an instance is leaving.
    Leave {
        /// The group of the instance.
        group: Group,
        /// The instance.
        instance: InstanceId,
    },
    /// Lists the instances that are alive.
    Instances {
        /// The group.
        group: Group,
    },
    /// Lists an instance that does not use Tenure as alive, for as long as it has a heartbeat. This is announced as if
    /// it had joined.
    Adopt {
        /// The group.
        group: Group,
        /// The part after the prefix of its heartbeat key.
        name: String,
    },
    /// Scans for records that any program may have written, one piece at a time. It finds every record that exists from
    /// the first piece to the last.
    Scan {
        /// The kind of records.
        kind: ForeignKind,
        /// Where the last piece ended; 0 at the beginning.
        cursor: u64,
    },
    /// Adds an entry to an index.
    IndexAdd {
        /// Which index.
        index: String,
        /// The entry.
        entry: String,
        /// Whether to announce it.
        announced: bool,
    },
    /// Removes an entry from an index.
    IndexRemove {
        /// Which index.
        index: String,
        /// The entry.
        entry: String,
        /// Whether to announce it.
        announced: bool,
    },
    /// Lists the entries of an index.
    IndexList {
        /// Which index.
        index: String,
    },
    /// Writes a note about a term. Only a limited number of notes is kept.
    Note(TermNote),
    /// Lists the latest notes.
    Notes {
        /// The maximum number of notes.
        limit: usize,
    },
}

#[cfg(feature = "redis")]
impl Request {
    /// Whether the request changes nothing.
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(
            self,
            Self::Inspect { .. }
                | Self::InspectNamespace
                | Self::Holders { .. }
                | Self::Read { .. }
                | Self::ReadLog { .. }
                | Self::ReadSessions { .. }
                | Self::Instances { .. }
                | Self::Scan { .. }
                | Self::IndexList { .. }
                | Self::Notes { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ask_reads_back_as_it_was_written() {
        for to in [None, Some(InstanceId::new("api-2").unwrap())] {
            let ask = Ask::StepDown { to };
            assert_eq!(Ask::decode(&ask.encode()), Some(ask));
        }
        for bad in ["", "step_up", "step_down ", "step_down a b"] {
            assert_eq!(Ask::decode(bad), None, "{bad:?}");
        }
    }
}
