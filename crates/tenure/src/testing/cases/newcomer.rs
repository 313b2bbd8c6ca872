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
    assert!(
        entered.began_because().is_none() && entered.quarantined_for().is_zero(),
        "nobody can hold anything: {entered:?}"
    );
    alice.wins(&job(), SHORT).await;
    Ok(())
}

pub(super) async fn bootstrap_opens_a_new_namespace_however_young_the_server(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let entered = alice.entered();
    assert!(entered.minted, "there was no record: {entered:?}");
    assert!(
        entered.began_because().is_none() && entered.quarantined_for().is_zero(),
        "the operator's word counts: {entered:?}"
    );
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
        entered.began_because(),
        Some(QuarantineReason::OthersListening),
        "whoever listens may hold leases: {entered:?}"
    );
    assert_eq!(entered.quarantined_for(), BRIEF, "for the longest ttl");
    drop(listener);
    trial.outlast(BRIEF).await;
    alice.wins(&job(), SHORT).await;
    Ok(())
}

pub(super) async fn bootstrap_does_not_open_over_listeners(trial: &Trial<'_>) -> Checked {
    trial.needs_listener_count()?;
    let _listener = trial.listener().await;
    let alice = trial.player("alice").await;
    assert_eq!(alice.entered().began_because(), Some(QuarantineReason::OthersListening), "they may hold leases");
    Ok(())
}

pub(super) async fn a_newcomer_closes_when_the_record_was_erased(trial: &Trial<'_>) -> Checked {
    trial.needs_marker()?;
    let alice = trial.player("alice").await;
    alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::AgeServer(BRIEF)).await?;
    // Alice is connected and cannot hear.
    trial.disturb(Disturbance::Flush).await?;
    let bob = trial.player_with("bob", BRIEF).await;
    let entered = bob.entered();
    assert_eq!(entered.began_because(), Some(QuarantineReason::RecordErased), "even with bootstrap: {entered:?}");
    let reply = bob.tries(&job()).await;
    assert!(matches!(reply, Reply::Quarantined(_)), "nothing may be granted yet: {reply:?}");
    trial.outlast(BRIEF).await;
    bob.wins(&job(), SHORT).await;
    Ok(())
}

pub(super) async fn bootstrap_opens_what_was_closed_only_for_the_age_of_the_server(trial: &Trial<'_>) -> Checked {
    trial.disturb(Disturbance::RestartEmpty).await?;
    let first = newcomer(trial, LONG).await;
    assert_eq!(first.entered().began_because(), Some(QuarantineReason::ServerTooYoung), "{:?}", first.entered());
    let second = trial.player("second").await;
    assert_eq!(second.entered().quarantine, None, "the operator makes up for the age: {:?}", second.entered());
    second.wins(&job(), LONG).await;
    Ok(())
}

pub(super) async fn listeners_close_nothing_once_there_is_a_record(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let _listener = trial.listener().await;
    let bob = newcomer(trial, LONG).await;
    assert_eq!(bob.entered().began_because(), None, "a namespace with a record is not new: {:?}", bob.entered());
    alice.wins(&job(), LONG).await;
}

pub(super) async fn a_newcomer_closes_when_the_server_is_young(trial: &Trial<'_>) -> Checked {
    trial.disturb(Disturbance::RestartEmpty).await?;
    let alice = newcomer(trial, LONG).await;
    let entered = alice.entered();
    assert!(entered.minted, "there was no record: {entered:?}");
    assert_eq!(
        entered.began_because(),
        Some(QuarantineReason::ServerTooYoung),
        "the namespace may have been lost: {entered:?}"
    );
    assert!(!entered.quarantined_for().is_zero() && entered.quarantined_for() <= LONG, "{entered:?}");
    let reply = alice.tries(&job()).await;
    assert!(matches!(reply, Reply::Quarantined(_)), "nothing may be granted yet: {reply:?}");
    Ok(())
}

pub(super) async fn a_young_server_closes_for_what_is_missing_of_the_longest_ttl(trial: &Trial<'_>) -> Checked {
    let age = Duration::from_secs(1);
    trial.disturb(Disturbance::RestartEmpty).await?;
    trial.disturb(Disturbance::AgeServer(age)).await?;
    let alice = newcomer(trial, LONG).await;
    let entered = alice.entered();
    assert_eq!(entered.began_because(), Some(QuarantineReason::ServerTooYoung), "{entered:?}");
    assert!(entered.quarantined_for() <= LONG - age, "what the server has already been up for counts: {entered:?}");
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
    assert!(!second.minted && second.began_because().is_none() && second.quarantined_for().is_zero(), "{second:?}");
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
