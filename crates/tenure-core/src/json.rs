//! Records as JSON: what instances write for each other beside leases and heartbeats.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Encodes a record on one line.
pub fn encode(record: &impl Serialize) -> String {
    // The records of this crate have text for keys and no maps of other kinds, so this cannot fail.
    serde_json::to_string(record).unwrap_or_default()
}

/// Decodes a record of this version or another one: unknown fields are ignored. `None` for anything else: what is in a
/// store is untrusted.
pub fn decode<T: DeserializeOwned>(record: &[u8]) -> Option<T> {
    serde_json::from_slice(record).ok()
}

/// Serialises a [`Duration`](std::time::Duration) as whole milliseconds.
pub mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Serialises it.
    pub fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        u64::try_from(span.as_millis()).unwrap_or(u64::MAX).serialize(serializer)
    }

    /// Deserialises it.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

/// Serialises a [`SystemTime`](std::time::SystemTime) as microseconds since 1970.
pub mod unix_micros {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Serialises it.
    pub fn serialize<S: Serializer>(at: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        let micros = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        u64::try_from(micros).unwrap_or(u64::MAX).serialize(serializer)
    }

    /// Deserialises it.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        let since = Duration::from_micros(u64::deserialize(deserializer)?);
        UNIX_EPOCH.checked_add(since).ok_or_else(|| D::Error::custom("a time beyond all clocks"))
    }
}

/// Serialises a map as a list of pairs, so that its keys need not be text.
pub mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Serialises it.
    pub fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    /// Deserialises it.
    pub fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Vec::<(K, V)>::deserialize(deserializer).map(BTreeMap::from_iter)
    }
}
