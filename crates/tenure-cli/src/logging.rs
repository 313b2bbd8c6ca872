//! Log lines on stderr.

use tenure::log::EventLayer;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::arguments::{LogArguments, LogLevel};
use crate::notice;
use crate::stderr::{self, Stderr};

/// Writes events as log lines from now on. Events of other crates are left out: each line is an event of this instance.
pub fn start(arguments: &LogArguments, default: LogLevel) {
    let format = notice::set_format(arguments.log);
    notice::set_level(arguments.log_level);
    let level = match arguments.log_level.unwrap_or(default) {
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Off => LevelFilter::OFF,
    };
    // Without the thread, lines are written directly.
    let _ = stderr::start();
    let ours = Targets::new().with_target("tenure", level);
    tracing_subscriber::registry().with(EventLayer::new(format, Stderr).with_filter(ours)).init();
}
