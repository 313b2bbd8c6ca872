//! Who stands for a role: heartbeats, the list of candidates, priority; and those who only watch.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure::election::{Observer, Seen};
use tenure::{Group, InstanceId, LeaseName};
use tenure_testbed::{Probe, Proxy, RedisServer, Reply};

use crate::stage::{Instance, LONG, TTL, play, soon, until};

use super::{ROLE, Watched};

const PREFIX: &str = "my-app:heartbeat:";

fn of(instance: &Instance, priority: u8) -> Watched {
    let builder = instance.tenure.election(ROLE).heartbeat_prefix(PREFIX).priority(priority);
    Watched::of(builder.metadata(format!("priority {priority}")).build().unwrap())
}

fn heartbeat(instance: &Instance) -> String {
    format!("{PREFIX}{}", instance.tenure.instance())
}

#[tokio::test]
async fn candidates_are_listed_with_what_they_say_until_they_leave() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let (first, second) = (of(&alice, 100), of(&bob, 40));
    first.election.start();
    first.leads().await;
    second.election.start();
    second.hears("candidate → follower").await;

    let listed = second.election.candidates().await.unwrap();
    let words = |listed: &[tenure::election::Candidate]| -> Vec<String> {
        let metadata = |m: &Option<Vec<u8>>| String::from_utf8_lossy(m.as_deref().unwrap_or_default()).into_owned();
        listed.iter().map(|one| format!("{} {:?} {}", one.instance, one.priority, metadata(&one.metadata))).collect()
    };
    let (a, b) = (alice.tenure.instance(), bob.tenure.instance());
    assert_eq!(words(&listed), [format!("{a} Some(100) priority 100"), format!("{b} Some(40) priority 40")]);

    // As other programs see it: the time in milliseconds, for a ttl and five seconds.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    for instance in [&alice, &bob] {
        let beat: u128 = server.command(&["GET", &heartbeat(instance)]).as_text().parse().unwrap();
        assert!(beat <= now && now - beat < 60_000, "{beat} at {now}");
        let Reply::Int(left) = server.command(&["PTTL", &heartbeat(instance)]) else { panic!("no ttl") };
        assert!(left > 0 && left <= 35_000, "{left}");
    }

    second.election.stop().await;
    until("bob is gone", || server.command(&["EXISTS", &heartbeat(&bob)]) == Reply::Int(0)).await;
    assert_eq!(words(&bob.tenure.candidates(&Group::candidates(PREFIX).unwrap()).await.unwrap()), words(&listed[..1]));
    alice.tenure.shutdown().await;
    assert!(bob.tenure.candidates(&Group::candidates(PREFIX).unwrap()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_candidate_goes_on_beating_in_office_and_behind_it_whatever_the_server_forgets() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), TTL).await;
    let (first, second) = (Watched::start(&alice, TTL), Watched::start(&bob, TTL));
    let group = Group::of_role(ROLE).unwrap();
    let prefix = group.prefix().unwrap();
    // When it last beat; nothing when there is no heartbeat.
    let beats = |instance: &Instance| match server.command(&["GET", &format!("{prefix}{}", instance.tenure.instance())])
    {
        Reply::Nil => 0,
        beat => beat.as_int(),
    };
    until("both are listed", || beats(&alice) > 0 && beats(&bob) > 0).await;
    for _ in 0..2 {
        server.command(&["SCRIPT", "FLUSH"]);
        let before = (beats(&alice), beats(&bob));
        until("both beat again", || beats(&alice) > before.0 && beats(&bob) > before.1).await;
    }
    // One that is deleted comes back with the next.
    for id in [alice.tenure.instance(), bob.tenure.instance()] {
        server.command(&["DEL", &format!("{prefix}{id}")]);
        server.command(&["ZREM", &format!("tenure:nodes:{prefix}"), id.as_str()]);
    }
    until("both beat again", || beats(&alice) > 0 && beats(&bob) > 0).await;
    assert_eq!(first.election.candidates().await.unwrap().len(), 2);
    first.check();
    second.check();
}

#[tokio::test]
async fn a_new_leader_clears_the_heartbeats_of_the_dead() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let (process, _) = play("elections::failures::a_leader", &server.url());
    let dead = server.command(&["GET", &format!("leader:{ROLE}")]).as_text().to_owned();
    let (beat, index) = (format!("heartbeat:{ROLE}:{dead}"), format!("tenure:nodes:heartbeat:{ROLE}:"));
    assert_eq!(server.command(&["EXISTS", &beat]), Reply::Int(1));
    // One that died long ago, whose heartbeat has run out.
    server.command(&["ZADD", &index, "9999999999999", "long-gone"]);
    let watched = Watched::start(&alice, TTL);
    watched.hears("candidate → follower").await;
    process.signal(rustix::process::Signal::KILL);
    watched.leads().await;
    // It would have been there for five more seconds.
    until("it is cleared", || server.command(&["EXISTS", &beat]) == Reply::Int(0)).await;
    until("it is cleared", || {
        server.command(&["ZRANGE", &index, "0", "-1"]).as_array() == [Reply::text(alice.tenure.instance().as_str())]
    })
    .await;
    let left: Vec<InstanceId> =
        watched.election.candidates().await.unwrap().into_iter().map(|candidate| candidate.instance).collect();
    assert_eq!(left, [alice.tenure.instance().clone()]);
}

#[tokio::test]
async fn the_higher_priority_is_first_when_the_office_falls_vacant() {
    let server = RedisServer::start();
    let (low, high) = Instance::pair(&server.url(), LONG).await;
    let leader = Instance::connect(&server.url(), "leader", LONG).await;
    for _ in 0..5 {
        let probe = Probe::start();
        let (first, below, above) = (of(&leader, 100), of(&low, 0), of(&high, 100));
        first.election.start();
        first.leads().await;
        for one in [&below, &above] {
            one.election.start();
            one.hears("candidate → follower").await;
        }
        first.election.stop().await;
        until("somebody leads", || below.election.is_leader() || above.election.is_leader()).await;
        // Its head start is a second.
        if probe.lag() < Duration::from_millis(300) {
            assert!(above.election.is_leader(), "{below:?} {above:?}", below = below.told(), above = above.told());
        }
        above.election.stop().await;
        below.leads().await;
        below.election.stop().await;
    }
}

#[tokio::test]
async fn what_cannot_be_is_said_when_it_is_built() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG).await;
    let election = || alice.tenure.election(ROLE);
    for (builder, expected) in [
        (election().priority(101), "priority of 101"),
        (election().heartbeat_prefix("leader:"), "\"leader:\""),
        (election().key("my-app:leader").heartbeat_prefix("my-app:"), "\"my-app:\""),
        (election().heartbeat_prefix("tenure:x:"), "Tenure's own"),
        (election().heartbeat_interval(Duration::ZERO), "attempt"),
        (election().retry_jitter(LONG * 2), "expiry_jitter of 60s"),
    ] {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} does not mention {expected:?}");
    }
}

async fn sees(observer: &mut Observer, who: &Instance) {
    while !matches!(soon(observer.changed()).await, Seen::Leads(leader) if leader.instance == *who.tenure.instance()) {}
}

#[tokio::test]
async fn an_observer_is_told_of_every_change() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let carol = Instance::connect(&server.url(), "carol", LONG).await;
    let mut observer = carol.tenure.observe(&LeaseName::role(ROLE).unwrap());
    assert_eq!(observer.changed().await, Seen::Nobody);
    let begun = Instant::now();
    for _ in 0..5 {
        for one in [&alice, &bob] {
            let watched = of(one, 100);
            watched.election.start();
            sees(&mut observer, one).await;
            watched.election.stop().await;
            while soon(observer.changed()).await != Seen::Nobody {}
        }
    }
    // Not by looking: by itself it looks every fifteen seconds.
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_observer_sees_by_itself_what_nobody_tells() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let alice = Instance::connect(&proxy.url(), "alice", TTL).await;
    let mut observer = alice.tenure.observe(&LeaseName::role(ROLE).unwrap()).look_every(Duration::from_millis(100));
    assert_eq!(observer.changed().await, Seen::Nobody);
    // Another program, which lets its lease run out.
    server.command(&["SET", &format!("leader:{ROLE}"), "elsewhere", "PX", "300"]);
    let seen = soon(observer.changed()).await;
    assert!(matches!(&seen, Seen::Leads(leader) if leader.instance.as_str() == "elsewhere" && leader.token.is_none()));
    assert_eq!(soon(observer.changed()).await, Seen::Nobody);
    // A store that is away.
    proxy.refuse();
    proxy.cut();
    assert!(matches!(soon(observer.changed()).await, Seen::Unknown(_)));
    proxy.pass();
    assert_eq!(soon(observer.changed()).await, Seen::Nobody);
}

#[tokio::test]
async fn an_observer_that_is_interrupted_all_the_time_sees_no_less() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let mut observer = alice.tenure.observe(&LeaseName::role(ROLE).unwrap());
    assert_eq!(observer.changed().await, Seen::Nobody);
    let leadership = bob.tenure.election(ROLE).acquire().await.unwrap();
    sees(&mut observer, &bob).await;
    // A hint comes while it looks, and the look is interrupted: it is taken next time.
    server.stop();
    drop(leadership);
    assert!(tokio::time::timeout(Duration::from_millis(50), observer.changed()).await.is_err());
    server.cont();
    let begun = Instant::now();
    while soon(observer.changed()).await != Seen::Nobody {}
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    // Interrupted more often than it looks by itself, it looks all the same.
    server.command(&["SET", &format!("leader:{ROLE}"), "elsewhere", "PX", "700"]);
    let mut observer = alice.tenure.observe(&LeaseName::role(ROLE).unwrap());
    assert!(matches!(observer.changed().await, Seen::Leads(_)));
    let nobody = async {
        while tokio::time::timeout(Duration::from_millis(50), observer.changed()).await != Ok(Seen::Nobody) {}
    };
    soon(nobody).await;
}

#[tokio::test]
async fn a_user_that_may_not_touch_heartbeats_leads_all_the_same_and_is_told() {
    let users = ["user carol on >secret ~leader:* ~tenure:* &* +@all"];
    let server = RedisServer::builder().acl_users(&users).start();
    let alice = Instance::connect(&server.url_as("carol", "secret"), "alice", TTL).await;
    let watched = Watched::start(&alice, TTL);
    let term = watched.leads().await;
    alice.sees("store.refused").await;
    tokio::time::sleep(TTL * 2).await;
    assert!(term.is_valid(), "{:?}", alice.happened());
    assert_eq!(alice.times("store.refused"), 1);
}

#[tokio::test]
async fn the_index_does_not_grow_with_those_who_are_gone() {
    let server = RedisServer::start();
    let index = format!("tenure:nodes:heartbeat:{ROLE}:");
    let mut connection = server.connect().unwrap();
    for chunk in 0..100 {
        let mut words = vec!["ZADD".to_owned(), index.clone()];
        words.extend((0..1_000).flat_map(|n| ["1000".to_owned(), format!("dead-{chunk}-{n}")]));
        connection.command(&words).unwrap();
    }
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let watched = Watched::start(&alice, TTL);
    watched.leads().await;
    until("it is swept", || server.command(&["ZCARD", &index]) == Reply::Int(1)).await;
    assert!(!alice.has("store.lost"), "{:?}", alice.happened());
}
