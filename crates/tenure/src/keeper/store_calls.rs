//! Store requests other than those of leases. Those of the work are sent at once and in order. Low-priority ones are
//! sent a few at a time, so that neither renewals nor the work queue behind them. Without a connection both wait for
//! one, until their timeout.

use std::collections::VecDeque;

use super::StoreCall;
use crate::store::{ErrorKind, StoreError};
use crate::time::Moment;

/// Largest number of low-priority calls in flight.
pub(super) const MAX_LOW_PRIORITY_IN_FLIGHT: usize = 64;

/// Largest number of queued calls, of either kind.
const MAX_QUEUED_CALLS: usize = 10_000;

/// Calls that were not sent yet, with the time until which they wait for a connection.
#[derive(Default)]
pub(super) struct StoreCalls {
    work: VecDeque<(Moment, StoreCall)>,
    low_priority: VecDeque<(Moment, StoreCall)>,
    /// Number of low-priority calls in flight.
    in_flight: usize,
}

impl StoreCalls {
    /// Queues a call, or fails it when too many are queued.
    pub(super) fn push(&mut self, now: Moment, call: StoreCall) {
        let queue = if call.is_work { &mut self.work } else { &mut self.low_priority };
        if queue.len() < MAX_QUEUED_CALLS {
            queue.push_back((now + call.timeout, call));
        } else {
            let message = "too many calls are queued on this instance; retry later, or on another instance";
            call.fail(Some(StoreError::new(ErrorKind::Unavailable, message)));
        }
    }

    /// Takes the next call that may be sent, while there is a connection.
    pub(super) fn next(&mut self) -> Option<StoreCall> {
        if let Some((_, call)) = self.work.pop_front() {
            return Some(call);
        }
        let (_, call) = if self.in_flight < MAX_LOW_PRIORITY_IN_FLIGHT { self.low_priority.pop_front() } else { None }?;
        self.in_flight += 1;
        Some(call)
    }

    /// Records the reply to a low-priority call.
    pub(super) fn answered(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Resets the calls in flight: after a lost connection no replies follow.
    pub(super) fn connection_lost(&mut self) {
        self.in_flight = 0;
    }

    /// Fails the calls that have waited for a connection until their timeout.
    pub(super) fn give_up(&mut self, now: Moment, store_error: Option<&StoreError>) {
        for queue in [&mut self.work, &mut self.low_priority] {
            let (late, waiting): (VecDeque<_>, _) =
                std::mem::take(queue).into_iter().partition(|(give_up_at, _)| *give_up_at <= now);
            *queue = waiting;
            late.into_iter().for_each(|(_, call)| call.fail(store_error.cloned()));
        }
    }

    /// When the first call has waited for a connection until its timeout.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        self.work.iter().chain(&self.low_priority).map(|(give_up_at, _)| *give_up_at).min()
    }

    /// Whether no call is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.work.is_empty() && self.low_priority.is_empty()
    }
}
