//! Announcements: hints that a subscriber receives when nothing goes wrong.

use crate::name::{Group, InstanceId, LeaseName};
use crate::store::{Announcement, DocumentRequest, LogRequest, MembershipRequest, Reply, Request, SubscriptionItem};
use crate::testing::StoreFault;
use crate::testing::client::{Client, shown};
use crate::testing::harness::{CaseHarness, Checked, LONG_TTL, SHORT_TTL, instance, job, lease};
use crate::testing::subscriber::{TestSubscriber, marker};
use crate::token::{Nonce, Token};

/// Sends a request, and checks that it causes this announcement and no other.
async fn assert_announced(
    client: &Client,
    subscriber: &mut TestSubscriber,
    request: impl Into<Request>,
    expected: &Announcement,
) {
    let request = request.into();
    let shown = shown(&request);
    client.send(request).await;
    assert_eq!(&subscriber.next_announcement().await, expected, "{shown} must be announced");
    assert_nothing_announced(client, subscriber, &shown).await;
}

/// Checks that nothing more was announced than has been received.
async fn assert_nothing_announced(client: &Client, subscriber: &mut TestSubscriber, after: &str) {
    client.announce(marker("nothing-else")).await;
    assert_eq!(
        subscriber.next_announcement().await,
        marker("nothing-else"),
        "nothing more may be announced by {after}"
    );
}

pub(super) async fn a_release_is_announced(harness: &CaseHarness<'_>) {
    let (alice, mut subscriber) = (harness.client("alice").await, harness.subscriber().await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    let expected = Announcement::Released { name: job(), token: term.token() };
    assert_announced(&alice, &mut subscriber, term.release(), &expected).await;
    alice.send(term.release()).await;
    assert_nothing_announced(&alice, &mut subscriber, "a repeated release").await;
}

pub(super) async fn an_abandoned_claim_is_announced_as_released(harness: &CaseHarness<'_>) {
    let (alice, mut subscriber) = (harness.client("alice").await, harness.subscriber().await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    let expected = Announcement::Released { name: job(), token: term.token() };
    assert_announced(&alice, &mut subscriber, term.abandon(), &expected).await;
}

pub(super) async fn a_hand_over_is_announced(harness: &CaseHarness<'_>) {
    let (alice, mut subscriber) = (harness.client("alice").await, harness.subscriber().await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    let bob = instance("bob");
    let Reply::HandedOver { token } = alice.send(term.hand_over(&bob, LONG_TTL)).await else {
        panic!("the holder must be able to hand over");
    };
    let expected = Announcement::HandedOver { name: job(), token, to: bob };
    assert_eq!(subscriber.next_announcement().await, expected, "the receiver must learn of it, with the new token");
}

pub(super) async fn a_revocation_is_announced(harness: &CaseHarness<'_>) {
    let (alice, mut subscriber) = (harness.client("alice").await, harness.subscriber().await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    let expected = Announcement::Revoked { name: job(), token: term.token() };
    assert_announced(&alice, &mut subscriber, term.revocation(), &expected).await;
}

pub(super) async fn a_request_to_the_holder_is_announced(harness: &CaseHarness<'_>) {
    let (alice, mut subscriber) = (harness.client("alice").await, harness.subscriber().await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    let expected = Announcement::Asked { name: job(), token: term.token() };
    assert_announced(&alice, &mut subscriber, term.step_down(None), &expected).await;
}

pub(super) async fn a_publication_is_announced(harness: &CaseHarness<'_>) {
    let (alice, mut subscriber) = (harness.client("alice").await, harness.subscriber().await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    let expected = Announcement::Published { name: job(), record: "result".to_owned(), token: term.token() };
    assert_announced(&alice, &mut subscriber, term.publication("result", b"42"), &expected).await;
    // A publication need not be announced.
    let (record, value) = ("result".to_owned(), b"43".to_vec());
    let quiet = DocumentRequest::Publish { holding: term.holding(), record, value, announced: false };
    assert_eq!(alice.send(quiet).await, Reply::Done);
    assert_nothing_announced(&alice, &mut subscriber, "a quiet publication").await;
    assert_eq!(alice.read_value(&job(), "result").await.as_deref(), Some(&b"43"[..]));
}

pub(super) async fn the_first_heartbeat_is_announced_and_the_next_ones_are_not(harness: &CaseHarness<'_>) {
    let (alice, mut subscriber) = (harness.client("alice").await, harness.subscriber().await);
    alice.heartbeat(LONG_TTL, b"1").await;
    assert_eq!(
        subscriber.next_announcement().await,
        Announcement::Joined { group: Group::FLEET, instance: alice.id.clone() },
        "alice has joined"
    );
    alice.heartbeat(LONG_TTL, b"2").await;
    assert_nothing_announced(&alice, &mut subscriber, "a later heartbeat").await;

    let bob = harness.client("bob").await;
    bob.heartbeat(SHORT_TTL, b"").await;
    assert_eq!(
        subscriber.next_announcement().await,
        Announcement::Joined { group: Group::FLEET, instance: bob.id.clone() },
        "bob has joined"
    );
    harness.outlast(SHORT_TTL).await;
    bob.heartbeat(LONG_TTL, b"").await;
    assert_eq!(
        subscriber.next_announcement().await,
        Announcement::Joined { group: Group::FLEET, instance: bob.id.clone() },
        "bob was gone and is back"
    );
}

pub(super) async fn a_leave_is_announced(harness: &CaseHarness<'_>) {
    let (alice, mut subscriber) = (harness.client("alice").await, harness.subscriber().await);
    alice.heartbeat(LONG_TTL, b"").await;
    subscriber.next_announcement().await;
    let leave = MembershipRequest::Leave { group: Group::FLEET, instance: alice.id.clone() };
    assert_announced(
        &alice,
        &mut subscriber,
        leave.clone(),
        &Announcement::Left { group: Group::FLEET, instance: alice.id.clone() },
    )
    .await;
    alice.send(leave).await;
    assert_nothing_announced(&alice, &mut subscriber, "leaving again").await;
}

pub(super) async fn a_changed_index_is_announced(harness: &CaseHarness<'_>) {
    let (alice, mut subscriber) = (harness.client("alice").await, harness.subscriber().await);
    let index = || "targets".to_owned();
    let add = DocumentRequest::IndexAdd { index: index(), entry: "a".to_owned(), announced: true };
    let remove = DocumentRequest::IndexRemove { index: index(), entry: "a".to_owned(), announced: true };
    let changed = Announcement::IndexChanged { index: index() };
    let quietly = DocumentRequest::IndexAdd { index: index(), entry: "b".to_owned(), announced: false };
    alice.send(quietly).await;
    assert_nothing_announced(&alice, &mut subscriber, "a change that is not to be announced").await;
    for request in [add, remove] {
        assert_announced(&alice, &mut subscriber, request.clone(), &changed).await;
        alice.send(request).await;
        assert_nothing_announced(&alice, &mut subscriber, "a repeated change of an index").await;
    }
}

pub(super) async fn a_refused_request_is_not_announced(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let mut subscriber = harness.subscriber().await;
    let old = alice.acquire(&job(), LONG_TTL).await;
    let current = old.claimed_by(&bob.id);
    for request in current.fenced_requests().into_iter().chain([current.under(Token::ZERO).step_down(None)]) {
        let shown = shown(&request);
        let reply = bob.send(request).await;
        assert!(matches!(reply, Reply::Refused(_)), "{shown} must be refused, not {reply:?}");
        assert_nothing_announced(&bob, &mut subscriber, &shown).await;
    }
    bob.expect_held(&job()).await;
    alice.send(old.renewal()).await;
    assert_nothing_announced(&bob, &mut subscriber, "claims and renewals").await;
}

pub(super) async fn every_subscriber_receives_every_announcement_in_order(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let mut listeners = [harness.subscriber().await, harness.subscriber().await, harness.subscriber().await];
    for n in 0..50 {
        alice.announce(marker(&format!("n-{n}"))).await;
    }
    for subscriber in &mut listeners {
        for n in 0..50 {
            assert_eq!(subscriber.next_announcement().await, marker(&format!("n-{n}")), "announcements come in order");
        }
    }
}

/// Names may contain nearly every character, so a transport must not mistake content for structure.
pub(super) async fn every_kind_of_announcement_arrives_as_it_was_sent(harness: &CaseHarness<'_>) {
    let (alice, mut subscriber) = (harness.client("alice").await, harness.subscriber().await);
    let token = Token::MAX;
    for label in ["plain", "a:b:c", "\"'\\", "*?[a-z]", "päusen-日本-🦀", "a,b;c|d=e", "%00\\0", &"x".repeat(256)]
    {
        let (name, id) = (lease(label), instance(label));
        let hostile = format!("{label} \n\t\0{{}} {label}");
        for announcement in every_kind(&name, &id, &hostile, token) {
            alice.announce(announcement.clone()).await;
            assert_eq!(
                subscriber.next_announcement().await,
                announcement,
                "an announcement must arrive as it was sent"
            );
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
        Announcement::Unheld { name: job() },
        Announcement::Joined { group: Group::FLEET, instance: id() },
        Announcement::Left { group: Group::FLEET, instance: id() },
        Announcement::IndexChanged { index: text() },
    ]
}

pub(super) async fn nothing_is_lost_when_a_subscriber_stops_waiting(harness: &CaseHarness<'_>) {
    let (alice, mut subscriber) = (harness.client("alice").await, harness.subscriber().await);
    for n in 0..10 {
        subscriber.cancel_next().await;
        alice.announce(marker(&format!("n-{n}"))).await;
        assert_eq!(
            subscriber.next_announcement().await,
            marker(&format!("n-{n}")),
            "giving up and listening again loses nothing"
        );
    }
}

pub(super) async fn a_subscriber_learns_that_the_server_was_restarted(harness: &CaseHarness<'_>) -> Checked {
    harness.client("alice").await;
    let mut subscriber = harness.subscriber().await;
    harness.inject(StoreFault::Restart).await?;
    let heard = subscriber.next().await;
    assert!(
        matches!(heard, SubscriptionItem::Gap | SubscriptionItem::Closed),
        "announcements may have been missed, but {heard:?} was received"
    );
    Ok(())
}

pub(super) async fn a_subscriber_learns_that_its_connection_was_cut(harness: &CaseHarness<'_>) -> Checked {
    harness.client("alice").await;
    let mut subscriber = harness.subscriber().await;
    harness.inject(StoreFault::CutConnections).await?;
    let heard = subscriber.next().await;
    assert!(
        matches!(heard, SubscriptionItem::Gap | SubscriptionItem::Closed),
        "announcements may have been missed, but {heard:?} was received"
    );
    Ok(())
}

pub(super) async fn an_entry_of_a_watched_log_is_announced(harness: &CaseHarness<'_>) {
    let (alice, mut subscriber) = (harness.client("alice").await, harness.subscriber().await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    let append = |number: u128| {
        let (holding, log, nonce) = (term.holding(), "results".to_owned(), Nonce::new(number));
        LogRequest::Append { holding, log, value: b"up".to_vec(), kept: 9, nonce, records: Vec::new() }
    };
    alice.announce(marker("begin")).await;
    while subscriber.next_announcement().await != marker("begin") {}
    assert_eq!(alice.send(append(1)).await, Reply::Done);
    assert_nothing_announced(&alice, &mut subscriber, "an entry of a log that is not watched").await;
    let watch = |ttl| LogRequest::Watch { name: job(), ttl };
    assert_eq!(alice.send(watch(LONG_TTL)).await, Reply::Done);
    let appended = Announcement::Appended { name: job(), log: "results".to_owned(), token: term.token() };
    assert_announced(&alice, &mut subscriber, append(2), &appended).await;
    alice.send(append(2)).await;
    assert_nothing_announced(&alice, &mut subscriber, "a repeated request").await;
    alice.send(watch(SHORT_TTL)).await;
    harness.advance_time(SHORT_TTL * 2).await;
    assert_eq!(alice.send(append(3)).await, Reply::Done);
    assert_nothing_announced(&alice, &mut subscriber, "an entry of a log that is no longer watched").await;
}
