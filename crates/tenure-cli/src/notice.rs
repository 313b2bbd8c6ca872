//! Messages of the program beside its result: text for people, or a line of JSON like those of the log. `--log-level`
//! applies to them. The reason of an exit status other than 0 is part of the result and always appears.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tenure::InstanceId;
use tenure::log::Format;

use crate::arguments::{LogFormat, LogLevel};
use crate::stderr::Stderr;

static FORMAT: OnceLock<Format> = OnceLock::new();
static LEVEL: OnceLock<LogLevel> = OnceLock::new();
static INSTANCE: OnceLock<InstanceId> = OnceLock::new();

/// Importance of a notice.
#[derive(Clone, Copy)]
pub enum Importance {
    Info,
    Warning,
    /// The reason why the command exits with a status other than 0.
    Failure,
}

impl Importance {
    /// Returns whether a notice of this importance appears at a level.
    fn is_shown_at(self, level: LogLevel) -> bool {
        match self {
            Self::Info => matches!(level, LogLevel::Debug | LogLevel::Info),
            Self::Warning => matches!(level, LogLevel::Debug | LogLevel::Info | LogLevel::Warn),
            Self::Failure => true,
        }
    }
}

/// Sets the level of `--log-level`. Without it all notices appear, whatever is logged.
pub fn set_level(chosen: Option<LogLevel>) {
    if let Some(level) = chosen {
        let _ = LEVEL.set(level);
    }
}

/// Sets the format of all output on stderr, as given by the flags.
pub fn set_format(chosen: Option<LogFormat>) -> Format {
    *FORMAT.get_or_init(|| match chosen {
        Some(LogFormat::Text) => Format::Text,
        Some(LogFormat::Json) => Format::Json,
        None => format_without_flag(),
    })
}

/// Guesses the format while the flags are not parsed: from the raw arguments, then from the environment. The default is
/// text on a terminal.
fn format_without_flag() -> Format {
    let mut arguments = std::env::args().take_while(|argument| argument != "--");
    let flag = arguments.find_map(|argument| match argument.strip_prefix("--log") {
        Some("") => Some(None),
        Some(value) => value.strip_prefix('=').map(|value| Some(value.to_owned())),
        None => None,
    });
    let flag = flag.and_then(|value| value.or_else(|| arguments.next()));
    match flag.or_else(|| std::env::var("TENURE_LOG").ok()).as_deref() {
        Some("text") => Format::Text,
        Some("json") => Format::Json,
        _ if std::io::stderr().is_terminal() => Format::Text,
        _ => Format::Json,
    }
}

/// Sets the instance id of this process, once it has one.
pub fn set_instance(instance: &InstanceId) {
    let _ = INSTANCE.set(instance.clone());
}

/// Writes a notice to stderr, if it appears at the chosen level.
pub fn print(importance: Importance, text: fmt::Arguments<'_>) {
    if LEVEL.get().is_some_and(|level| !importance.is_shown_at(*level)) {
        return;
    }
    let line = match FORMAT.get().copied().unwrap_or_else(format_without_flag) {
        Format::Text => format!("tenure: {text}"),
        Format::Json => json(importance, &text.to_string()),
    };
    // A failure to write to stderr cannot be reported. One write, so that a line stays whole.
    let _ = Stderr.write_all(format!("{line}\n").as_bytes());
}

fn json(importance: Importance, text: &str) -> String {
    let (level, event) = match importance {
        Importance::Info => ("info", "program.notice"),
        Importance::Warning => ("warn", "program.notice"),
        Importance::Failure => ("error", "program.failed"),
    };
    // A clock before 1970 has no such text.
    let timestamp = humantime::format_rfc3339_micros(SystemTime::now().max(UNIX_EPOCH)).to_string();
    let fields = [
        ("timestamp", timestamp.into()),
        ("level", level.into()),
        ("event", event.into()),
        ("instance_id", INSTANCE.get().map_or(Value::Null, |instance| instance.as_str().into())),
        ("message", text.into()),
    ];
    let fields: Vec<String> =
        fields.iter().map(|(name, value): &(&str, Value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", fields.join(","))
}

/// Prints an informational notice.
macro_rules! note {
    ($($text:tt)*) => { $crate::notice::print($crate::notice::Importance::Info, format_args!($($text)*)) };
}

/// Prints a notice that an operator should act on.
macro_rules! warning {
    ($($text:tt)*) => { $crate::notice::print($crate::notice::Importance::Warning, format_args!($($text)*)) };
}

/// Prints the reason why the command exits with a status other than 0.
macro_rules! failure {
    ($($text:tt)*) => { $crate::notice::print($crate::notice::Importance::Failure, format_args!($($text)*)) };
}

pub(crate) use {failure, note, warning};
