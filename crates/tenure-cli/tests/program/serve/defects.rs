//! Where the polling service fails that this one was asked for from (`docs/predecessors.md`, the third), by number.

use super::*;

/// How often something was asked for since then.
fn visits_since(server: &WebServer, since: Instant) -> usize {
    server.visits().iter().filter(|visit| visit.began > since).count()
}

/// There the request is sent first, and then is looked whether it should have been.
#[test]
fn number_3_nothing_is_asked_of_a_target_while_nobody_knows_whose_it_is() {
    let (redis, server, place) = on_redis();
    let one = Instance::start(&place, &[]);
    one.add(&server.url("/"));
    until("it is polled", || !server.visits().is_empty());
    redis.stop();
    let stopped = Instant::now();
    std::thread::sleep(TTL * 2);
    let silence = visits_since(&server, stopped + TTL);
    redis.cont();
    assert_eq!(silence, 0, "its lease had ended");
    let back = Instant::now();
    until("it is polled again", || visits_since(&server, back) > 1);
    is_right(server.visits());
}

/// There a second loop asks the target without any lease.
#[test]
fn number_4_whatever_is_asked_of_a_target_is_asked_by_its_holder_and_in_its_slot() {
    let (redis, server, place) = on_redis();
    let (one, _two) = (Instance::start(&place, &[]), Instance::start(&place, &[]));
    let id = one.add(&server.url("/"));
    until("it is polled a few times", || server.visits().len() > 5);
    let holder = redis.command(&["GET", &format!("poll:lease:{id}")]);
    for visit in server.visits() {
        assert_eq!(visit.headers["tenure-target"], id);
        assert_eq!(Reply::text(&visit.headers["tenure-instance"]), holder);
        assert_eq!((visit.path.as_str(), number(&visit, "tenure-token") > 0), ("/", true));
    }
    is_right(server.visits());
}

/// There a restart of the work polls what was paused, without a lease.
#[test]
fn number_8_what_is_paused_stays_so_whatever_is_restarted() {
    let redis = RedisServer::builder().append_only("always").start();
    let (place, server) = (Place::on(&redis.url()), WebServer::start());
    let one = Instance::start(&place, &[]);
    let path = format!("/v1/sessions/{}", one.add(&server.url("/")));
    until("it is polled", || !server.visits().is_empty());
    assert_eq!(one.patch(&path, &json!({"isPaused": true})), 200);
    until("it is left alone", || pollers(&server, Duration::from_millis(INTERVAL_MS * 2)).is_empty());
    let paused = Instant::now();
    redis.kill();
    redis.start_again();
    drop(one);
    let two = Instance::start(&place, &[]);
    std::thread::sleep(Duration::from_millis(INTERVAL_MS * 4));
    assert_eq!(visits_since(&server, paused), 0);
    until("it is known again", || two.patch(&path, &json!({"isPaused": false})) == 200);
    until("it is polled again", || visits_since(&server, paused) > 0);
}

/// There whoever takes over begins anew.
#[test]
fn number_16_results_go_on_where_the_last_holder_has_left_off() {
    let (_redis, server, place) = on_redis();
    let one = Instance::start(&place, &[]);
    let id = one.add(&server.url("/"));
    let results = |instance: &Instance| {
        let (_, history) = instance.get(&format!("/v1/sessions/{id}/history"));
        history["results"].as_array().cloned().unwrap_or_default()
    };
    until("there are some", || results(&one).len() > 2);
    let two = Instance::start(&place, &[]);
    one.signal(Signal::TERM);
    until("both have polled it", || {
        let mut by: Vec<Value> = results(&two).iter().map(|result| result["instanceId"].clone()).collect();
        by.dedup();
        by.len() == 2
    });
    let due: Vec<Value> = results(&two).iter().map(|result| result["dueAt"].clone()).collect();
    assert!(due.windows(2).all(|pair| pair[0].as_str() > pair[1].as_str()), "the latest first, none twice: {due:?}");
}

/// There a status that is written at the same time undoes a pause, and brings back what was deleted.
#[test]
fn number_24_polling_undoes_no_change_and_brings_nothing_back() {
    let (redis, server, place) = on_redis();
    let one = Instance::start(&place, &[]);
    let request = json!({"url": server.url("/"), "interval": "100ms"}).to_string();
    let id = one.ask("POST", "/v1/sessions", &request).1["id"].as_str().unwrap().to_owned();
    let (path, key) = (format!("/v1/sessions/{id}"), format!("session:{id}"));
    until("it is polled", || server.visits().len() > 2);
    for n in 0..20 {
        let change = json!({"name": format!("n{n}"), "isPaused": n % 2 == 0});
        assert_eq!(one.patch(&path, &change), 200);
        std::thread::sleep(Duration::from_millis(60));
        let stored: Value = serde_json::from_str(redis.command(&["GET", &key]).as_text()).unwrap();
        assert_eq!((&stored["name"], &stored["isPaused"]), (&change["name"], &change["isPaused"]));
    }
    assert_eq!(one.ask("DELETE", &path, "").0, 204);
    std::thread::sleep(TTL);
    assert_eq!(redis.command(&["EXISTS", &key]), Reply::Int(0));
}

/// There a new address counts after a restart.
#[test]
fn number_25_an_address_counts_from_the_next_poll() {
    let (_redis, server, place) = on_redis();
    let (one, two) = (Instance::start(&place, &[]), Instance::start(&place, &[]));
    let path = format!("/v1/sessions/{}", one.add(&server.url("/old")));
    until("it is polled", || !server.visits().is_empty());
    // Through whichever instance.
    assert_eq!(two.patch(&path, &json!({"url": server.url("/new")})), 200);
    until("it is polled there", || server.visits().iter().any(|visit| visit.path == "/new"));
    let visits = server.visits();
    let first = visits.iter().position(|visit| visit.path == "/new").unwrap();
    assert!(visits[first..].iter().all(|visit| visit.path == "/new"));
    is_right(visits);
}

/// There the lease of what was paused or deleted is renewed for as long as the process lives.
#[test]
fn number_26_what_is_paused_or_deleted_is_let_go_of() {
    let (redis, server, place) = on_redis();
    // They would not have ended by themselves.
    let one = Instance::start(&place, &["--ttl", "10m"]);
    let (paused, deleted) = (one.add(&server.url("/paused")), one.add(&server.url("/deleted")));
    let is_held = |id: &str| redis.command(&["EXISTS", &format!("poll:lease:{id}")]) == Reply::Int(1);
    until("both are held", || is_held(&paused) && is_held(&deleted));
    assert_eq!(one.patch(&format!("/v1/sessions/{paused}"), &json!({"isPaused": true})), 200);
    assert_eq!(one.ask("DELETE", &format!("/v1/sessions/{deleted}"), "").0, 204);
    until("both are let go of", || !is_held(&paused) && !is_held(&deleted));
}

/// There the sessions that an operator looks for are left out, and a store that is away is an error of the server's.
#[test]
fn number_30_what_nobody_holds_and_what_the_dead_hold_is_listed() {
    let (redis, server, place) = on_redis();
    let one = Instance::start(&place, &[]);
    let ids: Vec<String> = (0..3).map(|n| one.add(&server.url(&format!("/{n}")))).collect();
    until("all are polled", || shared_by(&server, 3) == Some(1));
    // Held by somebody who gives no sign of life, and by nobody: one with a weight of nothing takes nothing.
    let idle = Instance::start(&place, &["--weight", "0"]);
    one.signal(Signal::KILL);
    redis.command(&["SET", &format!("poll:lease:{}", ids[0]), "a-ghost", "PX", "60000"]);
    let listed = |nodes: &Value, list: &str| {
        let entries = nodes[list].as_array().cloned().unwrap_or_default();
        entries.iter().filter_map(|entry| entry["sessionId"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    until("both kinds are listed", || {
        let (_, nodes) = idle.get("/v1/nodes");
        let ghosts = nodes["goneNodes"].as_array().cloned().unwrap_or_default();
        let ghost = ghosts.iter().find(|node| node["instanceId"] == "a-ghost");
        let held = ghost.is_some_and(|ghost| listed(ghost, "ownedSessions") == [ids[0].clone()]);
        let others = listed(&nodes, "unowned").len() + listed(&nodes["liveNodes"][0], "ownedSessions").len();
        held && others == 2
    });
    redis.stop();
    until("it says that the store is away", || {
        let (status, answer) = idle.get("/v1/nodes");
        status == 503 && answer["error"]["code"] == "store_unavailable"
    });
    redis.cont();
}
