//! Announcements: hints that a listener hears when nothing goes wrong.

use crate::name::{Group, InstanceId, LeaseName};
use crate::store::{Announcement, Heard, Reply, Request};
use crate::testing::Disturbance;
use crate::testing::listener::{Listener, marker};
use crate::testing::player::{Player, shown};
use crate::testing::trial::{Checked, LONG, SHORT, Trial, instance, job, lease};
use crate::token::Token;

/// Sends a request, and checks that this and nothing else is announced.
async fn announces(player: &Player, listener: &mut Listener, request: Request, expected: &Announcement) {
    let shown = shown(&request);
    player.send(request).await;
    assert_eq!(&listener.hears().await, expected, "{shown} must be announced");
    is_silent(player, listener, &shown).await;
}

/// Checks that nothing more was announced than has been heard.
async fn is_silent(player: &Player, listener: &mut Listener, after: &str) {
    player.announce(marker("nothing-else")).await;
    assert_eq!(listener.hears().await, marker("nothing-else"), "nothing more may be announced by {after}");
}

pub(super) async fn a_release_is_announced(trial: &Trial<'_>) {
    let (alice, mut listener) = (trial.player("alice").await, trial.listener().await);
    let term = alice.wins(&job(), LONG).await;
    let expected = Announcement::Released { name: job(), token: term.token() };
    announces(&alice, &mut listener, term.release(), &expected).await;
    alice.send(term.release()).await;
    is_silent(&alice, &mut listener, "a repeated release").await;
}

pub(super) async fn an_abandoned_claim_is_announced_as_released(trial: &Trial<'_>) {
    let (alice, mut listener) = (trial.player("alice").await, trial.listener().await);
    let term = alice.wins(&job(), LONG).await;
    let expected = Announcement::Released { name: job(), token: term.token() };
    announces(&alice, &mut listener, term.abandon(), &expected).await;
}

pub(super) async fn a_hand_over_is_announced(trial: &Trial<'_>) {
    let (alice, mut listener) = (trial.player("alice").await, trial.listener().await);
    let term = alice.wins(&job(), LONG).await;
    let bob = instance("bob");
    let Reply::HandedOver { token } = alice.send(term.hand_over(&bob, LONG)).await else {
        panic!("the holder must be able to hand over");
    };
    let expected = Announcement::HandedOver { name: job(), token, to: bob };
    assert_eq!(listener.hears().await, expected, "the receiver must be told, with the new token");
}

pub(super) async fn a_revocation_is_announced(trial: &Trial<'_>) {
    let (alice, mut listener) = (trial.player("alice").await, trial.listener().await);
    let term = alice.wins(&job(), LONG).await;
    let expected = Announcement::Revoked { name: job(), token: term.token() };
    announces(&alice, &mut listener, term.revocation(), &expected).await;
}

pub(super) async fn what_is_asked_of_a_holder_is_announced(trial: &Trial<'_>) {
    let (alice, mut listener) = (trial.player("alice").await, trial.listener().await);
    let term = alice.wins(&job(), LONG).await;
    let expected = Announcement::Asked { name: job(), token: term.token() };
    announces(&alice, &mut listener, term.step_down(None), &expected).await;
}

pub(super) async fn a_publication_is_announced(trial: &Trial<'_>) {
    let (alice, mut listener) = (trial.player("alice").await, trial.listener().await);
    let term = alice.wins(&job(), LONG).await;
    let expected = Announcement::Published { name: job(), record: "result".to_owned(), token: term.token() };
    announces(&alice, &mut listener, term.publication("result", b"42"), &expected).await;
    // Unless that is nobody's business.
    let (record, value) = ("result".to_owned(), b"43".to_vec());
    let quiet = Request::Publish { holding: term.holding(), record, value, announced: false };
    assert_eq!(alice.send(quiet).await, Reply::Done);
    is_silent(&alice, &mut listener, "a quiet publication").await;
    assert_eq!(alice.read_value(&job(), "result").await.as_deref(), Some(&b"43"[..]));
}

pub(super) async fn the_first_heartbeat_is_announced_and_the_next_ones_are_not(trial: &Trial<'_>) {
    let (alice, mut listener) = (trial.player("alice").await, trial.listener().await);
    alice.beats(LONG, b"1").await;
    assert_eq!(
        listener.hears().await,
        Announcement::Joined { group: Group::FLEET, instance: alice.id.clone() },
        "alice has joined"
    );
    alice.beats(LONG, b"2").await;
    is_silent(&alice, &mut listener, "a later heartbeat").await;

    let bob = trial.player("bob").await;
    bob.beats(SHORT, b"").await;
    assert_eq!(
        listener.hears().await,
        Announcement::Joined { group: Group::FLEET, instance: bob.id.clone() },
        "bob has joined"
    );
    trial.outlast(SHORT).await;
    bob.beats(LONG, b"").await;
    assert_eq!(
        listener.hears().await,
        Announcement::Joined { group: Group::FLEET, instance: bob.id.clone() },
        "bob was gone and is back"
    );
}

pub(super) async fn a_leave_is_announced(trial: &Trial<'_>) {
    let (alice, mut listener) = (trial.player("alice").await, trial.listener().await);
    alice.beats(LONG, b"").await;
    listener.hears().await;
    let leave = Request::Leave { group: Group::FLEET, instance: alice.id.clone() };
    announces(
        &alice,
        &mut listener,
        leave.clone(),
        &Announcement::Left { group: Group::FLEET, instance: alice.id.clone() },
    )
    .await;
    alice.send(leave).await;
    is_silent(&alice, &mut listener, "leaving again").await;
}

pub(super) async fn a_changed_index_is_announced(trial: &Trial<'_>) {
    let (alice, mut listener) = (trial.player("alice").await, trial.listener().await);
    let index = || "targets".to_owned();
    let add = Request::IndexAdd { index: index(), entry: "a".to_owned(), announced: true };
    let remove = Request::IndexRemove { index: index(), entry: "a".to_owned(), announced: true };
    let changed = Announcement::IndexChanged { index: index() };
    let quietly = Request::IndexAdd { index: index(), entry: "b".to_owned(), announced: false };
    alice.send(quietly).await;
    is_silent(&alice, &mut listener, "a change that nobody is to be told of").await;
    for request in [add, remove] {
        announces(&alice, &mut listener, request.clone(), &changed).await;
        alice.send(request).await;
        is_silent(&alice, &mut listener, "a repeated change of an index").await;
    }
}

pub(super) async fn what_is_refused_is_not_announced(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let mut listener = trial.listener().await;
    let old = alice.wins(&job(), LONG).await;
    let current = old.claimed_by(&bob.id);
    for request in current.privileged().into_iter().chain([current.under(Token::ZERO).step_down(None)]) {
        let shown = shown(&request);
        let reply = bob.send(request).await;
        assert!(matches!(reply, Reply::Refused(_)), "{shown} must be refused, not {reply:?}");
        is_silent(&bob, &mut listener, &shown).await;
    }
    bob.finds_held(&job()).await;
    alice.send(old.renewal()).await;
    is_silent(&bob, &mut listener, "claims and renewals").await;
}

pub(super) async fn every_listener_hears_every_announcement_in_order(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let mut listeners = [trial.listener().await, trial.listener().await, trial.listener().await];
    for n in 0..50 {
        alice.announce(marker(&format!("n-{n}"))).await;
    }
    for listener in &mut listeners {
        for n in 0..50 {
            assert_eq!(listener.hears().await, marker(&format!("n-{n}")), "announcements come in order");
        }
    }
}

/// Names can hold nearly everything, so whatever carries announcements must not mistake content for structure.
pub(super) async fn every_kind_of_announcement_arrives_as_it_was_sent(trial: &Trial<'_>) {
    let (alice, mut listener) = (trial.player("alice").await, trial.listener().await);
    let token = Token::MAX;
    for label in ["plain", "a:b:c", "\"'\\", "*?[a-z]", "päusen-日本-🦀", "a,b;c|d=e", "%00\\0", &"x".repeat(256)]
    {
        let (name, id) = (lease(label), instance(label));
        let hostile = format!("{label} \n\t\0{{}} {label}");
        for announcement in every_kind(&name, &id, &hostile, token) {
            alice.announce(announcement.clone()).await;
            assert_eq!(listener.hears().await, announcement, "an announcement must arrive as it was sent");
        }
    }
}

fn every_kind(name: &LeaseName, id: &InstanceId, text: &str, token: Token) -> Vec<Announcement> {
    let (name, id, text) = (|| name.clone(), || id.clone(), || text.to_owned());
    vec![
        Announcement::Released { name: name(), token },
        Announcement::HandedOver { name: name(), token, to: id() },
        Announcement::Revoked { name: name(), token },
        Announcement::Asked { name: name(), token },
        Announcement::Published { name: name(), record: text(), token },
        Announcement::Vacant { name: job() },
        Announcement::Joined { group: Group::FLEET, instance: id() },
        Announcement::Left { group: Group::FLEET, instance: id() },
        Announcement::IndexChanged { index: text() },
    ]
}

pub(super) async fn nothing_is_lost_when_a_listener_stops_waiting(trial: &Trial<'_>) {
    let (alice, mut listener) = (trial.player("alice").await, trial.listener().await);
    for n in 0..10 {
        listener.gives_up_waiting().await;
        alice.announce(marker(&format!("n-{n}"))).await;
        assert_eq!(listener.hears().await, marker(&format!("n-{n}")), "giving up and listening again loses nothing");
    }
}

pub(super) async fn a_listener_learns_that_the_server_was_restarted(trial: &Trial<'_>) -> Checked {
    trial.player("alice").await;
    let mut listener = trial.listener().await;
    trial.disturb(Disturbance::Restart).await?;
    let heard = listener.next().await;
    assert!(matches!(heard, Heard::Gap | Heard::Closed), "announcements may have been missed, but {heard:?} was heard");
    Ok(())
}

pub(super) async fn a_listener_learns_that_its_connection_was_cut(trial: &Trial<'_>) -> Checked {
    trial.player("alice").await;
    let mut listener = trial.listener().await;
    trial.disturb(Disturbance::Cut).await?;
    let heard = listener.next().await;
    assert!(matches!(heard, Heard::Gap | Heard::Closed), "announcements may have been missed, but {heard:?} was heard");
    Ok(())
}
