//! Attaching with a memory: checks whether the store's data is the data that the instance knew.

use std::time::Duration;

use crate::store::{
    Announcement, AttachRequest, Continuity, LeaseRequest, Outcome, Quarantine, QuarantineReason, Refusal, Reply,
};
use crate::testing::StoreFault;
use crate::testing::client::{Client, ClientTerm, acquire, granted};
use crate::testing::harness::{CaseHarness, Checked, LONG_TTL, QUARANTINE_TTL, REPLY_TIMEOUT, SHORT_TTL, job, lease};

/// Checks that a claim is refused and that the reply has the rest of the quarantine.
async fn assert_quarantined(client: &Client) {
    match client.try_acquire(&lease("anything")).await {
        Reply::Quarantined(Quarantine { remaining, .. }) => {
            let longest = client.longest_ttl().await;
            assert!(!remaining.is_zero() && remaining <= longest, "quarantined for {remaining:?} of {longest:?}");
        }
        other => panic!("nothing may be granted during a quarantine; the store answered {other:?}"),
    }
}

async fn assert_renewable(client: &Client, term: &ClientTerm) {
    let renewed = client.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "a surviving lease stays renewable: {renewed:?}");
}

pub(super) async fn reattaching_with_nothing_lost_changes_nothing(harness: &CaseHarness<'_>) {
    let mut alice = harness.client("alice").await;
    let first = alice.attached().clone();
    let term = alice.acquire(&job(), LONG_TTL).await;
    for _ in 0..3 {
        assert_eq!(alice.reattach(harness).await, Continuity::Same, "the same data in the same run");
        let attached = alice.attached();
        assert_eq!(attached.generation, first.generation, "the generation stays");
        assert!(!attached.minted && !attached.rolled_back, "there is no new generation: {attached:?}");
        assert!(
            attached.quarantine_remaining().is_zero() && attached.new_quarantine_reason().is_none(),
            "and no quarantine: {attached:?}"
        );
    }
    assert_renewable(&alice, &term).await;
    alice.acquire(&lease("another"), LONG_TTL).await;
}

pub(super) async fn a_cut_connection_loses_nothing(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::CutConnections).await?;
    assert_eq!(alice.reattach(harness).await, Continuity::Same, "the server kept running");
    assert_renewable(&alice, &term).await;
    Ok(())
}

pub(super) async fn a_cut_connection_says_that_it_is_closed(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client("alice").await;
    alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::CutConnections).await?;
    // Without a request: a client that sends nothing must learn of it, too.
    let told = tokio::time::timeout(REPLY_TIMEOUT, alice.connection.closed()).await;
    assert!(told.is_ok(), "a closed connection must report it within {REPLY_TIMEOUT:?}");
    for outcome in alice.submit(vec![LeaseRequest::Inspect { name: job() }; 2]).await {
        let answered = matches!(outcome, Outcome::Answered(_));
        assert!(!answered, "a connection that is reported as closed must not answer: {outcome:?}");
    }
    Ok(())
}

pub(super) async fn a_connection_that_is_refused_something_is_not_closed(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    alice.send(term.release()).await;
    alice.send(term.renewal()).await;
    let told = tokio::time::timeout(Duration::ZERO, alice.connection.closed()).await;
    assert!(told.is_err(), "the connection still works");
    alice.acquire(&job(), LONG_TTL).await;
}

pub(super) async fn a_connection_does_not_outlive_a_restart(harness: &CaseHarness<'_>) -> Checked {
    let alice = harness.client("alice").await;
    alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::Restart).await?;
    // A connection that silently reconnected would reach a store to which it has not attached.
    for outcome in alice.submit(vec![LeaseRequest::Inspect { name: job() }; 2]).await {
        let answered = matches!(outcome, Outcome::Answered(_));
        assert!(!answered, "a connection from before a restart must not answer: {outcome:?}");
    }
    Ok(())
}

pub(super) async fn a_missing_record_is_replaced_and_begins_a_quarantine(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = harness.client("alice").await;
    let before = alice.attached().generation.number;
    let term = alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::Flush).await?;
    assert_eq!(alice.reattach(harness).await, Continuity::Changed, "held leases must be verified");
    let attached = alice.attached();
    assert!(
        attached.minted && attached.generation.number > before,
        "a generation above {before} is written: {attached:?}"
    );
    assert_eq!(attached.new_quarantine_reason(), Some(QuarantineReason::RecordMissing), "{attached:?}");
    assert_eq!(attached.quarantine_remaining(), LONG_TTL, "leases from before may be relied on for the longest ttl");
    assert_quarantined(&alice).await;
    let refused = alice.send(term.renewal()).await;
    assert_eq!(refused, Reply::Refused(Refusal::StoreReset), "the held term is not on record");
    Ok(())
}

pub(super) async fn an_older_generation_than_remembered_is_replaced_and_begins_a_quarantine(
    harness: &CaseHarness<'_>,
) -> Checked {
    let mut alice = harness.client("alice").await;
    alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::TakeSnapshot).await?;
    harness.inject(StoreFault::Flush).await?;
    alice.reattach(harness).await;
    let newer = alice.attached().generation.number;
    harness.inject(StoreFault::RestoreSnapshot).await?;
    assert_eq!(alice.reattach(harness).await, Continuity::Changed, "held leases must be verified");
    let attached = alice.attached();
    assert!(
        attached.minted && attached.generation.number > newer,
        "a generation above {newer} is written: {attached:?}"
    );
    assert_eq!(attached.new_quarantine_reason(), Some(QuarantineReason::OlderGeneration), "{attached:?}");
    assert_eq!(
        attached.quarantine_remaining(),
        LONG_TTL,
        "leases from after the backup may be relied on for the longest ttl"
    );
    assert_quarantined(&alice).await;
    Ok(())
}

pub(super) async fn a_newer_generation_is_adopted_and_never_written_over(harness: &CaseHarness<'_>) -> Checked {
    let (mut alice, mut bob) = (harness.client("alice").await, harness.client("bob").await);
    alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::Flush).await?;
    alice.reattach(harness).await;
    let newer = alice.attached().generation;
    assert_eq!(bob.reattach(harness).await, Continuity::Reset, "everything that bob held is lost");
    let attached = bob.attached();
    assert_eq!(attached.generation, newer, "another instance's newer generation is adopted");
    assert!(!attached.minted, "and not written again: {attached:?}");
    assert_eq!(attached.new_quarantine_reason(), None, "its minter has begun the quarantine already");
    assert!(
        !attached.quarantine_remaining().is_zero() && attached.quarantine_remaining() <= LONG_TTL,
        "which still lasts: {attached:?}"
    );
    assert_quarantined(&bob).await;
    // Alice's connection would have to attach again if bob had changed the generation.
    assert_quarantined(&alice).await;
    assert_eq!(harness.client("carol").await.attached().generation, newer, "a third instance finds the same");
    Ok(())
}

pub(super) async fn a_restart_begins_a_quarantine_and_surviving_leases_stay_renewable(
    harness: &CaseHarness<'_>,
) -> Checked {
    let mut alice = harness.client("alice").await;
    let before = alice.attached().clone();
    let term = alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::Restart).await?;
    assert_eq!(alice.reattach(harness).await, Continuity::Changed, "held leases must be verified");
    let attached = alice.attached();
    assert_ne!(attached.run, before.run, "every run of a server has its own id");
    assert_eq!((attached.generation, attached.minted), (before.generation, false), "the data is the same");
    assert_eq!(attached.new_quarantine_reason(), Some(QuarantineReason::ServerRestarted), "{attached:?}");
    assert_eq!(attached.quarantine_remaining(), LONG_TTL, "the last grants may have been lost");
    assert_quarantined(&alice).await;
    assert_renewable(&alice, &term).await;
    assert_eq!(alice.send(term.publication("result", b"x")).await, Reply::Done, "and may be used");
    assert_eq!(alice.send(term.release()).await, Reply::Done, "and be released");
    assert_quarantined(&alice).await;
    Ok(())
}

pub(super) async fn a_restart_begins_only_one_quarantine(harness: &CaseHarness<'_>) -> Checked {
    let (mut alice, mut bob) = (harness.client("alice").await, harness.client("bob").await);
    alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::Restart).await?;
    alice.reattach(harness).await;
    harness.advance_time(SHORT_TTL).await;
    bob.reattach(harness).await;
    let attached = bob.attached();
    assert_eq!(attached.new_quarantine_reason(), None, "alice has already begun the quarantine: {attached:?}");
    assert!(
        attached.quarantine_remaining() <= LONG_TTL - SHORT_TTL / 2,
        "it ends when alice's attach reported: {attached:?}"
    );
    Ok(())
}

pub(super) async fn a_newcomer_notices_a_restart_as_well(harness: &CaseHarness<'_>) -> Checked {
    harness.client("alice").await;
    harness.inject(StoreFault::Restart).await?;
    let newcomer = harness.client("newcomer").await;
    assert_eq!(
        newcomer.attached().new_quarantine_reason(),
        Some(QuarantineReason::ServerRestarted),
        "the record names another run"
    );
    assert_quarantined(&newcomer).await;
    Ok(())
}

pub(super) async fn a_durable_store_begins_no_quarantine_after_a_restart(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::Restart).await?;
    let continuity = alice.reattach_with(harness, |request| AttachRequest { durable: true, ..request }).await;
    assert_eq!(continuity, Continuity::Changed, "the run is another one all the same");
    let attached = alice.attached();
    assert!(
        attached.new_quarantine_reason().is_none() && attached.quarantine_remaining().is_zero(),
        "nothing can have been lost: {attached:?}"
    );
    assert_renewable(&alice, &term).await;
    alice.acquire(&lease("another"), LONG_TTL).await;
    Ok(())
}

pub(super) async fn a_durable_instance_does_not_hide_a_restart_from_the_others(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = harness.client("alice").await;
    alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::Restart).await?;
    alice.reattach_with(harness, |request| AttachRequest { durable: true, ..request }).await;
    assert_eq!(alice.attached().quarantine, None, "alice is configured as durable");
    let newcomer = harness.client("newcomer").await;
    assert_eq!(
        newcomer.attached().new_quarantine_reason(),
        Some(QuarantineReason::ServerRestarted),
        "the newcomer is not"
    );
    assert_quarantined(&alice).await;
    Ok(())
}

pub(super) async fn even_a_durable_store_is_quarantined_when_tokens_went_back(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = harness.client("alice").await;
    harness.inject(StoreFault::TakeSnapshot).await?;
    alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::RestoreSnapshot).await?;
    alice.reattach_with(harness, |request| AttachRequest { durable: true, ..request }).await;
    assert_eq!(
        alice.attached().new_quarantine_reason(),
        Some(QuarantineReason::TokensWentBack),
        "that is proof of a loss"
    );
    assert_quarantined(&alice).await;
    Ok(())
}

pub(super) async fn replaced_data_is_not_the_data_that_was_attached(harness: &CaseHarness<'_>) -> Checked {
    let (mut alice, mut bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&lease("kept"), LONG_TTL).await;
    harness.inject(StoreFault::TakeSnapshot).await?;
    alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::ReplaceData).await?;
    // A store may close every connection then, or its data may be replaced under those that stay; neither grants
    // anything.
    let over_the_old = bob.submit(vec![acquire(&bob.claim(&job(), LONG_TTL))]).await;
    let granted = matches!(over_the_old.as_slice(), [Outcome::Answered(Reply::Granted(_))]);
    assert!(!granted, "alice may rely on a lease that the other data lacks: {over_the_old:?}");
    assert_eq!(bob.reattach(harness).await, Continuity::Changed, "held leases must be verified");
    assert_eq!(bob.attached().new_quarantine_reason(), Some(QuarantineReason::DataReplaced), "{:?}", bob.attached());
    assert_quarantined(&bob).await;
    assert_eq!(alice.reattach(harness).await, Continuity::Changed, "for every instance");
    assert_renewable(&alice, &term).await;
    Ok(())
}

pub(super) async fn even_a_durable_store_is_quarantined_when_its_data_was_replaced(
    harness: &CaseHarness<'_>,
) -> Checked {
    let mut alice = harness.client("alice").await;
    alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::TakeSnapshot).await?;
    harness.inject(StoreFault::ReplaceData).await?;
    alice.reattach_with(harness, |request| AttachRequest { durable: true, ..request }).await;
    assert_eq!(
        alice.attached().new_quarantine_reason(),
        Some(QuarantineReason::DataReplaced),
        "{:?}",
        alice.attached()
    );
    Ok(())
}

pub(super) async fn even_a_durable_store_is_quarantined_when_its_record_is_missing(
    harness: &CaseHarness<'_>,
) -> Checked {
    let mut alice = harness.client("alice").await;
    alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::Flush).await?;
    alice.reattach_with(harness, |request| AttachRequest { durable: true, ..request }).await;
    assert_eq!(
        alice.attached().new_quarantine_reason(),
        Some(QuarantineReason::RecordMissing),
        "`durable` covers a restart, not a loss"
    );
    assert_quarantined(&alice).await;
    Ok(())
}

pub(super) async fn bootstrap_does_not_skip_the_quarantine_of_a_remembered_namespace(
    harness: &CaseHarness<'_>,
) -> Checked {
    let mut alice = harness.client("alice").await;
    alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::Flush).await?;
    alice.reattach_with(harness, |request| AttachRequest { bootstrap: true, ..request }).await;
    assert_eq!(
        alice.attached().new_quarantine_reason(),
        Some(QuarantineReason::RecordMissing),
        "the namespace is not new to alice"
    );
    assert_quarantined(&alice).await;
    Ok(())
}

pub(super) async fn a_forgotten_token_begins_a_quarantine(harness: &CaseHarness<'_>) -> Checked {
    let (mut alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    harness.inject(StoreFault::TakeSnapshot).await?;
    let seen = alice.acquire(&job(), LONG_TTL).await.token();
    alice.memory().learn_token(seen);
    assert_eq!(alice.reattach(harness).await, Continuity::Same, "the store knows the token");
    harness.inject(StoreFault::RestoreSnapshot).await?;
    assert_eq!(alice.reattach(harness).await, Continuity::Changed, "held leases must be verified");
    let attached = alice.attached();
    assert!(attached.rolled_back && !attached.minted, "the same generation has lost a token: {attached:?}");
    assert_eq!(attached.new_quarantine_reason(), Some(QuarantineReason::TokensWentBack), "{attached:?}");
    assert_eq!(
        attached.quarantine_remaining(),
        LONG_TTL,
        "leases that the store lost may be relied on for the longest ttl"
    );
    assert!(attached.token_floor >= seen, "the floor is restored: {attached:?}");
    assert_quarantined(&alice).await;
    // Bob's connection is older and of the same generation: every claim reads the record.
    assert_quarantined(&bob).await;
    Ok(())
}

pub(super) async fn a_restored_backup_is_as_good_as_a_loss(harness: &CaseHarness<'_>) -> Checked {
    let (mut alice, mut bob) = (
        harness.client_with_max_ttl("alice", QUARANTINE_TTL).await,
        harness.client_with_max_ttl("bob", QUARANTINE_TTL).await,
    );
    let old = alice.acquire(&job(), SHORT_TTL).await;
    harness.inject(StoreFault::TakeSnapshot).await?;
    alice.send(old.release()).await;
    let new = bob.acquire(&job(), SHORT_TTL).await;
    bob.memory().learn_token(new.token());
    harness.inject(StoreFault::RestartFromSnapshot).await?;
    alice.reattach(harness).await;
    assert!(alice.attached().new_quarantine_reason().is_some(), "grants from after the backup may be relied on");
    bob.reattach(harness).await;
    let refused = bob.send(new.renewal()).await;
    assert!(matches!(refused, Reply::Refused(_)), "bob's term is not in the backup: {refused:?}");
    harness.outlast(QUARANTINE_TTL).await;
    let next = granted(bob.try_acquire(&job()).await, "the quarantine must be over");
    assert!(next.token > new.token(), "no token is granted twice");
    Ok(())
}

pub(super) async fn a_generation_carries_the_stamp_of_its_minter(harness: &CaseHarness<'_>) {
    // The largest number there is, which a double cannot represent.
    let request =
        |stamp| AttachRequest { stamp, max_ttl: LONG_TTL, bootstrap: true, ..AttachRequest::new(fastrand::u64(..)) };
    let first = harness.attach(request(u64::MAX)).await.attached().generation;
    assert_eq!(first.stamp, u64::MAX, "the minting instance stamps the generation");
    let second = harness.attach(request(7)).await.attached().generation;
    assert_eq!(second, first, "and no other instance does");
}

/// Two losses, each noticed by another client with the same memory: their generation numbers may be equal.
pub(super) async fn two_generations_with_one_number_are_told_apart(harness: &CaseHarness<'_>) -> Checked {
    let (mut alice, mut bob) = (harness.client("alice").await, harness.client("bob").await);
    harness.inject(StoreFault::Flush).await?;
    bob.reattach(harness).await;
    assert!(bob.attached().minted, "bob has noticed the first loss");
    harness.inject(StoreFault::Flush).await?;
    alice.reattach(harness).await;
    assert!(alice.attached().minted, "alice has noticed the second");
    assert_ne!(alice.attached().generation, bob.attached().generation, "they are not the same data");
    assert_eq!(bob.try_acquire(&job()).await, Reply::NotAttached, "the data that bob attached to is gone");
    let continuity = bob.reattach(harness).await;
    assert_ne!(continuity, Continuity::Same, "and bob learns of it");
    Ok(())
}

pub(super) async fn a_new_generation_is_announced(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = harness.client("alice").await;
    let mut subscriber = harness.subscriber().await;
    harness.inject(StoreFault::Flush).await?;
    alice.reattach(harness).await;
    let generation = alice.attached().generation;
    // Instances that know of longer leases must learn of it, to extend the quarantine.
    assert_eq!(
        subscriber.next_announcement().await,
        Announcement::GenerationMinted { generation },
        "a loss must be announced"
    );
    Ok(())
}
