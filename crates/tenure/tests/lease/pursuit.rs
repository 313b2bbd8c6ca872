//! Asking and waiting.

use std::sync::Arc;
use std::time::Duration;

use tenure::lease::{Action, Ending, Input, Lease, LeaseSettings, LeaseState, Outlook, ReleaseReason, Wish};
use tenure::store::{
    Announcement, Continuity, Ended, ErrorKind, Grant, Held, PreviousTerm, Quarantine, QuarantineReason, Reply,
    Request, StoreError,
};

use tenure::time::Now;

use crate::rig::{DEADLINE, Rig, me, ms, name, other, token};

fn nonce_of(request: &Request) -> String {
    match request {
        Request::Acquire { claim, .. } | Request::TakeOver { claim, .. } => claim.nonce.to_string(),
        other => panic!("not a claim: {other:?}"),
    }
}

#[test]
fn a_grant_is_valid_from_when_it_was_asked_for() {
    let mut rig = Rig::new();
    rig.at(1_500);
    rig.reply(rig.granted(100));
    assert_eq!(rig.state(), LeaseState::Owned);
    assert_eq!(rig.lease.remaining(rig.clocks()), ms(DEADLINE - 1_500));
    assert!(rig.may_start());
    assert_eq!(rig.events(), ["lease.acquired token=100 ttl_ms=30000"]);
}

#[test]
fn a_claim_whose_outcome_is_unknown_is_repeated_with_the_same_nonce() {
    let mut rig = Rig::new();
    let first = nonce_of(rig.requests()[0]);
    rig.unknown();
    rig.until_sent(5_000);
    assert_eq!(nonce_of(rig.requests()[0]), first);
    rig.reply(rig.granted(100));
    assert!(rig.may_start());
}

#[test]
fn an_answer_to_an_abandoned_claim_is_not_a_grant() {
    let mut rig = Rig::new();
    let abandoned = rig.last_attempt();
    rig.until_sent(10_000);
    rig.input(Input::Answered { attempt: abandoned, reply: rig.granted(100) });
    assert_eq!(rig.state(), LeaseState::Unknown);
    assert!(!rig.may_start());
}

#[test]
fn a_grant_that_arrives_after_its_own_deadline_is_asked_for_again() {
    let mut rig = Rig::new();
    rig.asleep_until(DEADLINE);
    rig.take();
    rig.reply(rig.granted(100));
    assert!(!rig.may_start());
    assert_eq!(rig.requests().len(), 1, "asked again, at once");
}

#[test]
fn a_waiter_comes_back_when_the_lease_has_run_out() {
    let mut rig = Rig::new();
    rig.reply(rig.held(50, ms(4_000)));
    assert_eq!(rig.state(), LeaseState::Other);
    assert_eq!(rig.events(), ["lease.acquire_failed owner=other"]);
    let sent = rig.until_sent(10_000);
    assert!((4_001..=4_026).contains(&sent), "{sent}");
    rig.reply(rig.granted(100));
    assert!(rig.may_start(), "it had run out by itself: nothing to wait for");
}

#[test]
fn a_waiter_is_woken_by_the_release() {
    let mut rig = Rig::new();
    rig.reply(rig.held(50, ms(20_000)));
    rig.at(1_000);
    rig.take();
    rig.input(Input::Announced(Announcement::Released { name: name(), token: token(50) }));
    assert_eq!(rig.requests().len(), 1);
    rig.reply(rig.granted(100));
    assert!(rig.may_start(), "the release was announced");
}

#[test]
fn a_release_announced_while_asking_is_not_missed() {
    let mut rig = Rig::new();
    rig.take();
    rig.input(Input::Announced(Announcement::Released { name: name(), token: token(50) }));
    assert!(rig.requests().is_empty(), "one question at a time");
    rig.reply(rig.held(50, ms(20_000)));
    assert_eq!(rig.requests().len(), 1, "the answer was from before the release");
    rig.reply(rig.held(50, ms(20_000)));
    assert_eq!(rig.requests().len(), 1, "but one announcement is good for one question");
}

#[test]
fn a_lease_that_is_free_too_early_is_not_worked_on_until_its_holder_must_have_stopped() {
    let mut rig = Rig::new();
    rig.reply(rig.held(50, ms(20_000)));
    rig.at(1_000);
    rig.input(Input::LookAgain);
    rig.reply(rig.granted(100));
    assert_eq!(rig.state(), LeaseState::Uncertain);
    assert!(!rig.may_start());
    rig.until_sent(12_000);
    assert!(matches!(rig.requests()[..], [Request::Renew { progressed: true, .. }]), "waiting is no lack of progress");
    rig.reply(rig.renewed());
    assert!(!rig.may_start(), "held and renewed, but not to be worked on");
    rig.at(20_199);
    assert!(!rig.may_start(), "20 s and one percent");
    rig.at(20_201);
    assert!(rig.may_start());
}

#[test]
fn setting_the_wall_clock_ahead_does_not_shorten_the_wait_for_somebody_else() {
    let mut rig = Rig::new();
    rig.reply(rig.held(50, ms(10_000)));
    rig.at(1_000);
    rig.input(Input::LookAgain);
    rig.reply(rig.granted(100));
    // Five seconds that did not happen: our own deadline is nearer, the other's is not.
    rig.wall_step = ms(5_000);
    rig.asleep_until(6_100);
    rig.input(Input::Tick);
    assert!(!rig.lease.is_valid(rig.clocks()), "somebody else may still rely on the lease");
    rig.until_sent(12_000);
    rig.reply(rig.renewed());
    rig.at(15_099);
    assert!(!rig.may_start());
    rig.at(15_101);
    assert!(rig.may_start());
}

#[test]
fn a_recorded_release_needs_no_waiting_even_if_it_was_not_heard() {
    let mut rig = Rig::new();
    rig.reply(rig.held(50, ms(20_000)));
    rig.at(1_000);
    rig.input(Input::LookAgain);
    let previous = Some(PreviousTerm { token: token(50), holder: other(), ended: Ended::Released });
    rig.reply(Reply::Granted(Grant {
        token: token(100),
        server: rig.server(),
        max_ttl: ms(30_000),
        wait_out: Duration::ZERO,
        previous,
    }));
    assert!(rig.may_start());
}

#[test]
fn a_release_of_another_term_than_the_one_seen_does_not_shorten_the_wait() {
    let previous = |number| Some(PreviousTerm { token: token(number), holder: other(), ended: Ended::Released });
    let grant = |rig: &Rig, previous| {
        let (token, server) = (token(100), rig.server());
        Reply::Granted(Grant { token, server, max_ttl: ms(30_000), wait_out: Duration::ZERO, previous })
    };
    // Recorded, but of a term that came after the one that was seen and may have been cut short.
    let mut rig = Rig::new();
    rig.reply(rig.held(50, ms(20_000)));
    rig.at(1_000);
    rig.input(Input::LookAgain);
    rig.reply(grant(&rig, previous(60)));
    assert!(!rig.may_start());

    // Announced, but of a term before the one that was seen.
    let mut rig = Rig::new();
    rig.reply(rig.held(50, ms(20_000)));
    rig.at(1_000);
    rig.input(Input::Announced(Announcement::Released { name: name(), token: token(40) }));
    rig.reply(grant(&rig, None));
    assert!(!rig.may_start());
}

#[test]
fn a_term_that_this_process_has_ended_is_named() {
    let mut lease = Lease::new(name(), me(), Arc::default(), 7).after(Some(token(40)));
    let actions = lease.step(Now::default(), Input::Tick);
    assert_eq!(lease.spent(), Some(token(40)), "and has to be, until there is a new one");
    assert_eq!(Rig::holding().lease.spent(), Some(token(100)));
    assert!(
        matches!(&actions[0], Action::Send { request: Request::Acquire { ended, .. }, .. } if *ended == Some(token(40)))
    );
}

#[test]
fn a_waiter_looks_again_after_every_reconnect() {
    let mut rig = Rig::new();
    rig.reply(rig.held(50, ms(20_000)));
    rig.at(1_000);
    rig.take();
    rig.input(Input::ConnectionLost);
    assert!(rig.requests().is_empty());
    rig.input(Input::Entered(Continuity::Same));
    assert_eq!(rig.requests().len(), 1);
}

#[test]
fn whatever_is_heard_while_asking_makes_the_answer_out_of_date() {
    let hints = [
        Input::LookAgain,
        Input::Announced(Announcement::HandedOver { name: name(), token: token(60), to: me() }),
        Input::Announced(Announcement::HandedOver { name: name(), token: token(60), to: other() }),
    ];
    for hint in hints {
        let mut rig = Rig::new();
        rig.take();
        rig.input(hint.clone());
        rig.reply(rig.held(50, ms(20_000)));
        assert_eq!(rig.requests().len(), 1, "{hint:?}");
    }
}

#[test]
fn a_store_that_can_be_entered_and_fails_every_claim_is_not_asked_in_a_hot_loop() {
    let causes: [fn(&mut Rig); 2] = [
        |rig| {
            let attempt = rig.last_attempt();
            rig.input(Input::Failed { attempt, error: StoreError::new(ErrorKind::Unavailable, "test: busy") });
        },
        |_| {},
    ];
    for fail in causes {
        let mut rig = Rig::new();
        for _ in 0..100 {
            fail(&mut rig);
            rig.input(Input::ConnectionLost);
            rig.input(Input::Entered(Continuity::Same));
        }
        assert!(rig.requests().len() <= 3, "{} claims without any time passing", rig.requests().len());
    }
}

#[test]
fn a_dead_holders_lease_is_told_apart_from_a_free_one() {
    let mut rig = Rig::new();
    let previous = Some(PreviousTerm { token: token(50), holder: other(), ended: Ended::Silently });
    rig.reply(Reply::Granted(Grant {
        token: token(100),
        server: rig.server(),
        max_ttl: ms(30_000),
        wait_out: Duration::ZERO,
        previous,
    }));
    assert_eq!(rig.events(), ["lease.acquired token=100 ttl_ms=30000", "lease.taken_over token=100 owner=other"]);
}

#[test]
fn a_closed_namespace_is_waited_out_and_said_once() {
    let mut rig = Rig::new();
    let quarantine = |remaining| {
        let reason = QuarantineReason::ServerTooYoung;
        Reply::Quarantined(Quarantine { remaining: ms(remaining), reason })
    };
    rig.reply(quarantine(3_000));
    let events = rig.events();
    let said = "quarantine: 3 s left, because there is no namespace record and the server started only recently; \
                if nothing else uses this server: --bootstrap, or tenure reopen";
    assert!(events.len() == 1 && events[0].contains(said), "{events:?}");
    let sent = rig.until_sent(5_000);
    assert!((3_001..=3_026).contains(&sent), "{sent}");
    rig.take();
    rig.reply(quarantine(1_000));
    assert!(rig.events().is_empty());
}

/// The announcement comes over another connection than the reply, and may overtake it.
#[test]
fn the_end_of_a_quarantine_that_overtakes_a_reply_is_not_lost() {
    let mut rig = Rig::new();
    rig.take();
    rig.input(Input::LookAgain);
    assert!(rig.requests().is_empty(), "one question at a time");
    let reason = QuarantineReason::RecordMissing;
    rig.reply(Reply::Quarantined(Quarantine { remaining: ms(20_000), reason }));
    assert_eq!(rig.requests().len(), 1, "the reply may be older than the announcement: ask again");
    rig.take();
    rig.reply(Reply::Quarantined(Quarantine { remaining: ms(20_000), reason }));
    assert!(rig.requests().is_empty(), "nothing was announced since");
}

#[test]
fn a_namespace_that_changed_is_entered_again_before_asking() {
    let mut rig = Rig::new();
    rig.take();
    rig.reply(Reply::NotEntered);
    assert!(rig.take().contains(&Action::Enter));
    rig.at(60_000);
    assert!(rig.requests().is_empty(), "nothing is asked of a store that was not entered");
    rig.input(Input::Entered(Continuity::Reset));
    assert_eq!(rig.requests().len(), 1);
}

#[test]
fn a_claim_whose_term_is_over_gets_a_new_nonce() {
    let mut rig = Rig::new();
    let first = nonce_of(rig.requests()[0]);
    rig.take();
    rig.reply(Reply::TermOver);
    assert_ne!(nonce_of(rig.requests()[0]), first);
}

/// A lease that a program without tokens holds.
fn foreign(rig: &Rig, remaining: Option<Duration>) -> Reply {
    let (max_ttl, server) = (ms(30_000), rig.server());
    Reply::Held(Held { by: other(), token: None, remaining, idle: None, max_ttl, server })
}

#[test]
fn a_foreign_lease_is_looked_at_every_ttl_because_its_release_is_not_announced() {
    let mut rig = Rig::new();
    rig.reply(foreign(&rig, Some(ms(3_600_000))));
    let sent = rig.until_sent(40_000);
    assert!((30_000..=30_026).contains(&sent), "{sent}");
}

#[test]
fn a_stuck_lease_is_reported_and_looked_at_again() {
    let mut rig = Rig::new();
    rig.reply(foreign(&rig, None));
    assert!(rig.events()[0].contains("lease:report if nobody holds it"), "{:?}", rig.events());
    assert!(rig.until_sent(11_000) >= 10_000);
}

#[test]
fn a_misconfigured_store_is_not_asked_in_a_hot_loop_and_said_once() {
    let mut rig = Rig::new();
    let mut said = 0;
    for _ in 0..5 {
        let attempt = rig.last_attempt();
        let before = rig.now;
        rig.input(Input::Failed { attempt, error: StoreError::new(ErrorKind::Configuration, "test: no permission") });
        said += rig.events().len();
        let limit = rig.now.as_nanos() / 1_000_000 + 11_000;
        rig.until_sent(limit);
        assert!(rig.now.since(before) >= ms(10_000));
    }
    assert_eq!(said, 1);
}

#[test]
fn giving_up_cleans_up_only_what_may_have_been_granted() {
    let mut rig = Rig::new();
    rig.reply(rig.held(50, ms(20_000)));
    rig.take();
    rig.input(Input::Wish(Wish::Release(ReleaseReason::Voluntary)));
    assert_eq!(rig.lease.ending(), Some(&Ending::GivenUp));
    assert!(rig.requests().is_empty());

    let mut rig = Rig::new();
    rig.take();
    rig.input(Input::Wish(Wish::Release(ReleaseReason::Voluntary)));
    assert!(matches!(rig.requests()[..], [Request::Abandon { .. }]));
    rig.at(6_001);
    assert_eq!(rig.lease.ending(), Some(&Ending::GivenUp), "not for ever: it runs out");
}

#[test]
fn what_may_have_been_granted_is_cleaned_up_over_the_next_connection() {
    let mut rig = Rig::new();
    rig.input(Input::ConnectionLost);
    rig.take();
    rig.input(Input::Wish(Wish::Release(ReleaseReason::Voluntary)));
    assert!(rig.requests().is_empty());
    rig.at(1_000);
    rig.input(Input::Entered(Continuity::Same));
    assert!(matches!(rig.requests()[..], [Request::Abandon { .. }]));
    rig.reply(Reply::Done);
    assert_eq!(rig.lease.ending(), Some(&Ending::GivenUp));
}

#[test]
fn a_holder_without_progress_is_taken_over_and_given_time_to_stop() {
    let settings = LeaseSettings::builder().take_over_after(ms(12_000)).build().unwrap();
    let mut rig = Rig::with(settings);
    let server = rig.server();
    let held = |idle| {
        Reply::Held(Held {
            by: other(),
            token: Some(token(50)),
            remaining: Some(ms(29_000)),
            idle: Some(ms(idle)),
            max_ttl: ms(30_000),
            server,
        })
    };
    rig.reply(held(4_000));
    let sent = rig.until_sent(10_000);
    assert_eq!(sent, 8_001);
    assert!(matches!(rig.requests()[..], [Request::TakeOver { victim, .. }] if *victim == token(50)));
    // It has made progress in the meantime.
    rig.reply(held(1_000));
    assert_eq!(rig.until_sent(30_000), 8_001 + 11_001);
    let previous = Some(PreviousTerm { token: token(50), holder: other(), ended: Ended::TakenOver });
    rig.reply(Reply::Granted(Grant {
        token: token(100),
        server: rig.server(),
        max_ttl: ms(30_000),
        wait_out: ms(3_000),
        previous,
    }));
    assert!(!rig.may_start());
    rig.at(19_002 + 3_029);
    assert!(!rig.may_start());
    rig.at(19_002 + 3_031);
    assert!(rig.may_start());
}

#[test]
fn a_lease_handed_to_us_is_asked_for_at_once() {
    let mut rig = Rig::new();
    rig.reply(rig.held(50, ms(20_000)));
    rig.take();
    rig.input(Input::Announced(Announcement::HandedOver { name: name(), token: token(60), to: me() }));
    assert_eq!(rig.requests().len(), 1);
}

#[test]
fn a_hand_over_to_somebody_who_is_dead_costs_its_window_and_not_a_ttl() {
    let mut rig = Rig::new();
    rig.reply(rig.held(50, ms(20_000)));
    rig.take();
    rig.input(Input::Announced(Announcement::HandedOver { name: name(), token: token(60), to: other() }));
    rig.reply(rig.held(60, ms(3_000)));
    let sent = rig.until_sent(10_000);
    assert!((3_001..=3_026).contains(&sent), "{sent}");
    rig.reply(rig.granted(100));
    assert!(rig.may_start());
}

#[test]
fn a_waiter_looks_as_often_as_it_was_told_to() {
    let settings = LeaseSettings::builder().look_every(ms(15_000)).build().unwrap();
    let mut rig = Rig::with(settings);
    rig.reply(rig.held(50, ms(29_000)));
    rig.take();
    let sent = rig.until_sent(29_000);
    assert!((13_500..=15_000).contains(&sent), "up to a tenth sooner: {sent}");
    let error = LeaseSettings::builder().look_every(ms(100)).build().unwrap_err();
    assert!(error.to_string().contains("looking every 100ms"), "a hot loop is no setting: {error}");
}

#[test]
fn what_can_be_hoped_for_is_known_at_every_step() {
    let settings = LeaseSettings::builder().look_every(ms(15_000)).build().unwrap();
    let mut rig = Rig::with(settings);
    let behind = || Some(Outlook::Behind { owner: other() });
    assert_eq!(rig.lease.outlook(), Some(Outlook::Asking), "nobody is known to have it");
    rig.reply(rig.held(50, ms(29_000)));
    assert_eq!(rig.lease.outlook(), behind());
    rig.take();
    rig.until_sent(29_000);
    assert_eq!(rig.lease.outlook(), behind(), "a look is no candidacy");
    rig.reply(rig.held(50, ms(29_000)));
    rig.input(Input::Announced(Announcement::Released { name: name(), token: token(50) }));
    assert_eq!(rig.lease.outlook(), Some(Outlook::Asking), "it is free");
    rig.reply(rig.held(51, ms(29_000)));
    assert_eq!(rig.lease.outlook(), behind(), "somebody else was faster");
    rig.input(Input::ConnectionLost);
    assert!(matches!(rig.lease.outlook(), Some(Outlook::Waiting { .. })));
    rig.input(Input::Entered(Continuity::Same));
    rig.reply(rig.granted(52));
    assert_eq!(rig.lease.outlook(), None, "it is ours");
}

#[test]
fn whoever_holds_back_lets_others_go_first_and_takes_up_an_offer_at_once() {
    let settings = LeaseSettings::builder().hold_back(ms(700)).build().unwrap();
    let mut rig = Rig::with(settings);
    assert!(rig.requests().is_empty(), "not at once");
    assert_eq!(rig.until_sent(1_000), 700);
    rig.reply(rig.held(50, ms(10_000)));
    rig.take();

    rig.input(Input::Announced(Announcement::Released { name: name(), token: token(50) }));
    assert!(rig.requests().is_empty(), "others are told, too");
    assert_eq!(rig.until_sent(5_000), 1_400);
    rig.reply(rig.held(50, ms(10_000)));
    rig.take();

    rig.input(Input::Announced(Announcement::HandedOver { name: name(), token: token(60), to: me() }));
    assert_eq!(rig.requests().len(), 1, "an offer is not for others");
}
