//! Requests to a holder are stored, so that they reach a holder that missed the announcement.

use crate::store::{Ask, LeaseRequest, Refusal, Reply};
use crate::testing::client::{Client, ClientTerm};
use crate::testing::harness::{CaseHarness, LONG_TTL, SHORT_TTL, instance, job};
use crate::token::Token;

async fn asked(client: &Client, term: &ClientTerm) -> Option<Ask> {
    match client.send(term.renewal()).await {
        Reply::Renewed { asked, .. } => asked,
        other => panic!("the holder must be able to renew; the store answered {other:?}"),
    }
}

pub(super) async fn a_holder_learns_what_is_asked_of_it_when_it_renews(harness: &CaseHarness<'_>) {
    let (alice, operator) = (harness.client("alice").await, harness.client("operator").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    assert_eq!(asked(&alice, &term).await, None, "nothing was asked yet");
    for to in [None, Some(instance("bob"))] {
        assert_eq!(operator.send(term.step_down(to.as_ref())).await, Reply::Done, "any client may ask");
        let ask = Some(Ask::StepDown { to });
        for _ in 0..2 {
            assert_eq!(asked(&alice, &term).await, ask, "every renewal returns it; the last ask counts");
        }
        assert_eq!(operator.inspect(&job()).await.asked, ask, "and an inspection shows it");
    }
}

pub(super) async fn asking_does_not_end_a_term(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    bob.send(term.step_down(Some(&bob.id))).await;
    assert_eq!(bob.expect_held(&job()).await.holder, alice.id, "the holder releases when it is ready");
    assert_eq!(alice.send(term.publication("result", b"x")).await, Reply::Done, "and may work until then");
}

pub(super) async fn what_was_asked_of_one_term_is_not_asked_of_the_next(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    bob.send(term.step_down(None)).await;
    alice.send(term.release()).await;
    let next = bob.acquire(&job(), LONG_TTL).await;
    assert_eq!(asked(&bob, &next).await, None, "another term was not asked anything");
    bob.send(next.step_down(None)).await;
    bob.send(next.hand_over(&alice.id, LONG_TTL)).await;
    let handed = alice.acquire(&job(), LONG_TTL).await;
    assert_eq!(asked(&alice, &handed).await, None, "nor is the receiver of a hand-over");
}

pub(super) async fn only_the_current_term_can_be_asked(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let ask = |token| LeaseRequest::Ask { name: job(), token, ask: Ask::StepDown { to: None } };
    let never = bob.send(ask(Token::ZERO)).await;
    assert_eq!(never, Reply::Refused(Refusal::Missing), "the lease is unheld");
    let old = alice.acquire(&job(), SHORT_TTL).await;
    harness.outlast(SHORT_TTL).await;
    assert_eq!(bob.send(ask(old.token())).await, Reply::Refused(Refusal::Missing), "the lease is unheld again");
    let new = bob.acquire(&job(), LONG_TTL).await;
    let refused = alice.send(ask(old.token())).await;
    assert_eq!(refused, Reply::Refused(Refusal::Taken { holder: bob.id.clone() }), "another term holds the lease");
    assert_eq!(asked(&bob, &new).await, None, "and is not asked in its place");
}

pub(super) async fn a_revoked_term_is_not_asked_for_more(harness: &CaseHarness<'_>) {
    let (alice, operator) = (harness.client("alice").await, harness.client("operator").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    operator.send(term.revocation()).await;
    let refused = operator.send(term.step_down(None)).await;
    assert!(matches!(refused, Reply::Refused(_)), "the term was ended already: {refused:?}");
}
