//! What is asked of the store beside leases: by the work, which is sent at once and in order, and by onlookers, of whom a few are heard at a time, so that
//! neither renewals nor the work are behind them. Without a connection both wait for one, for as long as they may.

use std::collections::VecDeque;

use super::Question;
use crate::store::{ErrorKind, StoreError};
use crate::time::Moment;

/// How many questions of onlookers are on their way at once.
pub(super) const AT_ONCE: usize = 64;

/// How many questions wait at most, of either kind.
const IN_LINE: usize = 10_000;

/// Questions that were not sent yet, with the time until which they wait for a connection.
#[derive(Default)]
pub(super) struct Questions {
    work: VecDeque<(Moment, Question)>,
    onlookers: VecDeque<(Moment, Question)>,
    /// How many of the onlookers' are on their way.
    asked: usize,
}

impl Questions {
    /// Something is asked.
    pub(super) fn ask(&mut self, now: Moment, question: Question) {
        let line = if question.is_work { &mut self.work } else { &mut self.onlookers };
        if line.len() < IN_LINE {
            line.push_back((now + question.limit, question));
        } else {
            let message = "too much is asked of this instance at once; ask again later, or another";
            question.fail(Some(StoreError::new(ErrorKind::Unavailable, message)));
        }
    }

    /// The next that may be sent, while there is a connection.
    pub(super) fn next(&mut self) -> Option<Question> {
        if let Some((_, question)) = self.work.pop_front() {
            return Some(question);
        }
        let (_, question) = if self.asked < AT_ONCE { self.onlookers.pop_front() } else { None }?;
        self.asked += 1;
        Some(question)
    }

    /// One of an onlooker's was answered.
    pub(super) fn answered(&mut self) {
        self.asked = self.asked.saturating_sub(1);
    }

    /// The connection is lost: of what was sent nobody will hear any more.
    pub(super) fn connection_lost(&mut self) {
        self.asked = 0;
    }

    /// There is no connection. Those that have waited for long enough are told why.
    pub(super) fn give_up(&mut self, now: Moment, trouble: Option<&StoreError>) {
        for line in [&mut self.work, &mut self.onlookers] {
            let (late, waiting): (VecDeque<_>, _) =
                std::mem::take(line).into_iter().partition(|(give_up_at, _)| *give_up_at <= now);
            *line = waiting;
            late.into_iter().for_each(|(_, question)| question.fail(trouble.cloned()));
        }
    }

    /// When the first has waited for a connection for long enough.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        self.work.iter().chain(&self.onlookers).map(|(give_up_at, _)| *give_up_at).min()
    }

    /// Whether nothing waits for its turn.
    pub(super) fn is_empty(&self) -> bool {
        self.work.is_empty() && self.onlookers.is_empty()
    }
}
