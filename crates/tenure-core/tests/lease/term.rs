//! Renewing a term, uncertainty and loss.

use std::collections::BTreeMap;

use tenure_core::ending::{Ending, Loss};
use tenure_core::lease::{Action, Input, LeaseSettings, LeaseState, Permission};
use tenure_core::store::{Announcement, Continuity, LeaseRequest, Refusal, Reply};
use tenure_core::time::{Moment, ServerTime};

use crate::harness::{DEADLINE, LeaseHarness, STOP_AT, ms, name, other, token};

#[test]
fn renewals_go_on_a_third_of_the_ttl_apart_and_move_the_deadline() {
    let mut harness = LeaseHarness::holding();
    let mut last = 0;
    for _ in 0..20 {
        let sent = harness.run_until_sent(last + 11_000);
        assert!((9_000..=10_001).contains(&(sent - last)), "{sent} after {last}");
        last = sent;
        harness.run_until(sent + 100);
        harness.reply(harness.renewed());
        let deadline = Moment::ZERO + ms(sent + DEADLINE);
        assert!(
            harness.lease.remaining(harness.clocks()).abs_diff(deadline.since(harness.now)) <= ms(1),
            "counted from the time of sending"
        );
        assert!(harness.may_start());
    }
}

/// If leases were renewed together, they would expire together, and thousands cannot be taken over at once.
#[test]
fn many_leases_granted_together_are_renewed_apart() {
    let moments = |siblings: usize| {
        let mut moments: BTreeMap<u64, usize> = BTreeMap::new();
        for seed in 0..1_000 {
            let mut harness = LeaseHarness::seeded(LeaseSettings::default(), seed);
            harness.lease.set_siblings(siblings);
            harness.reply(harness.granted(100));
            *moments.entry(harness.run_until_sent(11_000)).or_default() += 1;
        }
        moments
    };
    assert!(moments(10).len() <= 2, "few leases of one instance are renewed together: {:?}", moments(10));
    let many = moments(1_000);
    assert!(many.values().all(|count| *count <= 200), "the renewals of a thousand leases must be spread: {many:?}");
    assert!(many.keys().all(|sent| (3_000..=10_001).contains(sent)), "{many:?}");
    assert!(moments(4_000).values().all(|count| *count <= 60), "four thousand more so: {:?}", moments(4_000));
}

#[test]
fn a_failed_renewal_stops_new_work_until_one_succeeds() {
    let mut harness = LeaseHarness::holding();
    harness.run_until_sent(11_000);
    harness.take();
    harness.unknown();
    assert_eq!(harness.state(), LeaseState::Uncertain);
    assert_eq!(harness.permissions(), [Permission::HoldStarts { token: token(100) }]);
    assert!(harness.lease.is_valid(harness.clocks()), "running work continues");
    let before = harness.lease.remaining(harness.clocks());
    harness.run_until_sent(15_000);
    assert!(harness.lease.remaining(harness.clocks()) <= before, "a failure moves no deadline");
    harness.take();
    harness.reply(harness.renewed());
    assert_eq!(harness.state(), LeaseState::Owned);
    assert_eq!(harness.permissions(), [Permission::MayStart { token: token(100) }]);
    assert_eq!(harness.events(), ["lease.renewed token=100 ttl_ms=30000", "lease.recovered token=100"]);
}

#[test]
fn a_hanging_attempt_times_out() {
    let mut harness = LeaseHarness::holding();
    let sent = harness.run_until_sent(11_000);
    harness.run_until(sent + 1_998);
    assert_eq!(harness.state(), LeaseState::Owned);
    harness.run_until(sent + 2_001);
    assert_eq!(harness.state(), LeaseState::Uncertain);
}

#[test]
fn two_full_attempts_are_made_before_work_is_cancelled() {
    let mut harness = LeaseHarness::holding();
    harness.take();
    harness.run_until(STOP_AT - 1);
    assert!(harness.requests().len() >= 2, "{} attempts", harness.requests().len());
    assert!(harness.requests().iter().all(|request| matches!(request, LeaseRequest::Renew { .. })));
    assert_eq!(harness.state(), LeaseState::Uncertain);
    harness.take();
    harness.run_until(STOP_AT);
    assert_eq!(harness.permissions(), [Permission::MustCancel { gone_by: Moment::ZERO + ms(DEADLINE) }]);
    assert_eq!(harness.events(), ["lease.lost token=100 reason=unreachable"]);
    assert!(!harness.lease.is_valid(harness.clocks()));
    harness.take();
    harness.run_until(DEADLINE);
    assert_eq!(harness.permissions(), [Permission::MustBeGone]);
    assert!(harness.requests().is_empty(), "no renewal or release while work may run");
    assert_eq!(harness.lease.ending(), None);
    harness.input(Input::WorkEnded);
    assert!(matches!(harness.requests()[..], [LeaseRequest::Release { .. }]));
    harness.reply(Reply::Refused(Refusal::Missing));
    assert_eq!(harness.lease.ending(), Some(&Ending::Lost(Loss::Unreachable)));
}

#[test]
fn a_renewal_that_succeeds_too_late_does_not_undo_the_loss() {
    let mut harness = LeaseHarness::holding();
    let sent = harness.run_until_sent(11_000);
    harness.jump_to(STOP_AT);
    harness.reply(Reply::Renewed { server: harness.server(), max_ttl: ms(30_000), asked: None });
    assert!(sent < STOP_AT);
    assert_eq!(harness.events(), ["lease.lost token=100 reason=expired"]);
    harness.reply(harness.renewed());
    assert!(!harness.lease.is_valid(harness.clocks()));
}

#[test]
fn waking_after_the_deadline_forbids_all_work() {
    let mut harness = LeaseHarness::holding();
    harness.jump_to(3_600_000);
    assert!(!harness.lease.is_valid(harness.clocks()), "computed from the clock, before any wake-up");
    assert_eq!(harness.lease.permission(harness.clocks()), Permission::MustBeGone);
    harness.jump_to(STOP_AT);
    let gone_by = Moment::ZERO + ms(DEADLINE);
    assert_eq!(harness.lease.permission(harness.clocks()), Permission::MustCancel { gone_by });
    harness.jump_to(3_600_000);
    assert_eq!(harness.state(), LeaseState::Unknown);
    harness.input(Input::Tick);
    assert_eq!(harness.permissions(), [Permission::MustBeGone]);
    assert_eq!(harness.events(), ["lease.lost token=100 reason=expired"]);
}

#[test]
fn every_refusal_is_a_loss_with_its_own_reason() {
    let cases = [
        (Refusal::Taken { holder: other() }, "taken owner=other"),
        (Refusal::Missing, "missing"),
        (Refusal::StoreReset, "store_reset"),
        (Refusal::Revoked, "revoked"),
        (Refusal::Stalled, "stalled"),
    ];
    for (refusal, reason) in cases {
        let mut harness = LeaseHarness::holding();
        harness.run_until_sent(11_000);
        harness.take();
        harness.reply(Reply::Refused(refusal));
        assert_eq!(harness.events(), [format!("lease.lost token=100 reason={reason}")]);
        assert_eq!(harness.permissions(), [Permission::MustCancel { gone_by: harness.now + ms(5_000) }]);
        assert!(!harness.lease.is_valid(harness.clocks()));
    }
}

#[test]
fn a_refused_publication_ends_its_own_term_at_once() {
    let mut harness = LeaseHarness::holding();
    harness.run_until(1_000);
    harness.input(Input::Refused { token: token(99), refusal: Refusal::Missing });
    assert!(harness.lease.is_valid(harness.clocks()), "the refusal was for an earlier term");
    harness.input(Input::Refused { token: token(100), refusal: Refusal::Missing });
    assert_eq!(harness.events(), ["lease.lost token=100 reason=missing"]);
    assert!(!harness.lease.is_valid(harness.clocks()));
}

#[test]
fn a_refusal_of_an_abandoned_attempt_counts() {
    let mut harness = LeaseHarness::holding();
    harness.run_until_sent(11_000);
    let abandoned = harness.last_attempt();
    harness.unknown();
    harness.run_until_sent(15_000);
    harness.take();
    harness.input(Input::Answered { attempt: abandoned, reply: Reply::Refused(Refusal::Missing) });
    assert_eq!(harness.events(), ["lease.lost token=100 reason=missing"]);
}

#[test]
fn a_success_of_an_abandoned_attempt_changes_nothing() {
    let mut harness = LeaseHarness::holding();
    harness.run_until_sent(11_000);
    let abandoned = harness.last_attempt();
    harness.unknown();
    let before = harness.lease.remaining(harness.clocks());
    harness.input(Input::Answered { attempt: abandoned, reply: harness.renewed() });
    assert_eq!(harness.lease.remaining(harness.clocks()), before);
    assert_eq!(harness.state(), LeaseState::Uncertain);
}

#[test]
fn a_success_of_an_abandoned_attempt_does_not_answer_the_next() {
    let mut harness = LeaseHarness::holding();
    harness.run_until_sent(11_000);
    let abandoned = harness.last_attempt();
    harness.unknown();
    harness.run_until_sent(15_000);
    let before = harness.lease.remaining(harness.clocks());
    harness.input(Input::Answered { attempt: abandoned, reply: harness.renewed() });
    assert_eq!(harness.lease.remaining(harness.clocks()), before);
    assert_eq!(harness.state(), LeaseState::Uncertain);
}

#[test]
fn a_small_clock_step_is_noticed_in_a_long_term() {
    let mut harness = LeaseHarness::holding();
    let mut sent = 0;
    for _ in 0..200 {
        sent = harness.run_until_sent(sent + 11_000);
        harness.reply(harness.renewed());
    }
    harness.run_until_sent(sent + 11_000);
    harness.take();
    let server = ServerTime::from_micros(harness.server().as_micros() + 500_000);
    harness.reply(Reply::Renewed { server, max_ttl: ms(30_000), asked: None });
    assert_eq!(harness.events(), ["lease.lost token=100 reason=clock_step"]);
}

#[test]
fn an_announcement_during_a_renewal_makes_the_reply_stale() {
    let mut harness = LeaseHarness::holding();
    harness.run_until_sent(11_000);
    harness.take();
    harness.input(Input::Announced(Announcement::Revoked { name: name(), token: token(100) }));
    assert!(harness.requests().is_empty(), "one renewal at a time");
    harness.reply(harness.renewed());
    assert_eq!(harness.requests().len(), 1, "the reply may be older than the revocation");
}

#[test]
fn failing_renewals_are_not_retried_in_a_hot_loop() {
    let mut harness = LeaseHarness::holding();
    harness.run_until_sent(11_000);
    harness.take();
    for _ in 0..100 {
        harness.unknown();
        harness.input(Input::ConnectionLost);
        harness.input(Input::Attached(Continuity::Same));
    }
    assert!(harness.requests().len() <= 3, "{} renewals without any time passing", harness.requests().len());
}

#[test]
fn a_server_clock_step_ends_the_term() {
    for shift in [-3_600_000_000_i64, -1_000_000, 1_000_000, 3_600_000_000] {
        let mut harness = LeaseHarness::holding();
        harness.run_until_sent(11_000);
        let server = ServerTime::from_micros(harness.server().as_micros().saturating_add_signed(shift));
        harness.take();
        harness.reply(Reply::Renewed { server, max_ttl: ms(30_000), asked: None });
        assert_eq!(harness.events(), ["lease.lost token=100 reason=clock_step"], "{shift}");
    }
}

#[test]
fn a_replaced_connection_defers_starts_and_keeps_the_deadline() {
    let mut harness = LeaseHarness::holding();
    harness.run_until(5_000);
    let before = harness.lease.remaining(harness.clocks());
    harness.input(Input::ConnectionLost);
    assert!(!harness.may_start());
    assert_eq!(harness.state(), LeaseState::Owned, "deferred, not uncertain");
    harness.run_until(5_500);
    harness.input(Input::Attached(Continuity::Same));
    assert!(harness.may_start());
    assert_eq!(harness.lease.remaining(harness.clocks()), before - ms(500));
    assert!(harness.events().is_empty());
}

#[test]
fn a_connection_that_is_not_replaced_in_time_makes_the_lease_uncertain() {
    let mut harness = LeaseHarness::holding();
    harness.run_until(5_000);
    harness.input(Input::ConnectionLost);
    harness.run_until(6_999);
    assert_eq!(harness.state(), LeaseState::Owned);
    harness.run_until(7_000);
    assert_eq!(harness.state(), LeaseState::Uncertain);
    harness.run_until(STOP_AT);
    assert!(harness.requests().is_empty(), "no request without a connection");
    assert!(harness.events().last().unwrap().ends_with("reason=unreachable"));
}

#[test]
fn an_uncertain_lease_is_renewed_on_reconnect() {
    let mut harness = LeaseHarness::holding();
    harness.run_until(1_000);
    harness.input(Input::ConnectionLost);
    harness.run_until(4_000);
    assert_eq!(harness.state(), LeaseState::Uncertain);
    harness.input(Input::Attached(Continuity::Same));
    assert!(!harness.may_start(), "an attach does not end the uncertainty; a renewal does");
    assert!(matches!(harness.requests()[..], [LeaseRequest::Renew { .. }]));
    harness.reply(harness.renewed());
    assert!(harness.may_start());
}

#[test]
fn a_lease_is_small() {
    // A process may hold a hundred thousand leases.
    assert!(size_of::<tenure_core::lease::Lease>() <= 400, "{} bytes", size_of::<tenure_core::lease::Lease>());
}

#[test]
fn a_store_that_may_have_lost_data_must_confirm_before_new_work_starts() {
    let mut harness = LeaseHarness::holding();
    harness.run_until(5_000);
    harness.input(Input::ConnectionLost);
    harness.input(Input::Attached(Continuity::Changed));
    assert_eq!(harness.state(), LeaseState::Uncertain);
    assert!(matches!(harness.requests()[..], [LeaseRequest::Renew { .. }]));
    harness.reply(harness.renewed());
    assert!(harness.may_start());
}

#[test]
fn a_store_with_other_data_is_a_loss_at_once() {
    let mut harness = LeaseHarness::holding();
    harness.input(Input::Attached(Continuity::Reset));
    assert_eq!(harness.events(), ["lease.lost token=100 reason=store_reset"]);
    harness.take();
    harness.input(Input::WorkEnded);
    assert_eq!(harness.lease.ending(), Some(&Ending::Lost(Loss::StoreReset)));
    assert!(harness.requests().is_empty(), "the new data does not contain our lease");
}

#[test]
fn renewals_stop_when_the_work_makes_no_progress() {
    let settings = LeaseSettings::builder().stall_after(ms(15_000)).build().unwrap();
    let mut harness = LeaseHarness::holding_with(settings);
    let sent = harness.run_until_sent(11_000);
    harness.reply(harness.renewed());
    harness.take();
    harness.run_until(sent + STOP_AT - 1);
    assert!(harness.requests().is_empty(), "no progress since the beginning");
    harness.run_until(sent + STOP_AT);
    assert_eq!(harness.events(), ["lease.lost token=100 reason=stalled"]);
}

#[test]
fn progress_reopens_the_gate_and_travels_with_the_renewal() {
    let settings = LeaseSettings::builder().stall_after(ms(15_000)).build().unwrap();
    let mut harness = LeaseHarness::holding_with(settings);
    harness.run_until_sent(11_000);
    assert!(matches!(harness.requests()[..], [LeaseRequest::Renew { progressed: false, .. }]));
    harness.reply(harness.renewed());
    harness.run_until(26_000);
    harness.take();
    harness.input(Input::Progress);
    assert!(matches!(harness.requests()[..], [LeaseRequest::Renew { progressed: true, .. }]));
}

#[test]
fn progress_is_reported_again_until_a_renewal_has_arrived() {
    let mut harness = LeaseHarness::holding();
    harness.run_until(1_000);
    harness.input(Input::Progress);
    harness.run_until_sent(11_000);
    assert!(matches!(harness.requests()[..], [LeaseRequest::Renew { progressed: true, .. }]));
    harness.unknown();
    harness.run_until_sent(15_000);
    assert!(
        matches!(harness.requests()[..], [LeaseRequest::Renew { progressed: true, .. }]),
        "the first may not have arrived"
    );
    harness.reply(harness.renewed());
    harness.run_until_sent(30_000);
    assert!(matches!(harness.requests()[..], [LeaseRequest::Renew { progressed: false, .. }]));
}

#[test]
fn stale_wake_ups_change_nothing() {
    let mut harness = LeaseHarness::holding();
    let mut wakes = Vec::new();
    for _ in 0..3 {
        harness.run_until_sent(200_000);
        harness.reply(harness.renewed());
        wakes.extend(harness.take().into_iter().filter_map(|action| match action {
            Action::Wake { epoch, .. } => Some(epoch),
            _ => None,
        }));
    }
    wakes.pop();
    for stale in wakes {
        harness.input(Input::Wake(stale));
        assert!(harness.actions.is_empty());
    }
}
