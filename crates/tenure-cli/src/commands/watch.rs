//! `tenure watch`: the terms of the whole fleet, as they are written down.

use std::collections::HashSet;
use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Map, Value};
use tenure::LeaseKind;
use tenure::lease::Ending;
use tenure::store::TermNote;
use tenure::time::ServerTime;

use crate::arguments::{StoreArguments, Watch};
use crate::exit::{DONE, Failure};

/// How often is looked. What happened is written down up to a fifth of a second later.
const LOOK: Duration = Duration::from_millis(200);

/// How much may happen between two looks.
const AT_ONCE: usize = 2_000;

pub async fn watch(store: &StoreArguments, arguments: Watch) -> Result<u8, Failure> {
    let tenure = store.connect().await?;
    let mut seen: HashSet<String> = HashSet::new();
    let mut first = !arguments.all;
    let mut ended = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let notes = tenure.terms(AT_ONCE).await;
        // A store that is away is waited for; events say that it is.
        if let Ok(notes) = notes {
            let fresh: Vec<&TermNote> = notes.iter().filter(|note| !seen.contains(&note.encode())).collect();
            if !first && print(&fresh, arguments.json).is_err() {
                // Nobody reads it any more.
                break;
            }
            first = false;
            seen = notes.iter().map(TermNote::encode).collect();
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = &mut ended => break,
        }
    }
    tenure.shutdown().await;
    Ok(DONE)
}

fn print(notes: &[&TermNote], json: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for fields in notes.iter().flat_map(|note| lines(note)) {
        if json {
            let object: Map<String, Value> = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            writeln!(out, "{}", Value::Object(object))?;
        } else {
            let words: Vec<String> = fields.iter().map(|(name, value)| word(name, value)).collect();
            writeln!(out, "{}", words.join(" "))?;
        }
    }
    out.flush()
}

fn word(name: &str, value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if name == "timestamp" || name == "event" { text } else { format!("{name}={text}") }
}

/// What a note says, as events: one of the lease, and one of the election when it is a role's.
fn lines(note: &TermNote) -> Vec<Vec<(&'static str, Value)>> {
    let kind = match note.name.kind() {
        LeaseKind::Role => "role",
        LeaseKind::Target => "endpoint_id",
        _ => "lease",
    };
    let (events, at, reason) = match &note.ending {
        None => (["lease.acquired", "election.leadership_acquired"], note.from, None),
        Some(ending) => {
            let lease = if matches!(ending, Ending::Lost(_)) { "lease.lost" } else { "lease.released" };
            let at = note.released.or(note.demoted).unwrap_or(note.from);
            ([lease, "election.leadership_lost"], at, Some(ending.word()))
        }
    };
    let count = if note.name.kind() == LeaseKind::Role { 2 } else { 1 };
    let line = |event: &'static str| {
        let mut fields = vec![
            ("timestamp", Value::from(timestamp(at))),
            ("event", Value::from(event)),
            ("instance_id", Value::from(note.holder.as_str())),
            (kind, Value::from(note.name.label())),
            ("token", Value::from(note.token.get())),
        ];
        fields.extend(reason.map(|reason| ("reason", Value::from(reason))));
        fields
    };
    events.into_iter().take(count).map(line).collect()
}

pub fn timestamp(time: ServerTime) -> String {
    // Anybody can write a note; years have four digits.
    let micros = time.as_micros().min(253_402_300_799_999_999);
    humantime::format_rfc3339_micros(UNIX_EPOCH + Duration::from_micros(micros)).to_string()
}
