//! Entering with a memory: is this still the store that we knew?

use std::time::Duration;

use crate::store::{Announcement, Continuity, Entry, Outcome, Quarantine, QuarantineReason, Refusal, Reply, Request};
use crate::testing::Disturbance;
use crate::testing::player::{Player, Term, acquire, granted};
use crate::testing::trial::{BRIEF, Checked, LONG, PATIENCE, SHORT, Trial, job, lease};

/// Checks that whoever asks is told how long nothing is granted.
async fn is_closed(player: &Player) {
    match player.tries(&lease("anything")).await {
        Reply::Quarantined(Quarantine { remaining, .. }) => {
            let longest = player.longest_ttl().await;
            assert!(!remaining.is_zero() && remaining <= longest, "closed for {remaining:?} of {longest:?}");
        }
        other => panic!("nothing may be granted while the namespace is closed; the store answered {other:?}"),
    }
}

async fn goes_on(player: &Player, term: &Term) {
    let renewed = player.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "a lease that is still there stays renewable: {renewed:?}");
}

pub(super) async fn entering_again_with_nothing_lost_changes_nothing(trial: &Trial<'_>) {
    let mut alice = trial.player("alice").await;
    let first = alice.entered().clone();
    let term = alice.wins(&job(), LONG).await;
    for _ in 0..3 {
        assert_eq!(alice.enters_again(trial).await, Continuity::Same, "the same data in the same run");
        let entered = alice.entered();
        assert_eq!(entered.generation, first.generation, "the generation stays");
        assert!(!entered.minted && !entered.rolled_back, "there is nothing to write anew: {entered:?}");
        assert!(entered.quarantined_for().is_zero() && entered.began_because().is_none(), "nor to close: {entered:?}");
    }
    goes_on(&alice, &term).await;
    alice.wins(&lease("another"), LONG).await;
}

pub(super) async fn a_cut_connection_loses_nothing(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Cut).await?;
    assert_eq!(alice.enters_again(trial).await, Continuity::Same, "the server ran on");
    goes_on(&alice, &term).await;
    Ok(())
}

pub(super) async fn a_cut_connection_says_that_it_is_closed(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Cut).await?;
    // Nothing is asked over it: whoever has nothing to ask must learn of it, too.
    let told = tokio::time::timeout(PATIENCE, alice.connection.closed()).await;
    assert!(told.is_ok(), "a closed connection must say so within {PATIENCE:?}");
    for outcome in alice.submit(vec![Request::Inspect { name: job() }; 2]).await {
        let answered = matches!(outcome, Outcome::Answered(_));
        assert!(!answered, "a connection that said it was closed must not answer: {outcome:?}");
    }
    Ok(())
}

pub(super) async fn a_connection_that_is_refused_something_is_not_closed(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    alice.send(term.release()).await;
    alice.send(term.renewal()).await;
    let told = tokio::time::timeout(Duration::ZERO, alice.connection.closed()).await;
    assert!(told.is_err(), "it still works");
    alice.wins(&job(), LONG).await;
}

pub(super) async fn a_connection_does_not_outlive_a_restart(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Restart).await?;
    // A connection that quietly connected again would reach a store that it has not entered.
    for outcome in alice.submit(vec![Request::Inspect { name: job() }; 2]).await {
        let answered = matches!(outcome, Outcome::Answered(_));
        assert!(!answered, "a connection from before a restart must not answer: {outcome:?}");
    }
    Ok(())
}

pub(super) async fn a_missing_record_is_replaced_by_a_newer_one_and_closes(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    let before = alice.entered().generation.number;
    let term = alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Flush).await?;
    assert_eq!(alice.enters_again(trial).await, Continuity::Changed, "what is held must be verified");
    let entered = alice.entered();
    assert!(
        entered.minted && entered.generation.number > before,
        "a generation above {before} is written: {entered:?}"
    );
    assert_eq!(entered.began_because(), Some(QuarantineReason::RecordMissing), "{entered:?}");
    assert_eq!(entered.quarantined_for(), LONG, "leases from before may be relied on for the longest ttl");
    is_closed(&alice).await;
    let refused = alice.send(term.renewal()).await;
    assert_eq!(refused, Reply::Refused(Refusal::StoreReset), "there is no trace of what was held");
    Ok(())
}

pub(super) async fn an_older_generation_than_remembered_is_replaced_and_closes(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Remember).await?;
    trial.disturb(Disturbance::Flush).await?;
    alice.enters_again(trial).await;
    let newer = alice.entered().generation.number;
    trial.disturb(Disturbance::Restore).await?;
    assert_eq!(alice.enters_again(trial).await, Continuity::Changed, "what is held must be verified");
    let entered = alice.entered();
    assert!(entered.minted && entered.generation.number > newer, "a generation above {newer} is written: {entered:?}");
    assert_eq!(entered.began_because(), Some(QuarantineReason::OlderGeneration), "{entered:?}");
    assert_eq!(entered.quarantined_for(), LONG, "leases from after the backup may be relied on for the longest ttl");
    is_closed(&alice).await;
    Ok(())
}

pub(super) async fn a_newer_generation_is_adopted_and_never_written_over(trial: &Trial<'_>) -> Checked {
    let (mut alice, mut bob) = (trial.player("alice").await, trial.player("bob").await);
    alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Flush).await?;
    alice.enters_again(trial).await;
    let newer = alice.entered().generation;
    assert_eq!(bob.enters_again(trial).await, Continuity::Reset, "everything that bob held is lost");
    let entered = bob.entered();
    assert_eq!(entered.generation, newer, "somebody else's newer generation is adopted");
    assert!(!entered.minted, "and not written again: {entered:?}");
    assert_eq!(entered.began_because(), None, "whoever wrote it has closed the namespace already");
    assert!(
        !entered.quarantined_for().is_zero() && entered.quarantined_for() <= LONG,
        "which still lasts: {entered:?}"
    );
    is_closed(&bob).await;
    // Alice's connection would be told to enter again if bob had changed the generation.
    is_closed(&alice).await;
    assert_eq!(trial.player("carol").await.entered().generation, newer, "a third one finds the same");
    Ok(())
}

pub(super) async fn a_restarted_server_closes_and_surviving_leases_stay_renewable(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    let before = alice.entered().clone();
    let term = alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Restart).await?;
    assert_eq!(alice.enters_again(trial).await, Continuity::Changed, "what is held must be verified");
    let entered = alice.entered();
    assert_ne!(entered.run, before.run, "every run of a server is another one");
    assert_eq!((entered.generation, entered.minted), (before.generation, false), "the data is the same");
    assert_eq!(entered.began_because(), Some(QuarantineReason::ServerRestarted), "{entered:?}");
    assert_eq!(entered.quarantined_for(), LONG, "the last grants may have been lost");
    is_closed(&alice).await;
    goes_on(&alice, &term).await;
    assert_eq!(alice.send(term.publication("result", b"x")).await, Reply::Done, "and may be used");
    assert_eq!(alice.send(term.release()).await, Reply::Done, "and be let go of");
    is_closed(&alice).await;
    Ok(())
}

pub(super) async fn a_restart_closes_once_and_not_for_everybody_who_comes_later(trial: &Trial<'_>) -> Checked {
    let (mut alice, mut bob) = (trial.player("alice").await, trial.player("bob").await);
    alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Restart).await?;
    alice.enters_again(trial).await;
    trial.pass(SHORT).await;
    bob.enters_again(trial).await;
    let entered = bob.entered();
    assert_eq!(entered.began_because(), None, "alice has already closed the namespace: {entered:?}");
    assert!(entered.quarantined_for() <= LONG - SHORT / 2, "it opens when alice said: {entered:?}");
    Ok(())
}

pub(super) async fn a_newcomer_notices_a_restart_as_well(trial: &Trial<'_>) -> Checked {
    trial.player("alice").await;
    trial.disturb(Disturbance::Restart).await?;
    let newcomer = trial.player("newcomer").await;
    assert_eq!(
        newcomer.entered().began_because(),
        Some(QuarantineReason::ServerRestarted),
        "the record names another run"
    );
    is_closed(&newcomer).await;
    Ok(())
}

pub(super) async fn a_durable_store_closes_nothing_after_a_restart(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Restart).await?;
    let continuity = alice.enters_again_as(trial, |entry| Entry { durable: true, ..entry }).await;
    assert_eq!(continuity, Continuity::Changed, "it is another run all the same");
    let entered = alice.entered();
    assert!(
        entered.began_because().is_none() && entered.quarantined_for().is_zero(),
        "nothing can have been lost: {entered:?}"
    );
    goes_on(&alice, &term).await;
    alice.wins(&lease("another"), LONG).await;
    Ok(())
}

pub(super) async fn a_durable_instance_does_not_hide_a_restart_from_the_others(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Restart).await?;
    alice.enters_again_as(trial, |entry| Entry { durable: true, ..entry }).await;
    assert_eq!(alice.entered().quarantine, None, "alice was told that nothing was lost");
    let newcomer = trial.player("newcomer").await;
    assert_eq!(newcomer.entered().began_because(), Some(QuarantineReason::ServerRestarted), "the newcomer was not");
    is_closed(&alice).await;
    Ok(())
}

pub(super) async fn even_a_durable_store_closes_when_tokens_went_back(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    trial.disturb(Disturbance::Remember).await?;
    alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Restore).await?;
    alice.enters_again_as(trial, |entry| Entry { durable: true, ..entry }).await;
    assert_eq!(alice.entered().began_because(), Some(QuarantineReason::TokensWentBack), "that is proof of a loss");
    is_closed(&alice).await;
    Ok(())
}

pub(super) async fn data_that_was_replaced_is_not_the_data_that_was_entered(trial: &Trial<'_>) -> Checked {
    let (mut alice, mut bob) = (trial.player("alice").await, trial.player("bob").await);
    let term = alice.wins(&lease("kept"), LONG).await;
    trial.disturb(Disturbance::Remember).await?;
    alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Replace).await?;
    // A store may close every connection then, or be replaced under those that stay; nothing is granted over them.
    let over_the_old = bob.submit(vec![acquire(&bob.claim(&job(), LONG))]).await;
    let granted = matches!(over_the_old.as_slice(), [Outcome::Answered(Reply::Granted(_))]);
    assert!(!granted, "alice may rely on what the other data does not know: {over_the_old:?}");
    assert_eq!(bob.enters_again(trial).await, Continuity::Changed, "what is held must be verified");
    assert_eq!(bob.entered().began_because(), Some(QuarantineReason::DataReplaced), "{:?}", bob.entered());
    is_closed(&bob).await;
    assert_eq!(alice.enters_again(trial).await, Continuity::Changed, "for everybody");
    goes_on(&alice, &term).await;
    Ok(())
}

pub(super) async fn even_a_durable_store_closes_when_its_data_was_replaced(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Remember).await?;
    trial.disturb(Disturbance::Replace).await?;
    alice.enters_again_as(trial, |entry| Entry { durable: true, ..entry }).await;
    assert_eq!(alice.entered().began_because(), Some(QuarantineReason::DataReplaced), "{:?}", alice.entered());
    Ok(())
}

pub(super) async fn even_a_durable_store_closes_when_its_record_is_missing(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Flush).await?;
    alice.enters_again_as(trial, |entry| Entry { durable: true, ..entry }).await;
    assert_eq!(
        alice.entered().began_because(),
        Some(QuarantineReason::RecordMissing),
        "a restart is excused, a loss is not"
    );
    is_closed(&alice).await;
    Ok(())
}

pub(super) async fn even_bootstrap_closes_for_whoever_remembers_the_namespace(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Flush).await?;
    alice.enters_again_as(trial, |entry| Entry { bootstrap: true, ..entry }).await;
    assert_eq!(
        alice.entered().began_because(),
        Some(QuarantineReason::RecordMissing),
        "the namespace is not new to alice"
    );
    is_closed(&alice).await;
    Ok(())
}

pub(super) async fn a_token_that_the_store_has_forgotten_closes(trial: &Trial<'_>) -> Checked {
    let (mut alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    trial.disturb(Disturbance::Remember).await?;
    let seen = alice.wins(&job(), LONG).await.token();
    alice.memory().saw(seen);
    assert_eq!(alice.enters_again(trial).await, Continuity::Same, "a token that the store knows is nothing new");
    trial.disturb(Disturbance::Restore).await?;
    assert_eq!(alice.enters_again(trial).await, Continuity::Changed, "what is held must be verified");
    let entered = alice.entered();
    assert!(entered.rolled_back && !entered.minted, "the same generation has forgotten a token: {entered:?}");
    assert_eq!(entered.began_because(), Some(QuarantineReason::TokensWentBack), "{entered:?}");
    assert_eq!(entered.quarantined_for(), LONG, "leases that the store forgot may be relied on for the longest ttl");
    assert!(entered.token_floor >= seen, "the floor is put back: {entered:?}");
    is_closed(&alice).await;
    // Bob's connection is from before and of the same generation: the record is read with every claim.
    is_closed(&bob).await;
    Ok(())
}

pub(super) async fn a_restored_backup_is_as_good_as_a_loss(trial: &Trial<'_>) -> Checked {
    let (mut alice, mut bob) = (trial.player_with("alice", BRIEF).await, trial.player_with("bob", BRIEF).await);
    let old = alice.wins(&job(), SHORT).await;
    trial.disturb(Disturbance::Remember).await?;
    alice.send(old.release()).await;
    let new = bob.wins(&job(), SHORT).await;
    bob.memory().saw(new.token());
    trial.disturb(Disturbance::RestartRestored).await?;
    alice.enters_again(trial).await;
    assert!(alice.entered().began_because().is_some(), "grants from after the backup may be relied on");
    bob.enters_again(trial).await;
    let refused = bob.send(new.renewal()).await;
    assert!(matches!(refused, Reply::Refused(_)), "bob's term is not in the backup: {refused:?}");
    trial.outlast(BRIEF).await;
    let next = granted(bob.tries(&job()).await, "the namespace must have opened again");
    assert!(next.token > new.token(), "no token is granted twice");
    Ok(())
}

pub(super) async fn a_generation_carries_the_stamp_of_whoever_minted_it(trial: &Trial<'_>) {
    // The largest number there is, which a double does not hold.
    let entry = |stamp| Entry { stamp, max_ttl: LONG, bootstrap: true, ..Entry::default() };
    let first = trial.enter(entry(u64::MAX)).await.entered().generation;
    assert_eq!(first.stamp, u64::MAX, "whoever mints a generation stamps it");
    let second = trial.enter(entry(7)).await.entered().generation;
    assert_eq!(second, first, "and nobody else does");
}

/// Two losses, each noticed by another client that remembers the same: their numbers may be equal.
pub(super) async fn two_generations_with_one_number_are_told_apart(trial: &Trial<'_>) -> Checked {
    let (mut alice, mut bob) = (trial.player("alice").await, trial.player("bob").await);
    trial.disturb(Disturbance::Flush).await?;
    bob.enters_again(trial).await;
    assert!(bob.entered().minted, "bob has noticed the first loss");
    trial.disturb(Disturbance::Flush).await?;
    alice.enters_again(trial).await;
    assert!(alice.entered().minted, "alice has noticed the second");
    assert_ne!(alice.entered().generation, bob.entered().generation, "they are not the same data");
    assert_eq!(bob.tries(&job()).await, Reply::NotEntered, "what bob entered is gone");
    let continuity = bob.enters_again(trial).await;
    assert_ne!(continuity, Continuity::Same, "and bob learns of it");
    Ok(())
}

pub(super) async fn a_new_generation_is_announced(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    let mut listener = trial.listener().await;
    trial.disturb(Disturbance::Flush).await?;
    alice.enters_again(trial).await;
    let generation = alice.entered().generation;
    // Whoever knows of longer leases must hear of it, to make the closing longer.
    assert_eq!(listener.hears().await, Announcement::GenerationMinted { generation }, "a loss must be announced");
    Ok(())
}
