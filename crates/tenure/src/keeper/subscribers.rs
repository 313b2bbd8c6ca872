//! The subscribers to all announcements. One that is too slow receives a gap instead.

use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use crate::store::{Announcement, SubscriptionItem};

/// All subscribers.
#[derive(Default)]
pub(super) struct Subscribers(Vec<Subscriber>);

struct Subscriber {
    queue: Sender<SubscriptionItem>,
    missed: bool,
}

impl Subscribers {
    pub(super) fn add(&mut self, queue: Sender<SubscriptionItem>) {
        self.0.push(Subscriber { queue, missed: false });
    }

    pub(super) fn publish(&mut self, announcement: &Announcement) {
        self.0.retain_mut(|subscriber| subscriber.deliver(|| SubscriptionItem::Announced(announcement.clone())));
    }

    /// Tells every subscriber that announcements may have been missed.
    pub(super) fn mark_gap(&mut self) {
        self.0.retain_mut(|subscriber| {
            subscriber.missed = true;
            subscriber.deliver_gap()
        });
    }
}

impl Subscriber {
    /// Returns whether the subscriber still exists.
    fn deliver(&mut self, heard: impl FnOnce() -> SubscriptionItem) -> bool {
        if !self.deliver_gap() {
            return false;
        }
        // Announcements after an undelivered gap are part of the gap.
        self.missed || self.try_send(heard())
    }

    fn deliver_gap(&mut self) -> bool {
        if self.missed {
            self.missed = false;
            return self.try_send(SubscriptionItem::Gap);
        }
        true
    }

    fn try_send(&mut self, heard: SubscriptionItem) -> bool {
        match self.queue.try_send(heard) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.missed = true;
                true
            }
            Err(TrySendError::Closed(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_subscriber_receives_a_gap_and_then_what_follows() {
        let (queue, mut heard) = tokio::sync::mpsc::channel(2);
        let mut subscribers = Subscribers::default();
        subscribers.add(queue);
        let said = |n: usize| Announcement::IndexChanged { index: n.to_string() };
        (0..5).for_each(|n| subscribers.publish(&said(n)));
        assert_eq!(heard.try_recv(), Ok(SubscriptionItem::Announced(said(0))));
        assert_eq!(heard.try_recv(), Ok(SubscriptionItem::Announced(said(1))));
        subscribers.publish(&said(5));
        assert_eq!(heard.try_recv(), Ok(SubscriptionItem::Gap));
        assert_eq!(heard.try_recv(), Ok(SubscriptionItem::Announced(said(5))));
        drop(heard);
        subscribers.publish(&said(6));
        assert!(subscribers.0.is_empty(), "a dropped subscriber is removed");
    }
}
