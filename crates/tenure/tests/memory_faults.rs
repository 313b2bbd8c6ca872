//! The switches of the memory store: requests that are lost, late or cut off, and what that may and may not do.
//!
//! An outcome that is *unknown* is a result of its own. Whoever gets one repeats the request, abandons the claim, or
//! waits; the tests check that each of these is safe.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

use std::sync::Arc;
use std::time::Duration;

use tenure::lease::{Ending, ReleaseReason};
use tenure::store::memory::{MemoryFaults, MemoryStore, Survival};
use tenure::store::{
    Announcement, Ask, Claim, Connection, Continuity, Entry, ErrorKind, Grant, Heard, Held, Holding, LeaseReport,
    NamespaceMemory, Outcome, Reply, Request, Store,
};
use tenure::time::ManualClock;
use tenure::{Group, InstanceId, LeaseName, Nonce};

const TTL: Duration = Duration::from_secs(30);
/// How long an answer is waited for.
const LIMIT: Duration = Duration::from_secs(2);
const LATER: Duration = Duration::from_secs(5);

struct Rig {
    clock: Arc<ManualClock>,
    store: MemoryStore,
    faults: MemoryFaults,
    connection: Arc<dyn Connection>,
}

impl Rig {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        let store = MemoryStore::with_clock(clock.clone());
        let entry = Entry { max_ttl: TTL, bootstrap: true, ..Entry::default() };
        let connection = store.enter(entry).await.unwrap();
        Self { clock, faults: store.faults(), store, connection }
    }

    async fn submit(&self, batch: Vec<Request>) -> Vec<Outcome> {
        self.connection.submit(batch, LIMIT).await
    }

    async fn outcome(&self, request: &Request) -> Outcome {
        self.submit(vec![request.clone()]).await.pop().unwrap()
    }

    async fn reply(&self, request: &Request) -> Reply {
        match self.outcome(request).await {
            Outcome::Answered(reply) => reply,
            other => panic!("{request:?} must be answered, not {other:?}"),
        }
    }

    async fn unknown(&self, request: &Request) {
        let outcome = self.outcome(request).await;
        assert!(matches!(&outcome, Outcome::Unknown(error) if error.is_retryable()), "{request:?}: {outcome:?}");
    }

    /// Sends a request that nobody waits for to the end; it arrives `LATER`.
    async fn sends_late(&self, request: &Request) {
        self.faults.delay(LATER);
        self.unknown(request).await;
        self.faults.delay(Duration::ZERO);
    }

    async fn granted(&self, claim: &Claim) -> Grant {
        match self.reply(&acquire(claim)).await {
            Reply::Granted(grant) => grant,
            other => panic!("{claim:?} must be granted, not {other:?}"),
        }
    }

    async fn report(&self) -> LeaseReport {
        match self.reply(&Request::Inspect { name: job() }).await {
            Reply::Lease(report) => report,
            other => panic!("{other:?}"),
        }
    }

    async fn held(&self) -> Option<Held> {
        self.report().await.held
    }

    async fn enter_again(&self, memory: &mut NamespaceMemory) -> (Arc<dyn Connection>, Continuity) {
        let entry = Entry { memory: Some(memory.clone()), max_ttl: TTL, ..Entry::default() };
        let connection = self.store.enter(entry).await.unwrap();
        let continuity = memory.reenter(connection.entered());
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
    Request::Acquire { claim: claim.clone(), ended: None }
}

fn abandon(claim: &Claim) -> Request {
    Request::Abandon { name: job(), holder: claim.holder.clone(), nonce: claim.nonce }
}

fn holding(claim: &Claim, grant: &Grant) -> Holding {
    Holding { name: job(), holder: claim.holder.clone(), token: grant.token }
}

fn renew(holding: &Holding) -> Request {
    Request::Renew { holding: holding.clone(), ttl: TTL, progressed: true }
}

fn release(holding: &Holding) -> Request {
    Request::Release { holding: holding.clone(), ending: Ending::Released(ReleaseReason::Voluntary) }
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_is_unknown_and_can_be_repeated() {
    let rig = Rig::new().await;
    let claim = claim("alice");
    rig.faults.lose_requests(1);
    rig.unknown(&acquire(&claim)).await;
    assert_eq!(rig.held().await, None, "it never arrived");
    rig.granted(&claim).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_is_unknown_and_repeating_gets_the_same_term() {
    let rig = Rig::new().await;
    let claim = claim("alice");
    rig.faults.lose_replies(1);
    rig.unknown(&acquire(&claim)).await;
    let token = rig.held().await.and_then(|held| held.token);
    assert!(token.is_some(), "it was carried out");
    assert_eq!(Some(rig.granted(&claim).await.token), token);
}

#[tokio::test(start_paused = true)]
async fn a_claim_with_a_lost_reply_can_be_abandoned() {
    let rig = Rig::new().await;
    let lost = claim("alice");
    rig.faults.lose_replies(1);
    rig.unknown(&acquire(&lost)).await;
    assert_eq!(rig.reply(&abandon(&lost)).await, Reply::Done);
    rig.granted(&claim("bob")).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_renewal_leaves_the_term_as_it_was() {
    let rig = Rig::new().await;
    let claim = claim("alice");
    let holding = holding(&claim, &rig.granted(&claim).await);
    rig.clock.advance(Duration::from_secs(10));
    rig.faults.lose_requests(1);
    rig.unknown(&renew(&holding)).await;
    assert_eq!(rig.held().await.and_then(|held| held.remaining), Some(Duration::from_secs(20)), "never arrived");
    rig.faults.lose_replies(1);
    rig.unknown(&renew(&holding)).await;
    assert_eq!(rig.held().await.and_then(|held| held.remaining), Some(TTL), "arrived, unknown to the holder");
}

#[tokio::test(start_paused = true)]
async fn only_the_lost_requests_of_a_batch_are_unknown() {
    let rig = Rig::new().await;
    rig.faults.lose_requests(1);
    let outcomes = rig.submit(vec![Request::Members { group: Group::FLEET }; 3]).await;
    assert!(matches!(outcomes[0], Outcome::Unknown(_)), "{outcomes:?}");
    assert!(outcomes[1..].iter().all(|outcome| matches!(outcome, Outcome::Answered(_))), "{outcomes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_late_claim_is_carried_out_after_it_was_given_up() {
    let rig = Rig::new().await;
    let late = claim("alice");
    rig.sends_late(&acquire(&late)).await;
    assert_eq!(rig.held().await, None, "it is still on its way");
    rig.clock.advance(LATER);
    assert_eq!(rig.held().await.map(|held| held.by), Some(late.holder.clone()), "and arrives");
    assert_eq!(rig.reply(&abandon(&late)).await, Reply::Done, "so whoever gave it up cleans up");
    rig.granted(&claim("bob")).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_arrives_after_it_was_abandoned_lasts_for_one_ttl_at_most() {
    let rig = Rig::new().await;
    let late = claim("alice");
    rig.sends_late(&acquire(&late)).await;
    assert_eq!(rig.reply(&abandon(&late)).await, Reply::Done, "too early");
    rig.clock.advance(LATER);
    assert!(rig.held().await.is_some(), "nobody works under this lease");
    rig.clock.advance(TTL);
    rig.granted(&claim("bob")).await;
}

#[tokio::test(start_paused = true)]
async fn a_late_release_does_not_touch_the_next_term() {
    let rig = Rig::new().await;
    let alice = claim("alice");
    let first = holding(&alice, &rig.granted(&alice).await);
    rig.sends_late(&release(&first)).await;
    assert_eq!(rig.reply(&release(&first)).await, Reply::Done, "the second try was faster");
    let again = claim("alice");
    let second = rig.granted(&again).await;
    rig.clock.advance(LATER);
    assert_eq!(rig.held().await.and_then(|held| held.token), Some(second.token));
}

#[tokio::test(start_paused = true)]
async fn a_late_renewal_does_not_bring_a_term_back() {
    let rig = Rig::new().await;
    let alice = claim("alice");
    let first = holding(&alice, &rig.granted(&alice).await);
    rig.sends_late(&renew(&first)).await;
    assert_eq!(rig.reply(&release(&first)).await, Reply::Done);
    rig.clock.advance(LATER);
    assert_eq!(rig.held().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_late_publication_of_an_ended_term_is_not_written() {
    let rig = Rig::new().await;
    let alice = claim("alice");
    let first = holding(&alice, &rig.granted(&alice).await);
    let publish =
        Request::Publish { holding: first.clone(), record: "result".into(), value: b"stale".to_vec(), announced: true };
    rig.sends_late(&publish).await;
    rig.reply(&release(&first)).await;
    rig.granted(&claim("bob")).await;
    rig.clock.advance(LATER);
    let read = Request::Read { name: job(), record: "result".into() };
    assert_eq!(rig.reply(&read).await, Reply::Record(None));
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_with_a_lost_reply_has_ended_the_term() {
    let rig = Rig::new().await;
    let alice = claim("alice");
    let first = holding(&alice, &rig.granted(&alice).await);
    let bob = claim("bob");
    rig.faults.lose_replies(1);
    rig.unknown(&Request::HandOver { holding: first.clone(), to: bob.holder.clone(), window: TTL }).await;
    assert!(matches!(rig.reply(&renew(&first)).await, Reply::Refused(_)), "alice may not go on");
    assert!(rig.granted(&bob).await.token > first.token);
}

#[tokio::test(start_paused = true)]
async fn requests_on_a_cut_connection_fail_and_nothing_of_them_arrives_later() {
    let rig = Rig::new().await;
    let mut memory = NamespaceMemory::of(rig.connection.entered());
    let mut listener = rig.store.subscribe().await.unwrap();
    let late = claim("alice");
    rig.sends_late(&acquire(&late)).await;
    rig.faults.cut_connections();
    let outcome = rig.outcome(&acquire(&claim("bob"))).await;
    assert!(matches!(&outcome, Outcome::Failed(error) if error.kind() == ErrorKind::Unreachable), "{outcome:?}");
    assert_eq!(listener.next().await, Heard::Closed);

    let (connection, continuity) = rig.enter_again(&mut memory).await;
    assert_eq!(continuity, Continuity::Same);
    rig.clock.advance(LATER);
    let inspected = connection.submit(vec![Request::Inspect { name: job() }], LIMIT).await;
    assert!(matches!(&inspected[..], [Outcome::Answered(Reply::Lease(report))] if report.held.is_none()));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_switched_off_answers_nobody() {
    let rig = Rig::new().await;
    let mut memory = NamespaceMemory::of(rig.connection.entered());
    rig.faults.stop();
    let outcome = rig.outcome(&acquire(&claim("alice"))).await;
    assert!(matches!(&outcome, Outcome::Failed(error) if error.is_retryable()), "{outcome:?}");
    let error = rig.store.enter(Entry::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unreachable, true));
    assert!(rig.store.subscribe().await.is_err());
    rig.faults.restart(Survival::All);
    let (_, continuity) = rig.enter_again(&mut memory).await;
    assert_eq!(continuity, Continuity::Changed, "another run");
}

#[tokio::test(start_paused = true)]
async fn what_is_on_its_way_when_the_server_is_switched_off_is_lost() {
    let rig = Rig::new().await;
    let mut memory = NamespaceMemory::of(rig.connection.entered());
    rig.sends_late(&acquire(&claim("alice"))).await;
    rig.faults.stop();
    rig.clock.advance(LATER);
    rig.faults.restart(Survival::All);
    let (connection, _) = rig.enter_again(&mut memory).await;
    let inspected = connection.submit(vec![Request::Inspect { name: job() }], LIMIT).await;
    let free = matches!(&inspected[..], [Outcome::Answered(Reply::Lease(report))] if report.held.is_none());
    assert!(free, "a server that is off carries nothing out: {inspected:?}");
}

/// The promise of [`Request`]: each is safe to repeat. The clock stands still, so twice must be the same as once.
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
            Request::Acquire { claim: claim("alice"), ended: Some(token) },
            Request::TakeOver { claim: new.clone(), victim: token, stale_after: Duration::ZERO },
            renew(&holding),
            release(&holding),
            abandon(&setup),
            Request::HandOver { holding: holding.clone(), to: bob.clone(), window: TTL },
            Request::Revoke { name: name.clone(), token },
            Request::Ask { name: name.clone(), token, ask: Ask::StepDown { to: None } },
            Request::Publish { holding, record: text("result"), value: b"1".to_vec(), announced: true },
            Request::Announce(Announcement::IndexChanged { index: text("targets") }),
            Request::Beat { group: Group::FLEET, instance: bob.clone(), ttl: TTL, record: b"1".to_vec() },
            Request::Leave { group: Group::FLEET, instance: bob },
            Request::IndexAdd { index: text("targets"), entry: text("a"), announced: true },
            Request::IndexRemove { index: text("targets"), entry: text("a"), announced: true },
        ]
    };
    let mut changed = Vec::new();
    for n in 0..requests(tenure::Token::ZERO).len() {
        let rig = Rig::new().await;
        let grant = rig.granted(&setup).await;
        // Renewed without progress, so that it can be taken over.
        rig.outcome(&renew(&Holding { name: job(), holder: setup.holder.clone(), token: grant.token })).await;
        let request = requests(grant.token).swap_remove(n);
        rig.faults.lose_replies(1);
        rig.unknown(&request).await;
        let once = format!("{:?}", rig.faults.snapshot());
        rig.outcome(&request).await;
        if format!("{:?}", rig.faults.snapshot()) != once {
            changed.push(request);
        }
    }
    assert_eq!(changed, [], "these do something the second time");
}
