//! Runs one sequence on the ledger and on the store, and compares the results.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure::store::{
    Announcement, AttachRequest, Attached, Connection, Generation, LeaseRequest, Ledger, NamespaceMemory, Outcome,
    Quarantine, Reply, Request, ServerInfo, Store, Subscription, SubscriptionItem,
};
use tenure::time::ServerTime;
use tenure::{InstanceId, LeaseName, Token};

use crate::alignment::{MAX_SPAN_DIFFERENCE, Pairs, ReplyParts, TOKEN_OFFSET, token_of, with_token};
use crate::fixture::DifferentialFixture;
use crate::sequence::{
    BEYOND_SHORT_SPAN, CLIENTS, FOREIGN_HOLDERS, LONG_SPANS, MemoryTemplate, Operation, RequestTemplate, SHORT_SPAN,
    lease, takes_over_after_short, uses_short_span,
};

/// Timeout for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

struct ClientPair {
    ours: Generation,
    theirs: Arc<dyn Connection>,
    memories: (NamespaceMemory, NamespaceMemory),
}

/// The state of a running sequence.
pub(crate) struct DifferentialRun<'a> {
    fixture: &'a dyn DifferentialFixture,
    namespace: String,
    store: Arc<dyn Store>,
    ledger: Ledger,
    started: Instant,
    epoch: u64,
    pub(crate) tokens: Pairs,
    generations: Pairs,
    clients: Vec<ClientPair>,
    /// Whether a client has attached that may acquire leases.
    was_attached: bool,
    /// The lease and the holder for which each token of the ledger was granted.
    pub(crate) granted: BTreeMap<Token, (LeaseName, InstanceId)>,
    subscription: Option<Box<dyn Subscription>>,
    announcements: Vec<Announcement>,
}

/// A difference between the ledger and the store.
pub(crate) struct Difference {
    pub(crate) at: usize,
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

impl<'a> DifferentialRun<'a> {
    pub(crate) async fn execute(
        fixture: &'a dyn DifferentialFixture,
        operations: &[Operation],
    ) -> Result<(), Difference> {
        let namespace = format!("d{}", RUNS.fetch_add(1, Ordering::Relaxed));
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut run = Self {
            fixture,
            namespace: namespace.clone(),
            store: fixture.store(&namespace),
            ledger: Ledger::default(),
            started: Instant::now(),
            epoch: u64::try_from(since_1970.as_micros()).unwrap(),
            tokens: Pairs::default(),
            generations: Pairs::default(),
            clients: Vec::new(),
            was_attached: false,
            granted: BTreeMap::new(),
            subscription: None,
            announcements: Vec::new(),
        };
        for client in 0..CLIENTS {
            let request = AttachRequest {
                stamp: 7,
                max_ttl: LONG_SPANS[0],
                bootstrap: true,
                ..AttachRequest::new(fastrand::u64(..))
            };
            run.attach(0, client, request.clone(), request).await?;
        }
        run.subscription = Some(run.store.subscribe().await.unwrap());
        run.announcements.clear();
        let mut result = Ok(());
        for (at, operation) in operations.iter().enumerate() {
            result = run.apply(at, operation).await;
            if result.is_err() {
                break;
            }
        }
        if result.is_ok() {
            result = run.compare_announcements(operations.len()).await;
        }
        fixture.flush(&namespace);
        result
    }

    fn now(&self) -> ServerTime {
        ServerTime::from_micros(self.epoch + u64::try_from(self.started.elapsed().as_micros()).unwrap())
    }

    async fn apply(&mut self, at: usize, operation: &Operation) -> Result<(), Difference> {
        match operation {
            Operation::Attach { client, memory, max_ttl, bootstrap, durable, observer, stamp } => {
                let memories = self.remember(*client, *memory);
                let (max_ttl, bootstrap, durable, observer, stamp) =
                    (*max_ttl, *bootstrap, *durable, *observer, *stamp);
                let request = |memory| AttachRequest {
                    memory,
                    stamp,
                    max_ttl,
                    bootstrap,
                    durable,
                    observer,
                    ..AttachRequest::new(fastrand::u64(..))
                };
                if max_ttl == SHORT_SPAN {
                    // Whether a new generation has waited for so short a ttl must not depend on the machine.
                    tokio::time::sleep(BEYOND_SHORT_SPAN).await;
                }
                let (ours, theirs) = memories.unzip();
                self.attach(at, *client, request(ours), request(theirs)).await?;
            }
            Operation::Submit { client, batch } => self.submit(at, *client, batch).await?,
            Operation::Flush => {
                self.fixture.flush(&self.namespace);
                self.ledger.flush();
            }
            Operation::WriteForeign { lease: number, holder, ttl } => {
                let name = lease(*number);
                let holder = FOREIGN_HOLDERS[*holder];
                self.ledger.write_foreign(&name, &InstanceId::foreign(holder), ttl.map(|ttl| self.now() + ttl));
                self.fixture.write_foreign(&self.namespace, &name, holder, *ttl);
                if *ttl == Some(SHORT_SPAN) {
                    tokio::time::sleep(BEYOND_SHORT_SPAN).await;
                }
            }
            Operation::DeleteForeign { lease: number } => {
                self.ledger.delete_foreign(&lease(*number));
                self.fixture.delete_foreign(&self.namespace, &lease(*number));
            }
            Operation::Wait => tokio::time::sleep(BEYOND_SHORT_SPAN).await,
        }
        Ok(())
    }

    fn remember(&mut self, client: usize, memory: MemoryTemplate) -> Option<(NamespaceMemory, NamespaceMemory)> {
        let (mut ours, mut theirs) = self.clients.get(client)?.memories.clone();
        match memory {
            MemoryTemplate::Nothing => return None,
            MemoryTemplate::Everything => {}
            MemoryTemplate::False { older, newer, stamp, token, max_ttl } => {
                for memory in [&mut ours, &mut theirs] {
                    if older {
                        memory.generation.number = memory.generation.number.saturating_sub(TOKEN_OFFSET);
                    }
                    if newer {
                        memory.generation.number += TOKEN_OFFSET;
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

    async fn attach(
        &mut self,
        at: usize,
        client: usize,
        our: AttachRequest,
        their: AttachRequest,
    ) -> Result<(), Difference> {
        let subscribers = usize::from(self.subscription.is_some());
        let facts = self.fixture.server_info(subscribers, self.was_attached, self.ledger.has_terms());
        let server = ServerInfo { now: self.now(), ..facts };
        self.was_attached |= !our.observer;
        let ours = self.ledger.attach(&server, &our, &mut self.announcements);
        let connection = match self.store.attach(their.clone()).await {
            Ok(connection) => connection,
            Err(error) => return Err(difference(at, &their, &ours, &error)),
        };
        let theirs = connection.attached().clone();
        let same_floor = self.tokens.pair(ours.token_floor.get(), theirs.token_floor.get());
        let same_generation = self.generations.pair(ours.generation.number, theirs.generation.number);
        let same_span = ours.quarantine_remaining().abs_diff(theirs.quarantine_remaining()) <= MAX_SPAN_DIFFERENCE;
        let aligned = Attached {
            token_floor: if same_floor { ours.token_floor } else { theirs.token_floor },
            generation: Generation {
                number: if same_generation { ours.generation.number } else { theirs.generation.number },
                stamp: theirs.generation.stamp,
            },
            quarantine: match (ours.quarantine, theirs.quarantine) {
                (Some(ours), Some(theirs)) if same_span => Some(Quarantine { remaining: ours.remaining, ..theirs }),
                (_, theirs) => theirs,
            },
            run: ours.run,
            lineage: ours.lineage,
            server: ours.server,
            ..theirs.clone()
        };
        if aligned != ours {
            return Err(difference(at, &their, &ours, &theirs));
        }
        if ours.quarantine_remaining() > Duration::ZERO && ours.quarantine_remaining() < MAX_SPAN_DIFFERENCE {
            tokio::time::sleep(BEYOND_SHORT_SPAN).await;
        }
        let before = self.clients.get(client).map(|client| client.memories.clone());
        let memories = match before {
            Some((mut ours_before, mut theirs_before)) => {
                if ours_before.reattach(&ours) != theirs_before.reattach(&theirs) {
                    // Only the run ids differ, which are compared with each other alone.
                    return Err(difference(at, &"the continuity of the attach", &ours, &theirs));
                }
                (ours_before, theirs_before)
            }
            None => (NamespaceMemory::new(&ours), NamespaceMemory::new(&theirs)),
        };
        let attached = ClientPair { ours: ours.generation, theirs: connection, memories };
        match self.clients.get_mut(client) {
            Some(client) => *client = attached,
            None => self.clients.push(attached),
        }
        Ok(())
    }

    async fn submit(&mut self, at: usize, client: usize, batch: &[RequestTemplate]) -> Result<(), Difference> {
        // If a lease or ttl ends soon, no other request may be sent before it has ended.
        let mut rest = batch;
        while let Some(first) = rest.first() {
            let soon = self.ends_soon();
            let count = if soon { 1 } else { rest.iter().position(uses_short_span).map_or(rest.len(), |at| at + 1) };
            // A take-over from a holder without progress for a short span must not follow progress in the same batch:
            // on a slow machine that progress may already be as old.
            let before_stale = rest.iter().skip(1).position(takes_over_after_short).map_or(rest.len(), |at| at + 1);
            let count = count.min(before_stale);
            let (now, later) = rest.split_at(count);
            rest = later;
            if takes_over_after_short(first) || now.iter().any(takes_over_after_short) {
                tokio::time::sleep(BEYOND_SHORT_SPAN).await;
            }
            self.submit_together(at, client, now).await?;
            if soon || now.iter().any(uses_short_span) {
                tokio::time::sleep(BEYOND_SHORT_SPAN).await;
            }
        }
        Ok(())
    }

    /// Returns whether a lease or a ttl ends within the time that a request may take.
    fn ends_soon(&self) -> bool {
        let (now, mut ledger) = (self.now(), self.ledger.clone());
        let is_soon = |left: Duration| left > Duration::ZERO && left < MAX_SPAN_DIFFERENCE;
        let mut remaining = |number| {
            let inspect = LeaseRequest::Inspect { name: lease(number) };
            match ledger.apply_to_leases(now, Generation::default(), &inspect, &mut Vec::new()) {
                Reply::Lease(report) => report.held.and_then(|held| held.remaining).unwrap_or_default(),
                _ => Duration::ZERO,
            }
        };
        (0..3).any(|number| is_soon(remaining(number))) || is_soon(self.ledger.report(now).max_ttl)
    }

    /// The generation to which a client has attached, in the ledger and in the store.
    pub(crate) fn generations_of(&self, client: usize) -> (Generation, Generation) {
        (self.clients[client].ours, self.clients[client].theirs.attached().generation)
    }

    async fn submit_together(&mut self, at: usize, client: usize, batch: &[RequestTemplate]) -> Result<(), Difference> {
        let requests: Vec<(Request, Request)> =
            batch.iter().map(|template| self.build_requests(client, template)).collect();
        let now = self.now();
        let generation = self.clients[client].ours;
        let ours: Vec<Reply> = requests
            .iter()
            .map(|(request, _)| self.ledger.apply(now, generation, request, &mut self.announcements))
            .collect();
        let connection = self.clients[client].theirs.clone();
        let theirs =
            connection.submit(requests.iter().map(|(_, request)| request.clone()).collect(), REPLY_TIMEOUT).await;
        if theirs.len() != ours.len() {
            return Err(difference(at, &batch, &ours, &theirs));
        }
        for ((mut ours, theirs), (_, request)) in ours.into_iter().zip(theirs).zip(requests) {
            let Outcome::Answered(theirs) = theirs else {
                return Err(difference(at, &request, &ours, &theirs));
            };
            self.remember_grant(&request, &ours);
            let (our_memory, their_memory) = &mut self.clients[client].memories;
            our_memory.learn(&ours);
            their_memory.learn(&theirs);
            let mut aligned = theirs.clone();
            ReplyParts::new(&mut aligned).align(ReplyParts::new(&mut ours), &mut self.tokens);
            if let (Reply::Namespace(ours), Reply::Namespace(theirs)) = (&ours, &mut aligned)
                && let (Some(ours), Some(theirs)) = (&ours.generation, &mut theirs.generation)
                && self.generations.pair(ours.number, theirs.number)
            {
                theirs.number = ours.number;
            }
            if aligned != ours {
                return Err(difference(at, &request, &ours, &theirs));
            }
        }
        Ok(())
    }

    /// Compares all announcements since the subscription began.
    async fn compare_announcements(&mut self, at: usize) -> Result<(), Difference> {
        let last = Announcement::IndexChanged { index: "the end".to_owned() };
        let outcome = self.clients[0].theirs.submit(vec![Request::Announce(last.clone())], REPLY_TIMEOUT).await;
        assert_eq!(outcome, [Outcome::Answered(Reply::Done)]);
        let Some(subscription) = &mut self.subscription else { return Ok(()) };
        let mut ours = std::mem::take(&mut self.announcements).into_iter();
        loop {
            let heard = match tokio::time::timeout(REPLY_TIMEOUT, subscription.next()).await {
                Ok(SubscriptionItem::Announced(heard)) => heard,
                other => return Err(difference(at, &"an announcement", &ours.as_slice(), &other)),
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
                (Announcement::LongestTtl { ttl, .. }, Some(Announcement::LongestTtl { server, .. })) => {
                    Announcement::LongestTtl { ttl: *ttl, server: *server }
                }
                (heard, Some(expected)) => match (token_of(heard), token_of(expected)) {
                    (Some(theirs), Some(ours)) if self.tokens.pair(ours.get(), theirs.get()) => with_token(heard, ours),
                    _ => heard.clone(),
                },
                (heard, None) => heard.clone(),
            };
            if expected.as_ref() != Some(&aligned) {
                return Err(difference(at, &"an announcement", &expected, &heard));
            }
        }
        match ours.next() {
            None => Ok(()),
            Some(missing) => Err(difference(at, &"a missing announcement", &missing, &"nothing")),
        }
    }
}

fn difference(at: usize, what: &dyn fmt::Debug, ours: &dyn fmt::Debug, theirs: &dyn fmt::Debug) -> Difference {
    let text = |shown: &dyn fmt::Debug| format!("{shown:?}").chars().take(1_000).collect();
    Difference { at, what: text(what), ours: text(ours), theirs: text(theirs) }
}
