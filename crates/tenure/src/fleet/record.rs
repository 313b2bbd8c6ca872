//! The record that an instance publishes with its heartbeat.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::name::InstanceId;
use crate::placement::FULL_WEIGHT;

/// Whether an instance takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InstanceStatus {
    /// It takes part.
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

    fn from_word(word: &str) -> Self {
        [Self::Draining, Self::Unable].into_iter().find(|status| status.as_str() == word).unwrap_or(Self::Online)
    }
}

/// The record that an instance publishes.
///
/// ```
/// use tenure::fleet::InstanceRecord;
///
/// let mut record = InstanceRecord::new("api-7fd8c9");
/// record.held.insert("poll".to_owned(), 12);
/// let text = String::from_utf8(record.encode())?;
/// assert!(text.contains("name=api-7fd8c9") && text.contains("held:poll=12"));
/// assert_eq!(InstanceRecord::decode(text.as_bytes()), Some(record));
/// # Ok::<(), std::string::FromUtf8Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceRecord {
    /// The name that its id begins with: the same for every start of the same replica.
    pub name: String,
    /// Whether the program gave it that name. A host's name may be shared by several instances.
    pub is_named: bool,
    /// Its default weight, in thousandths of [`FULL_WEIGHT`].
    pub weight: u32,
    /// Its weights in pools where they differ from the default.
    pub weights: BTreeMap<String, u32>,
    /// When it was started, by its own clock, to the millisecond.
    pub started_at: SystemTime,
    /// Whether it takes part.
    pub status: InstanceStatus,
    /// The interval of its heartbeats.
    pub heartbeat_every: Duration,
    /// How long a heartbeat is valid.
    pub heartbeat_ttl: Duration,
    /// Number of targets held, by pool. It is not in pools that are missing here.
    pub held: BTreeMap<String, usize>,
    /// The pools that it is leaving, although it stays in others.
    pub leaving: BTreeSet<String>,
    /// The pools whose work it cannot do at present.
    pub unable: BTreeSet<String>,
    /// Its annotations: a word under each name.
    pub annotations: BTreeMap<String, String>,
}

impl InstanceRecord {
    /// A record of an instance that starts now, with default settings.
    pub fn new(name: &str) -> Self {
        let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Self {
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

    /// Encodes the record as `name=value` words, for [`decode`](Self::decode) and for people.
    pub fn encode(&self) -> Vec<u8> {
        let started = self.started_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let mut text = format!(
            "name={} weight={} started={started} status={} every={} ttl={}",
            self.name,
            self.weight,
            self.status.as_str(),
            self.heartbeat_every.as_millis(),
            self.heartbeat_ttl.as_millis(),
        );
        for (pool, count) in &self.held {
            text.push_str(&format!(" held:{pool}={count}"));
        }
        for (pool, weight) in &self.weights {
            text.push_str(&format!(" weight:{pool}={weight}"));
        }
        if self.is_named {
            text.push_str(" named=1");
        }
        for pool in &self.leaving {
            text.push_str(&format!(" leaving:{pool}=1"));
        }
        for pool in &self.unable {
            text.push_str(&format!(" unable:{pool}=1"));
        }
        for (name, word) in &self.annotations {
            text.push_str(&format!(" about:{name}={word}"));
        }
        text.into_bytes()
    }

    /// Decodes the output of [`encode`](Self::encode), of this version or another: unknown words are ignored. `None`
    /// for anything else, such as the heartbeat of a program that is not Tenure's.
    pub fn decode(record: &[u8]) -> Option<Self> {
        let words: BTreeMap<&str, &str> =
            std::str::from_utf8(record).ok()?.split_whitespace().filter_map(|word| word.split_once('=')).collect();
        let number = |word: &str| words.get(word)?.parse::<u64>().ok();
        let held = words.iter().filter_map(|(word, count)| Some((word.strip_prefix("held:")?, count.parse().ok()?)));
        let weights =
            words.iter().filter_map(|(word, value)| Some((word.strip_prefix("weight:")?, value.parse().ok()?)));
        Some(Self {
            name: (*words.get("name")?).to_owned(),
            is_named: words.get("named") == Some(&"1"),
            weight: u32::try_from(number("weight")?).ok()?,
            weights: weights.map(|(pool, weight)| (pool.to_owned(), weight)).collect(),
            started_at: UNIX_EPOCH.checked_add(Duration::from_millis(number("started")?))?,
            status: words.get("status").map_or(InstanceStatus::Online, |word| InstanceStatus::from_word(word)),
            heartbeat_every: Duration::from_millis(number("every")?),
            heartbeat_ttl: Duration::from_millis(number("ttl")?),
            held: held.map(|(pool, count)| (pool.to_owned(), count)).collect(),
            annotations: words
                .iter()
                .filter_map(|(name, word)| Some((name.strip_prefix("about:")?.to_owned(), (*word).to_owned())))
                .collect(),
            leaving: words.keys().filter_map(|word| word.strip_prefix("leaving:")).map(str::to_owned).collect(),
            unable: words.keys().filter_map(|word| word.strip_prefix("unable:")).map(str::to_owned).collect(),
        })
    }
}

/// The prefix of annotations that say which instances are in crash backoff.
const CRASH_BACKOFF_PREFIX: &str = "held_back:";

/// The crash backoff of an instance that crashed soon after it got work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashBackoff {
    /// Its end, by the clock of the instance that publishes it.
    pub until: SystemTime,
    /// How often the instance crashed lately.
    pub crashes: u32,
}

impl CrashBackoff {
    /// Collects the crash backoffs that these records contain.
    pub fn from_records<'a>(records: impl IntoIterator<Item = &'a InstanceRecord>) -> BTreeMap<InstanceId, Self> {
        let mut found: BTreeMap<InstanceId, Self> = BTreeMap::new();
        for (name, word) in records.into_iter().flat_map(|record| &record.annotations) {
            let Some((id, said)) = name.strip_prefix(CRASH_BACKOFF_PREFIX).zip(Self::decode(word)) else { continue };
            let known = found.entry(InstanceId::foreign(id)).or_insert(said);
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

    fn encode(&self) -> String {
        format!("{}:{}", self.until.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis(), self.crashes)
    }

    fn decode(word: &str) -> Option<Self> {
        let (millis, crashes) = word.split_once(':')?;
        let until = UNIX_EPOCH.checked_add(Duration::from_millis(millis.parse().ok()?))?;
        Some(Self { until, crashes: crashes.parse().ok()? })
    }
}

impl InstanceRecord {
    /// Replaces the crash backoffs that this record publishes.
    pub fn set_crash_backoffs(&mut self, waiting: &[(InstanceId, CrashBackoff)]) {
        self.annotations.retain(|name, _| !name.starts_with(CRASH_BACKOFF_PREFIX));
        // The id of a foreign instance could contain anything.
        let is_word = |id: &InstanceId| !id.as_str().contains(|letter: char| letter.is_whitespace() || letter == '=');
        let words = waiting.iter().filter(|(id, _)| is_word(id));
        self.annotations.extend(words.map(|(id, held)| (format!("{CRASH_BACKOFF_PREFIX}{id}"), held.encode())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_that_leaves_every_pool_is_draining() {
        let mut record = InstanceRecord::new("api-1");
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
        let mut record = InstanceRecord::new("api-1");
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
        let (mut record, until) = (InstanceRecord::new("api-1"), UNIX_EPOCH + Duration::from_secs(1_000));
        let crashed = InstanceId::new("api-2-1").unwrap();
        record.set_crash_backoffs(&[(crashed.clone(), CrashBackoff { until, crashes: 2 })]);
        let read = InstanceRecord::decode(&record.encode()).unwrap();
        let waiting = CrashBackoff::from_records([&read]);
        let now = UNIX_EPOCH + Duration::from_secs(992);
        assert_eq!(waiting[&crashed].note(now).as_deref(), Some("share in 8 s: crashed twice"));
        assert_eq!(waiting[&crashed].note(until), None);
        record.set_crash_backoffs(&[]);
        assert!(CrashBackoff::from_records([&record]).is_empty());
    }

    #[test]
    fn an_instance_can_have_a_weight_per_pool() {
        let mut record = InstanceRecord::new("api-1");
        record.set_weight("poll", 2_000);
        record.set_weight("mail", FULL_WEIGHT);
        let read = InstanceRecord::decode(&record.encode()).unwrap();
        assert_eq!((read.weight_in("poll"), read.weight_in("mail"), &read), (2_000, FULL_WEIGHT, &record));
        record.remove_pool("poll");
        assert_eq!(record.weight_in("poll"), FULL_WEIGHT);
    }

    #[test]
    fn records_of_other_versions_are_read_as_far_as_known() {
        let newer =
            b"name=a weight=500 started=1 status=draining every=1000 ttl=3000 colour=blue held:poll=3 held:x=nan";
        let record = InstanceRecord::decode(newer).unwrap();
        assert_eq!((record.weight, record.status), (500, InstanceStatus::Draining));
        assert_eq!(record.held, BTreeMap::from([("poll".to_owned(), 3)]));
        for foreign in [
            &b""[..],
            b"1",
            b"{\"status\":\"online\"}",
            b"\xff",
            b"name=a",
            b"name=a weight=-1 started=0 every=1 ttl=1",
        ] {
            assert_eq!(InstanceRecord::decode(foreign), None);
        }
    }
}
