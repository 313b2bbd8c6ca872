//! The settings of a pool, checked when it starts.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use futures_util::StreamExt;
use thiserror::Error;
use tokio::sync::{mpsc, watch};

use tenure_core::backoff::Backoff;

use super::EngineSettings;
use super::Naming;
use super::driver::{Driver, HeldTerms, PoolCommand};
use super::handle::Views;
use super::reconciler::ReconcilerTerm;
use super::source::{TargetSource, follow_source};
use super::target::Payloads;
use super::worker::{PoolWork, RESTART_BACKOFF, RemovalReason, WorkFuture};
use super::{IntoTarget, Pool, PoolStats, Target, TargetName};
use crate::lease::{LeaseSettings, LeaseSettingsBuilder, ReleaseReason, SettingsError};
use crate::name::NameError;
use crate::placement::FULL_WEIGHT;
use crate::tenure::{Tenure, TermHandle, WorkError};

/// The shortest interval of heartbeats. The shortest lease is renewed less often.
const MIN_HEARTBEAT_EVERY: Duration = Duration::from_millis(10);

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
    pub(super) restart_backoff: Backoff,
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
///
/// `T` is the payload of the targets. `S` is the state that the work gets: [`NoState`], or [`WithState`].
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
///
/// # async fn poll(_: tenure::pool::Target, term: tenure::TermHandle) -> Result<(), tenure::WorkError> {
/// #     term.draining().await;
/// #     Ok(())
/// # }
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let builder = tenure
///     .pool("poll")
///     .ttl(Duration::from_secs(10)) // the targets of a crashed instance are taken over after this time
///     .weight(2.0) // twice as many targets as an ordinary instance
///     .targets(["eu-1", "us-1"]);
/// builder.check()?; // `start` checks the same
/// let pool = builder.run(poll).start()?;
/// # pool.stop().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct PoolBuilder<T = (), S = NoState> {
    settings: PoolOptions,
    targets: Vec<(TargetName, T)>,
    source: Option<TargetSource<T>>,
    state: S,
}

/// The settings that depend neither on the payload nor on the state.
struct PoolOptions {
    tenure: Tenure,
    naming: Naming,
    /// The collections of documents to discover.
    discover: Vec<String>,
    lease: LeaseSettingsBuilder,
    weight: f64,
    removal_reason: RemovalReason,
    restart_backoff: Backoff,
    heartbeat_every: Option<Duration>,
    heartbeat_ttl: Option<Duration>,
    discover_every: Option<Duration>,
    settle: Option<Duration>,
    drain_timeout: Duration,
    hand_back: bool,
}

/// A pool whose work gets no state: `run(async |target, term| …)`.
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
/// use tenure::pool::{NoState, PoolBuilder};
///
/// /// The settings that all pools of a program have in common.
/// fn configure<T>(pool: PoolBuilder<T, NoState>) -> PoolBuilder<T, NoState> {
///     pool.ttl(Duration::from_secs(10)).drain_timeout(Duration::from_secs(5))
/// }
///
/// # async fn poll(_: tenure::pool::Target, term: tenure::TermHandle) -> Result<(), tenure::WorkError> {
/// #     term.draining().await;
/// #     Ok(())
/// # }
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let pool = configure(tenure.pool("poll").targets(["eu-1"])).run(poll).start()?;
/// # pool.stop().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NoState;

/// A pool whose work gets a clone of this state first: `run(async |state, target, term| …)`.
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
/// use tenure::pool::{PoolBuilder, ReadyPool, WithState};
///
/// #[derive(Clone)]
/// struct Client; // an HTTP client, a database pool, …
/// # impl Client {
/// #     fn get(&self, _: &str) {}
/// # }
///
/// fn with_work(pool: PoolBuilder<(), WithState<Client>>) -> ReadyPool {
///     pool.run(async |client: Client, target, term| {
///         while term.wait(Duration::from_secs(5)).await {
///             client.get(target.name());
///         }
///         Ok(())
///     })
/// }
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let pool = with_work(tenure.pool("poll").targets(["eu-1"]).state(Client)).start()?;
/// # pool.stop().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct WithState<S>(S);

impl Tenure {
    /// Sets up a pool. The lease of each target is `<pool>:lease:<target>`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tenure::Tenure;
    ///
    /// struct Server {
    ///     url: &'static str,
    /// }
    ///
    /// # #[cfg(feature = "memory")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let greeting = "polling".to_owned(); // a client, in a real program
    /// let pool = tenure
    ///     .pool("poll")
    ///     .state(greeting) // the work gets a clone
    ///     .targets([("eu-1", Server { url: "http://10.0.0.7" }), ("us-1", Server { url: "http://10.1.0.7" })])
    ///     .run(async |greeting, target, term| {
    ///         let mut ticks = term.every(Duration::from_secs(5)); // keeps its phase across holders
    ///         while let Some(tick) = ticks.next().await {
    ///             println!("{greeting} {target} at {}, due at {:?}", target.url, tick.due());
    ///         }
    ///         Ok(())
    ///     })
    ///     .start()?;
    /// println!("{:?} are held here by now", pool.owned());
    /// pool.stop().await; // drains, hands over, leaves
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pool(&self, pool: &str) -> PoolBuilder {
        PoolBuilder {
            settings: PoolOptions {
                tenure: self.clone(),
                naming: Naming::of(pool),
                discover: Vec::new(),
                lease: LeaseSettings::builder(),
                weight: 1.0,
                removal_reason: Arc::new(|_| ReleaseReason::Removed),
                restart_backoff: RESTART_BACKOFF,
                heartbeat_every: None,
                heartbeat_ttl: None,
                discover_every: None,
                settle: None,
                drain_timeout: Duration::from_secs(10),
                hand_back: true,
            },
            targets: Vec::new(),
            source: None,
            state: NoState,
        }
    }
}

impl<T, S> PoolBuilder<T, S> {
    /// Sets the prefix of the targets' leases. The default is `<pool>:lease:`. It may contain one hash tag.
    pub fn lease_prefix(mut self, prefix: &str) -> Self {
        self.settings.naming = self.settings.naming.with_prefix(prefix);
        self
    }

    /// Sets the targets: names, or pairs of a name and a payload. [`Pool::retarget`] changes them later.
    pub fn targets<I: IntoTarget>(self, targets: impl IntoIterator<Item = I>) -> PoolBuilder<I::Payload, S> {
        let targets = targets.into_iter().map(IntoTarget::into_target).collect();
        PoolBuilder { settings: self.settings, targets, source: None, state: self.state }
    }

    /// Takes the targets from a stream of sets. Each set replaces the one before, and targets it omits are released. A
    /// target that stays gets the new payload [in place](super::Target::changed). To pause a target, omit it for a
    /// while; it keeps its phase. Names that are not valid targets are [rejected](Pool::rejected).
    ///
    /// ```
    /// use tenure::Tenure;
    ///
    /// # #[cfg(feature = "memory")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let (sets, receiver) = tokio::sync::mpsc::channel(1);
    /// // Any stream: `tokio_stream::wrappers::ReceiverStream`, `async_stream::stream!`, …
    /// let source = futures_util::stream::unfold(receiver, async |mut receiver| {
    ///     receiver.recv().await.map(|set: Vec<(String, u16)>| (set, receiver))
    /// });
    /// let pool = tenure
    ///     .pool("poll")
    ///     .targets_from(source)
    ///     .run(async |target, term| {
    ///         println!("{target} has port {}", *target);
    ///         term.draining().await;
    ///         Ok(())
    ///     })
    ///     .start()?;
    /// sets.send(vec![("eu-1".to_owned(), 9100), ("us-1".to_owned(), 9101)]).await?;
    /// # pool.stop().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn targets_from<Src, I>(self, source: Src) -> PoolBuilder<I::Payload, S>
    where
        Src: Stream + Send + 'static,
        Src::Item: IntoIterator<Item = I>,
        I: IntoTarget,
    {
        let sets = source.map(|set| set.into_iter().map(IntoTarget::into_target).collect());
        PoolBuilder { settings: self.settings, targets: Vec::new(), source: Some(Box::pin(sets)), state: self.state }
    }

    /// Makes one instance of the fleet discover the [documents](Tenure::documents) of a collection that other programs
    /// write or delete, at every discovery interval, and list them.
    pub fn discover(mut self, collection: &str) -> Self {
        self.settings.discover.push(collection.to_owned());
        self
    }

    /// Sets the ttl of each lease: the longest time from a crash until a target is taken over.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.lease = self.settings.lease.ttl(ttl);
        self
    }

    /// Sets the interval of renewals. The default is a third of the ttl.
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.settings.lease = self.settings.lease.renew_every(interval);
        self
    }

    /// Sets the time that cancelled work has to end before its lease can expire.
    pub fn stop_budget(mut self, budget: Duration) -> Self {
        self.settings.lease = self.settings.lease.stop_budget(budget);
        self
    }

    /// Sets the reason for releasing a removed target. The default is [`Removed`](ReleaseReason::Removed).
    pub fn removal_reason(mut self, why: impl Fn(&str) -> ReleaseReason + Send + Sync + 'static) -> Self {
        self.settings.removal_reason = Arc::new(why);
        self
    }

    /// Sets the weight of this instance: its number of targets relative to others. The default is 1, twice as many is
    /// 2, the maximum 1 000.
    pub fn weight(mut self, weight: f64) -> Self {
        self.settings.weight = weight;
        self
    }

    /// Sets whether an instance that restarts under the same [name](crate::TenureBuilder::name) within ten minutes gets
    /// its targets back. The default is `true`. Otherwise it gets new and unheld targets, and those of instances that
    /// stop.
    pub fn hand_back(mut self, hand_back: bool) -> Self {
        self.settings.hand_back = hand_back;
        self
    }

    /// Sets the prefix of the role `<pool>-reconciler`, which the pool elects its reconciler for. The default is `leader:`.
    pub fn role_prefix(mut self, prefix: &str) -> Self {
        self.settings.naming = self.settings.naming.with_role_prefix(prefix);
        self
    }

    /// Sets the interval of this instance's heartbeats: at most the renewal interval, so that a dead instance is detected
    /// before its leases expire, and at most half of the heartbeat ttl. The default is a third of the ttl.
    pub fn heartbeat_every(mut self, interval: Duration) -> Self {
        self.settings.heartbeat_every = Some(interval);
        self
    }

    /// Sets how long a heartbeat is valid. The default is the ttl of a lease.
    pub fn heartbeat_ttl(mut self, ttl: Duration) -> Self {
        self.settings.heartbeat_ttl = Some(ttl);
        self
    }

    /// Sets how often to read the heartbeats of other instances without an announcement. The default is a third of the
    /// ttl.
    pub fn discover_every(mut self, interval: Duration) -> Self {
        self.settings.discover_every = Some(interval);
        self
    }

    /// Sets how long the pool must be quiet before targets move to rebalance. The default is 3 s or a tenth of the ttl.
    /// Unheld targets are claimed at once.
    pub fn settle(mut self, window: Duration) -> Self {
        self.settings.settle = Some(window);
        self
    }

    /// Limits the time that [`Pool::stop`] waits for handovers. The default is 10 s.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.settings.drain_timeout = timeout;
        self
    }

    /// Sets the backoff before ended work is restarted: `first` the first time, doubled while the work ends soon after
    /// each start, `longest` at most. The default is 1 s and 30 s.
    pub fn restart_backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.settings.restart_backoff = Backoff::new(first, longest);
        self
    }

    /// Checks that the settings fit together and all names are valid, as [`start`](ReadyPool::start) does.
    ///
    /// # Errors
    /// When they do not, or a name is not valid.
    pub fn check(&self) -> Result<(), PoolError> {
        for (target, _) in &self.targets {
            self.settings.naming.lease(target)?;
        }
        self.settings.check().map(drop)
    }

    fn ready(self, payloads: Payloads<T>, work: PoolWork) -> ReadyPool<T> {
        ReadyPool { settings: self.settings, targets: self.targets, source: self.source, payloads, work }
    }
}

impl<T> PoolBuilder<T, NoState> {
    /// Gives the work a state, such as a client: each call gets a clone, as its first argument. A capturing `async`
    /// closure cannot have a future that is `Send`, so state is an argument.
    pub fn state<S: Clone + Send + Sync + 'static>(self, state: S) -> PoolBuilder<T, WithState<S>> {
        let Self { settings, targets, source, .. } = self;
        PoolBuilder { settings, targets, source, state: WithState(state) }
    }
}

impl<T: Send + Sync + 'static> PoolBuilder<T, NoState> {
    /// Sets the work for each target that this instance holds. The future is dropped a stop budget before another
    /// instance could acquire the target. When the target is to be handed over, its [ticks](super::Ticks) end, and the
    /// work should end, too. Work that ends, fails or panics earlier is restarted after a
    /// [backoff](Self::restart_backoff); errors and panics are events (`work.failed`, `work.panicked`) and
    /// [counted](super::PoolStats).
    ///
    /// `run(async |target, term| …)` compiles if the closure captures nothing. Give it a [state](Self::state), or clone
    /// what it captures: `run(move |target, term| { let client = client.clone(); async move { … } })`.
    pub fn run<W, F>(self, work: W) -> ReadyPool<T>
    where
        W: Fn(Target<T>, TermHandle) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), WorkError>> + Send + 'static,
    {
        let payloads = Payloads::new();
        let work = with_payload(payloads.clone(), move |target, term| Box::pin(work(target, term)));
        self.ready(payloads, work)
    }
}

impl<T: Send + Sync + 'static, S: Clone + Send + Sync + 'static> PoolBuilder<T, WithState<S>> {
    /// Sets the work for each target that this instance holds. It gets a clone of the [state](PoolBuilder::state), the
    /// target and its term. The future is dropped a stop budget before another instance could acquire the target. When
    /// the target is to be handed over, its [ticks](super::Ticks) end, and the work should end, too. Work that ends,
    /// fails or panics earlier is restarted after a [backoff](Self::restart_backoff); errors and panics are events
    /// (`work.failed`, `work.panicked`) and [counted](super::PoolStats).
    pub fn run<W, F>(self, work: W) -> ReadyPool<T>
    where
        W: Fn(S, Target<T>, TermHandle) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), WorkError>> + Send + 'static,
    {
        let (payloads, state) = (Payloads::new(), self.state.0.clone());
        let work = with_payload(payloads.clone(), move |target, term| Box::pin(work(state.clone(), target, term)));
        self.ready(payloads, work)
    }
}

/// Looks up the payload of a target before its work begins.
fn with_payload<T: Send + Sync + 'static>(
    payloads: Payloads<T>,
    work: impl Fn(Target<T>, TermHandle) -> WorkFuture + Send + Sync + 'static,
) -> PoolWork {
    Arc::new(move |name, term| match payloads.target(&name) {
        Some(target) => work(target, term),
        // Removed meanwhile: the term ends in a moment.
        None => Box::pin(async move {
            term.draining().await;
            Ok(())
        }),
    })
}

impl PoolOptions {
    fn check(&self) -> Result<PoolSettings, PoolError> {
        self.naming.check()?;
        let lease = self.lease.max_drain(self.drain_timeout).build()?;
        // A dead instance must be detected before its leases expire.
        let heartbeat_ttl = self.heartbeat_ttl.unwrap_or(lease.ttl());
        let default = (heartbeat_ttl / 3).min(lease.renew_every());
        let heartbeat_every = self.heartbeat_every.unwrap_or(default);
        let longest = (heartbeat_ttl / 2).min(lease.renew_every());
        if heartbeat_every < MIN_HEARTBEAT_EVERY || heartbeat_every > longest {
            return Err(PoolError::Heartbeat { every: heartbeat_every, longest });
        }
        let read_every = self.discover_every.unwrap_or(heartbeat_every).clamp(MIN_READ_EVERY, MAX_WAIT);
        let settle =
            self.settle.map(|settle| settle.min(MAX_WAIT)).unwrap_or((lease.ttl() / 10).min(Duration::from_secs(3)));
        if !(0.0..=MAX_WEIGHT).contains(&self.weight) {
            return Err(PoolError::Weight);
        }
        let Backoff { first, longest } = self.restart_backoff;
        if first.is_zero() || first > longest {
            return Err(PoolError::RestartBackoff { first, longest });
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
            restart_backoff: self.restart_backoff,
        })
    }
}

/// A pool that is ready to start.
///
/// ```
/// use tenure::Tenure;
/// use tenure::pool::ReadyPool;
///
/// # async fn poll(_: tenure::pool::Target, term: tenure::TermHandle) -> Result<(), tenure::WorkError> {
/// #     term.draining().await;
/// #     Ok(())
/// # }
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let ready: ReadyPool = tenure.pool("poll").targets(["eu-1"]).run(poll);
/// let pool = ready.start()?; // joins the fleet, once the program is ready for work
/// # pool.stop().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the pool does nothing until it is started"]
pub struct ReadyPool<T = ()> {
    settings: PoolOptions,
    targets: Vec<(TargetName, T)>,
    source: Option<TargetSource<T>>,
    payloads: Payloads<T>,
    work: PoolWork,
}

impl<T: Send + Sync + 'static> ReadyPool<T> {
    /// Joins the fleet and starts to claim targets.
    ///
    /// # Errors
    /// When the settings do not fit together, or a target is not a valid name.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(self) -> Result<Pool<T>, PoolError> {
        let Self { settings: options, targets, source, payloads, work } = self;
        let settings = options.check()?;
        let PoolOptions { tenure, naming, discover, removal_reason, .. } = options;
        for (target, _) in &targets {
            naming.lease(target)?;
        }
        let (sender, commands) = mpsc::unbounded_channel();
        let (held, stats) = (HeldTerms::default(), Arc::<PoolStats>::default());
        let (live, seen) = watch::channel(Vec::new());
        // Queued before any other command.
        let _ = payloads.replace(targets, |names| sender.send(PoolCommand::Targets(names)));
        let (unusable, rejected) = watch::channel(Vec::new());
        if let Some(source) = source {
            let (payloads, commands) = (payloads.clone(), sender.downgrade());
            tokio::spawn(follow_source(source, payloads, naming.clone(), commands, unusable));
        }
        let reconciler_term = ReconcilerTerm::default();
        let views = Views {
            held: held.clone(),
            live: seen,
            rejected,
            stats: stats.clone(),
            reconciler_term: reconciler_term.clone(),
        };
        let handle = Pool::new(tenure.clone(), naming.clone(), sender, payloads, views);
        let driver = Driver {
            tenure,
            naming,
            settings,
            discover,
            work,
            removal_reason,
            held,
            commands,
            live,
            stats,
            reconciler_term,
        };
        tokio::spawn(driver.run());
        Ok(handle)
    }
}

impl std::fmt::Debug for PoolOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.naming.pool(), self.tenure.instance())
    }
}

impl<T, S> std::fmt::Debug for PoolBuilder<T, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PoolBuilder({:?}, {} targets)", self.settings, self.targets.len())
    }
}

impl<T> std::fmt::Debug for ReadyPool<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadyPool({:?}, {} targets)", self.settings, self.targets.len())
    }
}

/// Settings of a pool that are not valid.
///
/// ```
/// use tenure::Tenure;
/// use tenure::pool::PoolError;
///
/// # async fn poll(_: tenure::pool::Target, term: tenure::TermHandle) -> Result<(), tenure::WorkError> {
/// #     term.draining().await;
/// #     Ok(())
/// # }
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let pool = tenure.pool("poll").targets(["eu-1", "us 1"]).run(poll);
/// match pool.start() {
///     Ok(pool) => println!("{pool:?} has started"),
///     Err(PoolError::Name(error)) => assert!(error.to_string().contains("us 1")),
///     Err(error) => return Err(error.into()), // a setting to correct
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    /// The first backoff before a restart must be above zero and not above the longest.
    #[error("restart backoff must be above zero and at most the longest one of {longest:?}, got {first:?}")]
    RestartBackoff {
        /// The first backoff.
        first: Duration,
        /// The longest backoff.
        longest: Duration,
    },
    /// The heartbeat ttl must allow for one lost heartbeat, and a dead instance must be detected before its leases expire.
    #[error(
        "heartbeat interval must be between {MIN_HEARTBEAT_EVERY:?} and {longest:?} (the renewal interval, and half of the \
         heartbeat ttl), got {every:?}"
    )]
    Heartbeat {
        /// The heartbeat interval.
        every: Duration,
        /// The longest one that is allowed.
        longest: Duration,
    },
}
