//! Events of instances, as they are announced to the fleet.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::event::{Event, EventKind, Level};
use crate::json;
use crate::name::InstanceId;

/// The end of four-digit years, since 1970.
const YEAR_10_000: Duration = Duration::from_secs(253_402_300_800);

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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetEvent {
    /// When it happened, by its instance's clock, to the microsecond.
    #[serde(with = "json::unix_micros")]
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
        let fields = event.fields().into_iter().map(|(name, value)| (name.to_owned(), value));
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
            EventKind::Program(_) => false,
            EventKind::PublishRefused { .. } => true,
            kind => kind.name().starts_with("lease.") || kind.name().starts_with("election."),
        }
    }

    /// The instance of the event.
    pub fn instance(&self) -> Option<InstanceId> {
        let (_, id) = self.fields.iter().find(|(name, _)| name == "instance_id")?;
        InstanceId::new(id).ok()
    }

    /// Encodes the event as one line of JSON for [`decode`](Self::decode).
    pub fn encode(&self) -> String {
        json::encode(self)
    }

    /// Decodes the output of [`encode`](Self::encode); `None` for anything else: announcements are untrusted input.
    pub fn decode(text: &str) -> Option<Self> {
        let event: Self = json::decode(text.as_bytes())?;
        let is_word = |word: &str| {
            (1..=64).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'.' || b == b'_')
        };
        let is_field = |name: &str| is_word(name) && !matches!(name, "timestamp" | "level" | "event");
        let is_valid = Level::ALL.iter().any(|known| known.as_str() == event.level)
            && is_word(&event.name)
            && event.fields.iter().all(|(name, _)| is_field(name))
            && event.at.duration_since(UNIX_EPOCH).is_ok_and(|since| since < YEAR_10_000);
        is_valid.then_some(event)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_announcements_are_not_events() {
        let good = r#"{"at":1,"level":"info","name":"lease.acquired","fields":[["instance_id","a"]]}"#;
        assert!(FleetEvent::decode(good).is_some());
        for bad in [
            good.replace('1', "18446744073709551615"),
            good.replace("info", "loud"),
            good.replace("lease.acquired", "a\\nb"),
            good.replace("lease.acquired", ""),
            good.replace("instance_id", "timestamp"),
            good.replace("instance_id", "in stance"),
        ] {
            assert_eq!(FleetEvent::decode(&bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_of_an_event_reads_back(value in ".*", micros in 0..2_000_000_000_000_000_u64) {
            let at = UNIX_EPOCH + Duration::from_micros(micros);
            let (level, name) = ("info".to_owned(), "lease.lost".to_owned());
            let event = FleetEvent { at, level, name, fields: vec![("error".to_owned(), value)] };
            prop_assert!(!event.encode().contains('\n'));
            prop_assert_eq!(FleetEvent::decode(&event.encode()), Some(event));
        }

        #[test]
        fn any_announcement_is_decoded_or_rejected(text in ".*") {
            let _ = FleetEvent::decode(&text);
        }
    }
}
