//! Lines of text or JSON.

use std::fmt::Write as _;
use std::io::Write;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The format of log lines.
///
/// ```
/// use tenure::log::{EventLayer, Format};
/// use tracing_subscriber::layer::SubscriberExt;
/// use tracing_subscriber::util::SubscriberInitExt;
///
/// let format = if std::env::args().any(|arg| arg == "--json") { Format::Json } else { Format::Text };
/// tracing_subscriber::registry().with(EventLayer::new(format, std::io::stderr())).init();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `2026-11-15T12:00:00.000000Z info lease.acquired instance_id=… role=… token=…`
    Text,
    /// `{"timestamp":"2026-11-15T12:00:00.000000Z","level":"info","event":"lease.acquired","instance_id":"…",…}`
    Json,
}

/// Writes `tracing` events as lines: `timestamp`, `level`, `event`, and then the fields that apply. Events of other
/// libraries have a `message` instead of an `event`.
///
/// Tenure emits its events from its own thread, so the subscriber must be the global default. Renewals and polls are
/// events at `debug`. A program with thousands of leases filters the target `tenure` by level or by field.
///
/// ```
/// use tenure::Tenure;
/// use tenure::log::{EventLayer, Format};
/// use tracing_subscriber::layer::SubscriberExt;
/// use tracing_subscriber::util::SubscriberInitExt;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// tracing_subscriber::registry().with(EventLayer::new(Format::Json, std::io::stderr())).init();
/// let tenure = Tenure::connect("memory:").await?;
/// tenure.lease("job").acquire().await?.release().await?; // lease.acquired, lease.released
/// # tenure.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct EventLayer<W> {
    format: Format,
    writer: Mutex<W>,
}

impl<W: Write> EventLayer<W> {
    /// Creates a layer that writes to `writer`.
    pub fn new(format: Format, writer: W) -> Self {
        Self { format, writer: Mutex::new(writer) }
    }
}

impl<S: Subscriber, W: Write + 'static> Layer<S> for EventLayer<W>
where
    Self: 'static,
{
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        // A clock before 1970 has no such text.
        let timestamp = humantime::format_rfc3339_micros(SystemTime::now().max(UNIX_EPOCH)).to_string();
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        let line = match self.format {
            Format::Text => fields.text(&timestamp, &level),
            Format::Json => fields.json(timestamp, level),
        };
        // A failure to write the log cannot be reported anywhere.
        if let Ok(mut writer) = self.writer.lock() {
            let _ = writer.write_all(line.as_bytes());
            let _ = writer.flush();
        }
    }
}

/// The fields of one event, in order.
#[derive(Default)]
struct Fields(Vec<(&'static str, Value)>);

impl Fields {
    fn text(&self, timestamp: &str, level: &str) -> String {
        let mut line = format!("{timestamp} {level}");
        for (name, value) in &self.0 {
            // Writing to a string does not fail.
            let _ = match (name, value) {
                (&"event", Value::String(text)) => write!(line, " {text}"),
                (&"message", Value::String(text)) => write!(line, " {}", text.escape_debug()),
                (name, Value::String(text))
                    if text.chars().any(|c| c.is_whitespace() || c.is_control() || c == '"') =>
                {
                    write!(line, " {name}={text:?}")
                }
                (name, Value::String(text)) => write!(line, " {name}={text}"),
                (name, other) => write!(line, " {name}={other}"),
            };
        }
        line.push('\n');
        line
    }

    fn json(self, timestamp: String, level: String) -> String {
        let head = [("timestamp", Value::String(timestamp)), ("level", Value::String(level))];
        // In the order given: serde_json's own map would sort them.
        let mut line = String::from("{");
        for (name, value) in head.into_iter().chain(self.0) {
            let comma = if line.len() > 1 { "," } else { "" };
            let _ = write!(line, "{comma}{}:{value}", Value::String(name.to_owned()));
        }
        line.push_str("}\n");
        line
    }

    fn add(&mut self, field: &Field, value: Value) {
        self.0.push((field.name(), value));
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use serde_json::Map;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::event::{Event, EventKind};
    use crate::{InstanceId, LeaseName, Token};

    #[derive(Clone, Default)]
    struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

    impl Write for SharedBuffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn captured(format: Format, write: impl FnOnce()) -> String {
        let buffer = SharedBuffer::default();
        let subscriber = tracing_subscriber::registry().with(EventLayer::new(format, buffer.clone()));
        tracing::subscriber::with_default(subscriber, write);
        String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap()
    }

    fn acquired() -> Event {
        Event {
            instance: InstanceId::new("api-1").unwrap(),
            lease: Some(LeaseName::target("poll", "eu-1").unwrap()),
            token: Token::new(7),
            kind: EventKind::Acquired { ttl: Duration::from_secs(30) },
        }
    }

    #[test]
    fn json_has_the_fields_of_the_contract_and_numbers_are_numbers() {
        let line = captured(Format::Json, || crate::log::emit(&acquired()));
        let parsed: Map<String, Value> = serde_json::from_str(&line).unwrap();
        assert_eq!(parsed["event"], "lease.acquired");
        assert_eq!(parsed["level"], "info");
        assert_eq!(parsed["instance_id"], "api-1");
        assert_eq!(parsed["endpoint_id"], "eu-1");
        assert_eq!(parsed["token"], 7);
        assert_eq!(parsed["ttl_ms"], 30_000);
        assert!(!parsed.contains_key("role") && !parsed.contains_key("error"), "{line}");
        assert!(line.starts_with(r#"{"timestamp":"2"#), "{line}");
        let timestamp = parsed["timestamp"].as_str().unwrap();
        assert_eq!((timestamp.len(), timestamp.ends_with('Z')), (27, true), "{timestamp}");
    }

    #[test]
    fn text_has_the_same_fields_and_quotes_ambiguous_values() {
        let line = captured(Format::Text, || {
            let kind = EventKind::Uncertain { error: "no answer\nwithin 2s".to_owned() };
            crate::log::emit(&Event { kind, ..acquired() });
        });
        assert!(
            line.contains(
                r#" warn lease.uncertain instance_id=api-1 endpoint_id=eu-1 token=7 error="no answer\nwithin 2s""#
            ),
            "{line}"
        );
        assert_eq!(line.lines().count(), 1, "{line}");
    }
}
