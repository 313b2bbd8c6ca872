//! The smallest possible driver of a lease: it carries out what the machine asks for, and decides nothing itself.

use std::error::Error;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tenure::lease::{Action, Epoch, Input, Lease, LeaseSettings, Permission, ReleaseReason, Wish};
use tenure::store::memory::MemoryStore;
use tenure::store::{
    Connection, Continuity, Entry, Heard, Holding, NamespaceMemory, Outcome, Reply, Request, Store, StoreError,
};
use tenure::time::{LeaseClock, Moment, SystemClock};
use tenure::{InstanceId, LeaseName, Token};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

/// One instance that wants one lease and works while it has it.
pub struct Instance {
    store: MemoryStore,
    name: LeaseName,
    id: InstanceId,
    working: watch::Receiver<Option<Token>>,
    wishes: mpsc::UnboundedSender<Wish>,
    task: JoinHandle<()>,
}

impl Instance {
    pub fn start(store: MemoryStore, name: LeaseName, id: InstanceId, settings: Arc<LeaseSettings>) -> Self {
        let (working_sender, working) = watch::channel(None);
        let (wishes, wish_receiver) = mpsc::unbounded_channel();
        let driver = Driver {
            id: id.clone(),
            store: store.clone(),
            lease: Lease::new(name.clone(), id.clone(), settings.clone(), fastrand::u64(..)),
            settings,
            connection: None,
            memory: None,
            wake: None,
            work: None,
            requests: JoinSet::new(),
            working: working_sender,
        };
        let task = tokio::spawn(driver.run(wish_receiver));
        Self { store, name, id, working, wishes, task }
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
        self.wishes.send(Wish::Release(reason))?;
        Ok(self.task.await?)
    }

    /// Publishes under a token, whether or not its term is still on.
    pub async fn publish(&self, token: Token, value: &[u8]) -> Result<Reply, StoreError> {
        let connection = self.store.enter(Entry { stamp: fastrand::u64(..), ..Entry::default() }).await?;
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
    connection: Option<Arc<dyn Connection>>,
    memory: Option<NamespaceMemory>,
    wake: Option<(Moment, Epoch)>,
    work: Option<JoinHandle<()>>,
    requests: JoinSet<Input>,
    working: watch::Sender<Option<Token>>,
}

impl Driver {
    async fn run(mut self, mut wishes: mpsc::UnboundedReceiver<Wish>) {
        let mut heard = None;
        while self.lease.ending().is_none() {
            if self.connection.is_none() {
                match self.enter().await {
                    Ok(continuity) => {
                        heard = self.store.subscribe().await.ok();
                        self.step(Input::Entered(continuity));
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
            let wake = self.wake;
            let input = tokio::select! {
                Some(Ok(input)) = self.requests.join_next() => input,
                Some(wish) = wishes.recv() => Input::Wish(wish),
                () = joined(&mut self.work) => {
                    println!("        ({}'s work has ended)", self.id);
                    self.working.send_replace(None);
                    Input::WorkEnded
                }
                epoch = sleep_until(wake) => {
                    self.wake = None;
                    Input::Wake(epoch)
                }
                said = async { match &mut heard { Some(subscription) => subscription.next().await, None => pending().await } } => {
                    match said {
                        Heard::Announced(announcement) => {
                            if self.memory.as_ref().is_some_and(|memory| memory.is_outdated_by(&announcement)) {
                                self.connection = None;
                                self.step(Input::ConnectionLost);
                            }
                            Input::Announced(announcement)
                        }
                        Heard::Gap => Input::LookAgain,
                        Heard::Closed => {
                            heard = None;
                            Input::LookAgain
                        }
                    }
                }
                // The backstop: look at the clock, whatever the timers do.
                () = tokio::time::sleep(Duration::from_millis(if self.connection.is_some() { 250 } else { 20 })) => {
                    Input::Tick
                }
            };
            // An outcome that is not an answer means that the connection is not to be trusted any more.
            let broken = matches!(input, Input::Failed { .. } | Input::Unknown { .. });
            self.step(input);
            if broken && self.connection.take().is_some() {
                self.step(Input::ConnectionLost);
            }
        }
    }

    async fn enter(&mut self) -> Result<Continuity, StoreError> {
        let entry = Entry {
            memory: self.memory.clone(),
            stamp: fastrand::u64(..),
            max_ttl: self.settings.ttl(),
            // Nobody else has used this store before us.
            bootstrap: true,
            ..Entry::default()
        };
        let connection = self.store.enter(entry).await?;
        let continuity = match &mut self.memory {
            Some(memory) => memory.reenter(connection.entered()),
            None => {
                self.memory = Some(NamespaceMemory::of(connection.entered()));
                Continuity::Changed
            }
        };
        self.connection = Some(connection);
        Ok(continuity)
    }

    /// Gives the machine an input and does what it asks for, until nothing more comes of it.
    fn step(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for action in self.lease.step(SystemClock.read(), input) {
                match action {
                    Action::Send { attempt, request, .. } => self.send(attempt, request),
                    Action::Enter => self.connection = None,
                    Action::Wake { at, epoch } => self.wake = Some((at, epoch)),
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

    fn send(&mut self, attempt: tenure::lease::Attempt, request: Request) {
        let limit = self.settings.attempt_timeout();
        let connection = self.connection.clone();
        self.requests.spawn(async move {
            let Some(connection) = connection else { return Input::ConnectionLost };
            match connection.submit(vec![request], limit).await.remove(0) {
                Outcome::Answered(reply) => Input::Answered { attempt, reply },
                Outcome::Failed(error) => Input::Failed { attempt, error },
                Outcome::Unknown(error) => Input::Unknown { attempt, error },
            }
        });
    }

    fn start_work(&mut self, token: Token) {
        if self.work.is_none() {
            self.working.send_replace(Some(token));
            self.work = Some(tokio::spawn(async {
                loop {
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
