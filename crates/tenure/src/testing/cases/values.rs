//! Contents that look like structure: records, values and index entries are arbitrary bytes or text.

use crate::store::{DocumentRequest, Reply};
use crate::testing::harness::{CaseHarness, LONG_TTL, job, lease};

const MEBIBYTE: usize = 1 << 20;

/// Texts that the crate does not check at all.
fn hostile_texts() -> Vec<String> {
    let mut texts: Vec<String> = [
        "",
        " ",
        "  ",
        "\0",
        "a\0b",
        "\n",
        "\r\n",
        "a b",
        "{",
        "}",
        "{job}",
        "{}",
        ":",
        "a:b",
        "*",
        "[a-z]?",
        "'",
        "\"",
        "\\",
        "%",
        "päusen",
        "日本語",
        "🦀",
        "tenure:ns",
        "result",
        "Result",
        "{\"json\":[1,2]}",
        "0",
        "nil",
        "-inf",
        "\u{feff}",
        "\u{1b}[2J",
    ]
    .map(str::to_owned)
    .to_vec();
    texts.push("long".repeat(2_500));
    texts
}

fn hostile_values() -> Vec<Vec<u8>> {
    let mut values: Vec<Vec<u8>> = hostile_texts().into_iter().map(String::into_bytes).collect();
    values.push((0..=255).collect());
    values.push(vec![0; 1_000]);
    values.push(vec![0xff, 0xfe, 0xc0, 0x80, 0xed, 0xa0, 0x80]);
    // What Redis sends on the wire, for a store that uses its protocol.
    values.push(b"$-1\r\n*2\r\n+OK\r\n".to_vec());
    values
}

pub(super) async fn any_value_is_read_as_it_was_published(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    for value in hostile_values() {
        assert_eq!(alice.send(term.publication("result", &value)).await, Reply::Done, "publishing {value:?}");
        assert_eq!(bob.read_value(&job(), "result").await, Some(value), "a value must be read as it was published");
    }
}

pub(super) async fn a_mebibyte_is_read_as_it_was_published(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    let value: Vec<u8> = (0..MEBIBYTE).map(|n| (n % 251) as u8).collect();
    assert_eq!(alice.send(term.publication("result", &value)).await, Reply::Done, "a large value is published");
    let read = bob.read_value(&job(), "result").await;
    // Not compared with `assert_eq!`, which would print both.
    assert!(read.as_deref() == Some(&value), "a large value must be read as it was published");
}

pub(super) async fn any_record_name_names_a_record_of_its_own(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    let records = hostile_texts();
    for (n, record) in records.iter().enumerate() {
        let published = alice.send(term.publication(record, n.to_string().as_bytes())).await;
        assert_eq!(published, Reply::Done, "publishing {record:?}");
    }
    for (n, record) in records.iter().enumerate() {
        let value = bob.read_value(&job(), record).await;
        assert_eq!(value, Some(n.to_string().into_bytes()), "{record:?} must be a record of its own");
    }
}

/// A store that joins names into one key must not map two pairs to the same key.
pub(super) async fn a_record_belongs_to_its_lease_alone(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let pairs =
        [("a", "b:c"), ("a:b", "c"), ("a:b:c", ""), ("a", "b"), ("a:", "b"), ("a", ":b"), ("b", "a"), ("ab", "c")];
    for (label, record) in pairs {
        let term = alice.acquire(&lease(label), LONG_TTL).await;
        let value = format!("{label}/{record}");
        alice.send(term.publication(record, value.as_bytes())).await;
        alice.send(term.release()).await;
    }
    for (label, record) in pairs {
        let value = alice.read_value(&lease(label), record).await;
        assert_eq!(value, Some(format!("{label}/{record}").into_bytes()), "record {record:?} of lease {label:?}");
    }
}

pub(super) async fn a_record_named_like_tenures_own_data_harms_nothing(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    for record in ["term", "progress", "state", "due", "history", "ns", "nodes", "lease", "holder", "token", "nonce"] {
        alice.send(term.publication(record, b"not what it looks like")).await;
    }
    let renewed = alice.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "records are separate from the store's own data: {renewed:?}");
    alice.send(term.release()).await;
    let next = alice.acquire(&job(), LONG_TTL).await;
    assert!(next.token() > term.token(), "and so is the record of the last term");
}

pub(super) async fn any_heartbeat_record_is_listed_as_it_was_sent(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    for value in hostile_values() {
        alice.heartbeat(LONG_TTL, &value).await;
        let members = alice.instances().await;
        assert_eq!(members.len(), 1, "an instance is listed once");
        assert_eq!(members[0].record, value, "a heartbeat must be listed as it was sent");
    }
}

pub(super) async fn any_index_entry_is_an_entry_of_its_own(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let mut entries = hostile_texts();
    entries.sort();
    let request = |entry: &String| ("targets".to_owned(), entry.clone());
    for (index, entry) in entries.iter().map(request) {
        assert_eq!(alice.send(DocumentRequest::IndexAdd { index, entry, announced: true }).await, Reply::Done);
    }
    assert_eq!(alice.index("targets").await, entries, "every entry is listed as it was added");
    for (n, (index, entry)) in entries.iter().map(request).enumerate() {
        assert_eq!(alice.send(DocumentRequest::IndexRemove { index, entry, announced: true }).await, Reply::Done);
        assert_eq!(alice.index("targets").await, entries[n + 1..], "only this entry may be gone");
    }
}

pub(super) async fn any_index_name_names_an_index_of_its_own(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let indexes = hostile_texts();
    for (n, index) in indexes.iter().enumerate() {
        let reply =
            alice.send(DocumentRequest::IndexAdd { index: index.clone(), entry: n.to_string(), announced: true }).await;
        assert_eq!(reply, Reply::Done, "adding to {index:?}");
    }
    for (n, index) in indexes.iter().enumerate() {
        assert_eq!(alice.index(index).await, [n.to_string()], "{index:?} must be an index of its own");
    }
}
