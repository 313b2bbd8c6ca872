//! Live instances, and the indexes.

use std::time::Duration;

use crate::name::Group;
use crate::store::{Announcement, DocumentRequest, MembershipRequest, Outcome, Reply};
use crate::testing::StoreFault;
use crate::testing::client::{Client, ClientTerm, acquire, granted};
use crate::testing::harness::{CaseHarness, Checked, LONG_TTL, SHORT_TTL, instance, lease};

/// The ids of the live instances.
async fn ids(client: &Client) -> Vec<String> {
    client.instances().await.into_iter().map(|member| member.instance.as_str().to_owned()).collect()
}

fn add(index: &str, entry: &str) -> DocumentRequest {
    DocumentRequest::IndexAdd { index: index.to_owned(), entry: entry.to_owned(), announced: true }
}

fn remove(index: &str, entry: &str) -> DocumentRequest {
    DocumentRequest::IndexRemove { index: index.to_owned(), entry: entry.to_owned(), announced: true }
}

pub(super) async fn no_instance_is_alive_at_first(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    assert!(alice.instances().await.is_empty(), "attaching is not a heartbeat");
}

pub(super) async fn an_instance_with_a_heartbeat_is_alive(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    assert_eq!(alice.heartbeat(LONG_TTL, b"weight=1").await, Reply::Done, "a heartbeat always succeeds");
    assert_eq!(bob.heartbeat(LONG_TTL * 2, b"weight=2").await, Reply::Done, "a heartbeat always succeeds");
    let members = alice.instances().await;
    let shown: Vec<_> = members.iter().map(|m| (m.instance.as_str(), m.record.as_slice())).collect();
    assert_eq!(shown, [("alice", &b"weight=1"[..]), ("bob", &b"weight=2"[..])], "each with its own record");
    for (member, ttl) in members.iter().zip([LONG_TTL, LONG_TTL * 2]) {
        let left = member.remaining;
        assert!(left > Duration::ZERO && left <= ttl, "{left:?} of {ttl:?} is left: {member:?}");
    }
}

pub(super) async fn a_later_heartbeat_replaces_the_earlier_one(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    for record in [&b"status=up"[..], b"", b"status=draining"] {
        alice.heartbeat(LONG_TTL, record).await;
        let members = alice.instances().await;
        assert_eq!(members.len(), 1, "an instance is listed once: {members:?}");
        assert_eq!(members[0].record, record, "with its last record");
    }
}

pub(super) async fn an_instance_without_heartbeats_is_gone_after_its_ttl(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    alice.heartbeat(SHORT_TTL, b"").await;
    bob.heartbeat(LONG_TTL, b"").await;
    harness.outlast(SHORT_TTL).await;
    assert_eq!(ids(&bob).await, ["bob"], "a heartbeat is valid for its ttl and no longer");
}

pub(super) async fn an_instance_that_goes_on_sending_heartbeats_stays_alive(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    alice.heartbeat(SHORT_TTL, b"").await;
    alice.heartbeat(LONG_TTL, b"").await;
    harness.outlast(SHORT_TTL).await;
    assert_eq!(ids(&alice).await, ["alice"], "the later heartbeat counts");
}

pub(super) async fn an_instance_that_leaves_is_gone_at_once(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    alice.heartbeat(LONG_TTL, b"").await;
    bob.heartbeat(LONG_TTL, b"").await;
    for _ in 0..2 {
        let reply = bob.send(MembershipRequest::Leave { group: Group::FLEET, instance: alice.id.clone() }).await;
        assert_eq!(reply, Reply::Done, "leaving may be repeated");
        assert_eq!(ids(&bob).await, ["bob"], "only alice has left");
    }
    alice.heartbeat(LONG_TTL, b"").await;
    assert_eq!(ids(&bob).await, ["alice", "bob"], "and may join again");
}

pub(super) async fn instances_and_leases_are_independent(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    // The same text for every kind of name in a store.
    let name = lease("alice");
    let term = alice.acquire(&name, LONG_TTL).await;
    alice.heartbeat(LONG_TTL, b"").await;
    alice.send(add("alice", "alice")).await;
    alice.send(MembershipRequest::Leave { group: Group::FLEET, instance: alice.id.clone() }).await;
    alice.send(remove("alice", "alice")).await;
    let renewed = alice.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "leaving the fleet releases no lease: {renewed:?}");
    alice.heartbeat(LONG_TTL, b"").await;
    alice.send(term.release()).await;
    assert_eq!(ids(&alice).await, ["alice"], "releasing a lease is not leaving");
}

fn candidates(prefix: &str) -> Group {
    match Group::candidates(prefix) {
        Ok(group) => group,
        Err(error) => panic!("a case uses a bad prefix: {error}"),
    }
}

fn beat(client: &Client, group: &Group, record: &[u8]) -> MembershipRequest {
    MembershipRequest::Heartbeat {
        group: group.clone(),
        instance: client.id.clone(),
        ttl: LONG_TTL,
        record: record.to_vec(),
    }
}

pub(super) async fn groups_are_independent(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let (one, two) = (candidates("one:"), candidates("two:heartbeat:"));
    alice.heartbeat(LONG_TTL, b"fleet").await;
    alice.send(beat(&alice, &one, b"one")).await;
    bob.send(beat(&bob, &two, b"two")).await;
    for (group, expected) in [(&Group::FLEET, "alice fleet"), (&one, "alice one"), (&two, "bob two")] {
        let members = bob.instances_of(group).await;
        let shown: Vec<String> =
            members.iter().map(|m| format!("{} {}", m.instance, String::from_utf8_lossy(&m.record))).collect();
        assert_eq!(shown, [expected], "only the instances of {group:?}");
    }
    alice.send(MembershipRequest::Leave { group: one.clone(), instance: alice.id.clone() }).await;
    assert!(bob.instances_of(&one).await.is_empty(), "alice has left one group");
    assert_eq!(ids(&bob).await, ["alice"], "and not the other");
}

pub(super) async fn joining_and_leaving_a_group_is_announced(harness: &CaseHarness<'_>) {
    let (alice, mut subscriber) = (harness.client("alice").await, harness.subscriber().await);
    let group = candidates("my-app:heartbeat:");
    alice.send(beat(&alice, &group, b"")).await;
    let joined = Announcement::Joined { group: group.clone(), instance: alice.id.clone() };
    assert_eq!(subscriber.next_announcement().await, joined);
    alice.send(beat(&alice, &group, b"")).await;
    alice.send(MembershipRequest::Leave { group: group.clone(), instance: alice.id.clone() }).await;
    let left = Announcement::Left { group, instance: alice.id.clone() };
    assert_eq!(subscriber.next_announcement().await, left, "a second heartbeat is not announced");
}

pub(super) async fn a_heartbeat_may_travel_with_any_lease_request(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let group = candidates("my-app:heartbeat:");
    let name = lease("job");
    // Granted, renewed, refused and held: whatever the reply about the lease, the heartbeat succeeds.
    let claim = alice.claim(&name, LONG_TTL);
    let outcomes = alice.submit(vec![acquire(&claim), beat(&alice, &group, b"asks").into()]).await;
    let Ok([Outcome::Answered(reply), Outcome::Answered(Reply::Done)]) = <[Outcome; 2]>::try_from(outcomes) else {
        panic!("a request and a heartbeat have two replies");
    };
    let term = ClientTerm { claim, grant: granted(reply, "an unheld lease is granted") };
    let outcomes = alice.submit(vec![term.renewal(), beat(&alice, &group, b"leads").into(), term.renewal()]).await;
    for at in [0, 2] {
        assert!(matches!(outcomes[at], Outcome::Answered(Reply::Renewed { .. })), "{:?}", outcomes[at]);
    }
    let claim = bob.claim(&name, LONG_TTL);
    let outcomes = bob.submit(vec![acquire(&claim), beat(&bob, &group, b"waits").into()]).await;
    assert!(matches!(outcomes[0], Outcome::Answered(Reply::Held(_))), "{:?}", outcomes[0]);
    let outcomes = bob.submit(vec![term.claimed_by(&bob.id).renewal(), beat(&bob, &group, b"errs").into()]).await;
    assert!(matches!(outcomes[0], Outcome::Answered(Reply::Refused(_))), "{:?}", outcomes[0]);
    let members = bob.instances_of(&group).await;
    let shown: Vec<_> = members.iter().map(|m| (m.instance.as_str(), m.record.as_slice())).collect();
    assert_eq!(shown, [("alice", &b"leads"[..]), ("bob", &b"errs"[..])]);
}

pub(super) async fn a_large_fleet_is_listed_completely(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let beat = |n: usize| MembershipRequest::Heartbeat {
        group: Group::FLEET,
        instance: instance(&format!("node-{n:04}")),
        ttl: LONG_TTL,
        record: n.to_string().into_bytes(),
    };
    for chunk in (0..1_000).collect::<Vec<_>>().chunks(250) {
        alice.submit(chunk.iter().map(|n| beat(*n)).collect()).await;
    }
    let members = alice.instances().await;
    assert_eq!(members.len(), 1_000, "every instance is listed, once");
    for (n, member) in members.iter().enumerate() {
        assert_eq!(member.instance.as_str(), format!("node-{n:04}"), "every instance is listed, once");
        assert_eq!(member.record, n.to_string().into_bytes(), "each with its own record");
    }
}

pub(super) async fn an_index_lists_what_was_added_and_not_removed(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    assert!(alice.index("targets").await.is_empty(), "an index that was never written is empty");
    for entry in ["b", "a", "c", "a"] {
        assert_eq!(alice.send(add("targets", entry)).await, Reply::Done, "adding may be repeated");
    }
    assert_eq!(bob.index("targets").await, ["a", "b", "c"], "each entry is listed once");
    for entry in ["b", "b", "never-there"] {
        assert_eq!(bob.send(remove("targets", entry)).await, Reply::Done, "removing may be repeated");
    }
    assert_eq!(alice.index("targets").await, ["a", "c"], "removed entries are gone");
    for entry in ["a", "c"] {
        alice.send(remove("targets", entry)).await;
    }
    assert!(alice.index("targets").await.is_empty(), "an index may become empty again");
}

pub(super) async fn indexes_do_not_touch_each_other(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    alice.send(add("one", "a")).await;
    alice.send(add("two", "a")).await;
    alice.send(remove("one", "a")).await;
    assert!(alice.index("one").await.is_empty());
    assert_eq!(alice.index("two").await, ["a"], "another index keeps its entry");
}

pub(super) async fn a_flush_forgets_instances_and_indexes(harness: &CaseHarness<'_>) -> Checked {
    let mut alice = harness.client("alice").await;
    alice.heartbeat(LONG_TTL, b"").await;
    alice.send(add("targets", "a")).await;
    harness.inject(StoreFault::Flush).await?;
    alice.reattach(harness).await;
    assert!(alice.instances().await.is_empty(), "a flush deletes the heartbeats");
    assert!(alice.index("targets").await.is_empty(), "and every index");
    alice.heartbeat(LONG_TTL, b"").await;
    assert_eq!(ids(&alice).await, ["alice"], "heartbeats work during a quarantine");
    Ok(())
}
