//! Membership: which instances are alive.

use std::time::Duration;

use crate::name::{Group, InstanceId};

/// Requests about the instances that are alive.
///
/// ```
/// use std::time::Duration;
/// use tenure::store::{AttachRequest, Keyspace, MembershipRequest, Outcome, Reply, open};
/// use tenure::{Group, InstanceId};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?; // or "redis://localhost"
/// let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?;
/// let beat = MembershipRequest::Heartbeat {
///     group: Group::FLEET,
///     instance: InstanceId::new("api-1")?,
///     ttl: Duration::from_secs(30),
///     record: b"started at noon".to_vec(),
/// };
/// let list = MembershipRequest::List { group: Group::FLEET };
/// match &connection.submit(vec![beat.into(), list.into()], Duration::from_secs(1)).await[1] {
///     Outcome::Answered(Reply::Instances(alive)) => assert_eq!(alive[0].instance.as_str(), "api-1"),
///     other => println!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipRequest {
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
    List {
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
    /// Scans for heartbeats that any program may have written, one piece at a time. It finds every heartbeat of the fleet
    /// that exists from the first piece to the last.
    Scan {
        /// Where the last piece ended; 0 at the beginning.
        cursor: u64,
    },
}

/// An instance that is alive.
///
/// ```
/// use tenure::Tenure;
/// use tenure::fleet::InstanceRecord;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// tenure.fleet().join(&InstanceRecord::new("api-1", std::time::SystemTime::now()));
/// # while tenure.fleet().instances().await?.is_empty() {
/// #     tokio::time::sleep(std::time::Duration::from_millis(5)).await;
/// # }
/// let live = tenure.fleet().instances().await?.remove(0);
/// let record = InstanceRecord::decode(&live.record).ok_or("does not use Tenure")?;
/// assert_eq!((&live.instance, record.name.as_str()), (tenure.instance(), "api-1"));
/// assert!(live.remaining <= record.heartbeat_ttl);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveInstance {
    /// The instance.
    pub instance: InstanceId,
    /// What the instance publishes about itself.
    pub record: Vec<u8>,
    /// How long the heartbeat is still valid.
    pub remaining: Duration,
}
