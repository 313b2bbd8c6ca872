//! The front end: [`Tenure`] and the types a program uses.

mod lists;
mod request;
mod sessions;
mod term;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{broadcast, oneshot};

pub use request::LeaseRequest;
pub use sessions::SessionError;
pub use term::{Lost, PublishError, RequireError, Term, TermHandle, TermInfo, Work};

use crate::election::CampaignRegistry;
use crate::event::{Event, EventKind};
use crate::fleet::InstanceRecord;
use crate::histogram::HistogramSnapshot;
use crate::keeper::{
    self, Command, ConnectionState, EventQueue, EventStreams, Gauges, KeeperConfig, KeeperHandle, Listener, StoreCall,
};
use crate::lease::LeaseSettings;
use crate::name::{Group, InstanceId, LeaseName, NameError};
use crate::store::{
    self, EntryId, ErrorKind, Generation, Keyspace, LeaseReport, LogEntry, NamespaceReport, Outcome, PublishedRecord,
    Reply, Request, Store, StoreError, TermNote,
};
use crate::time::{LeaseClock, Moment, ServerTime, SystemClock};

/// Leases on one store, for one process.
///
/// A background thread, the keeper, renews every lease acquired here. Clones share the keeper. It ends when the last
/// clone and the last [`Term`] are dropped.
///
/// ```
/// use tenure::Tenure;
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// # async fn build_report(token: tenure::Token) -> String { format!("report {token}") }
/// let tenure = Tenure::connect("memory:").await?; // or "redis://localhost", or "sqlite:jobs.db"
/// let lease = tenure.lease("nightly-report").acquire().await?;
/// let report = lease.run(build_report(lease.token())).await?;
/// lease.release().await?;
/// # assert!(report.starts_with("report "));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Tenure {
    keeper: Arc<KeeperHandle>,
    streams: WeakEventStreams,
    /// Shared between leases, because most have the same settings.
    settings: Arc<Mutex<Arc<LeaseSettings>>>,
    elections: CampaignRegistry,
    /// The record this instance publishes to the fleet, once it has joined.
    record: Arc<Mutex<Option<InstanceRecord>>>,
    keyspace: Arc<Keyspace>,
    /// Whether the program gave this instance its name.
    is_named: bool,
}

/// The event streams. They end with the keeper.
#[derive(Clone)]
struct WeakEventStreams {
    all: broadcast::WeakSender<Event>,
    notable: broadcast::WeakSender<Event>,
}

impl Tenure {
    /// Opens the store at a [URL](store::open()) and attaches to it.
    ///
    /// # Errors
    /// When the URL is not valid, or the instance cannot attach to the store. To start while the store is down, use
    /// [`TenureBuilder::start`].
    ///
    /// # Cancel safety
    /// Safe: nothing is left behind.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::builder(url).connect().await
    }

    /// Builds a [`Tenure`] with settings other than the defaults.
    pub fn builder(url: &str) -> TenureBuilder {
        TenureBuilder::new(StoreSource::Url(url.to_owned()))
    }

    /// Builds a [`Tenure`] on a caller-supplied store.
    pub fn with_store(store: Arc<dyn Store>) -> TenureBuilder {
        TenureBuilder::new(StoreSource::Store(store))
    }

    /// Requests the lease with this name. Its key is `lease:<name>`.
    pub fn lease(&self, name: &str) -> LeaseRequest {
        LeaseRequest::new(self.clone(), LeaseName::lease(name))
    }

    /// Requests the lease with this full name: the lease of a role, of a target, or one with its own prefix.
    pub fn lease_named(&self, name: LeaseName) -> LeaseRequest {
        LeaseRequest::new(self.clone(), Ok(name))
    }

    /// The id of this instance, as the store and other instances see it.
    pub fn instance(&self) -> &InstanceId {
        &self.keeper.instance
    }

    /// The location of the store, without secrets.
    pub fn location(&self) -> &str {
        &self.keeper.location
    }

    /// Waits for the result of the first attempt to attach to the store, after [`TenureBuilder::start`]. Whatever the
    /// result, the keeper keeps trying.
    ///
    /// # Errors
    /// Why the instance cannot attach now. If the error is not [retryable](StoreError::is_retryable), an operator must
    /// fix the cause.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn ready(&self) -> Result<(), StoreError> {
        let mut connection_state = self.keeper.connection_state.clone();
        let over = || StoreError::new(ErrorKind::Unreachable, "cannot use the store: the keeper has ended");
        match &*connection_state
            .wait_for(|connection_state| *connection_state != ConnectionState::Pending)
            .await
            .map_err(|_| over())?
        {
            ConnectionState::Lost(error) => Err(error.clone()),
            ConnectionState::Closed => Err(over()),
            ConnectionState::Pending | ConnectionState::Attached => Ok(()),
        }
    }

    /// The key of a lease in the store, namespace included.
    pub fn lease_key(&self, name: &LeaseName) -> String {
        format!("{}{}", self.keyspace.prefix(), name.key())
    }

    /// Reads a lease: its holder, how long it is held, and its last term. While the lease is held, the last term is the
    /// current one.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn inspect(&self, name: &LeaseName) -> Result<LeaseReport, StoreError> {
        match self.call(Request::Inspect { name: name.clone() }).await? {
            Reply::Lease(report) => Ok(report),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Reads the state of the namespace: whether it is in quarantine, and which ttls are reliable.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn inspect_namespace(&self) -> Result<NamespaceReport, StoreError> {
        match self.call(Request::InspectNamespace).await? {
            Reply::Namespace(report) => Ok(report),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Ends a [quarantine](store::Quarantine) on an operator's assurance that no earlier holder is alive. Returns
    /// whether it did: `false` when the namespace has another generation by now.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request. The quarantine may have ended all the same; a retry is
    /// safe.
    ///
    /// # Cancel safety
    /// The quarantine may or may not have ended.
    pub async fn reopen(&self, generation: Generation) -> Result<bool, StoreError> {
        match self.call(Request::Reopen { generation }).await? {
            Reply::Done => Ok(true),
            Reply::NotAttached => Ok(false),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Reads the record that a holder last [published](TermHandle::publish) beside a lease.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn read(&self, name: &LeaseName, record: &str) -> Result<Option<PublishedRecord>, StoreError> {
        match self.call(Request::Read { name: name.clone(), record: record.to_owned() }).await? {
            Reply::Record(published) => Ok(published),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Reads entries that holders [appended](TermHandle::append) to a log beside a lease, oldest first: the latest
    /// `limit` entries, or the first `limit` entries after `after`.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn recent(
        &self,
        name: &LeaseName,
        log: &str,
        after: Option<EntryId>,
        limit: usize,
    ) -> Result<Vec<LogEntry>, StoreError> {
        let (name, log) = (name.clone(), log.to_owned());
        match self.call(Request::ReadLog { name, log, after, limit }).await? {
            Reply::LogEntries(entries) => Ok(entries),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Reads the notes about the latest terms of all leases, latest last, at most `limit` notes. The keeper writes one
    /// note when a term begins and one when it ends, each after a short delay.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn terms(&self, limit: usize) -> Result<Vec<TermNote>, StoreError> {
        match self.call(Request::Notes { limit }).await? {
            Reply::Notes(notes) => Ok(notes),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Subscribes to all events from now on.
    pub fn events(&self) -> EventStream {
        let stream = self.streams.all.upgrade();
        EventStream::new(stream, self.keeper.gauges.clone(), |gauges| &gauges.all_listeners)
    }

    /// Subscribes to all events except the [routine](EventKind::is_routine) ones. Routine events without a subscriber
    /// cost almost nothing.
    pub fn notable_events(&self) -> EventStream {
        let stream = self.streams.notable.upgrade();
        EventStream::new(stream, self.keeper.gauges.clone(), |gauges| &gauges.notable_listeners)
    }

    /// Statistics of the keeper.
    pub fn stats(&self) -> Stats {
        let gauges = &self.keeper.gauges;
        Stats {
            connected: *self.keeper.connection_state.borrow() == ConnectionState::Attached,
            held: gauges.held.load(Ordering::Relaxed),
            lag: gauges.lag.read(SystemClock.now()),
            events_dropped: gauges.events_dropped.load(Ordering::Relaxed),
            notes_dropped: gauges.notes_dropped.load(Ordering::Relaxed),
            renewals: gauges.renewals.snapshot(),
        }
    }

    /// Stops all work, releases every lease, and ends the keeper. Waiters are refused. The keeper does not wait for
    /// work that still runs when its lease has expired. While the store cannot be reached, it retries until every lease
    /// has expired; a program that cannot wait that long adds its own timeout.
    ///
    /// # Cancel safety
    /// Safe: it continues in the background.
    pub async fn shutdown(&self) {
        if self.keeper.is_forked() {
            return;
        }
        self.keeper.send(Command::ShutDown);
        let mut connection_state = self.keeper.connection_state.clone();
        // A keeper thread that ended without reporting it is closed, too.
        let _ = connection_state.wait_for(|connection_state| *connection_state == ConnectionState::Closed).await;
    }

    pub(crate) fn keeper(&self) -> &Arc<KeeperHandle> {
        &self.keeper
    }

    /// The campaigns running on this `Tenure`.
    pub(crate) fn elections(&self) -> &CampaignRegistry {
        &self.elections
    }

    /// Returns these settings, shared with the previous caller if they are equal.
    pub(crate) fn share_settings(&self, settings: LeaseSettings) -> Arc<LeaseSettings> {
        let mut last = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        if **last != settings {
            *last = Arc::new(settings);
        }
        last.clone()
    }

    pub(crate) async fn call(&self, request: Request) -> Result<Reply, StoreError> {
        self.call_with_priority(request, false).await
    }

    /// Like [`call`](Self::call), for requests that work waits for: they go before the requests of observers.
    pub(crate) async fn call_for_work(&self, request: Request) -> Result<Reply, StoreError> {
        self.call_with_priority(request, true).await
    }

    async fn call_with_priority(&self, request: Request, is_work: bool) -> Result<Reply, StoreError> {
        match call_store_with_priority(&self.keeper, request, LeaseSettings::default().attempt_timeout(), is_work).await
        {
            Outcome::Answered(reply) => Ok(reply),
            Outcome::Failed(error) | Outcome::Unknown(error) => Err(error),
        }
    }

    /// Sends a request to the store without waiting for the reply.
    pub(crate) fn call_detached(&self, request: Request) {
        let (reply, _) = oneshot::channel();
        let timeout = LeaseSettings::default().attempt_timeout();
        self.keeper.send(Command::Call(StoreCall { request, timeout, is_work: true, reply }));
    }

    /// Reports an event that belongs to no lease to the logs, streams and listeners of this process.
    pub fn emit(&self, kind: EventKind) {
        self.keeper.send(Command::Emit(Event { instance: self.instance().clone(), lease: None, token: None, kind }));
    }

    /// Adds an annotation about this instance to its heartbeats. Neither key nor value may contain whitespace or an
    /// equals sign; such an annotation is ignored.
    pub fn describe(&self, key: &str, value: &str) {
        let is_word =
            |text: &str| !text.is_empty() && !text.contains(|letter: char| letter.is_whitespace() || letter == '=');
        if is_word(key) && is_word(value) {
            let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(record) = record.as_mut() {
                record.annotations.insert(key.to_owned(), value.to_owned());
                self.join_fleet(record);
            }
        }
    }

    /// Whether the program gave this instance its name. Then it keeps the name after a restart.
    pub(crate) fn is_named(&self) -> bool {
        self.is_named
    }

    /// Changes the record this instance publishes to the fleet. Joins the fleet if needed.
    pub(crate) fn update_record(&self, change: impl FnOnce(&mut InstanceRecord)) {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let record = record.get_or_insert_with(|| InstanceRecord {
            is_named: self.is_named,
            ..InstanceRecord::new(self.instance().name())
        });
        change(record);
        self.join_fleet(record);
    }

    /// Removes this instance from a pool. It leaves the fleet with its last pool.
    pub(crate) async fn leave_pool(&self, pool: &str) {
        {
            let mut said = self.record.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(record) = said.as_mut()
                && record.remove_pool(pool)
            {
                self.join_fleet(record);
                return;
            }
            *said = None;
            self.leave_fleet();
        }
        // Sent again, because this request can be awaited.
        let (group, instance) = (Group::FLEET, self.instance().clone());
        let _ = self.call(Request::Leave { group, instance }).await;
    }

    /// The local time at which the store's clock shows `server`, as far as known.
    pub(crate) fn local_moment(&self, server: ServerTime) -> Moment {
        keeper::local_moment(server, self.keeper.gauges.server_offset.load(Ordering::Relaxed))
    }

    pub(crate) fn unexpected_reply(&self, reply: &Reply) -> StoreError {
        let message = format!("{}: unexpected reply: {reply:?}", self.location());
        StoreError::new(ErrorKind::Corrupt, message)
    }
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tenure({} on {})", self.keeper.instance, self.keeper.location)
    }
}

/// Sends a request that work waits for over the keeper's connection.
pub(crate) async fn call_store(keeper: &KeeperHandle, request: Request, timeout: Duration) -> Outcome {
    call_store_with_priority(keeper, request, timeout, true).await
}

async fn call_store_with_priority(
    keeper: &KeeperHandle,
    request: Request,
    timeout: Duration,
    is_work: bool,
) -> Outcome {
    let (reply, answer) = oneshot::channel();
    if keeper.is_forked() {
        let message = "cannot use the connection in a forked process: it belongs to the parent";
        return Outcome::Failed(StoreError::new(ErrorKind::Unreachable, message));
    }
    keeper.send(Command::Call(StoreCall { request, timeout, is_work, reply }));
    answer.await.unwrap_or_else(|_| {
        if *keeper.connection_state.borrow() == ConnectionState::Closed {
            let message = "cannot send the request: tenure was shut down";
            return Outcome::Failed(StoreError::new(ErrorKind::Configuration, message));
        }
        let message = format!("{}: the connection was lost before the reply", keeper.location);
        Outcome::Unknown(StoreError::new(ErrorKind::Unreachable, message))
    })
}

/// Statistics of a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Whether the keeper is attached to the store.
    pub connected: bool,
    /// Number of leases held.
    pub held: u64,
    /// The longest delay of any keeper action in the last 30 s.
    pub lag: Duration,
    /// Number of events dropped because their listeners were too slow.
    pub events_dropped: u64,
    /// Number of notes about terms dropped: there were too many, or the store could not be reached for too long.
    pub notes_dropped: u64,
    /// Time from sending a renewal to its reply.
    pub renewals: HistogramSnapshot,
}

/// A stream of events, in order.
#[derive(Debug)]
pub struct EventStream {
    events: Option<broadcast::Receiver<Event>>,
    gauges: Arc<Gauges>,
    counter: fn(&Gauges) -> &AtomicU64,
}

impl Drop for EventStream {
    fn drop(&mut self) {
        (self.counter)(&self.gauges).fetch_sub(1, Ordering::Relaxed);
    }
}

impl EventStream {
    fn new(stream: Option<broadcast::Sender<Event>>, gauges: Arc<Gauges>, counter: fn(&Gauges) -> &AtomicU64) -> Self {
        counter(&gauges).fetch_add(1, Ordering::Relaxed);
        Self { events: stream.map(|stream| stream.subscribe()), gauges, counter }
    }

    /// Returns the next event, or `None` when there will be no more. A slow reader misses events.
    ///
    /// # Cancel safety
    /// Safe: no event is lost.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            match self.events.as_mut()?.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

/// Builds a [`Tenure`].
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let tenure = Tenure::builder("memory:")
///     .namespace("staging")?
///     .name("worker-7")?
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
    instance: Option<InstanceId>,
    assumed_ttl: Duration,
    observer: bool,
    bootstrap: bool,
    durable: bool,
    is_named: bool,
    shares_events: bool,
    unlogged: bool,
    listeners: Vec<Listener>,
}

enum StoreSource {
    Url(String),
    Store(Arc<dyn Store>),
}

impl TenureBuilder {
    fn new(source: StoreSource) -> Self {
        Self {
            source,
            keyspace: Keyspace::default(),
            instance: None,
            assumed_ttl: LeaseSettings::default().ttl(),
            observer: false,
            bootstrap: false,
            durable: false,
            is_named: false,
            shares_events: false,
            unlogged: false,
            listeners: Vec::new(),
        }
    }

    /// Puts `NAME:` before every key, so that deployments can share a store.
    ///
    /// # Errors
    /// When the name is not valid.
    pub fn namespace(mut self, name: &str) -> Result<Self, NameError> {
        self.keyspace = self.keyspace.namespace(name)?;
        Ok(self)
    }

    /// Sets the prefix of the heartbeat keys. The default is `poll:node:`.
    ///
    /// # Errors
    /// When the prefix is not valid.
    pub fn node_prefix(mut self, prefix: &str) -> Result<Self, NameError> {
        self.keyspace = self.keyspace.node_prefix(prefix)?;
        Ok(self)
    }

    /// Sets the prefix of the session keys. The default is `session:`.
    ///
    /// # Errors
    /// When the prefix is not valid.
    pub fn session_prefix(mut self, prefix: &str) -> Result<Self, NameError> {
        self.keyspace = self.keyspace.session_prefix(prefix)?;
        Ok(self)
    }

    /// Announces the events of this instance's leases and elections to every subscriber of
    /// [announcements](Tenure::announcements), after a short delay.
    pub fn share_events(mut self) -> Self {
        self.shares_events = true;
        self
    }

    /// Keeps this instance's events out of the log (`tracing`). Listeners and streams still get them.
    pub fn unlogged(mut self) -> Self {
        self.unlogged = true;
        self
    }

    /// Sets the name that the instance's id begins with. The default is the host's name. An instance restarted under an
    /// explicit name within ten minutes gets its targets back.
    ///
    /// # Errors
    /// When the name is not valid.
    pub fn name(mut self, name: &str) -> Result<Self, NameError> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.instance = Some(InstanceId::generate(name, nanos, fastrand::u32(..))?);
        self.is_named = true;
        Ok(self)
    }

    /// Sets the instance's id. It must differ for every start of every process.
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

    /// Calls `listener` for every event, in order, on its own thread. A slow listener misses events but delays no
    /// lease.
    pub fn on_event(mut self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.listeners.push(Box::new(listener));
        self
    }

    /// Starts the keeper and waits until it is attached to the store.
    ///
    /// # Errors
    /// When the URL is not valid, or the first attempt to attach to the store fails.
    ///
    /// # Cancel safety
    /// Safe: nothing is left behind.
    pub async fn connect(self) -> Result<Tenure, StoreError> {
        let tenure = self.start()?;
        tenure.ready().await?;
        Ok(tenure)
    }

    /// Starts the keeper without waiting for the store. The keeper retries until it is attached.
    ///
    /// # Errors
    /// When the URL is not valid, or this process cannot start a thread.
    pub fn start(self) -> Result<Tenure, StoreError> {
        let store = match self.source {
            StoreSource::Url(url) => store::open(&url, &self.keyspace)?,
            StoreSource::Store(store) => store,
        };
        let failed = |error: std::io::Error| {
            StoreError::new(ErrorKind::Unavailable, format!("cannot start the keeper's thread: {error}"))
        };
        let gauges = Arc::new(Gauges { unlogged: self.unlogged.into(), ..Gauges::default() });
        let streams = EventStreams::open();
        let weak = WeakEventStreams { all: streams.all.downgrade(), notable: streams.notable.downgrade() };
        let config = KeeperConfig {
            store,
            instance: self.instance.unwrap_or_else(InstanceId::for_this_process),
            assumed_ttl: self.assumed_ttl,
            observer: self.observer,
            bootstrap: self.bootstrap,
            durable: self.durable,
            shares_events: self.shares_events,
            event_queue: EventQueue::open(self.listeners, streams, gauges.clone()).map_err(failed)?,
            gauges,
        };
        let keeper = keeper::start(config).map_err(failed)?;
        Ok(Tenure {
            keeper,
            streams: weak,
            settings: Arc::default(),
            elections: CampaignRegistry::default(),
            record: Arc::default(),
            keyspace: Arc::new(self.keyspace),
            is_named: self.is_named,
        })
    }
}

impl fmt::Debug for TenureBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TenureBuilder")
    }
}
