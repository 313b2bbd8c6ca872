//! Elections: everything that the documents they come from promise, on a real server.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::election::{ElectionEvent, ElectionNews, LeadError, NotDone};
use tenure::lease::{Ending, Loss, ReleaseReason};
use tenure::{Election, LeaseName, Standing, TermHandle, Token};
use tenure_testbed::{Probe, Proxy, RedisServer, Reply};
use tokio::task::JoinHandle;

use crate::stage::{Instance, LAST_STOP, LONG, Process, Record, STORE, TTL, soon, until};

const ROLE: &str = "cleanup";

/// An election whose events are written down.
struct Watched {
    election: Election,
    events: Arc<Mutex<Vec<ElectionEvent>>>,
}

impl Watched {
    fn of(election: Election) -> Self {
        let events: Arc<Mutex<Vec<ElectionEvent>>> = Arc::default();
        let heard = events.clone();
        election.on(move |event| heard.lock().unwrap().push(event.clone())).unwrap();
        Self { election, events }
    }

    fn start(instance: &Instance, ttl: Duration) -> Self {
        let watched = Self::of(instance.tenure.election(ROLE).ttl(ttl).build().unwrap());
        watched.election.start();
        watched
    }

    fn told(&self) -> Vec<String> {
        self.events.lock().unwrap().iter().map(|event| event.news.to_string()).collect()
    }

    async fn hears(&self, what: &str) {
        until(&format!("{what} among {:?}", self.told()), || self.told().iter().any(|told| told == what)).await;
    }

    async fn leads(&self) -> TermHandle {
        self.election.wait_for_leadership(Duration::from_secs(60)).await.unwrap()
    }

    /// Every event in the order that the state machine has, every term with its token.
    fn check(&self) {
        let mut standing = Standing::Follower;
        let mut leads = None;
        for event in self.events.lock().unwrap().iter() {
            match &event.news {
                ElectionNews::StateChanged { from, to } => {
                    assert_eq!(*from, standing, "{:#?}", self.told());
                    standing = *to;
                }
                ElectionNews::LeadershipAcquired => {
                    assert_eq!((standing, leads), (Standing::Leader, None), "{:#?}", self.told());
                    leads = event.token;
                    assert!(leads.is_some());
                }
                ElectionNews::LeadershipLost { .. } => {
                    assert!(standing != Standing::Leader && leads == event.token, "{:#?}", self.told());
                    leads = None;
                }
                _ => {}
            }
        }
    }
}

/// Somebody who leads whenever it can, and whose work writes itself down.
fn leading(record: &Record, instance: &Instance, ttl: Duration) -> JoinHandle<()> {
    let (record, tenure) = (record.clone(), instance.tenure.clone());
    tokio::spawn(async move {
        let who = tenure.instance().as_str().to_owned();
        let lead = tenure.election(ROLE).ttl(ttl).lead(|term| {
            let (record, who) = (record.clone(), who.clone());
            async move {
                record.work(&who, &term).await;
                Ok::<(), std::io::Error>(())
            }
        });
        let _ = lead.until(std::future::pending::<()>()).await;
    })
}

// The rows of the ADR's table, and the scenarios of the Sovereign document.

/// Leads until it is killed.
#[tokio::test]
#[ignore = "a part that other tests start as a process"]
async fn a_leader() {
    let Ok(url) = std::env::var(STORE) else { return };
    let instance = Instance::connect(&url, "child", TTL).await;
    let watched = Watched::start(&instance, TTL);
    let term = watched.leads().await;
    println!("READY {}", term.token());
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_leader_that_crashes_is_replaced_when_its_ttl_ends() {
    let probe = Probe::start();
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let (process, token) = Process::start("elections::a_leader", &server.url());
    let token = Token::new(token.parse().unwrap()).unwrap();
    let watched = Watched::start(&alice, TTL);
    watched.hears("candidate → follower").await;
    assert_eq!(watched.election.current_leader().await.unwrap().unwrap().token, Some(token));

    process.signal(rustix::process::Signal::KILL);
    let killed = Instant::now();

    let term = watched.leads().await;
    probe.within(killed.elapsed(), TTL + Duration::from_millis(25), "a leader again");
    assert!(term.token() > token);
    watched.check();
}

#[tokio::test]
async fn a_leader_that_is_cut_off_stops_before_its_successor_works() {
    let probe = Probe::start();
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let alice = Instance::connect(&proxy.url(), "alice", TTL).await;
    let bob = Instance::connect(&server.url(), "bob", TTL).await;
    let record = Record::default();
    let first = leading(&record, &alice, TTL);
    let token = record.works("alice", Token::ZERO).await;
    let second = leading(&record, &bob, TTL);
    bob.sees("lease.acquire_failed").await;

    proxy.swallow();
    let cut = Instant::now();

    alice.sees("election.leadership_lost").await;
    probe.within(cut.elapsed(), LAST_STOP, "the leader stops");
    record.works("bob", token).await;
    probe.within(cut.elapsed(), TTL + Duration::from_millis(25), "its successor works");
    proxy.pass();
    until("alice is back", || alice.tenure.how_it_stands().connected).await;
    record.check();
    first.abort();
    second.abort();
}

#[tokio::test]
async fn while_the_store_is_away_all_are_followers_and_say_so() {
    let server = RedisServer::builder().append_only("always").start();
    let builder = |name: &str| crate::stage::builder(&server.url(), name, TTL).durable();
    let (alice, bob) = (Instance::with(builder("alice")).await, Instance::with(builder("bob")).await);
    let (first, second) = (Watched::start(&alice, TTL), Watched::start(&bob, TTL));
    until("somebody leads", || first.election.is_leader() || second.election.is_leader()).await;

    server.kill();
    let standing = |watched: &Watched| watched.election.state();
    until("nobody leads", || [&first, &second].iter().all(|one| standing(one) == Standing::Follower)).await;
    assert!(!first.election.is_leader() && !second.election.is_leader());
    for one in [&first, &second] {
        until("it is told", || one.told().iter().any(|told| told.starts_with("election failed"))).await;
    }

    server.start_again();
    until("somebody leads again", || first.election.is_leader() || second.election.is_leader()).await;
    first.check();
    second.check();
}

#[tokio::test]
async fn a_leader_that_stops_is_replaced_at_once() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let first = Watched::start(&alice, LONG);
    let token = first.leads().await.token();
    let second = Watched::start(&bob, LONG);
    second.hears("candidate → follower").await;

    first.election.stop().await;

    assert!(!first.election.is_leader() && first.election.state() == Standing::Follower);
    // Thirty seconds before the ttl would have ended.
    assert!(second.leads().await.token() > token);
    first.hears("leadership lost (shutdown)").await;
    first.check();
    second.check();
}

#[tokio::test]
async fn a_leader_that_renews_but_does_nothing_is_taken_over() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let settings = |instance: &Instance| {
        let limit = Duration::from_secs(2);
        instance.tenure.election(ROLE).ttl(Duration::from_secs(3)).take_over_after(limit).build().unwrap()
    };
    let (first, second) = (Watched::of(settings(&alice)), Watched::of(settings(&bob)));
    first.election.start();
    let term = first.leads().await;
    second.election.start();
    // As long as it gets on, nobody touches it.
    for _ in 0..40 {
        term.progress();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(first.election.is_leader() && !second.told().contains(&"leadership acquired".to_owned()));
    // Then it hangs.
    let next = second.leads().await;
    assert!(next.token() > term.token());
    until("the first has noticed", || first.told().iter().any(|told| told.starts_with("leadership lost"))).await;
    first.check();
    second.check();
}

#[tokio::test]
async fn a_blink_of_the_store_does_not_lock_a_leader_out_of_its_own_lease() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let watched = Watched::start(&alice, LONG);
    let term = watched.leads().await;
    for round in 1..=5 {
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        until("entered again", || alice.times("store.entered") > round).await;
        assert!(watched.election.is_leader() && term.is_valid());
    }
    assert_eq!(watched.told().iter().filter(|told| told.starts_with("leadership")).count(), 1, "{:?}", watched.told());
}

// How it is used.

#[tokio::test]
async fn every_standing_is_entered_and_told_in_order() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let first = Watched::start(&alice, LONG);
    first.leads().await;
    let second = Watched::start(&bob, LONG);
    second.hears("candidate → follower").await;
    let token = first.election.term().unwrap().token();
    first.election.stop().await;
    second.leads().await;
    second.election.stop().await;
    until("all is told", || second.told().len() >= 7 && first.told().len() >= 5).await;
    assert_eq!(
        first.told(),
        [
            "follower → candidate",
            "candidate → leader",
            "leadership acquired",
            "leader → follower",
            "leadership lost (shutdown)"
        ]
    );
    assert_eq!(
        second.told(),
        [
            "follower → candidate",
            "candidate → follower",
            "follower → candidate",
            "candidate → leader",
            "leadership acquired",
            "leader → follower",
            "leadership lost (shutdown)"
        ]
    );
    assert!(first.events.lock().unwrap().iter().skip(1).all(|event| event.token == Some(token)));
    for name in ["election.state_changed", "election.leadership_acquired", "election.leadership_lost"] {
        assert!(alice.has(name), "{:?}", alice.happened());
    }
}

#[tokio::test]
async fn the_leader_is_known_to_everybody_with_what_it_says_of_itself() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let election = alice.tenure.election(ROLE).key("my-app:leader").metadata("10.0.0.7:8080").build().unwrap();
    let name = election.name().clone();
    assert_eq!(bob.tenure.leader_of(&name).await.unwrap(), None);
    election.start();
    let term = election.wait_for_leadership(LONG).await.unwrap();
    assert_eq!(server.command(&["GET", "my-app:leader"]).as_text(), election.id().as_str());
    until("it is published", || server.command(&["EXISTS", "tenure:records:{my-app:leader}"]) == Reply::Int(1)).await;
    let leader = bob.tenure.leader_of(&name).await.unwrap().unwrap();
    assert_eq!((&leader.instance, leader.token), (alice.tenure.instance(), Some(term.token())));
    assert_eq!(leader.metadata.as_deref(), Some(&b"10.0.0.7:8080"[..]));
    assert!(leader.remaining.unwrap() <= LONG);
}

#[tokio::test]
async fn two_elections_of_one_role_in_one_process_compete_like_strangers() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let (first, second) = (Watched::start(&alice, LONG), Watched::start(&alice, LONG));
    until("one leads", || first.election.is_leader() || second.election.is_leader()).await;
    assert!(!(first.election.is_leader() && second.election.is_leader()));
    let (leader, other) = if first.election.is_leader() { (&first, &second) } else { (&second, &first) };
    let token = leader.election.term().unwrap().token();
    leader.election.stop().await;
    assert!(other.leads().await.token() > token);
    first.check();
    second.check();
}

#[tokio::test]
async fn started_again_after_a_stop_it_campaigns_and_tells_as_before() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let watched = Watched::start(&alice, LONG);
    let mut last = Token::ZERO;
    for round in 1..=3 {
        let term = watched.leads().await;
        assert!(term.token() > last);
        last = term.token();
        watched.election.stop().await;
        until("it is told", || watched.told().iter().filter(|told| told.contains("lost")).count() == round).await;
        watched.election.start();
    }
    watched.check();
}

#[tokio::test]
async fn stopping_at_any_moment_of_a_start_leaves_nothing_behind() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let name = LeaseName::role(ROLE).unwrap();
    for round in 0..30 {
        let jitter = Duration::from_millis(if round % 3 == 0 { 5 } else { 0 });
        let election = alice.tenure.election(ROLE).start_jitter(jitter).build().unwrap();
        election.start();
        tokio::time::sleep(Duration::from_micros(round * 200)).await;
        soon(election.stop()).await;
        assert!(!election.is_leader() && election.state() == Standing::Follower);
        let term = soon(bob.tenure.lease_named(name.clone()).acquire()).await.unwrap();
        assert!(!election.is_leader(), "a stopped candidate stays stopped");
        term.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn started_stopped_asked_and_listened_to_by_many_at_once() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let watched = Watched::of(alice.tenure.election(ROLE).build().unwrap());
    let done = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            let (election, done) = (watched.election.clone(), done.clone());
            tokio::spawn(async move {
                while !done.load(Ordering::SeqCst) {
                    match number % 4 {
                        0 => election.start(),
                        1 => election.stop().await,
                        2 => assert!(!election.is_leader() || election.id().as_str().starts_with("alice")),
                        _ => election.on(|_| {}).unwrap().remove(),
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    done.store(true, Ordering::SeqCst);
    for task in tasks {
        soon(task).await.unwrap();
    }
    soon(watched.election.stop()).await;
    assert!(!watched.election.is_leader());
    watched.election.start();
    watched.leads().await;
    soon(watched.election.stop()).await;
    until("all is told", || watched.told().last().is_some_and(|told| told.contains("lost"))).await;
    watched.check();
}

// Listeners.

#[tokio::test]
async fn listeners_that_block_panic_or_leave_hurt_nobody() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let watched = Watched::of(alice.tenure.election(ROLE).ttl(TTL).build().unwrap());
    let (shut, gate) = std::sync::mpsc::channel::<()>();
    // Until the other end is dropped.
    watched
        .election
        .on(move |_| {
            let _ = gate.recv();
        })
        .unwrap();
    watched.election.on(|_| panic!("a mistake in a listener (this test makes it)")).unwrap();
    let (in_tasks, panics): (Arc<Mutex<Vec<String>>>, Arc<AtomicUsize>) = (Arc::default(), Arc::default());
    let heard = in_tasks.clone();
    watched.election.on_async(move |event| {
        let heard = heard.clone();
        async move {
            // Slower for the first than for those that follow.
            let pause = 20_u64.saturating_sub(heard.lock().unwrap().len() as u64 * 5);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            heard.lock().unwrap().push(event.news.to_string());
        }
    });
    let count = panics.clone();
    watched.election.on_async(move |_| {
        let count = count.clone();
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            panic!("a mistake in a listener (this test makes it)");
        }
    });
    let left = Arc::new(AtomicUsize::new(0));
    let counted = left.clone();
    let registration = watched
        .election
        .on(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
    registration.remove();
    watched.election.start();
    let term = watched.leads().await;
    // For longer than a ttl: a listener that blocks does not stop renewals.
    tokio::time::sleep(TTL * 2).await;
    assert!(term.is_valid());
    watched.election.stop().await;
    until("everybody has heard everything", || in_tasks.lock().unwrap().len() == 5 && watched.told().len() == 5).await;
    assert_eq!(*in_tasks.lock().unwrap(), watched.told(), "in order");
    until("called again after a panic", || panics.load(Ordering::SeqCst) == 5).await;
    assert_eq!(left.load(Ordering::SeqCst), 0, "who has left hears nothing");
    drop(shut);
}

// Work for each term.

#[tokio::test]
async fn work_that_fails_ends_the_whole_after_letting_go() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let lead = alice.tenure.election(ROLE).lead(async |_| Err::<(), _>("no disk"));
    assert_eq!(soon(lead.until(std::future::pending::<()>())).await, Err(LeadError::Work("no disk")));
    assert_eq!(server.command(&["EXISTS", "leader:cleanup"]), Reply::Int(0));
}

#[tokio::test]
async fn work_that_is_done_resigns_and_somebody_else_leads() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let (turns, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(tokio::sync::Notify::new()));
    let counted = turns.clone();
    let first = alice.tenure.election(ROLE).lead(async |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok::<(), std::io::Error>(())
    });
    let stopped = stop.clone();
    let task = async { first.until(stopped.notified()).await };
    let other = async {
        until("a turn", || turns.load(Ordering::SeqCst) > 0).await;
        let second = Watched::start(&bob, LONG);
        second.leads().await;
        stop.notify_one();
    };
    let (ended, ()) = tokio::join!(task, other);
    ended.unwrap();
    assert_eq!(turns.load(Ordering::SeqCst), 1, "nobody leads twice in a row when somebody else waits");
}

#[tokio::test]
async fn the_next_term_begins_after_the_work_of_the_last_is_gone() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let record = Record::default();
    let leads = leading(&record, &alice, TTL);
    let mut last = Token::ZERO;
    for _ in 0..3 {
        last = record.works("alice", last).await;
        assert_eq!(server.command(&["DEL", "leader:cleanup"]), Reply::Int(1));
    }
    record.works("alice", last).await;
    record.check();
    leads.abort();
}

#[tokio::test]
async fn told_to_stop_it_drops_the_work_lets_go_and_ends() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let record = Record::default();
    let lead = alice.tenure.election(ROLE).lead(async |term: TermHandle| {
        record.work("alice", &term).await;
        Ok::<(), std::io::Error>(())
    });
    soon(lead.until(record.works("alice", Token::ZERO))).await.unwrap();
    assert_eq!(server.command(&["EXISTS", "leader:cleanup"]), Reply::Int(0));
    alice.sees("election.leadership_lost").await;
    assert!(alice.first("election.leadership_lost").contains(ReleaseReason::Shutdown.word()));
}

#[tokio::test]
async fn a_loss_is_told_with_its_reason() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let watched = Watched::start(&alice, TTL);
    watched.leads().await;
    server.command(&["DEL", "leader:cleanup"]);
    until("lost", || watched.told().iter().any(|told| told.contains("lost"))).await;
    let lost = watched.events.lock().unwrap().iter().find_map(|event| match &event.news {
        ElectionNews::LeadershipLost { reason } => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(lost, Some(Ending::Lost(Loss::Missing)));
    // And it stands again.
    until("leads again", || watched.told().iter().filter(|told| *told == "leadership acquired").count() == 2).await;
    watched.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_blocks_every_thread_of_the_runtime_stays_in_office() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let watched = Watched::start(&alice, TTL);
    let term = watched.leads().await;
    let blocked: Vec<_> = (0..4).map(|_| tokio::spawn(async { std::thread::sleep(TTL * 2) })).collect();
    std::thread::sleep(TTL * 2);
    assert!(watched.election.is_leader());
    for task in blocked {
        task.await.unwrap();
    }
    assert_eq!(watched.election.term().map(|now| now.token()), Some(term.token()));
}

// One piece of work.

#[tokio::test]
async fn one_piece_of_work_is_renewed_while_it_runs_and_let_go_of_at_its_end() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let election = |instance: &Instance| instance.tenure.clone();
    let (first, second) = (election(&alice), election(&bob));
    let name = LeaseName::role(ROLE).unwrap();
    let work = tokio::spawn(async move { first.as_leader_of(ROLE, tokio::time::sleep(Duration::from_secs(2))).await });
    until("it has begun", || alice.has("lease.acquired")).await;
    match second.as_leader_of(ROLE, async { panic!("somebody else leads") }).await {
        Err(NotDone::NotLeader { by: Some(by) }) => assert_eq!(&by, alice.tenure.instance()),
        other => panic!("{other:?}"),
    }
    assert_eq!(soon(work).await.unwrap(), Ok(()));
    assert_eq!(second.leader_of(&name).await.unwrap(), None);
    assert_eq!(second.as_leader_of(ROLE, async { 7 }).await, Ok(7));
}

#[tokio::test]
async fn one_piece_of_work_is_dropped_when_the_leadership_is_lost() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let tenure = alice.tenure.clone();
    let work = tokio::spawn(async move { tenure.as_leader_of(ROLE, std::future::pending::<()>()).await });
    until("it has begun", || alice.has("lease.acquired")).await;
    assert!(bob_revokes(&server).await);
    match soon(work).await.unwrap() {
        Err(NotDone::Lost(lost)) => assert_eq!(lost.reason, Ending::Lost(Loss::Revoked)),
        other => panic!("{other:?}"),
    }
}

async fn bob_revokes(server: &RedisServer) -> bool {
    let bob = Instance::connect(&server.url(), "bob", LONG).await;
    bob.tenure.revoke(&LeaseName::role(ROLE).unwrap()).await.unwrap().is_some()
}

#[tokio::test]
async fn a_running_election_decides_who_does_a_piece_of_work() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let first = Watched::start(&alice, LONG);
    let term = first.leads().await;
    let second = Watched::start(&bob, LONG);
    second.hears("candidate → follower").await;
    assert_eq!(alice.tenure.as_leader_of(ROLE, async { 1 }).await, Ok(1));
    assert_eq!(bob.tenure.as_leader_of(ROLE, async { 2 }).await, Err(NotDone::NotLeader { by: None }));
    assert!(term.is_valid(), "the office is kept");
    assert_eq!(alice.tenure.as_leader_of("another", async { 3 }).await, Ok(3));
    first.election.stop().await;
    second.election.stop().await;
    assert_eq!(bob.tenure.as_leader_of(ROLE, async { 4 }).await, Ok(4), "nobody campaigns any more");
}

// Steering.

#[tokio::test]
async fn a_leader_that_is_asked_to_steps_down_for_the_one_that_was_named() {
    let server = RedisServer::start();
    let ttl = Duration::from_secs(3);
    let instances = [
        Instance::connect(&server.url(), "alice", LONG).await,
        Instance::connect(&server.url(), "bob", LONG).await,
        Instance::connect(&server.url(), "carol", LONG).await,
    ];
    let all: Vec<Watched> = instances.iter().map(|instance| Watched::start(instance, ttl)).collect();
    let leader = || all.iter().position(|one| one.election.is_leader());
    until("somebody leads", || leader().is_some()).await;
    for _ in 0..4 {
        let from = leader().unwrap();
        let to = (from + 1) % 3;
        let name = all[from].election.name().clone();
        let asked = instances[from].tenure.step_down(&name, Some(instances[to].tenure.instance())).await.unwrap();
        assert!(asked.is_some());
        until("the one that was named leads", || all[to].election.is_leader()).await;
        until("the other does not", || !all[from].election.is_leader()).await;
    }
    for one in &all {
        one.check();
    }
}

#[tokio::test]
async fn a_leader_that_steps_down_does_not_win_again_when_somebody_else_waits() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let first = Watched::start(&alice, LONG);
    first.leads().await;
    let second = Watched::start(&bob, LONG);
    second.hears("candidate → follower").await;
    assert!(alice.tenure.step_down(first.election.name(), None).await.unwrap().is_some());
    second.leads().await;
    first.hears("leadership lost (step_down)").await;
}
