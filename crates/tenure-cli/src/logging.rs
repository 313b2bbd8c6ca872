//! Log lines on stderr.

use std::io::IsTerminal;

use tenure::log::{EventLayer, Format};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::arguments::{LogArguments, LogFormat, LogLevel};

/// Events are lines from now on.
pub fn start(arguments: &LogArguments, only_asks: bool) {
    let format = match arguments.log {
        Some(LogFormat::Text) => Format::Text,
        Some(LogFormat::Json) => Format::Json,
        None if std::io::stderr().is_terminal() => Format::Text,
        None => Format::Json,
    };
    let usual = if only_asks { LogLevel::Error } else { LogLevel::Info };
    let level = match arguments.log_level.unwrap_or(usual) {
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Off => LevelFilter::OFF,
    };
    tracing_subscriber::registry().with(EventLayer::new(format, std::io::stderr()).with_filter(level)).init();
}
