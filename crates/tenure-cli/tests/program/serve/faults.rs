//! What befalls the store, and instances that hang.

use tenure_testbed::Proxy;

use super::*;

#[test]
fn started_before_its_store_it_becomes_ready_when_that_is_there() {
    let redis = RedisServer::start();
    let place = Place::on(&redis.url());
    redis.kill();
    let one = Instance::spawn(&place, &[]);
    until("it lives", || one.get("/healthz").0 == 200);
    assert_eq!(one.get("/readyz").0, 503);
    assert_eq!(one.ask("POST", "/v1/sessions", r#"{"url": "http://127.0.0.1:1"}"#).0, 503);
    redis.start_again();
    until("it is ready", || one.get("/readyz").0 == 200);
}

#[test]
fn a_store_that_can_never_be_used_is_not_waited_for() {
    let place = Place::new();
    std::fs::write(place.path("leases.db"), "a page of text, and no database at all").unwrap();
    let mut served = place.tenure(&["serve", "--listen", "127.0.0.1:0"]);
    let served = served.output().unwrap();
    assert_eq!(served.status.code(), Some(69), "{served:?}");
    let said = String::from_utf8_lossy(&served.stderr);
    assert!(said.contains("leases.db") && !said.contains("API at"), "{said}");

    let redis = RedisServer::builder().password("right").start();
    let place = Place::on(&redis.url_as("default", "wrong-one"));
    let served = place.output(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(served.status.code(), Some(69), "{served:?}");
    assert!(!String::from_utf8_lossy(&served.stderr).contains("wrong-one"), "{served:?}");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let (redis, _, place) = on_redis();
    let mut one = Instance::start(&place, &["--drain-timeout", "10m"]);
    redis.stop();
    // Two that come before it has looked are one.
    until("it ends", || {
        let ended = one.process.try_wait().unwrap().is_some();
        if !ended {
            one.signal(Signal::TERM);
        }
        ended
    });
    assert_eq!(one.ends(), Some(128 + 15));
    redis.cont();
}

#[test]
fn numbers_that_are_refused_leave_nothing_in_the_store() {
    let (redis, _, place) = on_redis();
    let wrong: [&[&str]; 6] = [
        &["--ttl", "30h"],
        &["--ttl", "24h", "--weight", "NaN"],
        &["--ttl", "24h", "--weight", "1001"],
        &["--ttl", "24h", "--heartbeat-ttl", "1ms"],
        &["--ttl", "24h", "--discover-every", "0s"],
        &["--ttl", "1ms"],
    ];
    for wrong in wrong.into_iter().cycle().take(24) {
        assert_eq!(place.code(&[&["serve", "--listen", "127.0.0.1:0"], wrong].concat()), 64, "{wrong:?}");
    }
    assert_eq!(redis.command(&["EXISTS", "tenure:ns"]), Reply::Int(0));
}

/// Slots are counted by the store's clock; those that were polled before it was set are in the future then.
#[test]
fn a_clock_that_is_set_back_or_ahead_stops_no_polls_for_long() {
    if !RedisServer::can_fake_time() {
        // Past the capture of the test harness.
        let _ = std::io::stderr().write_all(b"NOT TESTED: libfaketime is not here; `cargo xtask test` gets it\n");
        return;
    }
    let (redis, server) = (RedisServer::builder().own_clock().start(), WebServer::start());
    let place = Place::on(&redis.url());
    let one = Instance::start(&place, &[]);
    let _two = Instance::start(&place, &[]);
    (0..4).for_each(|n| drop(one.add(&server.url(&format!("/{n}")))));
    until("both take part", || shared_by(&server, 4) == Some(2));
    for forward in [false, true] {
        redis.step_clock(Duration::from_secs(600), forward);
        let stepped = Instant::now();
        until("all are polled again", || stepped.elapsed() > TTL * 2 && shared_by(&server, 4) == Some(2));
    }
    // Nobody polls what another does, whatever the time is.
    for (session, visits) in by_session(server.visits()) {
        let mut visits = visits;
        visits.sort_by_key(|visit| visit.began);
        let met = |pair: &[Visit]| pair[0].ended.is_none_or(|ended| ended > pair[1].began);
        assert!(!visits.windows(2).any(met), "{session} is polled twice at once");
    }
}

/// One that was stopped for longer than its leases lasted polls nothing that is another's by then.
fn whoever_was_stopped_polls_nothing_that_is_anothers(place: &Place) {
    let server = WebServer::start();
    let one = Instance::start(place, &[]);
    (0..6).for_each(|n| drop(one.add(&server.url(&format!("/{n}")))));
    let (two, _three) = (Instance::start(place, &[]), Instance::start(place, &[]));
    until("all take part", || shared_by(&server, 6) == Some(3));
    two.signal(Signal::STOP);
    let stopped = Instant::now();
    until("the others poll everything", || stopped.elapsed() > TTL && shared_by(&server, 6) == Some(2));
    std::thread::sleep(TTL);
    two.signal(Signal::CONT);
    until("it takes part again", || shared_by(&server, 6) == Some(3));
    is_right(server.visits());
    until("its results are taken", || {
        let (_, nodes) = two.get("/v1/nodes");
        let ours =
            nodes["liveNodes"].as_array().into_iter().flatten().find(|node| node["isThisInstance"] == json!(true));
        ours.is_some_and(|node| {
            node["ownedSessions"].as_array().is_some_and(|sessions| {
                !sessions.is_empty() && sessions.iter().all(|session| session["state"] == json!("owned"))
            })
        })
    });
}

#[test]
fn whoever_was_stopped_polls_nothing_that_is_anothers_on_redis() {
    let server = RedisServer::start();
    whoever_was_stopped_polls_nothing_that_is_anothers(&Place::on(&server.url()));
}

#[test]
fn whoever_was_stopped_polls_nothing_that_is_anothers_on_a_file() {
    whoever_was_stopped_polls_nothing_that_is_anothers(&Place::new());
}

#[test]
fn a_slot_that_was_claimed_before_the_connection_was_lost_is_polled_when_it_is_back() {
    const INTERVAL: Duration = Duration::from_secs(2);
    let (redis, server, probe) = (RedisServer::start(), WebServer::start(), Probe::start());
    let proxy = Proxy::to(redis.address());
    let one = Instance::start(&Place::on(&proxy.url()), &["--ttl", "12s"]);
    let session = json!({"url": server.url("/"), "interval": "2s"});
    assert_eq!(one.ask("POST", "/v1/sessions", &session.to_string()).0, 201);
    for _ in 0..3 {
        let seen = server.visits().len();
        until("it is polled", || server.visits().len() > seen);
        // The next slot is claimed with the result of this one; then the store is out of reach until it is over.
        std::thread::sleep(INTERVAL / 2);
        proxy.refuse();
        proxy.cut();
        std::thread::sleep(INTERVAL * 3 / 4);
        proxy.pass();
    }
    let seen = server.visits().len();
    until("it is polled", || server.visits().len() > seen + 1);
    let dues: Vec<u64> = server.visits().iter().map(|visit| number(visit, "tenure-due")).collect();
    let left_out: u64 = dues.windows(2).map(|pair| (pair[1] - pair[0]) / 2_000 - 1).sum();
    // A machine that stands still may leave out as many slots as it stood still for.
    let stalled = probe.stalled(INTERVAL / 8);
    let allowed = if stalled.is_zero() { 0 } else { stalled.as_millis() as u64 / 2_000 + 1 };
    assert!(left_out <= allowed, "{dues:?}, and the machine stood still for {stalled:?}");
    is_right(server.visits());
}

#[test]
fn a_store_that_is_restarted_with_its_data_costs_no_session_its_holder() {
    let (redis, server) = (RedisServer::builder().append_only("always").start(), WebServer::start());
    let place = Place::on(&redis.url());
    let one = Instance::start(&place, &[]);
    let _two = Instance::start(&place, &[]);
    (0..4).for_each(|n| drop(one.add(&server.url(&format!("/{n}")))));
    until("both take part", || shared_by(&server, 4) == Some(2));
    std::thread::sleep(TTL / 2);
    let before = pollers(&server, Duration::from_millis(INTERVAL_MS * 3));
    redis.kill();
    redis.start_again();
    let again = Instant::now();
    until("all are polled again", || again.elapsed() > TTL && shared_by(&server, 4) == Some(2));
    assert_eq!(pollers(&server, Duration::from_millis(INTERVAL_MS * 3)), before);
    is_right(server.visits());
}

#[test]
fn a_store_that_is_flushed_stops_the_polling_and_what_is_made_then_is_polled() {
    let (redis, server) = (RedisServer::start(), WebServer::start());
    let place = Place::on(&redis.url());
    let (one, two) = (Instance::start(&place, &[]), Instance::start(&place, &[]));
    let path = format!("/v1/sessions/{}", one.add(&server.url("/before")));
    until("it is polled", || shared_by(&server, 1) == Some(1));
    redis.command(&["FLUSHALL"]);
    // What is renewed next is lost, and what is due is refused: a renewal's interval and an answer.
    until("it is polled no more", || pollers(&server, TTL).is_empty());
    for instance in [&one, &two] {
        until("everybody knows that it is gone", || instance.get(&path).0 == 404);
        until("everybody is there again", || {
            instance.get("/v1/nodes").1["liveNodes"].as_array().is_some_and(|nodes| nodes.len() == 2)
        });
    }
    two.add(&server.url("/after"));
    until("the new one is polled", || server.visits().iter().any(|visit| visit.path == "/after"));
    is_right(server.visits());
}

/// The next renewal is ten seconds away; a result that is refused says it sooner.
#[test]
fn a_lease_that_an_outsider_deletes_is_noticed_with_the_next_result() {
    let (redis, server, place) = on_redis();
    let one = Instance::start(&place, &["--ttl", "30s"]);
    let id = one.add(&server.url("/"));
    let results = || server.visits().len();
    until("it is polled", || results() >= 2);
    assert_eq!(redis.command(&["DEL", &format!("poll:lease:{id}")]), Reply::Int(1));
    let deleted = Instant::now();
    until("it is held again", || redis.command(&["EXISTS", &format!("poll:lease:{id}")]) == Reply::Int(1));
    // The slot that is due next, its result, and a claim: three intervals are plenty.
    Probe::start().within(deleted.elapsed(), Duration::from_millis(3 * INTERVAL_MS), "it is held again");
    let before = results();
    until("it is polled again", || results() > before);
}
