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
use crate::catalogue::Catalogue;
use crate::counts::Counts;
use crate::events::FleetEvents;
use crate::housekeeping::{self, Housekeeping, TALLY};
use crate::keeping::Defaults;
use crate::keys::Keys;
use crate::listener;
use crate::poll::ability::Ability;
use crate::poll::client::{ClientError, PollClient};
use crate::poll::poller::Poller;
use crate::poll::safety::Allowed;
use crate::poll::supervisor::Supervisor;
use crate::results::Results;

/// The pool of all sessions: their leases are `poll:lease:<id>`.
pub const POOL: &str = "poll";

/// How many may look at everything at a time.
const SURVEYS: usize = 2;

/// How many streams may be read from one instance at a time.
const STREAMS: usize = 2_000;

/// How long answers that are on their way are waited for.
const GOODBYE: Duration = Duration::from_secs(1);

/// How often each instance tells what it has counted in one period of the aggregator: told once in each, some periods would see it twice and others not at
/// all.
const TELLS_PER_PERIOD: u32 = 3;

/// The shortest time after which everything is looked at again.
const SOONEST: Duration = Duration::from_millis(100);

/// How the service is set up.
#[derive(Debug)]
pub struct Settings {
    /// Who may use the API; everybody who can reach it when there is none.
    pub token: Option<ApiToken>,
    /// What may be polled.
    pub allowed: Allowed,
    /// How often sessions and instances are looked for although nothing was heard, and what all have done is added up.
    pub discover_every: Duration,
    /// The ttl of leaderships.
    pub ttl: Duration,
    /// After how long without progress a leader is replaced, if ever.
    pub stall_after: Option<Duration>,
    /// What leases are called.
    pub keys: Keys,
    /// What is kept of results, unless a session says something else.
    pub results: Defaults,
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
    #[error("sessions and instances cannot be looked for every {0:?}; the shortest is {SOONEST:?}")]
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
pub(crate) struct Service(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    tenure: Tenure,
    pool: Pool,
    catalogue: Catalogue,
    counts: Arc<Counts>,
    housekeeping: Housekeeping,
    supervisor: Supervisor,
    events: FleetEvents,
    results: Results,
    streams: Arc<Semaphore>,
    surveys: Semaphore,
    /// The last term of each role here that a reading of the metrics saw.
    last_terms: Mutex<BTreeMap<String, TermHandle>>,
    keys: Keys,
    token: Option<ApiToken>,
    allowed: Allowed,
    ended: watch::Receiver<bool>,
}

impl Service {
    pub(crate) fn tenure(&self) -> &Tenure {
        &self.0.tenure
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.0.pool
    }

    pub(crate) fn catalogue(&self) -> &Catalogue {
        &self.0.catalogue
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.0.counts
    }

    pub(crate) fn housekeeping(&self) -> &Housekeeping {
        &self.0.housekeeping
    }

    pub(crate) fn ability(&self) -> Ability {
        self.0.supervisor.ability()
    }

    pub(crate) fn events(&self) -> &FleetEvents {
        &self.0.events
    }

    pub(crate) fn results(&self) -> &Results {
        &self.0.results
    }

    /// Places for those who read streams.
    pub(crate) fn streams(&self) -> Arc<Semaphore> {
        self.0.streams.clone()
    }

    /// Turns for those who want to know everything.
    pub(crate) fn surveys(&self) -> &Semaphore {
        &self.0.surveys
    }

    /// Whether the API is for this host alone, and without a token.
    pub(crate) fn is_open_to_this_host(&self) -> bool {
        self.0.allowed.near
    }

    /// What may be polled from here.
    pub(crate) fn allowed(&self) -> &Allowed {
        &self.0.allowed
    }

    pub(crate) fn open_streams(&self) -> usize {
        STREAMS - self.0.streams.available_permits()
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.0.keys
    }

    pub(crate) fn token(&self) -> Option<&ApiToken> {
        self.0.token.as_ref()
    }

    /// Whether this instance has joined the fleet, and is connected to the store.
    pub(crate) fn has_joined(&self) -> bool {
        self.tenure().how_it_stands().connected && !self.pool().live_instances().is_empty()
    }

    /// Keeps the current term of each role, and returns the last term of each, which may have ended. Handles keep no lease.
    pub(crate) fn remember_terms(&self, terms: Vec<(String, Option<TermHandle>)>) -> BTreeMap<String, TermHandle> {
        let mut last = self.0.last_terms.lock().unwrap_or_else(PoisonError::into_inner);
        last.extend(terms.into_iter().filter_map(|(role, term)| Some((role, term?))));
        last.clone()
    }

    /// When everything ends.
    pub(crate) async fn ended(&self) {
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
    settings: Settings,
    listener: TcpListener,
) -> Result<Running, ServeError> {
    let (catalogue, counts) = (Catalogue::default(), Arc::new(Counts::default()));
    let client = PollClient::new(settings.allowed.clone())?;
    let supervisor = Supervisor::new(client.clone());
    let poller = Poller {
        catalogue: catalogue.clone(),
        client,
        counts: counts.clone(),
        supervisor: supervisor.clone(),
        tenure: tenure.clone(),
        defaults: settings.results,
    };
    let (targets, known) = (catalogue.follow(tenure.clone(), settings.discover_every), catalogue.clone());
    let events = FleetEvents::listen(tenure, counts.clone());
    let pool = sized(tenure, pool, &settings)?
        .targets_from(targets)
        .removed_because(move |id| match known.session(id) {
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
    let tells = tokio::spawn(tell_fleet(tenure.clone(), counts.clone(), period / TELLS_PER_PERIOD)).abort_handle();
    let watches = tokio::spawn(supervisor.clone().watch(tenure.clone(), pool.clone())).abort_handle();
    let (end, ended) = watch::channel(false);
    let kept = counts.clone();
    let service = Service(Arc::new(Parts {
        tenure: tenure.clone(),
        pool: pool.clone(),
        catalogue,
        counts,
        housekeeping: housekeeping.clone(),
        supervisor,
        events,
        results: Results::default(),
        streams: Arc::new(Semaphore::new(STREAMS)),
        surveys: Semaphore::new(SURVEYS),
        last_terms: Mutex::default(),
        allowed: settings.allowed,
        keys: settings.keys,
        token: settings.token,
        ended,
    }));
    let ends = service.clone();
    let serving = listener::serve(listener, api::router(service), async move { ends.ended().await });
    Ok(Running {
        tenure: tenure.clone(),
        counts: kept,
        pool,
        housekeeping,
        tells,
        watches,
        end,
        serving: tokio::spawn(serving),
    })
}

/// Whether it can be started like this, without a store.
///
/// # Errors
/// When it cannot.
pub fn check(pool: impl FnOnce(PoolBuilder) -> PoolBuilder, settings: &Settings) -> Result<(), ServeError> {
    let nowhere = Tenure::builder("memory:").unlogged().start()?;
    sized(&nowhere, pool, settings)?.check()?;
    housekeeping::check(&nowhere, &settings.keys, (settings.ttl, settings.stall_after))?;
    Ok(())
}

/// The pool of all sessions, with its numbers.
fn sized(
    tenure: &Tenure,
    pool: impl FnOnce(PoolBuilder) -> PoolBuilder,
    settings: &Settings,
) -> Result<PoolBuilder, ServeError> {
    if settings.discover_every < SOONEST {
        return Err(ServeError::DiscoverEvery(settings.discover_every));
    }
    Ok(pool(tenure.pool(POOL))
        .role_prefix(&settings.keys.leader)
        .lease_prefix(&settings.keys.lease)
        .discover_every(settings.discover_every))
}

/// Says with this instance's heartbeats what it has counted, for whoever adds it up.
async fn tell_fleet(tenure: Tenure, counts: Arc<Counts>, every: Duration) {
    let mut told = None;
    loop {
        tokio::time::sleep(every).await;
        let tally = counts.read();
        if told.replace(tally) != Some(tally) {
            tenure.describe(TALLY, &tally.to_string());
        }
    }
}

/// One instance that runs.
#[derive(Debug)]
pub struct Running {
    tenure: Tenure,
    counts: Arc<Counts>,
    pool: Pool,
    housekeeping: Housekeeping,
    tells: AbortHandle,
    watches: AbortHandle,
    end: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Running {
    /// Gives everything away and leaves the fleet. The API answers meanwhile; then streams end.
    ///
    /// # Cancel safety
    /// Sessions are given away all the same.
    pub async fn stop(self) {
        self.tells.abort();
        self.watches.abort();
        tokio::join!(self.pool.stop(), self.housekeeping.stop());
        // Its heartbeats tell nobody any more.
        housekeeping::leave_behind(&self.tenure, &self.counts.read()).await;
        self.end.send_replace(true);
        // Whoever still reads then is left.
        let _ = tokio::time::timeout(GOODBYE, self.serving).await;
    }
}
