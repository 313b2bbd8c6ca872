//! Entering without a memory: is this namespace new, or was it lost?

use std::time::Duration;

use crate::store::{Continuity, Entry, QuarantineReason, Reply};
use crate::testing::Disturbance;
use crate::testing::player::Player;
use crate::testing::trial::{BRIEF, Checked, LONG, SHORT, Trial, instance, job};

/// An instance that knows nothing and was told nothing.
async fn newcomer(trial: &Trial<'_>, max_ttl: Duration) -> Player {
    let connection = trial.enter(Entry { max_ttl, ..Entry::default() }).await;
    Player::new(instance("newcomer"), connection)
}

pub(super) async fn a_newcomer_alone_on_an_old_server_starts_at_once(trial: &Trial<'_>) -> Checked {
    trial.disturb(Disturbance::AgeServer(BRIEF)).await?;
    let alice = newcomer(trial, BRIEF).await;
    let entered = alice.entered();
    assert!(entered.minted, "there was no record: {entered:?}");
    assert!(entered.closing.is_none() && entered.closed_for.is_zero(), "nobody can hold anything: {entered:?}");
    alice.wins(&job(), SHORT).await;
    Ok(())
}

pub(super) async fn bootstrap_opens_a_new_namespace_however_young_the_server(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let entered = alice.entered();
    assert!(entered.minted, "there was no record: {entered:?}");
    assert!(entered.closing.is_none() && entered.closed_for.is_zero(), "the operator's word counts: {entered:?}");
    assert_eq!(entered.max_ttl, LONG, "the longest ttl is the one that was brought along");
    alice.wins(&job(), LONG).await;
}

pub(super) async fn bootstrap_changes_nothing_about_a_namespace_that_exists(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    assert_eq!(bob.entered().generation, alice.entered().generation, "the record is there and stays");
    assert!(!bob.entered().minted, "and is not written anew");
    alice.wins(&job(), LONG).await;
}

pub(super) async fn a_newcomer_closes_when_others_are_listening(trial: &Trial<'_>) -> Checked {
    trial.needs_listener_count()?;
    trial.disturb(Disturbance::AgeServer(BRIEF)).await?;
    let listener = trial.listener().await;
    let alice = newcomer(trial, BRIEF).await;
    let entered = alice.entered();
    assert_eq!(
        entered.closing,
        Some(QuarantineReason::OthersListening),
        "whoever listens may hold leases: {entered:?}"
    );
    assert_eq!(entered.closed_for, BRIEF, "for the longest ttl");
    drop(listener);
    trial.outlast(BRIEF).await;
    alice.wins(&job(), SHORT).await;
    Ok(())
}

pub(super) async fn listeners_close_nothing_once_there_is_a_record(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let _listener = trial.listener().await;
    let bob = newcomer(trial, LONG).await;
    assert_eq!(bob.entered().closing, None, "a namespace with a record is not new: {:?}", bob.entered());
    alice.wins(&job(), LONG).await;
}

pub(super) async fn a_newcomer_closes_when_the_server_is_young(trial: &Trial<'_>) -> Checked {
    trial.disturb(Disturbance::RestartEmpty).await?;
    let alice = newcomer(trial, LONG).await;
    let entered = alice.entered();
    assert!(entered.minted, "there was no record: {entered:?}");
    assert_eq!(
        entered.closing,
        Some(QuarantineReason::ServerTooYoung),
        "the namespace may have been lost: {entered:?}"
    );
    assert!(!entered.closed_for.is_zero() && entered.closed_for <= LONG, "{entered:?}");
    let reply = alice.tries(&job()).await;
    assert!(matches!(reply, Reply::Quarantined { .. }), "nothing may be granted yet: {reply:?}");
    Ok(())
}

pub(super) async fn a_young_server_closes_for_what_is_missing_of_the_longest_ttl(trial: &Trial<'_>) -> Checked {
    let age = Duration::from_secs(1);
    trial.disturb(Disturbance::RestartEmpty).await?;
    trial.disturb(Disturbance::AgeServer(age)).await?;
    let alice = newcomer(trial, LONG).await;
    let entered = alice.entered();
    assert_eq!(entered.closing, Some(QuarantineReason::ServerTooYoung), "{entered:?}");
    assert!(entered.closed_for <= LONG - age, "what the server has already been up for counts: {entered:?}");
    Ok(())
}

pub(super) async fn the_closing_of_a_newcomer_ends(trial: &Trial<'_>) -> Checked {
    trial.disturb(Disturbance::RestartEmpty).await?;
    let alice = newcomer(trial, BRIEF).await;
    trial.outlast(BRIEF).await;
    alice.wins(&job(), SHORT).await;
    Ok(())
}

pub(super) async fn a_newcomer_finds_what_others_have_written(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let bob = newcomer(trial, SHORT).await;
    let (first, second) = (alice.entered(), bob.entered());
    assert_eq!((second.generation, second.run), (first.generation, first.run), "the same data in the same run");
    assert_eq!(second.max_ttl, LONG, "a shorter longest ttl does not lower the namespace's");
    assert!(!second.minted && second.closing.is_none() && second.closed_for.is_zero(), "{second:?}");
}

pub(super) async fn a_newcomers_generation_is_above_what_others_remember(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    let before = alice.entered().generation.number;
    trial.disturb(Disturbance::Flush).await?;
    // Without a memory there is only the store's clock to grow by.
    trial.pass(SHORT).await;
    let bob = trial.player("bob").await;
    assert!(bob.entered().minted && bob.entered().generation.number > before, "generations grow without a memory too");
    let continuity = alice.enters_again(trial).await;
    assert_eq!(continuity, Continuity::Reset, "everything that alice held is lost");
    assert_eq!(alice.entered().generation, bob.entered().generation, "and the newcomer's generation stays");
    Ok(())
}
