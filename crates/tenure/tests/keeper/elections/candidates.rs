//! Candidates of a role: heartbeats, the list of candidates, priorities, and observers.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure::election::{LeaderStatus, Observer};
use tenure::{Group, InstanceId};
use tenure_testbed::{LagProbe, Proxy, RedisReply, RedisServer};

use crate::harness::{Instance, LONG_TTL, TTL, start_process, wait_until, with_timeout};

use super::{ROLE, RecordedElection};

const PREFIX: &str = "my-app:heartbeat:";

fn of(instance: &Instance, priority: u8) -> RecordedElection {
    let builder = instance.tenure.election(ROLE).heartbeat_prefix(PREFIX).priority(priority);
    RecordedElection::of(builder.metadata(format!("priority {priority}")))
}

fn heartbeat(instance: &Instance) -> String {
    format!("{PREFIX}{}", instance.tenure.instance())
}

#[tokio::test]
async fn candidates_are_listed_with_their_metadata_until_they_leave() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let (first, second) = (of(&alice, 100), of(&bob, 40));
    first.election.start();
    first.wait_for_leadership().await;
    second.election.start();
    second.wait_for_event("candidate → follower").await;

    let listed = second.election.candidates().await.unwrap();
    let words = |listed: &[tenure::election::Candidate]| -> Vec<String> {
        let metadata = |metadata: &Option<String>| metadata.clone().unwrap_or_default();
        listed.iter().map(|one| format!("{} {:?} {}", one.instance, one.priority, metadata(&one.metadata))).collect()
    };
    let (a, b) = (alice.tenure.instance(), bob.tenure.instance());
    assert_eq!(words(&listed), [format!("{a} Some(100) priority 100"), format!("{b} Some(40) priority 40")]);

    // As other programs see it: the time in milliseconds, kept for a ttl and five seconds.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    for instance in [&alice, &bob] {
        let beat: u128 = server.command(&["GET", &heartbeat(instance)]).as_text().parse().unwrap();
        assert!(beat <= now && now - beat < 60_000, "{beat} at {now}");
        let RedisReply::Int(left) = server.command(&["PTTL", &heartbeat(instance)]) else { panic!("no ttl") };
        assert!(left > 0 && left <= 35_000, "{left}");
    }

    second.election.stop().await;
    wait_until("bob is not listed", || server.command(&["EXISTS", &heartbeat(&bob)]) == RedisReply::Int(0)).await;
    assert_eq!(words(&bob.tenure.fleet().candidates_under(PREFIX).await.unwrap()), words(&listed[..1]));
    alice.tenure.shutdown().await;
    assert!(bob.tenure.fleet().candidates_under(PREFIX).await.unwrap().is_empty());
}

#[tokio::test]
async fn leaders_and_followers_keep_sending_heartbeats() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), TTL).await;
    let (first, second) = (RecordedElection::start(&alice, TTL), RecordedElection::start(&bob, TTL));
    let group = Group::of_role(ROLE).unwrap();
    let prefix = group.prefix().unwrap();
    // Time of the last heartbeat; zero if there is none.
    let beats = |instance: &Instance| match server.command(&["GET", &format!("{prefix}{}", instance.tenure.instance())])
    {
        RedisReply::Nil => 0,
        beat => beat.as_int(),
    };
    wait_until("both are listed", || beats(&alice) > 0 && beats(&bob) > 0).await;
    for _ in 0..2 {
        server.command(&["SCRIPT", "FLUSH"]);
        let before = (beats(&alice), beats(&bob));
        wait_until("both send heartbeats again", || beats(&alice) > before.0 && beats(&bob) > before.1).await;
    }
    // A deleted heartbeat comes back with the next one.
    for id in [alice.tenure.instance(), bob.tenure.instance()] {
        server.command(&["DEL", &format!("{prefix}{id}")]);
        server.command(&["ZREM", &format!("tenure:nodes:{prefix}"), id.as_str()]);
    }
    wait_until("both send heartbeats again", || beats(&alice) > 0 && beats(&bob) > 0).await;
    assert_eq!(first.election.candidates().await.unwrap().len(), 2);
    first.assert_event_order();
    second.assert_event_order();
}

#[tokio::test]
async fn a_new_leader_clears_the_heartbeats_of_the_dead() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let (process, _) = start_process("elections::failures::leader_process", &server.url());
    let dead = server.command(&["GET", &format!("leader:{ROLE}")]).as_text().to_owned();
    let (beat, index) = (format!("heartbeat:{ROLE}:{dead}"), format!("tenure:nodes:heartbeat:{ROLE}:"));
    assert_eq!(server.command(&["EXISTS", &beat]), RedisReply::Int(1));
    // A candidate that died long ago, whose heartbeat has expired.
    server.command(&["ZADD", &index, "9999999999999", "long-gone"]);
    let watched = RecordedElection::start(&alice, TTL);
    watched.wait_for_event("candidate → follower").await;
    process.signal(rustix::process::Signal::KILL);
    watched.wait_for_leadership().await;
    // Otherwise the heartbeat would stay for five more seconds.
    wait_until("the heartbeat is cleared", || server.command(&["EXISTS", &beat]) == RedisReply::Int(0)).await;
    wait_until("the index is cleared", || {
        server.command(&["ZRANGE", &index, "0", "-1"]).as_array()
            == [RedisReply::text(alice.tenure.instance().as_str())]
    })
    .await;
    let left: Vec<InstanceId> =
        watched.election.candidates().await.unwrap().into_iter().map(|candidate| candidate.instance).collect();
    assert_eq!(left, [alice.tenure.instance().clone()]);
}

#[tokio::test]
async fn the_candidate_with_the_higher_priority_is_elected_first() {
    let server = RedisServer::start();
    let (low, high) = Instance::pair(&server.url(), LONG_TTL).await;
    let leader = Instance::connect(&server.url(), "leader", LONG_TTL).await;
    for _ in 0..5 {
        let probe = LagProbe::start();
        let (first, below, above) = (of(&leader, 100), of(&low, 0), of(&high, 100));
        first.election.start();
        first.wait_for_leadership().await;
        for one in [&below, &above] {
            one.election.start();
            one.wait_for_event("candidate → follower").await;
        }
        first.election.stop().await;
        wait_until("a candidate leads", || below.election.is_leader() || above.election.is_leader()).await;
        // The head start is a second.
        if probe.lag() < Duration::from_millis(300) {
            assert!(
                above.election.is_leader(),
                "{below:?} {above:?}",
                below = below.event_texts(),
                above = above.event_texts()
            );
        }
        above.election.stop().await;
        below.wait_for_leadership().await;
        below.election.stop().await;
    }
}

#[tokio::test]
async fn invalid_settings_are_rejected_by_build() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", LONG_TTL).await;
    let election = || alice.tenure.election(ROLE);
    for (builder, expected) in [
        (election().priority(101), "got 101"),
        (election().heartbeat_prefix("leader:"), "\"leader:\""),
        (election().key("my-app:leader").heartbeat_prefix("my-app:"), "\"my-app:\""),
        (election().heartbeat_prefix("tenure:x:"), "reserved for Tenure"),
        (election().heartbeat_interval(Duration::ZERO), "attempt"),
        (election().retry_jitter(LONG_TTL * 2), "expiry_jitter of 60s"),
    ] {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} does not mention {expected:?}");
    }
}

async fn wait_for_leader(observer: &mut Observer, who: &Instance) {
    while !matches!(with_timeout(observer.changed()).await, LeaderStatus::Leader(leader) if leader.instance == *who.tenure.instance())
    {
    }
}

#[tokio::test]
async fn an_observer_is_told_of_every_change() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let carol = Instance::connect(&server.url(), "carol", LONG_TTL).await;
    let mut observer = carol.tenure.fleet().observe(ROLE).unwrap();
    assert_eq!(observer.changed().await, LeaderStatus::NoLeader);
    let begun = Instant::now();
    for _ in 0..5 {
        for one in [&alice, &bob] {
            let watched = of(one, 100);
            watched.election.start();
            wait_for_leader(&mut observer, one).await;
            watched.election.stop().await;
            while with_timeout(observer.changed()).await != LeaderStatus::NoLeader {}
        }
    }
    // Not by polling: it polls every fifteen seconds.
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_observer_notices_changes_that_are_not_announced() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let alice = Instance::connect(&proxy.url(), "alice", TTL).await;
    let mut observer = alice.tenure.fleet().observe(ROLE).unwrap().recheck_every(Duration::from_millis(100));
    assert_eq!(observer.changed().await, LeaderStatus::NoLeader);
    // A foreign program whose lease expires.
    server.command(&["SET", &format!("leader:{ROLE}"), "elsewhere", "PX", "300"]);
    let seen = with_timeout(observer.changed()).await;
    assert!(
        matches!(&seen, LeaderStatus::Leader(leader) if leader.instance.as_str() == "elsewhere" && leader.token.is_none())
    );
    assert_eq!(with_timeout(observer.changed()).await, LeaderStatus::NoLeader);
    // The store becomes unreachable.
    proxy.refuse();
    proxy.reset_connections();
    assert!(matches!(with_timeout(observer.changed()).await, LeaderStatus::Unknown(_)));
    proxy.pass();
    assert_eq!(with_timeout(observer.changed()).await, LeaderStatus::NoLeader);
}

#[tokio::test]
async fn a_cancelled_observer_misses_no_change() {
    let server = RedisServer::start();
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let mut observer = alice.tenure.fleet().observe(ROLE).unwrap();
    assert_eq!(observer.changed().await, LeaderStatus::NoLeader);
    let leadership = bob.tenure.election(ROLE).acquire().await.unwrap();
    wait_for_leader(&mut observer, &bob).await;
    // An announcement arrives during a read, and the read is cancelled: the next call must not miss it.
    server.stop();
    drop(leadership);
    assert!(tokio::time::timeout(Duration::from_millis(50), observer.changed()).await.is_err());
    server.cont();
    let begun = Instant::now();
    while with_timeout(observer.changed()).await != LeaderStatus::NoLeader {}
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    // It is cancelled more often than it polls, and must still poll.
    server.command(&["SET", &format!("leader:{ROLE}"), "elsewhere", "PX", "700"]);
    let mut observer = alice.tenure.fleet().observe(ROLE).unwrap();
    assert!(matches!(observer.changed().await, LeaderStatus::Leader(_)));
    let no_candidates = async {
        while tokio::time::timeout(Duration::from_millis(50), observer.changed()).await != Ok(LeaderStatus::NoLeader) {}
    };
    with_timeout(no_candidates).await;
}

#[tokio::test]
async fn a_user_without_heartbeat_permission_can_lead_and_is_warned() {
    let users = ["user carol on >secret ~leader:* ~tenure:* &* +@all"];
    let server = RedisServer::builder().acl_users(&users).start();
    let alice = Instance::connect(&server.url_as("carol", "secret"), "alice", TTL).await;
    let watched = RecordedElection::start(&alice, TTL);
    let term = watched.wait_for_leadership().await;
    alice.wait_for_event("store.refused").await;
    tokio::time::sleep(TTL * 2).await;
    assert!(term.is_valid(), "{:?}", alice.event_names());
    // The heartbeat, and the list of candidates: each is reported once, however many requests are refused.
    let refused = alice.events_named("store.refused");
    assert!(refused.iter().all(|text| text.contains("permission") || text.contains("access")), "{refused:#?}");
    assert_eq!(refused.iter().collect::<BTreeSet<_>>().len(), refused.len(), "{refused:#?}");
}

#[tokio::test]
async fn the_candidate_index_is_cleared_of_dead_candidates() {
    let server = RedisServer::start();
    let index = format!("tenure:nodes:heartbeat:{ROLE}:");
    let mut connection = server.connect().unwrap();
    for chunk in 0..100 {
        let mut words = vec!["ZADD".to_owned(), index.clone()];
        words.extend((0..1_000).flat_map(|n| ["1000".to_owned(), format!("dead-{chunk}-{n}")]));
        connection.command(&words).unwrap();
    }
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let watched = RecordedElection::start(&alice, TTL);
    watched.wait_for_leadership().await;
    wait_until("the index is cleared", || server.command(&["ZCARD", &index]) == RedisReply::Int(1)).await;
    assert!(!alice.has_event("store.lost"), "{:?}", alice.event_names());
}
