//! Logs beside a lease: bounded, in order, and written only by holders.

use crate::name::LeaseName;
use crate::store::{EntryId, LogEntry, LogRequest, Refusal, Reply};
use crate::testing::client::{Client, ClientTerm};
use crate::testing::harness::{CaseHarness, LONG_TTL, job, lease, nonce};
use crate::token::Nonce;

const LOG: &str = "results";

async fn add(client: &Client, term: &ClientTerm, value: &str, kept: usize) -> Reply {
    add_as(client, term, value, kept, nonce()).await
}

/// Appends an entry, as one attempt.
async fn add_as(client: &Client, term: &ClientTerm, value: &str, kept: usize, nonce: Nonce) -> Reply {
    let (log, value) = (LOG.to_owned(), value.as_bytes().to_vec());
    client.send(LogRequest::Append { holding: term.holding(), log, value, kept, nonce, records: Vec::new() }).await
}

async fn read(client: &Client, name: &LeaseName, after: Option<EntryId>, limit: usize) -> Vec<LogEntry> {
    match client.send(LogRequest::Read { name: name.clone(), log: LOG.to_owned(), after, limit }).await {
        Reply::LogEntries(entries) => entries,
        other => panic!("a log must be read; the store answered {other:?}"),
    }
}

fn values(entries: &[LogEntry]) -> Vec<&str> {
    entries.iter().map(|entry| std::str::from_utf8(&entry.value).unwrap_or("?")).collect()
}

pub(super) async fn a_log_keeps_its_latest_entries_in_order(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    assert_eq!(read(&alice, &job(), None, 10).await, [], "nothing was added");
    for value in ["a", "b", "c", "d", "e"] {
        assert_eq!(add(&alice, &term, value, 4).await, Reply::Done);
    }
    let entries = read(&alice, &job(), None, 10).await;
    assert_eq!(values(&entries), ["b", "c", "d", "e"]);
    assert!(entries.windows(2).all(|pair| pair[0].id < pair[1].id), "{entries:?}");
    assert!(entries.iter().all(|entry| entry.token == term.token()), "{entries:?}");
    assert_eq!(values(&read(&alice, &job(), None, 2).await), ["d", "e"], "the latest");
    assert_eq!(values(&read(&alice, &job(), Some(entries[0].id), 2).await), ["c", "d"], "the next");
    assert_eq!(read(&alice, &job(), Some(entries[3].id), 2).await, [], "there is no more");
    let long_ago = EntryId { millis: 0, number: 0 };
    assert_eq!(
        values(&read(&alice, &job(), Some(long_ago), 9).await),
        ["b", "c", "d", "e"],
        "the entries left since then"
    );
    let never = EntryId { millis: u64::MAX, number: u64::MAX };
    assert_eq!(read(&alice, &job(), Some(never), 9).await, []);
    assert_eq!(read(&alice, &lease("other"), None, 10).await, [], "another lease has its own");
}

pub(super) async fn an_attempt_adds_one_entry_and_another_attempt_another(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    let (first, second) = (nonce(), nonce());
    for attempt in [first, first, second, second] {
        assert_eq!(add_as(&alice, &term, "up", 10, attempt).await, Reply::Done);
    }
    assert_eq!(values(&read(&alice, &job(), None, 10).await), ["up", "up"], "a repeated request adds nothing");
}

pub(super) async fn an_ended_term_appends_nothing(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let over = alice.acquire(&job(), LONG_TTL).await;
    add(&alice, &over, "mine", 10).await;
    alice.send(over.release()).await;
    assert_eq!(add(&alice, &over, "late", 10).await, Reply::Refused(Refusal::Missing));
    let next = bob.acquire(&job(), LONG_TTL).await;
    assert_eq!(add(&alice, &over, "late", 10).await, Reply::Refused(Refusal::Taken { holder: bob.id.clone() }));
    add(&bob, &next, "theirs", 10).await;
    let entries = read(&alice, &job(), None, 10).await;
    assert_eq!(values(&entries), ["mine", "theirs"]);
    assert_eq!([entries[0].token, entries[1].token], [over.token(), next.token()]);
}

pub(super) async fn a_record_is_written_with_an_entry_or_neither_is(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let term = alice.acquire(&job(), LONG_TTL).await;
    let attempt = nonce();
    let add = |value: &str, mark: &str| {
        let (log, value, mark) = (LOG.to_owned(), value.as_bytes().to_vec(), mark.as_bytes().to_vec());
        let records = vec![("state".to_owned(), b"whole".to_vec()), ("due".to_owned(), mark)];
        LogRequest::Append { holding: term.holding(), log, value, kept: 9, nonce: attempt, records }
    };
    assert_eq!(alice.send(add("a", "1")).await, Reply::Done);
    assert_eq!(alice.read_value(&job(), "due").await, Some(b"1".to_vec()));
    assert_eq!(alice.read_value(&job(), "state").await, Some(b"whole".to_vec()));
    // An entry that exists already is not added again, but its records are written.
    assert_eq!(alice.send(add("a", "2")).await, Reply::Done);
    assert_eq!(alice.read_value(&job(), "due").await, Some(b"2".to_vec()));
    alice.send(term.release()).await;
    bob.acquire(&job(), LONG_TTL).await;
    assert_eq!(alice.send(add("b", "3")).await, Reply::Refused(Refusal::Taken { holder: bob.id.clone() }));
    assert_eq!(bob.read_value(&job(), "due").await, Some(b"2".to_vec()));
    assert_eq!(values(&read(&bob, &job(), None, 9).await), ["a"]);
}
