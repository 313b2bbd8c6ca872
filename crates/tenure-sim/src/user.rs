//! The users of a process: for each lease a candidate, which acquires it again and again and works in its terms.

use std::time::Duration;

use tenure_core::election::BackoffReason;
use tenure_core::ending::ReleaseReason;
use tenure_core::lease::{Intent, Permission};
use tenure_core::manager::{AcquireMode, AcquireRequest, LeaseId, Validity, WaiterId};
use tenure_core::store::{Ask, DocumentRequest, Holding, LeaseRequest};
use tenure_core::time::{Moment, Now};
use tenure_core::{LeaseName, Token};

use crate::candidate::{ElectionEvents, SimCandidate};
use crate::mutation::SimMutation;
use crate::names::NameTable;
use crate::observation::{LeaseIndex, Observation, ProcessId};
use crate::process::{Effect, SimProcess, Timer};
use crate::work::SimWork;

/// How long it takes to drop work that must be gone.
const MAX_DROP_DELAY: Duration = Duration::from_micros(200);

/// What a process does with one lease.
#[derive(Debug)]
pub(crate) struct LeaseUser {
    pub(crate) name: LeaseName,
    waiter: Option<WaiterId>,
    pub(crate) term: Option<SimTerm>,
    /// End of the term's validity, computed here from the times at which requests were sent.
    pub(crate) valid_until: Moment,
    pub(crate) work: Option<SimWork>,
    pub(crate) hung: bool,
    pub(crate) candidate: SimCandidate,
    /// How the last term ended, until the lease is requested again.
    backoff_reason: Option<BackoffReason>,
}

/// A term as its holder sees it: what the manager has told it.
#[derive(Debug)]
pub(crate) struct SimTerm {
    pub(crate) lease: LeaseId,
    token: Option<Token>,
    deadline: Moment,
    pub(crate) permission: Permission,
}

impl SimTerm {
    pub(crate) fn new(lease: LeaseId) -> Self {
        Self { lease, token: None, deadline: Moment::ZERO, permission: Permission::None }
    }

    pub(crate) fn update(&mut self, validity: &Validity) {
        self.token = validity.token.or(self.token);
        self.deadline = validity.deadline;
    }

    pub(crate) fn is_valid(&self, local: Moment) -> bool {
        local < self.deadline
    }

    /// Whether work may start: permitted, and not too near the deadline.
    fn may_start(&self, local: Moment, stop_budget: Duration) -> bool {
        matches!(self.permission, Permission::MayStart { .. }) && self.deadline.since(local) > stop_budget
    }
}

impl LeaseUser {
    pub(crate) fn new(name: LeaseName) -> Self {
        Self {
            name,
            waiter: None,
            term: None,
            valid_until: Moment::ZERO,
            work: None,
            hung: false,
            candidate: SimCandidate::default(),
            backoff_reason: None,
        }
    }
}

impl SimProcess {
    // Acquiring.

    pub(crate) fn acquire(&mut self, now: Now, lease: LeaseIndex) {
        let user = &self.users[lease.0];
        if user.waiter.is_some() || user.term.is_some() {
            return;
        }
        let (mode, timeout) = match self.rng.u8(..20) {
            0 if self.user_actions_enabled => (AcquireMode::Try, Some(self.settings.attempt_timeout() * 2)),
            1 if self.user_actions_enabled => (AcquireMode::Wait, Some(self.random_up_to(self.settings.ttl() * 2))),
            _ => (AcquireMode::Wait, None),
        };
        let waiter = WaiterId(self.next_number());
        self.waiters.insert(waiter, lease);
        self.users[lease.0].waiter = Some(waiter);
        let (name, settings) = (self.users[lease.0].name.clone(), self.settings.clone());
        let request = AcquireRequest { waiter, name, settings, mode, timeout, heartbeat: None, wants_status: true };
        self.manager.acquire(now, request);
    }

    /// A caller got its term. One that no longer waits releases it.
    pub(crate) fn granted(&mut self, now: Now, waiter: WaiterId, lease: LeaseId) {
        match self.waiters.remove(&waiter) {
            Some(index) => self.users[index.0].waiter = None,
            None => self.manager.apply_intent(now, lease, Intent::Release(ReleaseReason::Voluntary)),
        }
    }

    pub(crate) fn refused(&mut self, waiter: WaiterId, effects: &mut Vec<Effect>) {
        if let Some(lease) = self.waiters.remove(&waiter) {
            self.users[lease.0].waiter = None;
            let pause = self.random_up_to(self.settings.ttl() / 10);
            effects.push(Effect::Wake(pause, Timer::Acquire(lease)));
        }
    }

    fn give_up(&mut self, now: Now, lease: LeaseIndex, effects: &mut Vec<Effect>) {
        if let Some(waiter) = self.users[lease.0].waiter {
            self.manager.give_up(now, waiter);
            self.refused(waiter, effects);
        }
    }

    pub(crate) fn term_ended(&mut self, lease: LeaseId, effects: &mut Vec<Effect>) {
        let Some(index) = self.terms.remove(&lease) else { return };
        let chance = self.rng.f64();
        let user = &mut self.users[index.0];
        user.term = None;
        let reason = user.backoff_reason.take().unwrap_or(BackoffReason::Resigned);
        let pause = user.candidate.backoff(reason, &self.settings, chance).mul_f64(chance);
        effects.push(Effect::Wake(pause, Timer::Acquire(index)));
    }

    // The candidate.

    /// Reports a candidate's election events.
    pub(crate) fn observe_election(&self, lease: LeaseIndex, events: ElectionEvents, effects: &mut Vec<Effect>) {
        let process = self.id;
        let seen = |(token, event)| Effect::Observed(Observation::ElectionReported { process, lease, token, event });
        effects.extend(events.into_iter().map(seen));
    }

    fn stop_candidate(&mut self, local: Moment, lease: LeaseIndex, effects: &mut Vec<Effect>) {
        if self.mutation == Some(SimMutation::SilentDemotion) {
            return;
        }
        let user = &mut self.users[lease.0];
        let (events, reason) = user.candidate.on_must_stop(local);
        user.backoff_reason = reason.or(user.backoff_reason);
        self.observe_election(lease, events, effects);
    }

    // Work.

    pub(crate) fn apply_permission(
        &mut self,
        now: Now,
        lease: LeaseIndex,
        permission: Permission,
        effects: &mut Vec<Effect>,
    ) {
        if matches!(permission, Permission::MustCancel { .. } | Permission::MustBeGone) {
            self.stop_candidate(now.moment, lease, effects);
        }
        match permission {
            Permission::MayStart { token } => {
                let events = self.users[lease.0].candidate.on_may_start(token, now.moment);
                self.observe_election(lease, events, effects);
                effects.push(Effect::Observed(Observation::MayStart(self.term(lease, token))));
                self.schedule_work(lease, token, effects);
            }
            Permission::MustCancel { gone_by } => {
                if let Some(work) = &mut self.users[lease.0].work {
                    let was_cancelled = work.gone_by.replace(gone_by).is_some();
                    let budget = gone_by.since(now.moment).min(self.settings.stop_budget());
                    let clean_up = match work.ignores_cancel {
                        true => gone_by.since(now.moment),
                        false => budget.mul_f64(self.rng.f64()),
                    };
                    if !was_cancelled || work.ignores_cancel {
                        effects.push(Effect::Wake(clean_up, Timer::CleanupDone(lease, work.number)));
                    }
                }
            }
            // The task that runs the work is woken, and drops it.
            Permission::MustBeGone => {
                let soon = self.random_up_to(MAX_DROP_DELAY);
                if let Some(work) = &mut self.users[lease.0].work {
                    work.gone_by = Some(now.moment);
                    effects.push(Effect::Wake(soon, Timer::CleanupDone(lease, work.number)));
                }
            }
            Permission::None | Permission::HoldStarts { .. } => {}
        }
    }

    fn schedule_work(&mut self, lease: LeaseIndex, token: Token, effects: &mut Vec<Effect>) {
        let pause = self.random_up_to(self.settings.ttl() / 50);
        effects.push(Effect::Wake(pause, Timer::StartWork(lease, token)));
    }

    pub(crate) fn start_work(&mut self, now: Now, lease: LeaseIndex, token: Token, effects: &mut Vec<Effect>) {
        let user = &self.users[lease.0];
        let Some(term) = user.term.as_ref().filter(|term| term.token == Some(token)) else { return };
        let may_start = match self.mutation {
            Some(SimMutation::CachedBoolean) => matches!(term.permission, Permission::MayStart { .. }),
            _ => term.may_start(now.moment, self.settings.stop_budget()),
        };
        if user.work.is_some() || !may_start {
            return;
        }
        let unit = self.next_number();
        let length = self.settings.ttl().mul_f64(0.02 + 0.6 * self.rng.f64() * self.rng.f64());
        self.users[lease.0].work = Some(SimWork {
            number: unit,
            token,
            done_at: now.moment + length,
            ignores_cancel: self.rng.f64() < 0.3,
            gone_by: None,
            check_passed: false,
        });
        effects.push(Effect::Observed(Observation::WorkStarted(self.term(lease, token))));
        effects.push(Effect::Wake(Duration::ZERO, Timer::Act(lease, unit)));
    }

    pub(crate) fn act(&mut self, now: Now, lease: LeaseIndex, unit: u64, effects: &mut Vec<Effect>) {
        let local = now.moment;
        let user = &self.users[lease.0];
        let (Some(term), Some(work)) = (&user.term, &user.work) else { return };
        if work.number != unit {
            return;
        }
        let may_act = match (self.mutation, work.gone_by) {
            (Some(SimMutation::CachedBoolean), _) => true,
            (_, Some(gone_by)) => local < gone_by,
            (_, None) => term.is_valid(local),
        };
        if !may_act {
            self.end_work(now, lease, effects);
            return;
        }
        let (id, token, valid_until, hung) = (term.lease, work.token, user.valid_until, user.hung);
        let is_done = local >= work.done_at && work.gone_by.is_none();
        effects.push(Effect::Observed(Observation::Acted { term: self.term(lease, token), local, valid_until }));
        if !hung {
            self.manager.progress(now, id);
        }
        if is_done && !hung {
            self.publish(now, lease, token);
            self.end_work(now, lease, effects);
            self.schedule_work(lease, token, effects);
        } else {
            let pause = self.random_up_to(self.settings.ttl() / 25);
            effects.push(Effect::Wake(pause, Timer::Act(lease, unit)));
        }
    }

    /// Ends the work of a lease, if there is any. The manager is told as the library's guard tells it: unless more work
    /// may start.
    pub(crate) fn end_work(&mut self, now: Now, lease: LeaseIndex, effects: &mut Vec<Effect>) {
        let user = &mut self.users[lease.0];
        let Some(work) = user.work.take() else { return };
        user.hung = false;
        let term = user.term.as_ref().filter(|term| !matches!(term.permission, Permission::MayStart { .. }));
        let stopped = term.map(|term| term.lease);
        effects.push(Effect::Observed(Observation::WorkEnded(self.term(lease, work.token))));
        if let Some(id) = stopped {
            self.manager.work_ended(now, id);
        }
    }

    pub(crate) fn publish(&mut self, now: Now, lease: LeaseIndex, token: Token) {
        let holding = Holding { name: self.users[lease.0].name.clone(), holder: self.instance.clone(), token };
        let (record, value) = ("state".to_owned(), Vec::new());
        self.call(now, DocumentRequest::Publish { holding, record, value, announced: true }, true);
    }

    /// Performs a random action of a user or an operator.
    pub(crate) fn perform_user_action(&mut self, now: Now, names: &NameTable, effects: &mut Vec<Effect>) {
        let lease = LeaseIndex(self.rng.usize(..self.users.len()));
        let receiver = names.instance(ProcessId(self.rng.usize(..names.processes()))).clone();
        let user = &self.users[lease.0];
        let name = user.name.clone();
        let held = user.term.as_ref().filter(|term| term.is_valid(now.moment));
        let known = held.and_then(|term| term.token).or(self.manager.memory().map(|memory| memory.high_water));
        match self.rng.u32(..10) {
            0..3 => self.intend(now, lease, Intent::Release(ReleaseReason::Voluntary), effects),
            3 => self.intend(now, lease, Intent::Drain(ReleaseReason::Rebalance), effects),
            4 => self.intend(now, lease, Intent::DrainTo(receiver, ReleaseReason::Rebalance), effects),
            5..7 => self.intend(now, lease, Intent::HandOver(receiver), effects),
            7 => self.users[lease.0].hung = true,
            8 => {
                if let Some(token) = known {
                    self.call(now, LeaseRequest::Revoke { name, token }, false);
                }
            }
            _ => {
                if let Some(token) = known {
                    let ask = Ask::StepDown { to: self.rng.bool().then_some(receiver) };
                    self.call(now, LeaseRequest::Ask { name, token, ask }, false);
                }
            }
        }
    }

    /// Applies an intent to the term of a lease, or ends the wait for one.
    fn intend(&mut self, now: Now, lease: LeaseIndex, intent: Intent, effects: &mut Vec<Effect>) {
        match self.users[lease.0].term.as_ref().map(|term| term.lease) {
            Some(id) => self.manager.apply_intent(now, id, intent),
            None => self.give_up(now, lease, effects),
        }
    }
}
