//! Defects of the polling service that Tenure replaces (`docs/predecessors.md`, the third), by number.

use super::*;

/// Returns the number of requests since then.
fn visits_since(server: &WebServer, since: Instant) -> usize {
    server.requests().iter().filter(|visit| visit.began > since).count()
}

/// There, the request is sent before the lease is checked.
#[test]
fn number_3_a_target_is_not_polled_while_its_holder_is_unknown() {
    let (redis, server, fixture) = on_redis();
    let one = ServeInstance::start(&fixture, &[]);
    one.add(&server.url("/"));
    wait_until("the session is polled", || !server.requests().is_empty());
    redis.stop();
    let stopped = Instant::now();
    std::thread::sleep(TTL * 2);
    let silence = visits_since(&server, stopped + TTL);
    redis.cont();
    assert_eq!(silence, 0, "the lease had expired");
    let back = Instant::now();
    wait_until("the session is polled again", || visits_since(&server, back) > 1);
    assert_polled_once(server.requests());
}

/// There, a second loop polls the target without a lease.
#[test]
fn number_4_a_target_is_polled_only_by_its_holder_in_its_slot() {
    let (redis, server, fixture) = on_redis();
    let (one, _two) = (ServeInstance::start(&fixture, &[]), ServeInstance::start(&fixture, &[]));
    let id = one.add(&server.url("/"));
    wait_until("the session is polled a few times", || server.requests().len() > 5);
    let holder = redis.command(&["GET", &format!("poll:lease:{id}")]);
    for visit in server.requests() {
        assert_eq!(visit.headers["tenure-target"], id);
        assert_eq!(RedisReply::text(&visit.headers["tenure-instance"]), holder);
        assert_eq!((visit.path.as_str(), header_number(&visit, "tenure-token") > 0), ("/", true));
    }
    assert_polled_once(server.requests());
}

/// There, a restart of the worker polls paused sessions without a lease.
#[test]
fn number_8_a_paused_session_stays_paused_across_restarts() {
    let redis = RedisServer::builder().append_only("always").start();
    let (fixture, server) = (Fixture::on(&redis.url()), WebServer::start());
    let one = ServeInstance::start(&fixture, &[]);
    let path = format!("/v1/sessions/{}", one.add(&server.url("/")));
    wait_until("the session is polled", || !server.requests().is_empty());
    assert_eq!(one.patch(&path, &json!({"isPaused": true})), 200);
    wait_until("polling stops", || pollers(&server, Duration::from_millis(INTERVAL_MS * 2)).is_empty());
    let paused = Instant::now();
    redis.kill();
    redis.restart();
    drop(one);
    let two = ServeInstance::start(&fixture, &[]);
    std::thread::sleep(Duration::from_millis(INTERVAL_MS * 4));
    assert_eq!(visits_since(&server, paused), 0);
    wait_until("the session is known again", || two.patch(&path, &json!({"isPaused": false})) == 200);
    wait_until("the session is polled again", || visits_since(&server, paused) > 0);
}

/// There, the next holder starts anew.
#[test]
fn number_16_results_continue_with_the_next_holder() {
    let (_redis, server, fixture) = on_redis();
    let one = ServeInstance::start(&fixture, &[]);
    let id = one.add(&server.url("/"));
    let results = |instance: &ServeInstance| {
        let (_, history) = instance.get(&format!("/v1/sessions/{id}/history"));
        history["results"].as_array().cloned().unwrap_or_default()
    };
    wait_until("there are some results", || results(&one).len() > 2);
    let two = ServeInstance::start(&fixture, &[]);
    one.signal(Signal::TERM);
    wait_until("both instances have polled", || {
        let mut by: Vec<Value> = results(&two).iter().map(|result| result["instanceId"].clone()).collect();
        by.dedup();
        by.len() == 2
    });
    let due: Vec<Value> = results(&two).iter().map(|result| result["dueAt"].clone()).collect();
    assert!(due.windows(2).all(|pair| pair[0].as_str() > pair[1].as_str()), "newest first, without repeats: {due:?}");
}

/// There, a concurrent status write undoes a pause and restores a deleted session.
#[test]
fn number_24_polling_never_reverts_an_edit_or_restores_a_deleted_session() {
    let (redis, server, fixture) = on_redis();
    let one = ServeInstance::start(&fixture, &[]);
    let request = json!({"url": server.url("/"), "interval": "100ms"}).to_string();
    let id = one.ask("POST", "/v1/sessions", &request).1["id"].as_str().unwrap().to_owned();
    let (path, key) = (format!("/v1/sessions/{id}"), format!("session:{id}"));
    wait_until("the session is polled", || server.requests().len() > 2);
    for n in 0..20 {
        let change = json!({"name": format!("n{n}"), "isPaused": n % 2 == 0});
        assert_eq!(one.patch(&path, &change), 200);
        std::thread::sleep(Duration::from_millis(60));
        let stored: Value = serde_json::from_str(redis.command(&["GET", &key]).as_text()).unwrap();
        assert_eq!((&stored["name"], &stored["isPaused"]), (&change["name"], &change["isPaused"]));
    }
    assert_eq!(one.ask("DELETE", &path, "").0, 204);
    std::thread::sleep(TTL);
    assert_eq!(redis.command(&["EXISTS", &key]), RedisReply::Int(0));
}

/// There, a new address takes effect after a restart.
#[test]
fn number_25_a_new_url_applies_from_the_next_poll() {
    let (_redis, server, fixture) = on_redis();
    let (one, two) = (ServeInstance::start(&fixture, &[]), ServeInstance::start(&fixture, &[]));
    let path = format!("/v1/sessions/{}", one.add(&server.url("/old")));
    wait_until("the session is polled", || !server.requests().is_empty());
    // Any instance accepts the change.
    assert_eq!(two.patch(&path, &json!({"url": server.url("/new")})), 200);
    wait_until("the new URL is polled", || server.requests().iter().any(|visit| visit.path == "/new"));
    let visits = server.requests();
    let first = visits.iter().position(|visit| visit.path == "/new").unwrap();
    assert!(visits[first..].iter().all(|visit| visit.path == "/new"));
    assert_polled_once(visits);
}

/// There, the lease of a paused or deleted session is renewed for as long as the process runs.
#[test]
fn number_26_a_paused_or_deleted_session_is_released() {
    let (redis, server, fixture) = on_redis();
    // The leases would not expire in time.
    let one = ServeInstance::start(&fixture, &["--ttl", "10m"]);
    let (paused, deleted) = (one.add(&server.url("/paused")), one.add(&server.url("/deleted")));
    let is_held = |id: &str| redis.command(&["EXISTS", &format!("poll:lease:{id}")]) == RedisReply::Int(1);
    wait_until("both sessions are held", || is_held(&paused) && is_held(&deleted));
    assert_eq!(one.patch(&format!("/v1/sessions/{paused}"), &json!({"isPaused": true})), 200);
    assert_eq!(one.ask("DELETE", &format!("/v1/sessions/{deleted}"), "").0, 204);
    wait_until("both sessions are released", || !is_held(&paused) && !is_held(&deleted));
}

/// There, the sessions that an operator looks for are left out, and an unreachable store is a server error.
#[test]
fn number_30_unheld_sessions_and_those_of_dead_instances_are_listed() {
    let (redis, server, fixture) = on_redis();
    let one = ServeInstance::start(&fixture, &[]);
    let ids: Vec<String> = (0..3).map(|n| one.add(&server.url(&format!("/{n}")))).collect();
    wait_until("all sessions are polled", || polling_instances(&server, 3) == Some(1));
    // One session is held by an instance without a heartbeat, the others are unheld: weight 0 acquires nothing.
    let idle = ServeInstance::start(&fixture, &["--weight", "0"]);
    one.signal(Signal::KILL);
    redis.command(&["SET", &format!("poll:lease:{}", ids[0]), "a-ghost", "PX", "60000"]);
    let listed = |nodes: &Value, list: &str| {
        let entries = nodes[list].as_array().cloned().unwrap_or_default();
        entries.iter().filter_map(|entry| entry["sessionId"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    wait_until("both kinds are listed", || {
        let (_, nodes) = idle.get("/v1/nodes");
        let ghosts = nodes["goneNodes"].as_array().cloned().unwrap_or_default();
        let ghost = ghosts.iter().find(|node| node["instanceId"] == "a-ghost");
        let held = ghost.is_some_and(|ghost| listed(ghost, "ownedSessions") == [ids[0].clone()]);
        let others = listed(&nodes, "unowned").len() + listed(&nodes["liveNodes"][0], "ownedSessions").len();
        held && others == 2
    });
    redis.stop();
    wait_until("the API reports the unreachable store", || {
        let (status, answer) = idle.get("/v1/nodes");
        status == 503 && answer["error"]["code"] == "store_unavailable"
    });
    redis.cont();
}
