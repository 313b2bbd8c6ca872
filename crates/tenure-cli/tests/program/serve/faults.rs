//! Faults of the store, and hanging instances.

use std::time::{SystemTime, UNIX_EPOCH};

use tenure_testbed::Proxy;

use super::*;

#[test]
fn an_instance_started_before_its_store_becomes_ready_with_it() {
    let redis = RedisServer::start();
    let fixture = Fixture::on(&redis.url());
    redis.kill();
    let one = ServeInstance::spawn(&fixture, &[]);
    wait_until("the process is running", || one.get("/healthz").0 == 200);
    assert_eq!(one.get("/readyz").0, 503);
    assert_eq!(one.ask("POST", "/v1/sessions", r#"{"url": "http://127.0.0.1:1"}"#).0, 503);
    redis.restart();
    wait_until("the instance is ready", || one.get("/readyz").0 == 200);
}

#[test]
fn an_unusable_store_ends_serve_at_once() {
    let fixture = Fixture::new();
    std::fs::write(fixture.path("leases.db"), "a page of text, and no database at all").unwrap();
    let mut served = fixture.tenure(&["serve", "--listen", "127.0.0.1:0"]);
    let served = served.output().unwrap();
    assert_eq!(served.status.code(), Some(69), "{served:?}");
    let said = String::from_utf8_lossy(&served.stderr);
    assert!(said.contains("leases.db") && !said.contains("API at"), "{said}");

    let redis = RedisServer::builder().password("right").start();
    let fixture = Fixture::on(&redis.url_as("default", "wrong-one"));
    let served = fixture.output(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(served.status.code(), Some(69), "{served:?}");
    assert!(!String::from_utf8_lossy(&served.stderr).contains("wrong-one"), "{served:?}");
}

#[test]
fn an_instance_whose_heartbeats_are_refused_is_not_ready() {
    let redis = RedisServer::builder().acl_users(&["user carol on >right ~* &* +@all"]).start();
    let fixture = Fixture::on(&redis.url_as("carol", "right"));
    let one = ServeInstance::start(&fixture, &["--ttl", "2s"]);
    for _ in 0..2 {
        wait_until("the instance is ready", || one.get("/readyz").0 == 200);
        redis.command(&["ACL", "SETUSER", "carol", "-zadd"]);
        wait_until("the instance is not ready", || {
            let (status, body) = one.get("/readyz");
            status == 503 && body.to_string().contains("heartbeats")
        });
        redis.command(&["ACL", "SETUSER", "carol", "+zadd"]);
    }
    wait_until("the instance is ready again", || one.get("/readyz").0 == 200);
}

#[test]
fn too_few_files_are_no_wrong_usage() {
    let fixture = Fixture::new();
    let served = fixture.tenure(&["serve", "--listen", "127.0.0.1:0"]);
    for limit in ["6", "10", "20"] {
        let limited = std::process::Command::new("sh")
            .args(["-c", &format!(r#"ulimit -n {limit}; exec "$0" "$@""#)])
            .arg(served.get_program())
            .args(served.get_args())
            .envs(served.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .output()
            .unwrap();
        assert_eq!(limited.status.code(), Some(71), "{limited:?}");
        assert!(String::from_utf8_lossy(&limited.stderr).contains("ulimit -n"), "{limited:?}");
    }
}

#[test]
fn a_full_pipe_of_log_lines_delays_no_stop() {
    let fixture = Fixture::new();
    let mut command = ServeInstance::command(&fixture, &["--log-level", "debug", "--log", "json"]);
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(process.stderr.take().unwrap());
    rustix::pipe::fcntl_setpipe_size(log.get_ref(), 4_096).unwrap();
    let mut line = String::new();
    let address = loop {
        line.clear();
        log.read_line(&mut line).unwrap();
        if let Some((_, rest)) = line.split_once("API at http://") {
            break rest.split_once(';').unwrap().0.to_owned();
        }
    };
    // Nothing is read from here on.
    let one = ServeInstance { process, address };
    (0..50).for_each(|n| drop(one.add(&format!("http://127.0.0.1:1/{n}"))));
    let written = || rustix::io::ioctl_fionread(log.get_ref()).unwrap();
    wait_until("the pipe is full", || written() > 3_000);
    let mut one = one;
    one.signal(Signal::TERM);
    assert_eq!(one.wait_exit(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let (redis, _, fixture) = on_redis();
    let mut one = ServeInstance::start(&fixture, &["--drain-timeout", "10m"]);
    redis.stop();
    // Two signals before the first is handled count as one.
    wait_until("the instance exits", || {
        let ended = one.process.try_wait().unwrap().is_some();
        if !ended {
            one.signal(Signal::TERM);
        }
        ended
    });
    assert_eq!(one.wait_exit(), Some(128 + 15));
    redis.cont();
}

#[test]
fn refused_settings_leave_nothing_in_the_store() {
    let (redis, _, fixture) = on_redis();
    let wrong: [&[&str]; 6] = [
        &["--ttl", "30h"],
        &["--ttl", "24h", "--weight", "NaN"],
        &["--ttl", "24h", "--weight", "1001"],
        &["--ttl", "24h", "--heartbeat-ttl", "1ms"],
        &["--ttl", "24h", "--discover-every", "0s"],
        &["--ttl", "1ms"],
    ];
    for wrong in wrong.into_iter().cycle().take(24) {
        assert_eq!(fixture.code(&[&["serve", "--listen", "127.0.0.1:0"], wrong].concat()), 64, "{wrong:?}");
    }
    assert_eq!(redis.command(&["EXISTS", "tenure:ns"]), RedisReply::Int(0));
}

/// Slots are counted by the store's clock. After a step back, polled slots lie in the future.
#[test]
fn a_clock_step_stops_polling_only_briefly() {
    if !RedisServer::can_fake_time() {
        // Written directly, because the test harness captures output.
        let _ = std::io::stderr().write_all(b"NOT TESTED: libfaketime is missing; `cargo xtask test` installs it\n");
        return;
    }
    let (redis, server) = (RedisServer::builder().own_clock().start(), WebServer::start());
    let fixture = Fixture::on(&redis.url());
    let one = ServeInstance::start(&fixture, &[]);
    let _two = ServeInstance::start(&fixture, &[]);
    (0..4).for_each(|n| drop(one.add(&server.url(&format!("/{n}")))));
    wait_until("both instances poll", || polling_instances(&server, 4) == Some(2));
    for forward in [false, true] {
        redis.step_clock(Duration::from_secs(600), forward);
        let stepped = Instant::now();
        wait_until("all are polled again", || stepped.elapsed() > TTL * 2 && polling_instances(&server, 4) == Some(2));
    }
    // No two instances poll the same session at once, whatever the time is.
    for (session, visits) in by_session(server.requests()) {
        let mut visits = visits;
        visits.sort_by_key(|visit| visit.began);
        let met = |pair: &[ReceivedRequest]| pair[0].ended.is_none_or(|ended| ended > pair[1].began);
        assert!(!visits.windows(2).any(met), "{session} is polled by two instances at once");
    }
}

/// An instance that was stopped for longer than its leases polls no session that has another holder by then.
fn a_resumed_instance_polls_no_session_of_another_holder(fixture: &Fixture) {
    let server = WebServer::start();
    let one = ServeInstance::start(fixture, &[]);
    (0..6).for_each(|n| drop(one.add(&server.url(&format!("/{n}")))));
    let (two, _three) = (ServeInstance::start(fixture, &[]), ServeInstance::start(fixture, &[]));
    wait_until("all instances poll", || polling_instances(&server, 6) == Some(3));
    two.signal(Signal::STOP);
    let stopped = Instant::now();
    wait_until("the others poll all sessions", || stopped.elapsed() > TTL && polling_instances(&server, 6) == Some(2));
    std::thread::sleep(TTL);
    two.signal(Signal::CONT);
    wait_until("the resumed instance polls again", || polling_instances(&server, 6) == Some(3));
    assert_polled_once(server.requests());
    wait_until("its results are accepted", || {
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
fn a_resumed_instance_polls_no_session_of_another_holder_on_redis() {
    let server = RedisServer::start();
    a_resumed_instance_polls_no_session_of_another_holder(&Fixture::on(&server.url()));
}

#[test]
fn a_resumed_instance_polls_no_session_of_another_holder_on_a_file() {
    a_resumed_instance_polls_no_session_of_another_holder(&Fixture::new());
}

#[test]
fn a_slot_claimed_before_a_disconnect_is_polled_after_it() {
    const INTERVAL: Duration = Duration::from_secs(2);
    let (redis, server, probe) = (RedisServer::start(), WebServer::start(), LagProbe::start());
    let proxy = Proxy::to(redis.address());
    let one = ServeInstance::start(&Fixture::on(&proxy.url()), &["--ttl", "12s"]);
    let session = json!({"url": server.url("/"), "interval": "2s"});
    assert_eq!(one.ask("POST", "/v1/sessions", &session.to_string()).0, 201);
    let now = || u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
    let interval_ms = u64::try_from(INTERVAL.as_millis()).unwrap();
    for _ in 0..3 {
        let polls = server.requests().len();
        let mut due = 0;
        // A poll in time: one that waited for the connection says nothing about the distance to the next slot.
        wait_until("the session is polled in time", || {
            let requests = server.requests();
            due = requests.last().map_or(0, |visit| header_number(visit, "tenure-due"));
            requests.len() > polls && now() < due + interval_ms / 4
        });
        // The next slot is claimed with the result of this one. The store is unreachable from half an interval before
        // that slot to a quarter after it. The rest of the interval is longer than the longest backoff, a second.
        std::thread::sleep(Duration::from_millis((due + interval_ms / 2).saturating_sub(now())));
        proxy.refuse();
        proxy.reset_connections();
        std::thread::sleep(INTERVAL * 3 / 4);
        proxy.pass();
    }
    let seen = server.requests().len();
    wait_until("the session is polled", || server.requests().len() > seen + 1);
    let dues: Vec<u64> = server.requests().iter().map(|visit| header_number(visit, "tenure-due")).collect();
    let missed_slots: u64 = dues.windows(2).map(|pair| (pair[1] - pair[0]) / 2_000 - 1).sum();
    // A stalled machine may miss as many slots as its stall covers.
    let stalled = probe.total_stall(INTERVAL / 8);
    let allowed = if stalled.is_zero() { 0 } else { stalled.as_millis() as u64 / 2_000 + 1 };
    assert!(missed_slots <= allowed, "{dues:?}, and the machine stalled for {stalled:?}");
    assert_polled_once(server.requests());
}

#[test]
fn a_store_restart_with_data_moves_no_session() {
    let (redis, server) = (RedisServer::builder().append_only("always").start(), WebServer::start());
    let fixture = Fixture::on(&redis.url());
    let one = ServeInstance::start(&fixture, &[]);
    let _two = ServeInstance::start(&fixture, &[]);
    (0..4).for_each(|n| drop(one.add(&server.url(&format!("/{n}")))));
    wait_until("both instances poll", || polling_instances(&server, 4) == Some(2));
    std::thread::sleep(TTL / 2);
    let before = pollers(&server, Duration::from_millis(INTERVAL_MS * 3));
    redis.kill();
    redis.restart();
    let again = Instant::now();
    wait_until("all are polled again", || again.elapsed() > TTL && polling_instances(&server, 4) == Some(2));
    assert_eq!(pollers(&server, Duration::from_millis(INTERVAL_MS * 3)), before);
    assert_polled_once(server.requests());
}

#[test]
fn a_flushed_store_stops_polling_and_accepts_new_sessions() {
    let (redis, server) = (RedisServer::start(), WebServer::start());
    let fixture = Fixture::on(&redis.url());
    let (one, two) = (ServeInstance::start(&fixture, &[]), ServeInstance::start(&fixture, &[]));
    let path = format!("/v1/sessions/{}", one.add(&server.url("/before")));
    wait_until("the session is polled", || polling_instances(&server, 1) == Some(1));
    redis.command(&["FLUSHALL"]);
    // The next renewal finds the loss, and due polls are refused: at most a renewal interval and a reply.
    wait_until("polling stops", || pollers(&server, TTL).is_empty());
    for instance in [&one, &two] {
        wait_until("all instances know that the session is lost", || instance.get(&path).0 == 404);
        wait_until("all instances have rejoined", || {
            instance.get("/v1/nodes").1["liveNodes"].as_array().is_some_and(|nodes| nodes.len() == 2)
        });
    }
    two.add(&server.url("/after"));
    wait_until("the new session is polled", || server.requests().iter().any(|visit| visit.path == "/after"));
    assert_polled_once(server.requests());
}

/// The next renewal is ten seconds away; a refused result shows the loss sooner.
#[test]
fn a_deleted_lease_is_noticed_with_the_next_result() {
    let (redis, server, fixture) = on_redis();
    let one = ServeInstance::start(&fixture, &["--ttl", "30s"]);
    let id = one.add(&server.url("/"));
    let results = || server.requests().len();
    wait_until("the session is polled", || results() >= 2);
    assert_eq!(redis.command(&["DEL", &format!("poll:lease:{id}")]), RedisReply::Int(1));
    let deleted = Instant::now();
    wait_until("it is held again", || redis.command(&["EXISTS", &format!("poll:lease:{id}")]) == RedisReply::Int(1));
    // The next due slot, its result, and a claim: three intervals are plenty.
    LagProbe::start().assert_within(
        deleted.elapsed(),
        Duration::from_millis(3 * INTERVAL_MS),
        "the session is held again",
    );
    let before = results();
    wait_until("the session is polled again", || results() > before);
}
