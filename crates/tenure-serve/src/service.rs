//! One instance of the polling service: a pool whose targets are sessions, and the API beside it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::election::ElectionError;
use tenure::lease::ReleaseReason;
use tenure::pool::{Pool, PoolBuilder, PoolError};
use tenure::store::StoreError;
use tenure::{Tenure, TermHandle};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinHandle};

use crate::api::{self, ApiToken};
use crate::counters::Counters;
use crate::events::FleetEvents;
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

/// The pool of all sessions: their leases are `poll:lease:<id>`.
pub const POOL: &str = "poll";

/// How many may look at everything at a time.
const MAX_FLEET_SCANS: usize = 2;

/// How many streams may be read from one instance at a time.
const MAX_STREAMS: usize = 2_000;

/// How long answers that are on their way are waited for.
const API_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// How often each instance tells what it has counted in one period of the aggregator: told once in each, some periods would see it twice and others not at
/// all.
const STATS_PER_PERIOD: u32 = 3;

/// The shortest time after which everything is looked at again.
const MIN_DISCOVER_EVERY: Duration = Duration::from_millis(100);

/// How the service is set up.
#[derive(Debug)]
pub struct ServiceSettings {
    /// Who may use the API; everybody who can reach it when there is none.
    pub token: Option<ApiToken>,
    /// What may be polled.
    pub address_policy: AddressPolicy,
    /// How often sessions and instances are looked for although nothing was heard, and what all have done is added up.
    pub discover_every: Duration,
    /// The ttl of leaderships.
    pub ttl: Duration,
    /// After how long without progress a leader is replaced, if ever.
    pub stall_after: Option<Duration>,
    /// What leases are called.
    pub keys: KeyPrefixes,
    /// What is kept of results, unless a session says something else.
    pub results: ResultSettings,
}

/// Why the service cannot be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The pool's numbers do not fit together.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The numbers of the elections do not fit together.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// Everything would be looked at all the time.
    #[error("sessions and instances cannot be looked for every {0:?}; the shortest is {MIN_DISCOVER_EVERY:?}")]
    DiscoverEvery(Duration),
    /// Nothing can be kept in memory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There can be no client.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// One instance, as the API knows it. Clones are the same.
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
    /// The last term of each role here that a reading of the metrics saw.
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

    /// Places for those who read streams.
    pub(crate) fn streams(&self) -> Arc<Semaphore> {
        self.0.streams.clone()
    }

    /// Turns for those who want to know everything.
    pub(crate) fn fleet_scans(&self) -> &Semaphore {
        &self.0.fleet_scans
    }

    /// Whether the API is for this host alone, and without a token.
    pub(crate) fn is_loopback_only(&self) -> bool {
        self.0.address_policy.allow_private
    }

    /// What may be polled from here.
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

    /// Whether this instance has joined the fleet, and is connected to the store.
    pub(crate) fn has_joined(&self) -> bool {
        self.tenure().stats().connected && !self.pool().live_instances().is_empty()
    }

    /// Keeps the current term of each role, and returns the last term of each, which may have ended. Handles keep no lease.
    pub(crate) fn remember_terms(&self, terms: Vec<(String, Option<TermHandle>)>) -> BTreeMap<String, TermHandle> {
        let mut last = self.0.last_terms.lock().unwrap_or_else(PoisonError::into_inner);
        last.extend(terms.into_iter().filter_map(|(role, term)| Some((role, term?))));
        last.clone()
    }

    /// When everything ends.
    pub(crate) async fn wait_stopped(&self) {
        let mut ended = self.0.ended.clone();
        let _ = ended.wait_for(|ended| *ended).await;
    }
}

/// Starts: joins the fleet, polls what it gets, and answers.
///
/// # Errors
/// When it cannot be started like this.
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
        .discover_sessions()
        .run(move |target, lease| {
            let poller = poller.clone();
            async move { poller.work(target, lease).await }
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

/// Whether it can be started like this, without a store.
///
/// # Errors
/// When it cannot.
pub fn check(pool: impl FnOnce(PoolBuilder) -> PoolBuilder, settings: &ServiceSettings) -> Result<(), ServeError> {
    let nowhere = Tenure::builder("memory:").unlogged().start()?;
    configure_pool(&nowhere, pool, settings)?.check()?;
    housekeeping::check(&nowhere, &settings.keys, (settings.ttl, settings.stall_after))?;
    Ok(())
}

/// The pool of all sessions, with its numbers.
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

/// Says with this instance's heartbeats what it has counted, for whoever adds it up.
async fn publish_stats(tenure: Tenure, counters: Arc<Counters>, every: Duration) {
    let mut sent = None;
    loop {
        tokio::time::sleep(every).await;
        let stats = counters.snapshot();
        if sent.replace(stats) != Some(stats) {
            tenure.describe(STATS_FIELD, &stats.to_string());
        }
    }
}

/// One instance that runs.
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
    /// Gives everything away and leaves the fleet. The API answers meanwhile; then streams end.
    ///
    /// # Cancel safety
    /// Sessions are given away all the same.
    pub async fn stop(self) {
        self.stats_task.abort();
        self.ability_task.abort();
        tokio::join!(self.pool.stop(), self.housekeeping.stop());
        // Its heartbeats tell nobody any more.
        housekeeping::record_final_stats(&self.tenure, &self.counters.snapshot()).await;
        self.end.send_replace(true);
        // Whoever still reads then is left.
        let _ = tokio::time::timeout(API_DRAIN_TIMEOUT, self.api_task).await;
    }
}
