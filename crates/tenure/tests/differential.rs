//! Every store against the ledger, by chance.
//!
//! A seed makes a sequence of operations: requests about few leases by few holders under few nonces, with tokens that
//! were granted, that were not yet, and that never will be; entries with true and with false memories; a flush; writes
//! and deletions by outsiders. The sequence is carried out on the store and on a [`Ledger`], which says what every
//! store must answer, and every answer and every announcement is compared. What may differ is brought together first:
//! the n-th token (or generation) of one is the n-th of the other, clocks are not compared, and spans need only be
//! about the same.
//!
//! Spans are either [`SHORT`], and then waited out at once, or too long to end while this runs: a slow machine changes
//! nothing. A difference is cut down to the operations that it needs before it is told.
//!
//! `TENURE_DIFFERENTIAL_SEQUENCES` says how many sequences each store is put through, `TENURE_DIFFERENTIAL_SEED` where
//! they start: a sequence that failed comes first when its seed is given.

#![cfg(any(feature = "redis", feature = "sqlite"))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure::lease::{Ending, Loss, ReleaseReason};
use tenure::store::{
    Announcement, Ask, Claim, Connection, Entered, Entry, Generation, Heard, Held, Holding, Keyspace, Ledger,
    NamespaceMemory, Outcome, Reply, Request, Server, ServerRun, Store, Subscription, TermNote,
};
use tenure::time::ServerTime;
use tenure::{InstanceId, LeaseName, Nonce, Token};

/// A span that is waited out before anything else is asked.
const SHORT: Duration = Duration::from_millis(5);
/// Well beyond that.
const BEYOND_SHORT: Duration = Duration::from_millis(25);
/// Spans that do not end while this runs.
const LONG: [Duration; 4] = [
    Duration::from_secs(300),
    Duration::from_secs(3_600),
    Duration::from_secs(24 * 3_600),
    // Above the longest ttl there is.
    Duration::from_secs(30 * 3_600),
];
/// How far two spans may be apart, which is how long a request may take.
const SLACK: Duration = Duration::from_secs(60);
/// How long an answer is waited for.
const LIMIT: Duration = Duration::from_secs(60);
/// How far a token is put beside those that exist: further than any clock goes while this runs.
const ASIDE: u64 = 1 << 40;
/// How many sequences run at a time: most of their time is spent waiting.
const AT_A_TIME: usize = 24;
/// How many operations a sequence has at most.
const LONGEST_SEQUENCE: usize = 40;

/// A token, by where it comes from.
#[derive(Clone, Copy, Debug)]
enum Which {
    /// The n-th seen, counted from the latest.
    Seen(usize),
    /// Below and above all that exist.
    Below(usize),
    Above(usize),
    /// This far from the largest.
    Last(u64),
    Zero,
}

/// What a process remembers when it enters.
#[derive(Clone, Copy, Debug)]
enum Memory {
    Nothing,
    Everything,
    /// Not what was.
    False {
        older: bool,
        newer: bool,
        stamp: bool,
        token: Option<Which>,
        max_ttl: Option<Duration>,
    },
}

#[derive(Clone, Copy, Debug)]
struct Term {
    token: Which,
    /// Whether lease and holder are those that the token was granted for, if it was.
    right: bool,
    lease: usize,
    holder: usize,
}

/// A request, before its tokens are known.
#[derive(Clone, Copy, Debug)]
enum Wish {
    Acquire { lease: usize, holder: usize, nonce: u8, ttl: Duration, ended: Option<Which> },
    TakeOver { lease: usize, holder: usize, nonce: u8, ttl: Duration, victim: Which, stale_after: Duration },
    Renew { term: Term, ttl: Duration, progressed: bool },
    Release { term: Term, ending: usize },
    Abandon { lease: usize, holder: usize, nonce: u8 },
    HandOver { term: Term, to: usize, window: Duration },
    Revoke { lease: usize, token: Which },
    StepDown { lease: usize, token: Which, to: Option<usize> },
    Inspect { lease: usize },
    Publish { term: Term, record: usize, value: usize },
    Read { lease: usize, record: usize },
    Announce { lease: usize, token: Which },
    Beat { instance: usize, ttl: Duration, record: usize },
    Leave { instance: usize },
    Members,
    IndexAdd { index: usize, entry: usize },
    IndexRemove { index: usize, entry: usize },
    IndexList { index: usize },
    Note { term: Term, ending: Option<usize> },
    Notes { limit: usize },
}

#[derive(Clone, Debug)]
enum Operation {
    Enter { client: usize, memory: Memory, max_ttl: Duration, bootstrap: bool, durable: bool, stamp: u64 },
    Submit { client: usize, batch: Vec<Wish> },
    Flush,
    WriteForeign { lease: usize, holder: usize, ttl: Option<Duration> },
    DeleteForeign { lease: usize },
    Wait,
}

const CLIENTS: usize = 3;
const HOLDERS: [&str; 3] = ["api-1", "api-2", "ä:b?c"];
/// Holders as outsiders write them, some of them ours.
const FOREIGN: [&str; 5] = ["api-1", "api-2", "another program", "", "x{y}"];
const RECORDS: [&str; 3] = ["state", "", "a b\n\0{c} ü"];
const VALUES: [&[u8]; 4] = [b"", b"1 2 3", b" \0\xff\r\n", &[b'x'; 300]];
const ENTRIES: [&str; 4] = ["eu-1", "", "a b\n\0{c} ü", "EU-1"];

fn keyspace(namespace: &str) -> Keyspace {
    Keyspace::default().namespace(namespace).unwrap()
}

fn lease(number: usize) -> LeaseName {
    match number {
        0 => LeaseName::lease("a").unwrap(),
        1 => LeaseName::role("b").unwrap(),
        _ => LeaseName::target("poll", "ü:1").unwrap(),
    }
}

fn holder(number: usize) -> InstanceId {
    InstanceId::new(HOLDERS[number]).unwrap()
}

fn ending(number: usize) -> Ending {
    match number {
        0 => Ending::GivenUp,
        1 => Ending::Released(ReleaseReason::StepDown),
        2 => Ending::Lost(Loss::Taken { by: InstanceId::foreign("another program") }),
        _ => Ending::Lost(Loss::ClockStep),
    }
}

/// Makes sequences.
struct Author(fastrand::Rng);

impl Author {
    fn sequence(seed: u64) -> Vec<Operation> {
        let mut author = Self(fastrand::Rng::with_seed(seed));
        let length = author.0.usize(5..=LONGEST_SEQUENCE);
        // Most sequences are about one lease: then there is more to say about it.
        let leases = if author.0.u8(..4) == 0 { 3 } else { 1 };
        let anew = if author.0.u8(..4) == 0 { Self::anew() } else { Vec::new() };
        anew.into_iter().chain((0..length).map(|_| author.operation(leases))).collect()
    }

    /// A namespace that knows short ttls only, so that everything ends soon.
    fn anew() -> Vec<Operation> {
        let enter = |client| Operation::Enter {
            client,
            memory: Memory::Nothing,
            max_ttl: SHORT,
            bootstrap: true,
            durable: false,
            stamp: 9,
        };
        [Operation::Flush].into_iter().chain((0..CLIENTS).map(enter)).collect()
    }

    fn operation(&mut self, leases: usize) -> Operation {
        match self.0.u8(..100) {
            0..8 => Operation::Enter {
                client: self.0.usize(..CLIENTS),
                memory: self.memory(),
                max_ttl: self.entry_ttl(),
                bootstrap: self.0.u8(..3) == 0,
                durable: self.0.u8(..3) == 0,
                stamp: self.0.u64(..3),
            },
            8..10 => Operation::Flush,
            10..15 => Operation::WriteForeign {
                lease: self.0.usize(..leases),
                holder: self.0.usize(..FOREIGN.len()),
                ttl: match self.0.u8(..3) {
                    0 => None,
                    _ => Some(self.ttl()),
                },
            },
            15..18 => Operation::DeleteForeign { lease: self.0.usize(..leases) },
            18..21 => Operation::Wait,
            _ => {
                let count = if self.0.u8(..4) == 0 { self.0.usize(2..=5) } else { 1 };
                let batch = (0..count).map(|_| self.request(leases)).collect();
                Operation::Submit { client: self.0.usize(..CLIENTS), batch }
            }
        }
    }

    /// The server's uptime must not be near it.
    fn entry_ttl(&mut self) -> Duration {
        [SHORT, SHORT, LONG[1], LONG[2], LONG[3]][self.0.usize(..5)]
    }

    fn memory(&mut self) -> Memory {
        match self.0.u8(..10) {
            0..2 => Memory::Nothing,
            2..6 => Memory::Everything,
            _ => Memory::False {
                older: self.0.u8(..4) == 0,
                newer: self.0.u8(..8) == 0,
                stamp: self.0.u8(..4) == 0,
                token: (self.0.u8(..2) == 0).then(|| self.token()),
                max_ttl: (self.0.u8(..2) == 0).then(|| self.entry_ttl()),
            },
        }
    }

    fn ttl(&mut self) -> Duration {
        if self.0.u8(..8) == 0 { SHORT } else { LONG[self.0.usize(..LONG.len())] }
    }

    fn token(&mut self) -> Which {
        match self.0.u8(..40) {
            0 => Which::Zero,
            1 => Which::Last(self.0.u64(..4)),
            2 => Which::Above(self.0.usize(..3)),
            3 => Which::Below(self.0.usize(..3)),
            4..14 => Which::Seen(self.0.usize(1..4)),
            _ => Which::Seen(0),
        }
    }

    fn term(&mut self, leases: usize) -> Term {
        let right = self.0.u8(..4) > 0;
        Term { token: self.token(), right, lease: self.0.usize(..leases), holder: self.holder() }
    }

    fn holder(&mut self) -> usize {
        [0, 0, 0, 1, 1, 2][self.0.usize(..6)]
    }

    fn nonce(&mut self) -> u8 {
        self.0.u8(..5)
    }

    fn request(&mut self, leases: usize) -> Wish {
        let lease = self.0.usize(..leases);
        match self.0.u8(..100) {
            0..20 => Wish::Acquire {
                lease,
                holder: self.holder(),
                nonce: self.nonce(),
                ttl: self.ttl(),
                ended: (self.0.u8(..3) == 0).then(|| self.token()),
            },
            20..32 => Wish::TakeOver {
                lease,
                holder: self.holder(),
                nonce: self.nonce(),
                ttl: self.ttl(),
                victim: self.token(),
                stale_after: [Duration::ZERO, SHORT, LONG[0]][self.0.usize(..3)],
            },
            32..42 => Wish::Renew { term: self.term(leases), ttl: self.ttl(), progressed: self.0.bool() },
            42..49 => Wish::Release { term: self.term(leases), ending: self.0.usize(..4) },
            49..52 => Wish::Abandon { lease, holder: self.holder(), nonce: self.nonce() },
            52..60 => Wish::HandOver { term: self.term(leases), to: self.holder(), window: self.ttl() },
            60..64 => Wish::Revoke { lease, token: self.token() },
            64..68 => {
                let to = (self.0.bool()).then(|| self.holder());
                Wish::StepDown { lease, token: self.token(), to }
            }
            68..76 => Wish::Inspect { lease },
            76..79 => Wish::Publish {
                term: self.term(leases),
                record: self.0.usize(..RECORDS.len()),
                value: self.0.usize(..VALUES.len()),
            },
            79..82 => Wish::Read { lease, record: self.0.usize(..RECORDS.len()) },
            82 => Wish::Announce { lease, token: self.token() },
            83..86 => Wish::Beat { instance: self.holder(), ttl: self.ttl(), record: self.0.usize(..VALUES.len()) },
            86..88 => Wish::Leave { instance: self.holder() },
            88..91 => Wish::Members,
            91..93 => Wish::IndexAdd { index: self.0.usize(..2), entry: self.0.usize(..ENTRIES.len()) },
            93 => Wish::IndexRemove { index: self.0.usize(..2), entry: self.0.usize(..ENTRIES.len()) },
            94 => Wish::IndexList { index: self.0.usize(..2) },
            95..98 => Wish::Note { term: self.term(leases), ending: (self.0.bool()).then(|| self.0.usize(..4)) },
            _ => Wish::Notes { limit: [0, 1, 3, 100][self.0.usize(..4)] },
        }
    }
}

/// Numbers of the ledger and those of the store that are the same ones.
#[derive(Debug, Default)]
struct Pairs {
    theirs: BTreeMap<u64, u64>,
    ours: BTreeMap<u64, u64>,
    /// In the order in which they were first seen.
    seen: Vec<(Token, Token)>,
}

impl Pairs {
    /// Whether these may be the same: each has no other partner, and both are equally far in the order.
    fn pair(&mut self, ours: u64, theirs: u64) -> bool {
        if let Some(known) = self.theirs.get(&ours) {
            return *known == theirs;
        }
        if self.ours.contains_key(&theirs) {
            return false;
        }
        let below = self.theirs.range(..ours).next_back().is_none_or(|(_, below)| *below < theirs);
        let above = self.theirs.range(ours..).next().is_none_or(|(_, above)| *above > theirs);
        self.theirs.insert(ours, theirs);
        self.ours.insert(theirs, ours);
        below && above
    }

    fn saw(&mut self, ours: Token, theirs: Token) -> bool {
        let known = self.theirs.contains_key(&ours.get());
        let same = self.pair(ours.get(), theirs.get());
        if !known {
            self.seen.push((ours, theirs));
        }
        same
    }

    /// This token, in the ledger and in the store.
    fn resolve(&mut self, which: Which) -> (Token, Token) {
        let nth = |n: usize| {
            let latest = self.seen.len().checked_sub(1)?;
            self.seen.get(latest.saturating_sub(n)).copied()
        };
        let aside = |n, move_aside: fn(u64) -> u64| {
            let (ours, theirs) = nth(n)?;
            Some((Token::new(move_aside(ours.get()))?, Token::new(move_aside(theirs.get()))?))
        };
        let last = |n: u64| Token::new(Token::MAX.get() - n).unwrap();
        let pair = match which {
            Which::Seen(n) => nth(n),
            Which::Below(n) => aside(n, |token| token.saturating_sub(ASIDE)),
            Which::Above(n) => aside(n, |token| token + ASIDE),
            Which::Last(n) => Some((last(n), last(n))),
            Which::Zero => None,
        };
        let (ours, theirs) = pair.unwrap_or_default();
        // They are never seen to be different: both were made the same way.
        self.pair(ours.get(), theirs.get());
        (ours, theirs)
    }
}

/// What an answer has in it that may differ.
#[derive(Default)]
struct Parts<'a> {
    tokens: Vec<&'a mut Token>,
    times: Vec<&'a mut ServerTime>,
    /// Spans of which it matters whether there is anything left.
    left: Vec<&'a mut Duration>,
    /// Spans that may have just begun.
    idle: Vec<&'a mut Duration>,
}

impl<'a> Parts<'a> {
    fn of(reply: &'a mut Reply) -> Self {
        let mut parts = Self::default();
        match reply {
            Reply::Granted(grant) => {
                parts.tokens.push(&mut grant.token);
                parts.times.push(&mut grant.server);
                parts.left.push(&mut grant.wait_out);
                parts.tokens.extend(grant.previous.as_mut().map(|previous| &mut previous.token));
            }
            Reply::Held(held) => parts.held(held),
            Reply::Closed { remaining } => parts.left.push(remaining),
            Reply::Renewed { server, .. } => parts.times.push(server),
            Reply::HandedOver { token } => parts.tokens.push(token),
            Reply::Lease(report) => {
                if let Some(held) = &mut report.held {
                    parts.held(held);
                }
                parts.tokens.extend(report.last.as_mut().map(|last| &mut last.token));
                parts.times.extend(report.since.as_mut());
            }
            Reply::Record(Some(published)) => {
                parts.tokens.push(&mut published.token);
                parts.times.push(&mut published.at);
            }
            Reply::Members(members) => parts.left.extend(members.iter_mut().map(|member| &mut member.remaining)),
            Reply::Notes(notes) => parts.tokens.extend(notes.iter_mut().map(|note| &mut note.token)),
            _ => {}
        }
        parts
    }

    fn held(&mut self, held: &'a mut Held) {
        self.tokens.extend(held.token.as_mut());
        self.left.extend(held.remaining.as_mut());
        self.idle.extend(held.idle.as_mut());
    }

    /// Writes over what is there, where it is the same as what the ledger says.
    fn align(self, ours: Self, pairs: &mut Pairs) {
        for (ours, theirs) in ours.tokens.into_iter().zip(self.tokens) {
            if pairs.saw(*ours, *theirs) {
                *theirs = *ours;
            }
        }
        for (ours, theirs) in ours.times.into_iter().zip(self.times) {
            *theirs = *ours;
        }
        for (ours, theirs) in ours.left.into_iter().zip(self.left) {
            if ours.is_zero() == theirs.is_zero() && ours.abs_diff(*theirs) <= SLACK {
                *theirs = *ours;
            }
        }
        for (ours, theirs) in ours.idle.into_iter().zip(self.idle) {
            if ours.abs_diff(*theirs) <= SLACK {
                *theirs = *ours;
            }
        }
    }
}

/// A store that is put to the test, with the ways of outsiders.
trait Bench: Send + Sync {
    fn store(&self, namespace: &str) -> Arc<dyn Store>;
    /// What it knows about itself, whatever the time.
    fn facts(&self, listeners: usize) -> Server;
    fn flush(&self, namespace: &str);
    fn write_foreign(&self, namespace: &str, name: &LeaseName, holder: &str, ttl: Option<Duration>);
    fn delete_foreign(&self, namespace: &str, name: &LeaseName);
}

struct Client {
    ours: Generation,
    theirs: Arc<dyn Connection>,
    memories: (NamespaceMemory, NamespaceMemory),
}

/// One sequence as it is carried out.
struct Run<'a> {
    bench: &'a dyn Bench,
    namespace: String,
    store: Arc<dyn Store>,
    ledger: Ledger,
    started: Instant,
    epoch: u64,
    tokens: Pairs,
    generations: Pairs,
    clients: Vec<Client>,
    /// Which lease the ledger's tokens were granted for, and to whom.
    granted: BTreeMap<Token, (LeaseName, InstanceId)>,
    subscription: Option<Box<dyn Subscription>>,
    announcements: Vec<Announcement>,
}

/// What was not the same.
struct Difference {
    at: usize,
    what: String,
    ours: String,
    theirs: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  the ledger: {}\n  the store:  {}", self.what, self.ours, self.theirs)
    }
}

static RUNS: AtomicU64 = AtomicU64::new(0);

impl<'a> Run<'a> {
    async fn of(bench: &'a dyn Bench, operations: &[Operation]) -> Result<(), Difference> {
        let namespace = format!("d{}", RUNS.fetch_add(1, Ordering::Relaxed));
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut run = Self {
            bench,
            namespace: namespace.clone(),
            store: bench.store(&namespace),
            ledger: Ledger::default(),
            started: Instant::now(),
            epoch: u64::try_from(since_1970.as_micros()).unwrap(),
            tokens: Pairs::default(),
            generations: Pairs::default(),
            clients: Vec::new(),
            granted: BTreeMap::new(),
            subscription: None,
            announcements: Vec::new(),
        };
        for client in 0..CLIENTS {
            let entry = Entry { stamp: 7, max_ttl: LONG[0], bootstrap: true, ..Entry::default() };
            run.enter(0, client, entry.clone(), entry).await?;
        }
        run.subscription = Some(run.store.subscribe().await.unwrap());
        run.announcements.clear();
        let mut result = Ok(());
        for (at, operation) in operations.iter().enumerate() {
            result = run.operate(at, operation).await;
            if result.is_err() {
                break;
            }
        }
        if result.is_ok() {
            result = run.compare_announcements(operations.len()).await;
        }
        bench.flush(&namespace);
        result
    }

    fn now(&self) -> ServerTime {
        ServerTime::from_micros(self.epoch + u64::try_from(self.started.elapsed().as_micros()).unwrap())
    }

    async fn operate(&mut self, at: usize, operation: &Operation) -> Result<(), Difference> {
        match operation {
            Operation::Enter { client, memory, max_ttl, bootstrap, durable, stamp } => {
                let memories = self.remember(*client, *memory);
                let (max_ttl, bootstrap, durable, stamp) = (*max_ttl, *bootstrap, *durable, *stamp);
                let entry = |memory| Entry { memory, stamp, max_ttl, bootstrap, durable, ..Entry::default() };
                let (ours, theirs) = memories.unzip();
                self.enter(at, *client, entry(ours), entry(theirs)).await?;
            }
            Operation::Submit { client, batch } => self.submit(at, *client, batch).await?,
            Operation::Flush => {
                self.bench.flush(&self.namespace);
                self.ledger.flush();
            }
            Operation::WriteForeign { lease: number, holder, ttl } => {
                let name = lease(*number);
                let holder = FOREIGN[*holder];
                self.ledger.write_foreign(&name, &InstanceId::foreign(holder), ttl.map(|ttl| self.now() + ttl));
                self.bench.write_foreign(&self.namespace, &name, holder, *ttl);
                if *ttl == Some(SHORT) {
                    tokio::time::sleep(BEYOND_SHORT).await;
                }
            }
            Operation::DeleteForeign { lease: number } => {
                self.ledger.delete_foreign(&lease(*number));
                self.bench.delete_foreign(&self.namespace, &lease(*number));
            }
            Operation::Wait => tokio::time::sleep(BEYOND_SHORT).await,
        }
        Ok(())
    }

    fn remember(&mut self, client: usize, memory: Memory) -> Option<(NamespaceMemory, NamespaceMemory)> {
        let (mut ours, mut theirs) = self.clients.get(client)?.memories.clone();
        match memory {
            Memory::Nothing => return None,
            Memory::Everything => {}
            Memory::False { older, newer, stamp, token, max_ttl } => {
                for memory in [&mut ours, &mut theirs] {
                    if older {
                        memory.generation.number -= ASIDE;
                    }
                    if newer {
                        memory.generation.number += ASIDE;
                    }
                    if stamp {
                        memory.generation.stamp += 1;
                    }
                    memory.max_ttl = max_ttl.unwrap_or(memory.max_ttl);
                }
                if let Some(token) = token {
                    (ours.high_water, theirs.high_water) = self.tokens.resolve(token);
                }
            }
        }
        Some((ours, theirs))
    }

    async fn enter(&mut self, at: usize, client: usize, our: Entry, their: Entry) -> Result<(), Difference> {
        let server = Server { now: self.now(), ..self.bench.facts(usize::from(self.subscription.is_some())) };
        let ours = self.ledger.enter(&server, &our, &mut self.announcements);
        let connection = match self.store.enter(their.clone()).await {
            Ok(connection) => connection,
            Err(error) => return Err(different(at, &their, &ours, &error)),
        };
        let theirs = connection.entered().clone();
        let same_floor = self.tokens.pair(ours.token_floor.get(), theirs.token_floor.get());
        let same_generation = self.generations.pair(ours.generation.number, theirs.generation.number);
        let same_span = ours.closed_for.is_zero() == theirs.closed_for.is_zero()
            && ours.closed_for.abs_diff(theirs.closed_for) <= SLACK;
        let aligned = Entered {
            token_floor: if same_floor { ours.token_floor } else { theirs.token_floor },
            generation: Generation {
                number: if same_generation { ours.generation.number } else { theirs.generation.number },
                stamp: theirs.generation.stamp,
            },
            closed_for: if same_span { ours.closed_for } else { theirs.closed_for },
            run: ours.run,
            ..theirs.clone()
        };
        if aligned != ours {
            return Err(different(at, &their, &ours, &theirs));
        }
        if ours.closed_for > Duration::ZERO && ours.closed_for < SLACK {
            tokio::time::sleep(BEYOND_SHORT).await;
        }
        let before = self.clients.get(client).map(|client| client.memories.clone());
        let memories = match before {
            Some((mut ours_before, mut theirs_before)) => {
                if ours_before.reenter(&ours) != theirs_before.reenter(&theirs) {
                    // Only the runs differ, which are compared with each other alone.
                    return Err(different(at, &"what the entry means", &ours, &theirs));
                }
                (ours_before, theirs_before)
            }
            None => (NamespaceMemory::of(&ours), NamespaceMemory::of(&theirs)),
        };
        let entered = Client { ours: ours.generation, theirs: connection, memories };
        match self.clients.get_mut(client) {
            Some(client) => *client = entered,
            None => self.clients.push(entered),
        }
        Ok(())
    }

    async fn submit(&mut self, at: usize, client: usize, batch: &[Wish]) -> Result<(), Difference> {
        // Where something ends soon, nothing else may be asked before it has.
        let mut rest = batch;
        while let Some(first) = rest.first() {
            let soon = self.longest_ttl() < SLACK;
            let count = if soon { 1 } else { rest.iter().position(uses_short_span).map_or(rest.len(), |at| at + 1) };
            // What is stale after a moment must not follow upon progress in the same batch: on a slow machine that may be
            // a moment ago.
            let before_stale = rest.iter().skip(1).position(takes_over_after_short).map_or(rest.len(), |at| at + 1);
            let count = count.min(before_stale);
            let (now, later) = rest.split_at(count);
            rest = later;
            if takes_over_after_short(first) || now.iter().any(takes_over_after_short) {
                tokio::time::sleep(BEYOND_SHORT).await;
            }
            self.submit_together(at, client, now).await?;
            if soon || now.iter().any(uses_short_span) {
                tokio::time::sleep(BEYOND_SHORT).await;
            }
        }
        Ok(())
    }

    /// The longest ttl of the namespace; none while there is no namespace, since then nothing is granted.
    fn longest_ttl(&self) -> Duration {
        let mut ledger = self.ledger.clone();
        let server = self.bench.facts(0);
        let entry = Entry { max_ttl: Duration::ZERO, ..Entry::default() };
        ledger.enter(&Server { now: self.now(), ..server }, &entry, &mut Vec::new()).max_ttl
    }

    async fn submit_together(&mut self, at: usize, client: usize, batch: &[Wish]) -> Result<(), Difference> {
        let requests: Vec<(Request, Request)> = batch.iter().map(|ask| self.spell(ask)).collect();
        let now = self.now();
        let generation = self.clients[client].ours;
        let ours: Vec<Reply> = requests
            .iter()
            .map(|(request, _)| self.ledger.apply(now, generation, request, &mut self.announcements))
            .collect();
        let connection = self.clients[client].theirs.clone();
        let theirs = connection.submit(requests.iter().map(|(_, request)| request.clone()).collect(), LIMIT).await;
        if theirs.len() != ours.len() {
            return Err(different(at, &batch, &ours, &theirs));
        }
        for ((mut ours, theirs), (_, request)) in ours.into_iter().zip(theirs).zip(requests) {
            let Outcome::Answered(theirs) = theirs else {
                return Err(different(at, &request, &ours, &theirs));
            };
            self.remember_grant(&request, &ours);
            let (our_memory, their_memory) = &mut self.clients[client].memories;
            our_memory.learn(&ours);
            their_memory.learn(&theirs);
            let mut aligned = theirs.clone();
            Parts::of(&mut aligned).align(Parts::of(&mut ours), &mut self.tokens);
            if aligned != ours {
                return Err(different(at, &request, &ours, &theirs));
            }
        }
        Ok(())
    }

    fn remember_grant(&mut self, request: &Request, reply: &Reply) {
        match (request, reply) {
            (Request::Acquire { claim, .. } | Request::TakeOver { claim, .. }, Reply::Granted(grant)) => {
                self.granted.insert(grant.token, (claim.name.clone(), claim.holder.clone()));
            }
            (Request::HandOver { holding, to, .. }, Reply::HandedOver { token }) => {
                self.granted.insert(*token, (holding.name.clone(), to.clone()));
            }
            _ => {}
        }
    }

    /// A request about a term, as it is made of the ledger and of the store.
    fn about(&mut self, term: Term, request: impl Fn(Holding) -> Request) -> (Request, Request) {
        let (ours, theirs) = self.tokens.resolve(term.token);
        let granted = self.granted.get(&ours).filter(|_| term.right).cloned();
        let (name, holder) = granted.unwrap_or_else(|| (lease(term.lease), holder(term.holder)));
        let request = |token| request(Holding { name: name.clone(), holder: holder.clone(), token });
        (request(ours), request(theirs))
    }

    /// The request, as it is made of the ledger and of the store.
    fn spell(&mut self, ask: &Wish) -> (Request, Request) {
        let both = |make: &dyn Fn(Token) -> Request, (ours, theirs): (Token, Token)| (make(ours), make(theirs));
        let claim = |number: usize, who: usize, nonce: u8, ttl: Duration| Claim {
            name: lease(number),
            holder: holder(who),
            nonce: Nonce::new(u128::from(nonce)),
            ttl,
        };
        let same = |request: Request| (request.clone(), request);
        match *ask {
            Wish::Acquire { lease, holder, nonce, ttl, ended } => {
                let claim = claim(lease, holder, nonce, ttl);
                match ended {
                    None => same(Request::Acquire { claim, ended: None }),
                    Some(which) => both(
                        &|token| Request::Acquire { claim: claim.clone(), ended: Some(token) },
                        self.tokens.resolve(which),
                    ),
                }
            }
            Wish::TakeOver { lease, holder, nonce, ttl, victim, stale_after } => {
                let claim = claim(lease, holder, nonce, ttl);
                both(
                    &|victim| Request::TakeOver { claim: claim.clone(), victim, stale_after },
                    self.tokens.resolve(victim),
                )
            }
            Wish::Renew { term, ttl, progressed } => {
                self.about(term, |holding| Request::Renew { holding, ttl, progressed })
            }
            Wish::Release { term, ending: number } => {
                self.about(term, |holding| Request::Release { holding, ending: ending(number) })
            }
            Wish::Abandon { lease: number, holder: who, nonce } => same(Request::Abandon {
                name: lease(number),
                holder: holder(who),
                nonce: Nonce::new(u128::from(nonce)),
            }),
            Wish::HandOver { term, to, window } => {
                self.about(term, |holding| Request::HandOver { holding, to: holder(to), window })
            }
            Wish::Revoke { lease: number, token } => {
                both(&|token| Request::Revoke { name: lease(number), token }, self.tokens.resolve(token))
            }
            Wish::StepDown { lease: number, token, to } => {
                let ask = Ask::StepDown { to: to.map(holder) };
                both(&|token| Request::Ask { name: lease(number), token, ask: ask.clone() }, self.tokens.resolve(token))
            }
            Wish::Inspect { lease: number } => same(Request::Inspect { name: lease(number) }),
            Wish::Publish { term, record, value } => self.about(term, |holding| Request::Publish {
                holding,
                record: RECORDS[record].to_owned(),
                value: VALUES[value].to_vec(),
            }),
            Wish::Read { lease: number, record } => {
                same(Request::Read { name: lease(number), record: RECORDS[record].to_owned() })
            }
            Wish::Announce { lease: number, token } => both(
                &|token| Request::Announce(Announcement::Released { name: lease(number), token }),
                self.tokens.resolve(token),
            ),
            Wish::Beat { instance, ttl, record } => {
                same(Request::Beat { instance: holder(instance), ttl, record: VALUES[record].to_vec() })
            }
            Wish::Leave { instance } => same(Request::Leave { instance: holder(instance) }),
            Wish::Members => same(Request::Members),
            Wish::IndexAdd { index, entry } => {
                same(Request::IndexAdd { index: ENTRIES[index].to_owned(), entry: ENTRIES[entry].to_owned() })
            }
            Wish::IndexRemove { index, entry } => {
                same(Request::IndexRemove { index: ENTRIES[index].to_owned(), entry: ENTRIES[entry].to_owned() })
            }
            Wish::IndexList { index } => same(Request::IndexList { index: ENTRIES[index].to_owned() }),
            Wish::Note { term, ending: number } => self.about(term, |holding| {
                let time = |is_there: bool| is_there.then(|| ServerTime::from_micros(u64::MAX));
                Request::Note(TermNote {
                    name: holding.name,
                    token: holding.token,
                    holder: holding.holder,
                    from: ServerTime::from_micros(1),
                    demoted: time(number.is_some()),
                    released: time(number == Some(1)),
                    ending: number.map(ending),
                })
            }),
            Wish::Notes { limit } => same(Request::Notes { limit }),
        }
    }

    /// Compares everything that was announced since the subscription began.
    async fn compare_announcements(&mut self, at: usize) -> Result<(), Difference> {
        let last = Announcement::IndexChanged { index: "the end".to_owned() };
        let outcome = self.clients[0].theirs.submit(vec![Request::Announce(last.clone())], LIMIT).await;
        assert_eq!(outcome, [Outcome::Answered(Reply::Done)]);
        let Some(subscription) = &mut self.subscription else { return Ok(()) };
        let mut ours = std::mem::take(&mut self.announcements).into_iter();
        loop {
            let heard = match tokio::time::timeout(LIMIT, subscription.next()).await {
                Ok(Heard::Announced(heard)) => heard,
                other => return Err(different(at, &"an announcement", &ours.as_slice(), &other)),
            };
            if heard == last {
                break;
            }
            let expected = ours.next();
            let aligned = match (&heard, &expected) {
                (
                    Announcement::GenerationMinted { generation: theirs },
                    Some(Announcement::GenerationMinted { generation: ours }),
                ) if self.generations.pair(ours.number, theirs.number) => Announcement::GenerationMinted {
                    generation: Generation { number: ours.number, stamp: theirs.stamp },
                },
                (heard, Some(expected)) => match (token_of(heard), token_of(expected)) {
                    (Some(theirs), Some(ours)) if self.tokens.pair(ours.get(), theirs.get()) => with_token(heard, ours),
                    _ => heard.clone(),
                },
                (heard, None) => heard.clone(),
            };
            if expected.as_ref() != Some(&aligned) {
                return Err(different(at, &"an announcement", &expected, &heard));
            }
        }
        match ours.next() {
            None => Ok(()),
            Some(missing) => Err(different(at, &"an announcement that did not come", &missing, &"nothing")),
        }
    }
}

fn token_of(announcement: &Announcement) -> Option<Token> {
    match announcement {
        Announcement::Released { token, .. }
        | Announcement::HandedOver { token, .. }
        | Announcement::Revoked { token, .. }
        | Announcement::Asked { token, .. }
        | Announcement::Published { token, .. } => Some(*token),
        _ => None,
    }
}

fn with_token(announcement: &Announcement, new: Token) -> Announcement {
    let mut announcement = announcement.clone();
    match &mut announcement {
        Announcement::Released { token, .. }
        | Announcement::HandedOver { token, .. }
        | Announcement::Revoked { token, .. }
        | Announcement::Asked { token, .. }
        | Announcement::Published { token, .. } => *token = new,
        _ => {}
    }
    announcement
}

fn uses_short_span(ask: &Wish) -> bool {
    match ask {
        Wish::Acquire { ttl, .. }
        | Wish::TakeOver { ttl, .. }
        | Wish::Renew { ttl, .. }
        | Wish::HandOver { window: ttl, .. }
        | Wish::Beat { ttl, .. } => *ttl == SHORT,
        _ => false,
    }
}

fn takes_over_after_short(ask: &Wish) -> bool {
    matches!(ask, Wish::TakeOver { stale_after, .. } if *stale_after == SHORT)
}

fn different(at: usize, what: &dyn fmt::Debug, ours: &dyn fmt::Debug, theirs: &dyn fmt::Debug) -> Difference {
    let text = |shown: &dyn fmt::Debug| format!("{shown:?}").chars().take(1_000).collect();
    Difference { at, what: text(what), ours: text(ours), theirs: text(theirs) }
}

/// Leaves out operations, and requests of batches, for as long as there is still a difference.
async fn cut_down(
    bench: &dyn Bench,
    mut operations: Vec<Operation>,
    found: Difference,
) -> (Vec<Operation>, Difference) {
    let mut difference = found;
    operations.truncate(difference.at + 1);
    loop {
        let mut shorter = Vec::new();
        for at in (0..operations.len()).rev() {
            let mut without = operations.clone();
            without.remove(at);
            shorter.push(without);
            if let Operation::Submit { client, batch } = &operations[at]
                && batch.len() > 1
            {
                for request in 0..batch.len() {
                    let mut without = operations.clone();
                    let mut batch = batch.clone();
                    batch.remove(request);
                    without[at] = Operation::Submit { client: *client, batch };
                    shorter.push(without);
                }
            }
        }
        let mut progress = false;
        for without in shorter {
            if let Err(still) = Run::of(bench, &without).await {
                (operations, difference, progress) = (without, still, true);
                operations.truncate(difference.at + 1);
                break;
            }
        }
        if !progress {
            return (operations, difference);
        }
    }
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}: a number")))
}

/// Puts a store through many sequences.
fn compare(bench: Arc<dyn Bench>) {
    let first = setting("TENURE_DIFFERENTIAL_SEED", fastrand::u64(..1 << 40));
    let count = setting("TENURE_DIFFERENTIAL_SEQUENCES", 300);
    println!("seeds {first} to {}", first + count - 1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let next = Arc::new(AtomicU64::new(first));
    runtime.block_on(async {
        let mut workers = tokio::task::JoinSet::new();
        for _ in 0..AT_A_TIME {
            let (bench, next) = (bench.clone(), next.clone());
            workers.spawn(async move {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return None;
                    }
                    let operations = Author::sequence(seed);
                    if let Err(found) = Run::of(&*bench, &operations).await {
                        return Some((seed, operations, found));
                    }
                }
            });
        }
        while let Some(done) = workers.join_next().await {
            let Some((seed, operations, found)) = done.unwrap() else { continue };
            workers.shutdown().await;
            let first = found.to_string();
            let (operations, found) = cut_down(&*bench, operations, found).await;
            let listed: String = operations.iter().map(|operation| format!("  {operation:?}\n")).collect();
            panic!("seed {seed}: {first}\n\ncut down to\n{listed}{found}");
        }
    });
}

#[cfg(feature = "redis")]
mod on_redis {
    use super::*;
    use tenure::store::redis::RedisStore;
    use tenure_testbed::{RedisServer, Release, servers};

    struct Redis {
        server: RedisServer,
        started: Instant,
    }

    impl Redis {
        fn start(release: Option<Release>) -> Self {
            let builder = RedisServer::builder();
            let builder = match release {
                Some(release) => builder.release(release),
                None => builder,
            };
            let redis = Self { server: builder.start(), started: Instant::now() };
            // It counts its age in whole seconds, and must not be too young for short ttls.
            std::thread::sleep(Duration::from_millis(1_100));
            redis
        }
    }

    impl Bench for Redis {
        fn store(&self, namespace: &str) -> Arc<dyn Store> {
            Arc::new(RedisStore::open(&self.server.url(), &keyspace(namespace)).unwrap())
        }

        fn facts(&self, listeners: usize) -> Server {
            Server { now: ServerTime::from_micros(0), run: ServerRun(1), uptime: self.started.elapsed(), listeners }
        }

        fn flush(&self, namespace: &str) {
            let script = "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end";
            self.server.command(&["EVAL", script, "0", &format!("{namespace}:*")]);
        }

        fn write_foreign(&self, namespace: &str, name: &LeaseName, holder: &str, ttl: Option<Duration>) {
            let key = format!("{namespace}:{}", name.key());
            match ttl {
                Some(ttl) => self.server.command(&["SET", &key, holder, "PX", &ttl.as_millis().to_string()]),
                None => self.server.command(&["SET", &key, holder]),
            };
        }

        fn delete_foreign(&self, namespace: &str, name: &LeaseName) {
            self.server.command(&["DEL", &format!("{namespace}:{}", name.key())]);
        }
    }

    #[test]
    fn redis_answers_as_the_ledger_does() {
        compare(Arc::new(Redis::start(None)));
    }

    fn other_release(release: Release) {
        if servers::find_or_say(release).is_some_and(|found| found != servers::installed()) {
            compare(Arc::new(Redis::start(Some(release))));
        }
    }

    #[test]
    fn redis_6_2_answers_as_the_ledger_does() {
        other_release(Release::V6_2);
    }

    #[test]
    fn redis_8_2_answers_as_the_ledger_does() {
        other_release(Release::V8_2);
    }
}

#[cfg(feature = "sqlite")]
mod on_sqlite {
    use super::*;
    use rusqlite::{Connection, params};
    use tempfile::TempDir;
    use tenure::store::sqlite::SqliteStore;

    const FILES: usize = 24;

    struct Sqlite {
        folder: TempDir,
    }

    impl Sqlite {
        /// A file for a few namespaces: they must not meet, and every listener is woken by all writes to its file.
        fn path(&self, namespace: &str) -> String {
            let file = namespace.bytes().map(usize::from).sum::<usize>() % FILES;
            self.folder.path().join(format!("{file}.db")).to_str().unwrap().to_owned()
        }

        /// The file, as an outsider opens it.
        fn outsider(&self, namespace: &str) -> Connection {
            let connection = Connection::open(self.path(namespace)).unwrap();
            connection.busy_timeout(Duration::from_secs(60)).unwrap();
            connection
        }
    }

    impl Bench for Sqlite {
        fn store(&self, namespace: &str) -> Arc<dyn Store> {
            Arc::new(SqliteStore::open(&self.path(namespace), &keyspace(namespace)).unwrap())
        }

        /// A file has no server that could be young, and nobody can see who listens.
        fn facts(&self, _listeners: usize) -> Server {
            Server { now: ServerTime::from_micros(0), run: ServerRun(1), uptime: Duration::MAX, listeners: 0 }
        }

        fn flush(&self, namespace: &str) {
            let outsider = self.outsider(namespace);
            let tx = outsider.unchecked_transaction().unwrap();
            for table in ["namespaces", "leases", "records", "members", "entries", "notes"] {
                tx.execute(&format!("DELETE FROM {table} WHERE namespace = ?1"), [format!("{namespace}:")]).unwrap();
            }
            tx.commit().unwrap();
        }

        fn write_foreign(&self, namespace: &str, name: &LeaseName, holder: &str, ttl: Option<Duration>) {
            let outsider = self.outsider(namespace);
            let epoch: i64 = outsider.query_row("SELECT epoch FROM host", [], |row| row.get(0)).unwrap();
            let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
            let now = epoch + boot.tv_sec * 1_000_000 + boot.tv_nsec / 1_000;
            let expires = ttl.map(|ttl| now + i64::try_from(ttl.as_micros()).unwrap());
            let write = "INSERT INTO leases (namespace, key, holder, expires) VALUES (?1, ?2, ?3, ?4)
                         ON CONFLICT DO UPDATE SET holder = excluded.holder, expires = excluded.expires";
            outsider.execute(write, params![format!("{namespace}:"), name.key(), holder, expires]).unwrap();
        }

        fn delete_foreign(&self, namespace: &str, name: &LeaseName) {
            let write = "UPDATE leases SET holder = NULL, expires = NULL WHERE namespace = ?1 AND key = ?2";
            self.outsider(namespace).execute(write, [format!("{namespace}:"), name.key().to_owned()]).unwrap();
        }
    }

    #[test]
    fn sqlite_answers_as_the_ledger_does() {
        compare(Arc::new(Sqlite { folder: tempfile::tempdir().unwrap() }));
    }
}
