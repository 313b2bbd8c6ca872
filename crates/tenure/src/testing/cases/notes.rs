//! Notes about terms.

use crate::lease::{Ending, ReleaseReason};
use crate::store::{LogRequest, Reply, TermNote};
use crate::testing::client::Client;
use crate::testing::harness::{CaseHarness, job, token_above};
use crate::time::ServerTime;
use crate::token::Token;

pub(super) async fn notes_are_listed_as_they_were_written_the_latest_last(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let began = note(&alice, 1);
    let ended = TermNote {
        demoted: Some(ServerTime::from_micros(8)),
        released: Some(ServerTime::from_micros(9)),
        ending: Some(Ending::Released(ReleaseReason::Voluntary)),
        ..began.clone()
    };
    for note in [&began, &ended] {
        assert_eq!(alice.send(LogRequest::Note(note.clone())).await, Reply::Done);
    }
    assert_eq!(latest(&alice, 10).await, [began, ended], "both, in order");
}

pub(super) async fn only_the_latest_notes_are_listed(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let notes: Vec<TermNote> = (1..=30).map(|number| note(&alice, number)).collect();
    alice.submit(notes.iter().cloned().map(LogRequest::Note).collect()).await;
    assert_eq!(latest(&alice, 7).await, notes[23..], "the seven latest");
    assert_eq!(latest(&alice, 0).await, [], "a limit of zero");
}

pub(super) async fn the_number_of_notes_is_bounded(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let all = 12_000_u64;
    for chunk in (1..=all).collect::<Vec<_>>().chunks(2_000) {
        alice.submit(chunk.iter().map(|number| LogRequest::Note(note(&alice, *number))).collect()).await;
    }
    let kept = latest(&alice, usize::MAX >> 1).await;
    assert!(kept.len() < 11_000, "{} notes are kept", kept.len());
    assert!(kept.len() >= 9_000, "{} notes are kept", kept.len());
    assert_eq!(kept.last(), Some(&note(&alice, all)), "the latest is there");
}

fn note(client: &Client, number: u64) -> TermNote {
    let token = token_above(Token::ZERO, number);
    TermNote {
        name: job(),
        token,
        holder: client.id.clone(),
        from: ServerTime::from_micros(number),
        demoted: None,
        released: None,
        ending: None,
    }
}

async fn latest(client: &Client, limit: usize) -> Vec<TermNote> {
    match client.send(LogRequest::Notes { limit }).await {
        Reply::Notes(notes) => notes,
        other => panic!("notes must be listed; the store answered {other:?}"),
    }
}
