//! Acquiring a lease.

use std::time::Duration;

use crate::store::{PreviousTerm, RecordedEnd, Refusal, Reply};
use crate::testing::client::{abandon, acquire, acquire_after, granted};
use crate::testing::harness::{CaseHarness, LONG_TTL, SHORT_TTL, instance, job, lease};
use crate::token::Token;

pub(super) async fn a_free_lease_is_granted(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    assert_eq!(term.grant.wait_out, Duration::ZERO, "there is no earlier holder to wait for");
    assert_eq!(term.grant.previous, None, "there was no term before");
    assert!(term.token() > Token::ZERO, "every token is above zero");

    let report = alice.inspect(&job()).await;
    let held = report.held.as_ref();
    assert_eq!(held.map(|held| &held.holder), Some(&alice.id), "an inspection must name the holder: {report:?}");
    assert_eq!(held.and_then(|held| held.token), Some(term.token()), "and its term");
    let remaining = held.and_then(|held| held.remaining).unwrap_or_default();
    assert!(remaining > Duration::ZERO && remaining <= LONG_TTL, "and the time left of {LONG_TTL:?}: {remaining:?}");
    assert_eq!(report.since, Some(term.grant.server), "a term begins when it is granted");
}

pub(super) async fn a_lease_that_was_never_claimed_is_unknown(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let report = alice.inspect(&job()).await;
    assert_eq!(report, Default::default(), "nothing is known of a lease that was never claimed");
}

pub(super) async fn a_refusal_names_the_holder_the_term_and_the_remaining_time(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    let held = bob.expect_held(&job()).await;
    assert_eq!(held.holder, alice.id, "a refused claimant must learn who holds the lease");
    assert_eq!(held.token, Some(term.token()), "and in which term");
    assert!(held.remaining.is_some_and(|left| left > Duration::ZERO && left <= LONG_TTL), "and for how long: {held:?}");
    assert!(held.idle.is_some(), "and how long its work has made no progress: {held:?}");
}

pub(super) async fn a_refused_claim_changes_nothing(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    for _ in 0..3 {
        bob.expect_held(&job()).await;
    }
    let renewed = alice.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "a refused claim must not change the term: {renewed:?}");
}

pub(super) async fn a_claim_repeated_with_the_same_nonce_is_the_same_term(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    for _ in 0..3 {
        let again = granted(alice.send(acquire(&term.claim)).await, "a repeated claim must be granted again");
        assert_eq!(again.token, term.token(), "a repeated claim is the same term, so it has the same token");
        assert_eq!(again.previous, term.grant.previous, "and the same term before it");
    }
}

pub(super) async fn a_repeated_claim_starts_the_ttl_again(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    alice.assert_extends(harness, &job(), acquire(&term.claim)).await;
}

pub(super) async fn another_nonce_of_the_same_instance_is_refused(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    let held = alice.expect_held(&job()).await;
    assert_eq!(held.holder, alice.id, "two claims of one instance compete like those of two instances");
    assert_eq!(held.token, Some(term.token()), "and the first one keeps its term");
}

pub(super) async fn a_claim_whose_term_was_released_is_told_that_it_is_over(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    alice.send(term.release()).await;
    let again = alice.send(acquire(&term.claim)).await;
    assert_eq!(again, Reply::TermOver, "a claim is good for one term; another one needs a new nonce");
    let next = alice.acquire(&job(), LONG_TTL).await;
    assert!(next.token() > term.token(), "a new claim is a new term with a larger token");
}

pub(super) async fn a_claim_whose_term_expired_is_told_that_it_is_over(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), SHORT_TTL).await;
    harness.outlast(SHORT_TTL).await;
    assert_eq!(alice.send(acquire(&term.claim)).await, Reply::TermOver, "an expired term is never revived");
}

pub(super) async fn naming_an_ended_term_replaces_it_with_a_new_one(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let ended = alice.acquire(&job(), LONG_TTL).await;
    let claim = alice.claim(&job(), LONG_TTL);
    let grant = granted(
        alice.send(acquire_after(&claim, ended.token())).await,
        "a process may replace a term that it has ended and that is still listed",
    );
    assert!(grant.token > ended.token(), "the new term has a new token");
    let previous = PreviousTerm { token: ended.token(), holder: alice.id.clone(), ended: RecordedEnd::Released };
    assert_eq!(grant.previous, Some(previous), "the old term counts as released: its process has ended it");

    let taken = Reply::Refused(Refusal::Taken { holder: alice.id.clone() });
    assert_eq!(alice.send(ended.renewal()).await, taken, "the old term is over");
    let again = granted(
        alice.send(acquire_after(&claim, ended.token())).await,
        "the claim may be repeated although the term it names is gone",
    );
    assert_eq!(again.token, grant.token, "a repeated claim is the same term");
}

pub(super) async fn naming_a_term_that_is_not_the_listed_one_replaces_nothing(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let first = alice.acquire(&job(), LONG_TTL).await;
    alice.send(first.release()).await;
    let second = alice.acquire(&job(), LONG_TTL).await;
    let late = alice.send(acquire_after(&alice.claim(&job(), LONG_TTL), first.token())).await;
    assert!(matches!(late, Reply::Held(_)), "an earlier term cannot be replaced: {late:?}");
    let theft = bob.send(acquire_after(&bob.claim(&job(), LONG_TTL), second.token())).await;
    assert!(matches!(theft, Reply::Held(_)), "an instance cannot replace another's term: {theft:?}");
    let renewed = alice.send(second.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the listed term must have stayed: {renewed:?}");
}

pub(super) async fn a_grant_names_the_term_before_and_how_it_ended(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let released = alice.acquire(&job(), LONG_TTL).await;
    alice.send(released.release()).await;
    let silent = bob.acquire(&job(), SHORT_TTL).await;
    let previous = |token, holder: &str, ended| Some(PreviousTerm { token, holder: instance(holder), ended });
    let expected = previous(released.token(), "alice", RecordedEnd::Released);
    assert_eq!(silent.grant.previous, expected, "the term before was released");

    harness.outlast(SHORT_TTL).await;
    let last = alice.acquire(&job(), LONG_TTL).await;
    let expected = previous(silent.token(), "bob", RecordedEnd::Unreported);
    assert_eq!(last.grant.previous, expected, "no end of the term before was reported");
}

pub(super) async fn an_abandoned_claim_is_cleaned_up(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let unwanted = alice.acquire(&job(), LONG_TTL).await;
    for _ in 0..2 {
        assert_eq!(alice.send(unwanted.abandon()).await, Reply::Done, "cleaning up always succeeds");
    }
    let term = bob.acquire(&job(), LONG_TTL).await;
    assert!(term.token() > unwanted.token(), "the abandoned term has used up its token");
    let late = alice.send(acquire(&unwanted.claim)).await;
    assert!(matches!(&late, Reply::Held(held) if held.holder == bob.id), "and the claim is used up: {late:?}");
}

pub(super) async fn abandoning_a_claim_that_has_no_term_changes_nothing(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let free = alice.send(abandon(&alice.claim(&job(), LONG_TTL))).await;
    assert_eq!(free, Reply::Done, "a claim that never arrived may be abandoned");

    let term = alice.acquire(&job(), LONG_TTL).await;
    for claim in [alice.claim(&job(), LONG_TTL), bob.claim(&job(), LONG_TTL), term.claimed_by(&bob.id).claim] {
        let reply = bob.send(abandon(&claim)).await;
        assert_eq!(reply, Reply::Done, "abandoning {claim:?}");
    }
    let renewed = alice.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "only the claim itself may be cleaned up: {renewed:?}");
}

pub(super) async fn leases_do_not_touch_each_other(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let names: Vec<_> = (0..10).map(|n| lease(&format!("job-{n}"))).collect();
    let mut terms = Vec::new();
    for (n, name) in names.iter().enumerate() {
        terms.push(if n % 2 == 0 { alice.acquire(name, LONG_TTL).await } else { bob.acquire(name, LONG_TTL).await });
    }
    alice.send(terms[0].release()).await;
    bob.send(terms[1].release()).await;
    for (n, term) in terms.iter().enumerate().skip(2) {
        let held = alice.inspect(&names[n]).await.held;
        assert_eq!(held.and_then(|held| held.token), Some(term.token()), "{} must still be held", names[n]);
    }
}
