//! Records of terms and announcements of events. They can wait, must not delay urgent requests, and may be lost.

use std::collections::VecDeque;
use std::time::Duration;

use crate::store::Request;
use crate::time::Moment;

/// Largest number of notes that wait for a connection.
const MAX_QUEUED_NOTES: usize = 4_096;

/// How long a note may wait so that several are sent together, and the usual size of such a batch: urgent requests may
/// queue behind it.
const SEND_DELAY: Duration = Duration::from_millis(200);
const MIN_BATCH_LEN: usize = 64;

/// Notes to be sent.
#[derive(Debug, Default)]
pub(super) struct Notes {
    waiting: VecDeque<Request>,
    due: Option<Moment>,
    /// Number of notes dropped because too many waited.
    pub(super) dropped: u64,
}

impl Notes {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When the next notes should be sent.
    pub(super) fn due(&self) -> Option<Moment> {
        self.due
    }

    pub(super) fn add(&mut self, now: Moment, note: Request) {
        if self.waiting.len() >= MAX_QUEUED_NOTES {
            self.waiting.pop_front();
            self.dropped += 1;
        }
        self.waiting.push_back(note);
        self.due.get_or_insert(now + SEND_DELAY);
    }

    /// Takes the notes to send now. Takes more when there are many, so that none are dropped.
    pub(super) fn take_due(&mut self, now: Moment) -> Vec<Request> {
        if self.due.is_none_or(|due| now < due) {
            return Vec::new();
        }
        let count = MIN_BATCH_LEN.max(self.waiting.len() / 8).min(self.waiting.len());
        self.due = (count < self.waiting.len()).then(|| now + SEND_DELAY);
        self.waiting.drain(..count).collect()
    }

    /// Takes all notes.
    pub(super) fn take_all(&mut self) -> Vec<Request> {
        self.due = None;
        self.waiting.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{InstanceId, LeaseName};
    use crate::store::{LogRequest, TermNote};
    use crate::time::ServerTime;
    use crate::token::Token;

    fn note(number: u64) -> Request {
        let note = TermNote {
            name: LeaseName::lease("job").unwrap(),
            token: Token::new(number).unwrap(),
            holder: InstanceId::new("alice").unwrap(),
            from: ServerTime::from_micros(0),
            demoted: None,
            released: None,
            ending: None,
        };
        LogRequest::Note(note).into()
    }

    fn at(millis: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn notes_are_batched_for_a_bounded_time() {
        let mut notes = Notes::default();
        notes.add(at(0), note(1));
        notes.add(at(150), note(2));
        assert_eq!(notes.take_due(at(199)), []);
        assert_eq!(notes.take_due(at(200)), [note(1), note(2)]);
        assert_eq!(notes.due(), None);
    }

    #[test]
    fn many_notes_are_spread_over_batches_and_none_is_lost() {
        let mut notes = Notes::default();
        (1..=1_000).for_each(|number| notes.add(at(0), note(number)));
        let (mut sent, mut now) = (Vec::new(), at(0));
        while let Some(due) = notes.due() {
            assert!(due > now, "never twice at the same time");
            now = due;
            let taken = notes.take_due(now);
            assert!(!taken.is_empty() && taken.len() <= 125, "{}", taken.len());
            sent.extend(taken);
        }
        assert_eq!(sent, (1..=1_000).map(note).collect::<Vec<_>>());
        assert_eq!(notes.dropped, 0);
    }

    #[test]
    fn without_a_connection_the_oldest_notes_are_dropped_and_counted() {
        let mut notes = Notes::default();
        (1..=5_000).for_each(|number| notes.add(at(0), note(number)));
        assert_eq!(notes.dropped, 5_000 - 4_096);
        assert_eq!(notes.take_all().first(), Some(&note(905)));
        assert!(notes.is_empty());
    }
}
