//! The front end: [`Tenure`] and the types a program uses.

mod admin;
mod builder;
mod documents;
mod error;
mod events;
mod lease_builder;
mod log_follower;
mod term;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;

pub use admin::Admin;
pub use builder::{ConnectError, TenureBuilder};
pub use documents::{DocumentError, Documents};
pub use error::RequestError;
pub use events::EventStream;
use events::WeakEventStreams;
pub use lease_builder::LeaseBuilder;
pub use log_follower::LogFollower;
pub use term::{Lost, PublishError, ReleaseError, RequireError, RunError, Term, TermHandle, TermInfo, Work};

use crate::election::CampaignRegistry;
use crate::event::{Event, EventKind};
use crate::fleet::{Fleet, InstanceRecord};
use crate::histogram::HistogramSnapshot;
use crate::keeper::{Command, ConnectionState, KeeperHandle, PendingCall};
use crate::lease::LeaseSettings;
use crate::name::{Group, InstanceId, LeaseName, LeaseRef};
use crate::store::{
    DocumentRequest, EntryId, ErrorKind, Keyspace, LeaseReport, LeaseRequest, LogEntry, LogRequest, MembershipRequest,
    Outcome, PublishedRecord, Reply, Request, Store, StoreError,
};
use crate::time::{LeaseClock, SystemClock};

/// The error of work that a program gives to an election or a pool: any error, as `?` converts it.
///
/// ```
/// use tenure::election::LeadError;
/// use tenure::{Tenure, WorkError};
///
/// async fn sweep(days: &str) -> Result<(), WorkError> {
///     let days: u32 = days.parse()?; // any error
///     if days == 0 {
///         return Err("nothing to sweep".into());
///     }
///     Ok(())
/// }
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let ended = tenure.election("cleanup").lead(async |_| sweep("0").await).until(std::future::pending::<()>()).await;
/// assert!(matches!(ended, Err(LeadError::Work(error)) if error.to_string() == "nothing to sweep"));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type WorkError = Box<dyn std::error::Error + Send + Sync>;

/// Leases on one store, for one process.
///
/// A background thread, the keeper, renews every lease acquired here. Clones share the keeper. It ends when the last
/// clone and the last [`Term`] are dropped.
///
/// ```
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// # async fn build_report(token: tenure::Token) -> std::io::Result<String> { Ok(format!("report {token}")) }
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
    /// What this instance publishes to the fleet.
    publication: Arc<Mutex<Publication>>,
    keyspace: Arc<Keyspace>,
    /// Whether the program gave this instance its name.
    is_named: bool,
}

/// What an instance publishes to the fleet.
#[derive(Default)]
struct Publication {
    /// Once it has joined.
    record: Option<InstanceRecord>,
    /// The annotations by the program.
    annotations: BTreeMap<String, String>,
}

impl Tenure {
    /// Opens the store at a [URL](crate::store::open()) and attaches to it.
    ///
    /// # Errors
    /// When the URL is not valid, or the instance cannot attach to the store. To start while the store is down, use
    /// [`TenureBuilder::start`].
    ///
    /// # Cancel safety
    /// Safe: nothing is left behind.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect().await
    }

    /// Builds a [`Tenure`] with settings other than the defaults.
    pub fn builder(url: &str) -> TenureBuilder {
        TenureBuilder::with_url(url)
    }

    /// Builds a [`Tenure`] on a caller-supplied store.
    pub fn with_store(store: Arc<dyn Store>) -> TenureBuilder {
        TenureBuilder::with_store(store)
    }

    /// Requests a lease, by its label or by its whole name. The key of the lease with the label `report` is
    /// `lease:report`.
    pub fn lease(&self, lease: impl Into<LeaseRef>) -> LeaseBuilder {
        LeaseBuilder::new(self.clone(), lease.into().lease())
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

    /// What operators read and do: inspect and revoke leases, drain instances, end a quarantine.
    pub fn admin(&self) -> Admin {
        Admin(self.clone())
    }

    /// The other instances on the store, and the leaders among them.
    pub fn fleet(&self) -> Fleet {
        Fleet(self.clone())
    }

    /// Reads the record that a holder last [published](TermHandle::publish) beside a lease.
    ///
    /// ```
    /// use tenure::Tenure;
    ///
    /// # #[cfg(feature = "memory")]
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let lease = tenure.lease("import").acquire().await?;
    /// lease.publish("position", "row 17").await?;
    /// let record = tenure.read("import", "position").await?.ok_or("not published")?;
    /// assert_eq!((record.text(), record.token), (Some("row 17"), lease.token()));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the name is not valid, or the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn read(
        &self,
        lease: impl Into<LeaseRef>,
        record: &str,
    ) -> Result<Option<PublishedRecord>, RequestError> {
        Ok(self.read_record(&lease.into().lease()?, record).await?)
    }

    /// Reads entries that holders [appended](TermHandle::append) to a log beside a lease, oldest first: the latest
    /// `limit` entries, or the first `limit` entries after `after`.
    ///
    /// # Errors
    /// When the name is not valid, or the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn recent(
        &self,
        lease: impl Into<LeaseRef>,
        log: &str,
        after: Option<EntryId>,
        limit: usize,
    ) -> Result<Vec<LogEntry>, RequestError> {
        let (name, log) = (lease.into().lease()?, log.to_owned());
        match self.call(LogRequest::Read { name, log, after, limit }).await? {
            Reply::LogEntries(entries) => Ok(entries),
            other => Err(self.unexpected_reply(&other).into()),
        }
    }

    /// Subscribes to all events of this process from now on.
    pub fn events(&self) -> EventStream {
        EventStream::open(self.streams.clone(), self.keeper.gauges.clone())
    }

    /// Statistics of the keeper.
    pub fn stats(&self) -> Stats {
        let gauges = &self.keeper.gauges;
        Stats {
            connected: *self.keeper.connection_state.borrow() == ConnectionState::Attached,
            heartbeats_refused: gauges.heartbeats_refused.load(Ordering::Relaxed),
            held: gauges.held.load(Ordering::Relaxed),
            lag: gauges.lag.read(SystemClock.now()),
            events_dropped: gauges.events_dropped.load(Ordering::Relaxed),
            notes_dropped: gauges.notes_dropped.load(Ordering::Relaxed),
            renewals: gauges.renewals.snapshot(),
        }
    }

    /// Stops all work, releases every lease, and ends the keeper. Waiters are refused. The keeper does not wait for
    /// work that still runs when its lease has expired. While the store cannot be reached, it retries until every lease
    /// has expired; a program that cannot wait that long adds its own timeout. The log and event streams have the last
    /// events when this returns, unless the log blocks.
    ///
    /// # Cancel safety
    /// Safe: it continues in the background.
    pub async fn shutdown(&self) {
        if self.keeper.is_forked() {
            return;
        }
        self.keeper.send(Command::ShutDown);
        self.keeper.ended().await;
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

    pub(crate) async fn inspect(&self, name: &LeaseName) -> Result<LeaseReport, StoreError> {
        match self.call(LeaseRequest::Inspect { name: name.clone() }).await? {
            Reply::Lease(report) => Ok(report),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    pub(crate) async fn read_record(
        &self,
        name: &LeaseName,
        record: &str,
    ) -> Result<Option<PublishedRecord>, StoreError> {
        match self.call(DocumentRequest::ReadRecord { name: name.clone(), record: record.to_owned() }).await? {
            Reply::Record(published) => Ok(published),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Sends a request that changes nothing, so that it does not matter whether a lost one was executed.
    pub(crate) async fn call(&self, request: impl Into<Request>) -> Result<Reply, StoreError> {
        self.call_with_priority(request.into(), false).await
    }

    /// Like [`call`](Self::call), for requests that work waits for: they go before the requests of observers.
    pub(crate) async fn call_for_work(&self, request: impl Into<Request>) -> Result<Reply, StoreError> {
        self.call_with_priority(request.into(), true).await
    }

    /// Like [`call`](Self::call), with a choice of whether work waits for it.
    pub(crate) async fn call_with_priority(&self, request: Request, is_work: bool) -> Result<Reply, StoreError> {
        match self.call_with_outcome(request, is_work).await {
            Outcome::Answered(reply) => Ok(reply),
            Outcome::Failed(error) | Outcome::Unknown(error) => Err(error),
        }
    }

    /// Sends a request that changes something.
    pub(crate) async fn write(&self, request: impl Into<Request>) -> Result<Reply, RequestError> {
        match self.call_with_outcome(request.into(), false).await {
            Outcome::Answered(reply) => Ok(reply),
            Outcome::Failed(error) => Err(RequestError::Store(error)),
            Outcome::Unknown(error) => Err(RequestError::Unknown(error)),
        }
    }

    async fn call_with_outcome(&self, request: Request, is_work: bool) -> Outcome {
        let timeout = LeaseSettings::default().attempt_timeout();
        call_store_with_priority(&self.keeper, request, timeout, is_work).await
    }

    /// Sends a request to the store without waiting for the reply.
    pub(crate) fn call_detached(&self, request: impl Into<Request>) {
        let (request, (reply, _)) = (request.into(), oneshot::channel());
        let timeout = LeaseSettings::default().attempt_timeout();
        self.keeper.send(Command::Call(PendingCall { request, timeout, is_work: true, reply }));
    }

    /// Emits an event that belongs to no lease, such as a [`ProgramEvent`](crate::ProgramEvent): to the log, the streams and
    /// the listeners of this process.
    pub fn emit(&self, kind: impl Into<EventKind>) {
        self.keeper.emit(Event { instance: self.instance().clone(), lease: None, token: None, kind: kind.into() });
    }

    pub(crate) fn describe(&self, key: &str, value: &str) {
        let mut publication = self.publication.lock().unwrap_or_else(PoisonError::into_inner);
        publication.annotations.insert(key.to_owned(), value.to_owned());
        if let Some(record) = publication.record.as_mut() {
            record.annotations.insert(key.to_owned(), value.to_owned());
            self.join_fleet(record);
        }
    }

    /// Whether the program gave this instance its name. Then it keeps the name after a restart.
    pub(crate) fn is_named(&self) -> bool {
        self.is_named
    }

    /// Changes the record this instance publishes to the fleet. Joins the fleet if needed.
    pub(crate) fn update_record(&self, change: impl FnOnce(&mut InstanceRecord)) {
        let mut publication = self.publication.lock().unwrap_or_else(PoisonError::into_inner);
        let Publication { record, annotations } = &mut *publication;
        let record = record.get_or_insert_with(|| InstanceRecord {
            is_named: self.is_named,
            annotations: annotations.clone(),
            ..InstanceRecord::new(self.instance().name(), SystemTime::now())
        });
        change(record);
        self.join_fleet(record);
    }

    /// Removes this instance from a pool. It leaves the fleet with its last pool.
    pub(crate) async fn leave_pool(&self, pool: &str) {
        {
            let mut publication = self.publication.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(record) = publication.record.as_mut()
                && record.remove_pool(pool)
            {
                self.join_fleet(record);
                return;
            }
            publication.record = None;
            self.fleet().leave();
        }
        // Sent again, because this request can be awaited.
        let (group, instance) = (Group::FLEET, self.instance().clone());
        let _ = self.call(MembershipRequest::Leave { group, instance }).await;
    }

    /// Server time minus the lease clock, in microseconds, as last seen.
    pub(crate) fn server_offset(&self) -> i64 {
        self.keeper.gauges.server_offset.load(Ordering::Relaxed)
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
pub(crate) async fn call_store(keeper: &KeeperHandle, request: impl Into<Request>, timeout: Duration) -> Outcome {
    call_store_with_priority(keeper, request.into(), timeout, true).await
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
    keeper.send(Command::Call(PendingCall { request, timeout, is_work, reply }));
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
///
/// ```
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("report").acquire().await?;
/// let stats = tenure.stats();
/// assert!(stats.connected);
/// println!("{} leases, 99 of 100 renewals within {:?}", stats.held, stats.renewals.quantile(0.99));
/// # drop(lease);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Whether the keeper is attached to the store.
    pub connected: bool,
    /// Whether the store refuses the heartbeats of this instance, so that the other instances do not count with it.
    pub heartbeats_refused: bool,
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
