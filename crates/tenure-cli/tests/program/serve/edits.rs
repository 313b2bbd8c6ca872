//! Sessions that are paused, deleted and created again before all instances have learned of it.

use std::io::BufRead;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

fn a_recreated_session_has_no_old_results(fixture: &Fixture) {
    let server = WebServer::start();
    let (one, two) = (ServeInstance::start(fixture, &[]), ServeInstance::start(fixture, &[]));
    let id = one.add(&server.url("/before"));
    let path = format!("/v1/sessions/{id}");
    wait_until("the session has results", || {
        two.get(&format!("{path}/history")).1["results"].as_array().is_some_and(|all| all.len() > 1)
    });
    let token = one.get(&format!("{path}/state")).1["token"].as_u64();
    assert_eq!(one.ask("DELETE", &path, "").0, 204);
    let again = json!({"id": id, "url": server.url("/after"), "interval": "500ms", "isPaused": true});
    assert_eq!(two.ask("POST", "/v1/sessions", &again.to_string()).0, 201);
    for instance in [&one, &two] {
        assert_eq!(instance.get(&format!("{path}/state")).0, 404);
        assert_eq!(instance.get(&format!("{path}/history")).1["results"], json!([]));
    }
    assert_eq!(two.ask("POST", "/v1/sessions", &again.to_string()).0, 409, "the id is taken");
    assert_eq!(one.patch(&path, &json!({"isPaused": false})), 200);
    wait_until("the session is polled", || two.get(&format!("{path}/state")).0 == 200);
    let state = two.get(&format!("{path}/state")).1;
    assert_eq!(state["body"], json!("/after"), "{state}");
    assert!(state["token"].as_u64() > token, "{state}");
    assert_polled_once(server.requests());
}

#[test]
fn a_recreated_session_has_no_old_results_on_redis() {
    let redis = RedisServer::start();
    a_recreated_session_has_no_old_results(&Fixture::on(&redis.url()));
}

#[test]
fn a_recreated_session_has_no_old_results_on_a_file() {
    a_recreated_session_has_no_old_results(&Fixture::new());
}

/// Many clients create a session with the id of one that is deleted meanwhile: one succeeds, and the session is new.
#[test]
fn a_session_created_during_a_deletion_has_no_old_results() {
    let (_redis, server, fixture) = on_redis();
    let (one, two) = (ServeInstance::start(&fixture, &[]), ServeInstance::start(&fixture, &[]));
    let id = one.add(&server.url("/"));
    let path = format!("/v1/sessions/{id}");
    let request = json!({"id": id, "url": server.url("/"), "interval": "100ms"}).to_string();
    for _ in 0..20 {
        wait_until("the session has a result", || one.get(&format!("{path}/state")).0 == 200);
        let made = AtomicBool::new(false);
        let created: Vec<Value> = std::thread::scope(|scope| {
            let wants_one = |instance: &ServeInstance| {
                let mut created = None;
                wait_until("a client has created it", || {
                    let (status, session) = instance.ask("POST", "/v1/sessions", &request);
                    if status == 201 {
                        made.store(true, Ordering::SeqCst);
                        created = Some(session);
                    }
                    made.load(Ordering::SeqCst)
                });
                created
            };
            let creating = [&one, &two, &one].map(|instance| scope.spawn(move || wants_one(instance)));
            assert_eq!(two.ask("DELETE", &path, "").0, 204);
            creating.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(created.len(), 1, "{created:?}");
        let (_, history) = two.get(&format!("{path}/history"));
        // To the millisecond.
        let when = |result: &Value| result["polledAt"].as_str().unwrap()[..23].to_owned();
        let all: Vec<String> = history["results"].as_array().unwrap().iter().map(when).collect();
        let made = &created[0]["createdAt"].as_str().unwrap()[..23];
        assert!(all.iter().all(|polled| polled.as_str() >= made), "{made}: {all:?}");
    }
    assert_polled_once(server.requests());
}

#[test]
fn a_reimported_session_has_no_old_results() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let one = ServeInstance::start(&fixture, &[]);
    let path = format!("/v1/sessions/{}", one.add(&server.url("/")));
    wait_until("the session has a result", || one.get(&format!("{path}/state")).0 == 200);
    assert_eq!(one.patch(&path, &json!({"isPaused": true})), 200);
    let exported = String::from_utf8(fixture.output(&["session", "export"]).stdout).unwrap();
    assert_eq!(one.ask("DELETE", &path, "").0, 204);
    let imported = with_input(fixture.tenure(&["session", "import"]), &exported);
    assert!(imported.status.success(), "{imported:?}");
    assert_eq!(one.get(&format!("{path}/history")).1["results"], json!([]));
}

#[test]
fn an_export_replaces_a_file_in_one_step_and_never_by_an_empty_one() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let (redis, fixture) = (RedisServer::start(), Fixture::new());
    let on_redis = Fixture::on(&redis.url());
    let backups = fixture.path("backups");
    std::fs::create_dir(&backups).unwrap();
    let file = backups.join("sessions.jsonl");
    let export = |flags: &[&str]| {
        let mut command = on_redis.plain(&[&["--bootstrap", "session", "export"], flags].concat());
        command.env("TENURE_OUTPUT", &file).output().unwrap()
    };
    let read = || std::fs::read_to_string(&file).unwrap();
    let names = || std::fs::read_dir(&backups).unwrap().count();
    // Without sessions no file is created.
    assert_eq!((export(&[]).status.code(), names()), (Some(1), 0));
    let add = ["session", "add", "--url", "http://127.0.0.1:1/", "--header", "x-key: secret"];
    assert_eq!(on_redis.code(&add), 0);
    std::fs::write(&file, "the last one").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let reader = std::fs::File::open(&file).unwrap();
    let output = export(&[]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let all = read();
    assert_eq!(String::from_utf8(on_redis.output(&["session", "export"]).stdout).unwrap(), all);
    assert!(all.contains("\"x-key\":\"secret\"") && all.ends_with("}\n"), "{all}");
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.permissions().mode() & 0o777, names()), (0o600, 1));
    assert_ne!(metadata.ino(), reader.metadata().unwrap().ino(), "a reader of the old file still has all of it");
    // An unreadable session is left out, and reported. So is a key of another type.
    redis.command(&["SET", "session:not-a-uuid", "{}"]);
    redis.command(&["RPUSH", "session:01a1f0e6-0b12-7167-90e1-68b101aa3260", "x"]);
    let one = ServeInstance::start(&on_redis, &[]);
    wait_until("both are listed", || {
        one.get("/v1/nodes").1["unreadable"].as_array().is_some_and(|list| list.len() == 2)
    });
    let output = export(&[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("not-a-uuid"), "{said}");
    assert_eq!(read(), all);
    // The flag beats the environment.
    let other = fixture.path("other.jsonl");
    assert_eq!(export(&["--output", &other.display().to_string()]).status.code(), Some(1));
    assert_eq!(std::fs::read_to_string(&other).unwrap(), all);
    // Devices, pipes, folders and links to nothing are refused.
    let (link, pipe) = (fixture.path("link"), fixture.path("pipe"));
    std::os::unix::fs::symlink("nothing", &link).unwrap();
    std::os::unix::fs::symlink("/proc/self/fd/1", &pipe).unwrap();
    let wrong = ["/dev/null", "/dev/stdout", "/no/such/folder/file"].map(PathBuf::from);
    for wrong in wrong.iter().chain([&backups, &link, &pipe]) {
        assert_eq!(export(&["--output", &wrong.display().to_string()]).status.code(), Some(73), "{wrong:?}");
    }
    assert!(link.is_symlink() && pipe.is_symlink() && !fixture.path("nothing").exists());
    drop(one);
    // All data is lost.
    redis.command(&["FLUSHALL"]);
    let output = export(&[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("no sessions to export"), "{said}");
    assert_eq!((read(), names()), (all, 1));
}

#[test]
fn every_session_that_is_listed_can_be_removed() {
    let redis = RedisServer::start();
    let fixture = Fixture::on(&redis.url());
    let one = ServeInstance::start(&fixture, &["--namespace", "app"]);
    let ids = [
        "not-a-uuid",
        "01a1e478-f45d-7685-907d-000000000001",
        "01A1E478-F45D-7685-907D-000000000002",
        "with space",
        "-dash",
        "--store",
        "a:b",
        "",
    ];
    let key = |id: &str| format!("app:session:{id}");
    let write = || {
        ids.iter().for_each(|id| drop(redis.command(&["SET", &key(id), "no JSON"])));
        wait_until("all are listed", || {
            one.get("/v1/nodes").1["unreadable"].as_array().is_some_and(|list| list.len() == ids.len())
        });
    };
    let remove = |listed: &str| fixture.code(&["--namespace", "app", "session", "rm", "--", listed]);
    write();
    let listed = fixture.output(&["--namespace", "app", "session", "ls", "--json"]);
    for session in serde_json::from_slice::<Vec<Value>>(&listed.stdout).unwrap() {
        let id = session["id"].as_str().unwrap();
        assert_eq!(remove(id), 0, "{id:?}");
        assert_eq!(redis.command(&["EXISTS", &key(id)]), RedisReply::Int(0), "{id:?}");
    }
    write();
    // By key, as listed by `status` and the API.
    let listed = fixture.output(&["--namespace", "app", "status", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["unreadable"].as_array().unwrap().len(), ids.len());
    for session in listed["unreadable"].as_array().unwrap() {
        assert_eq!(remove(session["key"].as_str().unwrap()), 0, "{session}");
    }
    wait_until("no session is unreadable", || one.get("/v1/nodes").1["unreadable"] == json!([]));
    // Without `--`, and in another notation.
    redis.command(&["MSET", &key("-dash"), "{}", &key(ids[1]), "{}"]);
    for id in ["-dash", "01A1E478F45D7685907D000000000001"] {
        assert_eq!(fixture.code(&["--namespace", "app", "session", "rm", id]), 0, "{id}");
    }
    assert_eq!((remove(ids[1]), remove("not-a-uuid")), (1, 1), "there is none of these");
}

#[test]
fn an_import_prints_new_ids_and_refuses_placeholders() {
    let fixture = Fixture::new();
    let one = ServeInstance::start(&fixture, &[]);
    let shown = one.get(&format!("/v1/sessions/{}", one.add("http://127.0.0.1:1/"))).1;
    assert_eq!(shown["headers"]["x-key"], "***");
    let fresh = "01a1e478-f45d-7685-907d-000000000001";
    let mut copy = shown.clone();
    copy["id"] = json!(fresh);
    let import = |lines: &[Value], flags: &[&str]| {
        let mut command = fixture.tenure(&[&["session", "import"], flags].concat());
        command.stderr(Stdio::piped());
        let output = with_input(command, &lines.iter().map(|line| format!("{line}\n")).collect::<String>());
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let with_headers = |headers: Value| json!({"url": "http://127.0.0.1:1/", "headers": headers});
    // The API's output is not an export.
    let lines = [
        copy,
        with_headers(json!({"a": "b", "X-Key": "***"})),
        json!({"url": "http://me:***@127.0.0.1:1/"}),
        with_headers(json!({"a": "b"})),
    ];
    let (code, printed, said) = import(&lines, &[]);
    assert_eq!((code, printed.lines().count()), (Some(1), 1), "{printed} {said}");
    for expected in ["line 1: session 01a1e478", "line 2: the header `x-key` is `***`", "line 3: the password of `url`"]
    {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert!(!said.contains("line 4"), "{said}");
    assert_eq!(one.get(&format!("/v1/sessions/{fresh}")).0, 404);
    let new = printed.trim();
    wait_until("the new one is known", || one.get(&format!("/v1/sessions/{new}")).0 == 200);
    // The same sessions again are not new.
    let exported = fixture.output(&["session", "export"]).stdout;
    let mut lines: Vec<Value> =
        exported.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    lines.push(json!({"id": fresh, "url": "http://127.0.0.1:1/"}));
    let (code, printed, _) = import(&lines, &["--json"]);
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((code, printed), (Some(0), json!({"there": 3, "refused": 0, "created": [fresh]})));
    let (code, printed, _) = import(&lines, &[]);
    assert_eq!((code, printed.as_str()), (Some(0), ""));
}

#[test]
fn a_briefly_paused_session_resumes_at_once() {
    let (server, fixture, probe) = (WebServer::start(), Fixture::new(), LagProbe::start());
    let one = ServeInstance::start(&fixture, &[]);
    let path = format!("/v1/sessions/{}", one.add(&server.url("/")));
    wait_until("the session is polled", || polling_instances(&server, 1) == Some(1));
    let begun = Instant::now();
    for _ in 0..5 {
        for paused in [true, false] {
            assert_eq!(one.patch(&path, &json!({"isPaused": paused})), 200);
        }
        let (visits, again) = (server.requests().len(), Instant::now());
        wait_until("polling continues", || server.requests().len() > visits);
        assert!(again.elapsed() < Duration::from_millis(INTERVAL_MS * 2) || probe.lag() > MAX_LATENESS, "{again:?}");
    }
    // Each pause may cost the slot in which it happens.
    assert!(missed_slots(server.requests(), begun) <= 5 || probe.lag() > MAX_LATENESS);
    assert_polled_once(server.requests());
}

#[test]
fn the_release_of_a_session_has_a_reason() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let one = ServeInstance::start(&fixture, &[]);
    let path = format!("/v1/sessions/{}", one.add(&server.url("/")));
    let is_held = || one.get("/v1/nodes").1.to_string().contains("\"state\":\"owned\"");
    wait_until("the session is held", is_held);
    let told = std::thread::scope(|scope| {
        let reading = scope.spawn(|| one.events_until("/v1/events", |event| event["reason"] == "removed"));
        wait_until("the stream is open", || {
            web::request(&one.address, "GET", "/metrics", &[], "").unwrap().1.contains("tenure_streams_open 1")
        });
        assert_eq!(one.patch(&path, &json!({"isPaused": true})), 200);
        wait_until("the session is released", || !is_held());
        assert_eq!(one.patch(&path, &json!({"isPaused": false})), 200);
        wait_until("the session is held again", is_held);
        assert_eq!(one.ask("DELETE", &path, "").0, 204);
        reading.join().unwrap()
    });
    let released = told.iter().filter(|event| event["event"] == "lease.released");
    let reasons: Vec<&str> = released.filter_map(|event| event["reason"].as_str()).collect();
    assert_eq!(reasons, ["paused", "removed"], "{told:?}");
}

/// Each interval has its own slots, which begin with the next due time.
#[test]
fn constant_interval_changes_repeat_no_slot() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let one = ServeInstance::start(&fixture, &[]);
    let path = format!("/v1/sessions/{}", one.add(&server.url("/")));
    wait_until("the session is polled", || polling_instances(&server, 1) == Some(1));
    for n in 0..60 {
        let interval = ["100ms", "130ms", "170ms", "1s"][n % 4];
        assert_eq!(one.patch(&path, &json!({"interval": interval})), 200);
        std::thread::sleep(Duration::from_millis(30));
    }
    assert_polled_once(server.requests());
}

#[test]
fn a_deleted_session_has_no_last_result() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let one = ServeInstance::start(&fixture, &[]);
    let id = one.add(&server.url("/"));
    wait_until("the session has a result", || fixture.code(&["session", "result", &id]) == 0);
    assert_eq!(fixture.code(&["session", "rm", &id]), 0);
    assert_eq!(fixture.code(&["session", "result", &id]), 1);
}

#[test]
fn a_line_that_is_not_text_is_refused_and_the_next_is_imported() {
    let fixture = Fixture::new();
    let file = fixture.path("mixed.jsonl");
    std::fs::write(&file, b"\xff\xfe\n{\"url\":\"http://127.0.0.1:1/\"}\n").unwrap();
    let mut command = fixture.tenure(&["session", "import"]);
    let output = command.stdin(std::fs::File::open(&file).unwrap()).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.lines().count()), (Some(1), 1), "{output:?}");
}
