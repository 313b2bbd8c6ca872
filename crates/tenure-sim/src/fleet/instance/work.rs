//! What an instance does with the targets that it holds: it takes the steps of their tickers, and works.

use std::time::Duration;

use tenure_core::manager::{CallId, LeaseId, server_time};
use tenure_core::pool::{Mark, TargetName, TickerStep, WriteOutcome, phase};
use tenure_core::store::{DocumentRequest, Holding, LogRequest, Outcome, Reply, Request};
use tenure_core::time::{Moment, Now, ServerTime};
use tenure_core::token::Nonce;

use super::worker::{Doing, SimWorker, TICK_INTERVAL, WorkLength, WorkerCall, WorkerTimer, view, write_outcome};
use super::{FleetInstance, InstanceEffect, InstanceTimer};
use crate::fleet::world::FleetMutation;

/// The record of the ticks of a target.
const DUE_RECORD: &str = "due";

impl FleetInstance {
    /// Takes the steps of a worker until it has to wait.
    pub(super) fn work(&mut self, now: Moment, lease: LeaseId, effects: &mut Vec<InstanceEffect>) {
        loop {
            let (Some(worker), Some(term)) = (self.workers.get_mut(&lease), self.terms.get(&lease)) else { return };
            let store_now = server_time(now, self.manager.server_offset());
            let (permission, is_draining) = (term.permission, term.is_draining);
            let view = view(now, store_now, term.deadline, permission, is_draining, self.settings.stop_budget());
            let Some(step) = worker.next(&view) else { return };
            let target = term.target.clone();
            match step {
                TickerStep::ReadMark => self.call_for_worker(now, lease, WorkerCall::ReadMark, None),
                TickerStep::Write(_) if is_draining && self.mutation == Some(FleetMutation::KeepClaims) => {
                    worker.ticker.written(WriteOutcome::Failed);
                }
                TickerStep::Write(_) if !is_draining && self.mutation == Some(FleetMutation::SkipClaims) => {
                    worker.ticker.written(WriteOutcome::Done);
                }
                TickerStep::Write(mark) => self.call_for_worker(now, lease, WorkerCall::Write, Some(mark)),
                TickerStep::AwaitAppend => worker.doing = Doing::WaitsForAppend,
                TickerStep::AwaitCertainty => worker.doing = Doing::WaitsForCertainty,
                TickerStep::Sleep(span) => {
                    worker.doing = Doing::Sleeps { wakes_to_drain: !is_draining };
                    wake_worker_in(worker, now, span, &target, WorkerTimer::Slept, effects);
                }
                // As the poller does: nothing begins that may not finish.
                TickerStep::Work(due) if view.is_uncertain || view.must_stop => worker.ticker.put_back(due),
                TickerStep::Work(due) => {
                    worker.doing = Doing::Works;
                    let (span, why) = match WorkLength::random(&mut self.rng, self.has_work_faults) {
                        WorkLength::Completes(span) => (span, WorkerTimer::Completed),
                        WorkLength::Panics(span) => (span, WorkerTimer::Panicked),
                    };
                    wake_worker_in(worker, now, span, &target, why, effects);
                    effects.push(InstanceEffect::Worked(target, due));
                }
                TickerStep::End if is_draining => {
                    worker.doing = Doing::Ended;
                    self.manager.work_ended(Now::undisturbed(now), lease);
                }
                // Work that ends while its term goes on is restarted.
                TickerStep::End => {
                    let delay = worker.restart(&target, self.settings.attempt_timeout());
                    wake_worker_in(worker, now, delay, &target, WorkerTimer::Slept, effects);
                    return;
                }
            }
        }
    }

    pub(super) fn wake_worker(
        &mut self,
        now: Moment,
        target: &TargetName,
        lease: LeaseId,
        number: u64,
        why: WorkerTimer,
        effects: &mut Vec<InstanceEffect>,
    ) {
        let Some(worker) = self.workers.get_mut(&lease).filter(|worker| worker.timer == number) else { return };
        match why {
            WorkerTimer::Slept => worker.doing = Doing::Steps,
            WorkerTimer::Completed => {
                worker.doing = Doing::Steps;
                self.append(now, lease);
            }
            WorkerTimer::Panicked => {
                let delay = worker.restart(target, self.settings.attempt_timeout());
                wake_worker_in(worker, now, delay, target, WorkerTimer::Slept, effects);
            }
        }
        self.work(now, lease, effects);
    }

    /// Appends the result of a tick, and claims the next one ahead.
    fn append(&mut self, now: Moment, lease: LeaseId) {
        let (Some(worker), Some(term)) = (self.workers.get_mut(&lease), self.terms.get(&lease)) else { return };
        let store_now = server_time(now, self.manager.server_offset());
        let (permission, is_draining) = (term.permission, term.is_draining);
        let view = view(now, store_now, term.deadline, permission, is_draining, self.settings.stop_budget());
        let mark = worker.ticker.begin_append(&view);
        self.call_for_worker(now, lease, WorkerCall::Append, mark);
    }

    fn call_for_worker(&mut self, now: Moment, lease: LeaseId, call: WorkerCall, mark: Option<Mark>) {
        let Some(term) = self.terms.get(&lease) else { return };
        let Ok(name) = self.naming.lease(&term.target) else { return };
        let holding = Holding { name: name.clone(), holder: self.id.clone(), token: term.token };
        let (record, value) = (DUE_RECORD.to_owned(), mark.map(Mark::encode).unwrap_or_default());
        let request: Request = match call {
            WorkerCall::ReadMark => DocumentRequest::ReadRecord { name, record }.into(),
            WorkerCall::Write => DocumentRequest::Publish { holding, record, value, announced: false }.into(),
            WorkerCall::Append => LogRequest::Append {
                holding,
                log: "results".to_owned(),
                value: b"up".to_vec(),
                kept: 1,
                nonce: Nonce::new(self.rng.u128(..)),
                records: mark.map(|_| (record, value)).into_iter().collect(),
            }
            .into(),
        };
        let id = self.call(now, request, true);
        self.worker_calls.insert(id, (lease, call));
        if let Some(worker) = self.workers.get_mut(&lease) {
            match call {
                WorkerCall::ReadMark | WorkerCall::Write => worker.doing = Doing::Waits(id),
                WorkerCall::Append => worker.append = Some((id, None)),
            }
        }
    }

    pub(super) fn worker_replied(
        &mut self,
        now: Moment,
        call: CallId,
        outcome: &Outcome,
        effects: &mut Vec<InstanceEffect>,
    ) {
        let Some((lease, what)) = self.worker_calls.remove(&call) else { return };
        let store_now = server_time(now, self.manager.server_offset());
        let Some(worker) = self.workers.get_mut(&lease) else { return };
        match what {
            WorkerCall::Append => {
                if let Some((_, reply)) = worker.append.as_mut().filter(|(id, _)| *id == call) {
                    *reply = Some(write_outcome(outcome));
                }
            }
            // The worker that asked was restarted.
            WorkerCall::ReadMark | WorkerCall::Write if worker.doing != Doing::Waits(call) => return,
            WorkerCall::Write => {
                worker.doing = Doing::Steps;
                worker.ticker.written(write_outcome(outcome));
            }
            WorkerCall::ReadMark => {
                worker.doing = Doing::Steps;
                match outcome {
                    Outcome::Answered(Reply::Record(found)) => {
                        let mark = found.as_ref().and_then(|record| Mark::decode(&record.value));
                        let mark = match (mark, self.terms.get(&lease)) {
                            // As if the target had not been worked on for long.
                            (Some(_), Some(term)) if self.mutation == Some(FleetMutation::IgnoreMarks) => {
                                let worked = ServerTime::from_micros(phase(&term.target, TICK_INTERVAL));
                                Some(Mark { worked, ahead: None })
                            }
                            (mark, _) => mark,
                        };
                        worker.ticker.mark_read(store_now, mark);
                    }
                    _ => worker.ticker.failed(),
                }
            }
        }
        self.work(now, lease, effects);
    }
}

/// Wakes a worker after this time, unless another timer of it is set before.
fn wake_worker_in(
    worker: &mut SimWorker,
    now: Moment,
    span: Duration,
    target: &TargetName,
    why: WorkerTimer,
    effects: &mut Vec<InstanceEffect>,
) {
    worker.timer += 1;
    let timer = InstanceTimer::Worker(target.clone(), worker.lease, worker.timer, why);
    effects.push(InstanceEffect::Wake(now + span, timer));
}
