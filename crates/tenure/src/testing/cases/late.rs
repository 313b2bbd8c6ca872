//! Late requests, which arrive after their sender has given up, over any connection: none may affect a later term.

use std::time::Duration;

use crate::store::{Refusal, Reply, Request};
use crate::testing::StoreFault;
use crate::testing::client::{Client, ClientTerm, acquire, acquire_after, granted, shown, take_over};
use crate::testing::harness::{CaseHarness, Checked, LONG_TTL, SHORT_TTL, job};

/// Every request that a holder may have sent during a term, with each way to end it.
fn stale_requests(term: &ClientTerm, heir: &Client) -> Vec<Request> {
    let mut requests = term.fenced_requests();
    requests.extend([
        acquire(&term.claim),
        acquire_after(&term.claim, term.token()),
        take_over(&term.claim, term.token(), Duration::ZERO),
        term.hand_over(&heir.id, LONG_TTL),
        term.abandon(),
        term.step_down(None),
    ]);
    requests
}

/// Sends every request that may be left over from `old`, and checks that the lease of `current` has not changed.
async fn assert_untouched(courier: &Client, old: &ClientTerm, current: &ClientTerm, holder: &Client) {
    holder.send(current.publication("result", b"current")).await;
    let before = courier.inspect(&job()).await;
    for request in stale_requests(old, courier) {
        let reply = courier.send(request.clone()).await;
        assert!(
            matches!(reply, Reply::Refused(_) | Reply::Held(_) | Reply::TermOver | Reply::Done),
            "{} of a term that is over must not succeed; the store answered {reply:?}",
            shown(&request)
        );
        let after = courier.inspect(&job()).await;
        let held = after.held.as_ref().map(|held| (&held.holder, held.token));
        assert_eq!(held, Some((&holder.id, Some(current.token()))), "the holder must stay after {}", shown(&request));
        assert_eq!(after.asked, before.asked, "another term is asked nothing by {}", shown(&request));
        assert_eq!(after.since, before.since, "the term must be the same after {}", shown(&request));
        let value = courier.read_value(&job(), "result").await;
        assert_eq!(value.as_deref(), Some(&b"current"[..]), "the record must stay after {}", shown(&request));
    }
    let renewed = holder.send(current.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { asked: None, .. }), "the term must continue: {renewed:?}");
}

pub(super) async fn nothing_of_a_released_term_touches_the_next_holder(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let old = alice.acquire(&job(), LONG_TTL).await;
    alice.send(old.release()).await;
    let current = bob.acquire(&job(), LONG_TTL).await;
    let courier = harness.client("courier").await;
    assert_untouched(&courier, &old, &current, &bob).await;
}

pub(super) async fn nothing_of_an_expired_term_touches_the_next_holder(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let old = alice.acquire(&job(), SHORT_TTL).await;
    harness.outlast(SHORT_TTL).await;
    let current = bob.acquire(&job(), LONG_TTL).await;
    let courier = harness.client("courier").await;
    assert_untouched(&courier, &old, &current, &bob).await;
}

pub(super) async fn nothing_of_a_released_term_touches_the_next_one_of_the_same_holder(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let old = alice.acquire(&job(), LONG_TTL).await;
    alice.send(old.release()).await;
    let current = alice.acquire(&job(), LONG_TTL).await;
    let courier = harness.client("courier").await;
    assert_untouched(&courier, &old, &current, &alice).await;
}

pub(super) async fn nothing_of_a_handed_over_term_touches_the_receiver(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let old = alice.acquire(&job(), LONG_TTL).await;
    alice.send(old.hand_over(&bob.id, LONG_TTL)).await;
    let current = bob.acquire(&job(), LONG_TTL).await;
    let courier = harness.client("courier").await;
    assert_untouched(&courier, &old, &current, &bob).await;
}

pub(super) async fn nothing_of_a_taken_over_term_touches_its_taker(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let old = alice.acquire(&job(), LONG_TTL).await;
    alice.send(old.renewal()).await;
    let claim = bob.claim(&job(), LONG_TTL);
    let reply = bob.send(take_over(&claim, old.token(), Duration::ZERO)).await;
    let grant = granted(reply, "a term may be taken over after no time at all");
    let courier = harness.client("courier").await;
    assert_untouched(&courier, &old, &ClientTerm { claim, grant }, &bob).await;
}

pub(super) async fn a_late_claim_of_a_released_term_does_not_revive_it(harness: &CaseHarness<'_>) {
    let (alice, courier) = (harness.client("alice").await, harness.client("courier").await);
    let old = alice.acquire(&job(), LONG_TTL).await;
    alice.send(old.release()).await;
    for request in [acquire(&old.claim), acquire_after(&old.claim, old.token())] {
        assert_eq!(courier.send(request).await, Reply::TermOver, "a released term is never revived");
    }
    assert_eq!(courier.inspect(&job()).await.held, None, "the lease must stay unheld");
}

pub(super) async fn a_late_take_over_does_not_revive_its_own_term(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let victim = alice.acquire(&job(), LONG_TTL).await;
    alice.send(victim.renewal()).await;
    let claim = bob.claim(&job(), LONG_TTL);
    let request = take_over(&claim, victim.token(), Duration::ZERO);
    let reply = bob.send(request.clone()).await;
    let term = ClientTerm { claim, grant: granted(reply, "the victim's term must be taken over") };
    bob.send(term.release()).await;
    assert_eq!(alice.send(request).await, Reply::TermOver, "a take-over is good for one term");
    assert_eq!(alice.inspect(&job()).await.held, None, "the lease must stay unheld");
}

pub(super) async fn a_late_release_leaves_a_free_lease_free(harness: &CaseHarness<'_>) {
    let (alice, courier) = (harness.client("alice").await, harness.client("courier").await);
    let old = alice.acquire(&job(), SHORT_TTL).await;
    harness.outlast(SHORT_TTL).await;
    for request in old.fenced_requests() {
        let reply = courier.send(request.clone()).await;
        assert_eq!(reply, Reply::Refused(Refusal::Missing), "the term has expired: {}", shown(&request));
    }
    assert_eq!(courier.inspect(&job()).await.held, None, "the lease must stay unheld");
    assert_eq!(courier.read(&job(), "result").await, None, "and nothing was published");
}

pub(super) async fn a_late_acceptance_does_not_revive_a_declined_offer(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let sent = alice.acquire(&job(), LONG_TTL).await;
    alice.send(sent.hand_over(&bob.id, LONG_TTL)).await;
    let term = bob.acquire(&job(), LONG_TTL).await;
    bob.send(term.release()).await;
    assert_eq!(alice.send(acquire(&term.claim)).await, Reply::TermOver, "the receiver has released it");
}

pub(super) async fn a_claim_of_an_older_generation_is_not_granted(harness: &CaseHarness<'_>) -> Checked {
    let (alice, mut bob) = (harness.client("alice").await, harness.client("bob").await);
    harness.inject(StoreFault::Flush).await?;
    bob.reattach(harness).await;
    for _ in 0..2 {
        assert_eq!(alice.try_acquire(&job()).await, Reply::NotAttached, "the data that alice attached to is gone");
    }
    Ok(())
}
