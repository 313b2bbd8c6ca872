//! Parsing and formatting of durations.

use std::time::Duration;

pub fn parse(text: &str) -> Result<Duration, String> {
    // Zero is the same in every unit.
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("the unit is missing: {text}s or {text}ms"));
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; expected a duration such as 500ms, 5s or 1m30s"))
}

/// Formats a duration in whole milliseconds.
pub fn format_duration(span: Duration) -> String {
    humantime::format_duration(Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))).to_string()
}
