//! Handing a lease over: the sender's term ends, and one named instance has a window to accept it.

use std::time::Duration;

use crate::name::InstanceId;
use crate::store::{PreviousTerm, RecordedEnd, Refusal, Reply};
use crate::testing::client::{Client, ClientTerm, acquire, granted, shown};
use crate::testing::harness::{CaseHarness, LONG_TTL, SHORT_TTL, job};
use crate::token::Token;

/// A lease that alice held and has handed over to bob.
struct Offer {
    alice: Client,
    bob: Client,
    carol: Client,
    sent: ClientTerm,
    token: Token,
}

async fn offer(harness: &CaseHarness<'_>, window: Duration) -> Offer {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let sent = alice.acquire(&job(), LONG_TTL).await;
    let token = hand_over_to(&alice, &sent, &bob.id, window).await;
    Offer { alice, bob, carol: harness.client("carol").await, sent, token }
}

async fn hand_over_to(client: &Client, term: &ClientTerm, to: &InstanceId, window: Duration) -> Token {
    match client.send(term.hand_over(to, window)).await {
        Reply::HandedOver { token } => token,
        other => panic!("the holder must be able to hand over; the store answered {other:?}"),
    }
}

pub(super) async fn a_lease_is_handed_to_the_named_instance_under_a_new_token(harness: &CaseHarness<'_>) {
    let Offer { alice, bob, sent, token, .. } = offer(harness, LONG_TTL).await;
    assert!(token > sent.token(), "a hand-over begins a new term");
    let claim = bob.claim(&job(), LONG_TTL);
    let grant = granted(bob.send(acquire(&claim)).await, "the receiver accepts an offer by acquiring the lease");
    assert_eq!(grant.token, token, "the hand-over began the term");
    assert_eq!(grant.wait_out, Duration::ZERO, "the sender's work has ended");
    let previous = PreviousTerm { token: sent.token(), holder: alice.id.clone(), ended: RecordedEnd::HandedOver };
    assert_eq!(grant.previous, Some(previous), "the receiver learns who handed over");
    let renewed = bob.send(ClientTerm { claim, grant }.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the receiver holds the lease: {renewed:?}");
}

pub(super) async fn the_sender_of_a_hand_over_can_do_nothing_more(harness: &CaseHarness<'_>) {
    let Offer { alice, bob, sent, .. } = offer(harness, LONG_TTL).await;
    let taken = Reply::Refused(Refusal::Taken { holder: bob.id.clone() });
    for request in sent.fenced_requests() {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, taken, "the term ended when it was handed over: {}", shown(&request));
    }
    let again = alice.send(acquire(&sent.claim)).await;
    assert!(matches!(again, Reply::Held(_)), "the sender's claim is used up: {again:?}");
    assert_eq!(alice.read(&job(), "result").await, None, "the sender published nothing");
}

pub(super) async fn an_offer_cannot_be_used_before_it_is_taken_up(harness: &CaseHarness<'_>) {
    let Offer { bob, carol, sent, token, .. } = offer(harness, LONG_TTL).await;
    let offered = sent.claimed_by(&bob.id).under(token);
    let uses = [offered.renewal(), offered.publication("result", b"early"), offered.hand_over(&carol.id, LONG_TTL)];
    for request in uses {
        let reply = bob.send(request.clone()).await;
        assert!(matches!(reply, Reply::Refused(_)), "{} must be refused, not {reply:?}", shown(&request));
    }
    let grant = granted(bob.send(acquire(&bob.claim(&job(), LONG_TTL))).await, "the offer must still be valid");
    assert_eq!(grant.token, token, "and be the same");
}

pub(super) async fn only_the_named_instance_can_take_up_an_offer(harness: &CaseHarness<'_>) {
    let Offer { alice, bob, carol, token, .. } = offer(harness, LONG_TTL).await;
    for stranger in [&alice, &carol] {
        let held = stranger.expect_held(&job()).await;
        assert_eq!((held.holder, held.token), (bob.id.clone(), Some(token)), "the lease is reserved for the receiver");
    }
    let grant = granted(bob.try_acquire(&job()).await, "claims of other instances must not affect the offer");
    assert_eq!(grant.token, token);
}

pub(super) async fn an_offer_is_taken_up_by_one_claim_only(harness: &CaseHarness<'_>) {
    let Offer { bob, token, .. } = offer(harness, LONG_TTL).await;
    let claim = bob.claim(&job(), LONG_TTL);
    for _ in 0..2 {
        let grant = granted(bob.send(acquire(&claim)).await, "the accepting claim may be repeated");
        assert_eq!(grant.token, token, "and stays the same term");
    }
    let held = bob.expect_held(&job()).await;
    assert_eq!(held.holder, bob.id, "another claim of the receiver is refused once the offer is accepted");
}

pub(super) async fn a_taken_up_offer_lasts_for_a_ttl_and_not_for_the_window(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    // On a slow machine the window may end before the receiver's claim arrives; then it is a grant like any other.
    let sent = alice.acquire(&job(), LONG_TTL).await;
    hand_over_to(&alice, &sent, &bob.id, SHORT_TTL).await;
    let term = bob.acquire(&job(), LONG_TTL).await;
    harness.outlast(SHORT_TTL).await;
    let renewed = bob.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the window ends when the offer is accepted: {renewed:?}");
}

pub(super) async fn an_offer_that_is_not_taken_up_ends_with_its_window(harness: &CaseHarness<'_>) {
    let Offer { bob, carol, token, .. } = offer(harness, SHORT_TTL).await;
    harness.outlast(SHORT_TTL).await;
    let term = carol.acquire(&job(), LONG_TTL).await;
    assert!(term.token() > token, "the offered term has used up its token");
    let previous = PreviousTerm { token, holder: bob.id.clone(), ended: RecordedEnd::Unreported };
    assert_eq!(term.grant.previous, Some(previous), "the receiver reported no end");
    let late = bob.expect_held(&job()).await;
    assert_eq!(late.holder, carol.id, "the receiver is too late");
}

pub(super) async fn the_remaining_time_of_an_offer_is_its_window(harness: &CaseHarness<'_>) {
    let window = Duration::from_secs(20);
    let Offer { carol, .. } = offer(harness, window).await;
    let held = carol.expect_held(&job()).await;
    assert!(held.remaining.is_some_and(|left| left <= window), "waiters wait for the window only: {held:?}");
}

pub(super) async fn a_receiver_may_decline(harness: &CaseHarness<'_>) {
    let Offer { bob, carol, sent, token, .. } = offer(harness, LONG_TTL).await;
    let offered = sent.claimed_by(&bob.id).under(token);
    assert_eq!(bob.send(offered.release()).await, Reply::Done, "the receiver may release an offer");
    let term = carol.acquire(&job(), LONG_TTL).await;
    assert!(term.token() > token, "the offered term has used up its token");
}

pub(super) async fn a_repeated_hand_over_changes_nothing(harness: &CaseHarness<'_>) {
    let Offer { alice, bob, sent, token, .. } = offer(harness, LONG_TTL).await;
    let again = alice.send(sent.hand_over(&bob.id, LONG_TTL)).await;
    assert_eq!(again, Reply::Refused(Refusal::Taken { holder: bob.id.clone() }), "the first one was carried out");
    let grant = granted(bob.try_acquire(&job()).await, "the offer is still valid");
    assert_eq!(grant.token, token, "under the token of the first hand-over");
}

pub(super) async fn a_lease_can_be_handed_on_and_on(harness: &CaseHarness<'_>) {
    let players = [harness.client("alice").await, harness.client("bob").await, harness.client("carol").await];
    let mut term = players[0].acquire(&job(), LONG_TTL).await;
    let mut last = term.token();
    for n in 0..6 {
        let (from, to) = (&players[n % 3], &players[(n + 1) % 3]);
        let token = hand_over_to(from, &term, &to.id, LONG_TTL).await;
        term = to.acquire(&job(), LONG_TTL).await;
        assert_eq!(term.token(), token, "hop {n}");
        assert!(token > last, "tokens must increase with every hand-over: {token} after {last}");
        last = token;
    }
}
