//! Foreign programs that write and delete leases with their own tools.

use std::time::Duration;

use crate::name::{InstanceId, LeaseName};
use crate::store::{LeaseRequest, Refusal, Reply};
use crate::testing::StoreFault;
use crate::testing::client::{acquire, shown, take_over};
use crate::testing::harness::{CaseHarness, Checked, LONG_TTL, SHORT_TTL, job, lease};
use crate::token::Token;

const HOUR: Duration = Duration::from_secs(3_600);

fn foreign_write(name: &LeaseName, holder: &str, ttl: Option<Duration>) -> StoreFault {
    StoreFault::WriteForeignLease { name: name.clone(), holder: holder.to_owned(), ttl }
}

fn foreign_delete(name: &LeaseName) -> StoreFault {
    StoreFault::DeleteLease { name: name.clone() }
}

pub(super) async fn a_foreign_lease_is_respected(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client("alice").await;
    harness.inject(foreign_write(&job(), "stranger", Some(LONG_TTL))).await?;
    let held = alice.expect_held(&job()).await;
    assert_eq!(held.holder, InstanceId::foreign("stranger"), "the writer of the lease holds it");
    assert_eq!(held.token, None, "a foreign program has no token");
    assert!(held.remaining.is_some_and(|left| left <= LONG_TTL), "its ttl is known: {held:?}");
    Ok(())
}

pub(super) async fn a_foreign_lease_ends_with_its_ttl(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client("alice").await;
    harness.inject(foreign_write(&job(), "stranger", Some(SHORT_TTL))).await?;
    harness.outlast(SHORT_TTL).await;
    alice.acquire(&job(), LONG_TTL).await;
    Ok(())
}

pub(super) async fn a_foreign_lease_without_a_ttl_is_reported_as_stuck(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client("alice").await;
    harness.inject(foreign_write(&job(), "stranger", None)).await?;
    harness.outlast(SHORT_TTL).await;
    let held = alice.expect_held(&job()).await;
    assert_eq!(held.remaining, None, "without a ttl a lease is held for ever");
    harness.inject(foreign_delete(&job())).await?;
    alice.acquire(&job(), LONG_TTL).await;
    Ok(())
}

pub(super) async fn the_remaining_time_of_a_foreign_lease_is_its_own_ttl(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client("alice").await;
    harness.inject(foreign_write(&job(), "stranger", Some(HOUR))).await?;
    let held = alice.expect_held(&job()).await;
    assert!(held.remaining.is_some_and(|left| left > LONG_TTL && left <= HOUR), "it may be relied on: {held:?}");
    Ok(())
}

pub(super) async fn any_foreign_holder_name_can_be_shown(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client("alice").await;
    for text in ["a b\n{c}", "", "\u{1b}[31m", "päusen", "{\"json\": true}"] {
        harness.inject(foreign_write(&job(), text, Some(LONG_TTL))).await?;
        let held = alice.expect_held(&job()).await;
        assert_eq!(held.holder, InstanceId::foreign(text), "the holder {text:?} must be shown safely");
    }
    Ok(())
}

pub(super) async fn a_foreign_lease_is_not_taken_over(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    harness.inject(foreign_write(&job(), "stranger", Some(LONG_TTL))).await?;
    let reply = alice.send(take_over(&alice.claim(&job(), LONG_TTL), term.token(), Duration::ZERO)).await;
    assert!(matches!(reply, Reply::Held(_)), "a foreign program reports no progress to judge it by: {reply:?}");
    Ok(())
}

pub(super) async fn a_foreign_lease_cannot_be_revoked(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client("alice").await;
    harness.inject(foreign_write(&job(), "stranger", Some(LONG_TTL))).await?;
    let reply = alice.send(LeaseRequest::Revoke { name: job(), token: Token::ZERO }).await;
    let taken = Reply::Refused(Refusal::Taken { holder: InstanceId::foreign("stranger") });
    assert_eq!(reply, taken, "there is no term to end");
    Ok(())
}

pub(super) async fn a_term_whose_lease_was_deleted_is_missing(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    harness.inject(foreign_delete(&job())).await?;
    for request in term.fenced_requests() {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, Reply::Refused(Refusal::Missing), "a foreign program deleted the lease: {}", shown(&request));
    }
    assert_eq!(alice.read(&job(), "result").await, None, "nothing was published");
    Ok(())
}

pub(super) async fn a_deleted_lease_is_granted_with_a_larger_token(harness: &CaseHarness<'_>) -> Checked {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let old = alice.acquire(&job(), LONG_TTL).await;
    harness.inject(foreign_delete(&job())).await?;
    let new = bob.acquire(&job(), LONG_TTL).await;
    assert!(new.token() > old.token(), "the record of the last term outlives its lease");
    let taken = Reply::Refused(Refusal::Taken { holder: bob.id.clone() });
    assert_eq!(alice.send(old.renewal()).await, taken, "the old holder learns who holds the lease");
    Ok(())
}

pub(super) async fn a_term_whose_lease_was_overwritten_is_taken(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    harness.inject(foreign_write(&job(), "stranger", Some(LONG_TTL))).await?;
    let taken = Reply::Refused(Refusal::Taken { holder: InstanceId::foreign("stranger") });
    for request in term.fenced_requests() {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, taken, "a foreign program holds the lease: {}", shown(&request));
    }
    assert_eq!(alice.send(term.abandon()).await, Reply::Done);
    let held = alice.inspect(&job()).await.held.map(|held| held.holder);
    assert_eq!(held, Some(InstanceId::foreign("stranger")), "no request of ours may remove a foreign lease");
    Ok(())
}

pub(super) async fn a_lease_in_our_name_without_a_term_is_not_ours(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client("alice").await;
    let elsewhere = alice.acquire(&lease("elsewhere"), LONG_TTL).await;
    harness.inject(foreign_write(&job(), "alice", Some(LONG_TTL))).await?;
    let mut invented = elsewhere.clone();
    invented.claim.name = job();
    for request in invented.fenced_requests() {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, Reply::Refused(Refusal::StoreReset), "no term is on record: {}", shown(&request));
    }
    let reply = alice.try_acquire(&job()).await;
    assert!(matches!(reply, Reply::Held(_)), "the holder's name alone proves nothing: {reply:?}");
    Ok(())
}

/// A token is for one term. A foreign program that writes the holder's name back must not revive an ended term.
pub(super) async fn a_released_term_is_not_revived_by_its_name_in_the_lease(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    alice.send(term.release()).await;
    harness.inject(foreign_write(&job(), "alice", Some(LONG_TTL))).await?;
    let renewed = alice.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Refused(_)), "the term was released and is over: {renewed:?}");
    let again = alice.send(acquire(&term.claim)).await;
    assert!(!matches!(again, Reply::Granted(_)), "and so is its claim: {again:?}");
    Ok(())
}
