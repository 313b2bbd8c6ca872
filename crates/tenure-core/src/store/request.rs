//! One request, in one of four groups.

use super::{Announcement, DocumentRequest, LeaseRequest, LogRequest, MembershipRequest};

/// One request. Every request is safe to repeat, and a late one never harms a lease. (A late heartbeat keeps an
/// instance alive for its ttl. A late index entry stays until an instance removes it.)
///
/// ```
/// use std::time::Duration;
/// use tenure::LeaseName;
/// use tenure::store::{AttachRequest, DocumentRequest, Keyspace, LeaseRequest, Outcome, Reply, open};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?;
/// let holders = LeaseRequest::Holders { names: vec![LeaseName::lease("report")?, LeaseName::role("cleanup")?] };
/// let roles = DocumentRequest::IndexList { index: "roles".to_owned() };
/// let outcomes = connection.submit(vec![holders.into(), roles.into()], Duration::from_secs(1)).await;
/// assert_eq!(outcomes[0], Outcome::Answered(Reply::Holders(vec![None, None])));
/// assert_eq!(outcomes[1], Outcome::Answered(Reply::Index(Vec::new())));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// About leases: which instance may act.
    Lease(LeaseRequest),
    /// About membership: which instances are alive.
    Membership(MembershipRequest),
    /// About documents, records beside leases, and indexes.
    Document(DocumentRequest),
    /// About logs.
    Log(LogRequest),
    /// Sends an announcement to all subscribers.
    Announce(Announcement),
}

impl From<LeaseRequest> for Request {
    fn from(request: LeaseRequest) -> Self {
        Self::Lease(request)
    }
}

impl From<MembershipRequest> for Request {
    fn from(request: MembershipRequest) -> Self {
        Self::Membership(request)
    }
}

impl From<DocumentRequest> for Request {
    fn from(request: DocumentRequest) -> Self {
        Self::Document(request)
    }
}

impl From<LogRequest> for Request {
    fn from(request: LogRequest) -> Self {
        Self::Log(request)
    }
}

impl Request {
    /// Whether the request changes nothing.
    pub fn is_read_only(&self) -> bool {
        use {DocumentRequest as D, LeaseRequest as L, LogRequest as G, MembershipRequest as M};
        matches!(
            self,
            Self::Lease(L::Inspect { .. } | L::InspectNamespace | L::Holders { .. })
                | Self::Membership(M::List { .. } | M::Scan { .. })
                | Self::Document(D::Read { .. } | D::ReadRecord { .. } | D::Scan { .. } | D::IndexList { .. })
                | Self::Log(G::Read { .. } | G::Notes { .. })
        )
    }
}
