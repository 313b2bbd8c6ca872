//! Leases end by themselves.

use std::time::Duration;

use crate::store::{Ended, Refusal, Reply};
use crate::testing::Disturbance;
use crate::testing::player::{acquire, shown};
use crate::testing::trial::{BRIEF, Checked, LONG, SHORT, Trial, job, lease};
use crate::time::FIXED_SLACK;

const HOUR: Duration = Duration::from_secs(3_600);

pub(super) async fn a_lease_is_free_once_its_ttl_has_passed(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let old = alice.wins(&job(), SHORT).await;
    trial.outlast(SHORT).await;
    assert_eq!(bob.inspect(&job()).await.held, None, "nobody renewed the lease");
    let new = bob.wins(&job(), LONG).await;
    assert!(new.token() > old.token(), "the next term has a larger token");
    assert_eq!(new.grant.wait_out, Duration::ZERO, "whoever had the lease has stopped by now");
}

pub(super) async fn an_expired_term_can_do_nothing_more(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let term = alice.wins(&job(), SHORT).await;
    trial.outlast(SHORT).await;
    for request in term.privileged() {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, Reply::Refused(Refusal::Missing), "the term ran out: {}", shown(&request));
    }
    let last = alice.inspect(&job()).await.last.map(|last| (last.token, last.ended));
    assert_eq!(last, Some((term.token(), Ended::Silently)), "nobody ended the term; its record stays");
}

pub(super) async fn a_renewed_lease_outlives_its_first_ttl(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    // On a slow machine the lease may be over before it is renewed; then another one is.
    let term = loop {
        let term = alice.wins(&job(), SHORT).await;
        if let Reply::Renewed { .. } = alice.send(term.renewal_for(LONG)).await {
            break term;
        }
        trial.outlast(SHORT).await;
    };
    trial.outlast(SHORT).await;
    let held = alice.inspect(&job()).await.held;
    assert_eq!(held.and_then(|held| held.token), Some(term.token()), "a renewed lease goes on");
}

pub(super) async fn what_is_left_of_a_lease_only_shrinks(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    alice.wins(&job(), LONG).await;
    let mut before = bob.remaining(&job()).await;
    for _ in 0..3 {
        trial.pass(SHORT).await;
        let now = bob.finds_held(&job()).await.remaining.unwrap_or_default();
        assert!(now <= before, "{now:?} left, after {before:?} and without a renewal");
        before = now;
    }
    assert!(before <= LONG - SHORT, "three times {SHORT:?} must have been counted: {before:?}");
}

pub(super) async fn a_lease_with_little_left_is_still_held(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let term = alice.wins(&job(), Duration::from_secs(1)).await;
    // The store's own clock says whether a grant came too early; how fast this machine is does not matter.
    loop {
        match bob.tries(&job()).await {
            Reply::Held(held) => {
                assert_eq!(held.token, Some(term.token()), "nobody else can have it");
                trial.pass(Duration::from_millis(20)).await;
            }
            Reply::Granted(grant) => {
                let after = grant.server.since(term.grant.server);
                let ttl = term.claim.ttl;
                assert!(after + FIXED_SLACK >= ttl, "a lease of {ttl:?} was granted again after {after:?}");
                return;
            }
            other => panic!("a lease is held or granted; the store answered {other:?}"),
        }
    }
}

pub(super) async fn one_lease_running_out_does_not_end_another(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let short = alice.wins(&lease("short"), SHORT).await;
    let long = alice.wins(&job(), LONG).await;
    trial.outlast(SHORT).await;
    assert_eq!(alice.send(short.renewal()).await, Reply::Refused(Refusal::Missing), "the short one ran out");
    let renewed = alice.send(long.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the long one must not have: {renewed:?}");
}

pub(super) async fn a_clock_set_back_keeps_no_lease_for_ever(trial: &Trial<'_>) -> Checked {
    let (alice, bob) = (trial.player_with("alice", BRIEF).await, trial.player_with("bob", BRIEF).await);
    let old = alice.wins(&job(), BRIEF).await;
    trial.disturb(Disturbance::ClockBack(HOUR)).await?;
    // At worst it is noticed only when somebody asks, once for the namespace and once for the lease.
    for _ in 0..3 {
        if let Reply::Held(held) = bob.send(acquire(&bob.claim(&job(), BRIEF))).await {
            assert!(
                held.remaining.is_some_and(|left| left <= BRIEF),
                "no lease has more than the longest ttl: {held:?}"
            );
        }
        trial.outlast(BRIEF).await;
    }
    let new = bob.wins(&job(), BRIEF).await;
    assert!(new.token() > old.token(), "tokens must not go back with the clock");
    Ok(())
}

pub(super) async fn a_clock_set_back_makes_nobody_wait_who_need_not(trial: &Trial<'_>) -> Checked {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let term = alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::ClockBack(Duration::from_secs(3_600))).await?;
    alice.send(term.release()).await;
    let next = bob.wins(&job(), LONG).await;
    assert_eq!(next.grant.wait_out, Duration::ZERO, "nobody was deposed, so there is nobody to wait for");
    Ok(())
}

pub(super) async fn a_clock_set_ahead_ends_leases_and_breaks_nothing(trial: &Trial<'_>) -> Checked {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let old = alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::ClockForward(HOUR)).await?;
    // Some stores count ttls on a steady clock; either is fine as long as there is one holder.
    match bob.tries(&job()).await {
        Reply::Granted(grant) => {
            assert!(grant.token > old.token(), "the next term has a larger token");
            let reply = alice.send(old.renewal()).await;
            assert_eq!(reply, Reply::Refused(Refusal::Taken { by: bob.id.clone() }), "the old term is over");
        }
        Reply::Held(held) => {
            assert_eq!(held.by, alice.id, "nobody else can have it");
            let reply = alice.send(old.renewal()).await;
            assert!(matches!(reply, Reply::Renewed { .. }), "the holder stays the holder: {reply:?}");
        }
        other => panic!("a lease is held or granted; the store answered {other:?}"),
    }
    Ok(())
}
