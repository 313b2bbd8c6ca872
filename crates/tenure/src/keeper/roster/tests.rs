//! A roster, a ledger, and a clock that tests move by hand.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::{mpsc, oneshot, watch};

use super::*;
use crate::keeper::questions::AT_ONCE;
use crate::keeper::{Command, Contact, Door, Gauges};
use crate::name::InstanceId;
use crate::store::{Entry as EntryToStore, Generation, Ledger, Server, ServerRun};
use crate::time::ServerTime;

type Answer = oneshot::Receiver<Result<Granted, AcquireError>>;

const TTL: Duration = Duration::from_secs(30);

struct Desk {
    roster: Roster,
    ledger: Ledger,
    generation: Generation,
    now: Moment,
    door: Arc<Door>,
    commands: mpsc::UnboundedReceiver<Command>,
    /// Whether what is sent is answered.
    answers: bool,
}

impl Desk {
    fn new() -> Self {
        let (sender, commands) = mpsc::unbounded_channel();
        let instance = InstanceId::new("alice").unwrap();
        let door = Arc::new(Door {
            instance: instance.clone(),
            location: "test:".to_owned(),
            commands: sender,
            contact: watch::channel(Contact::Entered).1,
            gauges: Arc::new(Gauges::default()),
            tickets: AtomicU64::new(1),
            soon: std::sync::Mutex::default(),
            process: rustix::process::getpid(),
        });
        let roster = Roster::new(instance);
        let ledger = Ledger::default();
        let mut desk = Self {
            roster,
            ledger,
            generation: Generation::default(),
            now: Moment::ZERO + Duration::from_secs(1_000),
            door,
            commands,
            answers: true,
        };
        desk.enters();
        desk
    }

    fn read(&self) -> Now {
        Now::undisturbed(self.now)
    }

    fn server_time(&self) -> ServerTime {
        ServerTime::from_micros(self.now.as_nanos() / 1_000)
    }

    fn enters(&mut self) {
        let entry = EntryToStore { memory: self.roster.memory.clone(), bootstrap: true, ..EntryToStore::default() };
        let (now, run) = (self.server_time(), ServerRun(1));
        let server = Server { now, run, uptime: Duration::MAX, listeners: 0, has_served: false };
        let entered = self.ledger.enter(&server, &entry, &mut Vec::new());
        self.generation = entered.generation;
        let continuity = match &mut self.roster.memory {
            Some(memory) => memory.reenter(&entered),
            none => {
                *none = Some(NamespaceMemory::of(&entered));
                Continuity::Changed
            }
        };
        self.roster.entered(self.read(), continuity);
    }

    fn claims(&mut self, name: &str, mode: Mode, limit: Option<Duration>) -> (Ticket, Answer) {
        let (reply, answer) = oneshot::channel();
        let (ticket, name) = (self.door.ticket(), LeaseName::lease(name).unwrap());
        let settings = Arc::new(LeaseSettings::default());
        let (door, onlooker, heartbeat) = (self.door.clone(), None, None);
        let claim = Claim { ticket, name, settings, mode, limit, door, reply, onlooker, heartbeat };
        self.roster.acquire(self.read(), claim);
        (ticket, answer)
    }

    fn waits(&mut self, name: &str) -> Answer {
        self.claims(name, Mode::Wait, None).1
    }

    /// What a keeper does until there is nothing to be done at this moment.
    fn settle(&mut self) {
        loop {
            let now = self.read();
            self.roster.look_at_clock(now);
            let outbox = std::mem::take(&mut self.roster.outbox);
            let mut quiet = outbox.is_empty();
            for Outgoing { request, tag, .. } in outbox {
                if self.answers {
                    let mut heard = Vec::new();
                    let reply = self.ledger.apply(self.server_time(), self.generation, &request, &mut heard);
                    self.roster.answered(now, tag, Outcome::Answered(reply));
                    for announcement in heard {
                        self.roster.announced(now, announcement);
                    }
                }
            }
            while let Ok(command) = self.commands.try_recv() {
                quiet = false;
                match command {
                    Command::Wish(id, wish) => self.roster.wish(now, id, wish),
                    Command::WorkEnded(id) => self.roster.work_ended(now, id),
                    _ => unreachable!("tests tell nothing else"),
                }
            }
            if quiet {
                return;
            }
        }
    }

    /// Lets time pass, from one wake-up to the next.
    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        self.settle();
        while let Some(wake) = self.roster.next_wake().filter(|wake| *wake <= end) {
            assert!(wake > self.now, "a wake-up that is due does not stay due: {wake} at {}", self.now);
            self.now = wake;
            self.settle();
        }
        self.now = end;
    }

    /// Nothing is left of anybody.
    fn is_empty(&self) -> bool {
        self.roster.len() == 0
            && self.roster.held() == 0
            && self.roster.lines.is_empty()
            && self.roster.tickets.is_empty()
    }
}

fn granted(answer: &mut Answer) -> Granted {
    answer.try_recv().unwrap().unwrap_or_else(|error| panic!("not granted: {error}"))
}

fn refused(answer: &mut Answer) -> AcquireError {
    answer.try_recv().unwrap().err().unwrap()
}

fn waits_still(answer: &mut Answer) -> bool {
    matches!(answer.try_recv(), Err(oneshot::error::TryRecvError::Empty))
}

#[test]
fn whoever_asked_first_is_served_first() {
    let mut desk = Desk::new();
    let mut line: Vec<Answer> = (0..5).map(|_| desk.waits("job")).collect();
    let mut last = Token::ZERO;
    for turn in 0..5 {
        desk.settle();
        let term = granted(&mut line[turn]);
        assert!(term.handle().token() > last);
        last = term.handle().token();
        assert!(line[turn + 1..].iter_mut().all(waits_still));
        drop(term);
    }
    desk.settle();
    assert!(desk.is_empty());
}

#[test]
fn whoever_gives_up_in_the_middle_of_a_line_is_skipped() {
    let mut desk = Desk::new();
    let mut first = desk.waits("job");
    let (ticket, _) = desk.claims("job", Mode::Wait, None);
    let mut third = desk.waits("job");
    desk.settle();
    desk.roster.give_up(desk.read(), ticket);
    drop(granted(&mut first));
    desk.settle();
    drop(granted(&mut third));
    desk.settle();
    assert!(desk.is_empty());
}

#[test]
fn a_grant_that_nobody_waits_for_any_more_is_let_go_of() {
    let mut desk = Desk::new();
    drop(desk.waits("job"));
    desk.settle();
    assert!(desk.is_empty());
    assert_eq!(desk.ledger.holder_of(desk.server_time(), &LeaseName::lease("job").unwrap()), None);
}

#[test]
fn limits_end_waiting_in_line_and_at_the_store() {
    let mut desk = Desk::new();
    let (job, foreign) = (LeaseName::lease("job").unwrap(), InstanceId::new("bob").unwrap());
    desk.ledger.write_foreign(&job, &foreign, None);
    let limit = Duration::from_secs(5);
    let (_, mut at_the_store) = desk.claims("job", Mode::Wait, Some(limit));
    let (_, mut in_line) = desk.claims("job", Mode::Wait, Some(limit * 2));
    desk.pass(limit - Duration::from_millis(1));
    assert!(waits_still(&mut at_the_store));
    desk.pass(Duration::from_millis(1));
    assert_eq!(
        refused(&mut at_the_store),
        AcquireError::TimedOut { waited: limit, by: Some(InstanceId::new("bob").unwrap()), because: None }
    );
    assert!(waits_still(&mut in_line));
    desk.pass(limit);
    assert_eq!(
        refused(&mut in_line),
        AcquireError::TimedOut { waited: limit * 2, by: Some(InstanceId::new("bob").unwrap()), because: None }
    );
    desk.pass(TTL);
    assert!(desk.is_empty());
}

#[test]
fn what_waiting_does_not_mend_is_told_to_the_whole_line() {
    let mut desk = Desk::new();
    desk.roster.connection_lost(desk.read(), "a test");
    let mut waiting: Vec<Answer> = (0..3).map(|_| desk.waits("job")).collect();
    let passing = StoreError::new(ErrorKind::Unreachable, "down");
    desk.roster.cannot_enter(desk.read(), &passing);
    desk.settle();
    assert!(waiting.iter_mut().all(waits_still), "a server that is down comes back");
    let lasting = StoreError::new(ErrorKind::Configuration, "wrong password");
    desk.roster.cannot_enter(desk.read(), &lasting);
    desk.settle();
    for answer in &mut waiting {
        assert_eq!(refused(answer), AcquireError::Store(lasting.clone()));
    }
    assert!(desk.is_empty());
}

#[test]
fn shutting_down_refuses_everybody_and_lets_go_of_everything() {
    let mut desk = Desk::new();
    let mut terms = Vec::new();
    for number in 0..10 {
        let mut answer = desk.waits(&format!("job-{number}"));
        desk.settle();
        terms.push(granted(&mut answer));
    }
    let mut behind = desk.waits("job-3");
    desk.roster.shut_down(desk.read());
    desk.settle();
    assert_eq!(refused(&mut behind), AcquireError::ShutDown);
    assert!(desk.is_empty());
    assert!(desk.ledger.holder_of(desk.server_time(), &LeaseName::lease("job-3").unwrap()).is_none());
}

#[test]
fn held_leases_are_renewed_for_ever_and_travel_together() {
    let mut desk = Desk::new();
    let mut terms = Vec::new();
    for number in 0..5_000 {
        desk.now = desk.now + Duration::from_micros(300);
        let mut answer = desk.waits(&format!("job-{number}"));
        desk.settle();
        terms.push(granted(&mut answer));
    }
    let mut batches = 0;
    let end = desk.now + TTL * 2;
    while let Some(wake) = desk.roster.next_wake().filter(|wake| *wake <= end) {
        desk.now = wake;
        desk.roster.look_at_clock(desk.read());
        batches += usize::from(!desk.roster.outbox.is_empty());
        desk.settle();
    }
    assert!(terms.iter().all(|term| term.handle().state() == crate::lease::LeaseState::Owned));
    assert_eq!(desk.roster.held(), 5_000);
    // Six renewals of each; alone, every one would need its own.
    assert!(batches < 30_000 / 4, "{batches} batches");
    drop(terms);
    desk.settle();
    assert!(desk.is_empty());
}

/// Claims, releases, lost connections and silence, in any order: in the end, when the store answers again, everybody is
/// told and nothing is left.
#[test]
fn whatever_happens_nobody_is_forgotten() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut desk = Desk::new();
        let mut waiting: Vec<(Ticket, Answer)> = Vec::new();
        let mut held = Vec::new();
        let mut online = true;
        for _ in 0..300 {
            match random.u8(..10) {
                0..4 => {
                    let name = format!("job-{}", random.u8(..8));
                    let mode = if random.bool() { Mode::Wait } else { Mode::Try };
                    let limit = random.bool().then(|| Duration::from_millis(random.u64(1..20_000)));
                    waiting.push(desk.claims(&name, mode, limit));
                }
                4 if !waiting.is_empty() => {
                    let (ticket, _) = waiting.swap_remove(random.usize(..waiting.len()));
                    desk.roster.give_up(desk.read(), ticket);
                }
                5 if !held.is_empty() => drop(held.swap_remove(random.usize(..held.len()))),
                6 => desk.answers = random.bool(),
                7 if online => {
                    desk.roster.connection_lost(desk.read(), "a test");
                    online = false;
                }
                7 => {
                    desk.enters();
                    online = true;
                }
                _ => desk.pass(Duration::from_millis(random.u64(1..8_000))),
            }
            desk.settle();
            waiting.retain_mut(|(_, answer)| match answer.try_recv() {
                Ok(Ok(term)) => {
                    held.push(term);
                    false
                }
                Ok(Err(_)) => false,
                Err(_) => true,
            });
        }
        desk.answers = true;
        if !online {
            desk.enters();
        }
        // Whoever holds nothing any more lets go, whoever waits gets its turn.
        for _ in 0..waiting.len() + 1 {
            held.clear();
            desk.pass(TTL * 2);
            waiting.retain_mut(|(_, answer)| answer.try_recv().is_err());
        }
        assert!(waiting.is_empty(), "seed {seed}: {} were forgotten", waiting.len());
        assert!(desk.is_empty(), "seed {seed}");
    }
}

#[test]
fn what_users_ask_is_sent_a_little_at_a_time_and_in_order() {
    let mut desk = Desk::new();
    desk.settle();
    let mut answers = Vec::new();
    for number in 0..1_000 {
        let (reply, answer) = oneshot::channel();
        let request = Request::IndexAdd { index: "all".to_owned(), entry: number.to_string(), announced: false };
        desk.roster.ask(desk.read(), Question { request, limit: TTL, is_work: false, reply });
        answers.push(answer);
    }
    assert_eq!(desk.roster.outbox.len(), AT_ONCE);
    // Neither work nor a claim is behind all of them.
    let (reply, mut work) = oneshot::channel();
    let request = Request::IndexAdd { index: "work".to_owned(), entry: "1".to_owned(), announced: false };
    desk.roster.ask(desk.read(), Question { request, limit: TTL, is_work: true, reply });
    let mut claim = desk.waits("job");
    assert_eq!(desk.roster.outbox.len(), AT_ONCE + 2);
    desk.settle();
    granted(&mut claim);
    assert!(work.try_recv().is_ok());
    assert!(answers.iter_mut().all(|answer| matches!(answer.try_recv(), Ok(Outcome::Answered(Reply::Done)))));

    // What waits when the connection is lost waits for the next one.
    let mut waiting: Vec<_> = (0..100)
        .map(|_| {
            let (reply, answer) = oneshot::channel();
            let request = Request::IndexList { index: "all".to_owned() };
            desk.roster.ask(desk.read(), Question { request, limit: TTL, is_work: false, reply });
            answer
        })
        .collect();
    desk.roster.connection_lost(desk.read(), "cut");
    desk.enters();
    desk.settle();
    let answered = waiting.iter_mut().filter_map(|answer| answer.try_recv().ok());
    let listed =
        answered.filter(|outcome| matches!(outcome, Outcome::Answered(Reply::Index(all)) if all.len() == 1_000));
    assert_eq!(listed.count(), 100 - AT_ONCE);
}
