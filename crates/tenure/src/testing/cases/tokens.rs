//! Tokens only ever increase.

use std::time::Duration;

use crate::store::{Continuity, LeaseRequest, Reply};
use crate::testing::StoreFault;
use crate::testing::client::{Client, ClientTerm, acquire, granted, take_over};
use crate::testing::harness::{CaseHarness, Checked, LONG_TTL, QUARANTINE_TTL, SHORT_TTL, job, lease, token_above};
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

pub(super) async fn tokens_grow_with_every_way_a_term_can_end(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    let mut growing = Growing::from(term.token());

    alice.send(term.release()).await;
    let term = bob.acquire(&job(), SHORT_TTL).await;
    growing.then(term.token(), "a release");

    harness.outlast(SHORT_TTL).await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    growing.then(term.token(), "an expiry");

    alice.send(term.abandon()).await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    growing.then(term.token(), "an abandoned claim");

    match alice.send(term.hand_over(&bob.id, LONG_TTL)).await {
        Reply::HandedOver { token } => growing.then(token, "a hand-over"),
        other => panic!("the holder must be able to hand over; the store answered {other:?}"),
    }
    let term = bob.acquire(&job(), LONG_TTL).await;

    bob.send(term.renewal()).await;
    let claim = alice.claim(&job(), LONG_TTL);
    let reply = alice.send(take_over(&claim, term.token(), Duration::ZERO)).await;
    let term = ClientTerm { claim, grant: granted(reply, "a term may be taken over after no time at all") };
    growing.then(term.token(), "a take-over");

    alice.send(term.revocation()).await;
    alice.send(term.release()).await;
    growing.then(bob.acquire(&job(), LONG_TTL).await.token(), "a revocation");
}

pub(super) async fn tokens_grow_with_every_term_even_within_a_microsecond(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let mut growing = Growing::from(Token::ZERO);
    for _ in 0..100 {
        let term = alice.acquire(&job(), LONG_TTL).await;
        growing.then(term.token(), "a release");
        alice.send(term.release()).await;
    }
}

pub(super) async fn a_token_is_at_least_the_stores_clock(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    let micros = term.grant.server.as_micros();
    // So that tokens keep increasing when the store has lost its counters and no instance remembers them.
    assert!(term.token().get() >= micros, "the token {} must be at least {micros} µs", term.token());
}

pub(super) async fn a_clients_high_water_raises_the_floor_for_every_instance(harness: &CaseHarness<'_>) {
    let (mut alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&lease("elsewhere"), LONG_TTL).await;
    let seen = token_above(term.token(), 1_000_000_000_000);
    alice.raise_floor(harness, seen).await;
    assert!(alice.attached().token_floor >= seen, "the floor must cover the tokens that a client has seen");
    let next = bob.acquire(&job(), LONG_TTL).await;
    assert!(next.token() > seen, "every later token, of any lease and holder, must be above {seen}");
    let carol = harness.client("carol").await;
    assert!(carol.attached().token_floor >= seen, "the floor is kept in the store");
}

pub(super) async fn a_handed_over_lease_has_a_token_above_the_floor(harness: &CaseHarness<'_>) {
    let (alice, mut bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    let seen = token_above(term.token(), 1_000_000_000_000);
    bob.raise_floor(harness, seen).await;
    match alice.send(term.hand_over(&bob.id, LONG_TTL)).await {
        Reply::HandedOver { token } => assert!(token > seen, "every later token must be above {seen}: {token}"),
        other => panic!("the holder must be able to hand over; the store answered {other:?}"),
    }
}

pub(super) async fn the_floor_is_never_lowered(harness: &CaseHarness<'_>) {
    let (mut alice, mut bob) = (harness.client("alice").await, harness.client("bob").await);
    let seen = token_above(alice.acquire(&job(), LONG_TTL).await.token(), 1_000_000_000_000);
    alice.raise_floor(harness, seen).await;
    bob.reattach(harness).await;
    assert!(bob.attached().token_floor >= seen, "a client that has seen less must not lower the floor");
}

/// A lease whose record a foreign program has corrupted: its next token is this far from the largest.
async fn corrupt_lease_token(harness: &CaseHarness<'_>, client: &Client, left: u64) -> Checked {
    let term = client.acquire(&job(), LONG_TTL).await;
    client.send(term.release()).await;
    let token = Token::new(Token::MAX.get() - left - 1).unwrap_or_default();
    harness.inject(StoreFault::CorruptToken { name: job(), token }).await
}

/// Near the end doubles still represent every integer; a number formatted with fewer digits does not.
pub(super) async fn large_tokens_are_exact_to_the_last_one(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client("alice").await;
    let left = 3;
    corrupt_lease_token(harness, &alice, left).await?;
    for n in (0..=left).rev() {
        let term = alice.acquire(&job(), LONG_TTL).await;
        assert_eq!(term.token().get(), Token::MAX.get() - n, "each token is one above the last");
        let renewed = alice.send(term.renewal()).await;
        assert!(matches!(renewed, Reply::Renewed { .. }), "and can be used: {renewed:?}");
        alice.send(term.release()).await;
    }
    assert_eq!(alice.try_acquire(&job()).await, Reply::TokensExhausted, "after the last token there is none");
    assert_eq!(alice.inspect(&job()).await.held, None, "and nothing is granted without one");
    Ok(())
}

pub(super) async fn without_a_larger_token_nothing_is_handed_over(harness: &CaseHarness<'_>) -> Checked {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    corrupt_lease_token(harness, &alice, 0).await?;
    let term = alice.acquire(&job(), LONG_TTL).await;
    let reply = alice.send(term.hand_over(&bob.id, LONG_TTL)).await;
    assert_eq!(reply, Reply::TokensExhausted, "a hand-over needs a token of its own");
    let renewed = alice.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the holder keeps the lease: {renewed:?}");
    Ok(())
}

/// Tokens are the store's microseconds or little more, whatever a corrupt record contains.
fn assert_ordinary_token(term: &ClientTerm) {
    let (token, clock) = (term.token().get(), term.grant.server.as_micros());
    assert!(token < clock + 1_000_000, "a corrupt record must not raise the token {token} at {clock} µs");
}

pub(super) async fn a_corrupt_token_blocks_only_its_own_lease(harness: &CaseHarness<'_>) -> Checked {
    let (mut alice, mut bob) = (harness.client("alice").await, harness.client("bob").await);
    corrupt_lease_token(harness, &alice, 2).await?;
    // The clients learn the token in every possible way: by a grant, a hand-over, a refused claim and an inspection.
    let term = alice.acquire(&job(), LONG_TTL).await;
    bob.expect_held(&job()).await;
    bob.inspect(&job()).await;
    alice.send(term.hand_over(&bob.id, LONG_TTL)).await;
    bob.acquire(&job(), LONG_TTL).await;
    assert_eq!(alice.reattach(harness).await, Continuity::Same, "nothing was lost");
    assert_eq!(bob.reattach(harness).await, Continuity::Same, "nothing was lost");
    for (client, name) in [(&alice, "first"), (&bob, "second")] {
        assert_eq!(client.attached().quarantine, None, "a corrupt token is not a sign of a loss");
        assert_ordinary_token(&client.acquire(&lease(name), LONG_TTL).await);
    }
    Ok(())
}

pub(super) async fn forgetting_a_corrupt_token_keeps_the_floor(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client("alice").await;
    corrupt_lease_token(harness, &alice, 0).await?;
    let (name, logs) = (job(), Vec::new());
    let reply = alice.send(LeaseRequest::Forget { name, logs, idle_for: Duration::ZERO, document: None }).await;
    assert_eq!(reply, Reply::Done, "an unheld lease can be forgotten");
    assert_ordinary_token(&alice.acquire(&job(), LONG_TTL).await);
    Ok(())
}

/// Waits out the quarantine after a loss, and acquires the lease again.
async fn acquire_after_quarantine(harness: &CaseHarness<'_>, client: &Client) -> ClientTerm {
    harness.outlast(QUARANTINE_TTL).await;
    let claim = client.claim(&job(), SHORT_TTL);
    ClientTerm { grant: granted(client.send(acquire(&claim)).await, "the quarantine must be over"), claim }
}

pub(super) async fn tokens_grow_across_a_flush(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = harness.client_with_max_ttl("alice", QUARANTINE_TTL).await;
    let before = alice.acquire(&job(), SHORT_TTL).await;
    alice.memory().learn_token(before.token());
    harness.inject(StoreFault::Flush).await?;
    alice.reattach(harness).await;
    let after = acquire_after_quarantine(harness, &alice).await;
    Growing::from(before.token()).then(after.token(), "a flush");
    Ok(())
}

pub(super) async fn tokens_grow_across_a_flush_that_no_instance_remembers(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client_with_max_ttl("alice", QUARANTINE_TTL).await;
    let before = alice.acquire(&job(), SHORT_TTL).await;
    harness.inject(StoreFault::Flush).await?;
    let newcomer = harness.client_with_max_ttl("newcomer", QUARANTINE_TTL).await;
    let after = acquire_after_quarantine(harness, &newcomer).await;
    Growing::from(before.token()).then(after.token(), "a flush, for a client without memory");
    Ok(())
}

pub(super) async fn tokens_grow_across_a_flush_with_the_clock_set_back(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = harness.client_with_max_ttl("alice", QUARANTINE_TTL).await;
    let before = alice.acquire(&job(), SHORT_TTL).await;
    alice.memory().learn_token(before.token());
    harness.inject(StoreFault::StepClockBack(HOUR)).await?;
    harness.inject(StoreFault::Flush).await?;
    alice.reattach(harness).await;
    let after = acquire_after_quarantine(harness, &alice).await;
    Growing::from(before.token()).then(after.token(), "a flush that only the client remembers");
    Ok(())
}

pub(super) async fn tokens_grow_when_the_clock_is_set_back(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client_with_max_ttl("alice", QUARANTINE_TTL).await;
    let before = alice.acquire(&job(), SHORT_TTL).await;
    alice.send(before.release()).await;
    harness.inject(StoreFault::StepClockBack(HOUR)).await?;
    // The store may begin a short quarantine; it ends in time.
    let _ = alice.send(acquire(&alice.claim(&lease("elsewhere"), SHORT_TTL))).await;
    let after = acquire_after_quarantine(harness, &alice).await;
    Growing::from(before.token()).then(after.token(), "a clock that was set back");
    Ok(())
}

pub(super) async fn tokens_grow_across_a_restart_with_older_data(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = harness.client_with_max_ttl("alice", QUARANTINE_TTL).await;
    let first = alice.acquire(&job(), SHORT_TTL).await;
    alice.send(first.release()).await;
    harness.inject(StoreFault::TakeSnapshot).await?;
    let second = alice.acquire(&job(), SHORT_TTL).await;
    // Far ahead of the clock, so that only the floor can have kept it.
    let seen = token_above(second.token(), 1_000_000_000_000);
    alice.memory().learn_token(seen);
    harness.inject(StoreFault::RestartFromSnapshot).await?;
    alice.reattach(harness).await;
    let after = acquire_after_quarantine(harness, &alice).await;
    Growing::from(seen).then(after.token(), "a restart with data in which that token was never granted");
    Ok(())
}
