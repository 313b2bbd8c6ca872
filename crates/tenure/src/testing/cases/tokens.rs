//! Tokens only ever grow.

use std::time::Duration;

use crate::store::{Continuity, Reply, Request};
use crate::testing::Disturbance;
use crate::testing::player::{Player, Term, acquire, granted, take_over};
use crate::testing::trial::{BRIEF, Checked, LONG, SHORT, Trial, job, lease, token_above};
use crate::token::Token;

const HOUR: Duration = Duration::from_secs(3_600);

/// Checks that every token is above the one before.
struct Growing {
    last: Token,
}

impl Growing {
    fn from(token: Token) -> Self {
        Self { last: token }
    }

    #[track_caller]
    fn then(&mut self, token: Token, after: &str) {
        assert!(token > self.last, "the token after {after} must be larger: {token} came after {}", self.last);
        self.last = token;
    }
}

pub(super) async fn tokens_grow_with_every_way_a_term_can_end(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let term = alice.wins(&job(), LONG).await;
    let mut growing = Growing::from(term.token());

    alice.send(term.release()).await;
    let term = bob.wins(&job(), SHORT).await;
    growing.then(term.token(), "a release");

    trial.outlast(SHORT).await;
    let term = alice.wins(&job(), LONG).await;
    growing.then(term.token(), "an expiry");

    alice.send(term.abandon()).await;
    let term = alice.wins(&job(), LONG).await;
    growing.then(term.token(), "an abandoned claim");

    match alice.send(term.hand_over(&bob.id, LONG)).await {
        Reply::HandedOver { token } => growing.then(token, "a hand-over"),
        other => panic!("the holder must be able to hand over; the store answered {other:?}"),
    }
    let term = bob.wins(&job(), LONG).await;

    bob.send(term.renewal()).await;
    let claim = alice.claim(&job(), LONG);
    let reply = alice.send(take_over(&claim, term.token(), Duration::ZERO)).await;
    let term = Term { claim, grant: granted(reply, "a holder may be deposed after no time at all") };
    growing.then(term.token(), "a take-over");

    alice.send(term.revocation()).await;
    alice.send(term.release()).await;
    growing.then(bob.wins(&job(), LONG).await.token(), "a revocation");
}

pub(super) async fn tokens_grow_with_every_term_even_within_a_microsecond(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let mut growing = Growing::from(Token::ZERO);
    for _ in 0..100 {
        let term = alice.wins(&job(), LONG).await;
        growing.then(term.token(), "a release");
        alice.send(term.release()).await;
    }
}

pub(super) async fn a_token_is_at_least_the_stores_clock(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    let micros = term.grant.server.as_micros();
    // So that tokens go on growing when the store has lost its counters and nobody remembers them.
    assert!(term.token().get() >= micros, "the token {} must be at least {micros} µs", term.token());
}

pub(super) async fn a_clients_high_water_raises_the_floor_for_everybody(trial: &Trial<'_>) {
    let (mut alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let term = alice.wins(&lease("elsewhere"), LONG).await;
    let seen = token_above(term.token(), 1_000_000_000_000);
    alice.brings_along(trial, seen).await;
    assert!(alice.entered().token_floor >= seen, "what a client has seen must be merged into the floor");
    let next = bob.wins(&job(), LONG).await;
    assert!(next.token() > seen, "every later token, of any lease and holder, must be above {seen}");
    let carol = trial.player("carol").await;
    assert!(carol.entered().token_floor >= seen, "the floor is kept in the store");
}

pub(super) async fn a_handed_over_lease_has_a_token_above_the_floor(trial: &Trial<'_>) {
    let (alice, mut bob) = (trial.player("alice").await, trial.player("bob").await);
    let term = alice.wins(&job(), LONG).await;
    let seen = token_above(term.token(), 1_000_000_000_000);
    bob.brings_along(trial, seen).await;
    match alice.send(term.hand_over(&bob.id, LONG)).await {
        Reply::HandedOver { token } => assert!(token > seen, "every later token must be above {seen}: {token}"),
        other => panic!("the holder must be able to hand over; the store answered {other:?}"),
    }
}

pub(super) async fn the_floor_is_never_lowered(trial: &Trial<'_>) {
    let (mut alice, mut bob) = (trial.player("alice").await, trial.player("bob").await);
    let seen = token_above(alice.wins(&job(), LONG).await.token(), 1_000_000_000_000);
    alice.brings_along(trial, seen).await;
    bob.enters_again(trial).await;
    assert!(bob.entered().token_floor >= seen, "a client that has seen less must not lower the floor");
}

/// A lease whose record an outsider has spoilt: its next token is this far from the largest.
async fn spoilt(trial: &Trial<'_>, player: &Player, left: u64) -> Checked {
    let term = player.wins(&job(), LONG).await;
    player.send(term.release()).await;
    let token = Token::new(Token::MAX.get() - left - 1).unwrap_or_default();
    trial.disturb(Disturbance::SpoilToken { name: job(), token }).await
}

/// Near the end doubles still hold every integer; what is formatted with fewer digits does not.
pub(super) async fn large_tokens_are_exact_to_the_last_one(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    let left = 3;
    spoilt(trial, &alice, left).await?;
    for n in (0..=left).rev() {
        let term = alice.wins(&job(), LONG).await;
        assert_eq!(term.token().get(), Token::MAX.get() - n, "each token is one above the last");
        let renewed = alice.send(term.renewal()).await;
        assert!(matches!(renewed, Reply::Renewed { .. }), "and can be used: {renewed:?}");
        alice.send(term.release()).await;
    }
    assert_eq!(alice.tries(&job()).await, Reply::TokensExhausted, "after the last token there is none");
    assert_eq!(alice.inspect(&job()).await.held, None, "and nothing is granted without one");
    Ok(())
}

pub(super) async fn without_a_larger_token_nothing_is_handed_over(trial: &Trial<'_>) -> Checked {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    spoilt(trial, &alice, 0).await?;
    let term = alice.wins(&job(), LONG).await;
    let reply = alice.send(term.hand_over(&bob.id, LONG)).await;
    assert_eq!(reply, Reply::TokensExhausted, "a hand-over needs a token of its own");
    let renewed = alice.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the holder keeps the lease: {renewed:?}");
    Ok(())
}

/// Tokens are the store's microseconds or little more, whatever stands in somebody's record.
fn is_ordinary(term: &Term) {
    let (token, clock) = (term.token().get(), term.grant.server.as_micros());
    assert!(token < clock + 1_000_000, "a spoilt record must not raise the token {token} at {clock} µs");
}

pub(super) async fn a_spoilt_token_blocks_its_own_lease_alone(trial: &Trial<'_>) -> Checked {
    let (mut alice, mut bob) = (trial.player("alice").await, trial.player("bob").await);
    spoilt(trial, &alice, 2).await?;
    // Whatever can be learned from it is learned: by a grant, a hand-over, those who wait and those who look.
    let term = alice.wins(&job(), LONG).await;
    bob.finds_held(&job()).await;
    bob.inspect(&job()).await;
    alice.send(term.hand_over(&bob.id, LONG)).await;
    bob.wins(&job(), LONG).await;
    assert_eq!(alice.enters_again(trial).await, Continuity::Same, "nothing was lost");
    assert_eq!(bob.enters_again(trial).await, Continuity::Same, "nothing was lost");
    for (player, name) in [(&alice, "first"), (&bob, "second")] {
        assert_eq!(player.entered().quarantine, None, "a spoilt token is no sign of a loss");
        is_ordinary(&player.wins(&lease(name), LONG).await);
    }
    Ok(())
}

pub(super) async fn forgetting_a_spoilt_token_leaves_the_floor_where_it_was(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    spoilt(trial, &alice, 0).await?;
    let (name, logs, session) = (job(), Vec::new(), "no-such-session".to_owned());
    let reply = alice.send(Request::Forget { name, logs, idle_for: Duration::ZERO, session }).await;
    assert_eq!(reply, Reply::Done, "a lease that is free can be forgotten");
    is_ordinary(&alice.wins(&job(), LONG).await);
    Ok(())
}

/// Waits out the closing that follows a loss, and wins the lease again.
async fn wins_after_closing(trial: &Trial<'_>, player: &Player) -> Term {
    trial.outlast(BRIEF).await;
    let claim = player.claim(&job(), SHORT);
    Term { grant: granted(player.send(acquire(&claim)).await, "the namespace must have opened again"), claim }
}

pub(super) async fn tokens_grow_across_a_flush(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player_with("alice", BRIEF).await;
    let before = alice.wins(&job(), SHORT).await;
    alice.memory().saw(before.token());
    trial.disturb(Disturbance::Flush).await?;
    alice.enters_again(trial).await;
    let after = wins_after_closing(trial, &alice).await;
    Growing::from(before.token()).then(after.token(), "a flush");
    Ok(())
}

pub(super) async fn tokens_grow_across_a_flush_that_nobody_remembers(trial: &Trial<'_>) -> Checked {
    let alice = trial.player_with("alice", BRIEF).await;
    let before = alice.wins(&job(), SHORT).await;
    trial.disturb(Disturbance::Flush).await?;
    let newcomer = trial.player_with("newcomer", BRIEF).await;
    let after = wins_after_closing(trial, &newcomer).await;
    Growing::from(before.token()).then(after.token(), "a flush, for a client without memory");
    Ok(())
}

pub(super) async fn tokens_grow_across_a_flush_with_the_clock_set_back(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player_with("alice", BRIEF).await;
    let before = alice.wins(&job(), SHORT).await;
    alice.memory().saw(before.token());
    trial.disturb(Disturbance::ClockBack(HOUR)).await?;
    trial.disturb(Disturbance::Flush).await?;
    alice.enters_again(trial).await;
    let after = wins_after_closing(trial, &alice).await;
    Growing::from(before.token()).then(after.token(), "a flush that only the client remembers");
    Ok(())
}

pub(super) async fn tokens_grow_when_the_clock_is_set_back(trial: &Trial<'_>) -> Checked {
    let alice = trial.player_with("alice", BRIEF).await;
    let before = alice.wins(&job(), SHORT).await;
    alice.send(before.release()).await;
    trial.disturb(Disturbance::ClockBack(HOUR)).await?;
    // Whether the namespace closes for a moment is up to the store; it opens again in time.
    let _ = alice.send(acquire(&alice.claim(&lease("elsewhere"), SHORT))).await;
    let after = wins_after_closing(trial, &alice).await;
    Growing::from(before.token()).then(after.token(), "a clock that was set back");
    Ok(())
}

pub(super) async fn tokens_grow_across_a_restart_with_older_data(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player_with("alice", BRIEF).await;
    let first = alice.wins(&job(), SHORT).await;
    alice.send(first.release()).await;
    trial.disturb(Disturbance::Remember).await?;
    let second = alice.wins(&job(), SHORT).await;
    // Far ahead of the clock, so that only the floor can have kept it.
    let seen = token_above(second.token(), 1_000_000_000_000);
    alice.memory().saw(seen);
    trial.disturb(Disturbance::RestartRestored).await?;
    alice.enters_again(trial).await;
    let after = wins_after_closing(trial, &alice).await;
    Growing::from(seen).then(after.token(), "a restart with data in which that token was never granted");
    Ok(())
}
