//! The queries of a pool that are on their way, with their retries.

use std::collections::BTreeMap;
use std::time::Duration;

use super::index::{MOVE_RECORD, held_index};
use super::manager_io::{PoolOutput, QueryId};
use super::naming::Naming;
use super::{PoolInput, TargetName};
use crate::fleet::DRAINING_INDEX;
use crate::manager::local_moment;
use crate::name::{Group, InstanceId};
use crate::store::{
    DocumentRequest, Held, LeaseRequest, MembershipRequest, PublishedRecord, Reply, Request, StoreError,
};
use crate::time::Moment;

/// The limit of targets per query. The next query follows the reply, so that urgent requests do not queue behind all of
/// them.
const MAX_HOLDERS_PER_REQUEST: usize = 500;

/// The backoff after a failed query.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A question to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Query {
    /// All heartbeats.
    Instances,
    /// Which instances are asked to drain.
    DrainRequest,
    /// The holders of these targets. The rest is asked afterwards.
    Holders { targets: Vec<TargetName>, rest: Vec<TargetName> },
    /// The holder of a target, and until when.
    Lease(TargetName),
    /// The targets that an instance held.
    HeldIndex(InstanceId),
    /// Why a target moved to its holder.
    MoveRecord(TargetName),
}

/// What follows from the outcome of a query.
#[derive(Debug)]
pub(super) enum Finished {
    /// An input of the engine, and perhaps another query.
    Input(PoolInput, Option<Query>),
    /// The instances that are asked to drain.
    DrainRequests(Vec<String>),
    /// The record of a move.
    MoveRecord(TargetName, Option<PublishedRecord>),
    /// Nothing, or nothing yet.
    Nothing,
}

impl Query {
    pub(super) fn holders(mut targets: Vec<TargetName>) -> Self {
        let rest = targets.split_off(targets.len().min(MAX_HOLDERS_PER_REQUEST));
        Self::Holders { targets, rest }
    }

    /// The request to send. `None` when a name is not valid.
    fn request(&self, naming: &Naming) -> Option<Request> {
        Some(match self {
            Self::Instances => MembershipRequest::List { group: Group::FLEET }.into(),
            Self::DrainRequest => DocumentRequest::IndexList { index: DRAINING_INDEX.to_owned() }.into(),
            Self::Holders { targets, .. } => {
                let names = targets.iter().filter_map(|target| naming.lease(target).ok()).collect();
                LeaseRequest::Holders { names }.into()
            }
            Self::Lease(target) => LeaseRequest::Inspect { name: naming.lease(target).ok()? }.into(),
            Self::HeldIndex(instance) => {
                DocumentRequest::IndexList { index: held_index(naming.pool(), instance) }.into()
            }
            Self::MoveRecord(target) => {
                let record = MOVE_RECORD.to_owned();
                DocumentRequest::ReadRecord { name: naming.lease(target).ok()?, record }.into()
            }
        })
    }

    /// Whether the pool cannot go on without an answer.
    fn is_retried(&self) -> bool {
        matches!(self, Self::Holders { .. } | Self::Lease(_) | Self::HeldIndex(_))
    }

    /// What follows when there is no answer, and none will come.
    fn failed(self) -> Finished {
        match self {
            Self::Instances => Finished::Input(PoolInput::ReadFailed, None),
            Self::Holders { rest, .. } => Finished::Input(PoolInput::Holders(Vec::new()), Self::next_holders(rest)),
            _ => Finished::Nothing,
        }
    }

    fn next_holders(rest: Vec<TargetName>) -> Option<Self> {
        (!rest.is_empty()).then(|| Self::holders(rest))
    }

    fn answered(self, reply: Reply, server_offset: i64) -> Finished {
        match (self, reply) {
            (Self::Instances, Reply::Instances(members)) => Finished::Input(PoolInput::Instances(members), None),
            (Self::DrainRequest, Reply::Index(entries)) => Finished::DrainRequests(entries),
            (Self::Holders { targets, rest }, Reply::Holders(holders)) => {
                let holders = targets.into_iter().zip(holders).collect();
                Finished::Input(PoolInput::Holders(holders), Self::next_holders(rest))
            }
            (Self::Lease(target), Reply::Lease(report)) => {
                // By the store's clock: the reply may have been in transit for longer than the other instances need to
                // take the target over.
                let ends = |held: &Held| Some(local_moment(held.server + held.remaining?, server_offset));
                let held = report.held.map(|held| (held.holder.clone(), ends(&held)));
                Finished::Input(PoolInput::Report { target, held }, None)
            }
            (Self::HeldIndex(instance), Reply::Index(entries)) => {
                let targets = entries.into_iter().map(TargetName::from).collect();
                Finished::Input(PoolInput::PreviouslyHeld { instance, targets }, None)
            }
            (Self::MoveRecord(target), Reply::Record(record)) => Finished::MoveRecord(target, record),
            (query, _) => query.failed(),
        }
    }
}

/// All queries of a pool.
#[derive(Debug, Default)]
pub(super) struct Queries {
    last_id: u64,
    in_flight: BTreeMap<QueryId, (Query, Request)>,
    /// Failed queries, by when to send them again.
    retries: BTreeMap<(Moment, QueryId), (Query, Request)>,
}

impl Queries {
    /// Sends a query, unless a name in it is not valid.
    pub(super) fn begin(&mut self, naming: &Naming, mut query: Query) -> Option<PoolOutput> {
        if let Query::Holders { targets, .. } = &mut query {
            targets.retain(|target| naming.lease(target).is_ok());
        }
        let request = query.request(naming)?;
        Some(self.send(query, request))
    }

    fn send(&mut self, query: Query, request: Request) -> PoolOutput {
        self.last_id += 1;
        let id = QueryId(self.last_id);
        let is_work = !matches!(query, Query::MoveRecord(_));
        self.in_flight.insert(id, (query, request.clone()));
        PoolOutput::Query { id, request, is_work }
    }

    /// Handles the outcome of a query.
    pub(super) fn finish(
        &mut self,
        now: Moment,
        id: QueryId,
        outcome: Result<Reply, StoreError>,
        server_offset: i64,
    ) -> Finished {
        let Some((query, request)) = self.in_flight.remove(&id) else { return Finished::Nothing };
        match outcome {
            Ok(reply) => query.answered(reply, server_offset),
            Err(error) if error.is_retryable() && query.is_retried() => {
                self.retries.insert((now + RETRY_AFTER, id), (query, request));
                Finished::Nothing
            }
            Err(_) => query.failed(),
        }
    }

    /// When the first failed query is sent again.
    pub(super) fn next_retry(&self) -> Option<Moment> {
        self.retries.keys().next().map(|(at, _)| *at)
    }

    /// Sends the queries again whose time has come.
    pub(super) fn take_retries(&mut self, now: Moment) -> Vec<PoolOutput> {
        let mut outputs = Vec::new();
        while self.next_retry().is_some_and(|at| at <= now)
            && let Some((_, (query, request))) = self.retries.pop_first()
        {
            outputs.push(self.send(query, request));
        }
        outputs
    }
}
