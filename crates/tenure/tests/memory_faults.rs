//! The switches of the memory store: requests that are lost, late or cut off, and their permitted effects.
//!
//! An *unknown* outcome is a result of its own. The caller then repeats the request, abandons the claim, or waits; the
//! tests check that each of these is safe.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

use std::sync::Arc;
use std::time::Duration;

use tenure::lease::{Ending, ReleaseReason};
use tenure::store::memory::{MemoryFaults, MemoryStore, Survival};
use tenure::store::{
    Announcement, Ask, AttachRequest, Claim, Connection, Continuity, DocumentRequest, ErrorKind, Grant, Held, Holding,
    LeaseReport, LeaseRequest, LogRequest, MembershipRequest, NamespaceMemory, Outcome, Reply, Request, Store,
    SubscriptionItem,
};
use tenure::time::ManualClock;
use tenure::{Group, InstanceId, LeaseName, Nonce};

const TTL: Duration = Duration::from_secs(30);
/// Timeout for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
const DELAY: Duration = Duration::from_secs(5);

struct MemoryHarness {
    clock: Arc<ManualClock>,
    store: MemoryStore,
    faults: MemoryFaults,
    connection: Arc<dyn Connection>,
}

impl MemoryHarness {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        let store = MemoryStore::with_clock(clock.clone());
        let request = AttachRequest { max_ttl: TTL, bootstrap: true, ..AttachRequest::new(fastrand::u64(..)) };
        let connection = store.attach(request).await.unwrap();
        Self { clock, faults: store.faults(), store, connection }
    }

    async fn submit(&self, batch: Vec<Request>) -> Vec<Outcome> {
        self.connection.submit(batch, REPLY_TIMEOUT).await
    }

    async fn outcome(&self, request: &Request) -> Outcome {
        self.submit(vec![request.clone()]).await.pop().unwrap()
    }

    async fn reply(&self, request: &Request) -> Reply {
        match self.outcome(request).await {
            Outcome::Answered(reply) => reply,
            other => panic!("{request:?} must get a reply, got {other:?}"),
        }
    }

    async fn expect_unknown(&self, request: &Request) {
        let outcome = self.outcome(request).await;
        assert!(matches!(&outcome, Outcome::Unknown(error) if error.is_retryable()), "{request:?}: {outcome:?}");
    }

    /// Sends a request without waiting for its reply; it arrives after `DELAY`.
    async fn send_late(&self, request: &Request) {
        self.faults.delay(DELAY);
        self.expect_unknown(request).await;
        self.faults.delay(Duration::ZERO);
    }

    async fn acquire(&self, claim: &Claim) -> Grant {
        match self.reply(&acquire(claim)).await {
            Reply::Granted(grant) => grant,
            other => panic!("{claim:?} must be granted, got {other:?}"),
        }
    }

    async fn report(&self) -> LeaseReport {
        match self.reply(&LeaseRequest::Inspect { name: job() }.into()).await {
            Reply::Lease(report) => report,
            other => panic!("{other:?}"),
        }
    }

    async fn held(&self) -> Option<Held> {
        self.report().await.held
    }

    async fn reattach(&self, memory: &mut NamespaceMemory) -> (Arc<dyn Connection>, Continuity) {
        let request =
            AttachRequest { memory: Some(memory.clone()), max_ttl: TTL, ..AttachRequest::new(fastrand::u64(..)) };
        let connection = self.store.attach(request).await.unwrap();
        let continuity = memory.reattach(connection.attached());
        (connection, continuity)
    }
}

fn job() -> LeaseName {
    LeaseName::lease("job").unwrap()
}

fn claim(holder: &str) -> Claim {
    let nonce = Nonce::new(fastrand::u128(..));
    Claim { name: job(), holder: InstanceId::new(holder).unwrap(), nonce, ttl: TTL }
}

fn acquire(claim: &Claim) -> Request {
    LeaseRequest::Acquire { claim: claim.clone(), ended: None }.into()
}

fn abandon(claim: &Claim) -> Request {
    LeaseRequest::Abandon { name: job(), holder: claim.holder.clone(), nonce: claim.nonce }.into()
}

fn holding(claim: &Claim, grant: &Grant) -> Holding {
    Holding { name: job(), holder: claim.holder.clone(), token: grant.token }
}

fn renew(holding: &Holding) -> Request {
    LeaseRequest::Renew { holding: holding.clone(), ttl: TTL, progressed: true }.into()
}

fn release(holding: &Holding) -> Request {
    LeaseRequest::Release { holding: holding.clone(), ending: Ending::Released(ReleaseReason::Voluntary) }.into()
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_is_unknown_and_can_be_repeated() {
    let harness = MemoryHarness::new().await;
    let claim = claim("alice");
    harness.faults.lose_requests(1);
    harness.expect_unknown(&acquire(&claim)).await;
    assert_eq!(harness.held().await, None, "the request never arrived");
    harness.acquire(&claim).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_is_unknown_and_repeating_gets_the_same_term() {
    let harness = MemoryHarness::new().await;
    let claim = claim("alice");
    harness.faults.lose_replies(1);
    harness.expect_unknown(&acquire(&claim)).await;
    let token = harness.held().await.and_then(|held| held.token);
    assert!(token.is_some(), "the request was applied");
    assert_eq!(Some(harness.acquire(&claim).await.token), token);
}

#[tokio::test(start_paused = true)]
async fn a_claim_with_a_lost_reply_can_be_abandoned() {
    let harness = MemoryHarness::new().await;
    let lost = claim("alice");
    harness.faults.lose_replies(1);
    harness.expect_unknown(&acquire(&lost)).await;
    assert_eq!(harness.reply(&abandon(&lost)).await, Reply::Done);
    harness.acquire(&claim("bob")).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_renewal_leaves_the_term_as_it_was() {
    let harness = MemoryHarness::new().await;
    let claim = claim("alice");
    let holding = holding(&claim, &harness.acquire(&claim).await);
    harness.clock.advance(Duration::from_secs(10));
    harness.faults.lose_requests(1);
    harness.expect_unknown(&renew(&holding)).await;
    assert_eq!(
        harness.held().await.and_then(|held| held.remaining),
        Some(Duration::from_secs(20)),
        "the renewal never arrived"
    );
    harness.faults.lose_replies(1);
    harness.expect_unknown(&renew(&holding)).await;
    assert_eq!(
        harness.held().await.and_then(|held| held.remaining),
        Some(TTL),
        "the renewal was applied, unknown to the holder"
    );
}

#[tokio::test(start_paused = true)]
async fn only_the_lost_requests_of_a_batch_are_unknown() {
    let harness = MemoryHarness::new().await;
    harness.faults.lose_requests(1);
    let outcomes = harness.submit(vec![MembershipRequest::List { group: Group::FLEET }.into(); 3]).await;
    assert!(matches!(outcomes[0], Outcome::Unknown(_)), "{outcomes:?}");
    assert!(outcomes[1..].iter().all(|outcome| matches!(outcome, Outcome::Answered(_))), "{outcomes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_late_claim_is_carried_out_after_its_timeout() {
    let harness = MemoryHarness::new().await;
    let late = claim("alice");
    harness.send_late(&acquire(&late)).await;
    assert_eq!(harness.held().await, None, "the claim is still in flight");
    harness.clock.advance(DELAY);
    assert_eq!(harness.held().await.map(|held| held.holder), Some(late.holder.clone()), "the claim arrives");
    assert_eq!(harness.reply(&abandon(&late)).await, Reply::Done, "the caller that gave up cleans up");
    harness.acquire(&claim("bob")).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_arrives_after_it_was_abandoned_lasts_for_one_ttl_at_most() {
    let harness = MemoryHarness::new().await;
    let late = claim("alice");
    harness.send_late(&acquire(&late)).await;
    assert_eq!(harness.reply(&abandon(&late)).await, Reply::Done, "abandoned too early");
    harness.clock.advance(DELAY);
    assert!(harness.held().await.is_some(), "held, but without work");
    harness.clock.advance(TTL);
    harness.acquire(&claim("bob")).await;
}

#[tokio::test(start_paused = true)]
async fn a_late_release_does_not_touch_the_next_term() {
    let harness = MemoryHarness::new().await;
    let alice = claim("alice");
    let first = holding(&alice, &harness.acquire(&alice).await);
    harness.send_late(&release(&first)).await;
    assert_eq!(harness.reply(&release(&first)).await, Reply::Done, "the second attempt was faster");
    let again = claim("alice");
    let second = harness.acquire(&again).await;
    harness.clock.advance(DELAY);
    assert_eq!(harness.held().await.and_then(|held| held.token), Some(second.token));
}

#[tokio::test(start_paused = true)]
async fn a_late_renewal_does_not_bring_a_term_back() {
    let harness = MemoryHarness::new().await;
    let alice = claim("alice");
    let first = holding(&alice, &harness.acquire(&alice).await);
    harness.send_late(&renew(&first)).await;
    assert_eq!(harness.reply(&release(&first)).await, Reply::Done);
    harness.clock.advance(DELAY);
    assert_eq!(harness.held().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_late_publication_of_an_ended_term_is_not_written() {
    let harness = MemoryHarness::new().await;
    let alice = claim("alice");
    let first = holding(&alice, &harness.acquire(&alice).await);
    let publish = DocumentRequest::Publish {
        holding: first.clone(),
        record: "result".into(),
        value: b"stale".to_vec(),
        announced: true,
    };
    harness.send_late(&publish.into()).await;
    harness.reply(&release(&first)).await;
    harness.acquire(&claim("bob")).await;
    harness.clock.advance(DELAY);
    let read = DocumentRequest::ReadRecord { name: job(), record: "result".into() };
    assert_eq!(harness.reply(&read.into()).await, Reply::Record(None));
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_with_a_lost_reply_has_ended_the_term() {
    let harness = MemoryHarness::new().await;
    let alice = claim("alice");
    let first = holding(&alice, &harness.acquire(&alice).await);
    let bob = claim("bob");
    harness.faults.lose_replies(1);
    harness
        .expect_unknown(&LeaseRequest::HandOver { holding: first.clone(), to: bob.holder.clone(), window: TTL }.into())
        .await;
    assert!(matches!(harness.reply(&renew(&first)).await, Reply::Refused(_)), "alice must stop");
    assert!(harness.acquire(&bob).await.token > first.token);
}

#[tokio::test(start_paused = true)]
async fn requests_on_a_cut_connection_fail_and_nothing_of_them_arrives_later() {
    let harness = MemoryHarness::new().await;
    let mut memory = NamespaceMemory::new(harness.connection.attached());
    let mut subscription = harness.store.subscribe().await.unwrap();
    let late = claim("alice");
    harness.send_late(&acquire(&late)).await;
    harness.faults.cut_connections();
    let outcome = harness.outcome(&acquire(&claim("bob"))).await;
    assert!(matches!(&outcome, Outcome::Failed(error) if error.kind() == ErrorKind::Unreachable), "{outcome:?}");
    assert_eq!(subscription.next().await, SubscriptionItem::Closed);

    let (connection, continuity) = harness.reattach(&mut memory).await;
    assert_eq!(continuity, Continuity::Same);
    harness.clock.advance(DELAY);
    let inspected = connection.submit(vec![LeaseRequest::Inspect { name: job() }.into()], REPLY_TIMEOUT).await;
    assert!(matches!(&inspected[..], [Outcome::Answered(Reply::Lease(report))] if report.held.is_none()));
}

#[tokio::test(start_paused = true)]
async fn a_stopped_server_answers_no_request() {
    let harness = MemoryHarness::new().await;
    let mut memory = NamespaceMemory::new(harness.connection.attached());
    harness.faults.stop();
    let outcome = harness.outcome(&acquire(&claim("alice"))).await;
    assert!(matches!(&outcome, Outcome::Failed(error) if error.is_retryable()), "{outcome:?}");
    let error = harness.store.attach(AttachRequest::new(fastrand::u64(..))).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unreachable, true));
    assert!(harness.store.subscribe().await.is_err());
    harness.faults.restart(Survival::All);
    let (_, continuity) = harness.reattach(&mut memory).await;
    assert_eq!(continuity, Continuity::Changed, "the server is another run");
}

#[tokio::test(start_paused = true)]
async fn requests_in_flight_when_the_server_stops_are_lost() {
    let harness = MemoryHarness::new().await;
    let mut memory = NamespaceMemory::new(harness.connection.attached());
    harness.send_late(&acquire(&claim("alice"))).await;
    harness.faults.stop();
    harness.clock.advance(DELAY);
    harness.faults.restart(Survival::All);
    let (connection, _) = harness.reattach(&mut memory).await;
    let inspected = connection.submit(vec![LeaseRequest::Inspect { name: job() }.into()], REPLY_TIMEOUT).await;
    let free = matches!(&inspected[..], [Outcome::Answered(Reply::Lease(report))] if report.held.is_none());
    assert!(free, "a stopped server must apply nothing: {inspected:?}");
}

/// The guarantee of [`Request`]: each is safe to repeat. The clock stands still, so twice must equal once.
#[tokio::test(start_paused = true)]
async fn every_request_carried_out_twice_is_as_if_carried_out_once() {
    let setup = claim("alice");
    let new = claim("bob");
    let requests = |token| {
        let holding = Holding { name: job(), holder: setup.holder.clone(), token };
        let (name, bob) = (job(), new.holder.clone());
        let text = |text: &str| text.to_owned();
        vec![
            acquire(&setup),
            acquire(&new),
            LeaseRequest::Acquire { claim: claim("alice"), ended: Some(token) }.into(),
            LeaseRequest::TakeOver { claim: new.clone(), victim: token, stale_after: Duration::ZERO }.into(),
            renew(&holding),
            release(&holding),
            abandon(&setup),
            LeaseRequest::HandOver { holding: holding.clone(), to: bob.clone(), window: TTL }.into(),
            LeaseRequest::Revoke { name: name.clone(), token }.into(),
            LeaseRequest::Ask { name: name.clone(), token, ask: Ask::StepDown { to: None } }.into(),
            DocumentRequest::Publish {
                holding: holding.clone(),
                record: text("result"),
                value: b"1".to_vec(),
                announced: true,
            }
            .into(),
            Request::Announce(Announcement::IndexChanged { index: text("targets") }),
            MembershipRequest::Heartbeat {
                group: Group::FLEET,
                instance: bob.clone(),
                ttl: TTL,
                record: b"1".to_vec(),
            }
            .into(),
            MembershipRequest::Leave { group: Group::FLEET, instance: bob }.into(),
            DocumentRequest::IndexAdd { index: text("targets"), entry: text("a"), announced: true }.into(),
            DocumentRequest::IndexRemove { index: text("targets"), entry: text("a"), announced: true }.into(),
            LogRequest::Append {
                holding,
                log: text("results"),
                value: b"1".to_vec(),
                kept: 9,
                nonce: Nonce::new(7),
                records: Vec::new(),
            }
            .into(),
        ]
    };
    let mut changed = Vec::new();
    for n in 0..requests(tenure::Token::ZERO).len() {
        let harness = MemoryHarness::new().await;
        let grant = harness.acquire(&setup).await;
        // Renewed without progress, so that it can be taken over.
        harness.outcome(&renew(&Holding { name: job(), holder: setup.holder.clone(), token: grant.token })).await;
        let request = requests(grant.token).swap_remove(n);
        harness.faults.lose_replies(1);
        harness.expect_unknown(&request).await;
        let once = format!("{:?}", harness.faults.snapshot());
        harness.outcome(&request).await;
        if format!("{:?}", harness.faults.snapshot()) != once {
            changed.push(request);
        }
    }
    assert_eq!(changed, [], "these requests have an effect the second time");
}
