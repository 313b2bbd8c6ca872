//! Letting go, in the right order.

use tenure::lease::{Ending, Input, Loss, Permission, ReleaseReason, Wish};
use tenure::store::{Ask, Continuity, ErrorKind, Refusal, Reply, Request, StoreError};
use tenure::time::Moment;

use crate::rig::{DEADLINE, Rig, error, me, ms, other, token};

#[test]
fn a_release_waits_for_the_work_to_end() {
    let mut rig = Rig::holding();
    rig.at(1_000);
    rig.input(Input::Wish(Wish::Release(ReleaseReason::Shutdown)));
    assert_eq!(rig.permissions(), [Permission::MustCancel { gone_by: Moment::ZERO + ms(DEADLINE) }]);
    assert!(rig.requests().is_empty());
    rig.at(1_200);
    rig.take();
    rig.input(Input::WorkEnded);
    assert_eq!(rig.permissions(), [Permission::MustBeGone]);
    assert_eq!(rig.events(), [""; 0], "not before it is true");
    let [Request::Release { holding, .. }] = &rig.requests()[..] else { panic!("{:?}", rig.requests()) };
    assert_eq!((&holding.holder, holding.token), (&me(), token(100)));
    rig.reply(Reply::Done);
    assert_eq!(rig.events(), ["lease.released token=100 reason=shutdown"]);
    assert_eq!(rig.lease.ending(), Some(&Ending::Released(ReleaseReason::Shutdown)));
}

#[test]
fn a_release_that_may_not_have_arrived_is_repeated_until_the_lease_has_run_out() {
    let mut rig = Rig::holding();
    rig.input(Input::Wish(Wish::Release(ReleaseReason::Voluntary)));
    rig.input(Input::WorkEnded);
    for connection in 1..=3 {
        assert!(matches!(rig.requests()[..], [Request::Release { .. }]), "over connection {connection}");
        rig.input(Input::ConnectionLost);
        rig.take();
        rig.at(connection * 5_000);
        assert!(rig.requests().is_empty() && rig.events().is_empty());
        rig.input(Input::Entered(Continuity::Same));
    }
    rig.at(DEADLINE - 1);
    assert_eq!(rig.lease.ending(), None);
    assert!(!rig.may_start(), "it is over all the same");
    rig.at(DEADLINE);
    assert_eq!(rig.events(), ["lease.released token=100 reason=voluntary"]);
    assert_eq!(rig.lease.ending(), Some(&Ending::Released(ReleaseReason::Voluntary)));
}

#[test]
fn a_release_that_the_store_could_not_carry_out_is_tried_again_over_the_same_connection() {
    let mut rig = Rig::holding();
    rig.input(Input::Wish(Wish::Release(ReleaseReason::Voluntary)));
    rig.input(Input::WorkEnded);
    rig.input(Input::Failed { attempt: rig.last_attempt(), error: error() });
    rig.take();
    rig.until_sent(10_000);
    rig.reply(Reply::Done);
    assert_eq!(rig.lease.ending(), Some(&Ending::Released(ReleaseReason::Voluntary)));
}

#[test]
fn a_release_that_was_sent_ends_the_term_whatever_the_reply() {
    let mut rig = Rig::holding();
    rig.input(Input::Wish(Wish::Release(ReleaseReason::Voluntary)));
    rig.input(Input::WorkEnded);
    rig.reply(Reply::Refused(Refusal::Missing));
    assert_eq!(rig.lease.ending(), Some(&Ending::Released(ReleaseReason::Voluntary)));
}

#[test]
fn an_answer_that_comes_late_is_an_answer() {
    let mut rig = Rig::holding();
    rig.input(Input::Wish(Wish::Release(ReleaseReason::Voluntary)));
    rig.input(Input::WorkEnded);
    let attempt = rig.last_attempt();
    rig.at(2_500);
    assert_eq!(rig.lease.ending(), None, "it did not come in time");
    rig.input(Input::Answered { attempt, reply: Reply::Done });
    assert_eq!(rig.lease.ending(), Some(&Ending::Released(ReleaseReason::Voluntary)));
}

#[test]
fn what_a_store_refuses_for_good_is_said_and_tried_now_and_then() {
    let mut rig = Rig::holding();
    rig.input(Input::Wish(Wish::Release(ReleaseReason::Voluntary)));
    rig.input(Input::WorkEnded);
    let forbidden = StoreError::new(ErrorKind::Configuration, "NOPERM");
    rig.input(Input::Failed { attempt: rig.last_attempt(), error: forbidden });
    assert!(rig.events()[0].starts_with("lease.release_failed token=100"), "{:?}", rig.events());
    rig.take();
    let again = rig.until_sent(20_000);
    assert!(again >= 10_000, "no hot loop: {again}");
    assert_eq!(rig.lease.ending(), None, "it is not let go of");
}

#[test]
fn a_release_that_failed_waits_for_a_connection_without_being_woken_for_nothing() {
    let mut rig = Rig::holding();
    rig.input(Input::Wish(Wish::Release(ReleaseReason::Voluntary)));
    rig.input(Input::WorkEnded);
    rig.input(Input::Failed { attempt: rig.last_attempt(), error: error() });
    rig.input(Input::ConnectionLost);
    let (due, _) = rig.lease.next_wake().unwrap();
    assert_eq!(due, Moment::ZERO + ms(DEADLINE), "there is nothing to be done before");
    rig.take();
    rig.at(9_000);
    rig.input(Input::Entered(Continuity::Same));
    assert!(matches!(rig.requests()[..], [Request::Release { .. }]));
}

#[test]
fn a_drain_lets_the_work_finish_first() {
    let mut rig = Rig::holding();
    rig.input(Input::Wish(Wish::Drain(ReleaseReason::Rebalance)));
    assert_eq!(rig.permissions(), [Permission::HoldStarts { token: token(100) }]);
    rig.at(8_000);
    rig.input(Input::WorkEnded);
    assert!(matches!(rig.requests()[..], [Request::Release { .. }]));
}

#[test]
fn a_drain_that_takes_too_long_is_cancelled() {
    let mut rig = Rig::holding();
    rig.input(Input::Wish(Wish::Drain(ReleaseReason::Rebalance)));
    rig.take();
    rig.at(9_999);
    assert!(!rig.permissions().iter().any(|p| matches!(p, Permission::MustCancel { .. })));
    rig.at(10_001);
    assert!(matches!(rig.permissions().last(), Some(Permission::MustCancel { .. })));
}

#[test]
fn a_second_wish_hurries_the_first() {
    let mut rig = Rig::holding();
    rig.input(Input::Wish(Wish::Drain(ReleaseReason::Rebalance)));
    rig.input(Input::Wish(Wish::Release(ReleaseReason::Shutdown)));
    assert!(matches!(rig.permissions().last(), Some(Permission::MustCancel { .. })));
}

#[test]
fn the_lease_is_renewed_while_a_goodbye_waits_but_not_for_ever() {
    let mut rig = Rig::holding();
    rig.at(5_000);
    rig.input(Input::Wish(Wish::Release(ReleaseReason::Shutdown)));
    let sent = rig.until_sent(11_000);
    rig.reply(rig.renewed());
    rig.take();
    rig.at(sent + DEADLINE - 1);
    assert!(rig.requests().is_empty(), "max drain has passed: the lease is left to run out");
    assert_eq!(rig.events(), ["lease.lost token=100 reason=expired"]);
    rig.at(sent + DEADLINE);
    assert_eq!(rig.permissions().last(), Some(&Permission::MustBeGone));
    rig.input(Input::WorkEnded);
    rig.reply(Reply::Refused(Refusal::Missing));
    assert_eq!(rig.lease.ending(), Some(&Ending::Lost(Loss::Expired)));
}

#[test]
fn a_hand_over_names_its_receiver_after_the_work_has_ended() {
    let mut rig = Rig::holding();
    rig.input(Input::Wish(Wish::HandOver(other())));
    assert!(rig.requests().is_empty());
    rig.input(Input::WorkEnded);
    let [Request::HandOver { to, window, .. }] = &rig.requests()[..] else { panic!("{:?}", rig.requests()) };
    assert_eq!((to, *window), (&other(), ms(3_000)));
    rig.reply(Reply::Done);
    assert_eq!(rig.events(), ["lease.released token=100 reason=handed_over"]);
}

#[test]
fn a_step_down_that_was_asked_for_is_heeded_with_the_next_renewal() {
    for (to, expected) in [(None, "step_down"), (Some(other()), "handed_over")] {
        let mut rig = Rig::holding();
        rig.until_sent(11_000);
        rig.reply(Reply::Renewed { server: rig.server(), max_ttl: ms(30_000), asked: Some(Ask::StepDown { to }) });
        assert!(matches!(rig.permissions().last(), Some(Permission::MustCancel { .. })));
        rig.take();
        rig.input(Input::WorkEnded);
        rig.reply(Reply::Done);
        assert_eq!(rig.events(), [format!("lease.released token=100 reason={expected}")]);
    }
}

#[test]
fn a_loss_during_a_goodbye_is_a_loss() {
    let mut rig = Rig::holding();
    rig.at(5_000);
    rig.input(Input::Wish(Wish::Drain(ReleaseReason::Rebalance)));
    rig.until_sent(11_000);
    rig.reply(Reply::Refused(Refusal::Taken { by: other() }));
    rig.take();
    rig.input(Input::WorkEnded);
    assert!(rig.requests().is_empty(), "it is not ours to release");
    assert_eq!(rig.lease.ending(), Some(&Ending::Lost(Loss::Taken { by: other() })));
}

#[test]
fn without_a_connection_the_release_waits_for_one() {
    let mut rig = Rig::holding();
    rig.input(Input::Wish(Wish::Release(ReleaseReason::Shutdown)));
    rig.input(Input::ConnectionLost);
    rig.input(Input::WorkEnded);
    assert!(rig.requests().is_empty());
    rig.at(5_000);
    rig.input(Input::Entered(Continuity::Same));
    assert!(matches!(rig.requests()[..], [Request::Release { .. }]));
}

#[test]
fn work_that_ends_by_itself_releases_nothing() {
    let mut rig = Rig::holding();
    rig.input(Input::WorkEnded);
    assert!(rig.requests().is_empty());
    assert!(rig.may_start(), "the next unit of work may start");
}
