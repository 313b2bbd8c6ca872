//! Outsiders who write and delete leases with tools of their own.

use std::time::Duration;

use crate::name::{InstanceId, LeaseName};
use crate::store::{Refusal, Reply, Request};
use crate::testing::Disturbance;
use crate::testing::player::{acquire, shown, take_over};
use crate::testing::trial::{Checked, LONG, SHORT, Trial, job, lease};
use crate::token::Token;

const HOUR: Duration = Duration::from_secs(3_600);

fn written(name: &LeaseName, holder: &str, ttl: Option<Duration>) -> Disturbance {
    Disturbance::ForeignLease { name: name.clone(), holder: holder.to_owned(), ttl }
}

fn deleted(name: &LeaseName) -> Disturbance {
    Disturbance::ForeignDelete { name: name.clone() }
}

pub(super) async fn a_foreign_lease_is_respected(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    trial.disturb(written(&job(), "stranger", Some(LONG))).await?;
    let held = alice.finds_held(&job()).await;
    assert_eq!(held.by, InstanceId::foreign("stranger"), "whoever wrote the lease has it");
    assert_eq!(held.token, None, "a foreign program has no token");
    assert!(held.remaining.is_some_and(|left| left <= LONG), "its ttl is known: {held:?}");
    Ok(())
}

pub(super) async fn a_foreign_lease_ends_with_its_ttl(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    trial.disturb(written(&job(), "stranger", Some(SHORT))).await?;
    trial.outlast(SHORT).await;
    alice.wins(&job(), LONG).await;
    Ok(())
}

pub(super) async fn a_foreign_lease_without_a_ttl_is_reported_as_stuck(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    trial.disturb(written(&job(), "stranger", None)).await?;
    trial.outlast(SHORT).await;
    let held = alice.finds_held(&job()).await;
    assert_eq!(held.remaining, None, "without a ttl a lease is held for ever");
    trial.disturb(deleted(&job())).await?;
    alice.wins(&job(), LONG).await;
    Ok(())
}

pub(super) async fn what_is_left_of_a_foreign_lease_is_what_it_says(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    trial.disturb(written(&job(), "stranger", Some(HOUR))).await?;
    let held = alice.finds_held(&job()).await;
    assert!(held.remaining.is_some_and(|left| left > LONG && left <= HOUR), "it may be relied on: {held:?}");
    Ok(())
}

pub(super) async fn a_foreign_holder_can_be_shown_whatever_it_wrote(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    for text in ["a b\n{c}", "", "\u{1b}[31m", "päusen", "{\"json\": true}"] {
        trial.disturb(written(&job(), text, Some(LONG))).await?;
        let held = alice.finds_held(&job()).await;
        assert_eq!(held.by, InstanceId::foreign(text), "the holder {text:?} must be shown safely");
    }
    Ok(())
}

pub(super) async fn a_foreign_lease_is_not_taken_over(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    trial.disturb(written(&job(), "stranger", Some(LONG))).await?;
    let reply = alice.send(take_over(&alice.claim(&job(), LONG), term.token(), Duration::ZERO)).await;
    assert!(matches!(reply, Reply::Held(_)), "a foreign program reports no progress to judge it by: {reply:?}");
    Ok(())
}

pub(super) async fn a_foreign_lease_cannot_be_revoked(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    trial.disturb(written(&job(), "stranger", Some(LONG))).await?;
    let reply = alice.send(Request::Revoke { name: job(), token: Token::ZERO }).await;
    let taken = Reply::Refused(Refusal::Taken { by: InstanceId::foreign("stranger") });
    assert_eq!(reply, taken, "there is no term to be ended");
    Ok(())
}

pub(super) async fn a_term_whose_lease_was_deleted_is_missing(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    trial.disturb(deleted(&job())).await?;
    for request in term.privileged() {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, Reply::Refused(Refusal::Missing), "an outsider ended the lease: {}", shown(&request));
    }
    assert_eq!(alice.read(&job(), "result").await, None, "nothing was published");
    Ok(())
}

pub(super) async fn a_deleted_lease_is_granted_with_a_larger_token(trial: &Trial<'_>) -> Checked {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let old = alice.wins(&job(), LONG).await;
    trial.disturb(deleted(&job())).await?;
    let new = bob.wins(&job(), LONG).await;
    assert!(new.token() > old.token(), "the record of the last term outlives its lease");
    let taken = Reply::Refused(Refusal::Taken { by: bob.id.clone() });
    assert_eq!(alice.send(old.renewal()).await, taken, "the old holder learns who has the lease");
    Ok(())
}

pub(super) async fn a_term_whose_lease_was_overwritten_is_taken(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    trial.disturb(written(&job(), "stranger", Some(LONG))).await?;
    let taken = Reply::Refused(Refusal::Taken { by: InstanceId::foreign("stranger") });
    for request in term.privileged() {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, taken, "an outsider has the lease: {}", shown(&request));
    }
    assert_eq!(alice.send(term.abandon()).await, Reply::Done);
    let held = alice.inspect(&job()).await.held.map(|held| held.by);
    assert_eq!(held, Some(InstanceId::foreign("stranger")), "nothing of ours may remove a foreign lease");
    Ok(())
}

pub(super) async fn a_lease_in_our_name_without_a_term_is_not_ours(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    let elsewhere = alice.wins(&lease("elsewhere"), LONG).await;
    trial.disturb(written(&job(), "alice", Some(LONG))).await?;
    let mut invented = elsewhere.clone();
    invented.claim.name = job();
    for request in invented.privileged() {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, Reply::Refused(Refusal::StoreReset), "no term is on record: {}", shown(&request));
    }
    let reply = alice.tries(&job()).await;
    assert!(matches!(reply, Reply::Held(_)), "the holder's name alone proves nothing: {reply:?}");
    Ok(())
}

/// A token is for one term. An outsider who writes the holder's name back must not bring an ended one to life.
pub(super) async fn a_released_term_is_not_revived_by_its_name_in_the_lease(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    alice.send(term.release()).await;
    trial.disturb(written(&job(), "alice", Some(LONG))).await?;
    let renewed = alice.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Refused(_)), "the term was released and is over: {renewed:?}");
    let again = alice.send(acquire(&term.claim)).await;
    assert!(!matches!(again, Reply::Granted(_)), "and so is its claim: {again:?}");
    Ok(())
}
