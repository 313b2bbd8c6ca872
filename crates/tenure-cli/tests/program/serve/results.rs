//! Stored results.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_testbed::web::WebServer;

use super::ServeInstance;
use crate::harness::{Fixture, wait_until};

/// Starts a target whose responses have this status and body size.
fn answering(status: &'static str, bytes: usize) -> WebServer {
    let body = "x".repeat(bytes);
    WebServer::with_handler(move |_| {
        (Duration::ZERO, format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
    })
}

fn add(instance: &ServeInstance, url: &str, fields: &Value) -> String {
    let mut request = json!({"url": url, "interval": "100ms"});
    for (name, value) in fields.as_object().unwrap() {
        request[name] = value.clone();
    }
    let (status, session) = instance.ask("POST", "/v1/sessions", &request.to_string());
    assert_eq!(status, 201, "{session}");
    for (name, value) in fields.as_object().unwrap() {
        assert_eq!(session[name], *value, "{session}");
    }
    session["id"].as_str().unwrap().to_owned()
}

fn state(instance: &ServeInstance, id: &str) -> Value {
    wait_until("the session is polled", || instance.get(&format!("/v1/sessions/{id}/state")).0 == 200);
    instance.get(&format!("/v1/sessions/{id}/state")).1
}

fn history(instance: &ServeInstance, id: &str) -> Vec<Value> {
    instance.get(&format!("/v1/sessions/{id}/history?limit=1000")).1["results"].as_array().unwrap().clone()
}

fn length(result: &Value) -> usize {
    result["body"].as_str().unwrap().len()
}

#[test]
fn the_last_result_keeps_64_kib_and_the_history_1_kib_of_each() {
    let (fixture, large) = (Fixture::new(), answering("200 OK", 100_000));
    let small = answering("200 OK", 10);
    let instance = ServeInstance::start(&fixture, &[]);
    let (id, fits) = (add(&instance, &large.url("/"), &json!({})), add(&instance, &small.url("/"), &json!({})));
    let last = state(&instance, &id);
    assert_eq!((length(&last), &last["truncated"]), (65_536, &json!(true)));
    let kept = history(&instance, &id);
    assert!(kept.iter().all(|result| length(result) == 1_024 && result["truncated"] == true), "{kept:?}");
    let last = state(&instance, &fits);
    assert_eq!((length(&last), &last["truncated"]), (10, &json!(false)));
    let printed = fixture.output(&["session", "result", &id, "--json"]);
    assert_eq!(length(&serde_json::from_slice(&printed.stdout).unwrap()), 65_536);
    assert_eq!(fixture.code(&["session", "result", "0192f0c1-2e4e-7f00-8000-000000000001"]), 1);
}

#[test]
fn a_session_overrides_the_result_settings() {
    let (fixture, server) = (Fixture::new(), answering("200 OK", 5_000));
    let instance = ServeInstance::start(&fixture, &["--max-body", "2KiB", "--keep-results", "4"]);
    let own = add(&instance, &server.url("/"), &json!({"maxBody": 3_000, "keepResults": 2}));
    let usual = add(&instance, &server.url("/"), &json!({}));
    wait_until("there are enough results", || {
        instance.get("/v1/stats").1["total"]["polls"].as_u64().is_some_and(|polls| polls > 20)
    });
    assert_eq!((length(&state(&instance, &own)), history(&instance, &own).len()), (3_000, 2));
    assert_eq!((length(&state(&instance, &usual)), history(&instance, &usual).len()), (2_048, 4));
    // Back to the instance's setting.
    let path = format!("/v1/sessions/{own}");
    assert_eq!(instance.patch(&path, &json!({"maxBody": null, "keepResults": "wrong"})), 422);
    assert_eq!(instance.patch(&path, &json!({"maxBody": null})), 200);
    wait_until("the next result is shorter", || length(&state(&instance, &own)) == 2_048);
}

#[test]
fn failed_polls_keep_their_body_and_a_backoff_can_be_disabled() {
    let (fixture, server) = (Fixture::new(), answering("500 Internal Server Error", 2_000));
    let instance = ServeInstance::start(&fixture, &[]);
    let id = add(&instance, &server.url("/off"), &json!({"backoff": "off"}));
    let backed_off = add(&instance, &server.url("/on"), &json!({}));
    wait_until("fifty polls of the session without backoff", || {
        server.requests().iter().filter(|visit| visit.headers["tenure-target"] == id).count() >= 50
    });
    let last = state(&instance, &id);
    assert_eq!((length(&last), &last["ok"], &last["status"]), (2_000, &json!(false), &json!(500)));
    assert!(last["consecutiveFailures"].as_u64().unwrap() > 20, "{last}");
    let polled = server.requests().iter().filter(|visit| visit.headers["tenure-target"] == backed_off).count();
    // Five polls without backoff, and then after 2, 4, 8, 16, 32 … slots.
    assert!(polled <= 12, "{polled} polls of a failing target");
    assert_eq!(length(&state(&instance, &backed_off)), 2_000);
}
