//! Joining the fleet, and reading its membership.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::InstanceRecord;
use crate::keeper::{Command, Heartbeat};
use crate::name::Group;
use crate::store::{DocumentRequest, LiveInstance, MembershipRequest, Reply, StoreError, SubscriptionItem};
use crate::tenure::{RequestError, Tenure};

/// The limit of announcements queued for a slow subscriber. Beyond it, the subscriber gets a gap instead.
const MAX_QUEUED_ANNOUNCEMENTS: usize = 4_096;

/// The other instances on the store: [`Tenure::fleet`] returns it. Clones are cheap.
///
/// ```
/// use tenure::Tenure;
/// use tenure::fleet::InstanceRecord;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let fleet = tenure.fleet();
/// fleet.join(&InstanceRecord::new("api", std::time::SystemTime::now())); // a pool does this by itself
/// # tokio::time::sleep(std::time::Duration::from_millis(50)).await;
/// assert_eq!(&fleet.instances().await?[0].instance, tenure.instance());
/// fleet.leave();
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Fleet(pub(crate) Tenure);

impl Fleet {
    /// Joins the fleet: the keeper's thread sends heartbeats, whatever the program does, until this instance
    /// [leaves](Self::leave) or is shut down. Another call changes the record.
    pub fn join(&self, record: &InstanceRecord) {
        self.0.join_fleet(record);
    }

    /// Leaves the fleet, and announces that.
    pub fn leave(&self) {
        self.0.keeper().send(Command::LeaveFleet);
    }

    /// Adds an annotation about this instance to its heartbeats, or changes it. An instance that has not joined the
    /// fleet publishes it when it joins.
    pub fn describe(&self, key: &str, value: &str) {
        self.0.describe(key, value);
    }

    /// Reads all valid heartbeats. An instance whose heartbeat has ended may still hold leases until these end.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn instances(&self) -> Result<Vec<LiveInstance>, StoreError> {
        match self.0.call(MembershipRequest::List { group: Group::FLEET }).await? {
            Reply::Instances(members) => Ok(members),
            other => Err(self.0.unexpected_reply(&other)),
        }
    }

    /// Subscribes to all announcements in the namespace from now on. Announcements are hints and may be missed: then
    /// the subscriber gets [`SubscriptionItem::Gap`], also after the connection was lost.
    pub fn announcements(&self) -> Announcements {
        self.0.announcements()
    }

    /// Adds an entry to a small list in the store, unless the list has it. Any instance can [read](Self::list_entries)
    /// the list: for notes of an instance that is about to end.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The entry may or may not be added.
    pub async fn add_to_list(&self, list: &str, entry: &str) -> Result<(), RequestError> {
        let (index, entry) = (list_index(list), entry.to_owned());
        self.0.write(DocumentRequest::IndexAdd { index, entry, announced: false }).await.map(drop)
    }

    /// Reads the entries of a small list.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn list_entries(&self, list: &str) -> Result<Vec<String>, StoreError> {
        match self.0.call(DocumentRequest::IndexList { index: list_index(list) }).await? {
            Reply::Index(entries) => Ok(entries),
            other => Err(self.0.unexpected_reply(&other)),
        }
    }

    /// Removes an entry from a small list.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The entry may or may not be removed.
    pub async fn remove_from_list(&self, list: &str, entry: &str) -> Result<(), RequestError> {
        let (index, entry) = (list_index(list), entry.to_owned());
        self.0.write(DocumentRequest::IndexRemove { index, entry, announced: false }).await.map(drop)
    }
}

/// The index that stores a list.
fn list_index(list: &str) -> String {
    format!("list:{list}")
}

impl Tenure {
    pub(crate) fn join_fleet(&self, record: &InstanceRecord) {
        let (ttl, every) = (record.heartbeat_ttl, record.heartbeat_every);
        let heartbeat = Arc::new(Heartbeat { group: Group::FLEET, ttl, record: record.encode() });
        self.keeper().send(Command::JoinFleet { heartbeat, every });
    }

    pub(crate) fn announcements(&self) -> Announcements {
        let (queue, heard) = mpsc::channel(MAX_QUEUED_ANNOUNCEMENTS);
        self.keeper().send(Command::Subscribe(queue));
        Announcements(heard)
    }
}

/// A stream of announcements, in order.
///
/// ```
/// use tenure::Tenure;
/// use tenure::store::SubscriptionItem;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let mut announcements = tenure.fleet().announcements();
/// tenure.documents("servers").create("eu-1", b"10.0.0.7").await?;
/// match announcements.next().await {
///     SubscriptionItem::Announced(announcement) => println!("{announcement:?}"),
///     SubscriptionItem::Gap => println!("some were missed: read everything again"),
///     SubscriptionItem::Closed => println!("there will be no more"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Announcements(mpsc::Receiver<SubscriptionItem>);

impl Announcements {
    /// Returns the next item; [`SubscriptionItem::Closed`] when there will be no more.
    ///
    /// # Cancel safety
    /// Safe: nothing is lost.
    pub async fn next(&mut self) -> SubscriptionItem {
        self.0.recv().await.unwrap_or(SubscriptionItem::Closed)
    }

    /// Skips everything that was announced by now.
    pub(crate) fn skip(&mut self) {
        while self.0.try_recv().is_ok() {}
    }
}
