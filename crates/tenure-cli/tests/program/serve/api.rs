//! What can be asked, and what is refused.

use tenure::LeaseName;

use super::*;

#[test]
fn what_is_asked_wrongly_is_refused_with_a_reason() {
    let place = Place::new();
    let one = Instance::start(&place, &[]);
    let id = one.add("http://127.0.0.1:1/");
    for (method, path, body, status, code) in [
        ("POST", "/v1/sessions", "", 400, "bad_request"),
        ("POST", "/v1/sessions", "[]", 400, "bad_request"),
        ("POST", "/v1/sessions", "{}", 422, "invalid"),
        ("POST", "/v1/sessions", r#"{"url": "ftp://a"}"#, 422, "invalid"),
        ("POST", "/v1/sessions", r#"{"url": "http://a", "headers": {"a": "b\r\nc: d"}}"#, 422, "invalid"),
        ("POST", "/v1/sessions", &json!({"url": "http://a", "id": id}).to_string(), 409, "conflict"),
        ("POST", "/v1/sessions", &json!({"url": "http://a", "name": "x".repeat(70_000)}).to_string(), 413, ""),
        ("PATCH", &format!("/v1/sessions/{id}"), r#"{"interval": "1ms"}"#, 422, "invalid"),
        ("PATCH", &format!("/v1/sessions/{id}"), r#"{"id": "other"}"#, 422, "invalid"),
        ("GET", "/v1/sessions?limit=0", "", 400, "bad_request"),
        ("GET", "/v1/sessions?limit=x", "", 400, "bad_request"),
        ("GET", "/v1/sessions/none", "", 404, "not_found"),
        ("GET", "/v1/sessions/..%2f..%2fetc", "", 404, "not_found"),
        ("GET", "/v1/sessions/01a1e478-f45d-7685-907d-7d47de532c2c/events", "", 404, "not_found"),
        ("PUT", "/v1/sessions", "", 405, "method_not_allowed"),
        ("GET", "/nowhere", "", 404, "not_found"),
    ] {
        let answer = one.ask(method, path, body);
        assert_eq!(answer.0, status, "{method} {path} {}: {}", &body[..body.len().min(80)], answer.1);
        assert!(code.is_empty() || answer.1["error"]["code"] == code, "{method} {path}: {}", answer.1);
    }
}

#[test]
fn beyond_loopback_it_wants_a_token_and_knows_it() {
    let place = Place::new();
    assert_eq!(place.code(&["serve", "--listen", "0.0.0.0:0"]), 64);
    let file = place.path("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let one = Instance::start(&place, &["--api-token-file", &file.display().to_string()]);
    assert_eq!(one.get("/healthz").0, 200);
    assert_eq!(one.get("/v1/sessions").0, 401);
    for (header, status) in
        [("authorization: Bearer wrong", 401), ("authorization: Bearer s3cret", 200), ("authorization: s3cret", 401)]
    {
        assert_eq!(web::ask(&one.address, "GET", "/v1/sessions", &[header], "").unwrap().0, status, "{header}");
    }
}

/// A proxy on the same host forwards others to it.
#[test]
fn with_a_token_loopback_alone_allows_no_private_targets() {
    let (server, place) = (WebServer::start(), Place::new());
    let file = place.path("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let flags = ["--api-token-file", &file.display().to_string()];
    let token = "authorization: Bearer s3cret";
    let session = json!({"url": server.url("/"), "interval": "250ms"}).to_string();
    let add = |one: &Instance| web::ask(&one.address, "POST", "/v1/sessions", &[token], &session).unwrap();
    {
        let one = Instance::start(&place, &flags);
        let (status, said) = add(&one);
        assert!(status == 422 && said.contains("--allow-targets"), "{status} {said}");
    }
    let one = Instance::start(&place, &[&flags[..], &["--allow-targets", "127.0.0.0/8"]].concat());
    assert_eq!(add(&one).0, 201, "unless it is allowed");
    until("it is polled", || !server.visits().is_empty());
}

#[test]
fn more_roles_are_listed_than_may_wait_to_be_asked_about() {
    let (redis, _, place) = on_redis();
    let one = Instance::start(&place, &[]);
    let roles: Vec<String> = (0..25_000).map(|n| LeaseName::role(&format!("role-{n:05}")).unwrap().encode()).collect();
    for some in roles.chunks(1_000) {
        let command: Vec<&str> =
            ["SADD", "tenure:index:roles"].into_iter().chain(some.iter().map(String::as_str)).collect();
        redis.command(&command);
    }
    let (status, listed) = one.get("/v1/roles");
    assert_eq!(status, 200, "{listed}");
    let listed = listed.as_array().unwrap();
    // Those of the service itself, too.
    assert!(listed.len() >= 25_000, "{}", listed.len());
    assert!(listed.iter().any(|role| role["role"] == "role-24999" && role["leader"].is_null()));
    let output = place.output(&["status", "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(status["leaders"].as_object().unwrap().len() >= 25_000);
}

#[test]
fn what_other_programs_write_is_polled_or_listed_as_unreadable() {
    let (redis, server) = (RedisServer::start(), WebServer::start());
    let place = Place::on(&redis.url());
    let one = Instance::start(&place, &[]);
    let readable = "01a1e478-f45d-7685-907d-7d47de532c2c";
    let stored =
        json!({"address": server.url("/foreign").trim_start_matches("http://"), "interval": "250ms", "room": 7})
            .to_string();
    redis.command(&["SET", &format!("session:{readable}"), &stored]);
    redis.command(&["MSET", "session:not-a-uuid", "{}", "session:01a1e478-f45d-7685-907d-000000000001", "no JSON"]);
    until("it is polled", || server.visits().iter().any(|visit| visit.path == "/foreign"));
    until("the others are listed", || {
        one.get("/v1/nodes").1["unreadable"].as_array().is_some_and(|list| list.len() == 2)
    });
    // What is not ours stays.
    assert_eq!(one.ask("PATCH", &format!("/v1/sessions/{readable}"), r#"{"name": "theirs"}"#).0, 200);
    let now: Value = serde_json::from_str(redis.command(&["GET", &format!("session:{readable}")]).as_text()).unwrap();
    assert_eq!((&now["room"], &now["name"]), (&json!(7), &json!("theirs")));
    assert_eq!(redis.command(&["GET", "session:not-a-uuid"]), Reply::text("{}"), "nobody touches what it cannot read");
}

#[test]
fn sessions_are_managed_without_an_instance() {
    let (place, other) = (Place::new(), Place::new());
    let print = |place: &Place, arguments: &[&str]| {
        let output = place.output(&[&["session"], arguments].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let id = print(&place, &["add", "--url", "http://127.0.0.1:1/a", "--name", "the first", "--interval", "9s"]);
    let id = id.trim();
    let listed = print(&place, &["ls"]);
    assert!(listed.contains("9s") && listed.contains("the first http://127.0.0.1"), "{listed}");
    print(&place, &["pause", id]);
    let listed: Value = serde_json::from_str(&print(&place, &["ls", "--json"])).unwrap();
    assert_eq!((&listed[0]["isPaused"], &listed[0]["id"]), (&json!(true), &json!(id)));
    print(&place, &["resume", id]);
    let exported = print(&place, &["export"]);
    let imported = |input: &str| with_input(other.tenure(&["session", "import"]), input);
    assert!(imported(&exported).status.success());
    assert!(imported(&exported).status.success(), "what is so already is so");
    assert_eq!(print(&other, &["export"]), exported);
    let changed = exported.replace("9s", "8s");
    assert_eq!(imported(&format!("{changed}\nno JSON\n")).status.code(), Some(1));
    print(&place, &["rm", id]);
    assert_eq!(place.code(&["session", "rm", id]), 1);
    assert_eq!(place.code(&["session", "pause", id]), 1);
    assert_eq!(place.code(&["session", "add", "--url", "ftp://a"]), 64);
    assert_eq!(place.code(&["session", "rm", "not-a-uuid"]), 64);
}

#[test]
fn two_who_change_a_session_at_once_lose_nothing() {
    let place = Place::new();
    let (one, two) = (Instance::start(&place, &[]), Instance::start(&place, &[]));
    let id = one.add("http://127.0.0.1:1/");
    let path = format!("/v1/sessions/{id}");
    std::thread::scope(|scope| {
        scope.spawn(|| (0..30).for_each(|n| assert_eq!(one.patch(&path, &json!({"name": format!("n{n}")})), 200)));
        scope.spawn(|| (0..30).for_each(|n| assert_eq!(two.patch(&path, &json!({"isPaused": n % 2 == 0})), 200)));
    });
    let (_, session) = two.get(&path);
    assert_eq!((&session["name"], &session["isPaused"]), (&json!("n29"), &json!(false)), "{session}");
    // A change that comes after the end brings nothing back.
    assert_eq!(one.ask("DELETE", &path, "").0, 204);
    assert_eq!(two.patch(&path, &json!({"name": "again"})), 404);
    assert_eq!(one.get(&path).0, 404);
}

#[test]
fn who_leads_is_told_and_exactly_one_says_that_it_does() {
    let place = Place::new();
    let fleet = [Instance::start(&place, &[]), Instance::start(&place, &[]), Instance::start(&place, &[])];
    for role in ["janitor", "aggregator", "poll-scout"] {
        let path = format!("/v1/roles/{role}");
        until("somebody leads", || fleet[0].get(&path).1["leader"].is_string());
        let (_, leader) = fleet[1].get(&path);
        assert!(leader["token"].is_u64() && leader["remainingMs"].is_u64() && leader["role"] == role, "{leader}");
        until("one says so, and the others do not", || {
            let answers: Vec<u16> = fleet.iter().map(|one| one.get(&format!("{path}/am-i-leader")).0).collect();
            answers.iter().filter(|answer| **answer == 200).count() == 1
                && answers.iter().filter(|answer| **answer == 503).count() == 2
        });
    }
    let (_, roles) = fleet[2].get("/v1/roles");
    let names: Vec<&str> = roles.as_array().unwrap().iter().filter_map(|role| role["role"].as_str()).collect();
    assert_eq!(names, ["aggregator", "janitor", "poll-scout"]);
    assert_eq!(fleet[0].get("/v1/roles/nobody").0, 404);
    assert_eq!(fleet[0].get("/v1/roles/nobody/am-i-leader").0, 503);
}

#[test]
fn what_the_fleet_has_done_is_added_up_and_told_by_everybody() {
    let (server, place) = (WebServer::start(), Place::new());
    let (one, two) = (Instance::start(&place, &[]), Instance::start(&place, &[]));
    assert!(matches!(two.get("/v1/stats").0, 200 | 404));
    (0..4).for_each(|n| drop(one.add(&server.url(&format!("/{n}")))));
    let polls = |instance: &Instance| instance.get("/v1/stats").1["total"]["polls"].as_u64().unwrap_or(0);
    until("polls are counted", || polls(&one) > 10 && polls(&two) > 10);
    let (_, stats) = two.get("/v1/stats");
    assert_eq!(stats["instances"], json!(2), "{stats}");
    assert!(stats["total"]["latencyMs"]["p99"].is_f64(), "{stats}");
    assert!(polls(&two) <= server.visits().len() as u64, "none is counted twice");
    // Whoever goes on adding up goes on where the other has left off.
    let before = polls(&one);
    drop(one);
    until("it goes on", || polls(&two) > before + 10);
    assert!(polls(&two) <= server.visits().len() as u64, "none is counted twice");
}

#[test]
fn what_is_left_of_a_deleted_session_is_cleared_away() {
    let (redis, server) = (RedisServer::start(), WebServer::start());
    let place = Place::on(&redis.url());
    let one = Instance::start(&place, &[]);
    let id = one.add(&server.url("/"));
    until("it is polled", || one.get(&format!("/v1/sessions/{id}/state")).0 == 200);
    let left = || match redis.command(&["KEYS", &format!("*{id}*")]) {
        Reply::Array(keys) => keys.len(),
        other => panic!("{other:?}"),
    };
    assert!(left() >= 4, "the session, its lease, its term, its results");
    let token = one.get(&format!("/v1/sessions/{id}/state")).1["token"].as_u64().unwrap();
    assert_eq!(one.ask("DELETE", &format!("/v1/sessions/{id}"), "").0, 204);
    until("nothing is left", || left() == 0);
    // Whoever takes its name is another, with a larger token.
    let again = json!({"id": id, "url": server.url("/again"), "interval": "250ms"}).to_string();
    assert_eq!(one.ask("POST", "/v1/sessions", &again).0, 201);
    let state = || one.get(&format!("/v1/sessions/{id}/state")).1;
    until("it is polled", || state()["token"].is_u64());
    assert!(state()["token"].as_u64().unwrap() > token);
}

#[test]
fn an_instance_is_taken_out_and_let_back_in_from_outside() {
    let (server, place) = (WebServer::start(), Place::new());
    let (one, two) = (Instance::start(&place, &["--name", "one"]), Instance::start(&place, &["--name", "two"]));
    (0..4).for_each(|n| drop(one.add(&server.url(&format!("/{n}")))));
    until("both take part", || shared_by(&server, 4) == Some(2));
    assert_eq!(place.code(&["drain", "one-"]), 0);
    until("the other polls everything", || shared_by(&server, 4) == Some(1));
    let (_, nodes) = two.get("/v1/nodes");
    let status = |nodes: &Value, name: &str| {
        let node = nodes["liveNodes"]
            .as_array()
            .unwrap()
            .iter()
            .find(|node| node["instanceId"].as_str().is_some_and(|id| id.starts_with(name)));
        node.unwrap()["status"].clone()
    };
    assert_eq!((status(&nodes, "one-"), status(&nodes, "two-")), (json!("draining"), json!("online")));
    assert_eq!(place.code(&["undrain", "one-"]), 0);
    until("both take part", || shared_by(&server, 4) == Some(2));
    assert_eq!(place.code(&["drain", "three"]), 1);
    is_right(server.visits());
}

#[test]
fn keys_may_be_called_otherwise() {
    let (redis, server) = (RedisServer::start(), WebServer::start());
    let place = Place::on(&redis.url());
    let file = place.path("tenure.toml");
    let keys = "[keys]\nlease = \"app:lease:\"\nnode = \"app:node:\"\nleader = \"app:leader:\"\nheartbeat = \"app:beat:\"\nsession = \"app:session:\"\n";
    std::fs::write(&file, keys).unwrap();
    let config = file.display().to_string();
    let one = Instance::start(&place, &["--config", &config]);
    let id = one.add(&server.url("/"));
    until("it is polled", || !server.visits().is_empty());
    until("somebody leads", || one.get("/v1/roles/janitor").1["leader"].is_string());
    for key in [format!("app:session:{id}"), format!("app:lease:{id}"), "app:leader:janitor".to_owned()] {
        assert_eq!(redis.command(&["EXISTS", &key]), Reply::Int(1), "{key}");
    }
    for pattern in ["app:node:*", "app:beat:janitor:*"] {
        assert!(matches!(redis.command(&["KEYS", pattern]), Reply::Array(keys) if keys.len() == 1), "{pattern}");
    }
    until(
        "all roles are led",
        || matches!(redis.command(&["KEYS", "app:leader:*"]), Reply::Array(keys) if keys.len() == 3),
    );
    for pattern in ["poll:*", "session:*", "leader:*", "heartbeat:*"] {
        assert_eq!(redis.command(&["KEYS", pattern]), Reply::Array(Vec::new()), "{pattern}");
    }
    let status = place.output(&["--config", &config, "status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["instances"][0]["sessions"], json!([id]), "{status}");
}

#[test]
fn how_long_nobody_has_polled_a_session_is_said_while_nothing_is_granted() {
    let (redis, server, place) = on_redis();
    // A new server, of which nobody knows whether leases from before are relied on: nothing is granted for a ttl.
    let mut command = place.plain(&["serve", "--listen", "127.0.0.1:0", "--ttl", "5m"]);
    let one = Instance::of(&mut command);
    until("it is ready", || one.get("/readyz").0 == 200);
    let id = one.add(&server.url("/"));
    let since = || one.get("/v1/nodes").1["unowned"][0].clone();
    until("that is said", || since()["sessionId"] == json!(id) && since()["sinceMs"].as_u64() > Some(0));
    let metrics = || web::ask(&one.address, "GET", "/metrics", &[], "").unwrap().1;
    until("that is counted", || metrics().contains("tenure_targets_unheld 1"));
    assert!(!metrics().contains("tenure_targets_unheld_oldest_seconds 0.0\n"), "{}", metrics());
    assert_eq!(server.visits().len(), 0);
    // For a ttl of its own, although no lease was granted yet.
    assert_eq!(redis.command(&["HGET", "tenure:ns", "closed_for"]), Reply::text("300000000"));
}

#[test]
fn a_store_is_looked_at_without_making_one() {
    let place = Place::new();
    let status = place.output(&["status"]);
    assert_eq!(String::from_utf8_lossy(&status.stdout), "0 instances, 0 sessions: 0 held, 0 unheld, 0 paused\n");
    assert!(String::from_utf8_lossy(&status.stderr).contains("nothing has run on it yet"), "{status:?}");
    assert_eq!(place.code(&["leader", "cleanup"]), 1);
    assert_eq!(place.code(&["session", "ls"]), 0);
    assert_eq!(std::fs::read_dir(place.path(".")).unwrap().count(), 0);
    let one = Instance::start(&place, &[]);
    let leaders = || {
        let status = place.output(&["status", "--json"]);
        serde_json::from_slice::<Value>(&status.stdout).unwrap()["leaders"].clone()
    };
    let all = ["aggregator", "janitor", "poll-scout"];
    until("all leaders are listed", || all.iter().all(|role| leaders()[role].is_string()));
    drop(one);
}

#[test]
fn metrics_are_what_prometheus_reads() {
    let (server, place) = (WebServer::start(), Place::new());
    let one = Instance::start(&place, &[]);
    one.add(&server.url("/"));
    until("it is polled", || !server.visits().is_empty());
    let metrics = || web::ask(&one.address, "GET", "/metrics", &[], "").unwrap().1;
    let is_counted = |name: &str| {
        let line = metrics().lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        line.is_some_and(|number| number > 0.0)
    };
    until("a renewal is counted", || is_counted("tenure_lease_events_total{event=\"lease.renewed\"}"));
    until("how long it took, too", || is_counted("tenure_renew_duration_seconds_sum"));
    let text = metrics();
    for name in [
        // The session, two leaderships, and the scout.
        "tenure_leases_held 4",
        "tenure_leases_uncertain 0",
        "tenure_lease_events_total{event=\"lease.acquired\"}",
        "tenure_renew_duration_seconds_count",
        "tenure_handover_seconds_bucket{le=\"+Inf\"}",
        "tenure_takeover_seconds_sum",
        "tenure_leader{role=\"janitor\"} 1",
        "tenure_leader_last_renewal_timestamp_seconds{role=\"aggregator\"}",
        "tenure_fleet_instances 1",
        "tenure_targets_unheld 0",
        "tenure_targets_unheld_oldest_seconds 0",
        "tenure_balance_spread 0",
        "tenure_moves_total 0",
        "tenure_polls_total{outcome=\"ok\"}",
        "tenure_publish_refused_total 0",
        "tenure_keeper_lag_seconds",
        "tenure_events_dropped_total 0",
        "# EOF",
    ] {
        assert!(text.contains(name), "{name} is not in {text}");
    }
}
