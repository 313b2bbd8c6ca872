//! The settings of a pool, checked when it starts.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use thiserror::Error;
use tokio::sync::{mpsc, watch};

use super::driver::{Driver, HeldTerms, PoolCommand};
use super::handle::Views;
use super::histograms::PoolHistograms;
use super::io::EngineSettings;
use super::naming::Naming;
use super::reconciler::ReconcilerTerm;
use super::source::{Names, TargetSource, follow_source};
use super::worker::{PoolWork, RemovalReason};
use super::{Pool, Target};
use crate::lease::{LeaseSettings, LeaseSettingsBuilder, ReleaseReason, SettingsError};
use crate::name::NameError;
use crate::placement::FULL_WEIGHT;
use crate::tenure::{Tenure, TermHandle};

/// The smallest interval of heartbeat reads without an announcement.
const MIN_READ_EVERY: Duration = Duration::from_millis(50);

/// The longest duration accepted: longer than any real wait, and short enough for arithmetic.
const MAX_WAIT: Duration = Duration::from_secs(366 * 24 * 3_600);

/// The largest weight.
const MAX_WEIGHT: f64 = 1_000.0;

/// The checked settings of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolSettings {
    pub(super) lease: LeaseSettings,
    pub(super) weight: u32,
    pub(super) heartbeat_every: Duration,
    pub(super) heartbeat_ttl: Duration,
    pub(super) read_every: Duration,
    pub(super) settle: Duration,
    pub(super) drain_timeout: Duration,
    pub(super) hand_back: bool,
}

impl PoolSettings {
    pub(super) fn engine(&self) -> EngineSettings {
        EngineSettings {
            max_claim_delay: (self.lease.ttl() / 10).min(Duration::from_secs(1)),
            settle: self.settle,
            max_settle: self.settle.saturating_mul(10),
            accept_window: self.lease.accept_window(),
            read_every: self.read_every,
            // A dead instance is detected within 1.7 heartbeat intervals: its heartbeat is late after 1.2. Its leases
            // last for at least two, and the list of its targets has to be read before they expire.
            late_recheck_every: self.heartbeat_every.min(self.read_every) / 2,
            reconcile_every: self.read_every,
            // Instances also reconnect to a recovered store within this time.
            outage_grace: self.heartbeat_ttl.max(Duration::from_secs(5)),
            hand_back: self.hand_back,
        }
    }
}

/// Sets up a pool. Settings not given here follow from the ttl, which is 30 s by default.
#[must_use]
pub struct PoolBuilder {
    tenure: Tenure,
    naming: Naming,
    targets: BTreeSet<Target>,
    source: Option<TargetSource>,
    discover_sessions: bool,
    lease: LeaseSettingsBuilder,
    weight: f64,
    removal_reason: RemovalReason,
    heartbeat_every: Option<Duration>,
    heartbeat_ttl: Option<Duration>,
    discover_every: Option<Duration>,
    settle: Option<Duration>,
    drain_timeout: Duration,
    hand_back: bool,
}

impl Tenure {
    /// Sets up a pool. The lease of each target is `<pool>:lease:<target>`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tenure::Tenure;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let pool = tenure
    ///     .pool("poll")
    ///     .targets(["eu-1", "eu-2", "us-1"])
    ///     .run(async |target, lease| {
    ///         let mut ticks = lease.every(Duration::from_secs(5)); // keeps its phase across holders
    ///         while let Some(tick) = ticks.next().await {
    ///             println!("polling {target}, due at {:?}, under {}", tick.due(), lease.token());
    ///         }
    ///     })
    ///     .start()?;
    /// # while pool.owned().len() < 3 { tokio::time::sleep(Duration::from_millis(5)).await; }
    /// assert!(pool.is_owned("eu-1"));
    /// pool.stop().await; // drains, hands over, leaves
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pool(&self, pool: &str) -> PoolBuilder {
        PoolBuilder {
            tenure: self.clone(),
            naming: Naming::of(pool),
            targets: BTreeSet::new(),
            source: None,
            discover_sessions: false,
            lease: LeaseSettings::builder(),
            weight: 1.0,
            removal_reason: Arc::new(|_| ReleaseReason::Removed),
            heartbeat_every: None,
            heartbeat_ttl: None,
            discover_every: None,
            settle: None,
            drain_timeout: Duration::from_secs(10),
            hand_back: true,
        }
    }
}

impl PoolBuilder {
    /// Sets the prefix of the targets' leases. The default is `<pool>:lease:`. It may contain one hash tag.
    pub fn lease_prefix(mut self, prefix: &str) -> Self {
        self.naming = self.naming.with_prefix(prefix);
        self
    }

    /// Sets the targets. [`Pool::retarget`] changes them later.
    pub fn targets<T: AsRef<str>>(mut self, targets: impl IntoIterator<Item = T>) -> Self {
        self.targets = targets.into_iter().map(|target| Target::from(target.as_ref())).collect();
        self
    }

    /// Takes the targets from a stream of sets. Each set replaces the one before, and targets it omits are released. To
    /// pause a target, omit it for a while; it keeps its phase. Names that are not valid targets are
    /// [rejected](Pool::rejected).
    ///
    /// ```
    /// use std::pin::Pin;
    /// use std::task::{Context, Poll};
    /// use futures_core::Stream;
    /// use tenure::Tenure;
    ///
    /// struct Once(Option<[&'static str; 2]>); // or anything from `tokio-stream`, `async-stream`, `futures`
    ///
    /// impl Stream for Once {
    ///     type Item = [&'static str; 2];
    ///     fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
    ///         Poll::Ready(self.0.take())
    ///     }
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let source = Once(Some(["eu-1", "us-1"]));
    /// let pool = tenure.pool("poll").targets_from(source).run(async |_, lease| drop(lease.lost().await)).start()?;
    /// # pool.stop().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn targets_from<S>(mut self, source: S) -> Self
    where
        S: Stream + Send + 'static,
        S::Item: IntoIterator,
        <S::Item as IntoIterator>::Item: AsRef<str>,
    {
        self.source = Some(Box::pin(Names(Box::pin(source))));
        self
    }

    /// Takes the targets from the [sessions of the store](Tenure::sessions), including those that other programs write
    /// there: one instance of the fleet discovers them.
    ///
    /// ```
    /// use tenure::Tenure;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let pool = tenure.pool("poll").targets_from_sessions().run(async |_, lease| drop(lease.lost().await)).start()?;
    /// # pool.stop().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn targets_from_sessions(self) -> Self {
        let sessions = self.tenure.sessions();
        self.targets_from(sessions).discover_sessions()
    }

    /// Makes one instance of the fleet discover the sessions that other programs write or delete, at every discovery
    /// interval, and list them.
    pub fn discover_sessions(mut self) -> Self {
        self.discover_sessions = true;
        self
    }

    /// Sets the ttl of each lease: the longest time from a crash until a target is taken over.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lease = self.lease.ttl(ttl);
        self
    }

    /// Sets the interval of renewals. The default is a third of the ttl.
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.lease = self.lease.renew_every(interval);
        self
    }

    /// Sets the time that cancelled work has to end before its lease can expire.
    pub fn stop_budget(mut self, budget: Duration) -> Self {
        self.lease = self.lease.stop_budget(budget);
        self
    }

    /// Sets the reason for releasing a removed target. The default is [`Removed`](ReleaseReason::Removed).
    pub fn removal_reason(mut self, why: impl Fn(&str) -> ReleaseReason + Send + Sync + 'static) -> Self {
        self.removal_reason = Arc::new(why);
        self
    }

    /// Sets the weight of this instance: its number of targets relative to others. The default is 1, twice as many is
    /// 2, the maximum 1 000.
    pub fn weight(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }

    /// Sets whether an instance that restarts under the same [name](crate::TenureBuilder::name) within ten minutes gets
    /// its targets back. The default is `true`. Otherwise it gets new and unheld targets, and those of instances that
    /// stop.
    pub fn hand_back(mut self, hand_back: bool) -> Self {
        self.hand_back = hand_back;
        self
    }

    /// Sets the prefix of the role `<pool>-reconciler`, which the pool elects its reconciler for. The default is `leader:`.
    pub fn role_prefix(mut self, prefix: &str) -> Self {
        self.naming = self.naming.with_role_prefix(prefix);
        self
    }

    /// Sets the longest interval of this instance's heartbeats. It also sends one with every renewal of leases, which
    /// costs nothing.
    pub fn heartbeat_every(mut self, interval: Duration) -> Self {
        self.heartbeat_every = Some(interval);
        self
    }

    /// Sets how long a heartbeat is valid. The default is the ttl of a lease.
    pub fn heartbeat_ttl(mut self, ttl: Duration) -> Self {
        self.heartbeat_ttl = Some(ttl);
        self
    }

    /// Sets how often to read the heartbeats of other instances without an announcement. The default is a third of the
    /// ttl.
    pub fn discover_every(mut self, interval: Duration) -> Self {
        self.discover_every = Some(interval);
        self
    }

    /// Sets how long the pool must be quiet before targets move to rebalance. The default is 3 s or a tenth of the ttl.
    /// Unheld targets are claimed at once.
    pub fn settle(mut self, window: Duration) -> Self {
        self.settle = Some(window);
        self
    }

    /// Limits the time that [`Pool::stop`] waits for handovers. The default is 10 s.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Sets the work for each target that this instance holds. The future is dropped a stop budget before another
    /// instance could acquire the target. When the target is to be handed over, its [ticks](super::Ticks) end, and the
    /// work should end, too. Work that ends or panics earlier is restarted after a backoff.
    pub fn run<W, F>(self, work: W) -> ReadyPool
    where
        W: Fn(Target, TermHandle) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        ReadyPool { builder: self, work: Arc::new(move |target, term| Box::pin(work(target, term))) }
    }

    /// Checks that the settings fit together and all names are valid, as [`start`](ReadyPool::start) does.
    ///
    /// # Errors
    /// When they do not, or a name is not valid.
    pub fn check(&self) -> Result<(), PoolError> {
        self.settings().map(drop)
    }

    fn settings(&self) -> Result<PoolSettings, PoolError> {
        self.naming.check()?;
        for target in &self.targets {
            self.naming.lease(target)?;
        }
        let lease = self.lease.max_drain(self.drain_timeout).build()?;
        // A dead instance must be detected before its leases expire.
        let heartbeat_every = self.heartbeat_every.unwrap_or(Duration::MAX).min(lease.renew_every());
        let heartbeat_ttl = self.heartbeat_ttl.unwrap_or(lease.ttl());
        if heartbeat_every.is_zero() || heartbeat_every.saturating_mul(2) > heartbeat_ttl {
            return Err(PoolError::Heartbeat { every: heartbeat_every, ttl: heartbeat_ttl });
        }
        let read_every = self.discover_every.unwrap_or(heartbeat_every).clamp(MIN_READ_EVERY, MAX_WAIT);
        let settle =
            self.settle.map(|settle| settle.min(MAX_WAIT)).unwrap_or((lease.ttl() / 10).min(Duration::from_secs(3)));
        if !(0.0..=MAX_WEIGHT).contains(&self.weight) {
            return Err(PoolError::Weight);
        }
        let weight = (self.weight * f64::from(FULL_WEIGHT)).round() as u32;
        let drain_timeout = self.drain_timeout.min(MAX_WAIT);
        Ok(PoolSettings {
            lease,
            weight,
            heartbeat_every,
            heartbeat_ttl,
            read_every,
            settle,
            drain_timeout,
            hand_back: self.hand_back,
        })
    }
}

/// A pool that is ready to start.
#[must_use = "the pool does nothing until it is started"]
pub struct ReadyPool {
    builder: PoolBuilder,
    work: PoolWork,
}

impl ReadyPool {
    /// Joins the fleet and starts to claim targets.
    ///
    /// # Errors
    /// When the settings do not fit together, or a target is not a valid name.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(self) -> Result<Pool, PoolError> {
        let Self { builder, work } = self;
        let settings = builder.settings()?;
        let (sender, commands) = mpsc::unbounded_channel();
        let (held, histograms) = (HeldTerms::default(), Arc::<PoolHistograms>::default());
        let (live, seen) = watch::channel(Vec::new());
        // Queued before any other command.
        let _ = sender.send(PoolCommand::Targets(builder.targets));
        let (tenure, naming, discover_sessions) = (builder.tenure, builder.naming, builder.discover_sessions);
        let removal_reason = builder.removal_reason;
        let (unusable, rejected) = watch::channel(Vec::new());
        if let Some(source) = builder.source {
            tokio::spawn(follow_source(source, naming.clone(), sender.downgrade(), unusable));
        }
        let reconciler_term = ReconcilerTerm::default();
        let (held_here, histograms_here, reconciler_term_here) =
            (held.clone(), histograms.clone(), reconciler_term.clone());
        let views = Views {
            held: held_here,
            live: seen,
            rejected,
            histograms: histograms_here,
            reconciler_term: reconciler_term_here,
        };
        let handle = Pool::new(tenure.clone(), naming.clone(), sender, views);
        let driver = Driver {
            tenure,
            naming,
            settings,
            discover_sessions,
            work,
            removal_reason,
            held,
            commands,
            live,
            histograms,
            reconciler_term,
        };
        tokio::spawn(driver.run());
        Ok(handle)
    }
}

impl std::fmt::Debug for PoolBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PoolBuilder({} of {}, {} targets)", self.naming.pool(), self.tenure.instance(), self.targets.len())
    }
}

impl std::fmt::Debug for ReadyPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadyPool({:?})", self.builder)
    }
}

/// Settings of a pool that are not valid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The pool's name or a target is not valid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The settings of the leases do not fit together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The weight must be a number between 0 and 1 000.
    #[error("weight must be a number between 0 and {MAX_WEIGHT}")]
    Weight,
    /// The heartbeat ttl must allow for one lost heartbeat.
    #[error("heartbeat interval must be above zero and at most half of the heartbeat ttl of {ttl:?}, got {every:?}")]
    Heartbeat {
        /// The heartbeat interval.
        every: Duration,
        /// How long a heartbeat is valid.
        ttl: Duration,
    },
}
