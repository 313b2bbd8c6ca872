//! Releasing a lease in the right order.

use tenure_core::ending::{Ending, Loss, ReleaseReason};
use tenure_core::lease::{Input, Intent, Permission};
use tenure_core::store::{Ask, Continuity, ErrorKind, LeaseRequest, Refusal, Reply, StoreError};
use tenure_core::time::Moment;

use crate::harness::{DEADLINE, LeaseHarness, error, me, ms, other, token};

#[test]
fn a_release_waits_for_the_work_to_end() {
    let mut harness = LeaseHarness::holding();
    harness.run_until(1_000);
    harness.input(Input::Intent(Intent::Release(ReleaseReason::Shutdown)));
    assert_eq!(harness.permissions(), [Permission::MustCancel { gone_by: Moment::ZERO + ms(DEADLINE) }]);
    assert!(harness.requests().is_empty());
    harness.run_until(1_200);
    harness.take();
    harness.input(Input::WorkEnded);
    assert_eq!(harness.permissions(), [Permission::MustBeGone]);
    assert_eq!(harness.events(), [""; 0], "not reported before it is true");
    let [LeaseRequest::Release { holding, .. }] = &harness.requests()[..] else { panic!("{:?}", harness.requests()) };
    assert_eq!((&holding.holder, holding.token), (&me(), token(100)));
    harness.reply(Reply::Done);
    assert_eq!(harness.events(), ["lease.released token=100 reason=shutdown"]);
    assert_eq!(harness.lease.ending(), Some(&Ending::Released(ReleaseReason::Shutdown)));
}

#[test]
fn a_release_with_an_unknown_outcome_is_repeated_until_the_lease_expires() {
    let mut harness = LeaseHarness::holding();
    harness.input(Input::Intent(Intent::Release(ReleaseReason::Voluntary)));
    harness.input(Input::WorkEnded);
    for connection in 1..=3 {
        assert!(matches!(harness.requests()[..], [LeaseRequest::Release { .. }]), "over connection {connection}");
        harness.input(Input::ConnectionLost);
        harness.take();
        harness.run_until(connection * 5_000);
        assert!(harness.requests().is_empty() && harness.events().is_empty());
        harness.input(Input::Attached(Continuity::Same));
    }
    harness.run_until(DEADLINE - 1);
    assert_eq!(harness.lease.ending(), None);
    assert!(!harness.may_start(), "the term has ended all the same");
    harness.run_until(DEADLINE);
    assert_eq!(harness.events(), ["lease.released token=100 reason=voluntary"]);
    assert_eq!(harness.lease.ending(), Some(&Ending::Released(ReleaseReason::Voluntary)));
}

#[test]
fn a_failed_release_is_retried_over_the_same_connection() {
    let mut harness = LeaseHarness::holding();
    harness.input(Input::Intent(Intent::Release(ReleaseReason::Voluntary)));
    harness.input(Input::WorkEnded);
    harness.input(Input::Failed { attempt: harness.last_attempt(), error: error() });
    harness.take();
    harness.run_until_sent(10_000);
    harness.reply(Reply::Done);
    assert_eq!(harness.lease.ending(), Some(&Ending::Released(ReleaseReason::Voluntary)));
}

#[test]
fn a_release_that_the_store_refuses_is_a_loss() {
    let mut harness = LeaseHarness::holding();
    harness.input(Input::Intent(Intent::Release(ReleaseReason::Voluntary)));
    harness.input(Input::WorkEnded);
    harness.input(Input::Failed { attempt: harness.last_attempt(), error: error() });
    harness.take();
    harness.run_until_sent(10_000);
    harness.reply(Reply::Refused(Refusal::StoreReset));
    assert_eq!(harness.events(), ["lease.lost token=100 reason=store_reset"]);
    assert_eq!(harness.lease.ending(), Some(&Ending::Lost(Loss::StoreReset)));
}

#[test]
fn a_refusal_after_an_unknown_outcome_proves_no_loss() {
    let mut harness = LeaseHarness::holding();
    harness.input(Input::Intent(Intent::HandOver(other())));
    harness.input(Input::WorkEnded);
    harness.input(Input::ConnectionLost);
    harness.input(Input::Attached(Continuity::Same));
    harness.take();
    // The first attempt may have handed the lease over.
    harness.reply(Reply::Refused(Refusal::Taken { holder: other() }));
    assert_eq!(harness.lease.ending(), Some(&Ending::Released(ReleaseReason::HandedOver)));
}

#[test]
fn a_reply_to_a_release_counts_after_the_expiry_as_well() {
    let mut harness = LeaseHarness::holding();
    harness.input(Input::Intent(Intent::Release(ReleaseReason::Voluntary)));
    harness.input(Input::WorkEnded);
    let attempt = harness.last_attempt();
    harness.jump_to(DEADLINE + 1);
    harness.input(Input::Answered { attempt, reply: Reply::Done });
    assert_eq!(harness.lease.ending(), Some(&Ending::Released(ReleaseReason::Voluntary)));
    assert!(!harness.lease.is_release_unknown());
}

#[test]
fn a_late_reply_to_a_release_counts() {
    let mut harness = LeaseHarness::holding();
    harness.input(Input::Intent(Intent::Release(ReleaseReason::Voluntary)));
    harness.input(Input::WorkEnded);
    let attempt = harness.last_attempt();
    harness.run_until(2_500);
    assert_eq!(harness.lease.ending(), None, "no reply in time");
    harness.input(Input::Answered { attempt, reply: Reply::Done });
    assert_eq!(harness.lease.ending(), Some(&Ending::Released(ReleaseReason::Voluntary)));
}

#[test]
fn a_permanently_refused_release_is_reported_and_retried_rarely() {
    let mut harness = LeaseHarness::holding();
    harness.input(Input::Intent(Intent::Release(ReleaseReason::Voluntary)));
    harness.input(Input::WorkEnded);
    let forbidden = StoreError::new(ErrorKind::Configuration, "NOPERM");
    harness.input(Input::Failed { attempt: harness.last_attempt(), error: forbidden });
    assert!(harness.events()[0].starts_with("lease.release_failed token=100"), "{:?}", harness.events());
    harness.take();
    let again = harness.run_until_sent(20_000);
    assert!(again >= 10_000, "no hot loop: {again}");
    assert_eq!(harness.lease.ending(), None, "the release is not given up");
}

#[test]
fn a_failed_release_waits_for_a_connection_without_needless_wake_ups() {
    let mut harness = LeaseHarness::holding();
    harness.input(Input::Intent(Intent::Release(ReleaseReason::Voluntary)));
    harness.input(Input::WorkEnded);
    harness.input(Input::Failed { attempt: harness.last_attempt(), error: error() });
    harness.input(Input::ConnectionLost);
    let (due, _) = harness.lease.next_wake().unwrap();
    assert_eq!(due, Moment::ZERO + ms(DEADLINE), "no wake-up is needed before");
    harness.take();
    harness.run_until(9_000);
    harness.input(Input::Attached(Continuity::Same));
    assert!(matches!(harness.requests()[..], [LeaseRequest::Release { .. }]));
}

#[test]
fn a_drain_lets_the_work_finish_first() {
    let mut harness = LeaseHarness::holding();
    harness.input(Input::Intent(Intent::Drain(ReleaseReason::Rebalance)));
    assert_eq!(harness.permissions(), [Permission::HoldStarts { token: token(100) }]);
    harness.run_until(8_000);
    harness.input(Input::WorkEnded);
    assert!(matches!(harness.requests()[..], [LeaseRequest::Release { .. }]));
}

#[test]
fn a_drain_that_takes_too_long_is_cancelled() {
    let mut harness = LeaseHarness::holding();
    harness.input(Input::Intent(Intent::Drain(ReleaseReason::Rebalance)));
    harness.take();
    harness.run_until(9_999);
    assert!(!harness.permissions().iter().any(|p| matches!(p, Permission::MustCancel { .. })));
    harness.run_until(10_001);
    assert!(matches!(harness.permissions().last(), Some(Permission::MustCancel { .. })));
}

#[test]
fn a_second_intent_hurries_the_first() {
    let mut harness = LeaseHarness::holding();
    harness.input(Input::Intent(Intent::Drain(ReleaseReason::Rebalance)));
    harness.input(Input::Intent(Intent::Release(ReleaseReason::Shutdown)));
    assert!(matches!(harness.permissions().last(), Some(Permission::MustCancel { .. })));
}

#[test]
fn the_lease_is_renewed_while_a_release_waits_for_work_but_not_for_ever() {
    let mut harness = LeaseHarness::holding();
    harness.run_until(5_000);
    harness.input(Input::Intent(Intent::Release(ReleaseReason::Shutdown)));
    let sent = harness.run_until_sent(11_000);
    harness.reply(harness.renewed());
    harness.take();
    harness.run_until(sent + DEADLINE - 1);
    assert!(harness.requests().is_empty(), "max drain has passed: the lease is left to expire");
    assert_eq!(harness.events(), ["lease.lost token=100 reason=expired"]);
    harness.run_until(sent + DEADLINE);
    assert_eq!(harness.permissions().last(), Some(&Permission::MustBeGone));
    harness.input(Input::WorkEnded);
    harness.reply(Reply::Refused(Refusal::Missing));
    assert_eq!(harness.lease.ending(), Some(&Ending::Lost(Loss::Expired)));
}

#[test]
fn a_hand_over_names_its_receiver_after_the_work_has_ended() {
    let mut harness = LeaseHarness::holding();
    harness.input(Input::Intent(Intent::HandOver(other())));
    assert!(harness.requests().is_empty());
    harness.input(Input::WorkEnded);
    let [LeaseRequest::HandOver { to, window, .. }] = &harness.requests()[..] else {
        panic!("{:?}", harness.requests())
    };
    assert_eq!((to, *window), (&other(), ms(3_000)));
    harness.reply(Reply::Done);
    assert_eq!(harness.events(), ["lease.released token=100 reason=handed_over"]);
}

#[test]
fn a_requested_step_down_happens_with_the_next_renewal() {
    for (to, expected) in [(None, "step_down"), (Some(other()), "handed_over")] {
        let mut harness = LeaseHarness::holding();
        harness.run_until_sent(11_000);
        harness.reply(Reply::Renewed {
            server: harness.server(),
            max_ttl: ms(30_000),
            asked: Some(Ask::StepDown { to }),
        });
        assert!(matches!(harness.permissions().last(), Some(Permission::MustCancel { .. })));
        harness.take();
        harness.input(Input::WorkEnded);
        harness.reply(Reply::Done);
        assert_eq!(harness.events(), [format!("lease.released token=100 reason={expected}")]);
    }
}

#[test]
fn a_loss_during_a_release_is_a_loss() {
    let mut harness = LeaseHarness::holding();
    harness.run_until(5_000);
    harness.input(Input::Intent(Intent::Drain(ReleaseReason::Rebalance)));
    harness.run_until_sent(11_000);
    harness.reply(Reply::Refused(Refusal::Taken { holder: other() }));
    harness.take();
    harness.input(Input::WorkEnded);
    assert!(harness.requests().is_empty(), "a lost lease must not be released");
    assert_eq!(harness.lease.ending(), Some(&Ending::Lost(Loss::Taken { holder: other() })));
}

#[test]
fn without_a_connection_the_release_waits_for_one() {
    let mut harness = LeaseHarness::holding();
    harness.input(Input::Intent(Intent::Release(ReleaseReason::Shutdown)));
    harness.input(Input::ConnectionLost);
    harness.input(Input::WorkEnded);
    assert!(harness.requests().is_empty());
    harness.run_until(5_000);
    harness.input(Input::Attached(Continuity::Same));
    assert!(matches!(harness.requests()[..], [LeaseRequest::Release { .. }]));
}

#[test]
fn work_that_ends_by_itself_releases_nothing() {
    let mut harness = LeaseHarness::holding();
    harness.input(Input::WorkEnded);
    assert!(harness.requests().is_empty());
    assert!(harness.may_start(), "the next unit of work may start");
}
