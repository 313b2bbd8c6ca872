//! One instance of the polling service: a pool whose targets are sessions, and the API beside it.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use tenure::Tenure;
use tenure::pool::{Pool, PoolBuilder, PoolError};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::{self, ApiToken};
use crate::catalogue::Catalogue;
use crate::counts::Counts;
use crate::poll::client::{ClientError, PollClient};
use crate::poll::poller::Poller;
use crate::poll::safety::Allowed;

/// The pool of all sessions: their leases are `poll:lease:<id>`.
pub const POOL: &str = "poll";

/// How long answers that are on their way are waited for.
const GOODBYE: Duration = Duration::from_secs(1);

/// How the service is set up.
#[derive(Debug)]
pub struct Settings {
    /// Who may use the API; everybody who can reach it when there is none.
    pub token: Option<ApiToken>,
    /// What may be polled.
    pub allowed: Allowed,
    /// How often sessions and instances are looked for although nothing was heard.
    pub discover_every: Duration,
}

/// Why the service cannot be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The pool's numbers do not fit together.
    #[error(transparent)]
    Pool(#[from] PoolError),
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
    token: Option<ApiToken>,
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

    pub(crate) fn token(&self) -> Option<&ApiToken> {
        self.0.token.as_ref()
    }

    /// Whether the store is there, and the fleet knows of us.
    pub(crate) fn is_ready(&self) -> bool {
        self.tenure().how_it_stands().connected && !self.pool().live_instances().is_empty()
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
    let client = PollClient::new(settings.allowed)?;
    let poller = Poller { catalogue: catalogue.clone(), client, counts: counts.clone() };
    let targets = catalogue.follow(tenure.clone(), settings.discover_every);
    let pool = pool(tenure.pool(POOL))
        .discover_every(settings.discover_every)
        .targets_from(targets)
        .discover_sessions()
        .run(move |target, lease| {
            let poller = poller.clone();
            async move { poller.work(target, lease).await }
        })
        .start()?;
    let (end, ended) = watch::channel(false);
    let (tenure, token) = (tenure.clone(), settings.token);
    let service = Service(Arc::new(Parts { tenure, pool: pool.clone(), catalogue, counts, token, ended }));
    let ends = service.clone();
    let serving = axum::serve(listener, api::router(service)).with_graceful_shutdown(async move { ends.ended().await });
    Ok(Running { pool, end, serving: tokio::spawn(serving.into_future()) })
}

/// One instance that runs.
#[derive(Debug)]
pub struct Running {
    pool: Pool,
    end: watch::Sender<bool>,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Running {
    /// Gives everything away and leaves the fleet. The API answers meanwhile; then streams end.
    ///
    /// # Cancel safety
    /// Sessions are given away all the same.
    pub async fn stop(self) {
        self.pool.stop().await;
        self.end.send_replace(true);
        // Whoever still reads then is left.
        let _ = tokio::time::timeout(GOODBYE, self.serving).await;
    }
}
