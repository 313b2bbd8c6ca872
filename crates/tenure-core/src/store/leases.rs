//! Leases: what is asked about them, and what the answers contain.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ending::Ending;
use crate::name::{InstanceId, LeaseName};
use crate::time::ServerTime;
use crate::token::{Nonce, Token};

use super::{DocumentId, Generation, Quarantine};

/// A request for a lease: the claimant and its attempt.
///
/// ```
/// use std::time::Duration;
/// use tenure::store::{AttachRequest, Claim, Keyspace, LeaseRequest, open};
/// use tenure::{InstanceId, LeaseName, Nonce};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?;
/// let claim = Claim {
///     name: LeaseName::lease("report")?,
///     holder: InstanceId::new("api-1")?,
///     nonce: Nonce::new(fastrand::u128(..)),
///     ttl: Duration::from_secs(30),
/// };
/// let acquire = LeaseRequest::Acquire { claim, ended: None };
/// let outcomes = connection.submit(vec![acquire.clone().into(), acquire.into()], Duration::from_secs(1)).await;
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
/// use tenure::store::{AttachRequest, Holding, Keyspace, Outcome, Reply, LeaseRequest, open};
/// use tenure::{InstanceId, LeaseName};
///
/// # fn acquire(holder: &str) -> Result<tenure::store::Request, tenure::NameError> {
/// #     let (name, holder) = (tenure::LeaseName::lease("report")?, tenure::InstanceId::new(holder)?);
/// #     let (nonce, ttl) = (tenure::Nonce::new(fastrand::u128(..)), std::time::Duration::from_secs(30));
/// #     let claim = tenure::store::Claim { name, holder, nonce, ttl };
/// #     Ok(tenure::store::LeaseRequest::Acquire { claim, ended: None }.into())
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?;
/// let outcome = connection.submit(vec![acquire("api-1")?], Duration::from_secs(1)).await.remove(0);
/// let Outcome::Answered(Reply::Granted(grant)) = outcome else { panic!("{outcome:?}") };
/// let (name, holder) = (LeaseName::lease("report")?, InstanceId::new("api-1")?);
/// let holding = Holding { name, holder, token: grant.token };
/// let renew = LeaseRequest::Renew { holding, ttl: Duration::from_secs(30), progressed: true };
/// let outcome = connection.submit(vec![renew.into()], Duration::from_secs(1)).await.remove(0);
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// Requests about leases, and about the namespace that grants them.
///
/// ```
/// use std::time::Duration;
/// use tenure::LeaseName;
/// use tenure::store::{AttachRequest, Keyspace, LeaseRequest, Outcome, Reply, open};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?;
/// let holders = LeaseRequest::Holders { names: vec![LeaseName::lease("report")?, LeaseName::role("cleanup")?] };
/// let outcomes = connection.submit(vec![holders.into()], Duration::from_secs(1)).await;
/// assert_eq!(outcomes[0], Outcome::Answered(Reply::Holders(vec![None, None])));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseRequest {
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
    /// Ends the term in favour of another instance, which must [acquire](LeaseRequest::Acquire) the lease within the window.
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
    /// Returns the holder of each lease and nothing else, for callers that look at many leases.
    Holders {
        /// Which leases, at least one.
        names: Vec<LeaseName>,
    },
    /// Deletes everything about an unheld lease: its last term, its records and its logs. Tokens keep increasing all the
    /// same.
    Forget {
        /// Which lease.
        name: LeaseName,
        /// Its logs.
        logs: Vec<String>,
        /// Refuse unless the last term began this long ago: requests sent during that term must have arrived.
        idle_for: Duration,
        /// The document that the lease was for, if any. Refuse while it exists. Its entry among the deleted documents of
        /// its collection is removed.
        document: Option<DocumentId>,
    },
    /// Reports the state of the namespace.
    InspectNamespace,
    /// Ends the quarantine on the operator's authority. Does nothing if the namespace has another generation.
    Reopen {
        /// The generation whose quarantine the operator has seen.
        generation: Generation,
    },
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
/// #     Ok(tenure::store::LeaseRequest::Acquire { claim, ended: None }.into())
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?;
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
/// use tenure::store::{AttachRequest, Holding, Keyspace, Outcome, Refusal, Reply, LeaseRequest, open};
/// use tenure::{InstanceId, LeaseName, Token};
///
/// # fn acquire(holder: &str) -> Result<tenure::store::Request, tenure::NameError> {
/// #     let (name, holder) = (tenure::LeaseName::lease("report")?, tenure::InstanceId::new(holder)?);
/// #     let (nonce, ttl) = (tenure::Nonce::new(fastrand::u128(..)), std::time::Duration::from_secs(30));
/// #     let claim = tenure::store::Claim { name, holder, nonce, ttl };
/// #     Ok(tenure::store::LeaseRequest::Acquire { claim, ended: None }.into())
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?;
/// let (name, holder) = (LeaseName::lease("report")?, InstanceId::new("api-2")?);
/// let holding = Holding { name, holder, token: Token::ZERO }; // a term that is over
/// let renew = LeaseRequest::Renew { holding, ttl: Duration::from_secs(30), progressed: true };
/// let outcomes = connection.submit(vec![acquire("api-1")?, renew.into()], Duration::from_secs(1)).await;
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
