//! The callers that acquire leases, and the order in which those of one process get a lease.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::lease::AcquireStatus;
use crate::name::LeaseName;
use crate::time::Moment;

use super::{AcquireRequest, LeaseId, Output, WaiterId};

/// A caller that acquires a lease.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) request: AcquireRequest,
    /// The status that it was last told.
    last_status: Option<AcquireStatus>,
}

/// Where a waiter is.
#[derive(Debug)]
enum Place {
    /// Behind another caller of this process.
    Queued(LeaseName),
    /// With a lease that is being acquired.
    Active(LeaseId),
}

/// Where a waiter was found.
pub(super) enum Withdrawn {
    /// It was queued.
    Queued(Box<Waiter>),
    /// A lease is being acquired for it.
    Active(LeaseId),
}

/// All waiters.
#[derive(Debug)]
pub(super) struct Waiters {
    /// Waiters for a lease that another caller of this process holds or acquires.
    queues: BTreeMap<LeaseName, VecDeque<Waiter>>,
    places: BTreeMap<WaiterId, Place>,
    /// When waiters give up, and the same by waiter.
    timeouts: BTreeSet<(Moment, WaiterId)>,
    limits: BTreeMap<WaiterId, Moment>,
}

impl Waiters {
    pub(super) fn new() -> Self {
        Self { queues: BTreeMap::new(), places: BTreeMap::new(), timeouts: BTreeSet::new(), limits: BTreeMap::new() }
    }

    /// Limits the time of a waiter.
    pub(super) fn limit(&mut self, waiter: WaiterId, at: Moment) {
        self.limits.insert(waiter, at);
        self.timeouts.insert((at, waiter));
    }

    /// Queues a waiter behind another caller of this process.
    pub(super) fn queue(&mut self, waiter: Waiter) {
        let name = waiter.request.name.clone();
        self.places.insert(waiter.request.waiter, Place::Queued(name.clone()));
        self.queues.entry(name).or_default().push_back(waiter);
    }

    /// Records that a lease is being acquired for a waiter.
    pub(super) fn activate(&mut self, waiter: WaiterId, lease: LeaseId) {
        self.places.insert(waiter, Place::Active(lease));
    }

    /// The next waiter for a lease.
    pub(super) fn next(&mut self, name: &LeaseName) -> Option<Waiter> {
        let queue = self.queues.get_mut(name)?;
        let next = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(name);
        }
        next
    }

    /// Forgets a waiter that got a reply.
    pub(super) fn forget(&mut self, waiter: WaiterId) {
        self.places.remove(&waiter);
        self.unlimit(waiter);
    }

    fn unlimit(&mut self, waiter: WaiterId) {
        if let Some(at) = self.limits.remove(&waiter) {
            self.timeouts.remove(&(at, waiter));
        }
    }

    /// Removes a waiter, wherever it is.
    pub(super) fn withdraw(&mut self, waiter: WaiterId) -> Option<Withdrawn> {
        self.unlimit(waiter);
        match self.places.remove(&waiter)? {
            Place::Active(lease) => Some(Withdrawn::Active(lease)),
            Place::Queued(name) => {
                let queue = self.queues.get_mut(&name)?;
                let at = queue.iter().position(|queued| queued.request.waiter == waiter)?;
                let found = queue.remove(at);
                if queue.is_empty() {
                    self.queues.remove(&name);
                }
                found.map(|waiter| Withdrawn::Queued(Box::new(waiter)))
            }
        }
    }

    /// Removes all that are queued.
    pub(super) fn take_queued(&mut self) -> Vec<Waiter> {
        let queued: Vec<Waiter> = std::mem::take(&mut self.queues).into_values().flatten().collect();
        queued.iter().for_each(|waiter| self.forget(waiter.request.waiter));
        queued
    }

    /// The lease that is being acquired for a waiter.
    pub(super) fn active_lease(&self, waiter: WaiterId) -> Option<LeaseId> {
        match self.places.get(&waiter)? {
            Place::Active(lease) => Some(*lease),
            Place::Queued(_) => None,
        }
    }

    /// When the first waiter gives up.
    pub(super) fn next_timeout(&self) -> Option<Moment> {
        self.timeouts.first().map(|(at, _)| *at)
    }

    /// Takes a waiter whose time is up.
    pub(super) fn pop_timed_out(&mut self, now: Moment) -> Option<WaiterId> {
        let (_, waiter) = self.timeouts.first().copied().filter(|(at, _)| *at <= now)?;
        self.unlimit(waiter);
        Some(waiter)
    }

    /// Whether none is queued.
    pub(super) fn has_no_queue(&self) -> bool {
        self.queues.is_empty()
    }

    /// Whether there is none.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.places.is_empty() && self.limits.is_empty() && self.timeouts.is_empty()
    }
}

impl Waiter {
    pub(super) fn new(request: AcquireRequest) -> Self {
        Self { request, last_status: None }
    }

    /// What to tell the caller, if it wants to know the status and it has changed.
    pub(super) fn update_status(&mut self, status: AcquireStatus) -> Option<Output> {
        if !self.request.wants_status || self.last_status.as_ref() == Some(&status) {
            return None;
        }
        self.last_status = Some(status.clone());
        Some(Output::Status { waiter: self.request.waiter, status })
    }
}
