//! The settings of a [`Tenure`], checked when it starts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::Tenure;
use super::events::WeakEventStreams;
use crate::election::CampaignRegistry;
use crate::event::Event;
use crate::keeper::{self, Callback, EventQueue, EventStreams, Gauges, KeeperConfig, Listeners};
use crate::lease::LeaseSettings;
use crate::name::{InstanceId, NameError};
use crate::store::{self, ErrorKind, Keyspace, Store, StoreError};

/// Builds a [`Tenure`].
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let tenure = Tenure::builder("memory:")
///     .namespace("staging")
///     .name("worker-7")
///     .on_event(|event| println!("{event}"))
///     .connect()
///     .await?;
/// assert!(tenure.instance().as_str().starts_with("worker-7-"));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct TenureBuilder {
    source: StoreSource,
    keyspace: Keyspace,
    /// The first setting that is not valid. Reported by [`start`](Self::start).
    invalid: Option<ConnectError>,
    name: Option<String>,
    instance: Option<InstanceId>,
    assumed_ttl: Duration,
    observer: bool,
    bootstrap: bool,
    durable: bool,
    shares_events: bool,
    unlogged: bool,
    listeners: Vec<Callback>,
}

enum StoreSource {
    Url(String),
    Store(Arc<dyn Store>),
}

impl TenureBuilder {
    pub(super) fn with_url(url: &str) -> Self {
        Self::new(StoreSource::Url(url.to_owned()))
    }

    pub(super) fn with_store(store: Arc<dyn Store>) -> Self {
        Self::new(StoreSource::Store(store))
    }

    fn new(source: StoreSource) -> Self {
        Self {
            source,
            keyspace: Keyspace::default(),
            invalid: None,
            name: None,
            instance: None,
            assumed_ttl: LeaseSettings::default().ttl(),
            observer: false,
            bootstrap: false,
            durable: false,
            shares_events: false,
            unlogged: false,
            listeners: Vec::new(),
        }
    }

    /// Puts `NAME:` before every key, so that deployments can share a store.
    pub fn namespace(self, name: &str) -> Self {
        self.change_keyspace(|keyspace| keyspace.namespace(name))
    }

    /// Sets the prefix of the heartbeat keys. The default is `poll:node:`.
    pub fn node_prefix(self, prefix: &str) -> Self {
        self.change_keyspace(|keyspace| keyspace.node_prefix(prefix))
    }

    /// Sets the prefix of the keys of a [collection of documents](Tenure::documents). The default is
    /// `tenure:doc:<collection>:`.
    pub fn document_prefix(self, collection: &str, prefix: &str) -> Self {
        self.change_keyspace(|keyspace| keyspace.document_prefix(collection, prefix))
    }

    /// Announces the events of this instance's leases and elections to every subscriber of
    /// [announcements](crate::Fleet::announcements), after a short delay.
    pub fn share_events(mut self) -> Self {
        self.shares_events = true;
        self
    }

    /// Keeps this instance's events out of the log (`tracing`). Listeners and streams still get them.
    pub fn unlogged(mut self) -> Self {
        self.unlogged = true;
        self
    }

    fn change_keyspace(mut self, change: impl FnOnce(Keyspace) -> Result<Keyspace, NameError>) -> Self {
        match change(self.keyspace.clone()) {
            Ok(keyspace) => self.keyspace = keyspace,
            Err(error) => drop(self.invalid.get_or_insert(error.into())),
        }
        self
    }

    /// Sets the name that the instance's id begins with. The default is the host's name. An instance restarted under an
    /// explicit name within ten minutes gets its targets back.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Sets the whole id of the instance, instead of its name. It must differ for every start of every process.
    pub fn instance(mut self, instance: InstanceId) -> Self {
        self.instance = Some(instance);
        self
    }

    /// Sets the longest ttl that instances of this fleet use, when it is above 30 s. It is the length of the quarantine
    /// when this instance finds a store without a record of Tenure's and cannot tell a new store from one that lost its
    /// data.
    pub fn longest_ttl(mut self, ttl: Duration) -> Self {
        self.assumed_ttl = self.assumed_ttl.max(ttl);
        self
    }

    /// Makes this instance an observer: it writes nothing when it attaches to the store, starts no quarantine, and
    /// acquires no lease.
    pub fn observer(mut self) -> Self {
        self.observer = true;
        self
    }

    /// An operator's assurance that the server is new: a store without a record of Tenure's is used at once, however
    /// young its server. It is ignored when leases may be held: an instance is subscribed, or this run of the server
    /// has served the namespace.
    pub fn bootstrap(mut self) -> Self {
        self.bootstrap = true;
        self
    }

    /// An operator's assurance that a restart of the store loses no data: the restart starts no quarantine. Proof of a
    /// loss still does, and so does a restart seen by an instance without this setting.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Calls `listener` for every event, in order. All listeners of a `Tenure` share one thread. A slow one delays the
    /// others, and events are dropped beyond 4 096 that wait. It delays no lease, no log line and no
    /// [stream](Tenure::events).
    pub fn on_event(mut self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.listeners.push(Box::new(listener));
        self
    }

    /// Starts the keeper and waits until it is attached to the store.
    ///
    /// # Errors
    /// When a setting or the URL is not valid, or the first attempt to attach to the store fails.
    ///
    /// # Cancel safety
    /// Safe: nothing is left behind.
    pub async fn connect(self) -> Result<Tenure, ConnectError> {
        let tenure = self.start()?;
        tenure.ready().await?;
        Ok(tenure)
    }

    /// Starts the keeper without waiting for the store. The keeper retries until it is attached.
    ///
    /// # Errors
    /// When a setting or the URL is not valid, or this process cannot start a thread.
    pub fn start(self) -> Result<Tenure, ConnectError> {
        if let Some(invalid) = self.invalid {
            return Err(invalid);
        }
        let is_named = self.name.is_some();
        let instance = match (self.name, self.instance) {
            (Some(_), Some(_)) => return Err(ConnectError::NameAndInstance),
            (Some(name), None) => generate_id(&name)?,
            (None, Some(instance)) => instance,
            (None, None) => crate::instance::id_for_this_process(),
        };
        let store = match self.source {
            StoreSource::Url(url) => store::open(&url, &self.keyspace)?,
            StoreSource::Store(store) => store,
        };
        let gauges = Arc::new(Gauges { unlogged: self.unlogged.into(), ..Gauges::default() });
        let (streams, listeners) = (EventStreams::open(), Listeners::new(gauges.clone()));
        for callback in self.listeners {
            listeners.add(callback).map_err(no_thread)?;
        }
        let weak = WeakEventStreams::of(&streams);
        let config = KeeperConfig {
            store,
            instance,
            assumed_ttl: self.assumed_ttl,
            observer: self.observer,
            bootstrap: self.bootstrap,
            durable: self.durable,
            shares_events: self.shares_events,
            event_queue: EventQueue::open(listeners.clone(), streams, gauges.clone()).map_err(no_thread)?,
            listeners,
            gauges,
        };
        let keeper = keeper::start(config).map_err(no_thread)?;
        Ok(Tenure {
            keeper,
            streams: weak,
            settings: Arc::default(),
            elections: CampaignRegistry::default(),
            publication: Arc::default(),
            keyspace: Arc::new(self.keyspace),
            is_named,
        })
    }
}

fn no_thread(error: std::io::Error) -> ConnectError {
    StoreError::new(ErrorKind::Unavailable, format!("cannot start the keeper's thread: {error}")).into()
}

/// An id for this process under a name.
fn generate_id(name: &str) -> Result<InstanceId, NameError> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    InstanceId::generate(name, u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), fastrand::u32(..))
}

/// Why a [`Tenure`] was not started or not attached to its store.
///
/// ```
/// use tenure::{ConnectError, Tenure};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let error = Tenure::builder("memory:").namespace("my app").connect().await.unwrap_err();
/// assert!(matches!(error, ConnectError::Name(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A name or a prefix is not valid. A retry will not help.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Both a name and a whole id were given.
    #[error("cannot give an instance a name and a whole id: use `name` or `instance`")]
    NameAndInstance,
    /// The URL is not valid, or the store could not be reached or refused. [`StoreError::is_retryable`] says whether a
    /// retry may help.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ConnectError {
    /// The error of the store, if that is the cause.
    pub fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Store(error) => Some(error),
            Self::Name(_) | Self::NameAndInstance => None,
        }
    }

    /// Whether another attempt may succeed although nothing is reconfigured.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_retryable())
    }
}

impl fmt::Debug for TenureBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TenureBuilder")
    }
}
