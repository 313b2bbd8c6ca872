//! How an election is set up; checked when built.

use std::time::Duration;

use thiserror::Error;

use super::campaign::Office;
use super::{Election, Lead};
use crate::lease::{LeaseSettings, LeaseSettingsBuilder, SettingsError};
use crate::name::{LeaseKind, LeaseName, NameError};
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
    key: Option<String>,
    settings: LeaseSettingsBuilder,
    election_interval: Option<Duration>,
    start_jitter: Duration,
    metadata: Option<Vec<u8>>,
}

impl ElectionBuilder {
    pub(crate) fn new(tenure: Tenure, role: &str) -> Self {
        Self {
            tenure,
            role: role.to_owned(),
            key: None,
            settings: LeaseSettings::builder(),
            election_interval: None,
            start_jitter: Duration::ZERO,
            metadata: None,
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

    /// The time that the leader's work gets, once cancelled, to be gone before the lease can end.
    pub fn stop_budget(mut self, budget: Duration) -> Self {
        self.settings = self.settings.stop_budget(budget);
        self
    }

    /// Without [progress](TermHandle::progress) for this long, the leader stops renewing and loses its office as stalled.
    pub fn stall_after(mut self, limit: Duration) -> Self {
        self.settings = self.settings.stall_after(limit);
        self
    }

    /// Candidates take over from a leader that renews but has made no progress for this long.
    pub fn take_over_after(mut self, limit: Duration) -> Self {
        self.settings = self.settings.take_over_after(limit);
        self
    }

    /// Up to this long is waited, by chance, before the first question. Nothing by default: it protects from nothing here,
    /// since a refused candidate waits to be told.
    pub fn start_jitter(mut self, longest: Duration) -> Self {
        self.start_jitter = longest;
        self
    }

    /// The whole key of the lease in the store, instead of `leader:<role>`. Logs call the role by what stands after its
    /// last colon.
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// Published with the leadership, for whoever asks who leads: an address, a version.
    pub fn metadata(mut self, metadata: impl Into<Vec<u8>>) -> Self {
        self.metadata = Some(metadata.into());
        self
    }

    /// Checks that the numbers fit together.
    ///
    /// # Errors
    /// When they do not, or when the role or the key cannot be a name.
    pub fn build(self) -> Result<Election, ElectionError> {
        let name = match &self.key {
            // What stands after the last colon is the label, by which events call it.
            Some(key) => {
                let label_at = key.rfind(':').map_or(0, |at| at + 1);
                let (prefix, label) = key.split_at(label_at);
                LeaseName::with_prefix(LeaseKind::Role, prefix, label)?
            }
            None => LeaseName::role(&self.role)?,
        };
        let ttl = self.settings.build()?.ttl();
        let interval = self.election_interval.unwrap_or(ttl / 2);
        if interval > ttl {
            return Err(ElectionError::ElectionInterval { interval, ttl });
        }
        if self.start_jitter > ttl {
            return Err(ElectionError::StartJitter { jitter: self.start_jitter, ttl });
        }
        let settings = self.settings.look_every(interval).build()?;
        let office = Office::new(self.tenure, self.role, name, settings, self.start_jitter, self.metadata);
        Ok(Election::new(office))
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
    /// Waiting longer than a crash takes is a mistake.
    #[error("a start jitter of {jitter:?} does not fit a ttl of {ttl:?}: it must not be longer")]
    StartJitter {
        /// The longest that is waited.
        jitter: Duration,
        /// The length of the lease.
        ttl: Duration,
    },
}
