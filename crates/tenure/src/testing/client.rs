//! An attached instance, and the terms that it acquires.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::harness::{CaseHarness, LONG_TTL, REPLY_TIMEOUT, SHORT_TTL, nonce};
use crate::lease::{Ending, ReleaseReason};
use crate::name::{Group, InstanceId, LeaseName};
use crate::store::{
    Announcement, Ask, AttachRequest, Attached, Claim, Connection, Continuity, DocumentRequest, Grant, Held, Holding,
    LeaseReport, LeaseRequest, LiveInstance, MembershipRequest, NamespaceMemory, NamespaceReport, Outcome,
    PublishedRecord, Reply, Request,
};
use crate::token::Token;

/// An instance with a connection and a memory.
pub(super) struct Client {
    pub(super) id: InstanceId,
    pub(super) connection: Arc<dyn Connection>,
    memory: Mutex<NamespaceMemory>,
}

/// A term as its holder knows it. Its requests can be sent at any time and by any client, as late requests are.
#[derive(Clone, Debug)]
pub(super) struct ClientTerm {
    pub(super) claim: Claim,
    pub(super) grant: Grant,
}

impl Client {
    pub(super) fn new(id: InstanceId, connection: Arc<dyn Connection>) -> Self {
        let memory = Mutex::new(NamespaceMemory::new(connection.attached()));
        Self { id, connection, memory }
    }

    /// What it remembers: it learns from every reply.
    pub(super) fn memory(&self) -> MutexGuard<'_, NamespaceMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn attached(&self) -> &Attached {
        self.connection.attached()
    }

    /// Sends a batch.
    pub(super) async fn submit<R: Into<Request>>(&self, batch: Vec<R>) -> Vec<Outcome> {
        let batch = batch.into_iter().map(Into::into).collect();
        let outcomes = self.connection.submit(batch, REPLY_TIMEOUT).await;
        for outcome in &outcomes {
            if let Outcome::Answered(reply) = outcome {
                self.memory().learn(reply);
            }
        }
        outcomes
    }

    /// Sends a request, which the store must answer.
    pub(super) async fn send(&self, request: impl Into<Request>) -> Reply {
        let request = request.into();
        let shown = shown(&request);
        match self.submit(vec![request]).await.as_slice() {
            [Outcome::Answered(reply)] => reply.clone(),
            other => panic!("the store must answer {shown} with one reply, not {other:?}"),
        }
    }

    /// Reattaches with everything remembered, as after a lost connection.
    pub(super) async fn reattach(&mut self, harness: &CaseHarness<'_>) -> Continuity {
        self.reattach_with(harness, |request| request).await
    }

    /// Reattaches with a changed request.
    pub(super) async fn reattach_with(
        &mut self,
        harness: &CaseHarness<'_>,
        change: fn(AttachRequest) -> AttachRequest,
    ) -> Continuity {
        let request = AttachRequest {
            memory: Some(self.memory().clone()),
            max_ttl: Duration::ZERO,
            ..AttachRequest::new(fastrand::u64(..))
        };
        self.connection = harness.attach(change(request)).await;
        self.memory().reattach(self.connection.attached())
    }

    /// Reattaches with the memory of a token that the store does not know, which raises the floor. Then ends the
    /// resulting quarantine as an operator.
    pub(super) async fn raise_floor(&mut self, harness: &CaseHarness<'_>, token: Token) {
        self.memory().learn_token(token);
        self.reattach(harness).await;
        let generation = self.attached().generation;
        assert_eq!(
            self.send(LeaseRequest::Reopen { generation }).await,
            Reply::Done,
            "an operator may end any quarantine"
        );
    }

    /// The state of the namespace.
    pub(super) async fn namespace(&self) -> NamespaceReport {
        match self.send(LeaseRequest::InspectNamespace).await {
            Reply::Namespace(report) => report,
            other => panic!("an inspection must be answered with a report, not {other:?}"),
        }
    }

    /// The longest ttl that can be relied on.
    pub(super) async fn longest_ttl(&self) -> Duration {
        self.namespace().await.max_ttl
    }

    /// A claim that was never made before.
    pub(super) fn claim(&self, name: &LeaseName, ttl: Duration) -> Claim {
        Claim { name: name.clone(), holder: self.id.clone(), nonce: nonce(), ttl }
    }

    /// Acquires a lease, which must be granted.
    pub(super) async fn acquire(&self, name: &LeaseName, ttl: Duration) -> ClientTerm {
        let claim = self.claim(name, ttl);
        let grant =
            granted(self.send(acquire(&claim)).await, &format!("{} must be unheld for {}", claim.name, self.id));
        ClientTerm { claim, grant }
    }

    /// Tries to acquire a lease with a new claim.
    pub(super) async fn try_acquire(&self, name: &LeaseName) -> Reply {
        self.send(acquire(&self.claim(name, LONG_TTL))).await
    }

    /// Tries to acquire a lease that another instance must hold.
    pub(super) async fn expect_held(&self, name: &LeaseName) -> Held {
        match self.try_acquire(name).await {
            Reply::Held(held) => held,
            other => panic!("{name} must be held; the store answered {other:?}"),
        }
    }

    pub(super) async fn inspect(&self, name: &LeaseName) -> LeaseReport {
        match self.send(LeaseRequest::Inspect { name: name.clone() }).await {
            Reply::Lease(report) => report,
            other => panic!("an inspection must be answered with a report, not {other:?}"),
        }
    }

    pub(super) async fn read(&self, name: &LeaseName, record: &str) -> Option<PublishedRecord> {
        match self.send(DocumentRequest::ReadRecord { name: name.clone(), record: record.to_owned() }).await {
            Reply::Record(record) => record,
            other => panic!("reading must be answered with a record, not {other:?}"),
        }
    }

    /// The value of a record.
    pub(super) async fn read_value(&self, name: &LeaseName, record: &str) -> Option<Vec<u8>> {
        self.read(name, record).await.map(|published| published.value)
    }

    pub(super) async fn announce(&self, announcement: Announcement) {
        assert_eq!(self.send(Request::Announce(announcement)).await, Reply::Done, "any client may announce anything");
    }

    pub(super) async fn heartbeat(&self, ttl: Duration, record: &[u8]) -> Reply {
        self.send(MembershipRequest::Heartbeat {
            group: Group::FLEET,
            instance: self.id.clone(),
            ttl,
            record: record.to_vec(),
        })
        .await
    }

    /// The live instances, sorted by id. Stores need not sort.
    pub(super) async fn instances(&self) -> Vec<LiveInstance> {
        self.instances_of(&Group::FLEET).await
    }

    /// The same for a group.
    pub(super) async fn instances_of(&self, group: &Group) -> Vec<LiveInstance> {
        match self.send(MembershipRequest::List { group: group.clone() }).await {
            Reply::Instances(mut members) => {
                members.sort_by(|a, b| a.instance.cmp(&b.instance));
                members
            }
            other => panic!("the instances must be listed; the store answered {other:?}"),
        }
    }

    /// The entries of an index, in order. Stores need not sort.
    pub(super) async fn index(&self, index: &str) -> Vec<String> {
        match self.send(DocumentRequest::IndexList { index: index.to_owned() }).await {
            Reply::Index(mut entries) => {
                entries.sort();
                entries
            }
            other => panic!("the index must be listed; the store answered {other:?}"),
        }
    }

    /// Checks that `request` extends the lease for a whole ttl from now.
    ///
    /// Time passes before each attempt, so the lease has less left than it had; only the request can add more. A
    /// machine that loses that much time between two requests gets further chances.
    pub(super) async fn assert_extends(&self, harness: &CaseHarness<'_>, name: &LeaseName, request: Request) {
        for _ in 0..20 {
            let before = self.remaining(name).await;
            harness.advance_time(SHORT_TTL).await;
            self.send(request.clone()).await;
            if self.remaining(name).await > before.saturating_sub(SHORT_TTL / 2) {
                return;
            }
        }
        panic!("the lease must have a whole ttl left after {}", shown(&request));
    }

    pub(super) async fn remaining(&self, name: &LeaseName) -> Duration {
        match self.inspect(name).await.held {
            Some(Held { remaining: Some(remaining), .. }) => remaining,
            other => panic!("{name} must be held with a ttl, not {other:?}"),
        }
    }
}

impl ClientTerm {
    pub(super) fn token(&self) -> Token {
        self.grant.token
    }

    pub(super) fn holding(&self) -> Holding {
        Holding { name: self.claim.name.clone(), holder: self.claim.holder.clone(), token: self.grant.token }
    }

    /// The same term as another instance would name it if it took the term for its own.
    pub(super) fn claimed_by(&self, id: &InstanceId) -> Self {
        Self { claim: Claim { holder: id.clone(), ..self.claim.clone() }, grant: self.grant.clone() }
    }

    /// The same holder under another token.
    pub(super) fn under(&self, token: Token) -> Self {
        Self { claim: self.claim.clone(), grant: Grant { token, ..self.grant.clone() } }
    }

    pub(super) fn renewal(&self) -> Request {
        self.renewal_for(self.claim.ttl)
    }

    pub(super) fn renewal_for(&self, ttl: Duration) -> Request {
        LeaseRequest::Renew { holding: self.holding(), ttl, progressed: false }.into()
    }

    pub(super) fn progress(&self) -> Request {
        LeaseRequest::Renew { holding: self.holding(), ttl: self.claim.ttl, progressed: true }.into()
    }

    pub(super) fn release(&self) -> Request {
        LeaseRequest::Release { holding: self.holding(), ending: Ending::Released(ReleaseReason::Voluntary) }.into()
    }

    pub(super) fn hand_over(&self, to: &InstanceId, window: Duration) -> Request {
        LeaseRequest::HandOver { holding: self.holding(), to: to.clone(), window }.into()
    }

    pub(super) fn publication(&self, record: &str, value: &[u8]) -> Request {
        DocumentRequest::Publish {
            holding: self.holding(),
            record: record.to_owned(),
            value: value.to_vec(),
            announced: true,
        }
        .into()
    }

    pub(super) fn abandon(&self) -> Request {
        abandon(&self.claim)
    }

    pub(super) fn step_down(&self, to: Option<&InstanceId>) -> Request {
        let ask = Ask::StepDown { to: to.cloned() };
        LeaseRequest::Ask { name: self.claim.name.clone(), token: self.grant.token, ask }.into()
    }

    pub(super) fn revocation(&self) -> Request {
        LeaseRequest::Revoke { name: self.claim.name.clone(), token: self.grant.token }.into()
    }

    /// Every request that is refused unless the term is the current one.
    pub(super) fn fenced_requests(&self) -> Vec<Request> {
        vec![
            self.renewal(),
            self.progress(),
            self.release(),
            self.hand_over(&InstanceId::foreign("heir"), LONG_TTL),
            self.publication("result", b"stale"),
        ]
    }
}

pub(super) fn acquire(claim: &Claim) -> Request {
    LeaseRequest::Acquire { claim: claim.clone(), ended: None }.into()
}

/// A claim that names a term that its process has ended.
pub(super) fn acquire_after(claim: &Claim, ended: Token) -> Request {
    LeaseRequest::Acquire { claim: claim.clone(), ended: Some(ended) }.into()
}

pub(super) fn abandon(claim: &Claim) -> Request {
    LeaseRequest::Abandon { name: claim.name.clone(), holder: claim.holder.clone(), nonce: claim.nonce }.into()
}

pub(super) fn take_over(claim: &Claim, victim: Token, stale_after: Duration) -> Request {
    LeaseRequest::TakeOver { claim: claim.clone(), victim, stale_after }.into()
}

/// The grant in a reply, which must be one.
#[track_caller]
pub(super) fn granted(reply: Reply, expected: &str) -> Grant {
    match reply {
        Reply::Granted(grant) => grant,
        other => panic!("{expected}; the store answered {other:?}"),
    }
}

/// A request in the form that an assertion shows: some are a mebibyte long.
pub(super) fn shown(request: &Request) -> String {
    format!("{request:?}").chars().take(300).collect()
}
