//! Joining the fleet, and reading its membership.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::InstanceRecord;
use crate::keeper::{Command, Heartbeat};
use crate::name::{Group, InstanceId};
use crate::store::{LiveInstance, Reply, Request, StoreError, SubscriptionItem};
use crate::tenure::Tenure;

/// The index of instances that are asked to drain.
pub(crate) const DRAINING_INDEX: &str = "draining";

/// The limit of announcements queued for a slow subscriber. Beyond it, the subscriber gets a gap instead.
const MAX_QUEUED_ANNOUNCEMENTS: usize = 4_096;

impl Tenure {
    /// Joins the fleet: the keeper's thread sends heartbeats, whatever the program does, until this instance
    /// [leaves](Self::leave_fleet) or is shut down. Another call changes the record.
    ///
    /// ```
    /// use tenure::Tenure;
    /// use tenure::fleet::InstanceRecord;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// tenure.join_fleet(&InstanceRecord::new("api"));
    /// # tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    /// let members = tenure.fleet().await?;
    /// assert_eq!(&members[0].instance, tenure.instance());
    /// tenure.leave_fleet();
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn join_fleet(&self, record: &InstanceRecord) {
        let (ttl, every) = (record.heartbeat_ttl, record.heartbeat_every);
        let heartbeat = Arc::new(Heartbeat { group: Group::FLEET, ttl, record: record.encode() });
        self.keeper().send(Command::JoinFleet { heartbeat, every });
    }

    /// Leaves the fleet, and announces that.
    pub fn leave_fleet(&self) {
        self.keeper().send(Command::LeaveFleet);
    }

    /// Reads all valid heartbeats. A [`Liveness`](super::Liveness) decides which of these instances count as alive.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn fleet(&self) -> Result<Vec<LiveInstance>, StoreError> {
        match self.call(Request::Instances { group: Group::FLEET }).await? {
            Reply::Instances(members) => Ok(members),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Asks an instance to hand over all its targets and to claim no more, until [`undrain`](Self::undrain) or until it
    /// is gone. The request is kept in the store.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The request may or may not be stored.
    pub async fn drain(&self, instance: &InstanceId) -> Result<(), StoreError> {
        let (index, entry, announced) = (DRAINING_INDEX.to_owned(), instance.to_string(), true);
        self.call(Request::IndexAdd { index, entry, announced }).await.map(drop)
    }

    /// Asks an instance to claim targets again.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The request may or may not be removed.
    pub async fn undrain(&self, instance: &InstanceId) -> Result<(), StoreError> {
        let (index, entry, announced) = (DRAINING_INDEX.to_owned(), instance.to_string(), true);
        self.call(Request::IndexRemove { index, entry, announced }).await.map(drop)
    }

    /// Whether this instance is asked to drain.
    pub(crate) async fn is_asked_to_drain(&self) -> Result<bool, StoreError> {
        match self.call_for_work(Request::IndexList { index: DRAINING_INDEX.to_owned() }).await? {
            Reply::Index(entries) => Ok(entries.iter().any(|entry| entry == self.instance().as_str())),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Subscribes to all announcements in the namespace from now on. Announcements are hints and may be missed: then
    /// the subscriber gets [`SubscriptionItem::Gap`], also after the connection was lost.
    pub fn announcements(&self) -> Announcements {
        let (queue, heard) = mpsc::channel(MAX_QUEUED_ANNOUNCEMENTS);
        self.keeper().send(Command::Subscribe(queue));
        Announcements(heard)
    }
}

/// A stream of announcements, in order.
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
