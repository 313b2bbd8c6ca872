//! Looking up the leader of a role.

use std::time::Duration;

use crate::fleet::Fleet;
use crate::name::{InstanceId, LeaseName, LeaseRef};
use crate::store::{DocumentRequest, ROLES, Reply, StoreError};
use crate::tenure::{RequestError, Tenure};
use crate::token::Token;

/// The record beside the lease that holds the leader's metadata.
pub(super) const METADATA_RECORD: &str = "leader";

/// The leader of a role.
///
/// ```
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let leadership = tenure.election("cleanup").metadata("10.0.0.7:8080").acquire().await?;
/// let leader = tenure.fleet().leader_of("cleanup").await?.ok_or("no leader")?;
/// assert_eq!((&leader.instance, leader.token), (tenure.instance(), Some(leadership.token())));
/// if let (true, Some(address)) = (leader.is_confirmed, &leader.metadata) {
///     println!("send it to {address}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    pub metadata: Option<String>,
}

impl Fleet {
    /// Looks up the leader of a role. The caller need not be a candidate.
    ///
    /// ```
    /// use tenure::Tenure;
    ///
    /// # #[cfg(feature = "memory")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// assert_eq!(tenure.fleet().leader_of("cleanup").await?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the name is not valid, or the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn leader_of(&self, role: impl Into<LeaseRef>) -> Result<Option<Leader>, RequestError> {
        Ok(leader_of(&self.0, &role.into().role()?).await?)
    }

    /// Lists all roles that have ever had a leader in this namespace.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn roles(&self) -> Result<Vec<LeaseName>, StoreError> {
        match self.0.call(DocumentRequest::IndexList { index: ROLES.to_owned() }).await? {
            Reply::Index(roles) => Ok(roles.iter().filter_map(|role| LeaseName::decode(role)).collect()),
            other => Err(self.0.unexpected_reply(&other)),
        }
    }
}

/// Looks up the leader of the role with this lease.
pub(super) async fn leader_of(tenure: &Tenure, name: &LeaseName) -> Result<Option<Leader>, StoreError> {
    let report = tenure.inspect(name).await?;
    let is_revoked = report.is_revoked();
    let Some(held) = report.held else { return Ok(None) };
    let published = tenure.read_record(name, METADATA_RECORD).await?;
    let published = published.filter(|record| Some(record.token) == held.token).map(|record| record.value);
    let is_confirmed = published.is_some();
    let metadata = published.filter(|metadata| !metadata.is_empty()).map(text);
    Ok(Some(Leader {
        instance: held.holder,
        token: held.token,
        remaining: held.remaining,
        is_revoked,
        is_confirmed,
        metadata,
    }))
}

/// Metadata as text. Bytes of a program that is not Tenure's need not be text.
fn text(metadata: Vec<u8>) -> String {
    String::from_utf8(metadata).unwrap_or_else(|bytes| String::from_utf8_lossy(bytes.as_bytes()).into_owned())
}
