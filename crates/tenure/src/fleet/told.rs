//! What happened to any instance, as the whole fleet hears of it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::event::{Event, Happening, Level};
use crate::name::InstanceId;

/// Between the parts; no name has one, and in a text it is as good as a space.
const BETWEEN: char = '\u{1f}';

/// Years have four digits, in microseconds since 1970.
const YEAR_10_000: u64 = 253_402_300_800_000_000;

/// An event of an instance, in the words of its log.
///
/// ```
/// use std::time::UNIX_EPOCH;
/// use tenure::fleet::FleetEvent;
/// use tenure::{Event, Happening, InstanceId};
///
/// let event = Event { instance: InstanceId::new("api-1")?, lease: None, token: None, what: Happening::Recovered };
/// let told = FleetEvent::of(&event, UNIX_EPOCH);
/// assert_eq!((told.name.as_str(), told.level.as_str()), ("lease.recovered", "info"));
/// assert_eq!(FleetEvent::decode(&told.encode()), Some(told));
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetEvent {
    /// When it happened, by its instance's clock, to the microsecond.
    pub at: SystemTime,
    /// How loud it is.
    pub level: String,
    /// Its name, such as `lease.acquired`.
    pub name: String,
    /// What applies, the instance first.
    pub fields: Vec<(String, String)>,
}

impl FleetEvent {
    /// An event that happened just now.
    pub fn of(event: &Event, at: SystemTime) -> Self {
        let micros = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let fields = event.fields().into_iter().map(|(name, value)| (name.to_owned(), value.replace(BETWEEN, " ")));
        Self {
            at: UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0)),
            level: event.what.level().word().to_owned(),
            name: event.what.name().to_owned(),
            fields: fields.collect(),
        }
    }

    /// Whether everybody should hear of it: what happens to leases and in elections, but not that all goes well, nor what others see for themselves.
    pub fn concerns_all(what: &Happening) -> bool {
        match what {
            what if what.level() == Level::Debug => false,
            Happening::PublishRefused { .. } => true,
            what => what.name().starts_with("lease.") || what.name().starts_with("election."),
        }
    }

    /// Whom it happened to.
    pub fn instance(&self) -> Option<InstanceId> {
        let (_, id) = self.fields.iter().find(|(name, _)| name == "instance_id")?;
        InstanceId::new(id).ok()
    }

    /// One line of text, which [`decode`](Self::decode) reads.
    pub fn encode(&self) -> String {
        let micros = self.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let mut text = format!("{micros}{BETWEEN}{}{BETWEEN}{}", self.level, self.name);
        for (name, value) in &self.fields {
            text.extend([BETWEEN]);
            text.push_str(name);
            text.push('=');
            text.push_str(value);
        }
        text
    }

    /// Reads what [`encode`](Self::encode) wrote; `None` for anything else: anybody can announce anything.
    pub fn decode(text: &str) -> Option<Self> {
        let is_word = |word: &&str| {
            (1..=64).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'.' || b == b'_')
        };
        let mut parts = text.split(BETWEEN);
        let micros = parts.next()?.parse().ok().filter(|micros| *micros < YEAR_10_000)?;
        let at = UNIX_EPOCH + Duration::from_micros(micros);
        let level = parts.next().filter(|level| Level::ALL.iter().any(|known| known.word() == *level))?.to_owned();
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
    fn what_others_announce_is_an_event_or_nothing() {
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
        fn whatever_is_announced_is_read_or_refused(text in "([0-9]{0,20}\u{1f})?.*") {
            if let Some(event) = FleetEvent::decode(&text) {
                prop_assert_eq!(FleetEvent::decode(&event.encode()), Some(event));
            }
        }
    }
}
