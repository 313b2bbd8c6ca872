//! Fields and responses of the HTTP API that other tests do not cover.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use tenure_testbed::web::{self, WebServer};
use tenure_testbed::{RedisReply, RedisServer};

use crate::harness::{Fixture, wait_until};
use crate::serve::ServeInstance;

/// Each route and the fields of its response.
const FIELDS: &[(&str, &[&str])] = &[
    ("/v1/sessions", &["/sessions/0/id", "/nextCursor"]),
    (
        "/v1/sessions/{id}",
        &[
            "/id",
            "/name",
            "/url",
            "/interval",
            "/timeout",
            "/headers",
            "/isPaused",
            "/createdAt",
            "/maxBody",
            "/keepResults",
            "/backoff",
        ],
    ),
    (
        "/v1/sessions/{id}/state",
        &[
            "/sessionId",
            "/instanceId",
            "/token",
            "/dueAt",
            "/polledAt",
            "/ok",
            "/status",
            "/latencyMs",
            "/body",
            "/truncated",
            "/error",
        ],
    ),
    ("/v1/sessions/{id}/history?limit=1", &["/results/0/token"]),
    (
        "/v1/nodes",
        &[
            "/thisInstanceId",
            "/timestamp",
            "/liveNodes/0/instanceId",
            "/liveNodes/0/isThisInstance",
            "/liveNodes/0/status",
            "/liveNodes/0/weight",
            "/liveNodes/0/startedAt",
            "/liveNodes/0/version",
            "/liveNodes/0/ownedSessions/0/sessionId",
            "/liveNodes/0/ownedSessions/0/ownerId",
            "/liveNodes/0/ownedSessions/0/preferredOwnerId",
            "/liveNodes/0/ownedSessions/0/state",
            "/liveNodes/0/ownedSessions/0/token",
            "/liveNodes/0/ownedSessions/0/acquiredAt",
            "/liveNodes/0/ownedSessions/0/lastRenewedAt",
            "/unowned",
            "/unreadable",
        ],
    ),
    ("/v1/roles", &["/0/role", "/0/leader", "/0/token", "/0/remainingMs"]),
    ("/v1/roles/janitor", &["/role", "/leader", "/token", "/remainingMs"]),
    ("/v1/roles/janitor/am-i-leader", &["/role", "/leader"]),
    ("/v1/plan", &["/instances/0/quota", "/sessions/0/preferredOwnerId", "/moves"]),
    ("/v1/moves?limit=5", &["/moves"]),
    ("/v1/stats", &["/total/polls", "/lastPeriod/polls"]),
    ("/healthz", &["/status"]),
    ("/readyz", &["/status"]),
    ("/openapi.json", &["/openapi"]),
];

#[test]
fn every_route_answers_with_its_fields_and_a_newline() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let one = ServeInstance::start(&fixture, &[]);
    let id = one.add(&server.url("/"));
    wait_until("the session is polled", || one.get(&format!("/v1/sessions/{id}/state")).0 == 200);
    wait_until("totals are added up", || one.get("/v1/stats").0 == 200);
    wait_until("the instance leads", || one.get("/v1/roles/janitor/am-i-leader").0 == 200);
    for (route, fields) in FIELDS {
        let (status, body) = web::request(one.address(), "GET", &route.replace("{id}", &id), &[], "").unwrap();
        assert!(status == 200 && body.ends_with('\n'), "{route}: {status} {body:?}");
        let answer: Value = serde_json::from_str(&body).unwrap();
        for field in *fields {
            assert!(answer.pointer(field).is_some(), "{route} has no {field}: {answer}");
        }
    }
    let (status, failure) = one.get("/v1/nothing");
    assert!(status == 404 && failure["error"]["code"].is_string() && failure["error"]["message"].is_string());
}

#[test]
fn drain_undrain_and_step_down_are_accepted_and_applied() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let one = ServeInstance::start(&fixture, &[]);
    one.add(&server.url("/"));
    wait_until("the session is polled", || !server.requests().is_empty());
    let me = one.get("/readyz").0 == 200;
    assert!(me);
    let id = one.get("/v1/nodes").1["thisInstanceId"].as_str().unwrap().to_owned();
    let status = || one.get("/v1/nodes").1["liveNodes"][0]["status"].clone();
    assert_eq!(one.ask("POST", &format!("/v1/nodes/{id}/drain"), "").0, 202);
    wait_until("the instance drains", || status() == "draining");
    assert_eq!(one.ask("POST", &format!("/v1/nodes/{id}/undrain"), "").0, 202);
    wait_until("the instance accepts sessions again", || status() == "online");
    assert_eq!(one.ask("POST", "/v1/nodes/unknown/drain", "").0, 404);
    wait_until("the janitor has a leader", || one.get("/v1/roles/janitor").1["leader"].is_string());
    let token = one.get("/v1/roles/janitor").1["token"].clone();
    assert_eq!(one.ask("POST", "/v1/roles/janitor/step-down", "{}").0, 202);
    wait_until("another term begins", || {
        let now = one.get("/v1/roles/janitor").1;
        now["leader"].is_string() && now["token"].as_u64() > token.as_u64()
    });
    assert_eq!(one.ask("POST", "/v1/roles/nothing/step-down", "").0, 409);
    assert_eq!(one.ask("POST", "/v1/roles/janitor/step-down", r#"{"to": 5}"#).0, 400);
}

#[test]
fn a_step_down_through_the_api_names_a_candidate_or_is_refused() {
    let fixture = Fixture::new();
    let (one, two) =
        (ServeInstance::start(&fixture, &["--name", "one"]), ServeInstance::start(&fixture, &["--name", "two"]));
    let id = |instance: &ServeInstance| instance.get("/v1/nodes").1["thisInstanceId"].as_str().unwrap().to_owned();
    let role = |role: &str| one.get(&format!("/v1/roles/{role}")).1;
    // The janitor has candidates with heartbeats; the other role only has the fleet.
    for name in ["janitor", "poll-reconciler"] {
        let path = format!("/v1/roles/{name}/step-down");
        wait_until("the role has a leader", || role(name)["leader"].is_string());
        let token = role(name)["token"].clone();
        for to in ["bogus", "", " ", "ONE", "one-and-only", "redis://u:p@h"] {
            let (status, failure) = one.ask("POST", &path, &json!({"to": to}).to_string());
            assert_eq!((status, &failure["error"]["code"]), (422, &json!("invalid")), "{to}: {failure}");
            assert!(failure["error"]["message"].as_str().unwrap().contains("known: one-"), "{failure}");
        }
        assert_eq!(role(name)["token"], token, "the term continues");
        // By id, and by the beginning of it.
        for (to, leader) in [(id(&two), id(&two)), ("one".to_owned(), id(&one)), ("two-".to_owned(), id(&two))] {
            // An instance that has just stepped down may decline: then ask the next leader.
            wait_until("the candidate leads", || {
                let leads = role(name)["leader"] == leader.as_str();
                if !leads {
                    one.ask("POST", &path, &json!({"to": to}).to_string());
                }
                leads
            });
        }
    }
}

#[test]
fn a_stream_of_events_is_refused_while_the_store_is_away() {
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    let one = ServeInstance::start(&fixture, &[]);
    // The stream does not end: its first line is enough.
    let status = || {
        let mut stream = TcpStream::connect(one.address()).unwrap();
        write!(stream, "GET /v1/events HTTP/1.1\r\nhost: {}\r\n\r\n", one.address()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    assert_eq!(status(), "HTTP/1.1 200 OK");
    server.kill();
    assert_eq!(status(), "HTTP/1.1 503 Service Unavailable");
    assert_eq!(one.get("/v1/events").1["error"]["code"], "store_unavailable");
    server.restart();
    wait_until("events are streamed again", || status() == "HTTP/1.1 200 OK");
}

#[test]
fn everything_but_the_probes_needs_the_token() {
    let fixture = Fixture::new();
    std::fs::write(fixture.path("token"), "s3cret").unwrap();
    let one = ServeInstance::start(&fixture, &["--api-token-file", &fixture.path("token").display().to_string()]);
    let ask = |method: &str, path: &str, headers: &[&str]| {
        let (status, body) = web::request(one.address(), method, path, headers, "").unwrap();
        (status, serde_json::from_str::<Value>(&body).unwrap_or_default()["error"]["code"].clone())
    };
    let token = ["authorization: Bearer s3cret"];
    for path in ["/", "/v1", "/v1/", "/v1/nothing", "/v1/sessions/", "/nothing", "/metrics/x", "/healthz/x", "//"] {
        for method in ["GET", "POST", "DELETE"] {
            assert_eq!(ask(method, path, &[]), (401, json!("unauthorized")), "{method} {path}");
            assert_eq!(ask(method, path, &token), (404, json!("not_found")), "{method} {path}");
        }
    }
    // The same for an unsupported method of a route.
    for path in ["/v1/sessions", "/v1/nodes", "/metrics", "/v1/events"] {
        assert_eq!(ask("PUT", path, &[]), (401, json!("unauthorized")), "{path}");
        assert_eq!(ask("PUT", path, &token), (405, json!("method_not_allowed")), "{path}");
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!((ask("GET", path, &[]).0, ask("PUT", path, &[]).0), (200, 405), "{path}");
    }
}

#[test]
fn sessions_are_not_listed_from_memory_while_the_store_is_away() {
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    let one = ServeInstance::start(&fixture, &[]);
    one.add("http://127.0.0.1:1/");
    assert_eq!(one.get("/v1/sessions").0, 200);
    server.kill();
    for route in ["/v1/sessions", "/v1/nodes", "/v1/roles", "/v1/stats"] {
        wait_until(route, || {
            let (status, body) = one.get(route);
            status == 503 && body["error"]["code"] == "store_unavailable"
        });
    }
}

#[test]
fn a_session_is_revoked_by_its_id_and_its_token_is_raised() {
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    let one = ServeInstance::start(&fixture, &["--ttl", "30s"]);
    let id = one.add("http://127.0.0.1:1/");
    let lease = format!("poll:lease:{id}");
    wait_until("the session is held", || server.command(&["EXISTS", &lease]) == RedisReply::Int(1));
    let leader = || -> Value { serde_json::from_slice(&fixture.output(&["leader", &id, "--json"]).stdout).unwrap() };
    let before = leader();
    assert_eq!(before["revoked"], json!(false));
    // A stopped holder does not learn of it: its key stays.
    let holder = one.pause();
    assert_eq!(fixture.code(&["revoke", &id]), 0);
    let after = leader();
    assert_eq!((&after["revoked"], &after["leader"]), (&json!(true), &before["leader"]));
    assert!(after["token"].as_u64() > before["token"].as_u64(), "{before} {after}");
    let status: Value = serde_json::from_slice(&fixture.output(&["status", "--json"]).stdout).unwrap();
    assert!(status["instances"].as_array().unwrap().iter().any(|one| one["revoked"] == json!([id])), "{status}");
    drop(holder);
    wait_until("the next term has a larger token", || {
        let now = leader();
        now["revoked"] == json!(false) && now["token"].as_u64() > after["token"].as_u64()
    });
}
