//! The length of a quarantine, and what a namespace in quarantine still does.

use std::time::Duration;

use crate::store::{Announcement, AttachRequest, LeaseRequest, Quarantine, QuarantineReason, Reply};
use crate::testing::StoreFault;
use crate::testing::client::{Client, ClientTerm, acquire, granted, take_over};
use crate::testing::harness::{
    CaseHarness, Checked, LONG_TTL, QUARANTINE_TTL, SHORT_TTL, Unsupported, instance, job, lease,
};

const HOUR: Duration = Duration::from_secs(3_600);

/// A namespace in a quarantine that the loss of its record has just begun. Before, a lease of this ttl was held.
async fn quarantined(harness: &CaseHarness<'_>, ttl: Duration) -> Result<Client, Unsupported> {
    let mut alice = harness.client("alice").await;
    alice.acquire(&job(), ttl).await;
    harness.inject(StoreFault::Flush).await?;
    alice.reattach(harness).await;
    Ok(alice)
}

/// How long nothing is granted, as the store reports.
async fn remaining(client: &Client) -> Duration {
    match client.send(acquire(&client.claim(&job(), SHORT_TTL))).await {
        Reply::Quarantined(Quarantine { remaining, .. }) => remaining,
        Reply::Granted(_) => Duration::ZERO,
        other => panic!("an unheld lease is granted except in quarantine; the store answered {other:?}"),
    }
}

pub(super) async fn a_quarantine_ends_after_the_longest_ttl(harness: &CaseHarness<'_>) -> Checked {
    let alice = quarantined(harness, QUARANTINE_TTL).await?;
    harness.outlast(QUARANTINE_TTL).await;
    alice.acquire(&job(), SHORT_TTL).await;
    Ok(())
}

pub(super) async fn the_remaining_time_of_a_quarantine_only_shrinks(harness: &CaseHarness<'_>) -> Checked {
    let alice = quarantined(harness, LONG_TTL).await?;
    let mut before = remaining(&alice).await;
    assert!(!before.is_zero(), "the namespace must be in quarantine");
    for _ in 0..3 {
        harness.advance_time(SHORT_TTL).await;
        let now = remaining(&alice).await;
        assert!(now < before, "{now:?} left after {before:?}: a claim must not extend it");
        before = now;
    }
    Ok(())
}

pub(super) async fn reattaching_does_not_extend_a_quarantine(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = quarantined(harness, LONG_TTL).await?;
    let before = remaining(&alice).await;
    harness.advance_time(SHORT_TTL).await;
    alice.reattach(harness).await;
    let attached = alice.attached();
    assert_eq!(attached.new_quarantine_reason(), None, "this attach found nothing new: {attached:?}");
    assert!(
        !attached.quarantine_remaining().is_zero() && attached.quarantine_remaining() < before,
        "the quarantine continues: {attached:?}"
    );
    Ok(())
}

pub(super) async fn a_clock_set_back_does_not_extend_a_quarantine_beyond_the_longest_ttl(
    harness: &CaseHarness<'_>,
) -> Checked {
    let alice = quarantined(harness, QUARANTINE_TTL).await?;
    harness.inject(StoreFault::StepClockBack(HOUR)).await?;
    assert!(remaining(&alice).await <= QUARANTINE_TTL, "a quarantine never lasts longer than the longest ttl");
    harness.outlast(QUARANTINE_TTL).await;
    alice.acquire(&lease("another"), SHORT_TTL).await;
    Ok(())
}

pub(super) async fn attaching_after_a_clock_was_set_back_does_not_extend_a_quarantine(
    harness: &CaseHarness<'_>,
) -> Checked {
    let mut alice = quarantined(harness, QUARANTINE_TTL).await?;
    harness.inject(StoreFault::StepClockBack(HOUR)).await?;
    alice.reattach(harness).await;
    let remaining = alice.attached().quarantine_remaining();
    assert!(remaining <= QUARANTINE_TTL, "a quarantine never lasts longer than the longest ttl: {remaining:?}");
    harness.outlast(QUARANTINE_TTL).await;
    alice.acquire(&job(), SHORT_TTL).await;
    Ok(())
}

pub(super) async fn a_clock_set_back_begins_no_quarantine(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client_with_max_ttl("alice", LONG_TTL).await;
    harness.inject(StoreFault::StepClockBack(HOUR)).await?;
    alice.acquire(&job(), LONG_TTL).await;
    let bob = harness.client_with_max_ttl("bob", LONG_TTL).await;
    assert!(bob.attached().quarantine_remaining().is_zero(), "nothing was lost: {:?}", bob.attached());
    Ok(())
}

pub(super) async fn every_reply_about_a_lease_carries_the_longest_ttl(harness: &CaseHarness<'_>) {
    let (alice, bob) =
        (harness.client_with_max_ttl("alice", SHORT_TTL).await, harness.client_with_max_ttl("bob", SHORT_TTL).await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    assert_eq!(term.grant.max_ttl, LONG_TTL, "a claim for longer has raised it");
    assert_eq!(
        bob.expect_held(&job()).await.max_ttl,
        LONG_TTL,
        "a waiter must learn how long a quarantine has to last"
    );
    match alice.send(term.renewal_for(LONG_TTL * 2)).await {
        Reply::Renewed { max_ttl, .. } => assert_eq!(max_ttl, LONG_TTL * 2, "so must the holder"),
        other => panic!("the holder must be able to renew; the store answered {other:?}"),
    }
}

pub(super) async fn nothing_is_granted_during_a_quarantine(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::Restart).await?;
    alice.reattach(harness).await;
    let rival = harness.client("rival").await;
    let requests = [
        acquire(&rival.claim(&lease("free"), LONG_TTL)),
        acquire(&rival.claim(&job(), LONG_TTL)),
        take_over(&rival.claim(&job(), LONG_TTL), term.token(), Duration::ZERO),
        take_over(&rival.claim(&lease("free"), LONG_TTL), term.token(), Duration::ZERO),
    ];
    for request in requests {
        let reply = rival.send(request.clone()).await;
        assert!(matches!(reply, Reply::Quarantined(_)), "{request:?} must be refused; the store answered {reply:?}");
    }
    let renewed = alice.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "a surviving holder continues: {renewed:?}");
    Ok(())
}

pub(super) async fn a_missing_record_grants_nothing_until_an_instance_attaches(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::Flush).await?;
    for request in [
        acquire(&alice.claim(&job(), LONG_TTL)),
        acquire(&term.claim),
        take_over(&alice.claim(&job(), LONG_TTL), term.token(), Duration::ZERO),
    ] {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, Reply::NotAttached, "a client must attach to a store without a record first: {request:?}");
    }
    assert_eq!(alice.inspect(&job()).await.held, None, "nothing was granted");
    Ok(())
}

pub(super) async fn a_generation_minted_by_another_requires_a_reattach(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = harness.client("alice").await;
    harness.inject(StoreFault::Flush).await?;
    harness.client("newcomer").await;
    assert_eq!(
        alice.try_acquire(&job()).await,
        Reply::NotAttached,
        "the namespace is not the one that alice attached to"
    );
    alice.reattach(harness).await;
    let reply = alice.try_acquire(&job()).await;
    assert!(matches!(reply, Reply::Granted(_) | Reply::Quarantined(_)), "from then on it is: {reply:?}");
    Ok(())
}

pub(super) async fn attaching_does_not_raise_the_longest_ttl(harness: &CaseHarness<'_>) {
    let alice = harness.client_with_max_ttl("alice", LONG_TTL).await;
    assert_eq!(alice.longest_ttl().await, Duration::ZERO, "only leases can be relied on");
    alice.acquire(&job(), SHORT_TTL).await;
    let bob = harness.client_with_max_ttl("bob", LONG_TTL).await;
    assert_eq!(bob.longest_ttl().await, SHORT_TTL, "whatever ttl an attaching instance uses");
}

pub(super) async fn a_longer_ttl_of_a_claim_raises_the_longest(harness: &CaseHarness<'_>) {
    let alice = harness.client_with_max_ttl("alice", SHORT_TTL).await;
    alice.acquire(&job(), LONG_TTL).await;
    assert_eq!(alice.longest_ttl().await, LONG_TTL, "a lease that long may be relied on after a loss");
}

pub(super) async fn a_longer_ttl_of_a_renewal_raises_the_longest(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    alice.send(term.renewal_for(LONG_TTL * 2)).await;
    assert_eq!(alice.longest_ttl().await, LONG_TTL * 2, "a lease that long may be relied on after a loss");
}

pub(super) async fn a_longer_ttl_for_an_offer_raises_the_longest(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    alice.send(term.hand_over(&bob.id, LONG_TTL)).await;
    bob.acquire(&job(), LONG_TTL * 2).await;
    assert_eq!(bob.longest_ttl().await, LONG_TTL * 2, "a lease that long may be relied on after a loss");
}

pub(super) async fn another_longest_ttl_is_announced(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let mut subscriber = harness.subscriber().await;
    alice.acquire(&lease("short"), LONG_TTL).await;
    let term = alice.acquire(&job(), LONG_TTL * 2).await;
    alice.acquire(&lease("another"), LONG_TTL * 2).await;
    alice.send(term.renewal_for(LONG_TTL * 3)).await;
    alice.send(term.release()).await;
    let mut announced = Vec::new();
    while announced.len() < 4 {
        if let Announcement::LongestTtl { ttl, .. } = subscriber.next_announcement_or_ttl().await {
            announced.push(ttl);
        }
    }
    assert_eq!(
        announced,
        [LONG_TTL, LONG_TTL * 2, LONG_TTL * 3, LONG_TTL * 2],
        "instances that remember it must learn of it"
    );
}

pub(super) async fn a_released_lease_is_no_longer_relied_on(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = harness.client("alice").await;
    let kept = alice.acquire(&lease("kept"), LONG_TTL).await;
    let long = alice.acquire(&job(), LONG_TTL * 100).await;
    let as_long = alice.acquire(&lease("another"), LONG_TTL * 100).await;
    alice.send(long.release()).await;
    assert_eq!(alice.longest_ttl().await, LONG_TTL * 100, "another one is still held");
    alice.send(as_long.release()).await;
    assert_eq!(alice.longest_ttl().await, LONG_TTL, "none of those is held");
    alice.send(kept.renewal()).await;
    harness.inject(StoreFault::Flush).await?;
    alice.reattach(harness).await;
    assert_eq!(
        alice.attached().quarantine_remaining(),
        LONG_TTL,
        "a quarantine waits for leases that can be relied on"
    );
    Ok(())
}

pub(super) async fn a_released_lease_does_not_extend_the_quarantine_after_a_restart(
    harness: &CaseHarness<'_>,
) -> Checked {
    let alice = harness.client("alice").await;
    alice.acquire(&lease("kept"), LONG_TTL).await;
    let long = alice.acquire(&job(), LONG_TTL * 100).await;
    alice.send(long.release()).await;
    harness.inject(StoreFault::Restart).await?;
    let newcomer = harness.client_with_max_ttl("newcomer", SHORT_TTL).await;
    assert_eq!(newcomer.attached().quarantine_remaining(), LONG_TTL, "the record has the ttls that can be relied on");
    Ok(())
}

pub(super) async fn a_lease_that_was_handed_over_is_no_longer_relied_on_by_its_sender(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL * 100).await;
    alice.send(term.hand_over(&bob.id, LONG_TTL)).await;
    assert_eq!(bob.longest_ttl().await, Duration::ZERO, "nor by its receiver before it accepts");
    let taken = bob.acquire(&job(), LONG_TTL).await;
    assert_eq!(bob.longest_ttl().await, LONG_TTL, "from then on it is");
    bob.send(taken.release()).await;
    assert_eq!(bob.longest_ttl().await, Duration::ZERO, "and was counted once");
}

pub(super) async fn a_claim_repeated_counts_once(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    for _ in 0..3 {
        granted(alice.send(acquire(&term.claim)).await, "a claim that was granted is granted again");
    }
    alice.send(term.release()).await;
    alice.send(term.release()).await;
    assert_eq!(alice.longest_ttl().await, Duration::ZERO, "it is no longer held");
}

pub(super) async fn a_term_replaced_by_its_own_process_counts_once(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let first = alice.acquire(&job(), LONG_TTL).await;
    let claim = alice.claim(&job(), LONG_TTL);
    let ended = Some(first.token());
    let grant =
        granted(alice.send(LeaseRequest::Acquire { claim: claim.clone(), ended }).await, "its process has ended it");
    alice.send(ClientTerm { claim, grant }.release()).await;
    assert_eq!(alice.longest_ttl().await, Duration::ZERO, "both terms are over");
}

pub(super) async fn an_expired_lease_is_no_longer_relied_on(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let renewed = alice.acquire(&lease("renewed"), QUARANTINE_TTL).await;
    alice.acquire(&job(), QUARANTINE_TTL * 2).await;
    for _ in 0..12 {
        harness.advance_time(QUARANTINE_TTL / 4).await;
        alice.send(renewed.renewal()).await;
    }
    assert_eq!(alice.longest_ttl().await, QUARANTINE_TTL, "one has expired, and the other was renewed");
    harness.outlast(QUARANTINE_TTL + QUARANTINE_TTL / 8).await;
    assert_eq!(alice.longest_ttl().await, Duration::ZERO, "both have expired");
}

pub(super) async fn an_expired_lease_is_not_waited_for_after_a_restart(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = harness.client("alice").await;
    let renewed = alice.acquire(&lease("renewed"), QUARANTINE_TTL).await;
    alice.acquire(&job(), QUARANTINE_TTL * 2).await;
    for _ in 0..12 {
        harness.advance_time(QUARANTINE_TTL / 4).await;
        alice.send(renewed.renewal()).await;
    }
    harness.inject(StoreFault::Restart).await?;
    alice.reattach_with(harness, |request| AttachRequest { max_ttl: QUARANTINE_TTL, ..request }).await;
    let left = alice.attached().quarantine_remaining();
    assert!(left <= QUARANTINE_TTL, "the longer one had expired long before: {left:?}");
    Ok(())
}

pub(super) async fn every_ttl_counts_and_none_is_left_behind(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let mut terms = Vec::new();
    for n in 1..=60 {
        let ttl = LONG_TTL + Duration::from_millis(n * 777);
        terms.push(alice.acquire(&lease(&format!("lease-{n}")), ttl).await);
        let longest = alice.longest_ttl().await;
        assert!(longest >= ttl && longest <= ttl + ttl / 8, "{longest:?} for leases of up to {ttl:?}");
    }
    for term in &terms {
        let renewed = alice.send(term.renewal_for(term.claim.ttl)).await;
        assert!(matches!(renewed, Reply::Renewed { .. }), "each is renewed as it was granted: {renewed:?}");
    }
    while let Some(term) = terms.pop() {
        alice.send(term.release()).await;
        let longest = alice.longest_ttl().await;
        let least = terms.last().map_or(Duration::ZERO, |term| term.claim.ttl);
        assert!(longest >= least && longest <= least + least / 8, "{longest:?} when {least:?} is the longest left");
    }
}

/// A claim may correct a lease that seems to last too long. The holder must not lose a part of its ttl by that.
pub(super) async fn a_waiter_does_not_shorten_a_lease(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    alice.send(term.renewal_for(LONG_TTL * 4)).await;
    let other = bob.acquire(&lease("another"), LONG_TTL * 4).await;
    bob.send(other.release()).await;
    let held = bob.expect_held(&job()).await;
    let left = bob.remaining(&job()).await;
    assert!(left > LONG_TTL * 2, "the holder relies on {:?}, and {left:?} are left", LONG_TTL * 4);
    assert!(held.remaining > Some(LONG_TTL * 2), "and the waiter learns it: {held:?}");
}

pub(super) async fn an_instance_that_remembers_longer_leases_extends_a_quarantine(
    harness: &CaseHarness<'_>,
) -> Checked {
    let mut bob = harness.client("bob").await;
    bob.acquire(&lease("another"), LONG_TTL * 2).await;
    let mut alice = harness.client("alice").await;
    alice.memory().max_ttl = LONG_TTL;
    harness.inject(StoreFault::Flush).await?;
    alice.reattach(harness).await;
    bob.reattach(harness).await;
    let left = bob.attached().quarantine_remaining();
    assert!(left > LONG_TTL && left <= LONG_TTL * 2, "a longer lease was granted before: {left:?}");
    Ok(())
}

pub(super) async fn an_instance_that_assumes_longer_leases_does_not_extend_a_quarantine(
    harness: &CaseHarness<'_>,
) -> Checked {
    quarantined(harness, LONG_TTL).await?;
    let request = AttachRequest { max_ttl: LONG_TTL * 2, ..AttachRequest::new(fastrand::u64(..)) };
    let newcomer = Client::new(instance("newcomer"), harness.attach(request).await);
    let left = newcomer.attached().quarantine_remaining();
    assert!(left <= LONG_TTL, "alice remembers, and the newcomer does not: {left:?}");
    Ok(())
}

pub(super) async fn an_instance_that_remembers_corrects_what_a_newcomer_assumed(harness: &CaseHarness<'_>) -> Checked {
    harness.require_served_marker()?;
    let mut alice = harness.client("alice").await;
    alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::Flush).await?;
    let newcomer =
        harness.attach(AttachRequest { max_ttl: LONG_TTL * 10, ..AttachRequest::new(fastrand::u64(..)) }).await;
    let newcomer = Client::new(instance("newcomer"), newcomer);
    assert!(
        newcomer.attached().quarantine_remaining() > LONG_TTL,
        "the newcomer can only assume: {:?}",
        newcomer.attached()
    );
    let mut subscriber = harness.subscriber().await;
    alice.reattach(harness).await;
    let left = alice.attached().quarantine_remaining();
    assert!(!left.is_zero() && left <= LONG_TTL, "alice remembers that no lease was longer: {left:?}");
    assert_eq!(
        subscriber.next_announcement().await,
        Announcement::Reopened,
        "waiters that expect a later end must check again"
    );
    assert!(remaining(&newcomer).await <= LONG_TTL, "and learn of the earlier end");
    let another = harness.client_with_max_ttl("another", LONG_TTL * 10).await;
    let left = another.attached().quarantine_remaining();
    assert!(left <= LONG_TTL, "no later assumption counts: {left:?}");
    Ok(())
}

pub(super) async fn the_longest_assumed_ttl_counts(harness: &CaseHarness<'_>) -> Checked {
    harness.inject(StoreFault::RestartEmpty).await?;
    for (max_ttl, least) in [(LONG_TTL, Duration::ZERO), (LONG_TTL * 2, LONG_TTL), (SHORT_TTL, LONG_TTL)] {
        let newcomer = harness.attach(AttachRequest { max_ttl, ..AttachRequest::new(fastrand::u64(..)) }).await;
        let left = newcomer.attached().quarantine_remaining();
        assert!(left > least && left <= LONG_TTL * 2, "no instance remembers better: {left:?}");
    }
    Ok(())
}

pub(super) async fn a_remembered_longest_ttl_survives_a_loss(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::Flush).await?;
    alice.reattach_with(harness, |request| AttachRequest { max_ttl: SHORT_TTL, ..request }).await;
    let attached = alice.attached();
    assert!(attached.max_ttl >= term.claim.ttl, "alice remembers longer leases than it uses now: {attached:?}");
    assert!(attached.quarantine_remaining() >= term.claim.ttl, "which may be relied on: {attached:?}");
    Ok(())
}

pub(super) async fn a_quarantine_is_remembered_while_it_lasts(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = quarantined(harness, LONG_TTL).await?;
    assert_eq!(alice.longest_ttl().await, LONG_TTL, "that is what it waits for");
    harness.inject(StoreFault::Flush).await?;
    alice.reattach(harness).await;
    assert_eq!(alice.attached().quarantine_remaining(), LONG_TTL, "a second loss does not shorten it");
    Ok(())
}

pub(super) async fn a_quarantine_says_why(harness: &CaseHarness<'_>) -> Checked {
    let alice = quarantined(harness, LONG_TTL).await?;
    let expected = QuarantineReason::RecordMissing;
    match alice.try_acquire(&job()).await {
        Reply::Quarantined(Quarantine { reason, .. }) => assert_eq!(reason, expected, "for a refused claim"),
        other => panic!("nothing may be granted; the store answered {other:?}"),
    }
    let found = alice.namespace().await.quarantine.map(|quarantine| quarantine.reason);
    assert_eq!(found, Some(expected), "for an inspection");
    let newcomer = harness.client("newcomer").await;
    let found = newcomer.attached().quarantine.map(|quarantine| quarantine.reason);
    assert_eq!(found, Some(expected), "for a later attach");
    Ok(())
}

pub(super) async fn an_operator_ends_a_quarantine(harness: &CaseHarness<'_>) -> Checked {
    let alice = quarantined(harness, LONG_TTL).await?;
    let generation = alice.attached().generation;
    let other = crate::store::Generation { stamp: generation.stamp ^ 1, ..generation };
    assert_eq!(
        alice.send(LeaseRequest::Reopen { generation: other }).await,
        Reply::NotAttached,
        "the generation is another one"
    );
    assert!(!remaining(&alice).await.is_zero(), "so it lasts");
    let mut subscriber = harness.subscriber().await;
    assert_eq!(alice.send(LeaseRequest::Reopen { generation }).await, Reply::Done, "an operator may end it");
    assert_eq!(subscriber.next_announcement().await, Announcement::Reopened, "and it is announced to waiters");
    assert_eq!(alice.namespace().await.quarantine, None, "it is over");
    alice.acquire(&job(), LONG_TTL).await;
    assert_eq!(alice.send(LeaseRequest::Reopen { generation }).await, Reply::Done, "a repetition changes nothing");
    Ok(())
}

pub(super) async fn an_operators_word_holds_for_instances_that_attach_later(harness: &CaseHarness<'_>) -> Checked {
    let (mut alice, mut bob) = (harness.client("alice").await, harness.client("bob").await);
    alice.acquire(&lease("other"), LONG_TTL).await;
    bob.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::Flush).await?;
    alice.reattach(harness).await;
    let generation = alice.attached().generation;
    assert_eq!(alice.send(LeaseRequest::Reopen { generation }).await, Reply::Done, "an operator ends the quarantine");
    // It remembers the lost data, too.
    bob.reattach(harness).await;
    let attached = bob.attached();
    assert!(!attached.began_quarantine && attached.quarantine.is_none(), "{attached:?}");
    assert_eq!(attached.generation, generation, "it adopts the generation");
    alice.acquire(&job(), LONG_TTL).await;
    // Another loss is another quarantine.
    harness.inject(StoreFault::Flush).await?;
    alice.reattach(harness).await;
    let attached = alice.attached();
    assert_eq!(attached.new_quarantine_reason(), Some(QuarantineReason::RecordMissing), "{attached:?}");
    Ok(())
}

pub(super) async fn an_observer_leaves_no_trace(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = harness.client("alice").await;
    alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::Flush).await?;
    let observer = harness
        .attach(AttachRequest { observer: true, max_ttl: LONG_TTL * 2, ..AttachRequest::new(fastrand::u64(..)) })
        .await;
    let observer = Client::new(instance("observer"), observer);
    let attached = observer.attached();
    assert!(!attached.minted && attached.quarantine.is_none(), "there is no record, and it writes none: {attached:?}");
    assert_eq!(observer.try_acquire(&job()).await, Reply::NotAttached, "it acquires nothing");
    alice.reattach(harness).await;
    assert_eq!(
        alice.attached().new_quarantine_reason(),
        Some(QuarantineReason::RecordMissing),
        "{:?}",
        alice.attached()
    );
    assert_eq!(alice.attached().quarantine_remaining(), LONG_TTL, "and the observer has not extended it");
    Ok(())
}
