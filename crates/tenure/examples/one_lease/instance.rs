//! The smallest driver of a lease that keeps its promises: it carries out what the machine asks for, never waits for the
//! store in the loop that serves deadlines, and decides nothing about the lease itself.

use std::error::Error;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::lease::{Action, Attempt, Epoch, Input, Lease, LeaseSettings, Permission, ReleaseReason, Wish};
use tenure::store::memory::MemoryStore;
use tenure::store::{
    Announcement, Connection, Continuity, Entry, Heard, Holding, NamespaceMemory, Outcome, Reply, Request, Store,
    StoreError,
};
use tenure::time::{LeaseClock, Moment, SystemClock};
use tenure::{InstanceId, LeaseName, Token};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// How often the machine looks at the clock, whatever its timers do.
const BACKSTOP: Duration = Duration::from_millis(250);

/// One instance that wants one lease and works while it has it.
pub struct Instance {
    store: MemoryStore,
    name: LeaseName,
    id: InstanceId,
    working: watch::Receiver<Option<Token>>,
    events: mpsc::UnboundedSender<Event>,
    task: JoinHandle<()>,
}

/// Something for the driver's loop.
enum Event {
    Wish(Wish),
    /// A connection has entered, or could not be made.
    Entered(Result<Arc<dyn Connection>, StoreError>),
    /// A request on this connection was answered, or was not.
    Outcome(u64, Attempt, Outcome),
    Heard(u64, Announcement),
    LookAgain(u64),
}

impl Instance {
    pub fn start(store: MemoryStore, name: LeaseName, id: InstanceId, settings: Arc<LeaseSettings>) -> Self {
        let (working_sender, working) = watch::channel(None);
        let (events, receiver) = mpsc::unbounded_channel();
        let driver = Driver {
            id: id.clone(),
            store: store.clone(),
            lease: Lease::new(name.clone(), id.clone(), settings.clone(), fastrand::u64(..)),
            settings,
            memory: None,
            link: None,
            links: 0,
            wake: None,
            work: None,
            deadline: Arc::default(),
            working: working_sender,
            events: events.clone(),
        };
        let task = tokio::spawn(driver.run(receiver));
        Self { store, name, id, working, events, task }
    }

    /// Waits until work is running, and returns the term's token.
    pub async fn works(&mut self) -> Result<Token, Box<dyn Error>> {
        Ok(self.working.wait_for(Option::is_some).await?.ok_or("not working")?)
    }

    /// Waits until no work is running.
    pub async fn stopped(&mut self) -> Result<(), Box<dyn Error>> {
        self.working.wait_for(Option::is_none).await?;
        Ok(())
    }

    /// Lets go of the lease and waits until that is done.
    pub async fn release(self, reason: ReleaseReason) -> Result<(), Box<dyn Error>> {
        // When the driver is gone, so is the lease.
        let _ = self.events.send(Event::Wish(Wish::Release(reason)));
        Ok(self.task.await?)
    }

    /// Publishes under a token, whether or not its term is still on.
    pub async fn publish(&self, token: Token, value: &[u8]) -> Result<Reply, StoreError> {
        let connection = self.store.enter(Entry::default()).await?;
        let holding = Holding { name: self.name.clone(), holder: self.id.clone(), token };
        let request = Request::Publish { holding, record: "report".to_owned(), value: value.to_vec() };
        match connection.submit(vec![request], Duration::from_secs(1)).await.remove(0) {
            Outcome::Answered(reply) => Ok(reply),
            Outcome::Failed(error) | Outcome::Unknown(error) => Err(error),
        }
    }
}

struct Driver {
    id: InstanceId,
    store: MemoryStore,
    lease: Lease,
    settings: Arc<LeaseSettings>,
    /// What is remembered of the namespace between connections.
    memory: Option<NamespaceMemory>,
    link: Option<Link>,
    links: u64,
    wake: Option<(Moment, Epoch)>,
    work: Option<JoinHandle<()>>,
    /// Until when the term may be relied on; the work looks at it before everything it does.
    deadline: Arc<AtomicU64>,
    working: watch::Sender<Option<Token>>,
    events: mpsc::UnboundedSender<Event>,
}

/// A connection in use. One task sends its requests, in order.
struct Link {
    number: u64,
    requests: mpsc::UnboundedSender<(Attempt, Request)>,
}

impl Driver {
    async fn run(mut self, mut events: mpsc::UnboundedReceiver<Event>) {
        // A lease takes for granted that the store has been entered; until then there is nobody to ask.
        self.step(Input::ConnectionLost);
        self.connect(Duration::ZERO);
        while self.lease.ending().is_none() {
            let wake = self.wake;
            tokio::select! {
                Some(event) = events.recv() => self.handle(event),
                epoch = sleep_until(wake) => {
                    self.wake = None;
                    self.step(Input::Wake(epoch));
                }
                () = joined(&mut self.work) => {
                    println!("        ({}'s work has ended)", self.id);
                    self.working.send_replace(None);
                    self.step(Input::WorkEnded);
                }
                () = tokio::time::sleep(BACKSTOP) => self.step(Input::Tick),
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Wish(wish) => self.step(Input::Wish(wish)),
            Event::Entered(Ok(connection)) => self.entered(connection),
            Event::Entered(Err(error)) if error.is_retryable() => self.connect(self.settings.attempt_timeout() / 2),
            Event::Entered(Err(error)) => {
                println!("        ({} cannot use the store: {error})", self.id);
                self.connect(self.settings.renew_every());
            }
            // What comes from a connection that was given up is not for us any more.
            Event::Outcome(link, ..) | Event::Heard(link, _) | Event::LookAgain(link)
                if self.link.as_ref().is_none_or(|current| current.number != link) => {}
            Event::Outcome(_, attempt, Outcome::Answered(reply)) => {
                if let Some(memory) = &mut self.memory {
                    memory.learn(&reply);
                }
                self.step(Input::Answered { attempt, reply });
            }
            Event::Outcome(_, attempt, Outcome::Failed(error)) => {
                self.step(Input::Failed { attempt, error });
                self.reconnect();
            }
            Event::Outcome(_, attempt, Outcome::Unknown(error)) => {
                self.step(Input::Unknown { attempt, error });
                self.reconnect();
            }
            Event::Heard(_, announcement) => {
                if self.memory.as_ref().is_some_and(|memory| memory.is_outdated_by(&announcement)) {
                    self.reconnect();
                }
                self.step(Input::Announced(announcement));
            }
            Event::LookAgain(_) => self.step(Input::LookAgain),
        }
    }

    /// Enters the store beside the loop, which must not wait for it.
    fn connect(&self, pause: Duration) {
        let (store, events) = (self.store.clone(), self.events.clone());
        let entry = Entry { memory: self.memory.clone(), max_ttl: self.settings.ttl(), ..Entry::default() };
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let _ = events.send(Event::Entered(store.enter(entry).await));
        });
    }

    fn entered(&mut self, connection: Arc<dyn Connection>) {
        let continuity = match &mut self.memory {
            Some(memory) => memory.reenter(connection.entered()),
            None => {
                self.memory = Some(NamespaceMemory::of(connection.entered()));
                Continuity::Changed
            }
        };
        self.links += 1;
        let (number, limit) = (self.links, self.settings.attempt_timeout());
        let (requests, mut queue) = mpsc::unbounded_channel::<(Attempt, Request)>();
        let events = self.events.clone();
        tokio::spawn(async move {
            while let Some((attempt, request)) = queue.recv().await {
                let outcome = connection.submit(vec![request], limit).await.remove(0);
                let _ = events.send(Event::Outcome(number, attempt, outcome));
            }
        });
        self.link = Some(Link { number, requests });
        self.listen(number);
        self.step(Input::Entered(continuity));
    }

    fn listen(&self, link: u64) {
        let (store, events) = (self.store.clone(), self.events.clone());
        tokio::spawn(async move {
            let Ok(mut subscription) = store.subscribe().await else { return };
            // Whatever was announced before we listened was missed.
            let mut delivered = events.send(Event::LookAgain(link));
            while delivered.is_ok() {
                delivered = match subscription.next().await {
                    Heard::Announced(announcement) => events.send(Event::Heard(link, announcement)),
                    Heard::Gap => events.send(Event::LookAgain(link)),
                    Heard::Closed => return,
                };
            }
        });
    }

    /// Gives the connection up and makes another.
    fn reconnect(&mut self) {
        if self.link.take().is_some() {
            self.step(Input::ConnectionLost);
            self.connect(Duration::ZERO);
        }
    }

    /// Gives the machine an input and does what it asks for, until nothing more comes of it.
    fn step(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for action in self.lease.step(SystemClock.read(), input) {
                match action {
                    Action::Send { attempt, request, .. } => {
                        if let Some(link) = &self.link {
                            let _ = link.requests.send((attempt, request));
                        }
                    }
                    Action::Enter => self.reconnect(),
                    Action::Wake { at, epoch } => self.wake = Some((at, epoch)),
                    Action::Deadline(deadline) => self.deadline.store(deadline.as_nanos(), Ordering::Release),
                    Action::Tell(event) => println!("        {event}"),
                    Action::Permit(Permission::MayStart { token }) => self.start_work(token),
                    Action::Permit(Permission::MustCancel { .. } | Permission::MustBeGone) => {
                        // Cancelled here, joined in the loop: only then is it said to have ended.
                        match &self.work {
                            Some(work) => work.abort(),
                            None => inputs.push(Input::WorkEnded),
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    fn start_work(&mut self, token: Token) {
        if self.work.is_none() {
            self.working.send_replace(Some(token));
            let deadline = self.deadline.clone();
            self.work = Some(tokio::spawn(async move {
                // Whatever the driver does or fails to do, the work itself looks before it acts.
                while SystemClock.now() < Moment::from_nanos(deadline.load(Ordering::Acquire)) {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }));
        }
    }
}

/// Waits until nothing of the work is running any more.
async fn joined(work: &mut Option<JoinHandle<()>>) {
    match work {
        Some(handle) => {
            // Being cancelled is how this work ends.
            let _ = handle.await;
            *work = None;
        }
        None => pending().await,
    }
}

async fn sleep_until(wake: Option<(Moment, Epoch)>) -> Epoch {
    match wake {
        Some((at, epoch)) => {
            tokio::time::sleep(at.since(SystemClock.now())).await;
            epoch
        }
        None => pending().await,
    }
}
