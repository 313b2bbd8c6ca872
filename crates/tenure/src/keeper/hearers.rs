//! Those who hear every announcement. One that is too slow hears of a gap instead.

use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use crate::store::{Announcement, Heard};

/// Everybody who hears.
#[derive(Default)]
pub(super) struct Hearers(Vec<Hearer>);

struct Hearer {
    queue: Sender<Heard>,
    missed: bool,
}

impl Hearers {
    pub(super) fn add(&mut self, queue: Sender<Heard>) {
        self.0.push(Hearer { queue, missed: false });
    }

    pub(super) fn tell(&mut self, announcement: &Announcement) {
        self.0.retain_mut(|hearer| hearer.hears(|| Heard::Announced(announcement.clone())));
    }

    /// Announcements may have been missed.
    pub(super) fn gap(&mut self) {
        self.0.retain_mut(|hearer| {
            hearer.missed = true;
            hearer.catches_up()
        });
    }
}

impl Hearer {
    /// Returns whether it still listens.
    fn hears(&mut self, heard: impl FnOnce() -> Heard) -> bool {
        if !self.catches_up() {
            return false;
        }
        // What comes after a gap that it has not heard of is part of the gap.
        self.missed || self.sends(heard())
    }

    fn catches_up(&mut self) -> bool {
        if self.missed {
            self.missed = false;
            return self.sends(Heard::Gap);
        }
        true
    }

    fn sends(&mut self, heard: Heard) -> bool {
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
    fn whoever_is_too_slow_hears_of_a_gap_and_then_of_what_follows() {
        let (queue, mut heard) = tokio::sync::mpsc::channel(2);
        let mut hearers = Hearers::default();
        hearers.add(queue);
        let said = |n: usize| Announcement::IndexChanged { index: n.to_string() };
        (0..5).for_each(|n| hearers.tell(&said(n)));
        assert_eq!(heard.try_recv(), Ok(Heard::Announced(said(0))));
        assert_eq!(heard.try_recv(), Ok(Heard::Announced(said(1))));
        hearers.tell(&said(5));
        assert_eq!(heard.try_recv(), Ok(Heard::Gap));
        assert_eq!(heard.try_recv(), Ok(Heard::Announced(said(5))));
        drop(heard);
        hearers.tell(&said(6));
        assert!(hearers.0.is_empty(), "whoever has left is forgotten");
    }
}
