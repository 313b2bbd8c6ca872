//! Attaching without a memory: checks whether the namespace is new or was lost.

use std::time::Duration;

use crate::store::{AttachRequest, Continuity, QuarantineReason, Reply};
use crate::testing::StoreFault;
use crate::testing::client::Client;
use crate::testing::harness::{CaseHarness, Checked, LONG_TTL, QUARANTINE_TTL, SHORT_TTL, instance, job};

/// An instance without a memory and without the operator's statements.
async fn newcomer(harness: &CaseHarness<'_>, max_ttl: Duration) -> Client {
    let connection = harness.attach(AttachRequest { max_ttl, ..AttachRequest::new(fastrand::u64(..)) }).await;
    Client::new(instance("newcomer"), connection)
}

pub(super) async fn a_newcomer_alone_on_an_old_server_starts_at_once(harness: &CaseHarness<'_>) -> Checked {
    harness.inject(StoreFault::AgeServer(QUARANTINE_TTL)).await?;
    let alice = newcomer(harness, QUARANTINE_TTL).await;
    let attached = alice.attached();
    assert!(attached.minted, "there was no record: {attached:?}");
    assert!(
        attached.new_quarantine_reason().is_none() && attached.quarantine_remaining().is_zero(),
        "no instance can hold a lease: {attached:?}"
    );
    alice.acquire(&job(), SHORT_TTL).await;
    Ok(())
}

pub(super) async fn bootstrap_opens_a_new_namespace_however_young_the_server(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let attached = alice.attached();
    assert!(attached.minted, "there was no record: {attached:?}");
    assert!(
        attached.new_quarantine_reason().is_none() && attached.quarantine_remaining().is_zero(),
        "the operator vouches for it: {attached:?}"
    );
    alice.acquire(&job(), LONG_TTL).await;
}

pub(super) async fn bootstrap_changes_nothing_about_a_namespace_that_exists(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    assert_eq!(bob.attached().generation, alice.attached().generation, "the record is there and stays");
    assert!(!bob.attached().minted, "and is not minted again");
    alice.acquire(&job(), LONG_TTL).await;
}

pub(super) async fn a_newcomer_begins_a_quarantine_when_others_are_subscribed(harness: &CaseHarness<'_>) -> Checked {
    harness.require_subscriber_count()?;
    harness.inject(StoreFault::AgeServer(QUARANTINE_TTL)).await?;
    let subscriber = harness.subscriber().await;
    let alice = newcomer(harness, QUARANTINE_TTL).await;
    let attached = alice.attached();
    assert_eq!(
        attached.new_quarantine_reason(),
        Some(QuarantineReason::OthersListening),
        "a subscriber may hold leases: {attached:?}"
    );
    assert_eq!(attached.quarantine_remaining(), QUARANTINE_TTL, "for the longest ttl");
    drop(subscriber);
    harness.outlast(QUARANTINE_TTL).await;
    alice.acquire(&job(), SHORT_TTL).await;
    Ok(())
}

pub(super) async fn bootstrap_does_not_skip_the_quarantine_for_subscribers(harness: &CaseHarness<'_>) -> Checked {
    harness.require_subscriber_count()?;
    let _subscriber = harness.subscriber().await;
    let alice = harness.client("alice").await;
    assert_eq!(
        alice.attached().new_quarantine_reason(),
        Some(QuarantineReason::OthersListening),
        "subscribers may hold leases"
    );
    Ok(())
}

pub(super) async fn a_newcomer_begins_a_quarantine_when_the_record_was_erased(harness: &CaseHarness<'_>) -> Checked {
    harness.require_served_marker()?;
    let alice = harness.client("alice").await;
    alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::AgeServer(QUARANTINE_TTL)).await?;
    // Alice is connected, but not subscribed.
    harness.inject(StoreFault::Flush).await?;
    let bob = harness.client_with_max_ttl("bob", QUARANTINE_TTL).await;
    let attached = bob.attached();
    assert_eq!(
        attached.new_quarantine_reason(),
        Some(QuarantineReason::RecordErased),
        "even with bootstrap: {attached:?}"
    );
    let reply = bob.try_acquire(&job()).await;
    assert!(matches!(reply, Reply::Quarantined(_)), "nothing may be granted yet: {reply:?}");
    harness.outlast(QUARANTINE_TTL).await;
    bob.acquire(&job(), SHORT_TTL).await;
    Ok(())
}

pub(super) async fn bootstrap_ends_the_quarantine_of_a_young_server(harness: &CaseHarness<'_>) -> Checked {
    harness.inject(StoreFault::RestartEmpty).await?;
    let first = newcomer(harness, LONG_TTL).await;
    assert_eq!(
        first.attached().new_quarantine_reason(),
        Some(QuarantineReason::ServerTooYoung),
        "{:?}",
        first.attached()
    );
    let second = harness.client("second").await;
    assert_eq!(
        second.attached().quarantine,
        None,
        "the operator vouches for the server's age: {:?}",
        second.attached()
    );
    second.acquire(&job(), LONG_TTL).await;
    Ok(())
}

pub(super) async fn subscribers_begin_no_quarantine_once_there_is_a_record(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let _subscriber = harness.subscriber().await;
    let bob = newcomer(harness, LONG_TTL).await;
    assert_eq!(
        bob.attached().new_quarantine_reason(),
        None,
        "a namespace with a record is not new: {:?}",
        bob.attached()
    );
    alice.acquire(&job(), LONG_TTL).await;
}

pub(super) async fn a_newcomer_begins_a_quarantine_on_a_young_server(harness: &CaseHarness<'_>) -> Checked {
    harness.inject(StoreFault::RestartEmpty).await?;
    let alice = newcomer(harness, LONG_TTL).await;
    let attached = alice.attached();
    assert!(attached.minted, "there was no record: {attached:?}");
    assert_eq!(
        attached.new_quarantine_reason(),
        Some(QuarantineReason::ServerTooYoung),
        "the namespace may have been lost: {attached:?}"
    );
    assert!(!attached.quarantine_remaining().is_zero() && attached.quarantine_remaining() <= LONG_TTL, "{attached:?}");
    let reply = alice.try_acquire(&job()).await;
    assert!(matches!(reply, Reply::Quarantined(_)), "nothing may be granted yet: {reply:?}");
    Ok(())
}

pub(super) async fn the_uptime_of_a_young_server_shortens_its_quarantine(harness: &CaseHarness<'_>) -> Checked {
    let age = Duration::from_secs(1);
    harness.inject(StoreFault::RestartEmpty).await?;
    harness.inject(StoreFault::AgeServer(age)).await?;
    let alice = newcomer(harness, LONG_TTL).await;
    let attached = alice.attached();
    assert_eq!(attached.new_quarantine_reason(), Some(QuarantineReason::ServerTooYoung), "{attached:?}");
    assert!(attached.quarantine_remaining() <= LONG_TTL - age, "the server's uptime counts: {attached:?}");
    Ok(())
}

pub(super) async fn the_quarantine_of_a_newcomer_ends(harness: &CaseHarness<'_>) -> Checked {
    harness.inject(StoreFault::RestartEmpty).await?;
    let alice = newcomer(harness, QUARANTINE_TTL).await;
    harness.outlast(QUARANTINE_TTL).await;
    alice.acquire(&job(), SHORT_TTL).await;
    Ok(())
}

pub(super) async fn a_newcomer_finds_what_others_have_written(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let bob = newcomer(harness, SHORT_TTL).await;
    let (first, second) = (alice.attached(), bob.attached());
    assert_eq!((second.generation, second.run), (first.generation, first.run), "the same data in the same run");
    assert!(
        !second.minted && second.new_quarantine_reason().is_none() && second.quarantine_remaining().is_zero(),
        "{second:?}"
    );
}

pub(super) async fn a_newcomers_generation_is_above_what_others_remember(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = harness.client("alice").await;
    let before = alice.attached().generation.number;
    harness.inject(StoreFault::Flush).await?;
    // Without a memory, generations can grow only by the store's clock.
    harness.advance_time(SHORT_TTL).await;
    let bob = harness.client("bob").await;
    assert!(
        bob.attached().minted && bob.attached().generation.number > before,
        "generations increase without a memory, too"
    );
    let continuity = alice.reattach(harness).await;
    assert_eq!(continuity, Continuity::Reset, "everything that alice held is lost");
    assert_eq!(alice.attached().generation, bob.attached().generation, "and the newcomer's generation stays");
    Ok(())
}
