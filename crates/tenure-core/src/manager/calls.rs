//! Store requests other than those of leases. Those of the work are sent at once and in order. Low-priority ones are
//! sent a few at a time, so that neither renewals nor the work queue behind them. Without a connection both wait for
//! one, until their timeout.

use std::collections::{BTreeSet, VecDeque};

use crate::store::{ErrorKind, Outcome, StoreError};
use crate::time::Moment;

use super::{CallId, Output, StoreCall};

/// Largest number of low-priority calls in flight.
pub(super) const MAX_LOW_PRIORITY_IN_FLIGHT: usize = 64;

/// Largest number of queued calls, of either kind.
const MAX_QUEUED_CALLS: usize = 10_000;

/// Calls that were not sent yet, with the time until which they wait for a connection, and calls in flight.
#[derive(Debug, Default)]
pub(super) struct StoreCalls {
    work: VecDeque<(Moment, StoreCall)>,
    low_priority: VecDeque<(Moment, StoreCall)>,
    in_flight: BTreeSet<CallId>,
    low_priority_in_flight: usize,
}

impl StoreCalls {
    /// Queues a call, or fails it when too many are queued.
    pub(super) fn push(&mut self, now: Moment, call: StoreCall) -> Option<Output> {
        let queue = if call.is_work { &mut self.work } else { &mut self.low_priority };
        if queue.len() < MAX_QUEUED_CALLS {
            queue.push_back((now + call.timeout, call));
            return None;
        }
        let message = "too many calls are queued on this instance; retry later, or on another instance";
        Some(failed(call.id, StoreError::new(ErrorKind::Unavailable, message)))
    }

    /// Takes the next call that may be sent, while there is a connection.
    pub(super) fn next(&mut self) -> Option<StoreCall> {
        if let Some((_, call)) = self.work.pop_front() {
            self.in_flight.insert(call.id);
            return Some(call);
        }
        let may_send = self.low_priority_in_flight < MAX_LOW_PRIORITY_IN_FLIGHT;
        let (_, call) = if may_send { self.low_priority.pop_front() } else { None }?;
        self.low_priority_in_flight += 1;
        self.in_flight.insert(call.id);
        Some(call)
    }

    /// Queues a call again that was taken and not sent, before the others.
    pub(super) fn put_back(&mut self, give_up_at: Moment, call: StoreCall) {
        self.in_flight.remove(&call.id);
        let queue = if call.is_work { &mut self.work } else { &mut self.low_priority };
        queue.push_front((give_up_at, call));
    }

    /// Records the reply to a call.
    pub(super) fn answered(&mut self, call: CallId, is_low_priority: bool) {
        self.in_flight.remove(&call);
        if is_low_priority {
            self.low_priority_in_flight = self.low_priority_in_flight.saturating_sub(1);
        }
    }

    /// Ends the calls in flight: after a lost connection no replies follow.
    pub(super) fn connection_lost(&mut self, why: &StoreError) -> impl Iterator<Item = Output> {
        self.low_priority_in_flight = 0;
        let outcome = Outcome::Unknown(why.clone());
        let in_flight = std::mem::take(&mut self.in_flight).into_iter();
        in_flight.map(move |call| Output::Replied { call, outcome: outcome.clone() })
    }

    /// Fails the calls that have waited for a connection until their timeout.
    pub(super) fn give_up(&mut self, now: Moment, store_error: Option<&StoreError>) -> Vec<Output> {
        let mut outputs = Vec::new();
        for queue in [&mut self.work, &mut self.low_priority] {
            let (late, waiting): (VecDeque<_>, _) =
                std::mem::take(queue).into_iter().partition(|(give_up_at, _)| *give_up_at <= now);
            *queue = waiting;
            outputs.extend(late.into_iter().map(|(_, call)| {
                let not_connected = || StoreError::new(ErrorKind::Unreachable, "not connected to the store");
                failed(call.id, store_error.cloned().unwrap_or_else(not_connected))
            }));
        }
        outputs
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

/// The output for a call that was not executed.
fn failed(call: CallId, error: StoreError) -> Output {
    Output::Replied { call, outcome: Outcome::Failed(error) }
}
