//! Leases expire by themselves.

use std::time::Duration;

use crate::store::{RecordedEnd, Refusal, Reply};
use crate::testing::StoreFault;
use crate::testing::client::{acquire, shown};
use crate::testing::harness::{CaseHarness, Checked, LONG_TTL, QUARANTINE_TTL, SHORT_TTL, job, lease};
use tenure_core::time::FIXED_SLACK;

const HOUR: Duration = Duration::from_secs(3_600);

pub(super) async fn a_lease_is_free_once_its_ttl_has_passed(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let old = alice.acquire(&job(), SHORT_TTL).await;
    harness.outlast(SHORT_TTL).await;
    assert_eq!(bob.inspect(&job()).await.held, None, "the lease was not renewed");
    let new = bob.acquire(&job(), LONG_TTL).await;
    assert!(new.token() > old.token(), "the next term has a larger token");
    assert_eq!(new.grant.wait_out, Duration::ZERO, "the previous holder has stopped by now");
}

pub(super) async fn an_expired_term_can_do_nothing_more(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), SHORT_TTL).await;
    harness.outlast(SHORT_TTL).await;
    for request in term.fenced_requests() {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, Reply::Refused(Refusal::Missing), "the term has expired: {}", shown(&request));
    }
    let last = alice.inspect(&job()).await.last.map(|last| (last.token, last.ended));
    assert_eq!(last, Some((term.token(), RecordedEnd::Unreported)), "no end was reported; the record stays");
}

pub(super) async fn a_renewed_lease_outlives_its_first_ttl(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    // On a slow machine the lease may expire before the renewal; then the case tries again.
    let term = loop {
        let term = alice.acquire(&job(), SHORT_TTL).await;
        if let Reply::Renewed { .. } = alice.send(term.renewal_for(LONG_TTL)).await {
            break term;
        }
        harness.outlast(SHORT_TTL).await;
    };
    harness.outlast(SHORT_TTL).await;
    let held = alice.inspect(&job()).await.held;
    assert_eq!(held.and_then(|held| held.token), Some(term.token()), "a renewed lease continues");
}

pub(super) async fn the_remaining_time_of_a_lease_only_shrinks(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    alice.acquire(&job(), LONG_TTL).await;
    let mut before = bob.remaining(&job()).await;
    for _ in 0..3 {
        harness.advance_time(SHORT_TTL).await;
        let now = bob.expect_held(&job()).await.remaining.unwrap_or_default();
        assert!(now <= before, "{now:?} left, after {before:?} and without a renewal");
        before = now;
    }
    assert!(before <= LONG_TTL - SHORT_TTL, "three times {SHORT_TTL:?} must have been counted: {before:?}");
}

pub(super) async fn a_lease_with_little_left_is_still_held(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), Duration::from_secs(1)).await;
    // The store's own clock decides whether a grant came too early, independent of this machine's speed.
    loop {
        match bob.try_acquire(&job()).await {
            Reply::Held(held) => {
                assert_eq!(held.token, Some(term.token()), "no other term can hold it");
                harness.advance_time(Duration::from_millis(20)).await;
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

pub(super) async fn one_expiring_lease_does_not_end_another(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let short = alice.acquire(&lease("short"), SHORT_TTL).await;
    let long = alice.acquire(&job(), LONG_TTL).await;
    harness.outlast(SHORT_TTL).await;
    assert_eq!(alice.send(short.renewal()).await, Reply::Refused(Refusal::Missing), "the short one has expired");
    let renewed = alice.send(long.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "the long one must not have: {renewed:?}");
}

pub(super) async fn a_clock_set_back_keeps_no_lease_for_ever(harness: &CaseHarness<'_>) -> Checked {
    let (alice, bob) = (
        harness.client_with_max_ttl("alice", QUARANTINE_TTL).await,
        harness.client_with_max_ttl("bob", QUARANTINE_TTL).await,
    );
    let old = alice.acquire(&job(), QUARANTINE_TTL).await;
    harness.inject(StoreFault::StepClockBack(HOUR)).await?;
    // At worst the store notices only at a claim, once for the namespace and once for the lease.
    for _ in 0..3 {
        if let Reply::Held(held) = bob.send(acquire(&bob.claim(&job(), QUARANTINE_TTL))).await {
            assert!(
                held.remaining.is_some_and(|left| left <= QUARANTINE_TTL),
                "no lease has more than the longest ttl: {held:?}"
            );
        }
        harness.outlast(QUARANTINE_TTL).await;
    }
    let new = bob.acquire(&job(), QUARANTINE_TTL).await;
    assert!(new.token() > old.token(), "tokens must not go back with the clock");
    Ok(())
}

pub(super) async fn a_clock_set_back_adds_no_wait(harness: &CaseHarness<'_>) -> Checked {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::StepClockBack(Duration::from_secs(3_600))).await?;
    alice.send(term.release()).await;
    let next = bob.acquire(&job(), LONG_TTL).await;
    assert_eq!(next.grant.wait_out, Duration::ZERO, "no term was taken over, so there is nothing to wait for");
    Ok(())
}

pub(super) async fn a_clock_set_ahead_ends_leases_and_breaks_nothing(harness: &CaseHarness<'_>) -> Checked {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let old = alice.acquire(&job(), LONG_TTL).await;
    harness.inject(StoreFault::StepClockForward(HOUR)).await?;
    // Some stores count ttls on a monotonic clock; either is fine as long as there is one holder.
    match bob.try_acquire(&job()).await {
        Reply::Granted(grant) => {
            assert!(grant.token > old.token(), "the next term has a larger token");
            let reply = alice.send(old.renewal()).await;
            assert_eq!(reply, Reply::Refused(Refusal::Taken { holder: bob.id.clone() }), "the old term is over");
        }
        Reply::Held(held) => {
            assert_eq!(held.holder, alice.id, "no other instance can hold it");
            let reply = alice.send(old.renewal()).await;
            assert!(matches!(reply, Reply::Renewed { .. }), "the holder keeps the lease: {reply:?}");
        }
        other => panic!("a lease is held or granted; the store answered {other:?}"),
    }
    Ok(())
}
