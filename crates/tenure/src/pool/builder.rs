//! How a pool is set up; checked when it is started.

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

/// Heartbeats are not read more often than this, unless something was heard.
const MIN_READ_EVERY: Duration = Duration::from_millis(50);

/// Longer than anybody waits, and short enough to be counted with.
const MAX_WAIT: Duration = Duration::from_secs(366 * 24 * 3_600);

/// The largest weight.
const MAX_WEIGHT: f64 = 1_000.0;

/// The numbers of a pool, all of which fit together.
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
            // An instance that is dead is missed within 1.7 intervals: its heartbeat is late after 1.2. Its leases last for two at least, and what it
            // held has to be read before they end.
            late_recheck_every: self.heartbeat_every.min(self.read_every) / 2,
            reconcile_every: self.read_every,
            // A store that is back is reached again within this, too.
            outage_grace: self.heartbeat_ttl.max(Duration::from_secs(5)),
            hand_back: self.hand_back,
        }
    }
}

/// Sets up a pool. What is not set follows from the ttl, which is 30 s by default.
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
    /// Sets up a pool: `<pool>:lease:<target>` is the lease of each of its targets.
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
    ///         let mut ticks = lease.every(Duration::from_secs(5)); // keeps its phase, whoever holds the target
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
    /// The prefix of the leases of targets, `<pool>:lease:` by default. It may carry one hash tag.
    pub fn lease_prefix(mut self, prefix: &str) -> Self {
        self.naming = self.naming.with_prefix(prefix);
        self
    }

    /// The targets. They can be [others](Pool::retarget) later.
    pub fn targets<T: AsRef<str>>(mut self, targets: impl IntoIterator<Item = T>) -> Self {
        self.targets = targets.into_iter().map(|target| Target::from(target.as_ref())).collect();
        self
    }

    /// The targets, from a stream of sets: each set is all targets from then on, and what it leaves out is let go of; so a target that is
    /// paused is left out for a while, and keeps its phase. Names that cannot be targets are [left out](Pool::rejected), too.
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

    /// The targets are the [sessions of the store](Tenure::sessions), those included that other programs write there: one instance of the fleet
    /// looks for them.
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

    /// One instance of the fleet looks for sessions that other programs write or delete, and lists them, every discovery interval.
    pub fn discover_sessions(mut self) -> Self {
        self.discover_sessions = true;
        self
    }

    /// The length of each lease: how long after a crash a target is taken over, at most.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lease = self.lease.ttl(ttl);
        self
    }

    /// How often each is renewed, a third of the ttl by default.
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.lease = self.lease.renew_every(interval);
        self
    }

    /// The time that work gets, once cancelled, to be gone before its lease can end.
    pub fn stop_budget(mut self, budget: Duration) -> Self {
        self.lease = self.lease.stop_budget(budget);
        self
    }

    /// Why a target is let go of that is none any more: [`Removed`](ReleaseReason::Removed), unless this says otherwise.
    pub fn removal_reason(mut self, why: impl Fn(&str) -> ReleaseReason + Send + Sync + 'static) -> Self {
        self.removal_reason = Arc::new(why);
        self
    }

    /// How many targets this instance should have, compared with the others: 1 by default, 2 for twice as many, 1 000 at most.
    pub fn weight(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }

    /// Whether targets of an instance that stopped go back to it when it starts again under the same
    /// [name](crate::TenureBuilder::name), within ten minutes: they do by default. Otherwise a restarted instance gets what is new or
    /// unheld, and what others hold that stop.
    pub fn hand_back(mut self, hand_back: bool) -> Self {
        self.hand_back = hand_back;
        self
    }

    /// The prefix of the role that the pool elects for itself, `<pool>-scout`: `leader:` by default.
    pub fn role_prefix(mut self, prefix: &str) -> Self {
        self.naming = self.naming.with_role_prefix(prefix);
        self
    }

    /// How often this instance says that it lives, at least: it does so whenever leases are renewed, too, which costs nothing.
    pub fn heartbeat_every(mut self, interval: Duration) -> Self {
        self.heartbeat_every = Some(interval);
        self
    }

    /// For how long that may be believed, as long as a lease by default.
    pub fn heartbeat_ttl(mut self, ttl: Duration) -> Self {
        self.heartbeat_ttl = Some(ttl);
        self
    }

    /// How often the others are looked at although nothing was heard, a third of the ttl by default.
    pub fn discover_every(mut self, interval: Duration) -> Self {
        self.discover_every = Some(interval);
        self
    }

    /// How long all must be quiet before targets move for balance, 3 s or a tenth of the ttl by default. What nobody holds is taken at once.
    pub fn settle(mut self, window: Duration) -> Self {
        self.settle = Some(window);
        self
    }

    /// How long [`Pool::stop`] waits for targets to be handed over, 10 s by default.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// What is done with each target that this instance holds. The future is dropped a stop budget before the target can be anybody
    /// else's; when the target is to be given away, [ticks](super::Ticks) end, and the work should. Work that ends or panics before is begun
    /// again after a while.
    pub fn run<W, F>(self, work: W) -> ReadyPool
    where
        W: Fn(Target, TermHandle) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        ReadyPool { builder: self, work: Arc::new(move |target, term| Box::pin(work(target, term))) }
    }

    /// Sees whether the numbers fit together and all names can be names, as starting it does.
    ///
    /// # Errors
    /// When they do not.
    pub fn check(&self) -> Result<(), PoolError> {
        self.settings().map(drop)
    }

    fn settings(&self) -> Result<PoolSettings, PoolError> {
        self.naming.check()?;
        for target in &self.targets {
            self.naming.lease(target)?;
        }
        let lease = self.lease.max_drain(self.drain_timeout).build()?;
        // Whoever is dead must be missed before its leases have run out.
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

/// A pool that can be started.
#[must_use = "nothing happens until it is started"]
pub struct ReadyPool {
    builder: PoolBuilder,
    work: PoolWork,
}

impl ReadyPool {
    /// Joins the fleet and begins to take targets.
    ///
    /// # Errors
    /// When the numbers do not fit together, or a target cannot be a name.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(self) -> Result<Pool, PoolError> {
        let Self { builder, work } = self;
        let settings = builder.settings()?;
        let (sender, commands) = mpsc::unbounded_channel();
        let (held, histograms) = (HeldTerms::default(), Arc::<PoolHistograms>::default());
        let (live, seen) = watch::channel(Vec::new());
        // In the queue before anything else.
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

/// A pool that cannot be like this.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The pool's name or a target is not acceptable.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The leases' numbers do not fit together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// It must be a number between 0 and 1 000.
    #[error("a weight is a number between 0 and {MAX_WEIGHT}")]
    Weight,
    /// One heartbeat may be lost.
    #[error("a heartbeat every {every:?} does not fit a heartbeat ttl of {ttl:?}: two must fit into it")]
    Heartbeat {
        /// How often it is sent.
        every: Duration,
        /// For how long it may be believed.
        ttl: Duration,
    },
}
