//! Attempts to make the service fail.

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

use super::*;

fn metric(instance: &ServeInstance, name: &str) -> Option<f64> {
    let metrics = web::request(&instance.address, "GET", "/metrics", &[], "")?.1;
    metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[test]
fn cross_origin_requests_are_refused_without_a_token() {
    let fixture = Fixture::new();
    let one = ServeInstance::start(&fixture, &[]);
    let body = r#"{"url": "http://127.0.0.1:1/"}"#;
    let ask = |headers: &[&str]| web::request(&one.address, "POST", "/v1/sessions", headers, body).unwrap().0;
    assert_eq!(ask(&["origin: http://evil.example", "content-type: text/plain"]), 403);
    assert_eq!(ask(&[&format!("origin: http://{}", one.address)]), 201);
    let mut stream = TcpStream::connect(&one.address).unwrap();
    write!(stream, "GET /v1/sessions HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n").unwrap();
    let first = BufReader::new(stream).lines().next().unwrap().unwrap();
    assert!(first.contains("403"), "{first}");
    // Liveness may be checked from any origin.
    assert_eq!(web::request(&one.address, "GET", "/healthz", &["origin: http://evil.example"], "").unwrap().0, 200);
}

#[test]
fn malformed_announcements_do_not_end_a_stream() {
    let (redis, server, fixture) = on_redis();
    let one = &ServeInstance::start(&fixture, &[]);
    std::thread::scope(|scope| {
        // The event of the session: roles were acquired just before.
        let last = |event: &Value| event["event"] == "lease.acquired" && event["endpoint_id"].is_string();
        let reading = scope.spawn(move || one.events_until("/v1/events", last));
        wait_until("the stream is open", || metric(one, "tenure_streams_open") == Some(1.0));
        for event in [
            "18446744073709551615\u{1f}info\u{1f}x\u{1f}a=b",
            "1\u{1f}info\u{1f}a\nb",
            "1\u{1f}info\u{1f}x\u{1f}event=y",
            "",
            "\u{1f}",
        ] {
            redis.command(&["PUBLISH", "tenure:announcements", &format!("event {event}")]);
        }
        one.add(&server.url("/"));
        reading.join().unwrap();
    });
    wait_until("the event is counted", || metric(one, "tenure_lease_events_total{event=\"lease.acquired\"}").is_some());
}

#[test]
fn shutdown_keeps_the_drain_timeout_while_the_store_hangs() {
    let (redis, server, fixture) = on_redis();
    // The leases would outlast this test.
    let mut one = ServeInstance::start(&fixture, &["--ttl", "10m", "--drain-timeout", "2s"]);
    (0..3).for_each(|n| drop(one.add(&server.url(&format!("/{n}")))));
    wait_until("all sessions are polled", || polling_instances(&server, 3) == Some(1));
    redis.stop();
    one.signal(Signal::TERM);
    assert_eq!(one.wait_exit(), Some(0));
    redis.cont();
}

#[test]
fn a_corrupt_record_affects_only_its_own_lease() {
    let (redis, server, fixture) = on_redis();
    let one = ServeInstance::start(&fixture, &[]);
    let ids: Vec<String> = (0..3).map(|n| one.add(&server.url(&format!("/{n}")))).collect();
    wait_until("all sessions are polled", || polling_instances(&server, 3) == Some(1));
    redis.command(&["HSET", &format!("tenure:term:{{poll:lease:{}}}", ids[0]), "token", "junk"]);
    let listed = |nodes: &Value| nodes["unreadable"].as_array().is_some_and(|list| list.len() == 1);
    wait_until("it is listed", || one.get("/v1/nodes").1 != Value::Null && listed(&one.get("/v1/nodes").1));
    let status = fixture.output(&["status", "--json"]);
    assert!(status.status.success(), "{status:?}");
    // A role, too: its leader is unknown.
    redis.command(&["HSET", "tenure:term:{leader:aggregator}", "token", "junk"]);
    assert_eq!(one.get("/v1/roles").0, 200);
    // The records of the other sessions are removed.
    for id in &ids {
        assert_eq!(one.ask("DELETE", &format!("/v1/sessions/{id}"), "").0, 204);
    }
    let left = |id: &str| redis.command(&["EXISTS", &format!("tenure:term:{{poll:lease:{id}}}")]);
    wait_until("the records of the others are removed", || ids[1..].iter().all(|id| left(id) == RedisReply::Int(0)));
}

/// Damaged records beside a lease affect only their readers, neither the connection nor the polling.
#[test]
fn corrupt_records_beside_a_lease_do_not_stop_polling() {
    let (redis, server, fixture) = on_redis();
    let one = ServeInstance::start(&fixture, &[]);
    let ids: Vec<String> = (0..3).map(|n| one.add(&server.url(&format!("/{n}")))).collect();
    wait_until("all sessions are polled", || polling_instances(&server, 3) == Some(1));
    for _ in 0..50 {
        redis.command(&["HSET", "tenure:records:{leader:aggregator}", "totals", "junk"]);
        assert_ne!(one.get("/v1/stats").0, 0);
    }
    wait_until("totals are added up again", || one.get("/v1/stats").0 == 200);
    // A write that cannot be complete is not made at all.
    redis.command(&["SET", "tenure:index:sessions:deleted", "junk"]);
    assert_eq!(one.ask("POST", "/v1/sessions", &json!({"url": server.url("/more")}).to_string()).0, 503);
    assert_eq!(one.ask("DELETE", &format!("/v1/sessions/{}", ids[0]), "").0, 503);
    redis.command(&["DEL", "tenure:index:sessions:deleted"]);
    assert_eq!(redis.command(&["SCARD", "tenure:index:sessions"]), RedisReply::Int(3));
    redis.command(&["HSET", &format!("tenure:records:{{poll:lease:{}}}", ids[0]), "due", "junk"]);
    drop(one);
    let two = ServeInstance::start(&fixture, &[]);
    let begun = Instant::now();
    wait_until("all are polled again", || begun.elapsed() > TTL * 2 && polling_instances(&server, 3) == Some(1));
    assert_eq!(metric(&two, "tenure_lease_events_total{event=\"lease.uncertain\"}").unwrap_or(0.0), 0.0);
    assert_polled_once(server.requests());
}

#[test]
fn external_changes_are_seen_under_constant_edits() {
    let (redis, server, fixture) = on_redis();
    let one = ServeInstance::start(&fixture, &[]);
    let (theirs, ours) = (one.add(&server.url("/before")), one.add(&server.url("/ours")));
    wait_until("both sessions are polled", || polling_instances(&server, 2) == Some(1));
    let changed = json!({"url": server.url("/after"), "interval": "500ms"}).to_string();
    redis.command(&["SET", &format!("session:{theirs}"), &changed]);
    let mut n = 0;
    wait_until("the new URL is polled", || {
        n += 1;
        assert_eq!(one.patch(&format!("/v1/sessions/{ours}"), &json!({"name": format!("n{n}")})), 200);
        server.requests().iter().any(|visit| visit.path == "/after")
    });
}

#[test]
fn a_new_interval_applies_at_once() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let one = ServeInstance::start(&fixture, &[]);
    let request = json!({"url": server.url("/"), "interval": "24h"}).to_string();
    let (_, session) = one.ask("POST", "/v1/sessions", &request);
    assert_eq!(session["interval"], "24h");
    wait_until("the session is held", || metric(&one, "tenure_leases_held") == Some(4.0));
    let path = format!("/v1/sessions/{}", session["id"].as_str().unwrap());
    assert_eq!(one.patch(&path, &json!({"interval": "200ms"})), 200);
    wait_until("the session is polled", || server.requests().len() > 2);
    assert_polled_once(server.requests());
}

#[test]
fn deleting_a_session_ends_its_streams() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let one = ServeInstance::start(&fixture, &[]);
    let id = one.add(&server.url("/"));
    let stream = one.stream(&format!("/v1/sessions/{id}/events"), &[]);
    wait_until("the stream is open", || metric(&one, "tenure_streams_open") == Some(1.0));
    assert_eq!(one.ask("DELETE", &format!("/v1/sessions/{id}"), "").0, 204);
    // Read everything up to the end of the stream.
    read_events(stream, |_| false);
    wait_until("the stream is closed", || metric(&one, "tenure_streams_open") == Some(0.0));
}

#[test]
fn a_stopped_instance_stays_in_the_totals() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let (one, mut two) = (ServeInstance::start(&fixture, &[]), ServeInstance::start(&fixture, &[]));
    let ids: Vec<String> = (0..4).map(|n| one.add(&server.url(&format!("/{n}")))).collect();
    wait_until("both instances poll", || polling_instances(&server, 4) == Some(2));
    two.signal(Signal::TERM);
    assert_eq!(two.wait_exit(), Some(0));
    for id in ids {
        assert_eq!(one.patch(&format!("/v1/sessions/{id}"), &json!({"isPaused": true})), 200);
    }
    wait_until("every poll is counted", || {
        let (_, stats) = one.get("/v1/stats");
        stats["total"]["polls"].as_u64() == Some(server.requests().len() as u64)
    });
}

#[test]
fn a_drain_refuses_no_result_and_records_the_reason_of_each_move() {
    let (redis, server, fixture) = on_redis();
    let (one, two) =
        (ServeInstance::start(&fixture, &["--name", "one"]), ServeInstance::start(&fixture, &["--name", "two"]));
    let ids: Vec<String> = (0..60).map(|n| one.add(&server.url(&format!("/{n}")))).collect();
    wait_until("both instances poll", || polling_instances(&server, 60) == Some(2));
    assert_eq!(fixture.code(&["drain", ""]), 1);
    assert_eq!(fixture.code(&["drain", "one-"]), 0);
    for instance in [&one, &two] {
        assert_eq!(metric(instance, "tenure_publish_refused_total"), Some(0.0));
    }
    let why = |id: &String| redis.command(&["HGET", &format!("tenure:records:{{poll:lease:{id}}}"), "moved"]);
    let moved = ids.iter().filter(|id| matches!(why(id), RedisReply::Text(why) if why.contains("drain")));
    assert_eq!(moved.count(), 30, "{:?}", ids.iter().map(why).collect::<Vec<_>>());
}

#[test]
fn the_file_limit_is_raised_and_a_shortage_is_not_the_targets_failure() {
    let closes = || "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok".to_owned();
    let server = WebServer::with_handler(move |_| (Duration::ZERO, closes()));
    let fixture = Fixture::new();
    let one = ServeInstance::start(&fixture, &[]);
    let limit = |limit: Rlimit| prlimit(Some(Pid::from_child(&one.process)), Resource::Nofile, limit).unwrap();
    let few = Rlimit { current: Some(8), maximum: getrlimit(Resource::Nofile).maximum };
    let id = one.add(&server.url("/"));
    wait_until("the session is polled", || server.requests().len() > 1);
    let before = limit(few);
    assert_eq!(before.current, before.maximum, "the limit is raised at the start");
    let short = Instant::now();
    std::thread::sleep(Duration::from_millis(INTERVAL_MS * 4));
    assert!(server.requests().iter().all(|visit| visit.began < short + Duration::from_millis(INTERVAL_MS)));
    limit(before);
    let again = Instant::now();
    wait_until("the session is polled again", || server.requests().iter().any(|visit| visit.began > again));
    let (_, history) = one.get(&format!("/v1/sessions/{id}/history"));
    let results = history["results"].as_array().unwrap();
    assert!(results.iter().all(|result| result["ok"] == json!(true)), "{history}");
}

#[test]
fn a_full_store_stops_polling_and_is_reported() {
    let (redis, server, fixture) = on_redis();
    let one = ServeInstance::start(&fixture, &[]);
    one.add(&server.url("/"));
    wait_until("the session is polled", || !server.requests().is_empty());
    let told = std::thread::scope(|scope| {
        let reading = scope.spawn(|| one.events_until("/v1/events", |event| event["event"] == "store.refused"));
        wait_until("the stream is open", || metric(&one, "tenure_streams_open") == Some(1.0));
        redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
        reading.join().unwrap()
    });
    let why = &told.last().unwrap()["error"];
    assert!(why.as_str().is_some_and(|why| why.contains("maxmemory")), "{why}");
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    let again = Instant::now();
    wait_until("the session is polled again", || server.requests().iter().any(|visit| visit.began > again));
    assert_polled_once(server.requests());
}

#[test]
fn output_has_no_control_characters_and_survives_a_closed_pipe() {
    let (redis, _server, fixture) = on_redis();
    let _one = ServeInstance::start(&fixture, &[]);
    redis.command(&["SET", "session:\u{1b}[31mred", "{}"]);
    let status = || String::from_utf8(fixture.output(&["status"]).stdout).unwrap();
    wait_until("the session is listed", || status().contains("[31mred"));
    assert!(!status().contains('\u{1b}'));
    let mut unread = fixture.tenure(&["status"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(unread.stdout.take());
    let output = unread.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
