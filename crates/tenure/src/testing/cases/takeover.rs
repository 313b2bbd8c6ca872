//! Taking over a lease from a holder that renews and makes no progress.

use std::time::Duration;

use crate::store::{Grant, PreviousTerm, RecordedEnd, Refusal, Reply};
use crate::testing::client::{Client, ClientTerm, acquire, granted, shown, take_over};
use crate::testing::harness::{CaseHarness, LONG_TTL, SHORT_TTL, job};

/// Takes over the lease of `victim`, whose holder must be idle enough.
async fn take_over_idle(client: &Client, victim: &ClientTerm, ttl: Duration) -> ClientTerm {
    let claim = client.claim(&job(), ttl);
    client.send(victim.renewal()).await;
    let reply = client.send(take_over(&claim, victim.token(), Duration::ZERO)).await;
    ClientTerm { claim, grant: granted(reply, "an idle holder's term may be taken over") }
}

/// Checks that a grant makes its receiver wait for a holder that may rely on its lease for about this long.
#[track_caller]
fn assert_waits_for(grant: &Grant, ttl: Duration) {
    let wait = grant.wait_out;
    assert!(wait > ttl / 2 && wait <= ttl, "the old holder may rely on it for about {ttl:?}, not {wait:?}");
}

pub(super) async fn a_holder_without_progress_is_taken_over(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let old = alice.acquire(&job(), LONG_TTL).await;
    harness.outlast(SHORT_TTL).await;
    alice.send(old.renewal()).await;
    let claim = bob.claim(&job(), LONG_TTL);
    let reply = bob.send(take_over(&claim, old.token(), SHORT_TTL)).await;
    let term = ClientTerm { claim, grant: granted(reply, "a holder that is idle for too long is taken over") };
    assert!(term.token() > old.token(), "the new term has a larger token");
    assert_waits_for(&term.grant, LONG_TTL);
    let previous = PreviousTerm { token: old.token(), holder: alice.id.clone(), ended: RecordedEnd::TakenOver };
    assert_eq!(term.grant.previous, Some(previous), "the new holder learns of the old one");
    let renewed = bob.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the new holder holds the lease: {renewed:?}");
}

pub(super) async fn a_taken_over_holder_is_told_that_it_stalled(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let old = alice.acquire(&job(), LONG_TTL).await;
    let new = take_over_idle(&bob, &old, LONG_TTL).await;
    for request in old.fenced_requests() {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, Reply::Refused(Refusal::Stalled), "the term was taken over: {}", shown(&request));
    }
    assert_eq!(alice.read(&job(), "result").await, None, "the old holder publishes nothing");
    let renewed = bob.send(new.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the new term must have stayed: {renewed:?}");
}

pub(super) async fn a_repeated_take_over_is_the_same_term_with_the_remaining_wait(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let old = alice.acquire(&job(), LONG_TTL).await;
    alice.send(old.renewal()).await;
    let claim = bob.claim(&job(), LONG_TTL);
    let request = take_over(&claim, old.token(), Duration::ZERO);
    let first = granted(bob.send(request.clone()).await, "an idle holder's term may be taken over");
    harness.advance_time(SHORT_TTL).await;
    for request in [request, acquire(&claim)] {
        let again = granted(bob.send(request).await, "a repeated claim must be granted again");
        assert_eq!(again.token, first.token, "and be the same term");
        assert_eq!(again.previous, first.previous, "with the same term before it");
        assert!(!again.wait_out.is_zero(), "the old holder must still be waited out: {again:?}");
        assert!(again.wait_out <= first.wait_out - SHORT_TTL / 2, "for the time left: {again:?} after {first:?}");
    }
}

/// The machine's speed does not matter: if the lease is taken over, the store's own clock must justify it.
pub(super) async fn a_holder_that_made_progress_is_not_taken_over(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    let stale_after = Duration::from_secs(1);
    harness.outlast(stale_after).await;
    let Reply::Renewed { server: progressed, .. } = alice.send(term.progress()).await else {
        panic!("the holder must be able to renew");
    };
    match bob.send(take_over(&bob.claim(&job(), LONG_TTL), term.token(), stale_after)).await {
        Reply::Held(held) => assert_eq!(held.holder, alice.id, "a holder with progress keeps the lease"),
        Reply::Granted(grant) => {
            let idle = grant.server.since(progressed);
            assert!(
                idle >= stale_after,
                "taken over after {idle:?}, although {stale_after:?} without progress are allowed"
            );
        }
        other => panic!("a lease is held or taken over; the store answered {other:?}"),
    }
}

pub(super) async fn a_renewal_alone_is_not_progress(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    harness.outlast(SHORT_TTL).await;
    alice.send(term.renewal()).await;
    let idle = bob.expect_held(&job()).await.idle.unwrap_or_default();
    assert!(idle >= SHORT_TTL, "the holder has been idle since it began, not for {idle:?}");
    let reply = bob.send(take_over(&bob.claim(&job(), LONG_TTL), term.token(), SHORT_TTL)).await;
    granted(reply, "a holder that only renews makes no progress");
}

pub(super) async fn a_holder_that_has_not_renewed_yet_is_not_taken_over(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    let tries = || take_over(&bob.claim(&job(), LONG_TTL), term.token(), Duration::ZERO);
    harness.outlast(SHORT_TTL).await;
    let reply = bob.send(tries()).await;
    assert!(
        matches!(&reply, Reply::Held(held) if held.holder == alice.id),
        "it is not known yet whether it makes progress: {reply:?}"
    );
    // The same after reported progress.
    alice.send(term.renewal()).await;
    alice.send(term.progress()).await;
    let reply = bob.send(tries()).await;
    assert!(matches!(&reply, Reply::Held(held) if held.holder == alice.id), "it has reported progress: {reply:?}");
    alice.send(term.renewal()).await;
    granted(bob.send(tries()).await, "renewed without progress, it may be taken over");
}

pub(super) async fn a_new_holder_is_not_taken_over_for_its_predecessor(harness: &CaseHarness<'_>) {
    let (alice, bob, carol) =
        (harness.client("alice").await, harness.client("bob").await, harness.client("carol").await);
    let old = alice.acquire(&job(), LONG_TTL).await;
    harness.outlast(SHORT_TTL).await;
    alice.send(old.release()).await;
    let new = carol.acquire(&job(), LONG_TTL).await;
    let reply = bob.send(take_over(&bob.claim(&job(), LONG_TTL), old.token(), Duration::ZERO)).await;
    assert!(
        matches!(&reply, Reply::Held(held) if held.holder == carol.id),
        "another term is not the victim: {reply:?}"
    );
    let reply = bob.send(take_over(&bob.claim(&job(), LONG_TTL), new.token(), LONG_TTL)).await;
    assert!(matches!(&reply, Reply::Held(held) if held.holder == carol.id), "a new holder is not idle: {reply:?}");
    let renewed = carol.send(new.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the new term must have stayed: {renewed:?}");
}

pub(super) async fn a_waiting_taker_is_not_taken_over(harness: &CaseHarness<'_>) {
    let (alice, bob, carol) =
        (harness.client("alice").await, harness.client("bob").await, harness.client("carol").await);
    let old = alice.acquire(&job(), LONG_TTL).await;
    let waiting = take_over_idle(&bob, &old, LONG_TTL).await;
    harness.outlast(SHORT_TTL).await;
    let reply = carol.send(take_over(&carol.claim(&job(), LONG_TTL), waiting.token(), SHORT_TTL)).await;
    assert!(
        matches!(&reply, Reply::Held(held) if held.holder == bob.id),
        "a holder that must wait cannot work yet: {reply:?}"
    );
}

pub(super) async fn a_take_over_of_a_free_lease_is_an_ordinary_grant(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let old = alice.acquire(&job(), LONG_TTL).await;
    alice.send(old.release()).await;
    let reply = bob.send(take_over(&bob.claim(&job(), LONG_TTL), old.token(), LONG_TTL)).await;
    let grant = granted(reply, "an unheld lease is granted");
    assert_eq!(grant.wait_out, Duration::ZERO, "there is no earlier holder to wait for");
    assert!(grant.token > old.token(), "the next term has a larger token");
}

/// The old holder may rely on its term until its own deadline, whatever becomes of the new one.
pub(super) async fn the_wait_for_a_taken_over_holder_outlives_a_taker_that_releases(harness: &CaseHarness<'_>) {
    let (alice, bob, carol) =
        (harness.client("alice").await, harness.client("bob").await, harness.client("carol").await);
    let old = alice.acquire(&job(), LONG_TTL).await;
    let taker = take_over_idle(&bob, &old, LONG_TTL).await;
    bob.send(taker.release()).await;
    assert_waits_for(&carol.acquire(&job(), LONG_TTL).await.grant, LONG_TTL);
}

pub(super) async fn the_wait_for_a_taken_over_holder_outlives_a_taker_that_expires(harness: &CaseHarness<'_>) {
    let (alice, bob, carol) =
        (harness.client("alice").await, harness.client("bob").await, harness.client("carol").await);
    let old = alice.acquire(&job(), LONG_TTL).await;
    take_over_idle(&bob, &old, SHORT_TTL).await;
    harness.outlast(SHORT_TTL).await;
    assert_waits_for(&carol.acquire(&job(), LONG_TTL).await.grant, LONG_TTL);
}

pub(super) async fn the_wait_for_a_taken_over_holder_outlives_a_taker_that_hands_over(harness: &CaseHarness<'_>) {
    let (alice, bob, carol) =
        (harness.client("alice").await, harness.client("bob").await, harness.client("carol").await);
    let old = alice.acquire(&job(), LONG_TTL).await;
    let taker = take_over_idle(&bob, &old, LONG_TTL).await;
    bob.send(taker.hand_over(&carol.id, LONG_TTL)).await;
    assert_waits_for(&carol.acquire(&job(), LONG_TTL).await.grant, LONG_TTL);
}

pub(super) async fn the_wait_for_a_taken_over_holder_outlives_a_taker_that_is_taken_over(harness: &CaseHarness<'_>) {
    let (alice, bob, carol) =
        (harness.client("alice").await, harness.client("bob").await, harness.client("carol").await);
    let old = alice.acquire(&job(), LONG_TTL).await;
    // The new holder's lease is much shorter than what is left of the one it took over.
    let taker = take_over_idle(&bob, &old, Duration::from_secs(5)).await;
    assert_waits_for(&take_over_idle(&carol, &taker, LONG_TTL).await.grant, LONG_TTL);
}
