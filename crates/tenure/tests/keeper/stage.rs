//! What every scene needs: instances, work that leaves a record, and somebody who is not involved.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::lease::{Ending, LeaseSettings};
use tenure::{AcquireError, Event, LeaseName, Lost, Tenure, TenureBuilder, Term, TermHandle, Token};
use tenure_testbed::{Probe, Process};
use tokio::task::JoinHandle;

/// After this long something that should have happened never will. Far beyond any bound that is tested.
pub const NEVER: Duration = Duration::from_secs(60);

/// The ttl of scenes in which leases end: D − S is 1.23 s after the last renewal, which is 0.5 s after the one before.
pub const TTL: Duration = Duration::from_millis(1_500);

/// By then a holder has asked the store again: P + R.
pub const NEXT_RENEWAL: Duration = Duration::from_millis(600);

/// By then a holder that hears nothing has stopped: ttl − S.
pub const LAST_STOP: Duration = Duration::from_millis(1_250);

/// The longest pause between two attempts to reach a store that is back.
pub const FIRST_CONTACT: Duration = Duration::from_secs(2);

/// The ttl of scenes in which nothing may end, on however slow a machine.
pub const LONG: Duration = Duration::from_secs(30);

/// An instance of a service: a connection to the store, and everything that happened to it.
pub struct Instance {
    pub tenure: Tenure,
    pub events: Arc<Mutex<Vec<Event>>>,
}

/// How instances of a scene connect: the longest ttl is the scene's, and the namespace is theirs to use.
pub fn builder(url: &str, name: &str, ttl: Duration) -> TenureBuilder {
    Tenure::builder(url).name(name).unwrap().longest_ttl(ttl).bootstrap()
}

impl Instance {
    pub async fn connect(url: &str, name: &str, ttl: Duration) -> Self {
        Self::with(builder(url, name, ttl)).await
    }

    /// Alice and bob.
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
        soon(self.tenure.lease(lease).ttl(ttl).acquire()).await.unwrap()
    }

    /// The names of all events so far, in order.
    pub fn happened(&self) -> Vec<&'static str> {
        self.events.lock().unwrap().iter().map(|event| event.what.name()).collect()
    }

    pub fn has(&self, name: &str) -> bool {
        self.times(name) > 0
    }

    /// How often something has happened.
    pub fn times(&self, name: &str) -> usize {
        self.happened().iter().filter(|happened| **happened == name).count()
    }

    /// A task that waits for a lease.
    pub fn waits_for(&self, lease: &str, ttl: Duration) -> JoinHandle<Result<Term, AcquireError>> {
        let (tenure, lease) = (self.tenure.clone(), lease.to_owned());
        tokio::spawn(async move { tenure.lease(&lease).ttl(ttl).acquire().await })
    }

    /// Waits until something has happened.
    pub async fn sees(&self, name: &str) {
        until(&format!("{name} among {:?}", self.happened()), || self.has(name)).await;
    }

    /// The whole of the first event of this name.
    pub fn first(&self, name: &str) -> String {
        let events = self.events.lock().unwrap();
        events.iter().find(|event| event.what.name() == name).map(ToString::to_string).unwrap_or_default()
    }
}

/// The settings that a ttl alone gives.
pub fn lasting(ttl: Duration) -> LeaseSettings {
    LeaseSettings::builder().ttl(ttl).build().unwrap()
}

/// Waits for something that should come.
pub async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(NEVER, future).await.unwrap_or_else(|_| panic!("nothing happened within {NEVER:?}"))
}

/// Waits until something is so.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < NEVER, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// One stretch of work, as it wrote itself down.
#[derive(Clone, Debug)]
pub struct Stretch {
    pub who: String,
    pub token: Token,
    pub began: Instant,
    pub last_seen: Instant,
}

/// What all work on one lease has written down.
#[derive(Clone, Default)]
pub struct Record(Arc<Mutex<Vec<Stretch>>>);

impl Record {
    pub fn stretches(&self) -> Vec<Stretch> {
        self.0.lock().unwrap().clone()
    }

    /// Works under a term until it is taken away, and returns how that was.
    pub async fn work(&self, who: &str, term: &TermHandle) -> Lost {
        let record = self.clone();
        let (who, token) = (who.to_owned(), term.token());
        let work = async move {
            let now = Instant::now();
            let mine = {
                let mut stretches = record.0.lock().unwrap();
                stretches.push(Stretch { who, token, began: now, last_seen: now });
                stretches.len() - 1
            };
            loop {
                tokio::time::sleep(Duration::from_millis(2)).await;
                record.0.lock().unwrap()[mine].last_seen = Instant::now();
            }
        };
        match term.run(work).await {
            Ok(never) => never,
            Err(lost) => lost,
        }
    }

    /// Somebody who wants the lease all the time and works whenever it has it.
    pub fn candidate(&self, instance: &Instance, lease: &str, settings: LeaseSettings) -> Candidate {
        let (record, tenure, lease) = (self.clone(), instance.tenure.clone(), lease.to_owned());
        let endings: Arc<Mutex<Vec<Ending>>> = Arc::default();
        let told = endings.clone();
        let task = tokio::spawn(async move {
            while let Ok(term) = tenure.lease(&lease).settings(settings).acquire().await {
                let lost = record.work(tenure.instance().as_str(), &term).await;
                told.lock().unwrap().push(lost.reason);
            }
        });
        Candidate { endings, task }
    }

    /// Waits until somebody whose name begins like this works, under a term after that.
    pub async fn works(&self, who: &str, after: Token) -> Token {
        let mut found = None;
        until(&format!("{who} works"), || {
            found = self.stretches().iter().rev().find(|s| s.who.starts_with(who) && s.token > after).map(|s| s.token);
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    /// Whether work under this term was seen after that moment.
    pub async fn goes_on(&self, token: Token) {
        let now = Instant::now();
        until("work goes on", || self.stretches().iter().any(|s| s.token == token && s.last_seen > now)).await;
    }

    /// No two stretches overlap, and tokens grow.
    pub fn check(&self) {
        let stretches = self.stretches();
        for pair in stretches.windows(2) {
            assert!(pair[0].last_seen <= pair[1].began, "two worked at once: {pair:#?}");
            assert!(pair[0].token < pair[1].token, "tokens must grow: {pair:#?}");
        }
        let tokens: BTreeSet<_> = stretches.iter().map(|stretch| stretch.token).collect();
        assert_eq!(tokens.len(), stretches.len(), "a token was used twice");
    }
}

/// See [`Record::candidate`].
pub struct Candidate {
    endings: Arc<Mutex<Vec<Ending>>>,
    task: JoinHandle<()>,
}

impl Candidate {
    /// How its first term ended.
    pub async fn first_ending(&self) -> Ending {
        until("a term ends", || !self.endings.lock().unwrap().is_empty()).await;
        self.endings.lock().unwrap()[0].clone()
    }

    /// It wants the lease no more, and lets go of it if it has it.
    pub async fn leaves(&self) {
        self.task.abort();
        until("it has left", || self.task.is_finished()).await;
    }

    /// Whether no term of its has ended.
    pub fn never_stopped(&self) -> bool {
        self.endings.lock().unwrap().is_empty()
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Somebody with a lease of its own, whom nothing that happens to others may touch.
pub struct Bystander {
    pub instance: Instance,
    pub term: Term,
    token: Token,
}

impl Bystander {
    pub async fn at(url: &str) -> Self {
        let instance = Instance::connect(url, "bystander", LONG).await;
        let term = instance.acquire("its-own", LONG).await;
        let token = term.token();
        Self { instance, term, token }
    }

    /// Its lease is what it was: in its own eyes, and in the store's.
    pub async fn is_untouched(&self) {
        assert!(self.term.is_valid() && self.term.token() == self.token, "{:?}", self.term);
        let report = self.instance.tenure.inspect(&LeaseName::lease("its-own").unwrap()).await.unwrap();
        let held = report.held.unwrap();
        assert_eq!((&held.by, held.token), (self.instance.tenure.instance(), Some(self.token)));
        assert!(!self.instance.has("lease.lost"), "{:?}", self.instance.happened());
    }
}

/// Set for a process that a test has started: the URL of the store.
pub const STORE: &str = "TENURE_TEST_STORE";

/// Starts a part as a process on this store, and waits until it says that it is ready, and a word.
pub fn play(part: &str, store: &str) -> (Process, String) {
    let mut process = Process::start(part, STORE, store);
    let word = process.ready();
    (process, word)
}

/// How a [`Scene`] is set up.
pub struct Setup<'a> {
    alice: &'a str,
    others: &'a str,
    settings: LeaseSettings,
    has_bystander: bool,
}

impl<'a> Setup<'a> {
    /// All at one store, with the short ttl.
    pub fn at(url: &'a str) -> Self {
        Self { alice: url, others: url, settings: lasting(TTL), has_bystander: true }
    }

    /// Alice reaches the store another way.
    pub fn alice_over(mut self, url: &'a str) -> Self {
        self.alice = url;
        self
    }

    pub fn lasting(self, ttl: Duration) -> Self {
        self.with(lasting(ttl))
    }

    pub fn with(mut self, settings: LeaseSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Nobody looks on: what happens concerns all that the store knows.
    pub fn for_all(mut self) -> Self {
        self.has_bystander = false;
        self
    }

    pub async fn scene(self) -> Scene {
        let ttl = self.settings.ttl();
        let alice = Instance::connect(self.alice, "alice", ttl).await;
        let bob = Instance::connect(self.others, "bob", ttl).await;
        let bystander = if self.has_bystander { Some(Bystander::at(self.others).await) } else { None };
        let record = Record::default();
        let works = record.candidate(&alice, "job", self.settings);
        let token = record.works("alice", Token::ZERO).await;
        let waits = record.candidate(&bob, "job", self.settings);
        bob.sees("lease.waiting").await;
        Scene { alice, bob, works, waits, token, record, bystander, probe: Probe::start() }
    }
}

/// Alice works on `job`, bob waits for it, and somebody who has nothing to do with it looks on.
pub struct Scene {
    pub alice: Instance,
    pub bob: Instance,
    pub works: Candidate,
    pub waits: Candidate,
    /// Alice's first term.
    pub token: Token,
    pub record: Record,
    bystander: Option<Bystander>,
    pub probe: Probe,
}

impl Scene {
    /// Alice's work stops, within this time of the fault; why?
    pub async fn stops(&self, fault: Instant, bound: Duration) -> Ending {
        let ending = self.works.first_ending().await;
        self.probe.within(fault.elapsed(), bound, "work stops");
        ending
    }

    /// Somebody works again, within this time of the fault.
    pub async fn goes_on_with(&self, fault: Instant, bound: Duration) {
        self.record.works("", self.token).await;
        self.probe.within(fault.elapsed(), bound, "somebody works again");
    }

    /// Alice has never stopped, and works now.
    pub async fn never_stopped(&self) {
        self.record.goes_on(self.token).await;
        assert!(self.works.never_stopped(), "{:?}", self.alice.happened());
    }

    /// What must be so in the end, whatever has happened.
    pub async fn ends(self) {
        self.record.check();
        if let Some(bystander) = &self.bystander {
            bystander.is_untouched().await;
        }
    }
}
