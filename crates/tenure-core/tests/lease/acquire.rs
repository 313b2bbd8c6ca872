//! Acquiring and waiting.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::ending::{Ending, ReleaseReason};
use tenure_core::lease::{AcquireStatus, Action, Input, Intent, Lease, LeaseSettings, LeaseState};
use tenure_core::store::{
    Announcement, Continuity, ErrorKind, Grant, Held, LeaseRequest, PreviousTerm, Quarantine, QuarantineReason,
    RecordedEnd, Reply, StoreError,
};

use tenure_core::time::Now;

use crate::harness::{DEADLINE, LeaseHarness, me, ms, name, other, token};

fn nonce_of(request: &LeaseRequest) -> String {
    match request {
        LeaseRequest::Acquire { claim, .. } | LeaseRequest::TakeOver { claim, .. } => claim.nonce.to_string(),
        other => panic!("not a claim: {other:?}"),
    }
}

#[test]
fn validity_is_counted_from_the_request() {
    let mut harness = LeaseHarness::new();
    harness.run_until(1_500);
    harness.reply(harness.granted(100));
    assert_eq!(harness.state(), LeaseState::Owned);
    assert_eq!(harness.lease.remaining(harness.clocks()), ms(DEADLINE - 1_500));
    assert!(harness.may_start());
    assert_eq!(harness.events(), ["lease.acquired token=100 ttl_ms=30000"]);
}

#[test]
fn a_claim_whose_outcome_is_unknown_is_repeated_with_the_same_nonce() {
    let mut harness = LeaseHarness::new();
    let first = nonce_of(harness.requests()[0]);
    harness.unknown();
    harness.run_until_sent(5_000);
    assert_eq!(nonce_of(harness.requests()[0]), first);
    harness.reply(harness.granted(100));
    assert!(harness.may_start());
}

#[test]
fn a_reply_to_an_abandoned_claim_is_not_a_grant() {
    let mut harness = LeaseHarness::new();
    let abandoned = harness.last_attempt();
    harness.run_until_sent(10_000);
    harness.input(Input::Answered { attempt: abandoned, reply: harness.granted(100) });
    assert_eq!(harness.state(), LeaseState::Unknown);
    assert!(!harness.may_start());
}

#[test]
fn a_grant_that_arrives_after_its_deadline_is_requested_again() {
    let mut harness = LeaseHarness::new();
    harness.jump_to(DEADLINE);
    harness.take();
    harness.reply(harness.granted(100));
    assert!(!harness.may_start());
    assert_eq!(harness.requests().len(), 1, "requested again at once");
}

#[test]
fn a_waiter_retries_when_the_lease_has_expired() {
    let mut harness = LeaseHarness::new();
    harness.reply(harness.held(50, ms(4_000)));
    assert_eq!(harness.state(), LeaseState::Other);
    assert_eq!(harness.events(), ["lease.acquire_failed owner=other"]);
    let sent = harness.run_until_sent(10_000);
    assert!((4_001..=4_026).contains(&sent), "{sent}");
    harness.reply(harness.granted(100));
    assert!(harness.may_start(), "the lease expired by itself, so there is no wait");
}

#[test]
fn a_waiter_is_woken_by_the_release() {
    let mut harness = LeaseHarness::new();
    harness.reply(harness.held(50, ms(20_000)));
    harness.run_until(1_000);
    harness.take();
    harness.input(Input::Announced(Announcement::Released { name: name(), token: token(50) }));
    assert_eq!(harness.requests().len(), 1);
    harness.reply(harness.granted(100));
    assert!(harness.may_start(), "the release was announced");
}

#[test]
fn a_release_announced_during_a_request_is_not_missed() {
    let mut harness = LeaseHarness::new();
    harness.take();
    harness.input(Input::Announced(Announcement::Released { name: name(), token: token(50) }));
    assert!(harness.requests().is_empty(), "one request at a time");
    harness.reply(harness.held(50, ms(20_000)));
    assert_eq!(harness.requests().len(), 1, "the reply was older than the release");
    harness.reply(harness.held(50, ms(20_000)));
    assert_eq!(harness.requests().len(), 1, "one announcement causes one request");
}

#[test]
fn a_lease_granted_too_early_allows_no_work_until_its_last_holder_must_have_stopped() {
    let mut harness = LeaseHarness::new();
    harness.reply(harness.held(50, ms(20_000)));
    harness.run_until(1_000);
    harness.input(Input::Recheck);
    harness.reply(harness.granted(100));
    assert_eq!(harness.state(), LeaseState::Uncertain);
    assert!(!harness.may_start());
    harness.run_until_sent(12_000);
    assert!(
        matches!(harness.requests()[..], [LeaseRequest::Renew { progressed: true, .. }]),
        "waiting does not count as lack of progress"
    );
    harness.reply(harness.renewed());
    assert!(!harness.may_start(), "held and renewed, but work may not start yet");
    harness.run_until(20_199);
    assert!(!harness.may_start(), "not before 20 s and one percent");
    harness.run_until(20_201);
    assert!(harness.may_start());
}

#[test]
fn setting_the_wall_clock_ahead_does_not_shorten_the_wait_for_another_holder() {
    let mut harness = LeaseHarness::new();
    harness.reply(harness.held(50, ms(10_000)));
    harness.run_until(1_000);
    harness.input(Input::Recheck);
    harness.reply(harness.granted(100));
    // Five seconds that did not pass: our own deadline is nearer, the other holder's is not.
    harness.wall_step = ms(5_000);
    harness.jump_to(6_100);
    harness.input(Input::Tick);
    assert!(!harness.lease.is_valid(harness.clocks()), "the last holder may still rely on the lease");
    harness.run_until_sent(12_000);
    harness.reply(harness.renewed());
    harness.run_until(15_099);
    assert!(!harness.may_start());
    harness.run_until(15_101);
    assert!(harness.may_start());
}

#[test]
fn a_recorded_release_needs_no_waiting_even_without_an_announcement() {
    let mut harness = LeaseHarness::new();
    harness.reply(harness.held(50, ms(20_000)));
    harness.run_until(1_000);
    harness.input(Input::Recheck);
    let previous = Some(PreviousTerm { token: token(50), holder: other(), ended: RecordedEnd::Released });
    harness.reply(Reply::Granted(Grant {
        token: token(100),
        server: harness.server(),
        max_ttl: ms(30_000),
        wait_out: Duration::ZERO,
        previous,
    }));
    assert!(harness.may_start());
}

#[test]
fn a_release_of_another_term_does_not_shorten_the_wait() {
    let previous = |number| Some(PreviousTerm { token: token(number), holder: other(), ended: RecordedEnd::Released });
    let grant = |harness: &LeaseHarness, previous| {
        let (token, server) = (token(100), harness.server());
        Reply::Granted(Grant { token, server, max_ttl: ms(30_000), wait_out: Duration::ZERO, previous })
    };
    // Recorded, but of a term after the one that was seen, which may have been cut short.
    let mut harness = LeaseHarness::new();
    harness.reply(harness.held(50, ms(20_000)));
    harness.run_until(1_000);
    harness.input(Input::Recheck);
    harness.reply(grant(&harness, previous(60)));
    assert!(!harness.may_start());

    // Announced, but of a term before the one that was seen.
    let mut harness = LeaseHarness::new();
    harness.reply(harness.held(50, ms(20_000)));
    harness.run_until(1_000);
    harness.input(Input::Announced(Announcement::Released { name: name(), token: token(40) }));
    harness.reply(grant(&harness, None));
    assert!(!harness.may_start());
}

#[test]
fn a_claim_names_the_term_that_this_process_ended() {
    let mut lease = Lease::new(name(), me(), Arc::default(), 7).with_ended_term(Some(token(40)));
    let actions = lease.step(Now::default(), Input::Tick);
    assert_eq!(lease.ended_term(), Some(token(40)), "it must be remembered until a new term begins");
    assert_eq!(LeaseHarness::holding().lease.ended_term(), Some(token(100)));
    assert!(
        matches!(&actions[0], Action::Send { request: LeaseRequest::Acquire { ended, .. }, .. } if *ended == Some(token(40)))
    );
}

#[test]
fn a_waiter_rechecks_after_every_reconnect() {
    let mut harness = LeaseHarness::new();
    harness.reply(harness.held(50, ms(20_000)));
    harness.run_until(1_000);
    harness.take();
    harness.input(Input::ConnectionLost);
    assert!(harness.requests().is_empty());
    harness.input(Input::Attached(Continuity::Same));
    assert_eq!(harness.requests().len(), 1);
}

#[test]
fn an_announcement_during_a_request_makes_the_reply_stale() {
    let hints = [
        Input::Recheck,
        Input::Announced(Announcement::HandedOver { name: name(), token: token(60), to: me() }),
        Input::Announced(Announcement::HandedOver { name: name(), token: token(60), to: other() }),
    ];
    for hint in hints {
        let mut harness = LeaseHarness::new();
        harness.take();
        harness.input(hint.clone());
        harness.reply(harness.held(50, ms(20_000)));
        assert_eq!(harness.requests().len(), 1, "{hint:?}");
    }
}

#[test]
fn failing_claims_are_not_retried_in_a_hot_loop() {
    let causes: [fn(&mut LeaseHarness); 2] = [
        |harness| {
            let attempt = harness.last_attempt();
            harness.input(Input::Failed { attempt, error: StoreError::new(ErrorKind::Unavailable, "test: busy") });
        },
        |_| {},
    ];
    for fail in causes {
        let mut harness = LeaseHarness::new();
        for _ in 0..100 {
            fail(&mut harness);
            harness.input(Input::ConnectionLost);
            harness.input(Input::Attached(Continuity::Same));
        }
        assert!(harness.requests().len() <= 3, "{} claims without any time passing", harness.requests().len());
    }
}

#[test]
fn taking_over_from_a_dead_holder_is_reported() {
    let mut harness = LeaseHarness::new();
    let previous = Some(PreviousTerm { token: token(50), holder: other(), ended: RecordedEnd::Unreported });
    harness.reply(Reply::Granted(Grant {
        token: token(100),
        server: harness.server(),
        max_ttl: ms(30_000),
        wait_out: Duration::ZERO,
        previous,
    }));
    assert_eq!(harness.events(), ["lease.acquired token=100 ttl_ms=30000", "lease.taken_over token=100 owner=other"]);
}

#[test]
fn a_quarantine_is_waited_out_and_reported_once() {
    let mut harness = LeaseHarness::new();
    let quarantine = |remaining| {
        let reason = QuarantineReason::ServerTooYoung;
        Reply::Quarantined(Quarantine { remaining: ms(remaining), reason })
    };
    harness.reply(quarantine(3_000));
    let events = harness.events();
    let said = "quarantine: 3 s left, because there is no namespace record and the server started only recently; \
                if nothing else uses this server: --bootstrap (in a program: TenureBuilder::bootstrap), or tenure reopen";
    assert!(events.len() == 1 && events[0].contains(said), "{events:?}");
    let sent = harness.run_until_sent(5_000);
    assert!((3_001..=3_026).contains(&sent), "{sent}");
    harness.take();
    harness.reply(quarantine(1_000));
    assert!(harness.events().is_empty());
}

/// The announcement arrives over another connection than the reply and may overtake it.
#[test]
fn the_end_of_a_quarantine_that_overtakes_a_reply_is_not_lost() {
    let mut harness = LeaseHarness::new();
    harness.take();
    harness.input(Input::Recheck);
    assert!(harness.requests().is_empty(), "one request at a time");
    let reason = QuarantineReason::RecordMissing;
    harness.reply(Reply::Quarantined(Quarantine { remaining: ms(20_000), reason }));
    assert_eq!(harness.requests().len(), 1, "the reply may be older than the announcement, so request again");
    harness.take();
    harness.reply(Reply::Quarantined(Quarantine { remaining: ms(20_000), reason }));
    assert!(harness.requests().is_empty(), "there was no announcement since");
}

#[test]
fn a_changed_namespace_is_attached_again_before_the_next_claim() {
    let mut harness = LeaseHarness::new();
    harness.take();
    harness.reply(Reply::NotAttached);
    assert!(harness.take().contains(&Action::Attach));
    harness.run_until(60_000);
    assert!(harness.requests().is_empty(), "no request to a store before the attach");
    harness.input(Input::Attached(Continuity::Reset));
    assert_eq!(harness.requests().len(), 1);
}

#[test]
fn a_claim_whose_term_is_over_gets_a_new_nonce() {
    let mut harness = LeaseHarness::new();
    let first = nonce_of(harness.requests()[0]);
    harness.take();
    harness.reply(Reply::TermOver);
    assert_ne!(nonce_of(harness.requests()[0]), first);
}

/// The reply for a lease that a program without tokens holds.
fn foreign(harness: &LeaseHarness, remaining: Option<Duration>) -> Reply {
    let (max_ttl, server) = (ms(30_000), harness.server());
    Reply::Held(Held { holder: other(), token: None, remaining, idle: None, max_ttl, server })
}

#[test]
fn a_foreign_lease_is_rechecked_every_ttl() {
    let mut harness = LeaseHarness::new();
    harness.reply(foreign(&harness, Some(ms(3_600_000))));
    let sent = harness.run_until_sent(40_000);
    assert!((30_000..=30_026).contains(&sent), "{sent}");
}

#[test]
fn a_lease_without_expiry_is_reported_and_rechecked() {
    let mut harness = LeaseHarness::new();
    harness.reply(foreign(&harness, None));
    assert!(harness.events()[0].contains("lease:report if no program relies on it"), "{:?}", harness.events());
    assert!(harness.run_until_sent(11_000) >= 10_000);
}

#[test]
fn a_misconfigured_store_is_retried_slowly_and_reported_once() {
    let mut harness = LeaseHarness::new();
    let mut said = 0;
    for _ in 0..5 {
        let attempt = harness.last_attempt();
        let before = harness.now;
        harness
            .input(Input::Failed { attempt, error: StoreError::new(ErrorKind::Configuration, "test: no permission") });
        said += harness.events().len();
        let limit = harness.now.as_nanos() / 1_000_000 + 11_000;
        harness.run_until_sent(limit);
        assert!(harness.now.since(before) >= ms(10_000));
    }
    assert_eq!(said, 1);
}

#[test]
fn giving_up_abandons_only_claims_that_may_have_been_granted() {
    let mut harness = LeaseHarness::new();
    harness.reply(harness.held(50, ms(20_000)));
    harness.take();
    harness.input(Input::Intent(Intent::Release(ReleaseReason::Voluntary)));
    assert_eq!(harness.lease.ending(), Some(&Ending::GivenUp));
    assert!(harness.requests().is_empty());

    let mut harness = LeaseHarness::new();
    harness.take();
    harness.input(Input::Intent(Intent::Release(ReleaseReason::Voluntary)));
    assert!(matches!(harness.requests()[..], [LeaseRequest::Abandon { .. }]));
    harness.run_until(6_001);
    assert_eq!(harness.lease.ending(), Some(&Ending::GivenUp), "not for ever: it expires");
}

#[test]
fn a_possible_grant_is_abandoned_over_the_next_connection() {
    let mut harness = LeaseHarness::new();
    harness.input(Input::ConnectionLost);
    harness.take();
    harness.input(Input::Intent(Intent::Release(ReleaseReason::Voluntary)));
    assert!(harness.requests().is_empty());
    harness.run_until(1_000);
    harness.input(Input::Attached(Continuity::Same));
    assert!(matches!(harness.requests()[..], [LeaseRequest::Abandon { .. }]));
    harness.reply(Reply::Done);
    assert_eq!(harness.lease.ending(), Some(&Ending::GivenUp));
}

#[test]
fn a_holder_without_progress_is_taken_over_and_given_time_to_stop() {
    let settings = LeaseSettings::builder().take_over_after(ms(12_000)).build().unwrap();
    let mut harness = LeaseHarness::with(settings);
    let server = harness.server();
    let held = |idle| {
        Reply::Held(Held {
            holder: other(),
            token: Some(token(50)),
            remaining: Some(ms(29_000)),
            idle: Some(ms(idle)),
            max_ttl: ms(30_000),
            server,
        })
    };
    harness.reply(held(4_000));
    let sent = harness.run_until_sent(10_000);
    assert_eq!(sent, 8_001);
    assert!(matches!(harness.requests()[..], [LeaseRequest::TakeOver { victim, .. }] if *victim == token(50)));
    // The holder has made progress in the meantime.
    harness.reply(held(1_000));
    assert_eq!(harness.run_until_sent(30_000), 8_001 + 11_001);
    let previous = Some(PreviousTerm { token: token(50), holder: other(), ended: RecordedEnd::TakenOver });
    harness.reply(Reply::Granted(Grant {
        token: token(100),
        server: harness.server(),
        max_ttl: ms(30_000),
        wait_out: ms(3_000),
        previous,
    }));
    assert!(!harness.may_start());
    harness.run_until(19_002 + 3_029);
    assert!(!harness.may_start());
    harness.run_until(19_002 + 3_031);
    assert!(harness.may_start());
}

#[test]
fn a_lease_handed_to_us_is_claimed_at_once() {
    let mut harness = LeaseHarness::new();
    harness.reply(harness.held(50, ms(20_000)));
    harness.take();
    harness.input(Input::Announced(Announcement::HandedOver { name: name(), token: token(60), to: me() }));
    assert_eq!(harness.requests().len(), 1);
}

#[test]
fn a_hand_over_to_a_dead_instance_costs_its_window_and_not_a_ttl() {
    let mut harness = LeaseHarness::new();
    harness.reply(harness.held(50, ms(20_000)));
    harness.take();
    harness.input(Input::Announced(Announcement::HandedOver { name: name(), token: token(60), to: other() }));
    harness.reply(harness.held(60, ms(3_000)));
    let sent = harness.run_until_sent(10_000);
    assert!((3_001..=3_026).contains(&sent), "{sent}");
    harness.reply(harness.granted(100));
    assert!(harness.may_start());
}

#[test]
fn a_waiter_rechecks_at_the_configured_interval() {
    let settings = LeaseSettings::builder().recheck_every(ms(15_000)).build().unwrap();
    let mut harness = LeaseHarness::with(settings);
    harness.reply(harness.held(50, ms(29_000)));
    harness.take();
    let sent = harness.run_until_sent(29_000);
    assert!((13_500..=15_000).contains(&sent), "up to a tenth earlier: {sent}");
    let error = LeaseSettings::builder().recheck_every(ms(100)).build().unwrap_err();
    assert!(error.to_string().contains("got 100ms"), "a setting must not cause a hot loop: {error}");
}

#[test]
fn the_acquire_status_is_known_at_every_step() {
    let settings = LeaseSettings::builder().recheck_every(ms(15_000)).build().unwrap();
    let mut harness = LeaseHarness::with(settings);
    let behind = || Some(AcquireStatus::Held { holder: other() });
    assert_eq!(harness.lease.acquire_status(), Some(AcquireStatus::Requesting), "no holder is known");
    harness.reply(harness.held(50, ms(29_000)));
    assert_eq!(harness.lease.acquire_status(), behind());
    harness.take();
    harness.run_until_sent(29_000);
    assert_eq!(harness.lease.acquire_status(), behind(), "a recheck does not change the status");
    harness.reply(harness.held(50, ms(29_000)));
    harness.input(Input::Announced(Announcement::Released { name: name(), token: token(50) }));
    assert_eq!(harness.lease.acquire_status(), Some(AcquireStatus::Requesting), "the lease is unheld");
    harness.reply(harness.held(51, ms(29_000)));
    assert_eq!(harness.lease.acquire_status(), behind(), "another instance acquired it first");
    harness.input(Input::ConnectionLost);
    assert!(matches!(harness.lease.acquire_status(), Some(AcquireStatus::Blocked { .. })));
    harness.input(Input::Attached(Continuity::Same));
    harness.reply(harness.granted(52));
    assert_eq!(harness.lease.acquire_status(), None, "the lease is held");
}

#[test]
fn acquire_delay_lets_others_go_first_and_does_not_delay_a_hand_over() {
    let settings = LeaseSettings::builder().acquire_delay(ms(700)).build().unwrap();
    let mut harness = LeaseHarness::with(settings);
    assert!(harness.requests().is_empty(), "the first request must be delayed");
    assert_eq!(harness.run_until_sent(1_000), 700);
    harness.reply(harness.held(50, ms(10_000)));
    harness.take();

    harness.input(Input::Announced(Announcement::Released { name: name(), token: token(50) }));
    assert!(harness.requests().is_empty(), "other waiters get the announcement, too");
    assert_eq!(harness.run_until_sent(5_000), 1_400);
    harness.reply(harness.held(50, ms(10_000)));
    harness.take();

    harness.input(Input::Announced(Announcement::HandedOver { name: name(), token: token(60), to: me() }));
    assert_eq!(harness.requests().len(), 1, "an offer is not delayed: it is only for us");
}
