//! How an election is set up; checked when built.

use std::time::Duration;

use thiserror::Error;

use super::campaign::{CandidateConfig, LocalCandidate};
use super::{Election, Lead, Leadership, candidates};
use crate::keeper::{AcquireError, AcquireMode};
use crate::lease::{LeaseSettings, LeaseSettingsBuilder, SettingsError};
use crate::name::{Group, LeaseKind, LeaseName, NameError};
use crate::tenure::{Tenure, TermHandle};

/// Sets up an [`Election`]. What is not set follows from the ttl, which is 30 s by default.
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let election = tenure
///     .election("cleanup")
///     .ttl(Duration::from_secs(15))
///     .key("my-app:leader")
///     .metadata("10.0.0.7:8080")
///     .build()?;
/// assert_eq!(election.name().key(), "my-app:leader");
///
/// let error = tenure.election("cleanup").start_jitter(Duration::from_secs(60)).build().unwrap_err();
/// assert!(error.to_string().contains("start jitter"));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ElectionBuilder {
    tenure: Tenure,
    role: String,
    name: Result<LeaseName, NameError>,
    settings: LeaseSettingsBuilder,
    election_interval: Option<Duration>,
    heartbeat_interval: Option<Duration>,
    heartbeat_prefix: Option<String>,
    priority: u8,
    start_jitter: Duration,
    metadata: Option<Vec<u8>>,
    timeout: Option<Duration>,
}

/// It travels with every claim and every renewal.
const MAX_METADATA_BYTES: usize = 16 * 1024;

/// How long the lowest priority waits for others.
const MAX_ACQUIRE_DELAY: Duration = Duration::from_secs(1);

/// The priority of whoever says nothing, and the highest.
const HIGHEST_PRIORITY: u8 = 100;

impl ElectionBuilder {
    pub(crate) fn new(tenure: Tenure, role: &str, name: Result<LeaseName, NameError>) -> Self {
        Self {
            tenure,
            role: role.to_owned(),
            name,
            settings: LeaseSettings::builder(),
            election_interval: None,
            heartbeat_interval: None,
            heartbeat_prefix: None,
            priority: HIGHEST_PRIORITY,
            start_jitter: Duration::ZERO,
            metadata: None,
            timeout: None,
        }
    }

    /// The length of the lease: how long after a crash somebody else leads, at most.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings = self.settings.ttl(ttl);
        self
    }

    /// How often the leader renews, a third of the ttl by default.
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.settings = self.settings.renew_every(interval);
        self
    }

    /// How often a follower looks although it was told nothing, half of the ttl by default (15 s at a ttl of 30 s).
    pub fn election_interval(mut self, interval: Duration) -> Self {
        self.election_interval = Some(interval);
        self
    }

    /// How often the leader says that it lives, with its renewals: it renews at least this often. Followers say so whenever they
    /// look. What they say can be believed for a ttl and five seconds, and is what [`candidates`](Election::candidates) lists.
    pub fn heartbeat_interval(mut self, interval: Duration) -> Self {
        self.heartbeat_interval = Some(interval);
        self
    }

    /// What the keys of heartbeats begin with, instead of `heartbeat:<role>:`; the instance follows.
    pub fn heartbeat_prefix(mut self, prefix: &str) -> Self {
        self.heartbeat_prefix = Some(prefix.to_owned());
        self
    }

    /// From 0 to 100, which is the default. When the office falls vacant, candidates of a lower priority let others go first, by
    /// up to a tenth of the ttl and at most a second. Nobody who leads is replaced for it.
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// When the leader's lease has run out, candidates ask up to this much later, by chance. 25 ms by default.
    pub fn retry_jitter(mut self, longest: Duration) -> Self {
        self.settings = self.settings.expiry_jitter(longest);
        self
    }

    /// The time that the leader's work gets, once cancelled, to be gone before the lease can end.
    pub fn stop_budget(mut self, budget: Duration) -> Self {
        self.settings = self.settings.stop_budget(budget);
        self
    }

    /// Without [progress](TermHandle::progress) for this long, the leader stops renewing and loses its office as stalled.
    pub fn stall_after(mut self, timeout: Duration) -> Self {
        self.settings = self.settings.stall_after(timeout);
        self
    }

    /// Candidates take over from a leader that renews but has made no progress for this long.
    pub fn take_over_after(mut self, timeout: Duration) -> Self {
        self.settings = self.settings.take_over_after(timeout);
        self
    }

    /// Up to this long is waited, by chance, before the first question. Nothing by default: it protects from nothing here,
    /// since a refused candidate waits to be told. Who asks for [one term](Self::acquire) asks at once.
    pub fn start_jitter(mut self, longest: Duration) -> Self {
        self.start_jitter = longest;
        self
    }

    /// The whole key of the lease in the store, with a colon in it, instead of `leader:<role>`. Logs call the role by what stands after its
    /// last colon.
    pub fn key(mut self, key: &str) -> Self {
        self.name = match key.rfind(':') {
            Some(at) => LeaseName::with_prefix(LeaseKind::Role, &key[..=at], &key[at + 1..]),
            None => Err(NameError::NoPrefix { key: key.to_owned() }),
        };
        self
    }

    /// Published with the leadership, for whoever asks who leads: an address, a version. 16 KiB at most.
    pub fn metadata(mut self, metadata: impl Into<Vec<u8>>) -> Self {
        self.metadata = Some(metadata.into());
        self
    }

    /// How long [`acquire`](Self::acquire) waits at most.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Checks that the numbers fit together.
    ///
    /// # Errors
    /// When they do not, or when the role or the key cannot be a name.
    pub fn build(self) -> Result<Election, ElectionError> {
        self.build_with_max_delay(MAX_ACQUIRE_DELAY)
    }

    fn build_with_max_delay(self, max_acquire_delay: Duration) -> Result<Election, ElectionError> {
        let name = self.name?;
        let group = match &self.heartbeat_prefix {
            Some(prefix) => Group::candidates(prefix)?,
            // A role that could not be part of a key has a key that can.
            None => Group::of_role(&self.role).or_else(|_| Group::of_role(name.key()))?,
        };
        if let Some(prefix) = group.prefix().filter(|prefix| name.key().starts_with(prefix)) {
            return Err(NameError::HeartbeatPrefix { prefix: prefix.to_owned() }.into());
        }
        if let Some(length) = self.metadata.as_ref().map(Vec::len).filter(|length| *length > MAX_METADATA_BYTES) {
            return Err(ElectionError::Metadata { length });
        }
        if self.priority > HIGHEST_PRIORITY {
            return Err(ElectionError::Priority { priority: self.priority });
        }
        let mut settings = self.settings;
        if let Some(interval) = self.heartbeat_interval {
            settings = settings.renew_every(interval.min(settings.build()?.renew_every()));
        }
        let ttl = settings.build()?.ttl();
        let interval = self.election_interval.unwrap_or(ttl / 2);
        if interval > ttl {
            return Err(ElectionError::ElectionInterval { interval, ttl });
        }
        if self.start_jitter > ttl {
            return Err(ElectionError::StartJitter { jitter: self.start_jitter, ttl });
        }
        let max_delay = (ttl / 10).min(max_acquire_delay);
        let acquire_delay = max_delay * u32::from(HIGHEST_PRIORITY - self.priority) / u32::from(HIGHEST_PRIORITY);
        let settings = settings.recheck_every(interval).acquire_delay(acquire_delay).build()?;
        let heartbeat = candidates::heartbeat(group, ttl, self.priority, self.metadata.as_deref());
        let config = CandidateConfig {
            role: self.role,
            name,
            settings,
            start_jitter: self.start_jitter,
            metadata: self.metadata,
            heartbeat,
        };
        Ok(Election::new(LocalCandidate::new(self.tenure, config)))
    }

    /// Waits its turn and leads for one term, which is renewed until it is released: for something that is done once.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tenure::Tenure;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # async fn generate_report(token: tenure::Token) {}
    /// let tenure = Tenure::connect("memory:").await?;
    /// let leadership = tenure.election("daily-report").timeout(Duration::from_secs(60)).acquire().await?;
    /// leadership.run(generate_report(leadership.token())).await?;
    /// leadership.release().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the election cannot be held like this, the [limit](Self::timeout) has passed, the store refuses for a reason that waiting does not
    /// mend, or Tenure was shut down.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Cancel safety
    /// Safe: dropping the future gives up.
    pub async fn acquire(self) -> Result<Leadership, AcquireError> {
        self.acquire_one_term(AcquireMode::Wait).await
    }

    /// Leads for one term, if nobody else leads.
    ///
    /// # Errors
    /// [`AcquireError::Held`] when somebody does; otherwise as for [`acquire`](Self::acquire), and when the store cannot be reached.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Cancel safety
    /// Safe: dropping the future gives up.
    pub async fn try_acquire(self) -> Result<Leadership, AcquireError> {
        self.acquire_one_term(AcquireMode::Try).await
    }

    async fn acquire_one_term(self, mode: AcquireMode) -> Result<Leadership, AcquireError> {
        let timeout = self.timeout;
        // Whoever only tries lets nobody go first, and whoever has little time not for all of it.
        let max_delay = match (mode, timeout) {
            (AcquireMode::Try, _) => Duration::ZERO,
            (AcquireMode::Wait, Some(timeout)) => MAX_ACQUIRE_DELAY.min(timeout / 2),
            (AcquireMode::Wait, None) => MAX_ACQUIRE_DELAY,
        };
        Leadership::acquire(self.build_with_max_delay(max_delay)?, mode, timeout).await
    }

    /// Leads, term after term: `work` is run for each term, and dropped when the term ends. The next term begins only after
    /// that.
    ///
    /// Work that returns resigns: the lease is let go of, and asked for again after a while. Work that returns an error
    /// ends the whole, after the lease was let go of.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tenure::Tenure;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let shutdown = tokio::time::sleep(Duration::from_millis(50)); // a signal, in a real program
    /// tenure
    ///     .election("cleanup")
    ///     .lead(async |term| {
    ///         while term.wait(Duration::from_millis(10)).await {
    ///             println!("sweeping under {}", term.token());
    ///         }
    ///         Ok::<(), std::io::Error>(())
    ///     })
    ///     .until(shutdown)
    ///     .await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lead<W, F, E>(self, work: W) -> Lead<W>
    where
        W: FnMut(TermHandle) -> F,
        F: Future<Output = Result<(), E>>,
    {
        Lead::new(self.build(), work)
    }
}

/// An election that cannot be held like this.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ElectionError {
    /// The role or the key is not acceptable.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The lease's numbers do not fit together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Followers must look at least once in a ttl.
    #[error("an election interval of {interval:?} does not fit a ttl of {ttl:?}: it must not be longer")]
    ElectionInterval {
        /// The interval.
        interval: Duration,
        /// The length of the lease.
        ttl: Duration,
    },
    /// Metadata travels with every heartbeat.
    #[error("metadata of {length} bytes is too long: {MAX_METADATA_BYTES} is the most; publish where to find the rest")]
    Metadata {
        /// Its length in bytes.
        length: usize,
    },
    /// There are no higher priorities.
    #[error("a priority of {priority} is out of range: 0 to 100")]
    Priority {
        /// The priority.
        priority: u8,
    },
    /// Waiting longer than a crash takes is a mistake.
    #[error("a start jitter of {jitter:?} does not fit a ttl of {ttl:?}: it must not be longer")]
    StartJitter {
        /// The longest that is waited.
        jitter: Duration,
        /// The length of the lease.
        ttl: Duration,
    },
}
