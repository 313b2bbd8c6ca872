//! The settings of an election, checked when built.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::campaign::{CandidateConfig, LocalCandidate};
use super::{Election, Lead, Leadership, candidates};
use crate::event::{ElectionState, Event, EventKind};
use crate::keeper::{AcquireError, AcquireMode};
use crate::lease::{Ending, LeaseSettings, LeaseSettingsBuilder, SettingsError};
use crate::name::{Group, LeaseKind, LeaseName, LeaseRef, NameError};
use crate::tenure::{Tenure, TermHandle, WorkError};
use crate::token::Token;

/// Sets up an [`Election`]. Settings not given here follow from the ttl, which is 30 s by default.
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
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
#[derive(Clone)]
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
    metadata: Option<String>,
    timeout: Option<Duration>,
    listeners: Vec<Listener>,
}

/// A callback for the events of a role.
type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// Metadata is part of every acquire request and every renewal.
const MAX_METADATA_BYTES: usize = 16 * 1024;

/// How long a candidate of the lowest priority waits for others.
const MAX_ACQUIRE_DELAY: Duration = Duration::from_secs(1);

/// The highest priority, and the default.
const HIGHEST_PRIORITY: u8 = 100;

impl ElectionBuilder {
    pub(crate) fn new(tenure: Tenure, role: LeaseRef) -> Self {
        Self {
            tenure,
            role: role.label().to_owned(),
            name: role.role(),
            settings: LeaseSettings::builder(),
            election_interval: None,
            heartbeat_interval: None,
            heartbeat_prefix: None,
            priority: HIGHEST_PRIORITY,
            start_jitter: Duration::ZERO,
            metadata: None,
            timeout: None,
            listeners: Vec::new(),
        }
    }

    pub(super) fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    pub(super) fn role(&self) -> &str {
        &self.role
    }

    /// The lease, unless its name is not valid.
    pub(super) fn lease_name(&self) -> Option<&LeaseName> {
        self.name.as_ref().ok()
    }

    /// Sets the ttl of the lease: the longest time from a crash of the leader until another candidate leads.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings = self.settings.ttl(ttl);
        self
    }

    /// Sets the interval of the leader's renewals. The default is a third of the ttl.
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.settings = self.settings.renew_every(interval);
        self
    }

    /// Sets how often a follower checks the lease without an announcement. The default is half of the ttl (15 s at a
    /// ttl of 30 s).
    pub fn election_interval(mut self, interval: Duration) -> Self {
        self.election_interval = Some(interval);
        self
    }

    /// Sets the interval of the leader's heartbeats. They travel with its renewals, so it renews at least this often.
    /// Followers send a heartbeat with every check. A heartbeat is valid for the ttl plus five seconds, and
    /// [`candidates`](Election::candidates) lists the valid ones.
    pub fn heartbeat_interval(mut self, interval: Duration) -> Self {
        self.heartbeat_interval = Some(interval);
        self
    }

    /// Sets the prefix of the heartbeat keys, instead of `heartbeat:<role>:`. The instance id follows it.
    pub fn heartbeat_prefix(mut self, prefix: &str) -> Self {
        self.heartbeat_prefix = Some(prefix.to_owned());
        self
    }

    /// Sets the priority, from 0 to 100, which is the default. When the role loses its leader, candidates of a lower
    /// priority wait for others, for up to a tenth of the ttl and at most one second. Priority never replaces a leader.
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the largest random delay before candidates acquire an expired lease. The default is 25 ms.
    pub fn retry_jitter(mut self, longest: Duration) -> Self {
        self.settings = self.settings.expiry_jitter(longest);
        self
    }

    /// Sets the time that the leader's cancelled work has to end before the lease can expire.
    pub fn stop_budget(mut self, budget: Duration) -> Self {
        self.settings = self.settings.stop_budget(budget);
        self
    }

    /// Makes the leader stop renewing, and lose its leadership as stalled, after this long without
    /// [progress](TermHandle::progress).
    pub fn stall_after(mut self, timeout: Duration) -> Self {
        self.settings = self.settings.stall_after(timeout);
        self
    }

    /// Makes candidates take over from a leader that renews but has made no progress for this long.
    pub fn take_over_after(mut self, timeout: Duration) -> Self {
        self.settings = self.settings.take_over_after(timeout);
        self
    }

    /// Sets the largest random delay before the first request. The default is zero: jitter protects from nothing here,
    /// since a refused candidate waits for an announcement. [`acquire`](Self::acquire) ignores it.
    pub fn start_jitter(mut self, longest: Duration) -> Self {
        self.start_jitter = longest;
        self
    }

    /// Sets the whole key of the lease in the store, instead of `leader:<role>`. It must contain a colon. Logs name the
    /// role by the part after the last colon.
    pub fn key(mut self, key: &str) -> Self {
        self.name = match key.rfind(':') {
            Some(at) => LeaseName::with_prefix(LeaseKind::Role, &key[..=at], &key[at + 1..]),
            None => Err(NameError::NoPrefix { key: key.to_owned() }),
        };
        self
    }

    /// Sets metadata published with the leadership, such as an address or a version. At most 16 KiB.
    pub fn metadata(mut self, metadata: impl Into<String>) -> Self {
        self.metadata = Some(metadata.into());
        self
    }

    /// Calls `listener` for every event of this role in this process: changes of the candidate's state, leadership
    /// acquired and lost, failures, and what happens to the lease. The listener is called in order, on the thread that
    /// [all listeners](crate::TenureBuilder::on_event) of the `Tenure` share, until the election is gone.
    ///
    /// ```
    /// use tenure::{EventKind, Tenure};
    ///
    /// # #[cfg(feature = "memory")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let election = tenure.election("cleanup").on_event(|event| match &event.kind {
    ///     EventKind::LeadershipAcquired => println!("leading under {:?}", event.token),
    ///     EventKind::LeadershipLost { reason } => println!("not leading any more: {reason}"),
    ///     _ => {}
    /// });
    /// # drop(election);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_event(mut self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.listeners.push(Arc::new(listener));
        self
    }

    /// Calls `listener` with the token of each term that begins; see [`on_event`](Self::on_event).
    pub fn on_leadership_acquired(self, listener: impl Fn(Token) + Send + Sync + 'static) -> Self {
        self.on_event(move |event| {
            if let (EventKind::LeadershipAcquired, Some(token)) = (&event.kind, event.token) {
                listener(token);
            }
        })
    }

    /// Calls `listener` with the token of each term that ends, and why it ended; see [`on_event`](Self::on_event).
    pub fn on_leadership_lost(self, listener: impl Fn(Token, &Ending) + Send + Sync + 'static) -> Self {
        self.on_event(move |event| {
            if let (EventKind::LeadershipLost { reason }, Some(token)) = (&event.kind, event.token) {
                listener(token, reason);
            }
        })
    }

    /// Calls `listener` with the state before and after each change; see [`on_event`](Self::on_event).
    pub fn on_state_changed(self, listener: impl Fn(ElectionState, ElectionState) + Send + Sync + 'static) -> Self {
        self.on_event(move |event| {
            if let EventKind::StateChanged { from, to } = &event.kind {
                listener(*from, *to);
            }
        })
    }

    /// Calls `listener` with the cause of each failure to campaign; see [`on_event`](Self::on_event).
    pub fn on_election_failed(self, listener: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.on_event(move |event| {
            if let EventKind::ElectionFailed { error } = &event.kind {
                listener(error);
            }
        })
    }

    /// Limits the time that [`acquire`](Self::acquire) waits.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Builds the election and checks that the settings fit together.
    ///
    /// # Errors
    /// When they do not, or when the role or the key is not a valid name.
    pub fn build(self) -> Result<Election, ElectionError> {
        self.build_with_max_delay(MAX_ACQUIRE_DELAY)
    }

    fn build_with_max_delay(self, max_acquire_delay: Duration) -> Result<Election, ElectionError> {
        let name = self.name?;
        let group = match &self.heartbeat_prefix {
            Some(prefix) => Group::candidates(prefix)?,
            // The key of a role is a valid name even if the role itself is not.
            None => Group::of_role(&self.role).or_else(|_| Group::of_role(name.key()))?,
        };
        if let Some(prefix) = group.prefix().filter(|prefix| name.key().starts_with(prefix)) {
            return Err(NameError::HeartbeatPrefix { prefix: prefix.to_owned() }.into());
        }
        if let Some(length) = self.metadata.as_ref().map(String::len).filter(|length| *length > MAX_METADATA_BYTES) {
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
        let listen = |listener: Listener| {
            let name = name.clone();
            let callback = move |event: &Event| {
                if event.lease.as_ref() == Some(&name) {
                    listener(event);
                }
            };
            let started = self.tenure.keeper().listen(Box::new(callback));
            started.map_err(|error| ElectionError::Listener { error: error.to_string() })
        };
        let listeners = self.listeners.into_iter().map(listen).collect::<Result<_, _>>()?;
        let config = CandidateConfig {
            role: self.role,
            name,
            settings,
            start_jitter: self.start_jitter,
            metadata: self.metadata,
            heartbeat,
        };
        Ok(Election::new(LocalCandidate::new(self.tenure, config, listeners)))
    }

    /// Waits to become leader and leads for one term, which is renewed until it is released. For work that is done
    /// once.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tenure::Tenure;
    ///
    /// # #[cfg(feature = "memory")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # async fn generate_report(token: tenure::Token) -> std::io::Result<()> { Ok(()) }
    /// let tenure = Tenure::connect("memory:").await?;
    /// let leadership = tenure.election("daily-report").timeout(Duration::from_secs(60)).acquire().await?;
    /// leadership.run(generate_report(leadership.token())).await?;
    /// leadership.release().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the settings of the election are not valid, the [timeout](Self::timeout) has passed, the store refuses for
    /// a reason that waiting does not fix, or Tenure was shut down.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Cancel safety
    /// Safe: dropping the future stops waiting.
    pub async fn acquire(self) -> Result<Leadership, AcquireError> {
        self.acquire_one_term(AcquireMode::Wait).await
    }

    /// Leads for one term, if the role has no leader.
    ///
    /// # Errors
    /// [`AcquireError::Held`] when the role has a leader. Otherwise as for [`acquire`](Self::acquire), and when the
    /// store cannot be reached.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Cancel safety
    /// Safe: dropping the future stops the attempt.
    pub async fn try_acquire(self) -> Result<Leadership, AcquireError> {
        self.acquire_one_term(AcquireMode::Try).await
    }

    async fn acquire_one_term(self, mode: AcquireMode) -> Result<Leadership, AcquireError> {
        let timeout = self.timeout;
        // `try_acquire` ignores the acquire delay; with a timeout, the delay is at most half of it.
        let max_delay = match (mode, timeout) {
            (AcquireMode::Try, _) => Duration::ZERO,
            (AcquireMode::Wait, Some(timeout)) => MAX_ACQUIRE_DELAY.min(timeout / 2),
            (AcquireMode::Wait, None) => MAX_ACQUIRE_DELAY,
        };
        Leadership::acquire(self.build_with_max_delay(max_delay)?, mode, timeout).await
    }

    /// Leads, term after term: runs `work` for each term, and drops it when the term ends. The next term begins only
    /// after that.
    ///
    /// Work that returns `Ok` resigns: the lease is released, and the candidate campaigns again after a backoff. Work
    /// that returns an error ends the campaign, after the lease was released. With `?` the work can return any error,
    /// `anyhow::Error` included.
    ///
    /// The closure is called for every term, so it cannot give away what it captures. A closure that captures nothing
    /// can be `async |term| …`. One that captures state clones it first:
    /// `move |term| { let client = client.clone(); async move { … } }`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tenure::Tenure;
    ///
    /// # #[cfg(feature = "memory")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let shutdown = tokio::time::sleep(Duration::from_millis(50)); // a signal, in a real program
    /// tenure
    ///     .election("cleanup")
    ///     .lead(async |term| {
    ///         while term.wait(Duration::from_millis(10)).await {
    ///             println!("sweeping under {}", term.token());
    ///         }
    ///         Ok(())
    ///     })
    ///     .until(shutdown)
    ///     .await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lead<W, F>(self, work: W) -> Lead<W>
    where
        W: FnMut(TermHandle) -> F,
        F: Future<Output = Result<(), WorkError>>,
    {
        Lead::new(self.build(), work)
    }
}

impl fmt::Debug for ElectionBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ElectionBuilder({} of {})", self.role, self.tenure.instance())
    }
}

/// Settings of an election that are not valid.
///
/// ```
/// use tenure::Tenure;
/// use tenure::election::ElectionError;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let error = tenure.election("cleanup").priority(101).build().unwrap_err();
/// assert_eq!(error, ElectionError::Priority { priority: 101 });
/// let error = tenure.election("clean up").build().unwrap_err();
/// assert!(matches!(error, ElectionError::Name(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ElectionError {
    /// The role or the key is not a valid name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The settings of the lease do not fit together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Followers must check the lease at least once per ttl.
    #[error("election interval must not be longer than the ttl of {ttl:?}, got {interval:?}")]
    ElectionInterval {
        /// The interval.
        interval: Duration,
        /// The ttl of the lease.
        ttl: Duration,
    },
    /// Metadata is part of every heartbeat.
    #[error("metadata must have at most {MAX_METADATA_BYTES} bytes, got {length}; publish where to find the rest")]
    Metadata {
        /// Its length in bytes.
        length: usize,
    },
    /// The thread of the listeners cannot be started.
    #[error("cannot start the thread of the listeners: {error}")]
    Listener {
        /// The cause.
        error: String,
    },
    /// The priority is above the highest one.
    #[error("priority must be between 0 and 100, got {priority}")]
    Priority {
        /// The priority.
        priority: u8,
    },
    /// A start jitter beyond the ttl would take longer than a failover.
    #[error("start jitter must not be longer than the ttl of {ttl:?}, got {jitter:?}")]
    StartJitter {
        /// The largest delay.
        jitter: Duration,
        /// The ttl of the lease.
        ttl: Duration,
    },
}
