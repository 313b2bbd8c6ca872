//! A subscriber to a namespace's announcements.

use super::harness::REPLY_TIMEOUT;
use crate::name::{Group, InstanceId};
use crate::store::{Announcement, Subscription, SubscriptionItem};

pub(super) struct TestSubscriber {
    subscription: Box<dyn Subscription>,
}

impl TestSubscriber {
    pub(super) fn new(subscription: Box<dyn Subscription>) -> Self {
        Self { subscription }
    }

    /// The next item, of whatever kind.
    pub(super) async fn next(&mut self) -> SubscriptionItem {
        match tokio::time::timeout(REPLY_TIMEOUT, self.subscription.next()).await {
            Ok(heard) => heard,
            Err(_) => panic!("a subscriber must receive something within {REPLY_TIMEOUT:?}"),
        }
    }

    /// The next announcement except those of the longest ttl, which any grant may cause.
    pub(super) async fn next_announcement(&mut self) -> Announcement {
        loop {
            match self.next_announcement_or_ttl().await {
                Announcement::LongestTtl { .. } => {}
                announcement => return announcement,
            }
        }
    }

    /// The next announcement. A gap may occur at any time and means nothing.
    pub(super) async fn next_announcement_or_ttl(&mut self) -> Announcement {
        loop {
            match self.next().await {
                SubscriptionItem::Announced(announcement) => return announcement,
                SubscriptionItem::Gap => {}
                SubscriptionItem::Closed => panic!("a subscription must last while the server runs"),
            }
        }
    }

    /// Starts to wait for the next item and gives up at once.
    pub(super) async fn cancel_next(&mut self) {
        let waited = tokio::time::timeout(std::time::Duration::ZERO, self.subscription.next()).await;
        assert!(
            !matches!(waited, Ok(SubscriptionItem::Announced(_))),
            "nothing was announced yet, but {waited:?} was received"
        );
    }
}

/// An announcement that no store sends by itself, for there is no such instance: when it is received next, nothing else
/// was announced before it.
pub(super) fn marker(text: &str) -> Announcement {
    Announcement::Left { group: Group::FLEET, instance: InstanceId::foreign(text) }
}
