//! The record that an instance publishes with its heartbeat.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::json;
use crate::name::InstanceId;
use crate::placement::FULL_WEIGHT;

/// Whether an instance takes part.
///
/// ```
/// use tenure::fleet::{InstanceRecord, InstanceStatus};
///
/// let mut record = InstanceRecord::new("api-1", std::time::SystemTime::now());
/// assert_eq!(record.status, InstanceStatus::Online);
/// record.set_able("poll", false); // it cannot do the work of this pool
/// assert_eq!(record.status, InstanceStatus::Unable);
/// record.set_held("poll", 3, true); // it leaves its only pool
/// assert_eq!(record.status.as_str(), "draining");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", from = "String")]
pub enum InstanceStatus {
    /// It takes part.
    #[default]
    Online,
    /// It is leaving.
    Draining,
    /// It stays, but cannot work at present.
    Unable,
}

impl InstanceStatus {
    /// The word used in stores and interfaces.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Draining => "draining",
            Self::Unable => "unable",
        }
    }
}

impl From<String> for InstanceStatus {
    /// A status of a later version counts as online.
    fn from(word: String) -> Self {
        [Self::Draining, Self::Unable].into_iter().find(|status| status.as_str() == word).unwrap_or_default()
    }
}

/// The record that an instance publishes.
///
/// ```
/// use tenure::fleet::InstanceRecord;
///
/// let mut record = InstanceRecord::new("api-7fd8c9", std::time::SystemTime::now());
/// record.held.insert("poll".to_owned(), 12);
/// let text = String::from_utf8(record.encode())?;
/// assert!(text.starts_with(r#"{"version":""#) && text.contains(r#""held":{"poll":12}"#));
/// assert_eq!(InstanceRecord::decode(text.as_bytes()), Some(record));
/// # Ok::<(), std::string::FromUtf8Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceRecord {
    /// The version of Tenure that it runs. Empty when it does not say.
    #[serde(default)]
    pub version: String,
    /// The name that its id begins with: the same for every start of the same replica.
    pub name: String,
    /// Whether the program gave it that name. A host's name may be shared by several instances.
    #[serde(default)]
    pub is_named: bool,
    /// Its default weight, in thousandths of [`FULL_WEIGHT`].
    pub weight: u32,
    /// Its weights in pools where they differ from the default.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, u32>,
    /// When it was started, by its own clock, to the millisecond.
    #[serde(with = "json::unix_micros")]
    pub started_at: SystemTime,
    /// Whether it takes part.
    #[serde(default)]
    pub status: InstanceStatus,
    /// The interval of its heartbeats.
    #[serde(rename = "heartbeatEveryMs", with = "json::millis")]
    pub heartbeat_every: Duration,
    /// How long a heartbeat is valid.
    #[serde(rename = "heartbeatTtlMs", with = "json::millis")]
    pub heartbeat_ttl: Duration,
    /// Number of targets held, by pool. It is not in pools that are missing here.
    #[serde(default)]
    pub held: BTreeMap<String, usize>,
    /// The pools that it is leaving, although it stays in others.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub leaving: BTreeSet<String>,
    /// The pools whose work it cannot do at present.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unable: BTreeSet<String>,
    /// Its annotations: a text under each name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The instances that it has in crash backoff.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub crash_backoffs: BTreeMap<InstanceId, CrashBackoff>,
}

impl InstanceRecord {
    /// A record of an instance that was started at this time, with default settings.
    pub fn new(name: &str, started_at: SystemTime) -> Self {
        let millis = started_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            name: name.to_owned(),
            is_named: false,
            weight: FULL_WEIGHT,
            weights: BTreeMap::new(),
            started_at: UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or(0)),
            status: InstanceStatus::Online,
            heartbeat_every: Duration::from_secs(10),
            heartbeat_ttl: Duration::from_secs(30),
            held: BTreeMap::new(),
            leaving: BTreeSet::new(),
            unable: BTreeSet::new(),
            annotations: BTreeMap::new(),
            crash_backoffs: BTreeMap::new(),
        }
    }

    /// Whether it is leaving a pool and hands over its targets there.
    pub fn is_leaving(&self, pool: &str) -> bool {
        self.status == InstanceStatus::Draining || self.leaving.contains(pool)
    }

    /// Whether it cannot do the work of a pool at present.
    pub fn is_unable(&self, pool: &str) -> bool {
        self.unable.contains(pool)
    }

    /// Its weight in a pool.
    pub fn weight_in(&self, pool: &str) -> u32 {
        self.weights.get(pool).copied().unwrap_or(self.weight)
    }

    /// Sets its weight in a pool.
    pub fn set_weight(&mut self, pool: &str, weight: u32) {
        if weight == self.weight {
            self.weights.remove(pool);
        } else {
            self.weights.insert(pool.to_owned(), weight);
        }
    }

    /// Sets the number of targets it holds in a pool, and whether it is leaving the pool.
    pub fn set_held(&mut self, pool: &str, held: usize, leaving: bool) {
        self.held.insert(pool.to_owned(), held);
        if leaving {
            self.leaving.insert(pool.to_owned());
        } else {
            self.leaving.remove(pool);
        }
        self.update_status();
    }

    /// Sets whether it can do the work of a pool.
    pub fn set_able(&mut self, pool: &str, able: bool) {
        if able {
            self.unable.remove(pool);
        } else {
            self.unable.insert(pool.to_owned());
        }
        self.update_status();
    }

    /// Removes it from a pool. Returns whether it is in any other.
    pub fn remove_pool(&mut self, pool: &str) -> bool {
        self.held.remove(pool);
        self.leaving.remove(pool);
        self.unable.remove(pool);
        self.weights.remove(pool);
        self.update_status();
        !self.held.is_empty()
    }

    /// An instance that leaves all its pools is draining; one that cannot do the work of some pool is unable.
    fn update_status(&mut self) {
        let leaves = !self.held.is_empty() && self.held.keys().all(|pool| self.leaving.contains(pool));
        self.status = match (leaves, self.unable.is_empty()) {
            (true, _) => InstanceStatus::Draining,
            (false, false) => InstanceStatus::Unable,
            (false, true) => InstanceStatus::Online,
        };
    }

    /// Encodes the record as JSON, for [`decode`](Self::decode) and for people.
    pub fn encode(&self) -> Vec<u8> {
        json::encode(self).into_bytes()
    }

    /// Decodes the output of [`encode`](Self::encode), of this version or another: unknown fields are ignored. `None`
    /// for anything else, such as the heartbeat of a program that is not Tenure's.
    pub fn decode(record: &[u8]) -> Option<Self> {
        json::decode(record)
    }
}

/// The crash backoff of an instance that crashed soon after it got work.
///
/// ```
/// use std::time::SystemTime;
/// use tenure::Tenure;
/// use tenure::fleet::{CrashBackoff, InstanceRecord};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let instances = tenure.fleet().instances().await?;
/// let records: Vec<_> = instances.iter().filter_map(|live| InstanceRecord::decode(&live.record)).collect();
/// for (instance, backoff) in CrashBackoff::from_records(&records) {
///     if let Some(note) = backoff.note(SystemTime::now()) {
///         println!("{instance}: {note}");
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrashBackoff {
    /// Its end, by the clock of the instance that publishes it.
    #[serde(with = "json::unix_micros")]
    pub until: SystemTime,
    /// How often the instance crashed lately.
    pub crashes: u32,
}

impl CrashBackoff {
    /// Collects the crash backoffs that these records contain.
    pub fn from_records<'a>(records: impl IntoIterator<Item = &'a InstanceRecord>) -> BTreeMap<InstanceId, Self> {
        let mut found: BTreeMap<InstanceId, Self> = BTreeMap::new();
        for (id, said) in records.into_iter().flat_map(|record| &record.crash_backoffs) {
            let known = found.entry(id.clone()).or_insert(*said);
            known.until = known.until.max(said.until);
            known.crashes = known.crashes.max(said.crashes);
        }
        found
    }

    /// A note for people: `share in 8 s: crashed twice`. `None` when the backoff has ended.
    pub fn note(&self, now: SystemTime) -> Option<String> {
        let left = self.until.duration_since(now).ok().filter(|left| !left.is_zero())?;
        let times = match self.crashes {
            1 => "once".to_owned(),
            2 => "twice".to_owned(),
            more => format!("{more} times"),
        };
        Some(format!("share in {} s: crashed {times}", left.as_secs_f64().ceil()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_that_leaves_every_pool_is_draining() {
        let mut record = InstanceRecord::new("api-1", UNIX_EPOCH);
        record.set_held("poll", 3, true);
        assert_eq!(record.status, InstanceStatus::Draining);
        record.set_held("mail", 0, false);
        assert_eq!(
            (record.status, record.is_leaving("poll"), record.is_leaving("mail")),
            (InstanceStatus::Online, true, false)
        );
        assert!(record.remove_pool("mail"));
        assert_eq!(record.status, InstanceStatus::Draining);
        assert!(!record.remove_pool("poll"), "no pool is left");
    }

    #[test]
    fn an_unable_instance_is_listed_as_unable_until_it_recovers() {
        let mut record = InstanceRecord::new("api-1", UNIX_EPOCH);
        record.set_held("poll", 3, false);
        record.set_able("poll", false);
        let read = InstanceRecord::decode(&record.encode()).unwrap();
        assert_eq!(
            (read.status, read.is_unable("poll"), read.is_unable("mail")),
            (InstanceStatus::Unable, true, false)
        );
        record.set_held("poll", 3, true);
        assert_eq!(record.status, InstanceStatus::Draining, "leaving takes precedence");
        record.set_held("poll", 3, false);
        record.set_able("poll", true);
        assert_eq!(record.status, InstanceStatus::Online);
    }

    #[test]
    fn crash_backoffs_are_published_in_the_record() {
        let (mut record, until) = (InstanceRecord::new("api-1", UNIX_EPOCH), UNIX_EPOCH + Duration::from_secs(1_000));
        let crashed = InstanceId::new("api-2-1").unwrap();
        record.crash_backoffs = BTreeMap::from([(crashed.clone(), CrashBackoff { until, crashes: 2 })]);
        let read = InstanceRecord::decode(&record.encode()).unwrap();
        let waiting = CrashBackoff::from_records([&read]);
        let now = UNIX_EPOCH + Duration::from_secs(992);
        assert_eq!(waiting[&crashed].note(now).as_deref(), Some("share in 8 s: crashed twice"));
        assert_eq!(waiting[&crashed].note(until), None);
        record.crash_backoffs.clear();
        assert!(CrashBackoff::from_records([&record]).is_empty());
    }

    #[test]
    fn an_instance_can_have_a_weight_per_pool() {
        let mut record = InstanceRecord::new("api-1", UNIX_EPOCH);
        record.set_weight("poll", 2_000);
        record.set_weight("mail", FULL_WEIGHT);
        let read = InstanceRecord::decode(&record.encode()).unwrap();
        assert_eq!((read.weight_in("poll"), read.weight_in("mail"), &read), (2_000, FULL_WEIGHT, &record));
        record.remove_pool("poll");
        assert_eq!(record.weight_in("poll"), FULL_WEIGHT);
    }

    #[test]
    fn records_of_other_versions_are_read_as_far_as_known() {
        let newer = r#"{"version":"9.1","name":"a","weight":500,"startedAt":1,"status":"dreaming","heartbeatEveryMs":1000,
            "heartbeatTtlMs":3000,"colour":"blue","held":{"poll":3}}"#;
        let record = InstanceRecord::decode(newer.as_bytes()).unwrap();
        assert_eq!((record.weight, record.status, &*record.version), (500, InstanceStatus::Online, "9.1"));
        assert_eq!(record.held, BTreeMap::from([("poll".to_owned(), 3)]));
        let older = newer.replace(r#""version":"9.1","#, "").replace("dreaming", "draining");
        let record = InstanceRecord::decode(older.as_bytes()).unwrap();
        assert_eq!((record.status, &*record.version), (InstanceStatus::Draining, ""));
        for foreign in [
            &b""[..],
            b"1",
            b"{\"status\":\"online\"}",
            b"\xff",
            newer.replace("500", "-1").as_bytes(),
            newer.replace(r#""startedAt":1"#, r#""startedAt":-1"#).as_bytes(),
        ] {
            assert_eq!(InstanceRecord::decode(foreign), None);
        }
    }
}
