//! Looking up the leader, asking it to step down, and revoking its term.

use std::time::Duration;

use crate::name::{InstanceId, LeaseName};
use crate::store::{Ask, ROLES, Reply, Request, StoreError};
use crate::tenure::Tenure;
use crate::token::Token;

/// The record beside the lease that holds the leader's metadata.
pub(super) const METADATA_RECORD: &str = "leader";

/// The leader of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The instance.
    pub instance: InstanceId,
    /// The token of its term. `None` for a program that is not Tenure's.
    pub token: Option<Token>,
    /// How long it leads without a renewal. `None`: the lease never expires.
    pub remaining: Option<Duration>,
    /// Whether its term was revoked. The leader learns of it with its next renewal.
    pub is_revoked: bool,
    /// Whether the leader has confirmed its term itself. After a handover this is `false` until the new leader has
    /// accepted.
    pub is_confirmed: bool,
    /// The metadata it has published, if any.
    pub metadata: Option<Vec<u8>>,
}

impl Tenure {
    /// Asks the leader of a role, or the holder of any lease, to step down in favour of an instance, or of any. The
    /// request is stored, and the holder follows it with its next renewal at the latest. Returns the token of the term
    /// that was asked; `None` when there is none.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The holder may or may not have been asked.
    pub async fn step_down(&self, lease: &LeaseName, to: Option<&InstanceId>) -> Result<Option<Token>, StoreError> {
        let Some(token) = self.inspect(lease).await?.held.and_then(|held| held.token) else { return Ok(None) };
        let ask = Ask::StepDown { to: to.cloned() };
        match self.call(Request::Ask { name: lease.clone(), token, ask }).await? {
            Reply::Done => Ok(Some(token)),
            // The term ended before the request.
            Reply::Refused(_) => Ok(None),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Revokes the current term of a lease. Its holder learns of it with the next renewal at the latest, and the next
    /// term has a larger token. Returns the holder; `None` when the lease was unheld.
    ///
    /// Until the holder learns of it, it continues to work, and the lease is not granted again.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The lease may or may not have been revoked.
    pub async fn revoke(&self, lease: &LeaseName) -> Result<Option<InstanceId>, StoreError> {
        let Some(held) = self.inspect(lease).await?.held else { return Ok(None) };
        let Some(token) = held.token else { return Ok(None) };
        match self.call(Request::Revoke { name: lease.clone(), token }).await? {
            Reply::Done => Ok(Some(held.holder)),
            Reply::Refused(_) => Ok(None),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Lists all roles that have ever had a leader in this namespace.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn roles(&self) -> Result<Vec<LeaseName>, StoreError> {
        match self.call(Request::IndexList { index: ROLES.to_owned() }).await? {
            Reply::Index(roles) => Ok(roles.iter().filter_map(|role| LeaseName::decode(role)).collect()),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Forgets a role without a leader: its last term, its records, and its entry in the list of roles. Tokens keep
    /// increasing. Returns whether it was forgotten: `false` while the role has a leader. A candidate that leads the
    /// role again lists it again.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The role may or may not be forgotten.
    pub async fn forget_role(&self, role: &LeaseName) -> Result<bool, StoreError> {
        let forget =
            Request::Forget { name: role.clone(), logs: Vec::new(), idle_for: Duration::ZERO, session: String::new() };
        if self.call(forget).await? != Reply::Done {
            return Ok(false);
        }
        let (index, entry) = (ROLES.to_owned(), role.encode());
        self.call(Request::IndexRemove { index, entry, announced: false }).await.map(|_| true)
    }

    /// Looks up the leader of a role. The caller need not be a candidate.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn leader_of(&self, role: &LeaseName) -> Result<Option<Leader>, StoreError> {
        let report = self.inspect(role).await?;
        let is_revoked = report.is_revoked();
        let Some(held) = report.held else { return Ok(None) };
        let published = self.read(role, METADATA_RECORD).await?;
        let published = published.filter(|record| Some(record.token) == held.token).map(|record| record.value);
        let is_confirmed = published.is_some();
        let metadata = published.filter(|metadata| !metadata.is_empty());
        Ok(Some(Leader {
            instance: held.holder,
            token: held.token,
            remaining: held.remaining,
            is_revoked,
            is_confirmed,
            metadata,
        }))
    }
}
