//! Results of polls, as stored and shown.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde_json::{Value, json};
use tenure::{InstanceId, Token};
use uuid::Uuid;

use super::client::{PollResponse, truncate};
use crate::result_settings::HISTORY_BODY_BYTES;

/// Identity of a poll: session, instance, term and due time.
#[derive(Clone, Debug)]
pub struct PollInfo {
    /// The session.
    pub session: Uuid,
    /// The polling instance.
    pub instance: InstanceId,
    /// The token of its term.
    pub token: Token,
    /// When the poll was due, by the store's clock.
    pub due: SystemTime,
}

/// The stored form of a result.
#[derive(Clone, Debug)]
pub struct EncodedResult {
    /// The entry of the history, whose body may be truncated.
    pub entry: String,
    /// The whole result, if it is longer than the entry.
    pub whole: Option<String>,
}

/// Encodes a result: a short entry for the history, and the whole result for the last one.
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

/// Returns whether two documents belong to the same poll.
pub fn is_same_poll(one: &Value, other: &Value) -> bool {
    ["sessionId", "token", "dueAt", "polledAt"].iter().all(|field| one[field] == other[field])
}

/// Creates the stored document.
///
/// `failures` is the number of consecutive failures of the target, including this one: its next holder continues the
/// backoff from there.
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

/// Returns whether the response is a success.
pub fn is_ok(answer: &PollResponse) -> bool {
    (200..300).contains(&answer.status)
}

/// Reads the number of consecutive failures, and the time of the last poll, from the last stored document.
pub fn read_failures(document: &[u8]) -> Option<(u32, SystemTime)> {
    let document: Value = serde_json::from_slice(document).ok()?;
    let failures = u32::try_from(document.get("consecutiveFailures")?.as_u64()?).ok()?;
    let polled_at: Timestamp = document.get("polledAt")?.as_str()?.parse().ok()?;
    Some((failures, polled_at.into()))
}

/// Formats a time to the millisecond, as in RFC 3339.
pub fn format_time(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| Timestamp::UNIX_EPOCH.to_string(), |at| format!("{at:.3}"))
}
