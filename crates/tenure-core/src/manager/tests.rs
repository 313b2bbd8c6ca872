//! A lease manager, a ledger, and a clock that tests move by hand.

use std::collections::{BTreeMap, BTreeSet};

use super::calls::MAX_LOW_PRIORITY_IN_FLIGHT;
use super::*;
use crate::lease::{LeaseSettings, Permission};
use crate::ledger::{Ledger, ServerInfo};
use crate::store::{Attached, DocumentRequest, Generation, Lineage, MembershipRequest, Outcome, Reply, ServerRun};
use crate::time::ServerTime;
use crate::token::Token;

const TTL: Duration = Duration::from_secs(30);

/// The executor of a manager: it remembers what callers were told.
struct ManagerHarness {
    manager: LeaseManager,
    ledger: Ledger,
    generation: Generation,
    now: Moment,
    /// Whether the store can be reached, and whether it replies to requests.
    store_is_up: bool,
    store_replies: bool,
    last_waiter: u64,
    granted: BTreeMap<WaiterId, LeaseId>,
    refused: BTreeMap<WaiterId, AcquireRefusal>,
    /// Callers that no longer wait.
    gone: BTreeSet<WaiterId>,
    /// The terms that were not ended, with what their holders were told.
    terms: BTreeMap<LeaseId, (Token, Permission)>,
    replied: BTreeMap<CallId, Outcome>,
    batches: usize,
    /// The group whose heartbeats the store refuses for good, and how often that was reported.
    refused_group: Option<Group>,
    refused_as: ErrorKind,
    refusals: usize,
    attaches: usize,
}

impl ManagerHarness {
    fn new() -> Self {
        let config = ManagerConfig {
            instance: InstanceId::new("alice").unwrap(),
            location: "test:".to_owned(),
            assumed_ttl: TTL,
            observer: false,
            bootstrap: true,
            durable: false,
        };
        let mut harness = Self {
            manager: LeaseManager::new(config, 7),
            ledger: Ledger::default(),
            generation: Generation::default(),
            now: Moment::ZERO + Duration::from_secs(1_000),
            store_is_up: true,
            store_replies: true,
            last_waiter: 0,
            granted: BTreeMap::new(),
            refused: BTreeMap::new(),
            gone: BTreeSet::new(),
            terms: BTreeMap::new(),
            replied: BTreeMap::new(),
            batches: 0,
            refused_group: None,
            refused_as: ErrorKind::Configuration,
            refusals: 0,
            attaches: 0,
        };
        harness.settle();
        harness
    }

    fn attach(&mut self, request: &AttachRequest) -> Attached {
        let (now, run) = (self.server_time(), ServerRun(1));
        let server = ServerInfo { now, run, uptime: Duration::MAX, subscribers: 0, has_served: false };
        let attached = self.ledger.attach(&server, request, &mut Vec::new());
        self.generation = attached.generation;
        attached
    }

    /// Another process attaches, without a memory.
    fn attach_another(&mut self) {
        self.attach(&AttachRequest::new(1));
    }

    fn read(&self) -> Now {
        Now::undisturbed(self.now)
    }

    fn server_time(&self) -> ServerTime {
        ServerTime::from_micros(self.now.as_nanos() / 1_000)
    }

    fn claim(&mut self, name: &str, mode: AcquireMode, timeout: Option<Duration>) -> WaiterId {
        self.last_waiter += 1;
        let (waiter, name) = (WaiterId(self.last_waiter), LeaseName::lease(name).unwrap());
        let settings = Arc::new(LeaseSettings::default());
        let request = AcquireRequest { waiter, name, settings, mode, timeout, heartbeat: None, wants_status: false };
        self.manager.acquire(self.read(), request);
        self.execute();
        waiter
    }

    fn acquire(&mut self, name: &str) -> WaiterId {
        self.claim(name, AcquireMode::Wait, None)
    }

    fn call(&mut self, id: u64, request: DocumentRequest, is_work: bool) -> CallId {
        let call = StoreCall { id: CallId(id), request: request.into(), timeout: TTL, is_work };
        self.manager.call(self.read(), call);
        CallId(id)
    }

    /// The lease that a caller got.
    fn granted(&mut self, waiter: WaiterId) -> LeaseId {
        self.granted.remove(&waiter).unwrap_or_else(|| panic!("not granted: {:?}", self.refused.get(&waiter)))
    }

    fn is_waiting(&self, waiter: WaiterId) -> bool {
        !self.granted.contains_key(&waiter) && !self.refused.contains_key(&waiter)
    }

    fn release(&mut self, lease: LeaseId) {
        self.manager.apply_intent(self.read(), lease, Intent::Release(ReleaseReason::Voluntary));
        self.execute();
    }

    fn give_up(&mut self, waiter: WaiterId) {
        self.gone.insert(waiter);
        self.manager.give_up(self.read(), waiter);
        self.execute();
    }

    fn cut(&mut self) {
        self.store_is_up = false;
        let link = self.manager.link.id();
        self.manager.closed(self.read(), link);
        self.execute();
    }

    /// Executes everything up to the next flush. Returns whether there was anything to do.
    fn execute(&mut self) -> bool {
        let (now, mut any) = (self.read(), false);
        loop {
            let outputs = self.manager.take_outputs();
            if outputs.is_empty() {
                return any;
            }
            any = true;
            for output in outputs {
                self.execute_one(now, output);
            }
        }
    }

    fn execute_one(&mut self, now: Now, output: Output) {
        match output {
            Output::Attach { link, request, .. } if self.store_is_up => {
                self.attaches += 1;
                let attached = self.attach(&request);
                self.manager.attached(now, link, Ok(&attached));
            }
            Output::Attach { link, .. } => {
                let down = StoreError::new(ErrorKind::Unreachable, "down");
                self.manager.attached(now, link, Err(down));
            }
            Output::Send(batch) => {
                self.batches += 1;
                if self.store_replies {
                    let (mut outcomes, mut heard) = (Vec::new(), Vec::new());
                    for request in &batch.requests {
                        if let Request::Membership(MembershipRequest::Heartbeat { group, .. }) = request
                            && self.refused_group.as_ref() == Some(group)
                        {
                            let error = StoreError::new(self.refused_as, "refused");
                            outcomes.push(Outcome::Failed(error));
                            continue;
                        }
                        let reply = self.ledger.apply(self.server_time(), self.generation, request, &mut heard);
                        outcomes.push(Outcome::Answered(reply));
                    }
                    self.manager.answered(now, batch.link, batch.recipients, outcomes);
                    heard.into_iter().for_each(|announcement| self.manager.announced(now, announcement));
                }
            }
            Output::Granted { waiter, lease } if self.gone.contains(&waiter) => self.release(lease),
            Output::Granted { waiter, lease } => {
                let (_, permission) = self.terms.get(&lease).expect("a grant follows its term");
                assert!(matches!(permission, Permission::MayStart { .. }), "work may start with the grant");
                assert!(self.granted.insert(waiter, lease).is_none(), "a caller is told once");
            }
            Output::Refused { waiter, refusal } => {
                assert!(self.refused.insert(waiter, refusal).is_none(), "a caller is told once");
            }
            Output::TermBegan { lease, .. } => {
                assert!(self.terms.insert(lease, (Token::ZERO, Permission::None)).is_none());
            }
            Output::TermUpdated { lease, validity } => {
                let term = self.terms.get_mut(&lease).expect("an update follows the begin");
                term.0 = validity.token.unwrap_or(term.0);
            }
            Output::Permit { lease, permission } => {
                self.terms.get_mut(&lease).expect("a permission follows the begin").1 = permission;
                if matches!(permission, Permission::MustCancel { .. } | Permission::MustBeGone) {
                    self.manager.work_ended(now, lease);
                }
            }
            Output::Drain { lease } => self.manager.work_ended(now, lease),
            Output::TermEnded { lease, .. } => {
                assert!(self.terms.remove(&lease).is_some(), "a term ends once");
            }
            Output::Replied { call, outcome } => {
                assert!(self.replied.insert(call, outcome).is_none(), "a caller is told once");
            }
            Output::Emit(Event { kind: EventKind::StoreRefused { .. }, .. }) => self.refusals += 1,
            _ => {}
        }
    }

    /// Does what a keeper does until nothing is due at this moment.
    fn settle(&mut self) {
        loop {
            let now = self.read();
            self.manager.check_timers(now);
            let executed = self.execute();
            self.manager.flush(now);
            if !self.execute() && !executed {
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
        self.manager.is_empty() && self.manager.held() == 0 && self.manager.waiters.is_empty() && self.terms.is_empty()
    }
}

#[test]
fn waiters_are_served_in_order() {
    let mut harness = ManagerHarness::new();
    let line: Vec<WaiterId> = (0..5).map(|_| harness.acquire("job")).collect();
    let mut last = Token::ZERO;
    for turn in 0..5 {
        harness.settle();
        let lease = harness.granted(line[turn]);
        let (token, _) = harness.terms[&lease];
        assert!(token > last);
        last = token;
        assert!(line[turn + 1..].iter().all(|waiter| harness.is_waiting(*waiter)));
        harness.release(lease);
    }
    harness.settle();
    assert!(harness.is_empty());
}

#[test]
fn a_waiter_that_gives_up_is_skipped() {
    let mut harness = ManagerHarness::new();
    let first = harness.acquire("job");
    let second = harness.acquire("job");
    let third = harness.acquire("job");
    harness.settle();
    harness.give_up(second);
    let lease = harness.granted(first);
    harness.release(lease);
    harness.settle();
    let lease = harness.granted(third);
    harness.release(lease);
    harness.settle();
    assert!(harness.is_empty());
}

#[test]
fn a_grant_without_a_waiter_is_released() {
    let mut harness = ManagerHarness::new();
    let waiter = harness.acquire("job");
    harness.gone.insert(waiter);
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
    let at_the_store = harness.claim("job", AcquireMode::Wait, Some(timeout));
    let queued = harness.claim("job", AcquireMode::Wait, Some(timeout * 2));
    harness.advance(timeout - Duration::from_millis(1));
    assert!(harness.is_waiting(at_the_store));
    harness.advance(Duration::from_millis(1));
    let timed_out = |waited| AcquireRefusal::TimedOut { waited, holder: Some(foreign.clone()), because: None };
    assert_eq!(harness.refused[&at_the_store], timed_out(timeout));
    assert!(harness.is_waiting(queued));
    harness.advance(timeout);
    assert_eq!(harness.refused[&queued], timed_out(timeout * 2));
    harness.advance(TTL);
    assert!(harness.is_empty());
}

#[test]
fn a_permanent_store_error_is_reported_to_every_waiter() {
    let mut harness = ManagerHarness::new();
    harness.cut();
    let waiting: Vec<WaiterId> = (0..3).map(|_| harness.acquire("job")).collect();
    harness.settle();
    assert!(waiting.iter().all(|waiter| harness.is_waiting(*waiter)), "a server that is down comes back");
    let lasting = StoreError::new(ErrorKind::Configuration, "wrong password");
    let link = harness.manager.link.begin_attach();
    harness.manager.attached(harness.read(), link, Err(lasting.clone()));
    harness.settle();
    for waiter in waiting {
        assert_eq!(harness.refused[&waiter], AcquireRefusal::Store(lasting.clone()));
    }
    assert!(harness.is_empty());
}

#[test]
fn a_shutdown_refuses_every_waiter_and_releases_every_lease() {
    let mut harness = ManagerHarness::new();
    for number in 0..10 {
        let waiter = harness.acquire(&format!("job-{number}"));
        harness.settle();
        harness.granted(waiter);
    }
    let behind = harness.acquire("job-3");
    assert!(!harness.manager.is_done());
    harness.manager.shut_down(harness.read());
    harness.settle();
    assert_eq!(harness.refused[&behind], AcquireRefusal::ShutDown);
    assert!(harness.is_empty() && harness.manager.is_done());
    assert!(harness.ledger.holder_of(harness.server_time(), &LeaseName::lease("job-3").unwrap()).is_none());
    let late = harness.acquire("job-3");
    assert_eq!(harness.refused[&late], AcquireRefusal::ShutDown);
}

#[test]
fn a_shutdown_waits_for_the_reply_to_a_release_until_the_lease_has_expired() {
    let mut harness = ManagerHarness::new();
    let waiter = harness.acquire("job");
    harness.settle();
    harness.granted(waiter);
    harness.store_replies = false;
    harness.manager.shut_down(harness.read());
    harness.settle();
    assert!(!harness.manager.is_done(), "the release is on its way");
    harness.cut();
    harness.settle();
    assert!(!harness.manager.is_done(), "the outcome is unknown, and the store may come back");
    harness.advance(TTL);
    assert!(harness.manager.is_done(), "the lease has expired");
}

#[test]
fn held_leases_keep_being_renewed_in_batches() {
    let mut harness = ManagerHarness::new();
    for number in 0..5_000 {
        harness.now = harness.now + Duration::from_micros(300);
        let waiter = harness.acquire(&format!("job-{number}"));
        harness.settle();
        harness.granted(waiter);
    }
    harness.batches = 0;
    harness.advance(TTL * 2);
    assert!(harness.terms.values().all(|(_, permission)| matches!(permission, Permission::MayStart { .. })));
    assert_eq!(harness.manager.held(), 5_000);
    // Six renewals of each lease; without batching, every renewal would need its own batch.
    assert!(harness.batches < 30_000 / 4, "{} batches", harness.batches);
    for lease in harness.terms.keys().copied().collect::<Vec<_>>() {
        harness.release(lease);
    }
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
        let mut waiting: Vec<WaiterId> = Vec::new();
        for _ in 0..300 {
            match random.u8(..10) {
                0..4 => {
                    let name = format!("job-{}", random.u8(..8));
                    let mode = if random.bool() { AcquireMode::Wait } else { AcquireMode::Try };
                    let timeout = random.bool().then(|| Duration::from_millis(random.u64(1..20_000)));
                    waiting.push(harness.claim(&name, mode, timeout));
                }
                4 if !waiting.is_empty() => {
                    let waiter = waiting.swap_remove(random.usize(..waiting.len()));
                    harness.give_up(waiter);
                }
                5 if !harness.granted.is_empty() => {
                    let (_, lease) = harness.granted.pop_first().expect("it is not empty");
                    harness.release(lease);
                }
                6 => harness.store_replies = random.bool(),
                7 if harness.store_is_up => harness.cut(),
                7 => harness.store_is_up = true,
                _ => harness.advance(Duration::from_millis(random.u64(1..8_000))),
            }
            harness.settle();
            waiting.retain(|waiter| harness.is_waiting(*waiter));
        }
        harness.store_replies = true;
        harness.store_is_up = true;
        // The terms are released, so that every waiter gets its turn.
        for _ in 0..waiting.len() + 1 {
            for lease in std::mem::take(&mut harness.granted).into_values() {
                harness.release(lease);
            }
            harness.advance(TTL * 2);
            waiting.retain(|waiter| harness.is_waiting(*waiter));
        }
        assert!(waiting.is_empty(), "seed {seed}: {} waiters got no reply", waiting.len());
        for lease in std::mem::take(&mut harness.granted).into_values() {
            harness.release(lease);
        }
        harness.advance(TTL * 2);
        assert!(harness.is_empty(), "seed {seed}");
    }
}

#[test]
fn a_refusal_of_heartbeats_is_reported_again_after_they_were_accepted() {
    let mut harness = ManagerHarness::new();
    harness.manager.join_fleet(heartbeat(Group::FLEET), TTL / 3);
    for _ in 0..2 {
        assert!(!harness.manager.are_heartbeats_refused());
        harness.refused_group = Some(Group::FLEET);
        harness.advance(TTL);
        assert!(harness.manager.are_heartbeats_refused());
        assert_eq!(std::mem::take(&mut harness.refusals), 1, "once, however many are refused");
        harness.refused_group = None;
        harness.advance(TTL);
    }
}

#[test]
fn heartbeats_that_fail_for_as_long_as_one_is_valid_are_refused() {
    let mut harness = ManagerHarness::new();
    harness.manager.join_fleet(heartbeat(Group::FLEET), TTL / 3);
    harness.advance(TTL);
    (harness.refused_group, harness.refused_as) = (Some(Group::FLEET), ErrorKind::Unavailable);
    harness.advance(TTL);
    assert!(!harness.manager.are_heartbeats_refused(), "others still count with the last one");
    harness.advance(TTL);
    assert_eq!((harness.manager.are_heartbeats_refused(), harness.refusals), (true, 1));
    harness.refused_group = None;
    harness.advance(TTL);
    assert!(!harness.manager.are_heartbeats_refused());
}

#[test]
fn a_refusal_of_heartbeats_is_reported_once_while_those_of_another_group_are_accepted() {
    let mut harness = ManagerHarness::new();
    let candidates = Group::of_role("job").unwrap();
    harness.refused_group = Some(candidates.clone());
    harness.manager.join_fleet(heartbeat(Group::FLEET), TTL / 3);
    harness.last_waiter += 1;
    let request = AcquireRequest {
        waiter: WaiterId(harness.last_waiter),
        name: LeaseName::lease("job").unwrap(),
        settings: Arc::new(LeaseSettings::default()),
        mode: AcquireMode::Wait,
        timeout: None,
        heartbeat: Some(heartbeat(candidates)),
        wants_status: false,
    };
    harness.manager.acquire(harness.read(), request);
    harness.execute();
    harness.advance(TTL * 3);
    assert_eq!(harness.refusals, 1);
    assert!(!harness.manager.are_heartbeats_refused(), "the fleet still counts with this instance");
}

fn heartbeat(group: Group) -> Arc<Heartbeat> {
    Arc::new(Heartbeat { group, ttl: TTL, record: Vec::new() })
}

/// The data of the server is replaced behind the connection, and another process finds that.
#[test]
fn a_quarantine_that_began_behind_the_connection_makes_it_attach_again() {
    let mut harness = ManagerHarness::new();
    let waiter = harness.acquire("job");
    harness.settle();
    harness.granted(waiter);
    let attaches = harness.attaches;
    harness.ledger.set_lineage(Lineage { id: 9, before: Some(8) });
    harness.attach_another();
    harness.acquire("other");
    harness.settle();
    assert_eq!(harness.attaches, attaches + 1, "it tells what it remembers");
    harness.acquire("third");
    harness.settle();
    assert_eq!(harness.attaches, attaches + 1, "once");
}

#[test]
fn replies_on_their_way_are_awaited_before_it_attaches_again() {
    let mut harness = ManagerHarness::new();
    let add = DocumentRequest::IndexAdd { index: "all".to_owned(), entry: "1".to_owned(), announced: false };
    let call = StoreCall { id: CallId(1), request: add.into(), timeout: TTL, is_work: true };
    harness.manager.call(harness.read(), call);
    harness.manager.flush(harness.read());
    let sent = harness.manager.take_outputs();
    let Ok([Output::Send(batch)]) = <[Output; 1]>::try_from(sent) else { panic!("one batch is sent") };
    harness.attach_another();
    let generation = Generation { number: u64::MAX / 2, stamp: 1 };
    harness.manager.announced(harness.read(), Announcement::GenerationMinted { generation });
    harness.manager.flush(harness.read());
    let disconnects = |outputs: &[Output]| outputs.iter().any(|output| matches!(output, Output::Disconnect));
    assert!(!disconnects(&harness.manager.take_outputs()), "the outcome of the call would be unknown");
    harness.manager.answered(harness.read(), batch.link, batch.recipients, [Outcome::Answered(Reply::Done)]);
    harness.manager.flush(harness.read());
    let outputs = harness.manager.take_outputs();
    let replied = |output: &Output| matches!(output, Output::Replied { outcome: Outcome::Answered(Reply::Done), .. });
    assert!(outputs.iter().any(replied) && disconnects(&outputs), "{outputs:?}");
}

#[test]
fn low_priority_calls_are_sent_in_order_and_a_few_at_a_time() {
    let mut harness = ManagerHarness::new();
    harness.settle();
    let entry = |number: u64| DocumentRequest::IndexAdd {
        index: "all".to_owned(),
        entry: number.to_string(),
        announced: false,
    };
    let calls: Vec<CallId> = (0..1_000).map(|number| harness.call(number, entry(number), false)).collect();
    // Neither work nor a claim queues behind all of them.
    let work = harness.call(1_000, entry(1_000), true);
    let waiter = harness.acquire("job");
    harness.store_replies = false;
    harness.manager.flush(harness.read());
    let outputs = harness.manager.take_outputs();
    let Some(Output::Send(batch)) = outputs.into_iter().next() else { panic!("nothing is sent") };
    assert_eq!(batch.requests.len(), MAX_LOW_PRIORITY_IN_FLIGHT + 2);
    harness.store_replies = true;
    harness.execute_one(harness.read(), Output::Send(batch));
    harness.settle();
    harness.granted(waiter);
    assert!(harness.replied.contains_key(&work));
    assert!(calls.iter().all(|call| harness.replied[call] == Outcome::Answered(Reply::Done)));
}

#[test]
fn a_request_of_a_lease_is_given_up_in_time_whatever_is_sent_with_it() {
    let mut harness = ManagerHarness::new();
    harness.acquire("job");
    harness.call(1, DocumentRequest::IndexList { index: "all".to_owned() }, true);
    harness.manager.flush(harness.read());
    let outputs = harness.manager.take_outputs();
    let [Output::Send(batch)] = &outputs[..] else { panic!("not one batch: {outputs:?}") };
    assert!(batch.requests.len() > 1 && TTL > LeaseSettings::default().attempt_timeout());
    assert_eq!(batch.timeout, LeaseSettings::default().attempt_timeout());
}

#[test]
fn a_renewal_that_was_not_sent_is_dropped_with_its_term() {
    let mut harness = ManagerHarness::new();
    let waiter = harness.acquire("job");
    harness.settle();
    let lease = harness.granted(waiter);
    let renew_at = harness.manager.lease(lease).unwrap().next_wake().unwrap().0;
    harness.now = renew_at + Duration::from_millis(20);
    harness.manager.check_timers(harness.read());
    harness.release(lease);
    harness.manager.flush(harness.read());
    let outputs = harness.manager.take_outputs();
    let Some(Output::Send(batch)) = outputs.iter().find(|output| matches!(output, Output::Send(_))) else {
        panic!("nothing is sent: {outputs:?}")
    };
    let is_renewal = |request: &&Request| matches!(request, Request::Lease(LeaseRequest::Renew { .. }));
    let is_release = |request: &&Request| matches!(request, Request::Lease(LeaseRequest::Release { .. }));
    assert_eq!(batch.requests.iter().filter(is_renewal).count(), 0);
    assert_eq!(batch.requests.iter().filter(is_release).count(), 1);
}

#[test]
fn calls_that_were_not_sent_wait_for_the_next_connection_and_the_others_have_an_unknown_outcome() {
    let mut harness = ManagerHarness::new();
    harness.store_replies = false;
    let list = || DocumentRequest::IndexList { index: "all".to_owned() };
    let calls: Vec<CallId> = (0..100).map(|number| harness.call(number, list(), false)).collect();
    harness.settle();
    let late = harness.call(100, list(), true);
    harness.cut();
    assert!(!harness.replied.contains_key(&late), "it was queued and not sent");
    let unknown = calls.iter().filter(|call| matches!(harness.replied.get(call), Some(Outcome::Unknown(_))));
    assert_eq!(unknown.count(), MAX_LOW_PRIORITY_IN_FLIGHT);
    harness.store_replies = true;
    harness.store_is_up = true;
    harness.advance(Duration::from_secs(5));
    let answered = calls.iter().filter(|call| matches!(harness.replied.get(call), Some(Outcome::Answered(_))));
    assert_eq!(answered.count(), 100 - MAX_LOW_PRIORITY_IN_FLIGHT);
    assert!(matches!(harness.replied.get(&late), Some(Outcome::Answered(_))));
}
