//! `tenure serve`: fleets of real processes that poll a web server, judged by the requests which the server records.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tenure_testbed::web::{self, ReceivedRequest, WebServer};
use tenure_testbed::{LagProbe, RedisReply, RedisServer};

use crate::harness::{Fixture, wait_until, with_input};

const INTERVAL_MS: u64 = 500;

/// The ttl of leases.
const TTL: Duration = Duration::from_secs(2);

/// A machine that lags by more may miss slots.
const MAX_LATENESS: Duration = Duration::from_millis(200);

mod api;
mod attacks;
mod defects;
mod edits;
mod faults;
mod fleet;
mod openapi;
mod restarts;
mod results;
mod streams;
mod targets;
mod unable;
mod upgrades;

/// A running instance.
pub struct ServeInstance {
    process: Child,
    address: String,
}

impl ServeInstance {
    pub fn start(fixture: &Fixture, flags: &[&str]) -> Self {
        let instance = Self::spawn(fixture, flags);
        wait_until("the instance is ready", || instance.get("/readyz").0 == 200);
        instance
    }

    /// Starts an instance without waiting until it is ready.
    fn spawn(fixture: &Fixture, flags: &[&str]) -> Self {
        Self::of(&mut Self::command(fixture, flags))
    }

    fn command(fixture: &Fixture, flags: &[&str]) -> Command {
        let listen: &[&str] = if flags.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        let ttl: &[&str] = if flags.contains(&"--ttl") { &[] } else { &["--ttl", "2s"] };
        let arguments = [&["serve", "--discover-every", "500ms"], ttl, listen, flags].concat();
        fixture.tenure(&arguments)
    }

    pub fn of(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let address =
            lines.find_map(|line| Some(line.unwrap().split_once("API at http://")?.1.split_once(';')?.0.to_owned()));
        // Drain stderr, so that the instance never blocks on it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, address: address.unwrap() }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Stops the process until the returned guard is dropped.
    pub fn pause(&self) -> Paused {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::STOP).unwrap();
        Paused(pid)
    }

    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, body) = web::request(&self.address, method, path, &[], body).unwrap_or((0, String::new()));
        (status, serde_json::from_str(&body).unwrap_or(Value::Null))
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        self.ask("GET", path, "")
    }

    fn patch(&self, path: &str, change: &Value) -> u16 {
        self.ask("PATCH", path, &change.to_string()).0
    }

    /// Reads this many events of a stream: their ids and data.
    fn events(&self, path: &str, headers: &[&str], count: usize) -> Vec<(String, Value)> {
        read_events(self.stream(path, headers), |events| events.len() == count)
    }

    /// Reads the data of a stream's events, up to the last one.
    fn events_until(&self, path: &str, last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let events = read_events(self.stream(path, &[]), |events| events.last().is_some_and(|(_, event)| last(event)));
        events.into_iter().map(|(_, event)| event).collect()
    }

    fn stream(&self, path: &str, headers: &[&str]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {}\r\n{headers}\r\n", self.address).unwrap();
        stream
    }

    pub fn add(&self, url: &str) -> String {
        let request = json!({"url": url, "interval": format!("{INTERVAL_MS}ms"), "headers": {"x-key": "secret"}});
        let (status, session) = self.ask("POST", "/v1/sessions", &request.to_string());
        assert_eq!(status, 201, "{session}");
        session["id"].as_str().unwrap().to_owned()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Waits for the exit, and returns the status.
    fn wait_exit(&mut self) -> Option<i32> {
        wait_until("the instance exits", || self.process.try_wait().unwrap().is_some());
        self.process.wait().unwrap().code()
    }
}

/// A stopped instance, continued when dropped.
pub struct Paused(Pid);

impl Drop for Paused {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

impl Drop for ServeInstance {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a store, a target, and a fixture for instances.
fn on_redis() -> (RedisServer, WebServer, Fixture) {
    let redis = RedisServer::start();
    let fixture = Fixture::on(&redis.url());
    (redis, WebServer::start(), fixture)
}

/// Reads events until there are enough.
fn read_events(stream: TcpStream, enough: impl Fn(&[(String, Value)]) -> bool) -> Vec<(String, Value)> {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (mut events, mut id) = (Vec::new(), String::new());
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        if let Some(named) = line.strip_prefix("id: ") {
            named.clone_into(&mut id);
        }
        if let Some(data) = line.strip_prefix("data: ") {
            events.push((std::mem::take(&mut id), serde_json::from_str(data).unwrap()));
            if enough(&events) {
                break;
            }
        }
    }
    events
}

/// Groups requests by session, ordered by due time.
fn by_session(visits: Vec<ReceivedRequest>) -> BTreeMap<String, Vec<ReceivedRequest>> {
    let mut sessions: BTreeMap<String, Vec<ReceivedRequest>> = BTreeMap::new();
    for visit in visits {
        sessions.entry(visit.headers["tenure-target"].clone()).or_default().push(visit);
    }
    sessions
}

fn header_number(visit: &ReceivedRequest, header: &str) -> u64 {
    visit.headers[header].parse().unwrap()
}

/// Asserts that no slot is polled twice, no polls overlap and no token decreases.
#[track_caller]
fn assert_polled_once(visits: Vec<ReceivedRequest>) {
    for (session, visits) in by_session(visits) {
        for pair in visits.windows(2) {
            assert!(
                header_number(&pair[0], "tenure-due") < header_number(&pair[1], "tenure-due"),
                "{session} is polled twice in a slot: {pair:?}"
            );
            assert!(
                header_number(&pair[0], "tenure-token") <= header_number(&pair[1], "tenure-token"),
                "a token decreased: {pair:?}"
            );
            let met = pair[0].ended.is_none_or(|ended| ended > pair[1].began);
            assert!(!met, "{session} is polled twice at once: {pair:?}");
        }
    }
}

/// Returns the number of slots that were missed since then, over all sessions.
fn missed_slots(visits: Vec<ReceivedRequest>, since: Instant) -> u64 {
    let visits = visits.into_iter().filter(|visit| visit.began > since).collect();
    let slots = |pair: &[ReceivedRequest]| {
        (header_number(&pair[1], "tenure-due") - header_number(&pair[0], "tenure-due")) / INTERVAL_MS - 1
    };
    by_session(visits).values().flat_map(|visits| visits.windows(2)).map(slots).sum()
}

fn pollers(server: &WebServer, within: Duration) -> BTreeMap<String, String> {
    let recent = server.requests().into_iter().filter(|visit| visit.began.elapsed() < within);
    recent.map(|visit| (visit.headers["tenure-target"].clone(), visit.headers["tenure-instance"].clone())).collect()
}

/// Returns the number of instances that currently poll, if this many sessions are polled.
fn polling_instances(server: &WebServer, sessions: usize) -> Option<usize> {
    let pollers = pollers(server, Duration::from_millis(INTERVAL_MS * 3));
    let mut instances: Vec<&String> = pollers.values().collect();
    instances.sort_unstable();
    instances.dedup();
    (pollers.len() == sessions).then_some(instances.len())
}
