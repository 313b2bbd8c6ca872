//! Somebody who listens to a namespace's announcements.

use super::trial::PATIENCE;
use crate::name::{Group, InstanceId};
use crate::store::{Announcement, Heard, Subscription};

pub(super) struct Listener {
    subscription: Box<dyn Subscription>,
}

impl Listener {
    pub(super) fn new(subscription: Box<dyn Subscription>) -> Self {
        Self { subscription }
    }

    /// The next thing heard, whatever it is.
    pub(super) async fn next(&mut self) -> Heard {
        match tokio::time::timeout(PATIENCE, self.subscription.next()).await {
            Ok(heard) => heard,
            Err(_) => panic!("a listener must hear something within {PATIENCE:?}"),
        }
    }

    /// The next announcement about anything but ttls, which any grant may have to announce.
    pub(super) async fn hears(&mut self) -> Announcement {
        loop {
            match self.hears_anything().await {
                Announcement::LongestTtl { .. } => {}
                announcement => return announcement,
            }
        }
    }

    /// The next announcement. A gap may be heard at any time and says nothing.
    pub(super) async fn hears_anything(&mut self) -> Announcement {
        loop {
            match self.next().await {
                Heard::Announced(announcement) => return announcement,
                Heard::Gap => {}
                Heard::Closed => panic!("a subscription must go on while the server does"),
            }
        }
    }

    /// Begins to wait for the next thing and gives up at once.
    pub(super) async fn gives_up_waiting(&mut self) {
        let waited = tokio::time::timeout(std::time::Duration::ZERO, self.subscription.next()).await;
        assert!(!matches!(waited, Ok(Heard::Announced(_))), "nothing was announced yet, but {waited:?} was heard");
    }
}

/// Something that no store announces by itself, for there is no such instance: when it is heard next, nothing else was
/// announced before it.
pub(super) fn marker(text: &str) -> Announcement {
    Announcement::Left { group: Group::FLEET, instance: InstanceId::foreign(text) }
}
