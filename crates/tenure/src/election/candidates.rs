//! The candidates of a role, as their heartbeats describe them.

use std::sync::Arc;
use std::time::Duration;

use super::leaders::text;
use crate::fleet::Fleet;
use crate::keeper::Heartbeat;
use crate::name::{Group, InstanceId};
use crate::store::{LiveInstance, Reply, Request, StoreError};
use crate::tenure::{RequestError, Tenure};

/// A heartbeat outlives the lease by this much, so that a leader that was just replaced is still listed.
const HEARTBEAT_EXTRA_TTL: Duration = Duration::from_secs(5);

/// A candidate for a role, leading or not.
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
        let (priority, metadata) =
            decode(&member.record).map_or((None, None), |(priority, rest)| (Some(priority), rest.map(text)));
        Self { instance: member.instance, priority, metadata, remaining: member.remaining }
    }
}

/// The heartbeat that a candidate sends with all its requests.
pub(super) fn heartbeat(group: Group, ttl: Duration, priority: u8, metadata: Option<&str>) -> Arc<Heartbeat> {
    let record = encode(priority, metadata.map(str::as_bytes));
    Arc::new(Heartbeat { group, ttl: ttl + HEARTBEAT_EXTRA_TTL, record })
}

/// Encodes the priority and, after a space, the metadata.
fn encode(priority: u8, metadata: Option<&[u8]>) -> Vec<u8> {
    let mut record = priority.to_string().into_bytes();
    if let Some(metadata) = metadata {
        record.push(b' ');
        record.extend_from_slice(metadata);
    }
    record
}

fn decode(record: &[u8]) -> Option<(u8, Option<Vec<u8>>)> {
    let mut parts = record.splitn(2, |byte| *byte == b' ');
    let priority = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    Some((priority, parts.next().map(<[u8]>::to_vec)))
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
    match tenure.call(Request::Instances { group }).await? {
        Reply::Instances(members) => Ok(members.into_iter().map(Candidate::from_member).collect()),
        other => Err(tenure.unexpected_reply(&other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_as_they_were_written() {
        for metadata in [None, Some(&b""[..]), Some(b"10.0.0.7:8080 v2\n \xff")] {
            assert_eq!(decode(&encode(70, metadata)), Some((70, metadata.map(<[u8]>::to_vec))));
        }
        for foreign in [&b""[..], b"{\"status\":\"online\"}", b"256", b"\xff 1"] {
            assert_eq!(decode(foreign), None);
        }
    }
}
