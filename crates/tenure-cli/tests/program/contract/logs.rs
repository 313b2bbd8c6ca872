//! Lines on stderr.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tenure_testbed::web::WebServer;
use tenure_testbed::{CertificateAuthority, RedisServer};

use crate::harness::{Fixture, wait_until};

/// An instance whose stderr goes to a file; killed when dropped.
struct Logged {
    process: Child,
}

impl Logged {
    fn start(fixture: &Fixture, file: &str, flags: &[&str]) -> Self {
        let log = std::fs::File::create(fixture.path(file)).unwrap();
        let arguments = [&["serve", "--bootstrap", "--listen", "127.0.0.1:0"], flags].concat();
        let mut command = fixture.plain(&arguments);
        Self { process: command.stdout(Stdio::null()).stderr(log).spawn().unwrap() }
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        wait_until("the instance exits", || self.process.try_wait().unwrap().is_some());
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn lines(fixture: &Fixture, file: &str) -> Vec<Value> {
    let text = fixture.read(file);
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("not JSON: {error}: {line}"));
    text.lines().map(parse).collect()
}

fn named<'a>(lines: &'a [Value], event: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["event"] == event).collect()
}

#[test]
fn every_line_of_serve_is_json_with_four_fields_of_one_instance() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let one = Logged::start(&fixture, "log", &["--ttl", "2s"]);
    assert_eq!(fixture.code(&["session", "add", "--url", &server.url("/"), "--interval", "200ms"]), 0);
    wait_until("the session is polled", || server.requests().len() > 5);
    one.stop();
    let lines = lines(&fixture, "log");
    let ids: std::collections::BTreeSet<String> = lines.iter().map(|line| line["instance_id"].to_string()).collect();
    assert!(ids.len() == 1 && !ids.contains("null"), "{ids:?}");
    for line in &lines {
        for field in ["timestamp", "level", "event", "instance_id"] {
            assert!(line[field].is_string(), "no {field}: {line}");
        }
        // RFC 3339 with microseconds.
        let timestamp = line["timestamp"].as_str().unwrap();
        assert!(timestamp.len() == 27 && timestamp.ends_with('Z'), "{timestamp}");
    }
    assert_eq!(lines.iter().find(|line| line["event"] != "program.notice").unwrap()["event"], "store.attached");
    let acquired = lines.iter().find(|line| line["event"] == "lease.acquired" && line["endpoint_id"].is_string());
    let acquired = acquired.unwrap();
    assert!(acquired["token"].is_u64() && acquired["ttl_ms"] == 2_000 && acquired["level"] == "info", "{acquired}");
    let released = lines.iter().find(|line| line["event"] == "lease.released" && line["endpoint_id"].is_string());
    assert_eq!(released.unwrap()["reason"], "shutdown");
    for quiet in ["lease.renewed", "poll.started", "poll.finished"] {
        assert!(named(&lines, quiet).is_empty(), "{quiet} is not a change");
    }
}

/// FR-020: renewals are logged, with and without success.
#[test]
fn renewals_are_logged_at_debug_and_failures_at_info() {
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    assert_eq!(fixture.code(&["session", "add", "--url", "http://127.0.0.1:1/"]), 0);
    let _debug = Logged::start(&fixture, "debug", &["--ttl", "2s", "--log-level", "debug"]);
    wait_until("a renewal is logged", || !named(&lines_so_far(&fixture, "debug"), "lease.renewed").is_empty());
    server.kill();
    wait_until("a failure is logged", || !named(&lines_so_far(&fixture, "debug"), "lease.renew_failed").is_empty());
    wait_until("the loss is logged", || {
        let lines = lines_so_far(&fixture, "debug");
        let lost = named(&lines, "lease.lost");
        lost.iter().any(|line| line["reason"] == "unreachable" && line["level"] == "warn")
    });
}

/// Reads the log so far; its last line may be incomplete.
fn lines_so_far(fixture: &Fixture, file: &str) -> Vec<Value> {
    fixture.read(file).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn an_outage_logs_few_lines_and_a_quiet_minute_almost_none() {
    const SESSIONS: usize = 300;
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    let sessions: String =
        (0..SESSIONS).map(|n| format!("{{\"url\": \"http://127.0.0.1:1/{n}\", \"interval\": \"1h\"}}\n")).collect();
    let output = crate::harness::with_input(fixture.tenure(&["session", "import"]), &sessions);
    assert!(output.status.success(), "{output:?}");
    let _one = Logged::start(&fixture, "log", &["--ttl", "3s"]);
    wait_until("all sessions are held", || named(&lines_so_far(&fixture, "log"), "lease.acquired").len() > SESSIONS);
    // Some renewals of each lease.
    std::thread::sleep(Duration::from_secs(5));
    let quiet = fixture.read("log").lines().count();
    let begun = Instant::now();
    std::thread::sleep(Duration::from_secs(6));
    let after = fixture.read("log").lines().count();
    assert!(after - quiet <= 20, "{} lines in {:?} in which nothing changed", after - quiet, begun.elapsed());
    server.kill();
    let folded = |lines: &[Value]| {
        let counts =
            lines.iter().filter(|line| line["event"] == "lease.lost").map(|line| line["count"].as_u64().unwrap_or(1));
        counts.sum::<u64>()
    };
    wait_until("all losses are in the log", || folded(&lines_so_far(&fixture, "log")) >= SESSIONS as u64);
    let lines = fixture.read("log").lines().count() - after;
    assert!(lines <= 100, "{lines} lines for one outage");
}

#[test]
fn a_move_for_balance_is_a_rebalance() {
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    for n in 0..4 {
        assert_eq!(fixture.code(&["session", "add", "--url", &format!("http://127.0.0.1:1/{n}")]), 0);
    }
    let _one = Logged::start(&fixture, "one", &["--ttl", "3s"]);
    wait_until("all sessions are held", || named(&lines_so_far(&fixture, "one"), "lease.acquired").len() >= 4);
    let _two = Logged::start(&fixture, "two", &["--ttl", "3s"]);
    wait_until("two sessions have moved", || {
        let lines = lines_so_far(&fixture, "one");
        let released = named(&lines, "lease.released");
        released.iter().filter(|line| line["reason"] == "rebalance" && line["endpoint_id"].is_string()).count() == 2
    });
}

#[test]
fn serve_warns_about_a_server_without_persistence() {
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    let _one = Logged::start(&fixture, "log", &[]);
    wait_until("the instance warns", || {
        let lines = lines_so_far(&fixture, "log");
        lines.iter().any(|line| {
            line["level"] == "warn" && line["message"].as_str().is_some_and(|text| text.contains("session export"))
        })
    });
}

#[test]
fn other_commands_write_json_too() {
    let fixture = Fixture::new();
    let authority = CertificateAuthority::new();
    for arguments in [
        &["leader", "nothing"][..],
        &["run"],
        &["run", "role", "--ttl", "soon", "--", "true"],
        &["--store", "redis://127.0.0.1:1", "status"],
        &["--store", &format!("rediss://127.0.0.1:1?ca={}", authority.file().display()), "status"],
        &["session", "rm", "0192f0c1-2e4e-7f00-8000-000000000001"],
        &["--config", "/no/such/file", "status"],
    ] {
        let output = fixture.output(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!said.is_empty(), "{arguments:?}");
        for line in said.lines() {
            let line: Value =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {line}"));
            let has_all = ["timestamp", "level", "event", "instance_id"].iter().all(|field| line.get(field).is_some());
            assert!(has_all && line["message"].is_string(), "{line}");
        }
        let output = fixture.output(&[&["--log", "text"], arguments].concat());
        assert!(!output.stderr.starts_with(b"{"), "{arguments:?}: {output:?}");
    }
}

#[test]
fn the_log_level_holds_for_notices_and_not_for_the_reason_of_a_failure() {
    let fixture = Fixture::new();
    let said = |level: &str, arguments: &[&str]| {
        let output = fixture.plain(&[&["--log-level", level], arguments].concat()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let memory: &[&str] = &["--store", "memory:", "run", "role", "--", "true"];
    for (level, has_note, has_warning) in [
        ("debug", true, true),
        ("info", true, true),
        ("warn", false, true),
        ("error", false, false),
        ("off", false, false),
    ] {
        let (code, stderr) = said(level, &["status"]);
        assert_eq!((code, stderr.contains("nothing has run on it yet")), (Some(0), has_note), "{level}: {stderr}");
        let (code, stderr) = said(level, memory);
        assert_eq!((code, stderr.contains("limited to this process")), (Some(0), has_warning), "{level}: {stderr}");
        for (arguments, status, reason) in [
            (&["leader", "nothing"][..], 1, "nothing has no leader"),
            (&["session", "pause", "0192f0c1-2e4e-7f00-8000-000000000001"], 1, "no such session"),
            (&["step-down", "nothing"], 1, "nothing has no leader"),
            (&["--store", "redis://127.0.0.1:1", "status"], 69, "127.0.0.1:1"),
            (&["run", "role", "--", "/no/such/command"], 127, "/no/such/command"),
        ] {
            // Create the file first, so that there is no notice about a missing one.
            let fixture = Fixture::new();
            assert_eq!(fixture.code(&["run", "role", "--", "true"]), 0);
            let output = fixture.plain(&[&["--bootstrap", "--log-level", level], arguments].concat()).output().unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(status), "{level} {arguments:?}: {stderr}");
            assert!(stderr.contains(reason), "{level} {arguments:?}: {stderr}");
            if level == "off" {
                assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
            }
        }
    }
    // `off` applies to `serve`, too.
    let quiet = Logged::start(&fixture, "quiet", &["--log-level", "off"]);
    wait_until("the instance runs", || fixture.code(&["leader", "janitor"]) == 0);
    quiet.stop();
    assert_eq!(fixture.read("quiet"), "");
}
