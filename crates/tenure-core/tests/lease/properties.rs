//! Invariants of the lease machine for any inputs in any order.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tenure_core::ending::ReleaseReason;
use tenure_core::lease::{Action, Attempt, Epoch, Input, Intent, Lease, LeaseSettings, Permission};
use tenure_core::store::{
    Announcement, Ask, Continuity, Grant, Held, LeaseRequest, PreviousTerm, Quarantine, QuarantineReason, RecordedEnd,
    Refusal, Reply,
};
use tenure_core::time::{ClockTolerance, Moment, Now, ServerTime, deadline};
use tenure_core::{EventKind, Token};

use crate::harness::{error, me, name, other};

fn tokens() -> impl Strategy<Value = Token> {
    prop_oneof![Just(Token::ZERO), (1_u64..200).prop_map(|n| Token::new(n).unwrap()), Just(Token::MAX)]
}

fn spans() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        (0_u64..60_000).prop_map(Duration::from_millis),
        Just(Duration::from_secs(u64::MAX / 4)),
        Just(Duration::MAX),
    ]
}

fn replies() -> impl Strategy<Value = Reply> {
    let server = prop_oneof![0_u64..100_000_000, Just(u64::MAX)].prop_map(ServerTime::from_micros);
    let ended = prop_oneof![
        Just(RecordedEnd::Unreported),
        Just(RecordedEnd::Released),
        Just(RecordedEnd::HandedOver),
        Just(RecordedEnd::Revoked),
        Just(RecordedEnd::TakenOver)
    ];
    let previous =
        prop::option::of((tokens(), ended).prop_map(|(token, ended)| PreviousTerm { token, holder: other(), ended }));
    prop_oneof![
        4 => (tokens(), server.clone(), spans(), previous).prop_map(|(token, server, wait_out, previous)| {
            Reply::Granted(Grant { token, server, max_ttl: Duration::ZERO, wait_out, previous })
        }),
        2 => (prop::option::of(tokens()), prop::option::of(spans()), prop::option::of(spans())).prop_map(
            |(token, remaining, idle)| {
                let (max_ttl, server) = (Duration::ZERO, ServerTime::default());
                Reply::Held(Held { holder: other(), token, remaining, idle, max_ttl, server })
            }
        ),
        4 => (server, prop::option::of(prop::option::of(Just(other()))))
            .prop_map(|(server, to)| Reply::Renewed { server, max_ttl: Duration::ZERO, asked: to.map(|to| Ask::StepDown { to }) }),
        1 => spans().prop_map(|remaining| {
            Reply::Quarantined(Quarantine { remaining, reason: QuarantineReason::RecordMissing })
        }),
        1 => prop_oneof![
            Just(Reply::NotAttached),
            Just(Reply::TermOver),
            Just(Reply::TokensExhausted),
            Just(Reply::Done),
            Just(Reply::Record(None)),
            Just(Reply::Refused(Refusal::Missing)),
            Just(Reply::Refused(Refusal::Taken { holder: me() })),
        ],
    ]
}

/// Attempts and epochs are relative to the newest one, so that both current and stale ones occur.
#[derive(Clone, Debug)]
enum FuzzInput {
    Reply { back: u64, reply: Reply },
    Honest,
    Failed { back: u64 },
    Unknown { back: u64 },
    Wake { back: u64 },
    Plain(Input),
}

fn fuzz_inputs() -> impl Strategy<Value = FuzzInput> {
    let reasons = prop_oneof![Just(ReleaseReason::Shutdown), Just(ReleaseReason::Paused)];
    prop_oneof![
        4 => (0_u64..3, replies()).prop_map(|(back, reply)| FuzzInput::Reply { back, reply }),
        8 => Just(FuzzInput::Honest),
        1 => (0_u64..3).prop_map(|back| FuzzInput::Failed { back }),
        1 => (0_u64..3).prop_map(|back| FuzzInput::Unknown { back }),
        3 => (0_u64..3).prop_map(|back| FuzzInput::Wake { back }),
        4 => Just(FuzzInput::Plain(Input::Tick)),
        1 => prop_oneof![
            Just(Input::ConnectionLost),
            Just(Input::Attached(Continuity::Same)),
            Just(Input::Attached(Continuity::Changed)),
            Just(Input::Attached(Continuity::Reset)),
            tokens().prop_map(|token| Input::Announced(Announcement::Released { name: name(), token })),
            tokens().prop_map(|token| Input::Announced(Announcement::Revoked { name: name(), token })),
            Just(Input::Recheck),
            Just(Input::Progress),
            Just(Input::WorkEnded),
        ]
        .prop_map(FuzzInput::Plain),
        1 => (reasons, 0..3).prop_map(|(reason, which)| FuzzInput::Plain(Input::Intent(match which {
            0 => Intent::Release(reason),
            1 => Intent::Drain(reason),
            _ => Intent::HandOver(other()),
        }))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_for_any_input_at_any_time(
        seed in any::<u64>(),
        stall in any::<bool>(),
        steps in prop::collection::vec((prop_oneof![9 => 0_u64..5_000, 1 => 0_u64..100_000_000], fuzz_inputs()), 1..120),
    ) {
        let mut settings = LeaseSettings::builder();
        if stall {
            settings = settings.stall_after(Duration::from_secs(15)).take_over_after(Duration::from_secs(15));
        }
        let settings = settings.build().unwrap();
        let mut lease = Lease::new(name(), me(), Arc::new(settings), seed);
        let mut now = Moment::ZERO;
        let (mut newest, mut epoch) = (Attempt(0), Epoch(0));
        let mut pending: Option<(Attempt, LeaseRequest, Moment)> = None;
        let mut in_flight: Option<(Attempt, Moment)> = None;
        let mut deadline_told: Option<Moment> = None;
        let mut latest_send = Moment::ZERO;
        let mut lost = false;
        let mut over = false;
        let mut last_rank = 0;

        for (elapsed, fuzz_input) in steps {
            now = now + Duration::from_millis(elapsed);
            let back = |newest: u64, back: u64| newest.saturating_sub(back);
            let server = ServerTime::from_micros(1_000_000 + now.as_nanos() / 1_000);
            let input = match fuzz_input {
                FuzzInput::Reply { back: b, reply } => Input::Answered { attempt: Attempt(back(newest.0, b)), reply },
                // The reply of a correct store to the last request.
                FuzzInput::Honest => match &pending {
                    Some((attempt, LeaseRequest::Renew { .. }, _)) => {
                        Input::Answered { attempt: *attempt, reply: Reply::Renewed { server, max_ttl: Duration::ZERO, asked: None } }
                    }
                    Some((attempt, LeaseRequest::Acquire { .. } | LeaseRequest::TakeOver { .. }, _)) => Input::Answered {
                        attempt: *attempt,
                        reply: Reply::Granted(Grant {
                            token: Token::new(now.as_nanos() / 1_000 + 1).unwrap_or(Token::MAX),
                            server,
                            max_ttl: Duration::ZERO,
                            wait_out: Duration::ZERO,
                            previous: None,
                        }),
                    },
                    Some((attempt, ..)) => Input::Answered { attempt: *attempt, reply: Reply::Done },
                    None => Input::Tick,
                },
                FuzzInput::Failed { back: b } => Input::Failed { attempt: Attempt(back(newest.0, b)), error: error() },
                FuzzInput::Unknown { back: b } => Input::Unknown { attempt: Attempt(back(newest.0, b)), error: error() },
                FuzzInput::Wake { back: b } => Input::Wake(Epoch(back(epoch.0, b))),
                FuzzInput::Plain(input) => input,
            };
            let stale = matches!(&input, Input::Wake(e) if *e != epoch);
            // The next request may be sent only after a reply, a timeout or the end of the connection.
            match &input {
                Input::Answered { attempt, .. } | Input::Failed { attempt, .. } | Input::Unknown { attempt, .. } => {
                    in_flight = in_flight.filter(|(open, _)| open != attempt);
                }
                Input::ConnectionLost | Input::Attached(Continuity::Changed) => in_flight = None,
                _ => in_flight = in_flight.filter(|(_, give_up_at)| now < *give_up_at),
            }
            let valid_before = lease.is_valid(Now::undisturbed(now));
            let actions = lease.step(Now::undisturbed(now), input);
            prop_assert!(!stale || actions.is_empty(), "a stale wake-up did something");

            let mut sends = 0;
            for action in actions {
                match action {
                    Action::Send { attempt, request, give_up_at } => {
                        sends += 1;
                        prop_assert!(attempt > newest, "attempt numbers must increase");
                        prop_assert!(give_up_at > now);
                        if matches!(request, LeaseRequest::Renew { .. }) {
                            prop_assert!(!lost, "renewed after the loss");
                        }
                        if matches!(request, LeaseRequest::Renew { .. } | LeaseRequest::Acquire { .. } | LeaseRequest::TakeOver { .. }) {
                            let expired = in_flight.is_none_or(|(_, give_up_at)| now >= give_up_at);
                            prop_assert!(expired, "sent another request while one was in flight");
                            in_flight = Some((attempt, give_up_at));
                        }
                        newest = attempt;
                        latest_send = now;
                        pending = Some((attempt, request, now));
                    }
                    Action::Wake { at, epoch: e } => {
                        prop_assert!(e > epoch);
                        prop_assert!(at > now || lease.ending().is_none());
                        epoch = e;
                    }
                    Action::Deadline(d) => {
                        prop_assert!(!lost, "moved the deadline after the loss");
                        prop_assert!(deadline_told.is_none_or(|before| d >= before), "D went back");
                        let latest = deadline(latest_send, settings.ttl(), ClockTolerance::default());
                        prop_assert!(d <= latest, "D is later than the last request allows");
                        deadline_told = Some(d);
                    }
                    Action::Emit(event) => {
                        if let EventKind::Lost(_) = event.kind {
                            prop_assert!(!lost, "lost twice");
                            lost = true;
                        }
                    }
                    Action::Permit(permission) => {
                        let rank = match permission {
                            Permission::MayStart { .. } => {
                                prop_assert!(!lost, "un-lost");
                                prop_assert!(lease.remaining(Now::undisturbed(now)) > settings.stop_budget(), "may start without time left");
                                1
                            }
                            Permission::HoldStarts { .. } => 1,
                            Permission::MustCancel { gone_by } => {
                                prop_assert!(deadline_told.is_some_and(|d| gone_by <= d));
                                2
                            }
                            Permission::MustBeGone => 3,
                            _ => 0,
                        };
                        prop_assert!(rank >= last_rank, "a cancellation was revoked");
                        last_rank = rank;
                    }
                    _ => {}
                }
            }
            prop_assert!(sends <= 1, "more than one request at a time");
            if lost {
                prop_assert!(!lease.is_valid(Now::undisturbed(now)));
            }
            if let Some(d) = deadline_told {
                prop_assert!(now < d || !lease.is_valid(Now::undisturbed(now)));
            } else {
                prop_assert!(!lease.is_valid(Now::undisturbed(now)) && !valid_before);
            }
            prop_assert!(!over || lease.ending().is_some(), "left its final state");
            over = lease.ending().is_some();
        }
    }

    /// The driver wakes a lease until it is not due any more. That must end.
    #[test]
    fn a_wake_up_that_is_due_does_not_stay_due(
        seed in any::<u64>(),
        steps in prop::collection::vec((0_u64..12_000, fuzz_inputs()), 1..120),
    ) {
        let mut lease = Lease::new(name(), me(), Arc::new(LeaseSettings::default()), seed);
        let (mut now, mut newest) = (Moment::ZERO, 0);
        for (elapsed, fuzz_input) in steps {
            now = now + Duration::from_millis(elapsed);
            let attempt = |back: u64| Attempt(newest - back.min(newest));
            let input = match fuzz_input {
                FuzzInput::Reply { back, reply } => Input::Answered { attempt: attempt(back), reply },
                FuzzInput::Honest => Input::Answered { attempt: attempt(0), reply: Reply::Done },
                FuzzInput::Failed { back } => Input::Failed { attempt: attempt(back), error: error() },
                FuzzInput::Unknown { back } => Input::Unknown { attempt: attempt(back), error: error() },
                FuzzInput::Wake { .. } => Input::Tick,
                FuzzInput::Plain(input) => input,
            };
            let mut actions = lease.step(Now::undisturbed(now), input);
            for _ in 0..5 {
                newest = actions.iter().fold(newest, |newest, action| match action {
                    Action::Send { attempt, .. } => attempt.0,
                    _ => newest,
                });
                let Some((_, epoch)) = lease.next_wake().filter(|(due, _)| *due <= now) else { break };
                actions = lease.step(Now::undisturbed(now), Input::Wake(epoch));
            }
            let due = lease.next_wake().map(|(due, _)| due);
            prop_assert!(due.is_none_or(|due| due > now), "due at {due:?}, woken at {now}, and due again");
        }
    }
}
