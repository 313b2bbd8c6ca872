//! Events of instances, as they are announced to the fleet.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::event::{Event, EventKind, Level};
use crate::name::InstanceId;

/// Separates the fields. No name contains it, and in a text it can be replaced by a space.
const FIELD_SEPARATOR: char = '\u{1f}';

/// The end of four-digit years, in microseconds since 1970.
const YEAR_10_000: u64 = 253_402_300_800_000_000;

/// An event of an instance, with the same names as in its log.
///
/// ```
/// use std::time::UNIX_EPOCH;
/// use tenure::fleet::FleetEvent;
/// use tenure::{Event, EventKind, InstanceId};
///
/// let event = Event { instance: InstanceId::new("api-1")?, lease: None, token: None, kind: EventKind::Recovered };
/// let fleet_event = FleetEvent::of(&event, UNIX_EPOCH);
/// assert_eq!((fleet_event.name.as_str(), fleet_event.level.as_str()), ("lease.recovered", "info"));
/// assert_eq!(FleetEvent::decode(&fleet_event.encode()), Some(fleet_event));
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetEvent {
    /// When it happened, by its instance's clock, to the microsecond.
    pub at: SystemTime,
    /// Its log level.
    pub level: String,
    /// Its name, such as `lease.acquired`.
    pub name: String,
    /// Its fields, the instance first.
    pub fields: Vec<(String, String)>,
}

impl FleetEvent {
    /// Converts an event that happened at this time.
    pub fn of(event: &Event, at: SystemTime) -> Self {
        let micros = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let fields =
            event.fields().into_iter().map(|(name, value)| (name.to_owned(), value.replace(FIELD_SEPARATOR, " ")));
        Self {
            at: UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0)),
            level: event.kind.level().as_str().to_owned(),
            name: event.kind.name().to_owned(),
            fields: fields.collect(),
        }
    }

    /// Whether to announce this kind to the fleet: events of leases and elections, but not routine ones, nor those that
    /// other instances see for themselves.
    pub fn is_fleet_wide(kind: &EventKind) -> bool {
        match kind {
            kind if kind.level() == Level::Debug => false,
            EventKind::PublishRefused { .. } => true,
            kind => kind.name().starts_with("lease.") || kind.name().starts_with("election."),
        }
    }

    /// The instance of the event.
    pub fn instance(&self) -> Option<InstanceId> {
        let (_, id) = self.fields.iter().find(|(name, _)| name == "instance_id")?;
        InstanceId::new(id).ok()
    }

    /// Encodes the event as one line of text for [`decode`](Self::decode).
    pub fn encode(&self) -> String {
        let micros = self.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let mut text = format!("{micros}{FIELD_SEPARATOR}{}{FIELD_SEPARATOR}{}", self.level, self.name);
        for (name, value) in &self.fields {
            text.extend([FIELD_SEPARATOR]);
            text.push_str(name);
            text.push('=');
            text.push_str(value);
        }
        text
    }

    /// Decodes the output of [`encode`](Self::encode); `None` for anything else: announcements are untrusted input.
    pub fn decode(text: &str) -> Option<Self> {
        let is_word = |word: &&str| {
            (1..=64).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'.' || b == b'_')
        };
        let mut parts = text.split(FIELD_SEPARATOR);
        let micros = parts.next()?.parse().ok().filter(|micros| *micros < YEAR_10_000)?;
        let at = UNIX_EPOCH + Duration::from_micros(micros);
        let level = parts.next().filter(|level| Level::ALL.iter().any(|known| known.as_str() == *level))?.to_owned();
        let name = parts.next().filter(is_word)?.to_owned();
        let field = |part: &str| {
            let (name, value) = part.split_once('=')?;
            let is_ours = matches!(name, "timestamp" | "level" | "event");
            (is_word(&name) && !is_ours).then(|| (name.to_owned(), value.to_owned()))
        };
        let fields = parts.map(field).collect::<Option<Vec<_>>>()?;
        Some(Self { at, level, name, fields })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_announcements_are_not_events() {
        let good = "1\u{1f}info\u{1f}lease.acquired\u{1f}instance_id=a";
        assert!(FleetEvent::decode(good).is_some());
        for bad in [
            good.replace('1', "18446744073709551615"),
            good.replace("info", "loud"),
            good.replace("lease.acquired", "a\nb"),
            good.replace("lease.acquired", ""),
            good.replace("instance_id", "timestamp"),
            good.replace("instance_id", "in stance"),
        ] {
            assert_eq!(FleetEvent::decode(&bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_announcement_is_decoded_or_rejected(text in "([0-9]{0,20}\u{1f})?.*") {
            if let Some(event) = FleetEvent::decode(&text) {
                prop_assert_eq!(FleetEvent::decode(&event.encode()), Some(event));
            }
        }
    }
}
