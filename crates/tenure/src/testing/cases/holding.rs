//! Holding a lease: renewals, releases and publications, which only the current term may make.

use crate::InstanceId;
use crate::lease::{Ending, Loss, ReleaseReason};
use crate::store::{LeaseRequest, RecordedEnd, Refusal, Reply, Request};
use crate::testing::client::{ClientTerm, shown};
use crate::testing::harness::{CaseHarness, LONG_TTL, SHORT_TTL, job, lease, token_above};
use crate::token::Token;

pub(super) async fn a_renewal_lets_the_term_go_on(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    match alice.send(term.renewal()).await {
        Reply::Renewed { server, asked, .. } => {
            assert!(server >= term.grant.server, "the store's clock was not set back");
            assert_eq!(asked, None, "nothing was asked of the holder");
        }
        other => panic!("the holder must be able to renew; the store answered {other:?}"),
    }
    let token = alice.inspect(&job()).await.held.and_then(|held| held.token);
    assert_eq!(token, Some(term.token()), "a renewal is not a new term");
}

pub(super) async fn a_renewal_starts_the_ttl_again(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    alice.assert_extends(harness, &job(), term.renewal()).await;
}

pub(super) async fn a_renewal_with_an_old_token_is_refused(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let old = alice.acquire(&job(), LONG_TTL).await;
    alice.send(old.release()).await;
    let new = alice.acquire(&job(), LONG_TTL).await;
    let taken = Reply::Refused(Refusal::Taken { holder: alice.id.clone() });
    assert_eq!(alice.send(old.renewal()).await, taken, "the old token must not renew the new term");
    let renewed = alice.send(new.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the new term must have stayed: {renewed:?}");
}

/// Sends every request that only the current term may make, under a holding that is not the current one.
async fn assert_refused(harness: &CaseHarness<'_>, wrong: impl Fn(&ClientTerm) -> ClientTerm, why: &str) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    alice.send(term.publication("result", b"true")).await;
    let taken = Reply::Refused(Refusal::Taken { holder: alice.id.clone() });
    for request in wrong(&term).fenced_requests() {
        for client in [&alice, &bob] {
            let reply = client.send(request.clone()).await;
            assert_eq!(reply, taken, "{why}: {}", shown(&request));
        }
    }
    let renewed = alice.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "{why}: the term must have stayed, not {renewed:?}");
    let value = bob.read_value(&job(), "result").await;
    assert_eq!(value.as_deref(), Some(&b"true"[..]), "{why}: the record must have stayed");
}

pub(super) async fn the_right_token_under_another_holder_is_refused(harness: &CaseHarness<'_>) {
    let bob = harness.client("bob").await;
    assert_refused(harness, |term| term.claimed_by(&bob.id), "the holder differs").await;
}

pub(super) async fn the_right_holder_under_a_smaller_token_is_refused(harness: &CaseHarness<'_>) {
    let smaller = |term: &ClientTerm| term.under(Token::new(term.token().get() - 1).unwrap_or_default());
    assert_refused(harness, smaller, "the token is smaller").await;
}

pub(super) async fn the_right_holder_under_a_larger_token_is_refused(harness: &CaseHarness<'_>) {
    assert_refused(harness, |term| term.under(token_above(term.token(), 1)), "the token is larger").await;
}

pub(super) async fn the_right_holder_under_a_token_that_differs_in_the_last_digit_is_refused(
    harness: &CaseHarness<'_>,
) {
    // Above 2^53 a double cannot distinguish neighbours, and a number that was formatted as a double loses digits
    // earlier.
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    for by in [1, 2, 9, 10, 100] {
        let reply = alice.send(term.under(token_above(term.token(), by)).renewal()).await;
        assert!(matches!(reply, Reply::Refused(Refusal::Taken { .. })), "tokens are compared exactly: {reply:?}");
    }
}

pub(super) async fn a_lease_that_was_never_granted_cannot_be_used(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let elsewhere = alice.acquire(&lease("elsewhere"), LONG_TTL).await;
    let mut invented = elsewhere.clone();
    invented.claim.name = job();
    for request in invented.fenced_requests() {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, Reply::Refused(Refusal::StoreReset), "no such term is on record: {}", shown(&request));
    }
    assert_eq!(alice.read(&job(), "result").await, None, "and nothing was published");
}

pub(super) async fn a_released_lease_is_free_at_once(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    assert_eq!(alice.send(term.release()).await, Reply::Done, "the holder may release");
    let report = bob.inspect(&job()).await;
    assert_eq!(report.held, None, "the lease is unheld");
    let last = report.last.map(|last| (last.token, last.holder, last.ended));
    assert_eq!(last, Some((term.token(), alice.id, RecordedEnd::Released)), "the last term stays on record");
    let next = bob.acquire(&job(), LONG_TTL).await;
    assert!(next.token() > term.token(), "the next term has a larger token");
}

pub(super) async fn how_a_term_ended_is_on_record(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    for ending in [Ending::Released(ReleaseReason::Rebalance), Ending::Lost(Loss::Stalled)] {
        let term = alice.acquire(&job(), LONG_TTL).await;
        assert_eq!(alice.inspect(&job()).await.ending, None, "a current term has not ended");
        alice.send(LeaseRequest::Release { holding: term.holding(), ending: ending.clone() }).await;
        assert_eq!(alice.inspect(&job()).await.ending, Some(ending), "as its holder reported");
    }
}

pub(super) async fn a_release_may_be_repeated(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    for _ in 0..3 {
        assert_eq!(alice.send(term.release()).await, Reply::Done, "a release whose reply was lost is sent again");
    }
}

pub(super) async fn a_released_term_can_do_nothing_more(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    alice.send(term.publication("result", b"true")).await;
    alice.send(term.release()).await;
    for request in term.fenced_requests() {
        let reply = alice.send(request.clone()).await;
        if matches!(request, Request::Lease(LeaseRequest::Release { .. })) {
            assert_eq!(reply, Reply::Done, "this very release was already made");
        } else {
            assert_eq!(reply, Reply::Refused(Refusal::Missing), "the lease is unheld: {}", shown(&request));
        }
    }
    let value = alice.read_value(&job(), "result").await;
    assert_eq!(value.as_deref(), Some(&b"true"[..]), "earlier publications stay");
}

pub(super) async fn a_publication_can_be_read_by_every_instance(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    assert_eq!(bob.read(&job(), "result").await, None, "nothing was published yet");
    let term = alice.acquire(&job(), LONG_TTL).await;
    assert_eq!(alice.send(term.publication("result", b"one")).await, Reply::Done, "the holder may publish");
    let first = bob.read(&job(), "result").await;
    let Some(first) = first else { panic!("a published record must be readable") };
    assert_eq!((first.token, first.value.as_slice()), (term.token(), &b"one"[..]), "with the term it was published in");
    assert!(first.at >= term.grant.server, "and when, by the store's clock: {first:?}");

    alice.send(term.publication("result", b"two")).await;
    let second = bob.read_value(&job(), "result").await;
    assert_eq!(second.as_deref(), Some(&b"two"[..]), "a later publication replaces an earlier one");
    assert_eq!(bob.read(&job(), "other").await, None, "and changes no other record");
    assert_eq!(bob.read(&lease("other"), "result").await, None, "nor that of another lease");
}

pub(super) async fn a_publication_outlives_its_term(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    alice.send(term.publication("result", b"kept")).await;
    alice.send(term.release()).await;
    let next = bob.acquire(&job(), LONG_TTL).await;
    let kept = bob.read(&job(), "result").await.map(|record| (record.token, record.value));
    assert_eq!(kept, Some((term.token(), b"kept".to_vec())), "results are there for the next holder");
    bob.send(next.publication("result", b"newer")).await;
    let newer = bob.read(&job(), "result").await.map(|record| (record.token, record.value));
    assert_eq!(newer, Some((next.token(), b"newer".to_vec())), "which may replace them");
}

pub(super) async fn the_holders_of_many_leases_are_listed_in_order(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let other = lease("other");
    let kept = alice.acquire(&other, LONG_TTL).await;
    let ask = || bob.send(LeaseRequest::Holders { names: vec![job(), other.clone(), job()] });
    let answer =
        |holder: Option<&InstanceId>| Reply::Holders(vec![holder.cloned(), Some(alice.id.clone()), holder.cloned()]);
    assert_eq!(ask().await, answer(None), "unheld at first");
    let term = alice.acquire(&job(), LONG_TTL).await;
    assert_eq!(ask().await, answer(Some(&alice.id)));
    alice.send(term.hand_over(&bob.id, LONG_TTL)).await;
    assert_eq!(ask().await, answer(Some(&bob.id)), "reserved for bob");
    let term = bob.acquire(&job(), LONG_TTL).await;
    bob.send(term.release()).await;
    assert_eq!(ask().await, answer(None), "released");
    alice.acquire(&job(), SHORT_TTL).await;
    harness.outlast(SHORT_TTL).await;
    assert_eq!(ask().await, answer(None), "expired");
    alice.send(kept.release()).await;
}
