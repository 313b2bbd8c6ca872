//! Shared parts of the scenarios: instances, work that records itself, and an uninvolved bystander.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::lease::{Ending, LeaseSettings};
use tenure::{AcquireError, Event, LeaseName, RunError, Tenure, TenureBuilder, Term, TermHandle, Token};
use tenure_testbed::{LagProbe, TestProcess};
use tokio::task::JoinHandle;

/// Timeout for anything that should happen. Far beyond any tested bound.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The ttl of scenarios in which leases expire: D − S is 1.23 s after the last renewal, which is 0.5 s after the one
/// before.
pub const TTL: Duration = Duration::from_millis(1_500);

/// By then a holder has sent another request to the store: P + R.
pub const MAX_RENEWAL_DELAY: Duration = Duration::from_millis(600);

/// By then a holder that gets no reply has stopped: ttl − S.
pub const MAX_STOP_DELAY: Duration = Duration::from_millis(1_250);

/// The longest backoff between two attempts to reach a store that is back.
pub const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(2);

/// The ttl of scenarios in which no lease may expire, even on a slow machine.
pub const LONG_TTL: Duration = Duration::from_secs(30);

/// An instance of a service: a connection to the store, and its events.
pub struct Instance {
    pub tenure: Tenure,
    pub events: Arc<Mutex<Vec<Event>>>,
}

/// Builder for the instances of a scenario: its ttl is the longest ttl, and the instances may bootstrap the namespace.
pub fn builder(url: &str, name: &str, ttl: Duration) -> TenureBuilder {
    Tenure::builder(url).name(name).longest_ttl(ttl).bootstrap()
}

impl Instance {
    pub async fn connect(url: &str, name: &str, ttl: Duration) -> Self {
        Self::with(builder(url, name, ttl)).await
    }

    /// Connects two instances: alice and bob.
    pub async fn pair(url: &str, ttl: Duration) -> (Self, Self) {
        (Self::connect(url, "alice", ttl).await, Self::connect(url, "bob", ttl).await)
    }

    pub async fn with(builder: TenureBuilder) -> Self {
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let heard = events.clone();
        let tenure = builder.on_event(move |event| heard.lock().unwrap().push(event.clone())).connect().await.unwrap();
        Self { tenure, events }
    }

    pub async fn acquire(&self, lease: &str, ttl: Duration) -> Term {
        with_timeout(self.tenure.lease(lease).ttl(ttl).acquire()).await.unwrap()
    }

    /// The names of all events so far, in order.
    pub fn event_names(&self) -> Vec<&'static str> {
        self.events.lock().unwrap().iter().map(|event| event.kind.name()).collect()
    }

    pub fn has_event(&self, name: &str) -> bool {
        self.count_events(name) > 0
    }

    /// Number of events of this name.
    pub fn count_events(&self, name: &str) -> usize {
        self.event_names().iter().filter(|happened| **happened == name).count()
    }

    /// Spawns a task that waits for a lease.
    pub fn spawn_acquire(&self, lease: &str, ttl: Duration) -> JoinHandle<Result<Term, AcquireError>> {
        let (tenure, lease) = (self.tenure.clone(), lease.to_owned());
        tokio::spawn(async move { tenure.lease(&lease).ttl(ttl).acquire().await })
    }

    /// Waits for an event of this name.
    pub async fn wait_for_event(&self, name: &str) {
        wait_until(&format!("{name} among {:?}", self.event_names()), || self.has_event(name)).await;
    }

    /// The texts of all events of this name.
    pub fn events_named(&self, name: &str) -> Vec<String> {
        let events = self.events.lock().unwrap();
        events.iter().filter(|event| event.kind.name() == name).map(ToString::to_string).collect()
    }

    /// The text of the first event of this name.
    pub fn first_event(&self, name: &str) -> String {
        self.events_named(name).into_iter().next().unwrap_or_default()
    }
}

/// The default settings for a ttl.
pub fn settings_with_ttl(ttl: Duration) -> LeaseSettings {
    LeaseSettings::builder().ttl(ttl).build().unwrap()
}

/// Waits for a future, with the test timeout.
pub async fn with_timeout<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(TEST_TIMEOUT, future).await.unwrap_or_else(|_| panic!("timed out after {TEST_TIMEOUT:?}"))
}

/// Waits until a condition holds.
pub async fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < TEST_TIMEOUT, "timed out waiting until: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// One interval of work, as the work recorded it.
#[derive(Clone, Debug)]
pub struct WorkInterval {
    pub who: String,
    pub token: Token,
    pub began: Instant,
    pub last_seen: Instant,
}

/// The record of all work on one lease.
#[derive(Clone, Default)]
pub struct WorkLog(Arc<Mutex<Vec<WorkInterval>>>);

impl WorkLog {
    pub fn intervals(&self) -> Vec<WorkInterval> {
        self.0.lock().unwrap().clone()
    }

    /// Works under a term until the work is cancelled, and returns why.
    pub async fn work(&self, who: &str, term: &TermHandle) -> Ending {
        let record = self.clone();
        let (who, token) = (who.to_owned(), term.token());
        let work = async move {
            let now = Instant::now();
            let mine = {
                let mut intervals = record.0.lock().unwrap();
                intervals.push(WorkInterval { who, token, began: now, last_seen: now });
                intervals.len() - 1
            };
            loop {
                tokio::time::sleep(Duration::from_millis(2)).await;
                record.0.lock().unwrap()[mine].last_seen = Instant::now();
            }
        };
        match term.run_infallible(work).await {
            Ok(never) => never,
            Err(RunError::Lost(lost)) => Ending::Lost(lost.reason),
            Err(RunError::Released(reason)) => Ending::Released(reason),
            Err(other) => panic!("{other}"),
        }
    }

    /// Spawns a worker that acquires the lease again and again and works whenever it holds it.
    pub fn spawn_worker(&self, instance: &Instance, lease: &str, settings: LeaseSettings) -> LeaseWorker {
        let (record, tenure, lease) = (self.clone(), instance.tenure.clone(), lease.to_owned());
        let endings: Arc<Mutex<Vec<Ending>>> = Arc::default();
        let told = endings.clone();
        let task = tokio::spawn(async move {
            while let Ok(term) = tenure.lease(&lease).settings(settings).acquire().await {
                let ending = record.work(tenure.instance().as_str(), &term).await;
                told.lock().unwrap().push(ending);
            }
        });
        LeaseWorker { endings, task }
    }

    /// Waits until an instance whose name has this prefix works under a term after `after`.
    pub async fn wait_for_work(&self, who: &str, after: Token) -> Token {
        let mut found = None;
        wait_until(&format!("{who} works"), || {
            found = self.intervals().iter().rev().find(|s| s.who.starts_with(who) && s.token > after).map(|s| s.token);
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    /// Waits for work under this term from now on.
    pub async fn wait_for_progress(&self, token: Token) {
        let now = Instant::now();
        wait_until("work continues", || self.intervals().iter().any(|s| s.token == token && s.last_seen > now)).await;
    }

    /// Asserts that no two intervals overlap and that tokens increase.
    pub fn assert_no_overlap(&self) {
        let intervals = self.intervals();
        for pair in intervals.windows(2) {
            assert!(pair[0].last_seen <= pair[1].began, "two terms worked at once: {pair:#?}");
            assert!(pair[0].token < pair[1].token, "tokens must increase: {pair:#?}");
        }
        let tokens: BTreeSet<_> = intervals.iter().map(|interval| interval.token).collect();
        assert_eq!(tokens.len(), intervals.len(), "a token was used twice");
    }
}

/// See [`WorkLog::spawn_worker`].
pub struct LeaseWorker {
    endings: Arc<Mutex<Vec<Ending>>>,
    task: JoinHandle<()>,
}

impl LeaseWorker {
    /// How its first term ended.
    pub async fn first_ending(&self) -> Ending {
        wait_until("a term ends", || !self.endings.lock().unwrap().is_empty()).await;
        self.endings.lock().unwrap()[0].clone()
    }

    /// Stops waiting for the lease, and releases it if held.
    pub async fn stop(&self) {
        self.task.abort();
        wait_until("the worker has stopped", || self.task.is_finished()).await;
    }

    /// Returns whether none of its terms has ended.
    pub fn has_never_stopped(&self) -> bool {
        self.endings.lock().unwrap().is_empty()
    }
}

impl Drop for LeaseWorker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An instance with its own lease, which no fault of others may affect.
pub struct Bystander {
    pub instance: Instance,
    pub term: Term,
    token: Token,
}

impl Bystander {
    pub async fn at(url: &str) -> Self {
        let instance = Instance::connect(url, "bystander", LONG_TTL).await;
        let term = instance.acquire("its-own", LONG_TTL).await;
        let token = term.token();
        Self { instance, term, token }
    }

    /// Asserts that its lease is unchanged, for the instance and in the store.
    pub async fn assert_untouched(&self) {
        assert!(self.term.is_valid() && self.term.token() == self.token, "{:?}", self.term);
        let report = self.instance.tenure.admin().inspect(&LeaseName::lease("its-own").unwrap()).await.unwrap();
        let held = report.held.unwrap();
        assert_eq!((&held.holder, held.token), (self.instance.tenure.instance(), Some(self.token)));
        assert!(!self.instance.has_event("lease.lost"), "{:?}", self.instance.event_names());
    }
}

/// Set for a process that a test has started: the URL of the store.
pub const STORE_ENV: &str = "TENURE_TEST_STORE";

/// Starts a test as a process on this store, and waits until it prints `READY` and a word.
pub fn start_process(part: &str, store: &str) -> (TestProcess, String) {
    let mut process = TestProcess::start(part, STORE_ENV, store);
    let word = process.ready();
    (process, word)
}

/// Builder of a [`Scenario`].
pub struct ScenarioBuilder<'a> {
    alice: &'a str,
    others: &'a str,
    settings: LeaseSettings,
    has_bystander: bool,
}

impl<'a> ScenarioBuilder<'a> {
    /// All instances use one store, with the short ttl.
    pub fn at(url: &'a str) -> Self {
        Self { alice: url, others: url, settings: settings_with_ttl(TTL), has_bystander: true }
    }

    /// Alice connects to the store by this URL.
    pub fn alice_via(mut self, url: &'a str) -> Self {
        self.alice = url;
        self
    }

    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(settings_with_ttl(ttl))
    }

    pub fn with(mut self, settings: LeaseSettings) -> Self {
        self.settings = settings;
        self
    }

    /// No bystander: the fault affects every lease in the store.
    pub fn without_bystander(mut self) -> Self {
        self.has_bystander = false;
        self
    }

    pub async fn start(self) -> Scenario {
        let ttl = self.settings.ttl();
        let alice = Instance::connect(self.alice, "alice", ttl).await;
        let bob = Instance::connect(self.others, "bob", ttl).await;
        let bystander = if self.has_bystander { Some(Bystander::at(self.others).await) } else { None };
        let record = WorkLog::default();
        let holder = record.spawn_worker(&alice, "job", self.settings);
        let token = record.wait_for_work("alice", Token::ZERO).await;
        let waiter = record.spawn_worker(&bob, "job", self.settings);
        bob.wait_for_event("lease.waiting").await;
        Scenario { alice, bob, holder, waiter, token, record, bystander, probe: LagProbe::start() }
    }
}

/// Alice works on `job`, bob waits for it, and a bystander holds another lease.
pub struct Scenario {
    pub alice: Instance,
    pub bob: Instance,
    pub holder: LeaseWorker,
    pub waiter: LeaseWorker,
    /// Token of alice's first term.
    pub token: Token,
    pub record: WorkLog,
    bystander: Option<Bystander>,
    pub probe: LagProbe,
}

impl Scenario {
    /// Waits until alice's work stops, within this time of the fault. Returns the reason.
    pub async fn wait_until_stopped(&self, fault: Instant, bound: Duration) -> Ending {
        let ending = self.holder.first_ending().await;
        self.probe.assert_within(fault.elapsed(), bound, "work stops");
        ending
    }

    /// Waits until an instance works again, within this time of the fault.
    pub async fn wait_for_next_work(&self, fault: Instant, bound: Duration) {
        self.record.wait_for_work("", self.token).await;
        self.probe.assert_within(fault.elapsed(), bound, "an instance works again");
    }

    /// Asserts that alice has never stopped and works now.
    pub async fn assert_never_stopped(&self) {
        self.record.wait_for_progress(self.token).await;
        assert!(self.holder.has_never_stopped(), "{:?}", self.alice.event_names());
    }

    /// Checks what must hold at the end of every scenario.
    pub async fn finish(self) {
        self.record.assert_no_overlap();
        if let Some(bystander) = &self.bystander {
            bystander.assert_untouched().await;
        }
    }
}
