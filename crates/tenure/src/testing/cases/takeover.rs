//! Taking a lease from a holder that renews and makes no progress.

use std::time::Duration;

use crate::store::{Ended, Grant, PreviousTerm, Refusal, Reply};
use crate::testing::player::{Player, Term, acquire, granted, shown, take_over};
use crate::testing::trial::{LONG, SHORT, Trial, job};

/// Deposes the holder of `victim`, who must be idle enough.
async fn deposes(player: &Player, victim: &Term, ttl: Duration) -> Term {
    let claim = player.claim(&job(), ttl);
    player.send(victim.renewal()).await;
    let reply = player.send(take_over(&claim, victim.token(), Duration::ZERO)).await;
    Term { claim, grant: granted(reply, "an idle holder may be deposed") }
}

/// Checks that a grant sends its receiver to wait for a holder that may rely on its lease for about this long.
#[track_caller]
fn waits_for(grant: &Grant, ttl: Duration) {
    let wait = grant.wait_out;
    assert!(
        wait > ttl / 2 && wait <= ttl,
        "the deposed holder may go on for about {ttl:?}, to be waited out: {wait:?}"
    );
}

pub(super) async fn a_holder_without_progress_is_taken_over(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let old = alice.wins(&job(), LONG).await;
    trial.outlast(SHORT).await;
    alice.send(old.renewal()).await;
    let claim = bob.claim(&job(), LONG);
    let reply = bob.send(take_over(&claim, old.token(), SHORT)).await;
    let term = Term { claim, grant: granted(reply, "a holder that was idle for long enough may be deposed") };
    assert!(term.token() > old.token(), "the taker's term has a larger token");
    waits_for(&term.grant, LONG);
    let previous = PreviousTerm { token: old.token(), holder: alice.id.clone(), ended: Ended::TakenOver };
    assert_eq!(term.grant.previous, Some(previous), "the taker learns from whom");
    let renewed = bob.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the taker holds the lease: {renewed:?}");
}

pub(super) async fn a_deposed_holder_is_told_that_it_stalled(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let old = alice.wins(&job(), LONG).await;
    let new = deposes(&bob, &old, LONG).await;
    for request in old.privileged() {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, Reply::Refused(Refusal::Stalled), "the term was taken: {}", shown(&request));
    }
    assert_eq!(alice.read(&job(), "result").await, None, "a deposed holder publishes nothing");
    let renewed = bob.send(new.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the taker's term must have stayed: {renewed:?}");
}

pub(super) async fn a_repeated_take_over_is_the_same_term_with_what_is_left_to_wait(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let old = alice.wins(&job(), LONG).await;
    alice.send(old.renewal()).await;
    let claim = bob.claim(&job(), LONG);
    let request = take_over(&claim, old.token(), Duration::ZERO);
    let first = granted(bob.send(request.clone()).await, "an idle holder may be deposed");
    trial.pass(SHORT).await;
    for request in [request, acquire(&claim)] {
        let again = granted(bob.send(request).await, "a repeated claim must be granted again");
        assert_eq!(again.token, first.token, "and be the same term");
        assert_eq!(again.previous, first.previous, "with the same one before it");
        assert!(!again.wait_out.is_zero(), "the deposed holder is still to be waited for: {again:?}");
        assert!(again.wait_out <= first.wait_out - SHORT / 2, "by what is left of it: {again:?} after {first:?}");
    }
}

/// Whether a machine is fast enough is not asked: if the lease is taken, the store's own clock must excuse it.
pub(super) async fn a_holder_that_made_progress_is_not_taken_over(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let term = alice.wins(&job(), LONG).await;
    let patience = Duration::from_secs(1);
    trial.outlast(patience).await;
    let Reply::Renewed { server: progressed, .. } = alice.send(term.progress()).await else {
        panic!("the holder must be able to renew");
    };
    match bob.send(take_over(&bob.claim(&job(), LONG), term.token(), patience)).await {
        Reply::Held(held) => assert_eq!(held.by, alice.id, "whoever makes progress keeps the lease"),
        Reply::Granted(grant) => {
            let idle = grant.server.since(progressed);
            assert!(idle >= patience, "deposed after {idle:?}, although {patience:?} without progress are allowed");
        }
        other => panic!("a lease is held or taken; the store answered {other:?}"),
    }
}

pub(super) async fn a_renewal_alone_is_not_progress(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let term = alice.wins(&job(), LONG).await;
    trial.outlast(SHORT).await;
    alice.send(term.renewal()).await;
    let idle = bob.finds_held(&job()).await.idle.unwrap_or_default();
    assert!(idle >= SHORT, "the holder has been idle since it began, not for {idle:?}");
    let reply = bob.send(take_over(&bob.claim(&job(), LONG), term.token(), SHORT)).await;
    granted(reply, "a holder that only renews makes no progress");
}

pub(super) async fn whoever_has_not_renewed_yet_is_not_taken_over(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let term = alice.wins(&job(), LONG).await;
    let tries = || take_over(&bob.claim(&job(), LONG), term.token(), Duration::ZERO);
    trial.outlast(SHORT).await;
    let reply = bob.send(tries()).await;
    assert!(matches!(&reply, Reply::Held(held) if held.by == alice.id), "nobody knows yet whether it works: {reply:?}");
    // The same after progress that was reported.
    alice.send(term.renewal()).await;
    alice.send(term.progress()).await;
    let reply = bob.send(tries()).await;
    assert!(matches!(&reply, Reply::Held(held) if held.by == alice.id), "it has said that it works: {reply:?}");
    alice.send(term.renewal()).await;
    granted(bob.send(tries()).await, "renewed without progress, it may be deposed");
}

pub(super) async fn a_new_holder_is_not_deposed_for_its_predecessor(trial: &Trial<'_>) {
    let (alice, bob, carol) = (trial.player("alice").await, trial.player("bob").await, trial.player("carol").await);
    let old = alice.wins(&job(), LONG).await;
    trial.outlast(SHORT).await;
    alice.send(old.release()).await;
    let new = carol.wins(&job(), LONG).await;
    let reply = bob.send(take_over(&bob.claim(&job(), LONG), old.token(), Duration::ZERO)).await;
    assert!(matches!(&reply, Reply::Held(held) if held.by == carol.id), "another term is not the victim: {reply:?}");
    let reply = bob.send(take_over(&bob.claim(&job(), LONG), new.token(), LONG)).await;
    assert!(matches!(&reply, Reply::Held(held) if held.by == carol.id), "whoever just began is not idle: {reply:?}");
    let renewed = carol.send(new.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the new term must have stayed: {renewed:?}");
}

pub(super) async fn a_taker_that_has_to_wait_is_not_deposed_for_it(trial: &Trial<'_>) {
    let (alice, bob, carol) = (trial.player("alice").await, trial.player("bob").await, trial.player("carol").await);
    let old = alice.wins(&job(), LONG).await;
    let waiting = deposes(&bob, &old, LONG).await;
    trial.outlast(SHORT).await;
    let reply = carol.send(take_over(&carol.claim(&job(), LONG), waiting.token(), SHORT)).await;
    assert!(matches!(&reply, Reply::Held(held) if held.by == bob.id), "whoever has to wait cannot work yet: {reply:?}");
}

pub(super) async fn a_take_over_of_a_free_lease_is_an_ordinary_grant(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let old = alice.wins(&job(), LONG).await;
    alice.send(old.release()).await;
    let reply = bob.send(take_over(&bob.claim(&job(), LONG), old.token(), LONG)).await;
    let grant = granted(reply, "a free lease is granted");
    assert_eq!(grant.wait_out, Duration::ZERO, "there is nobody to wait for");
    assert!(grant.token > old.token(), "the next term has a larger token");
}

/// The deposed holder may go on until its own deadline, whatever becomes of the taker.
pub(super) async fn the_wait_for_a_deposed_holder_outlives_a_taker_that_releases(trial: &Trial<'_>) {
    let (alice, bob, carol) = (trial.player("alice").await, trial.player("bob").await, trial.player("carol").await);
    let old = alice.wins(&job(), LONG).await;
    let taker = deposes(&bob, &old, LONG).await;
    bob.send(taker.release()).await;
    waits_for(&carol.wins(&job(), LONG).await.grant, LONG);
}

pub(super) async fn the_wait_for_a_deposed_holder_outlives_a_taker_that_runs_out(trial: &Trial<'_>) {
    let (alice, bob, carol) = (trial.player("alice").await, trial.player("bob").await, trial.player("carol").await);
    let old = alice.wins(&job(), LONG).await;
    deposes(&bob, &old, SHORT).await;
    trial.outlast(SHORT).await;
    waits_for(&carol.wins(&job(), LONG).await.grant, LONG);
}

pub(super) async fn the_wait_for_a_deposed_holder_outlives_a_taker_that_hands_over(trial: &Trial<'_>) {
    let (alice, bob, carol) = (trial.player("alice").await, trial.player("bob").await, trial.player("carol").await);
    let old = alice.wins(&job(), LONG).await;
    let taker = deposes(&bob, &old, LONG).await;
    bob.send(taker.hand_over(&carol.id, LONG)).await;
    waits_for(&carol.wins(&job(), LONG).await.grant, LONG);
}

pub(super) async fn the_wait_for_a_deposed_holder_outlives_a_taker_that_is_deposed(trial: &Trial<'_>) {
    let (alice, bob, carol) = (trial.player("alice").await, trial.player("bob").await, trial.player("carol").await);
    let old = alice.wins(&job(), LONG).await;
    // The taker's own lease is much shorter than what is left of the one it took.
    let taker = deposes(&bob, &old, Duration::from_secs(5)).await;
    waits_for(&deposes(&carol, &taker, LONG).await.grant, LONG);
}
