//! What came of a poll, as it is kept and shown.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde_json::{Value, json};
use tenure::{InstanceId, Token};
use uuid::Uuid;

use super::client::Answer;

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

/// The document that is kept.
pub fn document(poll: &Poll, polled_at: SystemTime, took: Duration, answer: &Result<Answer, String>) -> Value {
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
        "ok": status.is_some_and(|status| (200..300).contains(&status)),
        "status": status,
        "latencyMs": took.as_micros() as f64 / 1_000.0,
        "body": body,
        "truncated": truncated,
        "error": error,
    })
}

/// A moment, to the millisecond, as RFC 3339 writes it.
pub fn instant(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| Timestamp::UNIX_EPOCH.to_string(), |at| format!("{at:.3}"))
}
