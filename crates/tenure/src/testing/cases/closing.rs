//! How long a namespace is closed, and what a closed one still does.

use std::time::Duration;

use crate::store::{Entry, Reply};
use crate::testing::Disturbance;
use crate::testing::player::{Player, acquire, take_over};
use crate::testing::trial::{BRIEF, Checked, LONG, SHORT, Trial, Unsupported, instance, job, lease};

const HOUR: Duration = Duration::from_secs(3_600);

/// A namespace that was just closed by the loss of its record.
async fn closed(trial: &Trial<'_>, max_ttl: Duration) -> Result<Player, Unsupported> {
    let mut alice = trial.player_with("alice", max_ttl).await;
    trial.disturb(Disturbance::Flush).await?;
    alice.enters_again(trial).await;
    Ok(alice)
}

/// How long the store says that nothing is granted.
async fn remaining(player: &Player) -> Duration {
    match player.send(acquire(&player.claim(&job(), SHORT))).await {
        Reply::Quarantined { remaining } => remaining,
        Reply::Granted(_) => Duration::ZERO,
        other => panic!("a free lease is granted unless the namespace is closed; the store answered {other:?}"),
    }
}

pub(super) async fn a_closing_is_over_after_the_longest_ttl(trial: &Trial<'_>) -> Checked {
    let alice = closed(trial, BRIEF).await?;
    trial.outlast(BRIEF).await;
    alice.wins(&job(), SHORT).await;
    Ok(())
}

pub(super) async fn what_is_left_of_a_closing_only_shrinks(trial: &Trial<'_>) -> Checked {
    let alice = closed(trial, LONG).await?;
    let mut before = remaining(&alice).await;
    assert!(!before.is_zero(), "the namespace must be closed");
    for _ in 0..3 {
        trial.pass(SHORT).await;
        let now = remaining(&alice).await;
        assert!(now < before, "{now:?} left after {before:?}: asking must not make it longer");
        before = now;
    }
    Ok(())
}

pub(super) async fn entering_again_does_not_make_a_closing_longer(trial: &Trial<'_>) -> Checked {
    let mut alice = closed(trial, LONG).await?;
    let before = remaining(&alice).await;
    trial.pass(SHORT).await;
    alice.enters_again(trial).await;
    let entered = alice.entered();
    assert_eq!(entered.closing, None, "this entry found nothing new: {entered:?}");
    assert!(!entered.closed_for.is_zero() && entered.closed_for < before, "the closing goes on: {entered:?}");
    Ok(())
}

pub(super) async fn a_clock_set_back_does_not_make_a_closing_longer_than_the_longest_ttl(trial: &Trial<'_>) -> Checked {
    let alice = closed(trial, BRIEF).await?;
    trial.disturb(Disturbance::ClockBack(HOUR)).await?;
    assert!(remaining(&alice).await <= BRIEF, "a closing never lasts longer than the longest ttl");
    trial.outlast(BRIEF).await;
    alice.wins(&lease("another"), SHORT).await;
    Ok(())
}

pub(super) async fn entering_after_a_clock_was_set_back_finds_no_longer_closing(trial: &Trial<'_>) -> Checked {
    let mut alice = closed(trial, BRIEF).await?;
    trial.disturb(Disturbance::ClockBack(HOUR)).await?;
    alice.enters_again(trial).await;
    let closed_for = alice.entered().closed_for;
    assert!(closed_for <= BRIEF, "a closing never lasts longer than the longest ttl: {closed_for:?}");
    trial.outlast(BRIEF).await;
    alice.wins(&job(), SHORT).await;
    Ok(())
}

pub(super) async fn a_clock_set_back_closes_nothing_that_is_open(trial: &Trial<'_>) -> Checked {
    let alice = trial.player_with("alice", LONG).await;
    trial.disturb(Disturbance::ClockBack(HOUR)).await?;
    alice.wins(&job(), LONG).await;
    let bob = trial.player_with("bob", LONG).await;
    assert!(bob.entered().closed_for.is_zero(), "nothing was lost: {:?}", bob.entered());
    Ok(())
}

pub(super) async fn every_answer_about_a_lease_tells_the_longest_ttl(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player_with("alice", SHORT).await, trial.player_with("bob", SHORT).await);
    let term = alice.wins(&job(), LONG).await;
    assert_eq!(term.grant.max_ttl, LONG, "a claim for longer has raised it");
    assert_eq!(bob.finds_held(&job()).await.max_ttl, LONG, "whoever waits must learn how long a closing has to last");
    match alice.send(term.renewal_for(LONG * 2)).await {
        Reply::Renewed { max_ttl, .. } => assert_eq!(max_ttl, LONG * 2, "so must whoever holds"),
        other => panic!("the holder must be able to renew; the store answered {other:?}"),
    }
}

pub(super) async fn nothing_is_granted_in_a_closed_namespace(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Restart).await?;
    alice.enters_again(trial).await;
    let rival = trial.player("rival").await;
    let requests = [
        acquire(&rival.claim(&lease("free"), LONG)),
        acquire(&rival.claim(&job(), LONG)),
        take_over(&rival.claim(&job(), LONG), term.token(), Duration::ZERO),
        take_over(&rival.claim(&lease("free"), LONG), term.token(), Duration::ZERO),
    ];
    for request in requests {
        let reply = rival.send(request.clone()).await;
        assert!(matches!(reply, Reply::Quarantined { .. }), "{request:?} must wait; the store answered {reply:?}");
    }
    let renewed = alice.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "whoever still holds a lease goes on: {renewed:?}");
    Ok(())
}

pub(super) async fn a_missing_record_grants_nothing_until_somebody_enters(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Flush).await?;
    for request in [
        acquire(&alice.claim(&job(), LONG)),
        acquire(&term.claim),
        take_over(&alice.claim(&job(), LONG), term.token(), Duration::ZERO),
    ] {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, Reply::NotEntered, "a store without a record must be entered first: {request:?}");
    }
    assert_eq!(alice.inspect(&job()).await.held, None, "nothing was granted");
    Ok(())
}

pub(super) async fn a_generation_minted_by_another_must_be_entered_first(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    trial.disturb(Disturbance::Flush).await?;
    // The newcomer is told that the namespace is new, so that it is open and only the generation is in the way.
    trial.player("newcomer").await;
    assert_eq!(alice.tries(&job()).await, Reply::NotEntered, "the namespace is not the one that alice entered");
    alice.enters_again(trial).await;
    alice.wins(&job(), LONG).await;
    Ok(())
}

/// What the namespace's longest ttl is, for somebody who brings none.
async fn longest(trial: &Trial<'_>) -> Duration {
    trial.player_with("observer", Duration::ZERO).await.entered().max_ttl
}

pub(super) async fn a_longer_ttl_of_an_entry_raises_the_longest(trial: &Trial<'_>) {
    trial.player_with("alice", SHORT).await;
    trial.player_with("bob", LONG).await;
    assert_eq!(longest(trial).await, LONG, "the longest ttl is the longest that anybody uses");
    trial.player_with("carol", SHORT).await;
    assert_eq!(longest(trial).await, LONG, "and is not lowered");
}

pub(super) async fn a_longer_ttl_of_a_claim_raises_the_longest(trial: &Trial<'_>) {
    let alice = trial.player_with("alice", SHORT).await;
    alice.wins(&job(), LONG).await;
    assert_eq!(longest(trial).await, LONG, "a lease that long may be relied on after a loss");
}

pub(super) async fn a_longer_ttl_of_a_renewal_raises_the_longest(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    alice.send(term.renewal_for(LONG * 2)).await;
    assert_eq!(longest(trial).await, LONG * 2, "a lease that long may be relied on after a loss");
}

pub(super) async fn a_longer_ttl_for_an_offer_raises_the_longest(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let term = alice.wins(&job(), LONG).await;
    alice.send(term.hand_over(&bob.id, LONG)).await;
    bob.wins(&job(), LONG * 2).await;
    assert_eq!(longest(trial).await, LONG * 2, "a lease that long may be relied on after a loss");
}

/// Waiters may correct a lease that seems to last too long. A holder that was promised its ttl must not lose it so.
pub(super) async fn whoever_waits_does_not_shorten_a_lease(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let term = alice.wins(&job(), LONG).await;
    alice.send(term.renewal_for(LONG * 4)).await;
    bob.finds_held(&job()).await;
    // An observer with a longer ttl sees all that is left.
    let observer = trial.player_with("observer", LONG * 4).await;
    let left = observer.remaining(&job()).await;
    assert!(left > LONG * 2, "the holder was promised {:?}, and {left:?} are left", LONG * 4);
}

pub(super) async fn a_longer_ttl_brought_into_a_closed_namespace_makes_the_closing_longer(
    trial: &Trial<'_>,
) -> Checked {
    closed(trial, LONG).await?;
    let entry = Entry { max_ttl: LONG * 2, ..Entry::default() };
    let bob = Player::new(instance("bob"), trial.enter(entry).await);
    let closed_for = bob.entered().closed_for;
    assert!(closed_for > LONG && closed_for <= LONG * 2, "a longer lease may have been granted: {closed_for:?}");
    Ok(())
}

pub(super) async fn what_is_remembered_of_the_longest_ttl_survives_a_loss(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Flush).await?;
    alice.enters_again_as(trial, |entry| Entry { max_ttl: SHORT, ..entry }).await;
    let entered = alice.entered();
    assert!(entered.max_ttl >= term.claim.ttl, "alice remembers longer leases than it uses now: {entered:?}");
    assert!(entered.closed_for >= term.claim.ttl, "which may be relied on: {entered:?}");
    Ok(())
}
