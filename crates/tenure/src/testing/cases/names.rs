//! Names that look like structure: a store must keep every name that the crate accepts apart from every other.

use crate::name::{Group, LeaseKind, LeaseName};
use crate::store::{MembershipRequest, Reply};
use crate::testing::client::Client;
use crate::testing::harness::{CaseHarness, LONG_TTL, instance, job, lease};

/// Labels with characters that have a meaning in patterns, query languages, scripts, paths and key layouts.
fn hostile_labels() -> Vec<String> {
    let mut labels: Vec<String> = [
        "plain",
        "*",
        "?",
        "[a-z]",
        "job*",
        "%",
        "_",
        "'",
        "\"",
        "`",
        "\\",
        "\\\\",
        "a\\0b",
        "';DROP/**/TABLE/**/leases;--",
        "$(id)",
        "%s%n%d",
        "..",
        "../../etc/passwd",
        "a/b",
        ":",
        "::",
        "a:b",
        "a:b:c",
        "job",
        "Job",
        "JOB",
        "tenure:ns",
        "tenure:term:job",
        "tenure:nodes",
        "ns",
        "0",
        "-1",
        "1e3",
        "nil",
        "null",
        "true",
        "ä",
        "a\u{308}",
        "日本語",
        "🦀",
        "\u{202e}txt",
        "\u{feff}",
        "#!lua",
        "--",
        "@",
        "|",
        "&amp;",
        ",",
        "=",
    ]
    .map(str::to_owned)
    .to_vec();
    // Of the maximum length, and different only in the last byte.
    labels.push("x".repeat(256));
    labels.push(format!("{}y", "x".repeat(255)));
    labels.push("ü".repeat(128));
    labels
}

/// Leases with hostile labels, of every kind and under prefixes similar to Tenure's own.
fn hostile_names() -> Vec<LeaseName> {
    let mut names: Vec<_> = hostile_labels().iter().map(|label| lease(label)).collect();
    // The crate may refuse some of these; those that it accepts must work.
    names.extend(["x", "tenure:ns", "*"].iter().filter_map(|label| LeaseName::role(label).ok()));
    names.extend(["poll", "a:b", "*", "'"].iter().filter_map(|pool| LeaseName::target(pool, "x").ok()));
    let with = |prefix, label| LeaseName::with_prefix(LeaseKind::Lease, prefix, label).ok();
    names.extend(with("{my-app}:leader:", "x"));
    names.extend(with("my-app:{tag}:", "x"));
    names.extend(with("my-app:tag:", "x"));
    names.extend(with("tenure", ":ns"));
    names.extend(with("t", "enure:nodes"));
    names.extend(with("poll:node:", "alice"));
    names
}

pub(super) async fn hostile_names_are_held_independently(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let names = hostile_names();
    let mut terms = Vec::new();
    for (n, name) in names.iter().enumerate() {
        let client = if n % 2 == 0 { &alice } else { &bob };
        terms.push(client.acquire(name, LONG_TTL).await);
    }
    for (n, term) in terms.iter().enumerate() {
        let (holder, rival) = if n % 2 == 0 { (&alice, &bob) } else { (&bob, &alice) };
        let held = rival.expect_held(&names[n]).await;
        assert_eq!((held.holder, held.token), (holder.id.clone(), Some(term.token())), "{}", names[n]);
        let renewed = holder.send(term.renewal()).await;
        assert!(matches!(renewed, Reply::Renewed { .. }), "{} must be renewable: {renewed:?}", names[n]);
    }
    // Every second lease is released; the others must not change.
    for term in terms.iter().step_by(2) {
        assert_eq!(alice.send(term.release()).await, Reply::Done, "{}", term.claim.name);
    }
    for (n, name) in names.iter().enumerate() {
        let held = alice.inspect(name).await.held.map(|held| held.holder);
        let expected = if n % 2 == 0 { None } else { Some(bob.id.clone()) };
        assert_eq!(held, expected, "releasing other leases must not affect {name}");
    }
}

pub(super) async fn hostile_names_survive_every_kind_of_request(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    for name in hostile_names() {
        let term = alice.acquire(&name, LONG_TTL).await;
        assert_eq!(alice.send(term.publication("r", b"v")).await, Reply::Done, "publishing under {name}");
        assert_eq!(bob.read_value(&name, "r").await.as_deref(), Some(&b"v"[..]), "reading under {name}");
        assert_eq!(bob.send(term.step_down(Some(&bob.id))).await, Reply::Done, "asking of {name}");
        let Reply::HandedOver { token } = alice.send(term.hand_over(&bob.id, LONG_TTL)).await else {
            panic!("{name} must be handed over");
        };
        let taken = bob.acquire(&name, LONG_TTL).await;
        assert_eq!(taken.token(), token, "accepting {name}");
        assert_eq!(alice.send(taken.revocation()).await, Reply::Done, "revoking {name}");
        assert_eq!(bob.send(taken.release()).await, Reply::Done, "releasing {name}");
        assert_eq!(alice.inspect(&name).await.held, None, "{name} must be unheld");
    }
    alice.acquire(&lease("still-works"), LONG_TTL).await;
}

pub(super) async fn hostile_instance_ids_are_kept_apart(harness: &CaseHarness<'_>) {
    let observer = harness.client("observer").await;
    let mut players = Vec::new();
    for label in hostile_labels() {
        players.push(Client::new(instance(&label), harness.client("any").await.connection));
    }
    for (n, client) in players.iter().enumerate() {
        let name = lease(&format!("job-{n}"));
        let term = client.acquire(&name, LONG_TTL).await;
        let held = observer.expect_held(&name).await;
        assert_eq!(held.holder, client.id, "the holder must be shown as it is");
        let renewed = client.send(term.renewal()).await;
        assert!(matches!(renewed, Reply::Renewed { .. }), "{} must be able to renew: {renewed:?}", client.id);
        client.heartbeat(LONG_TTL, client.id.as_str().as_bytes()).await;
    }
    let mut expected: Vec<_> = players.iter().map(|client| client.id.clone()).collect();
    expected.sort();
    let members = observer.instances().await;
    let ids: Vec<_> = members.iter().map(|member| member.instance.clone()).collect();
    assert_eq!(ids, expected, "every instance is listed separately");
    for member in &members {
        assert_eq!(member.record, member.instance.as_str().as_bytes(), "with its own record");
    }
    for (n, client) in players.iter().enumerate() {
        observer.send(MembershipRequest::Leave { group: Group::FLEET, instance: client.id.clone() }).await;
        let left = players.len() - n - 1;
        assert_eq!(observer.instances().await.len(), left, "only {} may have left", client.id);
    }
}

pub(super) async fn a_hostile_receiver_can_take_up_its_offer(harness: &CaseHarness<'_>) {
    let (alice, any) = (harness.client("alice").await, harness.client("any").await);
    for label in hostile_labels() {
        let receiver = Client::new(instance(&label), any.connection.clone());
        let term = alice.acquire(&job(), LONG_TTL).await;
        let Reply::HandedOver { token } = alice.send(term.hand_over(&receiver.id, LONG_TTL)).await else {
            panic!("{label} must be able to receive");
        };
        let taken = receiver.acquire(&job(), LONG_TTL).await;
        assert_eq!(taken.token(), token, "{label} must be recognised as the receiver");
        let previous = taken.grant.previous.as_ref().map(|previous| &previous.holder);
        assert_eq!(previous, Some(&alice.id), "{label} must learn who handed over");
        receiver.send(taken.release()).await;
    }
}
