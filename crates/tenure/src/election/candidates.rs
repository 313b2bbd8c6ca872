//! The candidates of a role, as their heartbeats describe them.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fleet::Fleet;
use crate::json;
use crate::keeper::Heartbeat;
use crate::name::{Group, InstanceId};
use crate::store::{LiveInstance, MembershipRequest, Reply, StoreError};
use crate::tenure::{RequestError, Tenure};

/// A heartbeat outlives the lease by this much, so that a leader that was just replaced is still listed.
const HEARTBEAT_EXTRA_TTL: Duration = Duration::from_secs(5);

/// A candidate for a role, leading or not.
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let election = tenure.election("cleanup").metadata("10.0.0.7:8080").build()?;
/// election.start();
/// election.wait_for_leadership(Duration::from_secs(10)).await?;
/// let candidates = election.candidates().await?; // or `tenure.fleet().candidates("cleanup")`, in any process
/// assert_eq!(candidates[0].metadata.as_deref(), Some("10.0.0.7:8080"));
/// assert_eq!(candidates[0].priority, Some(100));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// The instance.
    pub instance: InstanceId,
    /// Its [priority](super::ElectionBuilder::priority). `None` for a program that is not Tenure's.
    pub priority: Option<u8>,
    /// The metadata it would publish as leader.
    pub metadata: Option<String>,
    /// How long it stays listed without another heartbeat.
    pub remaining: Duration,
}

impl Candidate {
    fn from_member(member: LiveInstance) -> Self {
        let record: Option<CandidateRecord> = json::decode(&member.record);
        let (priority, metadata) = record.map_or((None, None), |record| (Some(record.priority), record.metadata));
        Self { instance: member.instance, priority, metadata, remaining: member.remaining }
    }
}

/// The heartbeat that a candidate sends with all its requests.
pub(super) fn heartbeat(group: Group, ttl: Duration, priority: u8, metadata: Option<&str>) -> Arc<Heartbeat> {
    let record = json::encode(&CandidateRecord { priority, metadata: metadata.map(str::to_owned) }).into_bytes();
    Arc::new(Heartbeat { group, ttl: ttl + HEARTBEAT_EXTRA_TTL, record })
}

/// The record in a candidate's heartbeat.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct CandidateRecord {
    priority: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata: Option<String>,
}

impl Fleet {
    /// Lists the candidates for a role, leading or not, by their heartbeats. An election with a
    /// [prefix](super::ElectionBuilder::heartbeat_prefix) of its own is listed by
    /// [`candidates_under`](Self::candidates_under).
    ///
    /// # Errors
    /// When the role is not valid, or the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn candidates(&self, role: &str) -> Result<Vec<Candidate>, RequestError> {
        Ok(candidates(&self.0, Group::of_role(role)?).await?)
    }

    /// Lists the candidates whose heartbeats have this prefix.
    ///
    /// # Errors
    /// When the prefix is not valid, or the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn candidates_under(&self, prefix: &str) -> Result<Vec<Candidate>, RequestError> {
        Ok(candidates(&self.0, Group::candidates(prefix)?).await?)
    }
}

/// Lists the candidates of a group.
pub(super) async fn candidates(tenure: &Tenure, group: Group) -> Result<Vec<Candidate>, StoreError> {
    match tenure.call(MembershipRequest::List { group }).await? {
        Reply::Instances(members) => Ok(members.into_iter().map(Candidate::from_member).collect()),
        other => Err(tenure.unexpected_reply(&other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_as_they_were_written_and_anything_else_is_foreign() {
        for metadata in [None, Some(""), Some("10.0.0.7:8080 v2\n \"ü\"")] {
            let record = CandidateRecord { priority: 70, metadata: metadata.map(str::to_owned) };
            assert_eq!(json::decode(json::encode(&record).as_bytes()), Some(record));
        }
        for foreign in [&b""[..], b"{\"status\":\"online\"}", b"256", b"\xff 1", b"1736598400000"] {
            assert_eq!(json::decode::<CandidateRecord>(foreign), None);
        }
    }
}
