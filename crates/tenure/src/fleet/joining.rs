//! Joining the fleet, and seeing who is in it.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::InstanceRecord;
use crate::keeper::{Command, Heartbeat};
use crate::name::{Group, InstanceId};
use crate::store::{LiveInstance, Reply, Request, StoreError, SubscriptionItem};
use crate::tenure::Tenure;

/// The index of instances that are asked to give everything away.
pub(crate) const DRAINING_INDEX: &str = "draining";

/// How many announcements wait for a slow listener before it hears of a gap instead.
const MAX_QUEUED_ANNOUNCEMENTS: usize = 4_096;

impl Tenure {
    /// Says from now on that this instance lives, until it [leaves](Self::leave_fleet) or is shut down; from the keeper's own thread,
    /// whatever the program does. Said again, it changes what is said.
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

    /// Leaves the fleet, which is announced.
    pub fn leave_fleet(&self) {
        self.keeper().send(Command::LeaveFleet);
    }

    /// All instances whose heartbeats can be believed. A [`Liveness`](super::Liveness) knows who of them counts as alive.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn fleet(&self) -> Result<Vec<LiveInstance>, StoreError> {
        match self.call(Request::Instances { group: Group::FLEET }).await? {
            Reply::Instances(members) => Ok(members),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Asks an instance to give away all its targets and to take no more, until it is [asked back](Self::undrain) or has gone. What is asked
    /// stands in the store.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// It may or may not have been asked.
    pub async fn drain(&self, instance: &InstanceId) -> Result<(), StoreError> {
        let (index, entry, announced) = (DRAINING_INDEX.to_owned(), instance.to_string(), true);
        self.call(Request::IndexAdd { index, entry, announced }).await.map(drop)
    }

    /// Asks an instance to take part again.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// It may or may not have been asked.
    pub async fn undrain(&self, instance: &InstanceId) -> Result<(), StoreError> {
        let (index, entry, announced) = (DRAINING_INDEX.to_owned(), instance.to_string(), true);
        self.call(Request::IndexRemove { index, entry, announced }).await.map(drop)
    }

    /// Whether this instance is asked to give everything away.
    pub(crate) async fn is_asked_to_drain(&self) -> Result<bool, StoreError> {
        match self.call_for_work(Request::IndexList { index: DRAINING_INDEX.to_owned() }).await? {
            Reply::Index(entries) => Ok(entries.iter().any(|entry| entry == self.instance().as_str())),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Everything that is announced in the namespace from now on. Announcements are hints, and may be missed: then
    /// [`SubscriptionItem::Gap`] is heard, also after the connection was lost.
    pub fn announcements(&self) -> Announcements {
        let (queue, heard) = mpsc::channel(MAX_QUEUED_ANNOUNCEMENTS);
        self.keeper().send(Command::Subscribe(queue));
        Announcements(heard)
    }
}

/// What is announced, in order.
#[derive(Debug)]
pub struct Announcements(mpsc::Receiver<SubscriptionItem>);

impl Announcements {
    /// The next thing heard; [`SubscriptionItem::Closed`] when there will be no more.
    ///
    /// # Cancel safety
    /// Safe: nothing is lost.
    pub async fn next(&mut self) -> SubscriptionItem {
        self.0.recv().await.unwrap_or(SubscriptionItem::Closed)
    }

    /// Passes over everything that was announced by now.
    pub(crate) fn skip(&mut self) {
        while self.0.try_recv().is_ok() {}
    }
}
