//! What is asked of the store beside leases: by the work, which is sent at once and in order, and by onlookers, of whom a few are heard at a time, so that
//! neither renewals nor the work are behind them. Without a connection both wait for one, for as long as they may.

use std::collections::VecDeque;

use super::Question;
use crate::store::{ErrorKind, StoreError};
use crate::time::Moment;

/// How many questions of onlookers are on their way at once, and how many wait for those.
pub(super) const AT_ONCE: usize = 64;
const IN_LINE: usize = 10_000;

/// How many questions wait for a connection at most.
const WAITING: usize = 1_024;

/// Questions that were not sent yet.
#[derive(Default)]
pub(super) struct Questions {
    work: VecDeque<Question>,
    /// Those of onlookers, and how many of theirs are on their way.
    line: VecDeque<Question>,
    asked: usize,
    /// Those that wait for a connection, and until when.
    waiting: VecDeque<(Moment, Question)>,
}

impl Questions {
    /// Something is asked while there is a connection.
    pub(super) fn ask(&mut self, question: Question) {
        if question.is_work {
            self.work.push_back(question);
        } else if self.line.len() < IN_LINE {
            self.line.push_back(question);
        } else {
            let message = "too much is asked of this instance at once; ask again later, or another";
            question.fail(Some(StoreError::new(ErrorKind::Unavailable, message)));
        }
    }

    /// Something is asked while there is none, for this reason.
    pub(super) fn wait(&mut self, now: Moment, question: Question, trouble: Option<&StoreError>) {
        if self.waiting.len() < WAITING {
            self.waiting.push_back((now + question.limit, question));
        } else {
            question.fail(trouble.cloned());
        }
    }

    /// The next that may be sent.
    pub(super) fn next(&mut self) -> Option<Question> {
        if let Some(question) = self.work.pop_front() {
            return Some(question);
        }
        let question = if self.asked < AT_ONCE { self.line.pop_front() } else { None };
        self.asked += usize::from(question.is_some());
        question
    }

    /// One of an onlooker's was answered.
    pub(super) fn answered(&mut self) {
        self.asked = self.asked.saturating_sub(1);
    }

    /// The connection is lost: of what was sent nobody will hear any more, and the rest waits.
    pub(super) fn connection_lost(&mut self, now: Moment, trouble: Option<&StoreError>) {
        self.asked = 0;
        let unsent: Vec<Question> = self.work.drain(..).chain(self.line.drain(..)).collect();
        unsent.into_iter().for_each(|question| self.wait(now, question, trouble));
    }

    /// There is a connection.
    pub(super) fn connected(&mut self) {
        for (_, question) in std::mem::take(&mut self.waiting) {
            self.ask(question);
        }
    }

    /// Those that have waited for long enough are told why.
    pub(super) fn give_up(&mut self, now: Moment, trouble: Option<&StoreError>) {
        let (late, waiting): (VecDeque<_>, _) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(give_up_at, _)| *give_up_at <= now);
        self.waiting = waiting;
        late.into_iter().for_each(|(_, question)| question.fail(trouble.cloned()));
    }

    /// When the first has waited for long enough.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        self.waiting.iter().map(|(give_up_at, _)| *give_up_at).min()
    }

    /// Whether nothing waits for its turn.
    pub(super) fn is_empty(&self) -> bool {
        self.work.is_empty() && self.line.is_empty()
    }
}
