//! Ending a term by force: the holder learns of it, and the lease stays held until the holder has released it.

use crate::store::{LeaseRequest, Refusal, Reply};
use crate::testing::client::{Client, ClientTerm, acquire, acquire_after, shown};
use crate::testing::harness::{CaseHarness, LONG_TTL, SHORT_TTL, instance, job};
use crate::token::Token;

/// Alice's term, revoked.
async fn revoked(harness: &CaseHarness<'_>) -> (Client, ClientTerm, Client) {
    let (alice, operator) = (harness.client("alice").await, harness.client("operator").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    assert_eq!(operator.send(term.revocation()).await, Reply::Done, "any client may revoke a term");
    (alice, term, operator)
}

pub(super) async fn a_revoked_holder_is_told_so(harness: &CaseHarness<'_>) {
    let (alice, term, _) = revoked(harness).await;
    for request in [term.renewal(), term.publication("result", b"stale"), term.hand_over(&instance("heir"), LONG_TTL)] {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, Reply::Refused(Refusal::Revoked), "an operator ended the term: {}", shown(&request));
    }
    assert_eq!(alice.read(&job(), "result").await, None, "a revoked term publishes nothing");
}

pub(super) async fn a_revoked_lease_stays_held_until_its_holder_releases_it(harness: &CaseHarness<'_>) {
    let (alice, term, bob) = revoked(harness).await;
    let held = bob.expect_held(&job()).await;
    assert_eq!(held.holder, alice.id, "the holder's work may still be running");
    let report = bob.inspect(&job()).await;
    assert!(report.is_revoked(), "an inspection shows that the term was revoked: {report:?}");
    assert!(held.token > Some(term.token()), "the token on record is raised: {held:?}");
    assert_eq!(alice.send(term.release()).await, Reply::Done, "the holder releases when its work has ended");
    let next = bob.acquire(&job(), LONG_TTL).await;
    assert!(next.token() > term.token(), "the next term has a larger token");
}

pub(super) async fn a_revoked_lease_is_free_after_its_ttl(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    // On a slow machine the lease may expire before the revocation; then the case tries again.
    let term = loop {
        let term = alice.acquire(&job(), SHORT_TTL).await;
        let revoked = bob.send(term.revocation()).await == Reply::Done;
        harness.outlast(SHORT_TTL).await;
        if revoked {
            break term;
        }
    };
    let next = bob.acquire(&job(), LONG_TTL).await;
    assert!(next.token() > term.token(), "the next term has a larger token");
    let refused = alice.send(term.renewal()).await;
    assert!(matches!(refused, Reply::Refused(_)), "the revoked term is over: {refused:?}");
}

pub(super) async fn a_revoked_claim_does_not_go_on(harness: &CaseHarness<'_>) {
    let (alice, term, _) = revoked(harness).await;
    let again = alice.send(acquire(&term.claim)).await;
    assert!(matches!(again, Reply::Held(_)), "the term was ended; its claim is used up: {again:?}");
    let refused = alice.send(term.renewal()).await;
    assert_eq!(refused, Reply::Refused(Refusal::Revoked), "a repeated claim must not hide the revocation");
}

/// The process has ended the term and states so, as it may in any other case.
pub(super) async fn a_revoked_term_may_be_replaced_by_the_process_that_ended_it(harness: &CaseHarness<'_>) {
    let (alice, term, _) = revoked(harness).await;
    let claim = alice.claim(&job(), LONG_TTL);
    let reply = alice.send(acquire_after(&claim, term.token())).await;
    let Reply::Granted(grant) = reply else {
        panic!("a process may replace a term that it has ended, revoked or not; the store answered {reply:?}");
    };
    assert!(grant.token > term.token(), "the new term has a larger token");
}

/// A revocation whose reply was lost is sent again; the holder must still learn why and be able to release.
pub(super) async fn a_repeated_revocation_changes_nothing(harness: &CaseHarness<'_>) {
    let (alice, term, operator) = revoked(harness).await;
    let before = operator.inspect(&job()).await;
    let again = operator.send(term.revocation()).await;
    assert!(matches!(again, Reply::Done | Reply::Refused(Refusal::Revoked)), "it was carried out before: {again:?}");
    assert_eq!(operator.inspect(&job()).await.last, before.last, "there is nothing more to end");
    let refused = alice.send(term.renewal()).await;
    assert_eq!(refused, Reply::Refused(Refusal::Revoked), "the holder gets the same reply");
    assert_eq!(alice.send(term.release()).await, Reply::Done, "and may release");
}

/// Whatever token a store puts on record for a revoked term, it was not granted to any instance.
pub(super) async fn a_revoked_lease_cannot_be_used_under_any_token_on_record(harness: &CaseHarness<'_>) {
    let (alice, term, _) = revoked(harness).await;
    let report = alice.inspect(&job()).await;
    let shown_tokens = [report.held.and_then(|held| held.token), report.last.map(|last| last.token)];
    for token in shown_tokens.into_iter().flatten() {
        for request in [term.under(token).renewal(), term.under(token).publication("result", b"stale")] {
            let reply = alice.send(request.clone()).await;
            assert!(matches!(reply, Reply::Refused(_)), "{} must be refused, not {reply:?}", shown(&request));
        }
    }
}

pub(super) async fn a_late_revocation_does_not_end_the_next_term(harness: &CaseHarness<'_>) {
    let (alice, term, operator) = revoked(harness).await;
    alice.send(term.release()).await;
    let next = alice.acquire(&job(), LONG_TTL).await;
    let reply = operator.send(term.revocation()).await;
    assert!(matches!(reply, Reply::Refused(_)), "the term it names is over: {reply:?}");
    let renewed = alice.send(next.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the next term must continue: {renewed:?}");
}

pub(super) async fn a_free_lease_cannot_be_revoked(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let revoke = |token| LeaseRequest::Revoke { name: job(), token };
    assert_eq!(alice.send(revoke(Token::ZERO)).await, Reply::Refused(Refusal::Missing), "the lease was never held");
    let term = alice.acquire(&job(), LONG_TTL).await;
    alice.send(term.release()).await;
    assert_eq!(alice.send(revoke(term.token())).await, Reply::Refused(Refusal::Missing), "the lease is unheld again");
}
