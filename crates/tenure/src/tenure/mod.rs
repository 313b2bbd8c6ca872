//! The front door: what a program uses.

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
/// Behind it is a thread that keeps every lease acquired here. Clones share it; when the last clone, and the last
/// [`Term`], is dropped, it ends.
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
    /// Most leases have the same settings; they share them.
    settings: Arc<Mutex<Arc<LeaseSettings>>>,
    elections: CampaignRegistry,
    /// What this instance says about itself to the fleet, once it has joined.
    record: Arc<Mutex<Option<InstanceRecord>>>,
    keyspace: Arc<Keyspace>,
    /// Whether this instance was given its name.
    is_named: bool,
}

/// Streams of events, which end with the keeper.
#[derive(Clone)]
struct WeakEventStreams {
    all: broadcast::WeakSender<Event>,
    notable: broadcast::WeakSender<Event>,
}

impl Tenure {
    /// Opens the store at a [URL](store::open()) and enters it.
    ///
    /// # Errors
    /// When the URL is not one, or the store cannot be entered. To start while the store is down, use
    /// [`TenureBuilder::start`].
    ///
    /// # Cancel safety
    /// Safe: nothing is kept.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::builder(url).connect().await
    }

    /// A [`Tenure`] with something other than the defaults.
    pub fn builder(url: &str) -> TenureBuilder {
        TenureBuilder::new(StoreSource::Url(url.to_owned()))
    }

    /// A [`Tenure`] on a store of one's own.
    pub fn with_store(store: Arc<dyn Store>) -> TenureBuilder {
        TenureBuilder::new(StoreSource::Store(store))
    }

    /// A lease by this name, to be acquired. Its key is `lease:<name>`.
    pub fn lease(&self, name: &str) -> LeaseRequest {
        LeaseRequest::new(self.clone(), LeaseName::lease(name))
    }

    /// A lease by this name, to be acquired: that of a role, of a target, or one with a prefix of its own.
    pub fn lease_named(&self, name: LeaseName) -> LeaseRequest {
        LeaseRequest::new(self.clone(), Ok(name))
    }

    /// Who this process is, to the store and to others.
    pub fn instance(&self) -> &InstanceId {
        &self.keeper.instance
    }

    /// Where the store is, without secrets.
    pub fn location(&self) -> &str {
        &self.keeper.location
    }

    /// Waits until it is known whether the store can be entered, after [`TenureBuilder::start`]. Whatever comes of it, it goes on being tried.
    ///
    /// # Errors
    /// Why it cannot be entered now. If [waiting](StoreError::is_retryable) does not mend that, somebody has to.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn ready(&self) -> Result<(), StoreError> {
        let mut connection_state = self.keeper.connection_state.clone();
        let over = || StoreError::new(ErrorKind::Unreachable, "the keeper has ended");
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

    /// What is known about a lease: who has it and until when, and its last term, which is the present one while somebody
    /// has it.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn inspect(&self, name: &LeaseName) -> Result<LeaseReport, StoreError> {
        match self.call(Request::Inspect { name: name.clone() }).await? {
            Reply::Lease(report) => Ok(report),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// What is known about the namespace: whether there is a quarantine, and which ttls can be relied on.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn inspect_namespace(&self) -> Result<NamespaceReport, StoreError> {
        match self.call(Request::InspectNamespace).await? {
            Reply::Namespace(report) => Ok(report),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Ends a [quarantine](store::Quarantine) by an operator's word that no holder from before is alive. Returns whether it
    /// did: not when the namespace is of another generation by now.
    ///
    /// # Errors
    /// When the store cannot be asked. The quarantine may have been ended all the same; asking again is safe.
    ///
    /// # Cancel safety
    /// It may or may not be ended.
    pub async fn reopen(&self, generation: Generation) -> Result<bool, StoreError> {
        match self.call(Request::Reopen { generation }).await? {
            Reply::Done => Ok(true),
            Reply::NotAttached => Ok(false),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// What was last [published](TermHandle::publish) beside a lease, by whoever held it then.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn read(&self, name: &LeaseName, record: &str) -> Result<Option<PublishedRecord>, StoreError> {
        match self.call(Request::Read { name: name.clone(), record: record.to_owned() }).await? {
            Reply::Record(published) => Ok(published),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// What was [added](TermHandle::append) to a log beside a lease, the oldest first: the latest so many, or the first so many after one that
    /// is known.
    ///
    /// # Errors
    /// When the store cannot be asked.
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

    /// What was written down about the latest terms of every lease, the latest last: one note when a term begins and one
    /// when it ends, each a moment later, and at most so many notes.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn terms(&self, limit: usize) -> Result<Vec<TermNote>, StoreError> {
        match self.call(Request::Notes { limit }).await? {
            Reply::Notes(notes) => Ok(notes),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Everything that happens from now on.
    pub fn events(&self) -> EventStream {
        let stream = self.streams.all.upgrade();
        EventStream::new(stream, self.keeper.gauges.clone(), |gauges| &gauges.all_listeners)
    }

    /// The same without [the routine](EventKind::is_routine), which costs next to nothing then.
    pub fn notable_events(&self) -> EventStream {
        let stream = self.streams.notable.upgrade();
        EventStream::new(stream, self.keeper.gauges.clone(), |gauges| &gauges.notable_listeners)
    }

    /// Numbers about the keeper.
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

    /// Stops all work, lets go of every lease, and ends the keeper. Whoever waits for a lease is refused. Work that is still
    /// there when its lease has run out is not waited for. While the store cannot be reached it goes on trying, until
    /// every lease has run out; a program that cannot wait that long puts a time-out around it.
    ///
    /// # Cancel safety
    /// Safe: it goes on without anybody waiting.
    pub async fn shutdown(&self) {
        if self.keeper.is_forked() {
            return;
        }
        self.keeper.send(Command::ShutDown);
        let mut connection_state = self.keeper.connection_state.clone();
        // A keeper that has ended without a word is over, too.
        let _ = connection_state.wait_for(|connection_state| *connection_state == ConnectionState::Closed).await;
    }

    pub(crate) fn keeper(&self) -> &Arc<KeeperHandle> {
        &self.keeper
    }

    /// The elections that are started on this.
    pub(crate) fn elections(&self) -> &CampaignRegistry {
        &self.elections
    }

    /// These settings, shared with whoever used the same last.
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

    /// The same for work that waits for it: it is not behind those who only look on.
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

    /// Tells the store something, without waiting for an answer.
    pub(crate) fn call_detached(&self, request: Request) {
        let (reply, _) = oneshot::channel();
        let timeout = LeaseSettings::default().attempt_timeout();
        self.keeper.send(Command::Call(StoreCall { request, timeout, is_work: true, reply }));
    }

    /// Tells logs, streams and listeners of this process that something happened that is no lease's.
    pub fn emit(&self, kind: EventKind) {
        self.keeper.send(Command::Emit(Event { instance: self.instance().clone(), lease: None, token: None, kind }));
    }

    /// Says something about this instance to the fleet, with its heartbeats: a word under a name. Neither may have a space or an equals sign.
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

    /// Whether this instance was given its name: then it is the same again after a restart.
    pub(crate) fn is_named(&self) -> bool {
        self.is_named
    }

    /// Changes what this instance says about itself to the fleet, joining it if it has not.
    pub(crate) fn update_record(&self, change: impl FnOnce(&mut InstanceRecord)) {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let record = record.get_or_insert_with(|| InstanceRecord {
            is_named: self.is_named,
            ..InstanceRecord::new(self.instance().name())
        });
        change(record);
        self.join_fleet(record);
    }

    /// This instance has no more to do with a pool. With none left it leaves the fleet.
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
        // Once more, so that it can be waited for.
        let (group, instance) = (Group::FLEET, self.instance().clone());
        let _ = self.call(Request::Leave { group, instance }).await;
    }

    /// When the store's clock shows this time, as far as is known.
    pub(crate) fn local_moment(&self, server: ServerTime) -> Moment {
        keeper::local_moment(server, self.keeper.gauges.server_offset.load(Ordering::Relaxed))
    }

    pub(crate) fn unexpected_reply(&self, reply: &Reply) -> StoreError {
        let message = format!("{}: an answer to another question: {reply:?}", self.location());
        StoreError::new(ErrorKind::Corrupt, message)
    }
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tenure({} on {})", self.keeper.instance, self.keeper.location)
    }
}

/// Asks the store something that work waits for, over the keeper's connection.
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
        let message = "this is a forked process; the connection is its parent's";
        return Outcome::Failed(StoreError::new(ErrorKind::Unreachable, message));
    }
    keeper.send(Command::Call(StoreCall { request, timeout, is_work, reply }));
    answer.await.unwrap_or_else(|_| {
        if *keeper.connection_state.borrow() == ConnectionState::Closed {
            let message = "tenure was shut down, and asks nothing any more";
            return Outcome::Failed(StoreError::new(ErrorKind::Configuration, message));
        }
        let message = format!("{}: the connection was lost before the answer came", keeper.location);
        Outcome::Unknown(StoreError::new(ErrorKind::Unreachable, message))
    })
}

/// Numbers about a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Whether there is a connection to the store.
    pub connected: bool,
    /// How many leases are held.
    pub held: u64,
    /// The longest that the keeper was late for anything in the last half minute.
    pub lag: Duration,
    /// How many events were dropped because nobody took them in time.
    pub events_dropped: u64,
    /// How many notes about terms were dropped: there were too many, or the store could not be reached for too long.
    pub notes_dropped: u64,
    /// From sending a renewal to its answer.
    pub renewals: HistogramSnapshot,
}

/// Everything that happens, in order.
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

    /// The next event; `None` when there will be no more. Whoever is too slow misses some.
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

/// Makes a [`Tenure`].
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
    /// When the name is not acceptable.
    pub fn namespace(mut self, name: &str) -> Result<Self, NameError> {
        self.keyspace = self.keyspace.namespace(name)?;
        Ok(self)
    }

    /// The prefix of the keys that say who is alive, `poll:node:` by default.
    ///
    /// # Errors
    /// When the prefix is not acceptable.
    pub fn node_prefix(mut self, prefix: &str) -> Result<Self, NameError> {
        self.keyspace = self.keyspace.node_prefix(prefix)?;
        Ok(self)
    }

    /// The prefix of the keys of sessions, `session:` by default.
    ///
    /// # Errors
    /// When the prefix is not acceptable.
    pub fn session_prefix(mut self, prefix: &str) -> Result<Self, NameError> {
        self.keyspace = self.keyspace.session_prefix(prefix)?;
        Ok(self)
    }

    /// Lets everybody who hears [announcements](Tenure::announcements) hear of what happens to this instance's leases and in its elections, a
    /// moment later.
    pub fn share_events(mut self) -> Self {
        self.shares_events = true;
        self
    }

    /// Keeps this instance's events out of the log (`tracing`). Listeners and streams have them.
    pub fn unlogged(mut self) -> Self {
        self.unlogged = true;
        self
    }

    /// What the instance's id begins with, the host's name by default. A name that is given is this instance's own: started again
    /// under it within ten minutes, it gets back the targets that it had.
    ///
    /// # Errors
    /// When the name is not acceptable.
    pub fn name(mut self, name: &str) -> Result<Self, NameError> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.instance = Some(InstanceId::generate(name, nanos, fastrand::u32(..))?);
        self.is_named = true;
        Ok(self)
    }

    /// The instance's id. It must be another one for every start of every process.
    pub fn instance(mut self, instance: InstanceId) -> Self {
        self.instance = Some(instance);
        self
    }

    /// The longest ttl that instances of this fleet use, when it is above 30 s. It is how long nothing is granted when this
    /// instance finds a store without a record of Tenure's and cannot tell a new one from one that lost its data.
    pub fn longest_ttl(mut self, ttl: Duration) -> Self {
        self.assumed_ttl = self.assumed_ttl.max(ttl);
        self
    }

    /// Only observes: this instance writes nothing when it enters the store, begins no quarantine, and acquires no lease.
    pub fn observer(mut self) -> Self {
        self.observer = true;
        self
    }

    /// The word of an operator that the server is new: a store without a record of Tenure's is used at once, however young
    /// its server. Not when there are signs that leases may be held: an instance is listening, or this run of the server
    /// has served the namespace.
    pub fn bootstrap(mut self) -> Self {
        self.bootstrap = true;
        self
    }

    /// The word of an operator that a restart of the store loses nothing: it begins no quarantine. Proof of a loss does all
    /// the same, and so does a restart for instances that were not told so.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Calls this for every event, in order, on a thread of its own. A slow one misses events and holds up no lease.
    pub fn on_event(mut self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.listeners.push(Box::new(listener));
        self
    }

    /// Starts, and waits until the store has been entered.
    ///
    /// # Errors
    /// When the URL is not one, or the first attempt to enter the store fails.
    ///
    /// # Cancel safety
    /// Safe: nothing is kept.
    pub async fn connect(self) -> Result<Tenure, StoreError> {
        let tenure = self.start()?;
        tenure.ready().await?;
        Ok(tenure)
    }

    /// Starts without waiting for the store, and keeps trying to reach it.
    ///
    /// # Errors
    /// When the URL is not one, or this process cannot start a thread.
    pub fn start(self) -> Result<Tenure, StoreError> {
        let store = match self.source {
            StoreSource::Url(url) => store::open(&url, &self.keyspace)?,
            StoreSource::Store(store) => store,
        };
        let failed = |error: std::io::Error| {
            StoreError::new(ErrorKind::Unavailable, format!("the keeper's thread cannot be started: {error}"))
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
