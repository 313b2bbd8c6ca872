//! One instance of the polling service: a pool whose targets are sessions, and the API beside it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::election::ElectionError;
use tenure::lease::ReleaseReason;
use tenure::pool::{Pool, PoolBuilder, PoolError};
use tenure::{ConnectError, Tenure, TermHandle};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinHandle};

use crate::api::{self, ApiToken};
use crate::counters::Counters;
use crate::event_stream::FleetEvents;
use crate::housekeeping::{self, Housekeeping, STATS_FIELD};
use crate::keys::KeyPrefixes;
use crate::listener;
use crate::poll::ability::Ability;
use crate::poll::ability_monitor::AbilityMonitor;
use crate::poll::address_policy::AddressPolicy;
use crate::poll::client::{ClientError, PollClient};
use crate::poll::poller::Poller;
use crate::result_settings::ResultSettings;
use crate::results::ResultStreams;
use crate::session_cache::SessionCache;
use crate::session_repo::COLLECTION;

/// The pool of all sessions: their leases are `poll:lease:<id>`.
pub const POOL: &str = "poll";

/// Number of concurrent scans of the whole fleet.
const MAX_FLEET_SCANS: usize = 2;

/// Number of concurrent streams on one instance.
const MAX_STREAMS: usize = 2_000;

/// Time for responses in flight at shutdown.
const API_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of reports per instance and aggregation period. With one report, some periods would see two and others none.
const STATS_PER_PERIOD: u32 = 3;

/// Shortest interval of full scans.
const MIN_DISCOVER_EVERY: Duration = Duration::from_millis(100);

/// Settings of the service.
#[derive(Debug)]
pub struct ServiceSettings {
    /// Token of the API. Without one, every client that reaches the API may use it.
    pub token: Option<ApiToken>,
    /// Addresses that may be polled.
    pub address_policy: AddressPolicy,
    /// Interval of looking for sessions and instances without an announcement, and of aggregation.
    pub discover_every: Duration,
    /// The ttl of leaderships.
    pub ttl: Duration,
    /// Time without progress after which a leader is replaced, if any.
    pub stall_after: Option<Duration>,
    /// Key prefixes of leases.
    pub keys: KeyPrefixes,
    /// Settings for results, unless a session overrides them.
    pub results: ResultSettings,
}

/// Why the service cannot be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The settings of the pool are inconsistent.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The settings of the elections are inconsistent.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// The interval of full scans is too short.
    #[error("the discovery interval must be at least {MIN_DISCOVER_EVERY:?}, got {0:?}")]
    DiscoverEvery(Duration),
    /// The memory store for the check of the settings cannot be created.
    #[error(transparent)]
    Store(#[from] ConnectError),
    /// The HTTP client cannot be created.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// State of one instance for the API. Clones share state.
#[derive(Clone, Debug)]
pub(crate) struct Service(Arc<ServiceState>);

#[derive(Debug)]
struct ServiceState {
    tenure: Tenure,
    pool: Pool,
    session_cache: SessionCache,
    counters: Arc<Counters>,
    housekeeping: Housekeeping,
    ability_monitor: AbilityMonitor,
    events: FleetEvents,
    result_streams: ResultStreams,
    streams: Arc<Semaphore>,
    fleet_scans: Semaphore,
    /// The last term of each role on this instance that a scrape of the metrics has seen.
    last_terms: Mutex<BTreeMap<String, TermHandle>>,
    keys: KeyPrefixes,
    token: Option<ApiToken>,
    address_policy: AddressPolicy,
    ended: watch::Receiver<bool>,
}

impl Service {
    pub(crate) fn tenure(&self) -> &Tenure {
        &self.0.tenure
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.0.pool
    }

    pub(crate) fn session_cache(&self) -> &SessionCache {
        &self.0.session_cache
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.0.counters
    }

    pub(crate) fn housekeeping(&self) -> &Housekeeping {
        &self.0.housekeeping
    }

    pub(crate) fn ability(&self) -> Ability {
        self.0.ability_monitor.ability()
    }

    pub(crate) fn events(&self) -> &FleetEvents {
        &self.0.events
    }

    pub(crate) fn result_streams(&self) -> &ResultStreams {
        &self.0.result_streams
    }

    /// Returns the permits for streams.
    pub(crate) fn streams(&self) -> Arc<Semaphore> {
        self.0.streams.clone()
    }

    /// Returns the permits for scans of the whole fleet.
    pub(crate) fn fleet_scans(&self) -> &Semaphore {
        &self.0.fleet_scans
    }

    /// Returns whether the API serves only this host, without a token.
    pub(crate) fn is_loopback_only(&self) -> bool {
        self.0.address_policy.allow_private
    }

    /// Returns the policy for polled addresses.
    pub(crate) fn address_policy(&self) -> &AddressPolicy {
        &self.0.address_policy
    }

    pub(crate) fn open_streams(&self) -> usize {
        MAX_STREAMS - self.0.streams.available_permits()
    }

    pub(crate) fn keys(&self) -> &KeyPrefixes {
        &self.0.keys
    }

    pub(crate) fn token(&self) -> Option<&ApiToken> {
        self.0.token.as_ref()
    }

    /// Returns whether this instance has joined the fleet and is connected to the store.
    pub(crate) fn has_joined(&self) -> bool {
        self.tenure().stats().connected && !self.pool().live_instances().is_empty()
    }

    /// Keeps the current term of each role, and returns the last term of each, which may have ended. Handles keep no
    /// lease.
    pub(crate) fn remember_terms(&self, terms: Vec<(String, Option<TermHandle>)>) -> BTreeMap<String, TermHandle> {
        let mut last = self.0.last_terms.lock().unwrap_or_else(PoisonError::into_inner);
        last.extend(terms.into_iter().filter_map(|(role, term)| Some((role, term?))));
        last.clone()
    }

    /// Waits until the service stops.
    pub(crate) async fn wait_stopped(&self) {
        let mut ended = self.0.ended.clone();
        let _ = ended.wait_for(|ended| *ended).await;
    }
}

/// Starts the service: joins the fleet, polls its sessions and serves the API.
///
/// # Errors
/// When the settings are invalid.
///
/// # Panics
/// Outside a tokio runtime.
pub fn start(
    tenure: &Tenure,
    pool: impl FnOnce(PoolBuilder) -> PoolBuilder,
    settings: ServiceSettings,
    listener: TcpListener,
) -> Result<RunningService, ServeError> {
    let (session_cache, counters) = (SessionCache::default(), Arc::new(Counters::default()));
    let client = PollClient::new(settings.address_policy.clone())?;
    let ability_monitor = AbilityMonitor::new(client.clone());
    let poller = Poller {
        session_cache: session_cache.clone(),
        client,
        counters: counters.clone(),
        ability_monitor: ability_monitor.clone(),
        tenure: tenure.clone(),
        defaults: settings.results,
    };
    let (targets, known) = (session_cache.follow(tenure.clone(), settings.discover_every), session_cache.clone());
    let events = FleetEvents::listen(tenure, counters.clone());
    let pool = configure_pool(tenure, pool, &settings)?
        .targets_from(targets)
        .removal_reason(move |id| match known.session(id) {
            Some(session) if session.is_paused => ReleaseReason::Paused,
            _ => ReleaseReason::Removed,
        })
        .discover(COLLECTION)
        .state(poller)
        .run(async |poller, target, lease| {
            poller.work(target.name(), lease).await;
            Ok(())
        })
        .start()?;
    let period = settings.discover_every;
    let housekeeping = Housekeeping::start(tenure, &settings.keys, (settings.ttl, settings.stall_after), period)?;
    let stats_task =
        tokio::spawn(publish_stats(tenure.clone(), counters.clone(), period / STATS_PER_PERIOD)).abort_handle();
    let ability_task = tokio::spawn(ability_monitor.clone().watch(tenure.clone(), pool.clone())).abort_handle();
    let (end, ended) = watch::channel(false);
    let kept = counters.clone();
    let service = Service(Arc::new(ServiceState {
        tenure: tenure.clone(),
        pool: pool.clone(),
        session_cache,
        counters,
        housekeeping: housekeeping.clone(),
        ability_monitor,
        events,
        result_streams: ResultStreams::default(),
        streams: Arc::new(Semaphore::new(MAX_STREAMS)),
        fleet_scans: Semaphore::new(MAX_FLEET_SCANS),
        last_terms: Mutex::default(),
        address_policy: settings.address_policy,
        keys: settings.keys,
        token: settings.token,
        ended,
    }));
    let ends = service.clone();
    let api_task = listener::serve(listener, api::router(service), async move { ends.wait_stopped().await });
    Ok(RunningService {
        tenure: tenure.clone(),
        counters: kept,
        pool,
        housekeeping,
        stats_task,
        ability_task,
        end,
        api_task: tokio::spawn(api_task),
    })
}

/// Checks the settings without a store.
///
/// # Errors
/// When the settings are invalid.
pub fn check(pool: impl FnOnce(PoolBuilder) -> PoolBuilder, settings: &ServiceSettings) -> Result<(), ServeError> {
    let nowhere = Tenure::builder("memory:").unlogged().start()?;
    configure_pool(&nowhere, pool, settings)?.check()?;
    housekeeping::check(&nowhere, &settings.keys, (settings.ttl, settings.stall_after))?;
    Ok(())
}

/// Configures the pool of all sessions.
fn configure_pool(
    tenure: &Tenure,
    pool: impl FnOnce(PoolBuilder) -> PoolBuilder,
    settings: &ServiceSettings,
) -> Result<PoolBuilder, ServeError> {
    if settings.discover_every < MIN_DISCOVER_EVERY {
        return Err(ServeError::DiscoverEvery(settings.discover_every));
    }
    Ok(pool(tenure.pool(POOL))
        .role_prefix(&settings.keys.leader)
        .lease_prefix(&settings.keys.lease)
        .discover_every(settings.discover_every))
}

/// Publishes the statistics of this instance with its heartbeats, for the aggregator.
async fn publish_stats(tenure: Tenure, counters: Arc<Counters>, every: Duration) {
    let mut sent = None;
    loop {
        tokio::time::sleep(every).await;
        let stats = counters.snapshot();
        if sent.replace(stats) != Some(stats) {
            tenure.fleet().describe(STATS_FIELD, &stats.to_record());
        }
    }
}

/// A running instance.
#[derive(Debug)]
pub struct RunningService {
    tenure: Tenure,
    counters: Arc<Counters>,
    pool: Pool,
    housekeeping: Housekeeping,
    stats_task: AbortHandle,
    ability_task: AbortHandle,
    end: watch::Sender<bool>,
    api_task: JoinHandle<()>,
}

impl RunningService {
    /// Hands over all sessions and leaves the fleet. The API answers meanwhile; then streams end.
    ///
    /// # Cancel safety
    /// Sessions are handed over all the same.
    pub async fn stop(self) {
        self.stats_task.abort();
        self.ability_task.abort();
        tokio::join!(self.pool.stop(), self.housekeeping.stop());
        // No further heartbeat will carry the statistics.
        housekeeping::record_final_stats(&self.tenure, &self.counters.snapshot()).await;
        self.end.send_replace(true);
        // Do not wait for clients that still read.
        let _ = tokio::time::timeout(API_DRAIN_TIMEOUT, self.api_task).await;
    }
}
