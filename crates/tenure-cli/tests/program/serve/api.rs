//! Requests to the API, and their refusals.

use tenure::LeaseName;

use super::*;

#[test]
fn invalid_requests_are_refused_with_a_reason() {
    let fixture = Fixture::new();
    let one = ServeInstance::start(&fixture, &[]);
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
fn a_token_is_required_beyond_loopback() {
    let fixture = Fixture::new();
    assert_eq!(fixture.code(&["serve", "--listen", "0.0.0.0:0"]), 64);
    let file = fixture.path("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let one = ServeInstance::start(&fixture, &["--api-token-file", &file.display().to_string()]);
    assert_eq!(one.get("/healthz").0, 200);
    assert_eq!(one.get("/v1/sessions").0, 401);
    for (header, status) in
        [("authorization: Bearer wrong", 401), ("authorization: Bearer s3cret", 200), ("authorization: s3cret", 401)]
    {
        assert_eq!(web::request(&one.address, "GET", "/v1/sessions", &[header], "").unwrap().0, status, "{header}");
    }
}

/// A proxy on the same host may forward requests of others.
#[test]
fn with_a_token_loopback_alone_allows_no_private_targets() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let file = fixture.path("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let flags = ["--api-token-file", &file.display().to_string()];
    let token = "authorization: Bearer s3cret";
    let session = json!({"url": server.url("/"), "interval": "250ms"}).to_string();
    let add = |one: &ServeInstance| web::request(&one.address, "POST", "/v1/sessions", &[token], &session).unwrap();
    {
        let one = ServeInstance::start(&fixture, &flags);
        let (status, said) = add(&one);
        assert!(status == 422 && said.contains("--allow-targets"), "{status} {said}");
    }
    let one = ServeInstance::start(&fixture, &[&flags[..], &["--allow-targets", "127.0.0.0/8"]].concat());
    assert_eq!(add(&one).0, 201, "allowed by --allow-targets");
    wait_until("the session is polled", || !server.requests().is_empty());
}

#[test]
fn more_roles_are_listed_than_requests_may_queue() {
    let (redis, _, fixture) = on_redis();
    let one = ServeInstance::start(&fixture, &[]);
    let roles: Vec<String> = (0..25_000).map(|n| LeaseName::role(&format!("role-{n:05}")).unwrap().encode()).collect();
    for some in roles.chunks(1_000) {
        let command: Vec<&str> =
            ["SADD", "tenure:index:roles"].into_iter().chain(some.iter().map(String::as_str)).collect();
        redis.command(&command);
    }
    let (status, listed) = one.get("/v1/roles");
    assert_eq!(status, 200, "{listed}");
    let listed = listed.as_array().unwrap();
    // Besides the roles of the service itself.
    assert!(listed.len() >= 25_000, "{}", listed.len());
    assert!(listed.iter().any(|role| role["role"] == "role-24999" && role["leader"].is_null()));
    let output = fixture.output(&["status", "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(status["leaders"].as_object().unwrap().len() >= 25_000);
}

#[test]
fn foreign_sessions_are_polled_or_listed_as_unreadable() {
    let (redis, server) = (RedisServer::start(), WebServer::start());
    let fixture = Fixture::on(&redis.url());
    let one = ServeInstance::start(&fixture, &[]);
    let readable = "01a1e478-f45d-7685-907d-7d47de532c2c";
    let stored =
        json!({"address": server.url("/foreign").trim_start_matches("http://"), "interval": "250ms", "room": 7})
            .to_string();
    redis.command(&["SET", &format!("session:{readable}"), &stored]);
    redis.command(&["MSET", "session:not-a-uuid", "{}", "session:01a1e478-f45d-7685-907d-000000000001", "no JSON"]);
    wait_until("the session is polled", || server.requests().iter().any(|visit| visit.path == "/foreign"));
    wait_until("the unreadable ones are listed", || {
        one.get("/v1/nodes").1["unreadable"].as_array().is_some_and(|list| list.len() == 2)
    });
    // Unknown fields are kept.
    assert_eq!(one.ask("PATCH", &format!("/v1/sessions/{readable}"), r#"{"name": "theirs"}"#).0, 200);
    let now: Value = serde_json::from_str(redis.command(&["GET", &format!("session:{readable}")]).as_text()).unwrap();
    assert_eq!((&now["room"], &now["name"]), (&json!(7), &json!("theirs")));
    assert_eq!(
        redis.command(&["GET", "session:not-a-uuid"]),
        RedisReply::text("{}"),
        "unreadable sessions are not changed"
    );
}

#[test]
fn sessions_are_managed_without_an_instance() {
    let (fixture, other) = (Fixture::new(), Fixture::new());
    let print = |fixture: &Fixture, arguments: &[&str]| {
        let output = fixture.output(&[&["session"], arguments].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let id = print(&fixture, &["add", "--url", "http://127.0.0.1:1/a", "--name", "the first", "--interval", "9s"]);
    let id = id.trim();
    let listed = print(&fixture, &["ls"]);
    assert!(listed.contains("9s") && listed.contains("the first http://127.0.0.1"), "{listed}");
    print(&fixture, &["pause", id]);
    let listed: Value = serde_json::from_str(&print(&fixture, &["ls", "--json"])).unwrap();
    assert_eq!((&listed[0]["isPaused"], &listed[0]["id"]), (&json!(true), &json!(id)));
    print(&fixture, &["resume", id]);
    let exported = print(&fixture, &["export"]);
    let imported = |input: &str| with_input(other.tenure(&["session", "import"]), input);
    assert!(imported(&exported).status.success());
    assert!(imported(&exported).status.success(), "an existing session counts as imported");
    assert_eq!(print(&other, &["export"]), exported);
    let changed = exported.replace("9s", "8s");
    assert_eq!(imported(&format!("{changed}\nno JSON\n")).status.code(), Some(1));
    print(&fixture, &["rm", id]);
    assert_eq!(fixture.code(&["session", "rm", id]), 1);
    assert_eq!(fixture.code(&["session", "pause", id]), 1);
    assert_eq!(fixture.code(&["session", "add", "--url", "ftp://a"]), 64);
    assert_eq!(fixture.code(&["session", "rm", "not-a-uuid"]), 1);
}

#[test]
fn concurrent_edits_of_a_session_lose_nothing() {
    let fixture = Fixture::new();
    let (one, two) = (ServeInstance::start(&fixture, &[]), ServeInstance::start(&fixture, &[]));
    let id = one.add("http://127.0.0.1:1/");
    let path = format!("/v1/sessions/{id}");
    std::thread::scope(|scope| {
        scope.spawn(|| (0..30).for_each(|n| assert_eq!(one.patch(&path, &json!({"name": format!("n{n}")})), 200)));
        scope.spawn(|| (0..30).for_each(|n| assert_eq!(two.patch(&path, &json!({"isPaused": n % 2 == 0})), 200)));
    });
    let (_, session) = two.get(&path);
    assert_eq!((&session["name"], &session["isPaused"]), (&json!("n29"), &json!(false)), "{session}");
    // A change after the deletion restores nothing.
    assert_eq!(one.ask("DELETE", &path, "").0, 204);
    assert_eq!(two.patch(&path, &json!({"name": "again"})), 404);
    assert_eq!(one.get(&path).0, 404);
}

#[test]
fn leaders_are_listed_and_exactly_one_instance_claims_each_role() {
    let fixture = Fixture::new();
    let fleet =
        [ServeInstance::start(&fixture, &[]), ServeInstance::start(&fixture, &[]), ServeInstance::start(&fixture, &[])];
    for role in ["janitor", "aggregator", "poll-reconciler"] {
        let path = format!("/v1/roles/{role}");
        wait_until("the role has a leader", || fleet[0].get(&path).1["leader"].is_string());
        let (_, leader) = fleet[1].get(&path);
        assert!(leader["token"].is_u64() && leader["remainingMs"].is_u64() && leader["role"] == role, "{leader}");
        wait_until("exactly one instance reports that it leads", || {
            let answers: Vec<u16> = fleet.iter().map(|one| one.get(&format!("{path}/am-i-leader")).0).collect();
            answers.iter().filter(|answer| **answer == 200).count() == 1
                && answers.iter().filter(|answer| **answer == 503).count() == 2
        });
    }
    let (_, roles) = fleet[2].get("/v1/roles");
    let names: Vec<&str> = roles.as_array().unwrap().iter().filter_map(|role| role["role"].as_str()).collect();
    assert_eq!(names, ["aggregator", "janitor", "poll-reconciler"]);
    assert_eq!(fleet[0].get("/v1/roles/unknown").0, 404);
    assert_eq!(fleet[0].get("/v1/roles/unknown/am-i-leader").0, 503);
}

#[test]
fn every_instance_serves_the_fleet_totals() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let (one, two) = (ServeInstance::start(&fixture, &[]), ServeInstance::start(&fixture, &[]));
    assert!(matches!(two.get("/v1/stats").0, 200 | 404));
    (0..4).for_each(|n| drop(one.add(&server.url(&format!("/{n}")))));
    let polls = |instance: &ServeInstance| instance.get("/v1/stats").1["total"]["polls"].as_u64().unwrap_or(0);
    wait_until("polls are counted", || polls(&one) > 10 && polls(&two) > 10);
    let (_, stats) = two.get("/v1/stats");
    assert_eq!(stats["instances"], json!(2), "{stats}");
    assert!(stats["total"]["latencyMs"]["p99"].is_f64(), "{stats}");
    assert!(polls(&two) <= server.requests().len() as u64, "no poll is counted twice");
    // The next aggregator continues from the stored totals.
    let before = polls(&one);
    drop(one);
    wait_until("counting continues", || polls(&two) > before + 10);
    assert!(polls(&two) <= server.requests().len() as u64, "no poll is counted twice");
}

#[test]
fn leftovers_of_a_deleted_session_are_removed() {
    let (redis, server) = (RedisServer::start(), WebServer::start());
    let fixture = Fixture::on(&redis.url());
    let one = ServeInstance::start(&fixture, &[]);
    let id = one.add(&server.url("/"));
    wait_until("the session is polled", || one.get(&format!("/v1/sessions/{id}/state")).0 == 200);
    let left = || match redis.command(&["KEYS", &format!("*{id}*")]) {
        RedisReply::Array(keys) => keys.len(),
        other => panic!("{other:?}"),
    };
    assert!(left() >= 4, "the session, its lease, its term and its results");
    let token = one.get(&format!("/v1/sessions/{id}/state")).1["token"].as_u64().unwrap();
    assert_eq!(one.ask("DELETE", &format!("/v1/sessions/{id}"), "").0, 204);
    wait_until("all records are removed", || left() == 0);
    // A session with the same id is a new one, with a larger token.
    let again = json!({"id": id, "url": server.url("/again"), "interval": "250ms"}).to_string();
    assert_eq!(one.ask("POST", "/v1/sessions", &again).0, 201);
    let state = || one.get(&format!("/v1/sessions/{id}/state")).1;
    wait_until("the session is polled", || state()["token"].is_u64());
    assert!(state()["token"].as_u64().unwrap() > token);
}

#[test]
fn an_instance_is_drained_and_undrained_by_command() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let (one, two) =
        (ServeInstance::start(&fixture, &["--name", "one"]), ServeInstance::start(&fixture, &["--name", "two"]));
    (0..4).for_each(|n| drop(one.add(&server.url(&format!("/{n}")))));
    wait_until("both instances poll", || polling_instances(&server, 4) == Some(2));
    assert_eq!(fixture.code(&["drain", "one-"]), 0);
    wait_until("the other instance polls all sessions", || polling_instances(&server, 4) == Some(1));
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
    assert_eq!(fixture.code(&["undrain", "one-"]), 0);
    wait_until("both instances poll", || polling_instances(&server, 4) == Some(2));
    assert_eq!(fixture.code(&["drain", "three"]), 1);
    assert_polled_once(server.requests());
}

#[test]
fn key_prefixes_are_configurable() {
    let (redis, server) = (RedisServer::start(), WebServer::start());
    let fixture = Fixture::on(&redis.url());
    let file = fixture.path("tenure.toml");
    let keys = "[keys]\nlease = \"app:lease:\"\nnode = \"app:node:\"\nleader = \"app:leader:\"\nheartbeat = \"app:beat:\"\nsession = \"app:session:\"\n";
    std::fs::write(&file, keys).unwrap();
    let config = file.display().to_string();
    let one = ServeInstance::start(&fixture, &["--config", &config]);
    let id = one.add(&server.url("/"));
    wait_until("the session is polled", || !server.requests().is_empty());
    wait_until("the role has a leader", || one.get("/v1/roles/janitor").1["leader"].is_string());
    for key in [format!("app:session:{id}"), format!("app:lease:{id}"), "app:leader:janitor".to_owned()] {
        assert_eq!(redis.command(&["EXISTS", &key]), RedisReply::Int(1), "{key}");
    }
    for pattern in ["app:node:*", "app:beat:janitor:*"] {
        assert!(matches!(redis.command(&["KEYS", pattern]), RedisReply::Array(keys) if keys.len() == 1), "{pattern}");
    }
    wait_until(
        "all roles have leaders",
        || matches!(redis.command(&["KEYS", "app:leader:*"]), RedisReply::Array(keys) if keys.len() == 3),
    );
    for pattern in ["poll:*", "session:*", "leader:*", "heartbeat:*"] {
        assert_eq!(redis.command(&["KEYS", pattern]), RedisReply::Array(Vec::new()), "{pattern}");
    }
    let status = fixture.output(&["--config", &config, "status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["instances"][0]["sessions"], json!([id]), "{status}");
}

#[test]
fn unheld_time_is_reported_during_a_quarantine() {
    let (redis, server, fixture) = on_redis();
    // A new server, which may have had leases before: it grants nothing for a ttl.
    let mut command = fixture.plain(&["serve", "--listen", "127.0.0.1:0", "--ttl", "5m"]);
    let one = ServeInstance::of(&mut command);
    wait_until("the instance is ready", || one.get("/readyz").0 == 200);
    let id = one.add(&server.url("/"));
    let since = || one.get("/v1/nodes").1["unowned"][0].clone();
    wait_until("it is listed", || since()["sessionId"] == json!(id) && since()["sinceMs"].as_u64() > Some(0));
    let metrics = || web::request(&one.address, "GET", "/metrics", &[], "").unwrap().1;
    wait_until("the unheld session is counted", || metrics().contains("tenure_targets_unheld 1"));
    assert!(!metrics().contains("tenure_targets_unheld_oldest_seconds 0.0\n"), "{}", metrics());
    assert_eq!(server.requests().len(), 0);
    // The quarantine lasts for a ttl of this instance, although no lease was granted yet.
    assert_eq!(redis.command(&["HGET", "tenure:ns", "closed_for"]), RedisReply::text("300000000"));
}

#[test]
fn read_only_commands_create_no_store() {
    let fixture = Fixture::new();
    let status = fixture.output(&["status"]);
    assert_eq!(String::from_utf8_lossy(&status.stdout), "0 instances, 0 sessions: 0 held, 0 unheld, 0 paused\n");
    assert!(String::from_utf8_lossy(&status.stderr).contains("nothing has run on it yet"), "{status:?}");
    assert_eq!(fixture.code(&["leader", "cleanup"]), 1);
    assert_eq!(fixture.code(&["session", "ls"]), 0);
    assert_eq!(std::fs::read_dir(fixture.path(".")).unwrap().count(), 0);
    let one = ServeInstance::start(&fixture, &[]);
    let leaders = || {
        let status = fixture.output(&["status", "--json"]);
        serde_json::from_slice::<Value>(&status.stdout).unwrap()["leaders"].clone()
    };
    let all = ["aggregator", "janitor", "poll-reconciler"];
    wait_until("all leaders are listed", || all.iter().all(|role| leaders()[role].is_string()));
    drop(one);
}

#[test]
fn metrics_are_valid_openmetrics() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let one = ServeInstance::start(&fixture, &[]);
    one.add(&server.url("/"));
    wait_until("the session is polled", || !server.requests().is_empty());
    let metrics = || web::request(&one.address, "GET", "/metrics", &[], "").unwrap().1;
    let is_counted = |name: &str| {
        let line = metrics().lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        line.is_some_and(|number| number > 0.0)
    };
    wait_until("a renewal is counted", || is_counted("tenure_lease_events_total{event=\"lease.renewed\"}"));
    wait_until("its duration is counted", || is_counted("tenure_renew_duration_seconds_sum"));
    let text = metrics();
    for name in [
        // The session, two leaderships, and the reconciler's.
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
