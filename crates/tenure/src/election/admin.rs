//! Who leads, for anybody who asks; and asking it to go.

use std::time::Duration;

use crate::name::{InstanceId, LeaseName};
use crate::store::{Ask, ROLES, Reply, Request, StoreError};
use crate::tenure::Tenure;
use crate::token::Token;

/// The record beside the lease that says more about the leader.
pub(super) const METADATA_RECORD: &str = "leader";

/// Who leads a role.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The instance.
    pub instance: InstanceId,
    /// The term. `None` for a program that is not Tenure's.
    pub token: Option<Token>,
    /// How long it leads without renewing. `None`: the lease has no end.
    pub remaining: Option<Duration>,
    /// Whether its term was revoked: it is told so with its next renewal.
    pub is_revoked: bool,
    /// Whether it has said so itself: one to whom the lease was handed over and who has not taken it up yet has not.
    pub is_confirmed: bool,
    /// What it has published about itself, if it has.
    pub metadata: Option<Vec<u8>>,
}

impl Tenure {
    /// Asks the leader of a role, or the holder of any lease, to step down: to this instance, or to anybody. The request is
    /// stored and heeded with the next renewal at the latest. Returns the term that was asked; `None` when there is none.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// The holder may or may not have been asked.
    pub async fn step_down(&self, lease: &LeaseName, to: Option<&InstanceId>) -> Result<Option<Token>, StoreError> {
        let Some(token) = self.inspect(lease).await?.held.and_then(|held| held.token) else { return Ok(None) };
        let ask = Ask::StepDown { to: to.cloned() };
        match self.call(Request::Ask { name: lease.clone(), token, ask }).await? {
            Reply::Done => Ok(Some(token)),
            // It was over before it was asked.
            Reply::Refused(_) => Ok(None),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Ends the present term of a lease by force: its holder is told that it was revoked, and whoever is next has a larger
    /// token. Returns whose it was; `None` when it was nobody's.
    ///
    /// Until the holder has heard of it, at its next renewal at the latest, it works on, while the lease is not granted again.
    ///
    /// # Errors
    /// When the store cannot be asked.
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

    /// All roles that somebody has ever led in this namespace.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn roles(&self) -> Result<Vec<LeaseName>, StoreError> {
        match self.call(Request::IndexList { index: ROLES.to_owned() }).await? {
            Reply::Index(roles) => Ok(roles.iter().filter_map(|role| LeaseName::decode(role)).collect()),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Forgets a role that is not led: its last term, its records, and that it was ever led. Tokens go on growing all the same.
    /// Returns whether it was forgotten: not while it is led. A candidate that leads it again lists it again.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// It may or may not be forgotten.
    pub async fn forget_role(&self, role: &LeaseName) -> Result<bool, StoreError> {
        let forget =
            Request::Forget { name: role.clone(), logs: Vec::new(), idle_for: Duration::ZERO, session: String::new() };
        if self.call(forget).await? != Reply::Done {
            return Ok(false);
        }
        let (index, entry) = (ROLES.to_owned(), role.encode());
        self.call(Request::IndexRemove { index, entry, announced: false }).await.map(|_| true)
    }

    /// Who leads a role, also for those who are no candidates.
    ///
    /// # Errors
    /// When the store cannot be asked.
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
