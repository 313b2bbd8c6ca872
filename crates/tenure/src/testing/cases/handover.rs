//! Handing a lease over: the sender's term ends, and one named instance has a window to take it up.

use std::time::Duration;

use crate::name::InstanceId;
use crate::store::{Ended, PreviousTerm, Refusal, Reply};
use crate::testing::player::{Player, Term, acquire, granted, shown};
use crate::testing::trial::{LONG, SHORT, Trial, job};
use crate::token::Token;

/// A lease that alice had and has handed to bob.
struct Offer {
    alice: Player,
    bob: Player,
    carol: Player,
    sent: Term,
    token: Token,
}

async fn offer(trial: &Trial<'_>, window: Duration) -> Offer {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let sent = alice.wins(&job(), LONG).await;
    let token = hands_over(&alice, &sent, &bob.id, window).await;
    Offer { alice, bob, carol: trial.player("carol").await, sent, token }
}

async fn hands_over(player: &Player, term: &Term, to: &InstanceId, window: Duration) -> Token {
    match player.send(term.hand_over(to, window)).await {
        Reply::HandedOver { token } => token,
        other => panic!("the holder must be able to hand over; the store answered {other:?}"),
    }
}

pub(super) async fn a_lease_is_handed_to_the_named_instance_under_a_new_token(trial: &Trial<'_>) {
    let Offer { alice, bob, sent, token, .. } = offer(trial, LONG).await;
    assert!(token > sent.token(), "a hand-over begins a new term");
    let claim = bob.claim(&job(), LONG);
    let grant = granted(bob.send(acquire(&claim)).await, "the receiver takes up an offer by acquiring the lease");
    assert_eq!(grant.token, token, "the term was begun by the hand-over");
    assert_eq!(grant.wait_out, Duration::ZERO, "the sender's work has ended");
    let previous = PreviousTerm { token: sent.token(), holder: alice.id.clone(), ended: Ended::HandedOver };
    assert_eq!(grant.previous, Some(previous), "the receiver learns who handed over");
    let renewed = bob.send(Term { claim, grant }.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the receiver holds the lease: {renewed:?}");
}

pub(super) async fn the_sender_of_a_hand_over_can_do_nothing_more(trial: &Trial<'_>) {
    let Offer { alice, bob, sent, .. } = offer(trial, LONG).await;
    let taken = Reply::Refused(Refusal::Taken { by: bob.id.clone() });
    for request in sent.privileged() {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, taken, "the term ended when it was handed over: {}", shown(&request));
    }
    let again = alice.send(acquire(&sent.claim)).await;
    assert!(matches!(again, Reply::Held(_)), "the sender's claim is used up: {again:?}");
    assert_eq!(alice.read(&job(), "result").await, None, "the sender published nothing");
}

pub(super) async fn an_offer_cannot_be_used_before_it_is_taken_up(trial: &Trial<'_>) {
    let Offer { bob, carol, sent, token, .. } = offer(trial, LONG).await;
    let offered = sent.claimed_by(&bob.id).under(token);
    let uses = [offered.renewal(), offered.publication("result", b"early"), offered.hand_over(&carol.id, LONG)];
    for request in uses {
        let reply = bob.send(request.clone()).await;
        assert!(matches!(reply, Reply::Refused(_)), "{} must be refused, not {reply:?}", shown(&request));
    }
    let grant = granted(bob.send(acquire(&bob.claim(&job(), LONG))).await, "the offer must still stand");
    assert_eq!(grant.token, token, "and be the same");
}

pub(super) async fn only_the_named_instance_can_take_up_an_offer(trial: &Trial<'_>) {
    let Offer { alice, bob, carol, token, .. } = offer(trial, LONG).await;
    for stranger in [&alice, &carol] {
        let held = stranger.finds_held(&job()).await;
        assert_eq!((held.by, held.token), (bob.id.clone(), Some(token)), "the lease is kept for the receiver");
    }
    let grant = granted(bob.tries(&job()).await, "strangers who ask must not spoil the offer");
    assert_eq!(grant.token, token);
}

pub(super) async fn an_offer_is_taken_up_by_one_claim_only(trial: &Trial<'_>) {
    let Offer { bob, token, .. } = offer(trial, LONG).await;
    let claim = bob.claim(&job(), LONG);
    for _ in 0..2 {
        let grant = granted(bob.send(acquire(&claim)).await, "the claim that took the offer up may be repeated");
        assert_eq!(grant.token, token, "and stays the same term");
    }
    let held = bob.finds_held(&job()).await;
    assert_eq!(held.by, bob.id, "another claim of the receiver is a stranger once the offer was taken up");
}

pub(super) async fn a_taken_up_offer_lasts_for_a_ttl_and_not_for_the_window(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    // The window may be over before the receiver's claim arrives, on a slow machine; then it is a grant like any other.
    let sent = alice.wins(&job(), LONG).await;
    hands_over(&alice, &sent, &bob.id, SHORT).await;
    let term = bob.wins(&job(), LONG).await;
    trial.outlast(SHORT).await;
    let renewed = bob.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the window ends when the offer is taken up: {renewed:?}");
}

pub(super) async fn an_offer_that_nobody_takes_up_ends_with_its_window(trial: &Trial<'_>) {
    let Offer { bob, carol, token, .. } = offer(trial, SHORT).await;
    trial.outlast(SHORT).await;
    let term = carol.wins(&job(), LONG).await;
    assert!(term.token() > token, "the offered term has used up its token");
    let previous = PreviousTerm { token, holder: bob.id.clone(), ended: Ended::Silently };
    assert_eq!(term.grant.previous, Some(previous), "the receiver never said anything");
    let late = bob.finds_held(&job()).await;
    assert_eq!(late.by, carol.id, "the receiver comes too late");
}

pub(super) async fn what_is_left_of_an_offer_is_its_window(trial: &Trial<'_>) {
    let window = Duration::from_secs(20);
    let Offer { carol, .. } = offer(trial, window).await;
    let held = carol.finds_held(&job()).await;
    assert!(held.remaining.is_some_and(|left| left <= window), "waiters wait for the window only: {held:?}");
}

pub(super) async fn a_receiver_may_decline(trial: &Trial<'_>) {
    let Offer { bob, carol, sent, token, .. } = offer(trial, LONG).await;
    let offered = sent.claimed_by(&bob.id).under(token);
    assert_eq!(bob.send(offered.release()).await, Reply::Done, "the receiver may let go of what it was handed");
    let term = carol.wins(&job(), LONG).await;
    assert!(term.token() > token, "the offered term has used up its token");
}

pub(super) async fn a_repeated_hand_over_changes_nothing(trial: &Trial<'_>) {
    let Offer { alice, bob, sent, token, .. } = offer(trial, LONG).await;
    let again = alice.send(sent.hand_over(&bob.id, LONG)).await;
    assert_eq!(again, Reply::Refused(Refusal::Taken { by: bob.id.clone() }), "the first one was carried out");
    let grant = granted(bob.tries(&job()).await, "the offer still stands");
    assert_eq!(grant.token, token, "under the token of the first hand-over");
}

pub(super) async fn a_lease_can_be_handed_on_and_on(trial: &Trial<'_>) {
    let players = [trial.player("alice").await, trial.player("bob").await, trial.player("carol").await];
    let mut term = players[0].wins(&job(), LONG).await;
    let mut last = term.token();
    for n in 0..6 {
        let (from, to) = (&players[n % 3], &players[(n + 1) % 3]);
        let token = hands_over(from, &term, &to.id, LONG).await;
        term = to.wins(&job(), LONG).await;
        assert_eq!(term.token(), token, "hop {n}");
        assert!(token > last, "tokens must grow with every hand-over: {token} after {last}");
        last = token;
    }
}
