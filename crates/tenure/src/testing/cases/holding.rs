//! Holding a lease: renewals, releases and publications, which only the current term may make.

use crate::InstanceId;
use crate::lease::{Ending, Loss, ReleaseReason};
use crate::store::{Ended, Refusal, Reply, Request};
use crate::testing::player::{Term, shown};
use crate::testing::trial::{LONG, SHORT, Trial, job, lease, token_above};
use crate::token::Token;

pub(super) async fn a_renewal_lets_the_term_go_on(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
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

pub(super) async fn a_renewal_starts_the_ttl_again(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    alice.checks_that_it_extends(trial, &job(), term.renewal()).await;
}

pub(super) async fn a_renewal_with_an_old_token_is_refused(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let old = alice.wins(&job(), LONG).await;
    alice.send(old.release()).await;
    let new = alice.wins(&job(), LONG).await;
    let taken = Reply::Refused(Refusal::Taken { by: alice.id.clone() });
    assert_eq!(alice.send(old.renewal()).await, taken, "the old token must not renew the new term");
    let renewed = alice.send(new.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the new term must have stayed: {renewed:?}");
}

/// Sends everything that only the current term may do, under a holding that is not the current one.
async fn is_refused(trial: &Trial<'_>, wrong: impl Fn(&Term) -> Term, why: &str) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let term = alice.wins(&job(), LONG).await;
    alice.send(term.publication("result", b"true")).await;
    let taken = Reply::Refused(Refusal::Taken { by: alice.id.clone() });
    for request in wrong(&term).privileged() {
        for player in [&alice, &bob] {
            let reply = player.send(request.clone()).await;
            assert_eq!(reply, taken, "{why}: {}", shown(&request));
        }
    }
    let renewed = alice.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "{why}: the term must have stayed, not {renewed:?}");
    let value = bob.read_value(&job(), "result").await;
    assert_eq!(value.as_deref(), Some(&b"true"[..]), "{why}: the record must have stayed");
}

pub(super) async fn the_right_token_under_another_holder_is_refused(trial: &Trial<'_>) {
    let bob = trial.player("bob").await;
    is_refused(trial, |term| term.claimed_by(&bob.id), "the holder is not the one").await;
}

pub(super) async fn the_right_holder_under_a_smaller_token_is_refused(trial: &Trial<'_>) {
    let smaller = |term: &Term| term.under(Token::new(term.token().get() - 1).unwrap_or_default());
    is_refused(trial, smaller, "the token is smaller").await;
}

pub(super) async fn the_right_holder_under_a_larger_token_is_refused(trial: &Trial<'_>) {
    is_refused(trial, |term| term.under(token_above(term.token(), 1)), "the token is larger").await;
}

pub(super) async fn the_right_holder_under_a_token_that_differs_in_the_last_digit_is_refused(trial: &Trial<'_>) {
    // Above 2^53 a double cannot tell neighbours apart, and a number that was formatted as one loses digits earlier.
    let alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    for by in [1, 2, 9, 10, 100] {
        let reply = alice.send(term.under(token_above(term.token(), by)).renewal()).await;
        assert!(matches!(reply, Reply::Refused(Refusal::Taken { .. })), "tokens are compared exactly: {reply:?}");
    }
}

pub(super) async fn a_lease_that_was_never_granted_cannot_be_used(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let elsewhere = alice.wins(&lease("elsewhere"), LONG).await;
    let mut invented = elsewhere.clone();
    invented.claim.name = job();
    for request in invented.privileged() {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, Reply::Refused(Refusal::StoreReset), "there is no trace of such a term: {}", shown(&request));
    }
    assert_eq!(alice.read(&job(), "result").await, None, "and nothing was published");
}

pub(super) async fn a_released_lease_is_free_at_once(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let term = alice.wins(&job(), LONG).await;
    assert_eq!(alice.send(term.release()).await, Reply::Done, "the holder may let go");
    let report = bob.inspect(&job()).await;
    assert_eq!(report.held, None, "nobody has the lease now");
    let last = report.last.map(|last| (last.token, last.holder, last.ended));
    assert_eq!(last, Some((term.token(), alice.id, Ended::Released)), "the last term stays on record");
    let next = bob.wins(&job(), LONG).await;
    assert!(next.token() > term.token(), "the next term has a larger token");
}

pub(super) async fn how_a_term_ended_is_on_record(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    for ending in [Ending::Released(ReleaseReason::Rebalance), Ending::Lost(Loss::Stalled)] {
        let term = alice.wins(&job(), LONG).await;
        assert_eq!(alice.inspect(&job()).await.ending, None, "a term that goes on has not ended");
        alice.send(Request::Release { holding: term.holding(), ending: ending.clone() }).await;
        assert_eq!(alice.inspect(&job()).await.ending, Some(ending), "its holder said so");
    }
}

pub(super) async fn a_release_may_be_repeated(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    for _ in 0..3 {
        assert_eq!(alice.send(term.release()).await, Reply::Done, "a release whose reply was lost is sent again");
    }
}

pub(super) async fn a_released_term_can_do_nothing_more(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    alice.send(term.publication("result", b"true")).await;
    alice.send(term.release()).await;
    for request in term.privileged() {
        let reply = alice.send(request.clone()).await;
        if matches!(request, Request::Release { .. }) {
            assert_eq!(reply, Reply::Done, "this very release was already made");
        } else {
            assert_eq!(reply, Reply::Refused(Refusal::Missing), "the lease is free: {}", shown(&request));
        }
    }
    let value = alice.read_value(&job(), "result").await;
    assert_eq!(value.as_deref(), Some(&b"true"[..]), "what was published before stays");
}

pub(super) async fn a_publication_can_be_read_by_anybody(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    assert_eq!(bob.read(&job(), "result").await, None, "nothing was published yet");
    let term = alice.wins(&job(), LONG).await;
    assert_eq!(alice.send(term.publication("result", b"one")).await, Reply::Done, "the holder may publish");
    let first = bob.read(&job(), "result").await;
    let Some(first) = first else { panic!("what was published must be readable") };
    assert_eq!((first.token, first.value.as_slice()), (term.token(), &b"one"[..]), "with the term it was published in");
    assert!(first.at >= term.grant.server, "and when, by the store's clock: {first:?}");

    alice.send(term.publication("result", b"two")).await;
    let second = bob.read_value(&job(), "result").await;
    assert_eq!(second.as_deref(), Some(&b"two"[..]), "a later publication replaces an earlier one");
    assert_eq!(bob.read(&job(), "other").await, None, "and touches no other record");
    assert_eq!(bob.read(&lease("other"), "result").await, None, "nor that of another lease");
}

pub(super) async fn a_publication_outlives_its_term(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let term = alice.wins(&job(), LONG).await;
    alice.send(term.publication("result", b"kept")).await;
    alice.send(term.release()).await;
    let next = bob.wins(&job(), LONG).await;
    let kept = bob.read(&job(), "result").await.map(|record| (record.token, record.value));
    assert_eq!(kept, Some((term.token(), b"kept".to_vec())), "results are there for whoever comes next");
    bob.send(next.publication("result", b"newer")).await;
    let newer = bob.read(&job(), "result").await.map(|record| (record.token, record.value));
    assert_eq!(newer, Some((next.token(), b"newer".to_vec())), "who may replace them");
}

pub(super) async fn who_has_a_lease_is_told_in_a_word(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let other = lease("other");
    let kept = alice.wins(&other, LONG).await;
    let ask = || bob.send(Request::Holders { names: vec![job(), other.clone(), job()] });
    let answer =
        |holder: Option<&InstanceId>| Reply::Holders(vec![holder.cloned(), Some(alice.id.clone()), holder.cloned()]);
    assert_eq!(ask().await, answer(None), "nobody yet");
    let term = alice.wins(&job(), LONG).await;
    assert_eq!(ask().await, answer(Some(&alice.id)));
    alice.send(term.hand_over(&bob.id, LONG)).await;
    assert_eq!(ask().await, answer(Some(&bob.id)), "whom it is kept for");
    let term = bob.wins(&job(), LONG).await;
    bob.send(term.release()).await;
    assert_eq!(ask().await, answer(None), "let go of");
    alice.wins(&job(), SHORT).await;
    trial.outlast(SHORT).await;
    assert_eq!(ask().await, answer(None), "run out");
    alice.send(kept.release()).await;
}
