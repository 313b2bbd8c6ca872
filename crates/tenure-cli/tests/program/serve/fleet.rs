//! Holders of sessions while instances join and leave.

use super::*;

fn a_fleet_polls_every_session_once(fixture: &Fixture) {
    let (server, probe) = (WebServer::start(), LagProbe::start());
    let one = ServeInstance::start(fixture, &[]);
    let ids: Vec<String> = (0..6).map(|n| one.add(&server.url(&format!("/{n}")))).collect();
    wait_until("all sessions are polled", || polling_instances(&server, 6) == Some(1));
    let (mut two, three) = (ServeInstance::start(fixture, &[]), ServeInstance::start(fixture, &[]));
    wait_until("all instances poll", || polling_instances(&server, 6) == Some(3));
    let settled = Instant::now();

    // Created through one instance, polled by another, read from the third.
    let (status, state) = three.get(&format!("/v1/sessions/{}/state", ids[0]));
    assert_eq!(
        (status, &state["ok"], &state["sessionId"], &state["body"]),
        (200, &json!(true), &json!(ids[0]), &json!("/0"))
    );
    wait_until("three results are stored", || {
        let (_, history) = two.get(&format!("/v1/sessions/{}/history?limit=3", ids[0]));
        history["results"].as_array().is_some_and(|results| results.len() == 3)
    });
    let (_, nodes) = two.get("/v1/nodes");
    let owned = |node: &Value| node["ownedSessions"].as_array().unwrap().len();
    assert_eq!(nodes["liveNodes"].as_array().unwrap().iter().map(owned).collect::<Vec<_>>(), [2, 2, 2], "{nodes}");
    let status: Value = serde_json::from_slice(&fixture.output(&["status", "--json"]).stdout).unwrap();
    let held = |instance: &Value| instance["sessions"].as_array().unwrap().len();
    assert_eq!(status["instances"].as_array().unwrap().iter().map(held).collect::<Vec<_>>(), [2, 2, 2], "{status}");
    assert_eq!((&status["unheld"], &status["unreadable"]), (&json!([]), &json!([])));
    assert!(server.requests().iter().all(|visit| visit.headers["x-key"] == "secret"));
    assert!(!three.get("/v1/sessions").1.to_string().contains("secret"));

    // A clean stop misses no slot.
    two.signal(Signal::TERM);
    assert_eq!(two.wait_exit(), Some(0));
    wait_until("two instances poll", || polling_instances(&server, 6) == Some(2));
    std::thread::sleep(Duration::from_millis(INTERVAL_MS * 4));
    let missed_slots = missed_slots(server.requests(), settled);
    assert!(missed_slots == 0 || probe.lag() > MAX_LATENESS, "{missed_slots} slots missed");

    // The sessions of a dead instance are polled again after its leases have expired.
    three.signal(Signal::KILL);
    let killed = Instant::now();
    wait_until("one instance polls all sessions", || {
        let last = pollers(&server, killed.elapsed().min(Duration::from_millis(INTERVAL_MS * 3)));
        last.len() == 6 && polling_instances(&server, 6) == Some(1)
    });

    // Paused, resumed through another instance, deleted.
    let path = format!("/v1/sessions/{}", ids[0]);
    let is_polled = || pollers(&server, Duration::from_millis(INTERVAL_MS * 4)).contains_key(&ids[0]);
    assert_eq!(one.ask("PATCH", &path, r#"{"isPaused": true}"#).0, 200);
    wait_until("polling stops", || !is_polled());
    let moved = json!({"isPaused": false, "url": server.url("/moved")}).to_string();
    assert_eq!(one.ask("PATCH", &path, &moved).0, 200);
    wait_until("the new URL is polled", || server.requests().last().is_some_and(|visit| visit.path == "/moved"));
    assert_eq!(one.ask("DELETE", &path, "").0, 204);
    assert_eq!(one.get(&path).0, 404);
    wait_until("polling stops", || !is_polled());
    assert_eq!(one.ask("DELETE", &path, "").0, 404);
    assert_polled_once(server.requests());
}

#[test]
fn a_fleet_on_redis_polls_every_session_once() {
    let server = RedisServer::start();
    a_fleet_polls_every_session_once(&Fixture::on(&server.url()));
}

#[test]
fn a_fleet_on_a_file_polls_every_session_once() {
    a_fleet_polls_every_session_once(&Fixture::new());
}
