//! Settings for stored results and for the backoff of failing targets: of an instance, and of each session. Pure.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::session::{InvalidSession, format_duration, invalid};

/// Largest body size that can be kept, in bytes.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;

/// Largest number of results that can be kept of a session.
pub const MAX_RESULTS: usize = 1_000;

/// Bytes of each body that the history keeps.
pub const HISTORY_BODY_BYTES: usize = 1024;

/// The shortest that the longest pause may be.
const MIN_BACKOFF: Duration = Duration::from_millis(1);

/// Upper limit for the longest pause of a backoff.
const MAX_BACKOFF: Duration = Duration::from_secs(24 * 3_600);

/// Backoff for a failing target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackoffSetting {
    /// Poll less and less, at least once a minute.
    #[default]
    On,
    /// Poll at the interval of the session.
    Off,
    /// Poll less and less, with this longest pause.
    Max(Duration),
}

impl BackoffSetting {
    /// Returns the longest pause between two polls, or `None` without a backoff.
    pub fn max_pause(self) -> Option<Duration> {
        match self {
            Self::On => Some(Duration::from_secs(60)),
            Self::Off => None,
            Self::Max(longest) => Some(longest),
        }
    }

    /// Formats the setting as it is parsed.
    pub fn to_text(self) -> String {
        match self {
            Self::On => "on".to_owned(),
            Self::Off => "off".to_owned(),
            Self::Max(longest) => format_duration(longest),
        }
    }
}

impl std::str::FromStr for BackoffSetting {
    type Err = String;

    /// ```
    /// use std::time::Duration;
    /// use tenure_serve::result_settings::BackoffSetting;
    ///
    /// assert_eq!("off".parse(), Ok(BackoffSetting::Off));
    /// assert_eq!("5m".parse(), Ok(BackoffSetting::Max(Duration::from_secs(300))));
    /// assert!("often".parse::<BackoffSetting>().is_err() && "1ns".parse::<BackoffSetting>().is_err());
    /// ```
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "on" | "true" | "yes" | "1" => Ok(Self::On),
            "off" | "false" | "no" | "0" => Ok(Self::Off),
            text => match humantime::parse_duration(text) {
                Ok(longest) if longest >= MIN_BACKOFF && longest <= MAX_BACKOFF => Ok(Self::Max(longest)),
                Ok(_) => Err(format!("the longest pause must be between 1 ms and 24 h, got {text:?}")),
                Err(_) => Err(format!("must be on, off or the longest pause, such as 5m, got {text:?}")),
            },
        }
    }
}

/// Parses a size in bytes, such as `64KiB`.
///
/// # Errors
/// When it is not a size, or more than [`MAX_BODY_BYTES`].
///
/// ```
/// use tenure_serve::result_settings::parse_body_size;
///
/// assert_eq!(parse_body_size("64KiB"), Ok(65_536));
/// assert_eq!(parse_body_size("500"), Ok(500));
/// assert!(parse_body_size("2MiB").is_err() && parse_body_size("many").is_err());
/// ```
pub fn parse_body_size(text: &str) -> Result<usize, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "kib" | "k" => Some(1024),
        "mib" | "m" => Some(1024 * 1024),
        "kb" => Some(1_000),
        "mb" => Some(1_000_000),
        _ => None,
    };
    let size = number.parse::<usize>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    match size {
        Some(size) if size <= MAX_BODY_BYTES => Ok(size),
        Some(_) => Err(format!("must be at most 1 MiB, got {text:?}")),
        None => Err(format!("must be a size such as 64KiB or 65536, got {text:?}")),
    }
}

/// Parses a number of results.
///
/// # Errors
/// When it is not a number between 1 and [`MAX_RESULTS`].
pub fn parse_result_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=MAX_RESULTS).contains(&count) => Ok(count),
        _ => Err(format!("must be between 1 and {MAX_RESULTS}, got {text:?}")),
    }
}

/// An instance's settings for results, for sessions without overrides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultSettings {
    /// Bytes to keep of the last body.
    pub max_body: usize,
    /// Number of results to keep.
    pub keep_results: usize,
    /// Backoff for failing targets.
    pub backoff: BackoffSetting,
}

impl Default for ResultSettings {
    fn default() -> Self {
        Self { max_body: 64 * 1024, keep_results: 100, backoff: BackoffSetting::On }
    }
}

/// Overrides of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultOverrides {
    /// Bytes to keep of the last body.
    pub max_body: Option<usize>,
    /// Number of results to keep.
    pub keep_results: Option<usize>,
    /// Backoff for its target.
    pub backoff: Option<BackoffSetting>,
}

impl ResultOverrides {
    /// Reads the fields `maxBody`, `keepResults` and `backoff`.
    pub(crate) fn read(document: &Map<String, Value>) -> Result<Self, InvalidSession> {
        Ok(Self {
            max_body: field(document, "maxBody", parse_body_size)?,
            keep_results: field(document, "keepResults", parse_result_count)?,
            backoff: field(document, "backoff", str::parse)?,
        })
    }

    /// Returns the settings of the session on an instance with these defaults.
    pub(crate) fn or(self, defaults: ResultSettings) -> ResultSettings {
        ResultSettings {
            max_body: self.max_body.unwrap_or(defaults.max_body),
            keep_results: self.keep_results.unwrap_or(defaults.keep_results),
            backoff: self.backoff.unwrap_or(defaults.backoff),
        }
    }
}

/// Reads a field that is text, a number or a boolean.
fn field<T>(
    document: &Map<String, Value>,
    name: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, InvalidSession> {
    let text = match document.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
        Some(_) => return Err(invalid(format!("`{name}` must be text or a number"))),
    };
    read(&text).map(Some).map_err(|why| invalid(format!("`{name}` {why}")))
}
