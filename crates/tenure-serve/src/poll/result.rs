//! What came of a poll, as it is kept and shown.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde_json::{Value, json};
use tenure::{InstanceId, Token};
use uuid::Uuid;

use super::client::{PollResponse, truncate};
use crate::result_settings::HISTORY_BODY_BYTES;

/// Who polled what, and when it was due.
#[derive(Clone, Debug)]
pub struct PollInfo {
    /// The session.
    pub session: Uuid,
    /// Who polled.
    pub instance: InstanceId,
    /// In which term.
    pub token: Token,
    /// When it was due, by the store's clock.
    pub due: SystemTime,
}

/// What is kept of one poll.
#[derive(Clone, Debug)]
pub struct EncodedResult {
    /// For the history: its body may be cut.
    pub entry: String,
    /// All of it, where that is more.
    pub whole: Option<String>,
}

/// What is kept of a poll: a short one for the history, and a whole one of the last.
pub fn encode(
    poll: &PollInfo,
    polled_at: SystemTime,
    took: Duration,
    answer: &Result<PollResponse, String>,
    failures: u32,
) -> EncodedResult {
    let shown = |answer: &Result<PollResponse, String>| document(poll, polled_at, took, answer, failures).to_string();
    match answer {
        Ok(answer) if answer.body.len() > HISTORY_BODY_BYTES => {
            let body = truncate(&answer.body, HISTORY_BODY_BYTES).to_owned();
            let short = PollResponse { status: answer.status, body, truncated: true };
            EncodedResult { entry: shown(&Ok(short)), whole: Some(shown(&Ok(answer.clone()))) }
        }
        answer => EncodedResult { entry: shown(answer), whole: None },
    }
}

/// Whether two documents are of the same poll.
pub fn is_same_poll(one: &Value, other: &Value) -> bool {
    ["sessionId", "token", "dueAt", "polledAt"].iter().all(|field| one[field] == other[field])
}

/// The document that is kept.
///
/// `failures` is how often the target has failed in a row, this time included: its next holder goes on from there.
fn document(
    poll: &PollInfo,
    polled_at: SystemTime,
    took: Duration,
    answer: &Result<PollResponse, String>,
    failures: u32,
) -> Value {
    let (status, body, truncated, error) = match answer {
        Ok(answer) => (Some(answer.status), Some(answer.body.as_str()), answer.truncated, None),
        Err(error) => (None, None, false, Some(error.as_str())),
    };
    json!({
        "sessionId": poll.session.to_string(),
        "instanceId": poll.instance.as_str(),
        "token": poll.token.get(),
        "dueAt": format_time(poll.due),
        "polledAt": format_time(polled_at),
        "ok": answer.as_ref().is_ok_and(is_ok),
        "status": status,
        "latencyMs": took.as_micros() as f64 / 1_000.0,
        "body": body,
        "truncated": truncated,
        "error": error,
        "consecutiveFailures": failures,
    })
}

/// Whether a target answered as it should.
pub fn is_ok(answer: &PollResponse) -> bool {
    (200..300).contains(&answer.status)
}

/// How often the target had failed in a row, and when, by the last document that is kept of it.
pub fn read_failures(document: &[u8]) -> Option<(u32, SystemTime)> {
    let document: Value = serde_json::from_slice(document).ok()?;
    let failures = u32::try_from(document.get("consecutiveFailures")?.as_u64()?).ok()?;
    let polled_at: Timestamp = document.get("polledAt")?.as_str()?.parse().ok()?;
    Some((failures, polled_at.into()))
}

/// A moment, to the millisecond, as RFC 3339 writes it.
pub fn format_time(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| Timestamp::UNIX_EPOCH.to_string(), |at| format!("{at:.3}"))
}
