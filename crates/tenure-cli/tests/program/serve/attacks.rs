//! What somebody has tried who wanted it to fail.

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

use super::*;

fn metric(instance: &Instance, name: &str) -> Option<f64> {
    let metrics = web::ask(&instance.address, "GET", "/metrics", &[], "")?.1;
    metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[test]
fn pages_of_other_places_may_not_use_an_api_without_a_token() {
    let place = Place::new();
    let one = Instance::start(&place, &[]);
    let body = r#"{"url": "http://127.0.0.1:1/"}"#;
    let ask = |headers: &[&str]| web::ask(&one.address, "POST", "/v1/sessions", headers, body).unwrap().0;
    assert_eq!(ask(&["origin: http://evil.example", "content-type: text/plain"]), 403);
    assert_eq!(ask(&[&format!("origin: http://{}", one.address)]), 201);
    let mut stream = TcpStream::connect(&one.address).unwrap();
    write!(stream, "GET /v1/sessions HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n").unwrap();
    let first = BufReader::new(stream).lines().next().unwrap().unwrap();
    assert!(first.contains("403"), "{first}");
    // Those who only want to know whether it lives may ask from anywhere.
    assert_eq!(web::ask(&one.address, "GET", "/healthz", &["origin: http://evil.example"], "").unwrap().0, 200);
}

#[test]
fn what_others_announce_ends_no_stream() {
    let (redis, server, place) = on_redis();
    let one = &Instance::start(&place, &[]);
    std::thread::scope(|scope| {
        // That of the session: roles were acquired just before.
        let last = |event: &Value| event["event"] == "lease.acquired" && event["endpoint_id"].is_string();
        let reading = scope.spawn(move || one.events_until("/v1/events", last));
        until("somebody reads", || metric(one, "tenure_streams_open") == Some(1.0));
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
    until("it is counted", || metric(one, "tenure_lease_events_total{event=\"lease.acquired\"}").is_some());
}

#[test]
fn a_goodbye_takes_no_longer_than_it_may_although_the_store_does_not_answer() {
    let (redis, server, place) = on_redis();
    // Its leases would last for longer than this test.
    let mut one = Instance::start(&place, &["--ttl", "10m", "--drain-timeout", "2s"]);
    (0..3).for_each(|n| drop(one.add(&server.url(&format!("/{n}")))));
    until("all are polled", || shared_by(&server, 3) == Some(1));
    redis.stop();
    one.signal(Signal::TERM);
    assert_eq!(one.ends(), Some(0));
    redis.cont();
}

#[test]
fn a_record_that_is_spoilt_is_that_ones_trouble_alone() {
    let (redis, server, place) = on_redis();
    let one = Instance::start(&place, &[]);
    let ids: Vec<String> = (0..3).map(|n| one.add(&server.url(&format!("/{n}")))).collect();
    until("all are polled", || shared_by(&server, 3) == Some(1));
    redis.command(&["HSET", &format!("tenure:term:{{poll:lease:{}}}", ids[0]), "token", "junk"]);
    let listed = |nodes: &Value| nodes["unreadable"].as_array().is_some_and(|list| list.len() == 1);
    until("it is listed", || one.get("/v1/nodes").1 != Value::Null && listed(&one.get("/v1/nodes").1));
    let status = place.output(&["status", "--json"]);
    assert!(status.status.success(), "{status:?}");
    // A role, too: nobody can tell who leads it.
    redis.command(&["HSET", "tenure:term:{leader:aggregator}", "token", "junk"]);
    assert_eq!(one.get("/v1/roles").0, 200);
    // What is left of the others is cleared away.
    for id in &ids {
        assert_eq!(one.ask("DELETE", &format!("/v1/sessions/{id}"), "").0, 204);
    }
    let left = |id: &str| redis.command(&["EXISTS", &format!("tenure:term:{{poll:lease:{id}}}")]);
    until("nothing is left of the others", || ids[1..].iter().all(|id| left(id) == Reply::Int(0)));
}

/// Records beside leases that cannot be read harm whoever asks for them, and neither the connection nor the polling.
#[test]
fn what_is_spoilt_beside_a_lease_is_no_reason_to_stop() {
    let (redis, server, place) = on_redis();
    let one = Instance::start(&place, &[]);
    let ids: Vec<String> = (0..3).map(|n| one.add(&server.url(&format!("/{n}")))).collect();
    until("all are polled", || shared_by(&server, 3) == Some(1));
    for _ in 0..50 {
        redis.command(&["HSET", "tenure:records:{leader:aggregator}", "totals", "junk"]);
        assert_ne!(one.get("/v1/stats").0, 0);
    }
    until("totals are added up anew", || one.get("/v1/stats").0 == 200);
    // What cannot be written whole is not written at all.
    redis.command(&["SET", "tenure:index:gone", "junk"]);
    assert_eq!(one.ask("POST", "/v1/sessions", &json!({"url": server.url("/more")}).to_string()).0, 503);
    assert_eq!(one.ask("DELETE", &format!("/v1/sessions/{}", ids[0]), "").0, 503);
    redis.command(&["DEL", "tenure:index:gone"]);
    assert_eq!(redis.command(&["SCARD", "tenure:index:sessions"]), Reply::Int(3));
    redis.command(&["HSET", &format!("tenure:records:{{poll:lease:{}}}", ids[0]), "due", "junk"]);
    drop(one);
    let two = Instance::start(&place, &[]);
    let begun = Instant::now();
    until("all are polled again", || begun.elapsed() > TTL * 2 && shared_by(&server, 3) == Some(1));
    assert_eq!(metric(&two, "tenure_lease_events_total{event=\"lease.uncertain\"}").unwrap_or(0.0), 0.0);
    is_right(server.visits());
}

#[test]
fn what_other_programs_change_is_seen_although_sessions_are_changed_all_the_time() {
    let (redis, server, place) = on_redis();
    let one = Instance::start(&place, &[]);
    let (theirs, ours) = (one.add(&server.url("/before")), one.add(&server.url("/ours")));
    until("both are polled", || shared_by(&server, 2) == Some(1));
    let changed = json!({"url": server.url("/after"), "interval": "500ms"}).to_string();
    redis.command(&["SET", &format!("session:{theirs}"), &changed]);
    let mut n = 0;
    until("it is polled where it is now", || {
        n += 1;
        assert_eq!(one.patch(&format!("/v1/sessions/{ours}"), &json!({"name": format!("n{n}")})), 200);
        server.visits().iter().any(|visit| visit.path == "/after")
    });
}

#[test]
fn an_interval_counts_at_once_although_the_next_poll_is_a_day_away() {
    let (server, place) = (WebServer::start(), Place::new());
    let one = Instance::start(&place, &[]);
    let request = json!({"url": server.url("/"), "interval": "24h"}).to_string();
    let (_, session) = one.ask("POST", "/v1/sessions", &request);
    assert_eq!(session["interval"], "24h");
    until("it is held", || metric(&one, "tenure_leases_held") == Some(4.0));
    let path = format!("/v1/sessions/{}", session["id"].as_str().unwrap());
    assert_eq!(one.patch(&path, &json!({"interval": "200ms"})), 200);
    until("it is polled", || server.visits().len() > 2);
    is_right(server.visits());
}

#[test]
fn the_stream_of_what_is_deleted_ends() {
    let (server, place) = (WebServer::start(), Place::new());
    let one = Instance::start(&place, &[]);
    let id = one.add(&server.url("/"));
    let stream = one.stream(&format!("/v1/sessions/{id}/events"), &[]);
    until("somebody reads", || metric(&one, "tenure_streams_open") == Some(1.0));
    assert_eq!(one.ask("DELETE", &format!("/v1/sessions/{id}"), "").0, 204);
    // All that there was, and the end.
    read_events(stream, |_| false);
    until("nobody reads", || metric(&one, "tenure_streams_open") == Some(0.0));
}

#[test]
fn whoever_says_goodbye_leaves_behind_what_it_has_counted() {
    let (server, place) = (WebServer::start(), Place::new());
    let (one, mut two) = (Instance::start(&place, &[]), Instance::start(&place, &[]));
    let ids: Vec<String> = (0..4).map(|n| one.add(&server.url(&format!("/{n}")))).collect();
    until("both take part", || shared_by(&server, 4) == Some(2));
    two.signal(Signal::TERM);
    assert_eq!(two.ends(), Some(0));
    for id in ids {
        assert_eq!(one.patch(&format!("/v1/sessions/{id}"), &json!({"isPaused": true})), 200);
    }
    until("every poll is counted", || {
        let (_, stats) = one.get("/v1/stats");
        stats["total"]["polls"].as_u64() == Some(server.visits().len() as u64)
    });
}

#[test]
fn a_drain_makes_no_false_alarm_and_says_why_everything_moved() {
    let (redis, server, place) = on_redis();
    let (one, two) = (Instance::start(&place, &["--name", "one"]), Instance::start(&place, &["--name", "two"]));
    let ids: Vec<String> = (0..60).map(|n| one.add(&server.url(&format!("/{n}")))).collect();
    until("both take part", || shared_by(&server, 60) == Some(2));
    assert_eq!(place.code(&["drain", ""]), 1);
    assert_eq!(place.code(&["drain", "one-"]), 0);
    for instance in [&one, &two] {
        assert_eq!(metric(instance, "tenure_publish_refused_total"), Some(0.0));
    }
    let why = |id: &String| redis.command(&["HGET", &format!("tenure:records:{{poll:lease:{id}}}"), "moved"]);
    let moved = ids.iter().filter(|id| matches!(why(id), Reply::Text(why) if why.contains("drain")));
    assert_eq!(moved.count(), 30, "{:?}", ids.iter().map(why).collect::<Vec<_>>());
}

#[test]
fn all_files_are_taken_that_may_be_and_a_shortage_is_no_targets_fault() {
    let closes = || "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok".to_owned();
    let server = WebServer::answering(move |_| (Duration::ZERO, closes()));
    let place = Place::new();
    let one = Instance::start(&place, &[]);
    let limit = |limit: Rlimit| prlimit(Some(Pid::from_child(&one.process)), Resource::Nofile, limit).unwrap();
    let few = Rlimit { current: Some(8), maximum: getrlimit(Resource::Nofile).maximum };
    let id = one.add(&server.url("/"));
    until("it is polled", || server.visits().len() > 1);
    let before = limit(few);
    assert_eq!(before.current, before.maximum, "at the start it takes all");
    let short = Instant::now();
    std::thread::sleep(Duration::from_millis(INTERVAL_MS * 4));
    assert!(server.visits().iter().all(|visit| visit.began < short + Duration::from_millis(INTERVAL_MS)));
    limit(before);
    let again = Instant::now();
    until("it is polled again", || server.visits().iter().any(|visit| visit.began > again));
    let (_, history) = one.get(&format!("/v1/sessions/{id}/history"));
    let results = history["results"].as_array().unwrap();
    assert!(results.iter().all(|result| result["ok"] == json!(true)), "{history}");
}

#[test]
fn a_store_that_is_full_stops_the_polling_and_that_is_said() {
    let (redis, server, place) = on_redis();
    let one = Instance::start(&place, &[]);
    one.add(&server.url("/"));
    until("it is polled", || !server.visits().is_empty());
    let told = std::thread::scope(|scope| {
        let reading = scope.spawn(|| one.events_until("/v1/events", |event| event["event"] == "store.refused"));
        until("somebody reads", || metric(&one, "tenure_streams_open") == Some(1.0));
        redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
        reading.join().unwrap()
    });
    let why = &told.last().unwrap()["error"];
    assert!(why.as_str().is_some_and(|why| why.contains("maxmemory")), "{why}");
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    let again = Instant::now();
    until("it is polled again", || server.visits().iter().any(|visit| visit.began > again));
    is_right(server.visits());
}

#[test]
fn what_is_printed_makes_no_terminal_do_anything_and_nobody_has_to_read_it() {
    let (redis, _server, place) = on_redis();
    let _one = Instance::start(&place, &[]);
    redis.command(&["SET", "session:\u{1b}[31mred", "{}"]);
    let status = || String::from_utf8(place.output(&["status"]).stdout).unwrap();
    until("it is listed", || status().contains("[31mred"));
    assert!(!status().contains('\u{1b}'));
    let mut unread = place.tenure(&["status"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(unread.stdout.take());
    let output = unread.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
