//! What is asked of the store beside leases: by the work, which is sent at once and in order, and by onlookers, of whom a few are heard at a time, so that
//! neither renewals nor the work are behind them. Without a connection both wait for one, for as long as they may.

use std::collections::VecDeque;

use super::StoreCall;
use crate::store::{ErrorKind, StoreError};
use crate::time::Moment;

/// How many questions of onlookers are on their way at once.
pub(super) const MAX_LOW_PRIORITY_IN_FLIGHT: usize = 64;

/// How many questions wait at most, of either kind.
const MAX_QUEUED_CALLS: usize = 10_000;

/// StoreCalls that were not sent yet, with the time until which they wait for a connection.
#[derive(Default)]
pub(super) struct StoreCalls {
    work: VecDeque<(Moment, StoreCall)>,
    low_priority: VecDeque<(Moment, StoreCall)>,
    /// How many of the onlookers' are on their way.
    in_flight: usize,
}

impl StoreCalls {
    /// Something is asked.
    pub(super) fn push(&mut self, now: Moment, call: StoreCall) {
        let queue = if call.is_work { &mut self.work } else { &mut self.low_priority };
        if queue.len() < MAX_QUEUED_CALLS {
            queue.push_back((now + call.timeout, call));
        } else {
            let message = "too much is asked of this instance at once; ask again later, or another";
            call.fail(Some(StoreError::new(ErrorKind::Unavailable, message)));
        }
    }

    /// The next that may be sent, while there is a connection.
    pub(super) fn next(&mut self) -> Option<StoreCall> {
        if let Some((_, call)) = self.work.pop_front() {
            return Some(call);
        }
        let (_, call) = if self.in_flight < MAX_LOW_PRIORITY_IN_FLIGHT { self.low_priority.pop_front() } else { None }?;
        self.in_flight += 1;
        Some(call)
    }

    /// One of an onlooker's was answered.
    pub(super) fn answered(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// The connection is lost: of what was sent nobody will hear any more.
    pub(super) fn connection_lost(&mut self) {
        self.in_flight = 0;
    }

    /// There is no connection. Those that have waited for long enough are told why.
    pub(super) fn give_up(&mut self, now: Moment, store_error: Option<&StoreError>) {
        for queue in [&mut self.work, &mut self.low_priority] {
            let (late, waiting): (VecDeque<_>, _) =
                std::mem::take(queue).into_iter().partition(|(give_up_at, _)| *give_up_at <= now);
            *queue = waiting;
            late.into_iter().for_each(|(_, call)| call.fail(store_error.cloned()));
        }
    }

    /// When the first has waited for a connection for long enough.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        self.work.iter().chain(&self.low_priority).map(|(give_up_at, _)| *give_up_at).min()
    }

    /// Whether nothing waits for its turn.
    pub(super) fn is_empty(&self) -> bool {
        self.work.is_empty() && self.low_priority.is_empty()
    }
}
