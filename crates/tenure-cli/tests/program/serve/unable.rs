//! Instances that cannot poll, and targets that would exhaust them.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

use super::*;

/// Starts a slow target, so that polls overlap.
fn slow_server() -> WebServer {
    let answer = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
    WebServer::with_handler(move |_| (Duration::from_secs(2), answer.to_owned()))
}

impl ServeInstance {
    fn files(&self) -> Vec<(u64, String)> {
        let folder = format!("/proc/{}/fd", self.process.id());
        let open = fs::read_dir(folder).unwrap().filter_map(Result::ok);
        open.filter_map(|entry| {
            let name = entry.file_name().to_str()?.parse().ok()?;
            Some((name, fs::read_link(entry.path()).ok()?.to_str()?.to_owned()))
        })
        .collect()
    }

    fn limit_files(&self, limit: Rlimit) -> Rlimit {
        prlimit(Some(Pid::from_child(&self.process)), Resource::Nofile, limit).unwrap()
    }

    /// Limits the instance to the files it has open; it can reopen those of its reserve.
    fn run_out_of_files(&self) -> Rlimit {
        let kept_back = self.files().into_iter().filter(|(number, file)| *number > 2 && file == "/dev/null");
        let last = kept_back.map(|(number, _)| number).max().unwrap();
        self.limit_files(Rlimit { current: Some(last + 1), maximum: getrlimit(Resource::Nofile).maximum })
    }

    /// Returns the status of an instance and its number of sessions, as seen by this one.
    fn status_of(&self, other: &ServeInstance) -> Option<(String, usize)> {
        let id = other.get("/v1/nodes").1["thisInstanceId"].as_str()?.to_owned();
        self.status_of_id(&id)
    }

    fn status_of_id(&self, id: &str) -> Option<(String, usize)> {
        let nodes = self.get("/v1/nodes").1;
        let node = nodes["liveNodes"].as_array()?.iter().find(|node| node["instanceId"] == id)?.clone();
        Some((node["status"].as_str()?.to_owned(), node["ownedSessions"].as_array()?.len()))
    }
}

/// Issue point 13.
#[test]
fn an_instance_without_files_hands_over_its_sessions_and_recovers() {
    let redis = RedisServer::start();
    let (server, fixture) = (slow_server(), Fixture::on(&redis.url()));
    let (one, two) = (ServeInstance::start(&fixture, &[]), ServeInstance::start(&fixture, &[]));
    for n in 0..40 {
        let url = server.url(&format!("/{n}"));
        let request = json!({"url": url, "interval": "500ms", "timeout": "10s"});
        assert_eq!(one.ask("POST", "/v1/sessions", &request.to_string()).0, 201);
    }
    let is = |seen: Option<(String, usize)>, status: &str, held: usize| seen == Some((status.to_owned(), held));
    wait_until("both instances hold their quota", || {
        is(two.status_of(&one), "online", 20) && is(one.status_of(&two), "online", 20)
    });

    let stream = two.stream("/v1/events", &[]);
    let before = one.run_out_of_files();
    wait_until("all sessions are handed over", || {
        is(two.status_of(&one), "unable", 0) && is(two.status_of(&two), "online", 40)
    });
    assert_eq!(one.get("/healthz").0, 200, "the API of the unable instance responds");
    assert!(one.get("/readyz").1["unable"].is_string());
    let released = |events: &[(String, Value)]| events.last().is_some_and(|(_, event)| event["reason"] == "unable");
    assert_eq!(read_events(stream, released).last().unwrap().1["event"], "lease.released");

    // Now no instance is able: each keeps its sessions.
    let before_too = two.run_out_of_files();
    wait_until("the other instance is unable, too", || is(one.status_of(&two), "unable", 40));
    std::thread::sleep(TTL * 2);
    assert!(is(one.status_of(&two), "unable", 40), "{:?}", one.status_of(&two));

    one.limit_files(before);
    wait_until("the able instance holds all sessions", || {
        is(one.status_of(&one), "online", 40) && is(one.status_of(&two), "unable", 0)
    });
    two.limit_files(before_too);
    wait_until("both instances hold their quota", || {
        is(one.status_of(&one), "online", 20) && is(one.status_of(&two), "online", 20)
    });
    assert_polled_once(server.requests());
}

#[test]
fn redirects_to_new_hosts_leave_no_open_files() {
    let redis = RedisServer::start();
    let (plain, fixture) = (WebServer::start(), Fixture::on(&redis.url()));
    let elsewhere: Vec<WebServer> = (0..40).map(|_| WebServer::start()).collect();
    let urls: Vec<String> = elsewhere.iter().map(|server| server.url("/hop")).collect();
    let (next, all) = (AtomicUsize::new(0), urls.len());
    let redirects = WebServer::with_handler(move |_| {
        let to = &urls[next.fetch_add(1, Ordering::Relaxed) % all];
        (Duration::ZERO, format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n"))
    });
    let one = ServeInstance::start(&fixture, &[]);
    let id = one.add(&plain.url("/"));
    wait_until("the session is polled", || plain.requests().len() > 2);
    let before = one.files().len();
    for n in 0..4 {
        let request = json!({"url": redirects.url(&format!("/{n}")), "interval": "100ms"});
        assert_eq!(one.ask("POST", "/v1/sessions", &request.to_string()).0, 201);
    }
    wait_until("all redirects are followed", || elsewhere.iter().all(|server| !server.requests().is_empty()));
    let sockets = one.files().iter().filter(|(_, file)| file.starts_with("socket")).count();
    assert!(one.files().len() <= before + 16, "{before} files before, {} now, {sockets} sockets", one.files().len());
    let polled = plain.requests().len();
    wait_until("other sessions are polled as before", || plain.requests().len() > polled);
    assert_eq!(one.get(&format!("/v1/sessions/{id}/state")).1["ok"], true);
}

#[test]
fn the_backoff_of_a_target_moves_with_it() {
    let redis = RedisServer::start();
    let fails = "HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n";
    let (server, fixture) =
        (WebServer::with_handler(move |_| (Duration::ZERO, fails.to_owned())), Fixture::on(&redis.url()));
    let mut one = ServeInstance::start(&fixture, &[]);
    let id = one.add(&server.url("/"));
    let failures =
        |instance: &ServeInstance| instance.get(&format!("/v1/sessions/{id}/state")).1["consecutiveFailures"].as_u64();
    wait_until("the target is backed off", || failures(&one) >= Some(8));
    let two = ServeInstance::start(&fixture, &[]);
    let (before, count) = (failures(&one), server.requests().len());
    one.signal(Signal::TERM);
    assert_eq!(one.wait_exit(), Some(0));
    let handed_over = Instant::now();
    wait_until("the other instance polls it", || failures(&two) > before);
    // Without the previous backoff it would have polled five times in a row.
    let soon =
        server.requests()[count..].iter().filter(|visit| visit.began < handed_over + Duration::from_secs(2)).count();
    assert!(soon <= 1, "{soon} polls in a row");
    assert_eq!(failures(&two), before.map(|failures| failures + 1));
}
