//! Spans of time, as people write them.

use std::time::Duration;

pub fn parse(text: &str) -> Result<Duration, String> {
    // What most people mean by it, and what nobody has to ask back for.
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("the unit is missing: {text}s or {text}ms"));
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; durations are written 500ms, 5s, 1m30s"))
}

/// In whole milliseconds.
pub fn format_duration(span: Duration) -> String {
    humantime::format_duration(Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))).to_string()
}
