//! What an operator reads and does: leases, terms, the namespace, requests to holders.

use std::time::Duration;

use super::{RequestError, Tenure};
use crate::fleet::DRAINING_INDEX;
use crate::keeper::ConnectionState;
use crate::name::{InstanceId, LeaseName, LeaseRef};
use crate::store::{
    Ask, DocumentRequest, Generation, LeaseReport, LeaseRequest, LogRequest, NamespaceReport, ROLES, Reply, StoreError,
    TermNote,
};
use crate::token::Token;

/// The operator's side of a [`Tenure`]: [`Tenure::admin`] returns it. Clones are cheap.
///
/// ```
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("report").acquire().await?;
/// let report = tenure.admin().inspect("report").await?;
/// assert_eq!(report.held.map(|held| held.holder).as_ref(), Some(tenure.instance()));
/// assert!(tenure.admin().namespace().await?.quarantine.is_none());
///
/// tenure.admin().revoke("report").await?; // its holder is told, and the next term has a larger token
/// println!("{}", lease.lost().await);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Admin(pub(super) Tenure);

impl Admin {
    /// Reads a lease: its holder, how long it is held, and its last term. While the lease is held, the last term is the
    /// current one.
    ///
    /// # Errors
    /// When the name is not valid, or the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn inspect(&self, lease: impl Into<LeaseRef>) -> Result<LeaseReport, RequestError> {
        let name = lease.into().lease()?;
        Ok(self.0.inspect(&name).await?)
    }

    /// Why the store cannot be reached, while that is so.
    pub fn store_error(&self) -> Option<StoreError> {
        match &*self.0.keeper().connection_state.borrow() {
            ConnectionState::Lost(error) => Some(error.clone()),
            ConnectionState::Pending | ConnectionState::Attached | ConnectionState::Closed => None,
        }
    }

    /// Reads the state of the namespace: whether it is in quarantine, and which ttls are reliable.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn namespace(&self) -> Result<NamespaceReport, StoreError> {
        match self.0.call(LeaseRequest::InspectNamespace).await? {
            Reply::Namespace(report) => Ok(report),
            other => Err(self.0.unexpected_reply(&other)),
        }
    }

    /// Ends a [quarantine](crate::store::Quarantine) on an operator's assurance that no earlier holder is alive.
    /// Returns whether it did: `false` when the namespace has another generation by now.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The quarantine may or may not have ended.
    pub async fn reopen(&self, generation: Generation) -> Result<bool, RequestError> {
        match self.0.write(LeaseRequest::Reopen { generation }).await? {
            Reply::Done => Ok(true),
            Reply::NotAttached => Ok(false),
            other => Err(self.0.unexpected_reply(&other).into()),
        }
    }

    /// Reads the notes about the latest terms of all leases, latest last, at most `limit` notes. The keeper writes one
    /// note when a term begins and one when it ends, each after a short delay.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn terms(&self, limit: usize) -> Result<Vec<TermNote>, StoreError> {
        match self.0.call(LogRequest::Notes { limit }).await? {
            Reply::Notes(notes) => Ok(notes),
            other => Err(self.0.unexpected_reply(&other)),
        }
    }

    /// Asks the leader of a role, or the holder of any lease, to step down in favour of an instance, or of any. The
    /// request is stored, and the holder follows it with its next renewal at the latest. Returns the token of the term
    /// that was asked; `None` when there is none.
    ///
    /// # Errors
    /// When the name is not valid, or the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The holder may or may not have been asked.
    pub async fn step_down(
        &self,
        role: impl Into<LeaseRef>,
        to: Option<&InstanceId>,
    ) -> Result<Option<Token>, RequestError> {
        let name = role.into().role()?;
        let Some(held) = self.0.inspect(&name).await?.held else { return Ok(None) };
        let Some(token) = held.token else { return Ok(None) };
        if to == Some(&held.holder) {
            return Ok(Some(token));
        }
        match self.0.write(LeaseRequest::Ask { name, token, ask: Ask::StepDown { to: to.cloned() } }).await? {
            Reply::Done => Ok(Some(token)),
            // The term ended before the request.
            Reply::Refused(_) => Ok(None),
            other => Err(self.0.unexpected_reply(&other).into()),
        }
    }

    /// Revokes the current term of a lease. Its holder learns of it with the next renewal at the latest, and the next
    /// term has a larger token. Returns the holder; `None` when the lease was unheld.
    ///
    /// Until the holder learns of it, it continues to work, and the lease is not granted again.
    ///
    /// # Errors
    /// When the name is not valid, or the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The lease may or may not have been revoked.
    pub async fn revoke(&self, lease: impl Into<LeaseRef>) -> Result<Option<InstanceId>, RequestError> {
        let name = lease.into().lease()?;
        let Some(held) = self.0.inspect(&name).await?.held else { return Ok(None) };
        let Some(token) = held.token else { return Ok(None) };
        match self.0.write(LeaseRequest::Revoke { name, token }).await? {
            Reply::Done => Ok(Some(held.holder)),
            Reply::Refused(_) => Ok(None),
            other => Err(self.0.unexpected_reply(&other).into()),
        }
    }

    /// Forgets a role without a leader: its last term, its records, and its entry in the list of roles. Tokens keep
    /// increasing. Returns whether it was forgotten: `false` while the role has a leader. A candidate that leads the
    /// role again lists it again.
    ///
    /// # Errors
    /// When the name is not valid, or the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The role may or may not be forgotten.
    pub async fn forget_role(&self, role: impl Into<LeaseRef>) -> Result<bool, RequestError> {
        let name = role.into().role()?;
        let (index, entry) = (ROLES.to_owned(), name.encode());
        let forget = LeaseRequest::Forget { name, logs: Vec::new(), idle_for: Duration::ZERO, document: None };
        if self.0.write(forget).await? != Reply::Done {
            return Ok(false);
        }
        self.0.write(DocumentRequest::IndexRemove { index, entry, announced: false }).await.map(|_| true)
    }

    /// Asks an instance to hand over all its targets and to claim no more, until [`undrain`](Self::undrain) or until it
    /// is gone. The request is kept in the store.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The request may or may not be stored.
    pub async fn drain(&self, instance: &InstanceId) -> Result<(), RequestError> {
        let (index, entry, announced) = (DRAINING_INDEX.to_owned(), instance.to_string(), true);
        self.0.write(DocumentRequest::IndexAdd { index, entry, announced }).await.map(drop)
    }

    /// Asks an instance to claim targets again.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The request may or may not be removed.
    pub async fn undrain(&self, instance: &InstanceId) -> Result<(), RequestError> {
        let (index, entry, announced) = (DRAINING_INDEX.to_owned(), instance.to_string(), true);
        self.0.write(DocumentRequest::IndexRemove { index, entry, announced }).await.map(drop)
    }

    /// The key of a lease in the store, namespace included.
    pub fn lease_key(&self, name: &LeaseName) -> String {
        format!("{}{}", self.0.keyspace.prefix(), name.key())
    }
}
