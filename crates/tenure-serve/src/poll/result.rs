//! What came of a poll, as it is kept and shown.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde_json::{Value, json};
use tenure::{InstanceId, Token};
use uuid::Uuid;

use super::client::{Answer, cut};
use crate::keeping::BODY_IN_HISTORY;

/// Who polled what, and when it was due.
#[derive(Clone, Debug)]
pub struct Poll {
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
pub struct Kept {
    /// For the history: its body may be cut.
    pub entry: String,
    /// All of it, where that is more.
    pub whole: Option<String>,
}

/// What is kept of a poll: a short one for the history, and a whole one of the last.
pub fn kept(
    poll: &Poll,
    polled_at: SystemTime,
    took: Duration,
    answer: &Result<Answer, String>,
    failures: u32,
) -> Kept {
    let shown = |answer: &Result<Answer, String>| document(poll, polled_at, took, answer, failures).to_string();
    match answer {
        Ok(answer) if answer.body.len() > BODY_IN_HISTORY => {
            let body = cut(&answer.body, BODY_IN_HISTORY).to_owned();
            let short = Answer { status: answer.status, body, truncated: true };
            Kept { entry: shown(&Ok(short)), whole: Some(shown(&Ok(answer.clone()))) }
        }
        answer => Kept { entry: shown(answer), whole: None },
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
    poll: &Poll,
    polled_at: SystemTime,
    took: Duration,
    answer: &Result<Answer, String>,
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
        "dueAt": instant(poll.due),
        "polledAt": instant(polled_at),
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
pub fn is_ok(answer: &Answer) -> bool {
    (200..300).contains(&answer.status)
}

/// How often the target had failed in a row, and when, by the last document that is kept of it.
pub fn failures(document: &[u8]) -> Option<(u32, SystemTime)> {
    let document: Value = serde_json::from_slice(document).ok()?;
    let failures = u32::try_from(document.get("consecutiveFailures")?.as_u64()?).ok()?;
    let polled_at: Timestamp = document.get("polledAt")?.as_str()?.parse().ok()?;
    Some((failures, polled_at.into()))
}

/// A moment, to the millisecond, as RFC 3339 writes it.
pub fn instant(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| Timestamp::UNIX_EPOCH.to_string(), |at| format!("{at:.3}"))
}
