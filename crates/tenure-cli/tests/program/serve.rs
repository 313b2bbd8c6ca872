//! `tenure serve`: fleets of real processes that poll a web server which writes down who asks, judged by that.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tenure_testbed::web::{self, Visit, WebServer};
use tenure_testbed::{Probe, RedisServer, Reply};

use crate::stage::{Place, until, with_input};

const INTERVAL_MS: u64 = 500;

/// A machine that is later than this may leave out slots.
const PUNCTUAL: Duration = Duration::from_millis(200);

/// One instance.
struct Instance {
    process: Child,
    address: String,
}

impl Instance {
    fn start(place: &Place, flags: &[&str]) -> Self {
        let instance = Self::spawn(place, flags);
        until("it is ready", || instance.get("/readyz").0 == 200);
        instance
    }

    /// Without waiting until it is ready.
    fn spawn(place: &Place, flags: &[&str]) -> Self {
        let listen: &[&str] = if flags.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        let arguments = [&["serve", "--ttl", "2s", "--discover-every", "500ms"], listen, flags].concat();
        let mut process = place.tenure(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let address =
            lines.find_map(|line| Some(line.unwrap().split_once("API at http://")?.1.split_once(';')?.0.to_owned()));
        // It must not wait for somebody to read.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, address: address.unwrap() }
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, body) = web::ask(&self.address, method, path, &[], body).unwrap_or((0, String::new()));
        (status, serde_json::from_str(&body).unwrap_or(Value::Null))
    }

    fn get(&self, path: &str) -> (u16, Value) {
        self.ask("GET", path, "")
    }

    /// So many events of a stream: their ids and what they say.
    fn events(&self, path: &str, headers: &[&str], count: usize) -> Vec<(String, Value)> {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: tests\r\n{headers}\r\n").unwrap();
        let (mut events, mut id) = (Vec::new(), String::new());
        for line in BufReader::new(stream).lines() {
            let line = line.unwrap();
            if let Some(named) = line.strip_prefix("id: ") {
                named.clone_into(&mut id);
            }
            if let Some(data) = line.strip_prefix("data: ") {
                events.push((std::mem::take(&mut id), serde_json::from_str(data).unwrap()));
            }
            if events.len() == count {
                break;
            }
        }
        events
    }

    fn add(&self, url: &str) -> String {
        let request = json!({"url": url, "interval": format!("{INTERVAL_MS}ms"), "headers": {"x-key": "secret"}});
        let (status, session) = self.ask("POST", "/v1/sessions", &request.to_string());
        assert_eq!(status, 201, "{session}");
        session["id"].as_str().unwrap().to_owned()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Waits for its end, and returns its status.
    fn ends(&mut self) -> Option<i32> {
        until("it ends", || self.process.try_wait().unwrap().is_some());
        self.process.wait().unwrap().code()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The visits of each session, in order of the slots that they were due in.
fn by_session(visits: Vec<Visit>) -> BTreeMap<String, Vec<Visit>> {
    let mut sessions: BTreeMap<String, Vec<Visit>> = BTreeMap::new();
    for visit in visits {
        sessions.entry(visit.headers["tenure-target"].clone()).or_default().push(visit);
    }
    sessions
}

fn number(visit: &Visit, header: &str) -> u64 {
    visit.headers[header].parse().unwrap()
}

/// No slot twice, no two at once, no token back.
#[track_caller]
fn is_right(visits: Vec<Visit>) {
    for (session, visits) in by_session(visits) {
        for pair in visits.windows(2) {
            assert!(
                number(&pair[0], "tenure-due") < number(&pair[1], "tenure-due"),
                "{session} twice for a slot: {pair:?}"
            );
            assert!(
                number(&pair[0], "tenure-token") <= number(&pair[1], "tenure-token"),
                "a token went back: {pair:?}"
            );
            let met = pair[0].ended.is_none_or(|ended| ended > pair[1].began);
            assert!(!met, "{session} is polled twice at once: {pair:?}");
        }
    }
}

/// How many slots of each session were left out since then.
fn left_out(visits: Vec<Visit>, since: Instant) -> u64 {
    let visits = visits.into_iter().filter(|visit| visit.began > since).collect();
    let slots = |pair: &[Visit]| (number(&pair[1], "tenure-due") - number(&pair[0], "tenure-due")) / INTERVAL_MS - 1;
    by_session(visits).values().flat_map(|visits| visits.windows(2)).map(slots).sum()
}

fn pollers(server: &WebServer, within: Duration) -> BTreeMap<String, String> {
    let recent = server.visits().into_iter().filter(|visit| visit.began.elapsed() < within);
    recent.map(|visit| (visit.headers["tenure-target"].clone(), visit.headers["tenure-instance"].clone())).collect()
}

/// How many different instances poll so many sessions now.
fn shared_by(server: &WebServer, sessions: usize) -> Option<usize> {
    let pollers = pollers(server, Duration::from_millis(INTERVAL_MS * 3));
    let mut instances: Vec<&String> = pollers.values().collect();
    instances.sort_unstable();
    instances.dedup();
    (pollers.len() == sessions).then_some(instances.len())
}

fn a_fleet_polls_every_session_once(place: &Place) {
    let (server, probe) = (WebServer::start(), Probe::start());
    let one = Instance::start(place, &[]);
    let ids: Vec<String> = (0..6).map(|n| one.add(&server.url(&format!("/{n}")))).collect();
    until("all are polled", || shared_by(&server, 6) == Some(1));
    let (mut two, three) = (Instance::start(place, &[]), Instance::start(place, &[]));
    until("all take part", || shared_by(&server, 6) == Some(3));
    let settled = Instant::now();

    // Made through one, polled by another, read from the third.
    let (status, state) = three.get(&format!("/v1/sessions/{}/state", ids[0]));
    assert_eq!(
        (status, &state["ok"], &state["sessionId"], &state["body"]),
        (200, &json!(true), &json!(ids[0]), &json!("/0"))
    );
    until("three polls are remembered", || {
        let (_, history) = two.get(&format!("/v1/sessions/{}/history?limit=3", ids[0]));
        history["results"].as_array().is_some_and(|results| results.len() == 3)
    });
    let (_, nodes) = two.get("/v1/nodes");
    let owned = |node: &Value| node["ownedSessions"].as_array().unwrap().len();
    assert_eq!(nodes["liveNodes"].as_array().unwrap().iter().map(owned).collect::<Vec<_>>(), [2, 2, 2], "{nodes}");
    let status: Value = serde_json::from_slice(&place.output(&["status", "--json"]).stdout).unwrap();
    let held = |instance: &Value| instance["sessions"].as_array().unwrap().len();
    assert_eq!(status["instances"].as_array().unwrap().iter().map(held).collect::<Vec<_>>(), [2, 2, 2], "{status}");
    assert_eq!((&status["unheld"], &status["unreadable"]), (&json!([]), &json!([])));
    assert!(server.visits().iter().all(|visit| visit.headers["x-key"] == "secret"));
    assert!(!three.get("/v1/sessions").1.to_string().contains("secret"));

    // A goodbye leaves no slot out.
    two.signal(Signal::TERM);
    assert_eq!(two.ends(), Some(0));
    until("two take part", || shared_by(&server, 6) == Some(2));
    std::thread::sleep(Duration::from_millis(INTERVAL_MS * 4));
    let left_out = left_out(server.visits(), settled);
    assert!(left_out == 0 || probe.lag() > PUNCTUAL, "{left_out} slots were left out");

    // What a dead one polled is polled again when its leases have run out.
    three.signal(Signal::KILL);
    let killed = Instant::now();
    until("one polls all", || {
        let last = pollers(&server, killed.elapsed().min(Duration::from_millis(INTERVAL_MS * 3)));
        last.len() == 6 && shared_by(&server, 6) == Some(1)
    });

    // Paused, resumed elsewhere, deleted.
    let path = format!("/v1/sessions/{}", ids[0]);
    let is_polled = || pollers(&server, Duration::from_millis(INTERVAL_MS * 4)).contains_key(&ids[0]);
    assert_eq!(one.ask("PATCH", &path, r#"{"isPaused": true}"#).0, 200);
    until("it is left alone", || !is_polled());
    let moved = json!({"isPaused": false, "url": server.url("/moved")}).to_string();
    assert_eq!(one.ask("PATCH", &path, &moved).0, 200);
    until("it is polled where it is now", || server.visits().last().is_some_and(|visit| visit.path == "/moved"));
    assert_eq!(one.ask("DELETE", &path, "").0, 204);
    assert_eq!(one.get(&path).0, 404);
    until("it is left alone", || !is_polled());
    assert_eq!(one.ask("DELETE", &path, "").0, 404);
    is_right(server.visits());
}

#[test]
fn a_fleet_on_redis_polls_every_session_once() {
    let server = RedisServer::start();
    a_fleet_polls_every_session_once(&Place::on(&server.url()));
}

#[test]
fn a_fleet_on_a_file_polls_every_session_once() {
    a_fleet_polls_every_session_once(&Place::new());
}

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
fn targets_that_misbehave_hold_up_nobody_and_lead_nowhere() {
    let server = WebServer::answering(|path| match path {
        "/never" => (Duration::from_secs(3), web::ok("late")),
        "/metadata" => (
            Duration::ZERO,
            "HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n".to_owned(),
        ),
        "/round" => (Duration::ZERO, "HTTP/1.1 302 Found\r\nlocation: /round\r\ncontent-length: 0\r\n\r\n".to_owned()),
        "/flood" => (Duration::ZERO, format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(100_000))),
        path => (Duration::ZERO, web::ok(path)),
    });
    let place = Place::new();
    let one = Instance::start(&place, &[]);
    let add = |path: &str| {
        let request = json!({"url": server.url(path), "interval": "250ms", "timeout": "300ms"}).to_string();
        one.ask("POST", "/v1/sessions", &request).1["id"].as_str().unwrap().to_owned()
    };
    let error = |id: &str, says: &str| {
        until(says, || {
            let state = one.get(&format!("/v1/sessions/{id}/state")).1;
            state["error"].as_str().is_some_and(|error| error.contains(says))
        });
    };
    let (never, metadata, round, flood) = (add("/never"), add("/metadata"), add("/round"), add("/flood"));
    error(&never, "no whole answer within 300ms");
    error(&metadata, "169.254.169.254 is not polled");
    error(&round, "more than 5 times");
    until("the flood is cut", || {
        let state = one.get(&format!("/v1/sessions/{flood}/state")).1;
        state["truncated"] == json!(true) && state["body"].as_str().is_some_and(|body| body.len() == 4_096)
    });
    let well = add("/well");
    until("others are polled", || one.get(&format!("/v1/sessions/{well}/state")).1["ok"] == json!(true));
}

#[test]
fn results_are_streamed_and_a_reader_goes_on_where_it_left_off() {
    let (server, place) = (WebServer::start(), Place::new());
    let (one, two) = (Instance::start(&place, &[]), Instance::start(&place, &[]));
    let id = one.add(&server.url("/"));
    let path = format!("/v1/sessions/{id}/events");
    until("everybody knows of it", || two.get(&format!("/v1/sessions/{id}/state")).0 == 200);
    let first = two.events(&path, &[], 3);
    assert!(first.windows(2).all(|pair| pair[0].1["dueAt"].as_str() < pair[1].1["dueAt"].as_str()), "{first:?}");
    let seen = format!("last-event-id: {}", first[0].0);
    assert_eq!(one.events(&path, &[&seen], 2), first[1..], "from another instance, what came after that one");
    assert_eq!(web::ask(&one.address, "GET", &path, &["last-event-id: yesterday"], "").unwrap().0, 400);
}

#[test]
fn the_headers_of_a_session_are_told_to_no_other_place() {
    let other = WebServer::start();
    let elsewhere = format!("HTTP/1.1 302 Found\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n", other.url("/there"));
    let server = WebServer::answering(move |_| (Duration::ZERO, elsewhere.clone()));
    let place = Place::new();
    let one = Instance::start(&place, &[]);
    one.add(&server.url("/"));
    until("it is followed", || !other.visits().is_empty());
    assert!(server.visits().iter().all(|visit| visit.headers["x-key"] == "secret"));
    assert!(other.visits().iter().all(|visit| !visit.headers.contains_key("x-key")), "{:?}", other.visits());
}

#[test]
fn a_name_is_polled_if_the_address_behind_it_may_be() {
    let server = WebServer::start();
    let named = server.url("/").replace("127.0.0.1", "localhost");
    let state = |place: &Place, flags: &[&str]| {
        let one = Instance::start(place, &[&["--listen", "0.0.0.0:0", "--insecure"], flags].concat());
        let id = one.add(&named);
        let mut state = Value::Null;
        until("it is polled", || {
            state = one.get(&format!("/v1/sessions/{id}/state")).1;
            state["sessionId"] == json!(id)
        });
        state
    };
    let refused = state(&Place::new(), &[]);
    assert!(refused["error"].as_str().is_some_and(|error| error.contains("--allow-targets")), "{refused}");
    assert!(server.visits().is_empty());
    let allowed = state(&Place::new(), &["--allow-targets", "127.0.0.0/8,::1/128"]);
    assert_eq!(allowed["ok"], json!(true), "{allowed}");
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

/// Whoever is started before its store waits for it.
#[test]
fn started_before_its_store_it_becomes_ready_when_that_is_there() {
    let redis = RedisServer::start();
    let place = Place::on(&redis.url());
    redis.kill();
    let one = Instance::spawn(&place, &[]);
    until("it lives", || one.get("/healthz").0 == 200);
    assert_eq!(one.get("/readyz").0, 503);
    assert_eq!(one.ask("POST", "/v1/sessions", r#"{"url": "http://127.0.0.1:1"}"#).0, 503);
    redis.start_again();
    until("it is ready", || one.get("/readyz").0 == 200);
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
    assert!(print(&place, &["ls"]).contains("every 9s http://127.0.0.1:1/a the first"));
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
