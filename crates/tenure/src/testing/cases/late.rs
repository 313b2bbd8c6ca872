//! Requests that were given up on and arrive after all, over whatever connection: none may touch what came after.

use std::time::Duration;

use crate::store::{Refusal, Reply, Request};
use crate::testing::Disturbance;
use crate::testing::player::{Player, Term, acquire, acquire_after, granted, shown, take_over};
use crate::testing::trial::{Checked, LONG, SHORT, Trial, job};

/// Everything that a holder may have sent in a term, once with each way to end it.
fn leftovers(term: &Term, heir: &Player) -> Vec<Request> {
    let mut requests = term.privileged();
    requests.extend([
        acquire(&term.claim),
        acquire_after(&term.claim, term.token()),
        take_over(&term.claim, term.token(), Duration::ZERO),
        term.hand_over(&heir.id, LONG),
        term.abandon(),
        term.step_down(None),
    ]);
    requests
}

/// Sends everything that `old` may have left behind, and checks that the lease of `current` is as it was.
async fn nothing_touches(courier: &Player, old: &Term, current: &Term, holder: &Player) {
    holder.send(current.publication("result", b"current")).await;
    let before = courier.inspect(&job()).await;
    for request in leftovers(old, courier) {
        let reply = courier.send(request.clone()).await;
        assert!(
            matches!(reply, Reply::Refused(_) | Reply::Held(_) | Reply::TermOver | Reply::Done),
            "{} of a term that is over must not succeed; the store answered {reply:?}",
            shown(&request)
        );
        let after = courier.inspect(&job()).await;
        let held = after.held.as_ref().map(|held| (&held.by, held.token));
        assert_eq!(held, Some((&holder.id, Some(current.token()))), "the holder must stay after {}", shown(&request));
        assert_eq!(after.asked, before.asked, "nothing is asked of another term by {}", shown(&request));
        assert_eq!(after.since, before.since, "the term must be the same after {}", shown(&request));
        let value = courier.read_value(&job(), "result").await;
        assert_eq!(value.as_deref(), Some(&b"current"[..]), "the record must stay after {}", shown(&request));
    }
    let renewed = holder.send(current.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { asked: None, .. }), "the term must go on: {renewed:?}");
}

pub(super) async fn nothing_of_a_released_term_touches_the_next_holder(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let old = alice.wins(&job(), LONG).await;
    alice.send(old.release()).await;
    let current = bob.wins(&job(), LONG).await;
    let courier = trial.player("courier").await;
    nothing_touches(&courier, &old, &current, &bob).await;
}

pub(super) async fn nothing_of_an_expired_term_touches_the_next_holder(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let old = alice.wins(&job(), SHORT).await;
    trial.outlast(SHORT).await;
    let current = bob.wins(&job(), LONG).await;
    let courier = trial.player("courier").await;
    nothing_touches(&courier, &old, &current, &bob).await;
}

pub(super) async fn nothing_of_a_released_term_touches_the_next_one_of_the_same_holder(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let old = alice.wins(&job(), LONG).await;
    alice.send(old.release()).await;
    let current = alice.wins(&job(), LONG).await;
    let courier = trial.player("courier").await;
    nothing_touches(&courier, &old, &current, &alice).await;
}

pub(super) async fn nothing_of_a_handed_over_term_touches_the_receiver(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let old = alice.wins(&job(), LONG).await;
    alice.send(old.hand_over(&bob.id, LONG)).await;
    let current = bob.wins(&job(), LONG).await;
    let courier = trial.player("courier").await;
    nothing_touches(&courier, &old, &current, &bob).await;
}

pub(super) async fn nothing_of_a_deposed_term_touches_its_taker(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let old = alice.wins(&job(), LONG).await;
    alice.send(old.renewal()).await;
    let claim = bob.claim(&job(), LONG);
    let reply = bob.send(take_over(&claim, old.token(), Duration::ZERO)).await;
    let grant = granted(reply, "a holder may be deposed after no time at all");
    let courier = trial.player("courier").await;
    nothing_touches(&courier, &old, &Term { claim, grant }, &bob).await;
}

pub(super) async fn a_late_claim_of_a_released_term_does_not_revive_it(trial: &Trial<'_>) {
    let (alice, courier) = (trial.player("alice").await, trial.player("courier").await);
    let old = alice.wins(&job(), LONG).await;
    alice.send(old.release()).await;
    for request in [acquire(&old.claim), acquire_after(&old.claim, old.token())] {
        assert_eq!(courier.send(request).await, Reply::TermOver, "a released term is never revived");
    }
    assert_eq!(courier.inspect(&job()).await.held, None, "the lease must stay free");
}

pub(super) async fn a_late_take_over_does_not_revive_its_own_term(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let victim = alice.wins(&job(), LONG).await;
    alice.send(victim.renewal()).await;
    let claim = bob.claim(&job(), LONG);
    let request = take_over(&claim, victim.token(), Duration::ZERO);
    let reply = bob.send(request.clone()).await;
    let term = Term { claim, grant: granted(reply, "the victim must be deposed") };
    bob.send(term.release()).await;
    assert_eq!(alice.send(request).await, Reply::TermOver, "a take-over is good for one term");
    assert_eq!(alice.inspect(&job()).await.held, None, "the lease must stay free");
}

pub(super) async fn a_late_release_leaves_a_free_lease_free(trial: &Trial<'_>) {
    let (alice, courier) = (trial.player("alice").await, trial.player("courier").await);
    let old = alice.wins(&job(), SHORT).await;
    trial.outlast(SHORT).await;
    for request in old.privileged() {
        let reply = courier.send(request.clone()).await;
        assert_eq!(reply, Reply::Refused(Refusal::Missing), "the term ran out: {}", shown(&request));
    }
    assert_eq!(courier.inspect(&job()).await.held, None, "the lease must stay free");
    assert_eq!(courier.read(&job(), "result").await, None, "and nothing was published");
}

pub(super) async fn a_late_acceptance_does_not_revive_a_declined_offer(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let sent = alice.wins(&job(), LONG).await;
    alice.send(sent.hand_over(&bob.id, LONG)).await;
    let term = bob.wins(&job(), LONG).await;
    bob.send(term.release()).await;
    assert_eq!(alice.send(acquire(&term.claim)).await, Reply::TermOver, "the receiver has let go");
}

pub(super) async fn a_claim_of_an_older_generation_is_not_granted(trial: &Trial<'_>) -> Checked {
    let (alice, mut bob) = (trial.player("alice").await, trial.player("bob").await);
    trial.disturb(Disturbance::Flush).await?;
    bob.enters_again(trial).await;
    for _ in 0..2 {
        assert_eq!(alice.tries(&job()).await, Reply::NotEntered, "the data that alice entered is gone");
    }
    Ok(())
}
