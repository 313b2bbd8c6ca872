//! A lease manager, a ledger, and a clock that tests move by hand.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::{mpsc, oneshot, watch};

use super::*;
use crate::keeper::store_calls::MAX_LOW_PRIORITY_IN_FLIGHT;
use crate::keeper::{Command, ConnectionState, Gauges, KeeperHandle};
use crate::name::InstanceId;
use crate::store::{AttachRequest, Generation, Ledger, ServerInfo, ServerRun};
use crate::time::ServerTime;

type GrantReceiver = oneshot::Receiver<Result<TermGuard, AcquireError>>;

const TTL: Duration = Duration::from_secs(30);

struct ManagerHarness {
    manager: LeaseManager,
    ledger: Ledger,
    generation: Generation,
    now: Moment,
    keeper: Arc<KeeperHandle>,
    commands: mpsc::UnboundedReceiver<Command>,
    /// Whether the store replies to requests.
    store_replies: bool,
}

impl ManagerHarness {
    fn new() -> Self {
        let (sender, commands) = mpsc::unbounded_channel();
        let instance = InstanceId::new("alice").unwrap();
        let keeper = Arc::new(KeeperHandle {
            instance: instance.clone(),
            location: "test:".to_owned(),
            commands: sender,
            connection_state: watch::channel(ConnectionState::Attached).1,
            gauges: Arc::new(Gauges::default()),
            listeners: super::super::Listeners::new(Arc::default()),
            next_waiter_id: AtomicU64::new(1),
            deferred_calls: std::sync::Mutex::default(),
            process: rustix::process::getpid(),
        });
        let manager = LeaseManager::new(instance);
        let ledger = Ledger::default();
        let mut harness = Self {
            manager,
            ledger,
            generation: Generation::default(),
            now: Moment::ZERO + Duration::from_secs(1_000),
            keeper,
            commands,
            store_replies: true,
        };
        harness.attach();
        harness
    }

    fn read(&self) -> Now {
        Now::undisturbed(self.now)
    }

    fn server_time(&self) -> ServerTime {
        ServerTime::from_micros(self.now.as_nanos() / 1_000)
    }

    fn attach(&mut self) {
        let entry = AttachRequest {
            memory: self.manager.memory.clone(),
            bootstrap: true,
            ..AttachRequest::new(fastrand::u64(..))
        };
        let (now, run) = (self.server_time(), ServerRun(1));
        let server = ServerInfo { now, run, uptime: Duration::MAX, subscribers: 0, has_served: false };
        let entered = self.ledger.attach(&server, &entry, &mut Vec::new());
        self.generation = entered.generation;
        let continuity = match &mut self.manager.memory {
            Some(memory) => memory.reattach(&entered),
            none => {
                *none = Some(NamespaceMemory::new(&entered));
                Continuity::Changed
            }
        };
        self.manager.attached(self.read(), continuity);
    }

    fn claim(&mut self, name: &str, mode: AcquireMode, timeout: Option<Duration>) -> (WaiterId, GrantReceiver) {
        let (reply, answer) = oneshot::channel();
        let (waiter_id, name) = (self.keeper.new_waiter_id(), LeaseName::lease(name).unwrap());
        let settings = Arc::new(LeaseSettings::default());
        let (keeper, status_sender, heartbeat) = (self.keeper.clone(), None, None);
        let waiter = Waiter { id: waiter_id, name, settings, mode, timeout, keeper, reply, status_sender, heartbeat };
        self.manager.acquire(self.read(), waiter);
        (waiter_id, answer)
    }

    fn acquire(&mut self, name: &str) -> GrantReceiver {
        self.claim(name, AcquireMode::Wait, None).1
    }

    /// Does what a keeper does until nothing is due at this moment.
    fn settle(&mut self) {
        loop {
            let now = self.read();
            self.manager.check_timers(now);
            let outbox = std::mem::take(&mut self.manager.outbox);
            let mut quiet = outbox.is_empty();
            for Outgoing { request, reply_to, .. } in outbox {
                if self.store_replies {
                    let mut heard = Vec::new();
                    let reply = self.ledger.apply(self.server_time(), self.generation, &request, &mut heard);
                    self.manager.answered(now, reply_to, Outcome::Answered(reply));
                    for announcement in heard {
                        self.manager.announced(now, announcement);
                    }
                }
            }
            while let Ok(command) = self.commands.try_recv() {
                quiet = false;
                match command {
                    Command::Intent(id, intent) => self.manager.apply_intent(now, id, intent),
                    Command::WorkEnded(id) => self.manager.work_ended(now, id),
                    _ => unreachable!("tests send no other command"),
                }
            }
            if quiet {
                return;
            }
        }
    }

    /// Advances the clock, from one wake-up to the next.
    fn advance(&mut self, span: Duration) {
        let end = self.now + span;
        self.settle();
        while let Some(wake) = self.manager.next_wake().filter(|wake| *wake <= end) {
            assert!(wake > self.now, "a wake-up that is due does not stay due: {wake} at {}", self.now);
            self.now = wake;
            self.settle();
        }
        self.now = end;
    }

    /// Whether no lease or waiter is left.
    fn is_empty(&self) -> bool {
        self.manager.len() == 0
            && self.manager.held() == 0
            && self.manager.queues.is_empty()
            && self.manager.places.is_empty()
    }
}

fn granted(answer: &mut GrantReceiver) -> TermGuard {
    answer.try_recv().unwrap().unwrap_or_else(|error| panic!("not granted: {error}"))
}

fn refused(answer: &mut GrantReceiver) -> AcquireError {
    answer.try_recv().unwrap().err().unwrap()
}

fn is_still_waiting(answer: &mut GrantReceiver) -> bool {
    matches!(answer.try_recv(), Err(oneshot::error::TryRecvError::Empty))
}

#[test]
fn waiters_are_served_in_order() {
    let mut harness = ManagerHarness::new();
    let mut line: Vec<GrantReceiver> = (0..5).map(|_| harness.acquire("job")).collect();
    let mut last = Token::ZERO;
    for turn in 0..5 {
        harness.settle();
        let term = granted(&mut line[turn]);
        assert!(term.handle().token() > last);
        last = term.handle().token();
        assert!(line[turn + 1..].iter_mut().all(is_still_waiting));
        drop(term);
    }
    harness.settle();
    assert!(harness.is_empty());
}

#[test]
fn a_waiter_that_gives_up_is_skipped() {
    let mut harness = ManagerHarness::new();
    let mut first = harness.acquire("job");
    let (waiter_id, _) = harness.claim("job", AcquireMode::Wait, None);
    let mut third = harness.acquire("job");
    harness.settle();
    harness.manager.give_up(harness.read(), waiter_id);
    drop(granted(&mut first));
    harness.settle();
    drop(granted(&mut third));
    harness.settle();
    assert!(harness.is_empty());
}

#[test]
fn a_grant_without_a_waiter_is_released() {
    let mut harness = ManagerHarness::new();
    drop(harness.acquire("job"));
    harness.settle();
    assert!(harness.is_empty());
    assert_eq!(harness.ledger.holder_of(harness.server_time(), &LeaseName::lease("job").unwrap()), None);
}

#[test]
fn timeouts_end_waiting_in_the_queue_and_at_the_store() {
    let mut harness = ManagerHarness::new();
    let (job, foreign) = (LeaseName::lease("job").unwrap(), InstanceId::new("bob").unwrap());
    harness.ledger.write_foreign(&job, &foreign, None);
    let timeout = Duration::from_secs(5);
    let (_, mut at_the_store) = harness.claim("job", AcquireMode::Wait, Some(timeout));
    let (_, mut in_line) = harness.claim("job", AcquireMode::Wait, Some(timeout * 2));
    harness.advance(timeout - Duration::from_millis(1));
    assert!(is_still_waiting(&mut at_the_store));
    harness.advance(Duration::from_millis(1));
    assert_eq!(
        refused(&mut at_the_store),
        AcquireError::TimedOut { waited: timeout, holder: Some(InstanceId::new("bob").unwrap()), because: None }
    );
    assert!(is_still_waiting(&mut in_line));
    harness.advance(timeout);
    assert_eq!(
        refused(&mut in_line),
        AcquireError::TimedOut { waited: timeout * 2, holder: Some(InstanceId::new("bob").unwrap()), because: None }
    );
    harness.advance(TTL);
    assert!(harness.is_empty());
}

#[test]
fn a_permanent_store_error_is_reported_to_every_waiter() {
    let mut harness = ManagerHarness::new();
    harness.manager.connection_lost(harness.read(), "a test");
    let mut waiting: Vec<GrantReceiver> = (0..3).map(|_| harness.acquire("job")).collect();
    let passing = StoreError::new(ErrorKind::Unreachable, "down");
    harness.manager.attach_failed(harness.read(), &passing);
    harness.settle();
    assert!(waiting.iter_mut().all(is_still_waiting), "a server that is down comes back");
    let lasting = StoreError::new(ErrorKind::Configuration, "wrong password");
    harness.manager.attach_failed(harness.read(), &lasting);
    harness.settle();
    for answer in &mut waiting {
        assert_eq!(refused(answer), AcquireError::Store(lasting.clone()));
    }
    assert!(harness.is_empty());
}

#[test]
fn a_shutdown_refuses_every_waiter_and_releases_every_lease() {
    let mut harness = ManagerHarness::new();
    let mut terms = Vec::new();
    for number in 0..10 {
        let mut answer = harness.acquire(&format!("job-{number}"));
        harness.settle();
        terms.push(granted(&mut answer));
    }
    let mut behind = harness.acquire("job-3");
    harness.manager.shut_down(harness.read());
    harness.settle();
    assert_eq!(refused(&mut behind), AcquireError::ShutDown);
    assert!(harness.is_empty());
    assert!(harness.ledger.holder_of(harness.server_time(), &LeaseName::lease("job-3").unwrap()).is_none());
}

#[test]
fn held_leases_keep_being_renewed_in_batches() {
    let mut harness = ManagerHarness::new();
    let mut terms = Vec::new();
    for number in 0..5_000 {
        harness.now = harness.now + Duration::from_micros(300);
        let mut answer = harness.acquire(&format!("job-{number}"));
        harness.settle();
        terms.push(granted(&mut answer));
    }
    let mut batches = 0;
    let end = harness.now + TTL * 2;
    while let Some(wake) = harness.manager.next_wake().filter(|wake| *wake <= end) {
        harness.now = wake;
        harness.manager.check_timers(harness.read());
        batches += usize::from(!harness.manager.outbox.is_empty());
        harness.settle();
    }
    assert!(terms.iter().all(|term| term.handle().state() == crate::lease::LeaseState::Owned));
    assert_eq!(harness.manager.held(), 5_000);
    // Six renewals of each lease; without batching, every renewal would need its own batch.
    assert!(batches < 30_000 / 4, "{batches} batches");
    drop(terms);
    harness.settle();
    assert!(harness.is_empty());
}

/// Claims, releases, lost connections and missing replies, in any order: when the store replies again, every waiter
/// gets a reply and nothing is left.
#[test]
fn every_waiter_is_answered_in_the_end() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut harness = ManagerHarness::new();
        let mut waiting: Vec<(WaiterId, GrantReceiver)> = Vec::new();
        let mut held = Vec::new();
        let mut online = true;
        for _ in 0..300 {
            match random.u8(..10) {
                0..4 => {
                    let name = format!("job-{}", random.u8(..8));
                    let mode = if random.bool() { AcquireMode::Wait } else { AcquireMode::Try };
                    let timeout = random.bool().then(|| Duration::from_millis(random.u64(1..20_000)));
                    waiting.push(harness.claim(&name, mode, timeout));
                }
                4 if !waiting.is_empty() => {
                    let (waiter_id, _) = waiting.swap_remove(random.usize(..waiting.len()));
                    harness.manager.give_up(harness.read(), waiter_id);
                }
                5 if !held.is_empty() => drop(held.swap_remove(random.usize(..held.len()))),
                6 => harness.store_replies = random.bool(),
                7 if online => {
                    harness.manager.connection_lost(harness.read(), "a test");
                    online = false;
                }
                7 => {
                    harness.attach();
                    online = true;
                }
                _ => harness.advance(Duration::from_millis(random.u64(1..8_000))),
            }
            harness.settle();
            waiting.retain_mut(|(_, answer)| match answer.try_recv() {
                Ok(Ok(term)) => {
                    held.push(term);
                    false
                }
                Ok(Err(_)) => false,
                Err(_) => true,
            });
        }
        harness.store_replies = true;
        if !online {
            harness.attach();
        }
        // The terms are released, so that every waiter gets its turn.
        for _ in 0..waiting.len() + 1 {
            held.clear();
            harness.advance(TTL * 2);
            waiting.retain_mut(|(_, answer)| answer.try_recv().is_err());
        }
        assert!(waiting.is_empty(), "seed {seed}: {} waiters got no reply", waiting.len());
        assert!(harness.is_empty(), "seed {seed}");
    }
}

#[test]
fn low_priority_calls_are_sent_in_order_and_a_few_at_a_time() {
    let mut harness = ManagerHarness::new();
    harness.settle();
    let mut replies = Vec::new();
    for number in 0..1_000 {
        let (reply, answer) = oneshot::channel();
        let request =
            DocumentRequest::IndexAdd { index: "all".to_owned(), entry: number.to_string(), announced: false };
        harness
            .manager
            .call(harness.read(), StoreCall { request: request.into(), timeout: TTL, is_work: false, reply });
        replies.push(answer);
    }
    assert_eq!(harness.manager.outbox.len(), MAX_LOW_PRIORITY_IN_FLIGHT);
    // Neither work nor a claim queues behind all of them.
    let (reply, mut work) = oneshot::channel();
    let request = DocumentRequest::IndexAdd { index: "work".to_owned(), entry: "1".to_owned(), announced: false };
    harness.manager.call(harness.read(), StoreCall { request: request.into(), timeout: TTL, is_work: true, reply });
    let mut waiter = harness.acquire("job");
    assert_eq!(harness.manager.outbox.len(), MAX_LOW_PRIORITY_IN_FLIGHT + 2);
    harness.settle();
    granted(&mut waiter);
    assert!(work.try_recv().is_ok());
    assert!(replies.iter_mut().all(|answer| matches!(answer.try_recv(), Ok(Outcome::Answered(Reply::Done)))));

    // Calls that wait when the connection is lost wait for the next one.
    let mut waiting: Vec<_> = (0..100)
        .map(|_| {
            let (reply, answer) = oneshot::channel();
            let request = DocumentRequest::IndexList { index: "all".to_owned() };
            harness
                .manager
                .call(harness.read(), StoreCall { request: request.into(), timeout: TTL, is_work: false, reply });
            answer
        })
        .collect();
    harness.manager.connection_lost(harness.read(), "cut");
    harness.attach();
    harness.settle();
    let answered = waiting.iter_mut().filter_map(|answer| answer.try_recv().ok());
    let listed =
        answered.filter(|outcome| matches!(outcome, Outcome::Answered(Reply::Index(all)) if all.len() == 1_000));
    assert_eq!(listed.count(), 100 - MAX_LOW_PRIORITY_IN_FLIGHT);
}
