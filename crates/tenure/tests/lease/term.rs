//! Holding on, doubting, losing.

use std::collections::BTreeMap;

use tenure::lease::{Action, Ending, Input, LeaseSettings, LeaseState, Loss, Permission};
use tenure::store::{Announcement, Continuity, Refusal, Reply, Request};
use tenure::time::{Moment, ServerTime};

use crate::rig::{DEADLINE, Rig, STOP_AT, ms, name, other, token};

#[test]
fn renewals_go_on_a_third_of_the_ttl_apart_and_move_the_deadline() {
    let mut rig = Rig::holding();
    let mut last = 0;
    for _ in 0..20 {
        let sent = rig.until_sent(last + 11_000);
        assert!((9_000..=10_001).contains(&(sent - last)), "{sent} after {last}");
        last = sent;
        rig.at(sent + 100);
        rig.reply(rig.renewed());
        let deadline = Moment::ZERO + ms(sent + DEADLINE);
        assert!(rig.lease.remaining(rig.clocks()).abs_diff(deadline.since(rig.now)) <= ms(1), "counted from sending");
        assert!(rig.may_start());
    }
}

/// Were they renewed together, they would expire together, and thousands cannot be taken over at once.
#[test]
fn many_leases_that_are_granted_at_once_are_renewed_apart() {
    let moments = |siblings: usize| {
        let mut moments: BTreeMap<u64, usize> = BTreeMap::new();
        for seed in 0..1_000 {
            let mut rig = Rig::seeded(LeaseSettings::default(), seed);
            rig.lease.set_siblings(siblings);
            rig.reply(rig.granted(100));
            *moments.entry(rig.until_sent(11_000)).or_default() += 1;
        }
        moments
    };
    assert!(moments(10).len() <= 2, "few leases of one instance travel together: {:?}", moments(10));
    let many = moments(1_000);
    assert!(many.values().all(|count| *count <= 200), "a thousand are spread: {many:?}");
    assert!(many.keys().all(|sent| (3_000..=10_001).contains(sent)), "{many:?}");
    assert!(moments(4_000).values().all(|count| *count <= 60), "four thousand more so: {:?}", moments(4_000));
}

#[test]
fn a_failed_renewal_stops_new_work_until_one_succeeds() {
    let mut rig = Rig::holding();
    rig.until_sent(11_000);
    rig.take();
    rig.unknown();
    assert_eq!(rig.state(), LeaseState::Uncertain);
    assert_eq!(rig.permissions(), [Permission::HoldStarts { token: token(100) }]);
    assert!(rig.lease.is_valid(rig.clocks()), "work in flight goes on");
    let before = rig.lease.remaining(rig.clocks());
    rig.until_sent(15_000);
    assert!(rig.lease.remaining(rig.clocks()) <= before, "a failure moves no deadline");
    rig.take();
    rig.reply(rig.renewed());
    assert_eq!(rig.state(), LeaseState::Owned);
    assert_eq!(rig.permissions(), [Permission::MayStart { token: token(100) }]);
    assert_eq!(rig.events(), ["lease.renewed token=100 ttl_ms=30000", "lease.recovered token=100"]);
}

#[test]
fn an_attempt_that_hangs_is_given_up_on_without_being_told() {
    let mut rig = Rig::holding();
    let sent = rig.until_sent(11_000);
    rig.at(sent + 1_998);
    assert_eq!(rig.state(), LeaseState::Owned);
    rig.at(sent + 2_001);
    assert_eq!(rig.state(), LeaseState::Uncertain);
}

#[test]
fn two_full_attempts_are_made_before_work_is_cancelled() {
    let mut rig = Rig::holding();
    rig.take();
    rig.at(STOP_AT - 1);
    assert!(rig.requests().len() >= 2, "{} attempts", rig.requests().len());
    assert!(rig.requests().iter().all(|request| matches!(request, Request::Renew { .. })));
    assert_eq!(rig.state(), LeaseState::Uncertain);
    rig.take();
    rig.at(STOP_AT);
    assert_eq!(rig.permissions(), [Permission::MustCancel { gone_by: Moment::ZERO + ms(DEADLINE) }]);
    assert_eq!(rig.events(), ["lease.lost token=100 reason=unreachable"]);
    assert!(!rig.lease.is_valid(rig.clocks()));
    rig.take();
    rig.at(DEADLINE);
    assert_eq!(rig.permissions(), [Permission::MustBeGone]);
    assert!(rig.requests().is_empty(), "nothing is renewed or released while work may run");
    assert_eq!(rig.lease.ending(), None);
    rig.input(Input::WorkEnded);
    assert!(matches!(rig.requests()[..], [Request::Release { .. }]));
    rig.reply(Reply::Refused(Refusal::Missing));
    assert_eq!(rig.lease.ending(), Some(&Ending::Lost(Loss::Unreachable)));
}

#[test]
fn a_renewal_that_succeeds_too_late_does_not_undo_the_loss() {
    let mut rig = Rig::holding();
    let sent = rig.until_sent(11_000);
    rig.asleep_until(STOP_AT);
    rig.reply(Reply::Renewed { server: rig.server(), max_ttl: ms(30_000), asked: None });
    assert!(sent < STOP_AT);
    assert_eq!(rig.events(), ["lease.lost token=100 reason=expired"]);
    rig.reply(rig.renewed());
    assert!(!rig.lease.is_valid(rig.clocks()));
}

#[test]
fn waking_after_the_deadline_means_gone_not_cancelled() {
    let mut rig = Rig::holding();
    rig.asleep_until(3_600_000);
    assert!(!rig.lease.is_valid(rig.clocks()), "computed, before anything has woken");
    assert_eq!(rig.lease.permission(rig.clocks()), Permission::MustBeGone);
    rig.asleep_until(STOP_AT);
    let gone_by = Moment::ZERO + ms(DEADLINE);
    assert_eq!(rig.lease.permission(rig.clocks()), Permission::MustCancel { gone_by });
    rig.asleep_until(3_600_000);
    assert_eq!(rig.state(), LeaseState::Unknown);
    rig.input(Input::Tick);
    assert_eq!(rig.permissions(), [Permission::MustBeGone]);
    assert_eq!(rig.events(), ["lease.lost token=100 reason=expired"]);
}

#[test]
fn every_refusal_is_a_loss_with_its_own_reason() {
    let cases = [
        (Refusal::Taken { by: other() }, "taken owner=other"),
        (Refusal::Missing, "missing"),
        (Refusal::StoreReset, "store_reset"),
        (Refusal::Revoked, "revoked"),
        (Refusal::Stalled, "stalled"),
    ];
    for (refusal, reason) in cases {
        let mut rig = Rig::holding();
        rig.until_sent(11_000);
        rig.take();
        rig.reply(Reply::Refused(refusal));
        assert_eq!(rig.events(), [format!("lease.lost token=100 reason={reason}")]);
        assert_eq!(rig.permissions(), [Permission::MustCancel { gone_by: rig.now + ms(5_000) }]);
        assert!(!rig.lease.is_valid(rig.clocks()));
    }
}

#[test]
fn a_publication_that_is_refused_is_a_loss_at_once_and_of_its_own_term_alone() {
    let mut rig = Rig::holding();
    rig.at(1_000);
    rig.input(Input::Refused { token: token(99), refusal: Refusal::Missing });
    assert!(rig.lease.is_valid(rig.clocks()), "that was an earlier term");
    rig.input(Input::Refused { token: token(100), refusal: Refusal::Missing });
    assert_eq!(rig.events(), ["lease.lost token=100 reason=missing"]);
    assert!(!rig.lease.is_valid(rig.clocks()));
}

#[test]
fn a_refusal_counts_even_when_the_attempt_was_given_up_on() {
    let mut rig = Rig::holding();
    rig.until_sent(11_000);
    let abandoned = rig.last_attempt();
    rig.unknown();
    rig.until_sent(15_000);
    rig.take();
    rig.input(Input::Answered { attempt: abandoned, reply: Reply::Refused(Refusal::Missing) });
    assert_eq!(rig.events(), ["lease.lost token=100 reason=missing"]);
}

#[test]
fn a_success_that_belongs_to_an_abandoned_attempt_moves_nothing() {
    let mut rig = Rig::holding();
    rig.until_sent(11_000);
    let abandoned = rig.last_attempt();
    rig.unknown();
    let before = rig.lease.remaining(rig.clocks());
    rig.input(Input::Answered { attempt: abandoned, reply: rig.renewed() });
    assert_eq!(rig.lease.remaining(rig.clocks()), before);
    assert_eq!(rig.state(), LeaseState::Uncertain);
}

#[test]
fn a_success_of_an_abandoned_attempt_is_not_taken_for_that_of_the_next() {
    let mut rig = Rig::holding();
    rig.until_sent(11_000);
    let abandoned = rig.last_attempt();
    rig.unknown();
    rig.until_sent(15_000);
    let before = rig.lease.remaining(rig.clocks());
    rig.input(Input::Answered { attempt: abandoned, reply: rig.renewed() });
    assert_eq!(rig.lease.remaining(rig.clocks()), before);
    assert_eq!(rig.state(), LeaseState::Uncertain);
}

#[test]
fn a_small_jump_is_noticed_in_a_long_term_too() {
    let mut rig = Rig::holding();
    let mut sent = 0;
    for _ in 0..200 {
        sent = rig.until_sent(sent + 11_000);
        rig.reply(rig.renewed());
    }
    rig.until_sent(sent + 11_000);
    rig.take();
    let server = ServerTime::from_micros(rig.server().as_micros() + 500_000);
    rig.reply(Reply::Renewed { server, max_ttl: ms(30_000), asked: None });
    assert_eq!(rig.events(), ["lease.lost token=100 reason=clock_step"]);
}

#[test]
fn what_is_heard_while_renewing_makes_the_answer_out_of_date() {
    let mut rig = Rig::holding();
    rig.until_sent(11_000);
    rig.take();
    rig.input(Input::Announced(Announcement::Revoked { name: name(), token: token(100) }));
    assert!(rig.requests().is_empty(), "one renewal at a time");
    rig.reply(rig.renewed());
    assert_eq!(rig.requests().len(), 1, "the answer may be from before the revocation");
}

#[test]
fn a_store_that_can_be_entered_and_fails_every_renewal_is_not_asked_in_a_hot_loop() {
    let mut rig = Rig::holding();
    rig.until_sent(11_000);
    rig.take();
    for _ in 0..100 {
        rig.unknown();
        rig.input(Input::ConnectionLost);
        rig.input(Input::Entered(Continuity::Same));
    }
    assert!(rig.requests().len() <= 3, "{} renewals without any time passing", rig.requests().len());
}

#[test]
fn a_server_clock_that_jumped_ends_the_term() {
    for shift in [-3_600_000_000_i64, -1_000_000, 1_000_000, 3_600_000_000] {
        let mut rig = Rig::holding();
        rig.until_sent(11_000);
        let server = ServerTime::from_micros(rig.server().as_micros().saturating_add_signed(shift));
        rig.take();
        rig.reply(Reply::Renewed { server, max_ttl: ms(30_000), asked: None });
        assert_eq!(rig.events(), ["lease.lost token=100 reason=clock_step"], "{shift}");
    }
}

#[test]
fn a_replaced_connection_defers_starts_and_keeps_the_deadline() {
    let mut rig = Rig::holding();
    rig.at(5_000);
    let before = rig.lease.remaining(rig.clocks());
    rig.input(Input::ConnectionLost);
    assert!(!rig.may_start());
    assert_eq!(rig.state(), LeaseState::Owned, "deferred, not in doubt");
    rig.at(5_500);
    rig.input(Input::Entered(Continuity::Same));
    assert!(rig.may_start());
    assert_eq!(rig.lease.remaining(rig.clocks()), before - ms(500));
    assert!(rig.events().is_empty());
}

#[test]
fn a_connection_that_is_not_replaced_in_time_puts_the_lease_in_doubt() {
    let mut rig = Rig::holding();
    rig.at(5_000);
    rig.input(Input::ConnectionLost);
    rig.at(6_999);
    assert_eq!(rig.state(), LeaseState::Owned);
    rig.at(7_000);
    assert_eq!(rig.state(), LeaseState::Uncertain);
    rig.at(STOP_AT);
    assert!(rig.requests().is_empty(), "there is nobody to ask");
    assert!(rig.events().last().unwrap().ends_with("reason=unreachable"));
}

#[test]
fn a_lease_in_doubt_is_renewed_as_soon_as_there_is_a_connection() {
    let mut rig = Rig::holding();
    rig.at(1_000);
    rig.input(Input::ConnectionLost);
    rig.at(4_000);
    assert_eq!(rig.state(), LeaseState::Uncertain);
    rig.input(Input::Entered(Continuity::Same));
    assert!(!rig.may_start(), "entering does not restore what was in doubt; a renewal does");
    assert!(matches!(rig.requests()[..], [Request::Renew { .. }]));
    rig.reply(rig.renewed());
    assert!(rig.may_start());
}

#[test]
fn a_lease_is_small() {
    // A process may hold a hundred thousand of them.
    assert!(size_of::<tenure::lease::Lease>() <= 400, "{} bytes", size_of::<tenure::lease::Lease>());
}

#[test]
fn a_store_that_may_have_lost_data_is_asked_before_new_work_starts() {
    let mut rig = Rig::holding();
    rig.at(5_000);
    rig.input(Input::ConnectionLost);
    rig.input(Input::Entered(Continuity::Changed));
    assert_eq!(rig.state(), LeaseState::Uncertain);
    assert!(matches!(rig.requests()[..], [Request::Renew { .. }]));
    rig.reply(rig.renewed());
    assert!(rig.may_start());
}

#[test]
fn a_store_with_other_data_is_a_loss_at_once() {
    let mut rig = Rig::holding();
    rig.input(Input::Entered(Continuity::Reset));
    assert_eq!(rig.events(), ["lease.lost token=100 reason=store_reset"]);
    rig.take();
    rig.input(Input::WorkEnded);
    assert_eq!(rig.lease.ending(), Some(&Ending::Lost(Loss::StoreReset)));
    assert!(rig.requests().is_empty(), "there is nothing of ours in it");
}

#[test]
fn renewals_stop_when_the_work_makes_no_progress() {
    let settings = LeaseSettings::builder().stall_after(ms(15_000)).build().unwrap();
    let mut rig = Rig::holding_with(settings);
    let sent = rig.until_sent(11_000);
    rig.reply(rig.renewed());
    rig.take();
    rig.at(sent + STOP_AT - 1);
    assert!(rig.requests().is_empty(), "no progress since the beginning");
    rig.at(sent + STOP_AT);
    assert_eq!(rig.events(), ["lease.lost token=100 reason=stalled"]);
}

#[test]
fn progress_reopens_the_gate_and_travels_with_the_renewal() {
    let settings = LeaseSettings::builder().stall_after(ms(15_000)).build().unwrap();
    let mut rig = Rig::holding_with(settings);
    rig.until_sent(11_000);
    assert!(matches!(rig.requests()[..], [Request::Renew { progressed: false, .. }]));
    rig.reply(rig.renewed());
    rig.at(26_000);
    rig.take();
    rig.input(Input::Progress);
    assert!(matches!(rig.requests()[..], [Request::Renew { progressed: true, .. }]));
}

#[test]
fn progress_is_reported_again_until_a_renewal_has_arrived() {
    let mut rig = Rig::holding();
    rig.at(1_000);
    rig.input(Input::Progress);
    rig.until_sent(11_000);
    assert!(matches!(rig.requests()[..], [Request::Renew { progressed: true, .. }]));
    rig.unknown();
    rig.until_sent(15_000);
    assert!(matches!(rig.requests()[..], [Request::Renew { progressed: true, .. }]), "the first may not have arrived");
    rig.reply(rig.renewed());
    rig.until_sent(30_000);
    assert!(matches!(rig.requests()[..], [Request::Renew { progressed: false, .. }]));
}

#[test]
fn wake_ups_that_are_out_of_date_change_nothing() {
    let mut rig = Rig::holding();
    let mut wakes = Vec::new();
    for _ in 0..3 {
        rig.until_sent(200_000);
        rig.reply(rig.renewed());
        wakes.extend(rig.take().into_iter().filter_map(|action| match action {
            Action::Wake { epoch, .. } => Some(epoch),
            _ => None,
        }));
    }
    wakes.pop();
    for stale in wakes {
        rig.input(Input::Wake(stale));
        assert!(rig.actions.is_empty());
    }
}
