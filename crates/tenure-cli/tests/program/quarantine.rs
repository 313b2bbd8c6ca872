//! Quarantines as seen by an operator: messages, causes, and how to end one by hand.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_testbed::web::WebServer;
use tenure_testbed::{LagProbe, RedisReply, RedisServer};

use crate::harness::{Fixture, busy_script, wait_until};
use crate::serve::ServeInstance;

/// The advice on a server that is too young.
const ADVICE: &str =
    "if nothing else uses this server: --bootstrap (in a program: TenureBuilder::bootstrap), or tenure reopen";

fn status(fixture: &Fixture) -> Value {
    let output = fixture.plain(&["--log-level", "off", "status", "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_quarantine_on_a_new_server_is_explained() {
    let redis = RedisServer::start();
    let fixture = Fixture::on(&redis.url());
    let mut serve = fixture.plain(&["serve", "--listen", "127.0.0.1:0"]);
    let mut serve = serve.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(serve.stderr.take().unwrap()).lines().map_while(Result::ok);
    let said = lines.find(|line| line.contains("API at")).unwrap();
    let _ = serve.kill();
    let _ = serve.wait();
    assert!(said.contains("quarantine: ") && said.contains(ADVICE), "{said}");

    let one = ServeInstance::of(&mut fixture.plain(&["serve", "--listen", "127.0.0.1:0"]));
    wait_until("the instance is ready", || one.get("/readyz").0 == 200);
    let quarantine = one.get("/readyz").1["quarantine"].clone();
    assert!(quarantine["remainingMs"].as_u64() > Some(0), "{quarantine}");
    assert!(quarantine["reason"].as_str().unwrap().ends_with(ADVICE), "{quarantine}");

    let output = fixture.plain(&["--log-level", "off", "status"]).output().unwrap();
    let first = String::from_utf8(output.stdout).unwrap();
    assert!(first.starts_with("quarantine: ") && first.lines().next().unwrap().ends_with(ADVICE), "{first}");
    assert!(status(&fixture)["quarantine"]["remainingMs"].as_u64() > Some(0));

    let run = format!("{} run role --wait 2s -- true", env!("CARGO_BIN_EXE_tenure"));
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &run, "/dev/null"]).env("TENURE_STORE", redis.url()).stdin(Stdio::null());
    let output = terminal.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("quarantine: ") && said.contains(ADVICE), "{said}");
    assert_eq!(output.status.code(), Some(69), "{said}");

    // `--bootstrap` ends it: only the age of the server was in doubt. It has no effect while instances are connected.
    drop(one);
    assert_eq!(fixture.code(&["run", "role", "--no-wait", "--", "true"]), 0);
    assert_eq!(status(&fixture)["quarantine"], Value::Null);
}

#[test]
fn read_only_commands_neither_start_nor_extend_a_quarantine() {
    let redis = RedisServer::start();
    let fixture = Fixture::on(&redis.url());
    let look = || {
        for arguments in
            [&["status"][..], &["leader", "role"], &["session", "ls"], &["revoke", "x"], &["reopen", "--yes"]]
        {
            fixture.plain(&[&["--log-level", "off"], arguments].concat()).output().unwrap();
        }
        let mut watch = fixture.plain(&["watch"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let _ = watch.kill();
        let _ = watch.wait();
    };
    look();
    assert_eq!(redis.command(&["EXISTS", "tenure:ns"]), RedisReply::Int(0), "reading writes nothing");
    let mut holds = fixture.run("role", &["--ttl", "3s"], &busy_script("log"));
    fixture.lines("log.begun", 1);
    look();
    assert!(redis.command(&["HGET", "tenure:ns", "ttls"]).as_text().starts_with(" 3000:"), "reading adds no ttl");
    redis.command(&["FLUSHALL"]);
    fixture.plain(&["--log-level", "off", "status"]).output().unwrap();
    holds.signal(rustix::process::Signal::KILL);
    holds.wait_exit();
}

/// A command with a long ttl, or one with the default besides short ones, used to put the namespace into quarantine for
/// that long after the next restart.
#[test]
fn a_fleet_with_short_leases_recovers_within_two_ttls() {
    const TTL: Duration = Duration::from_secs(3);
    let redis = RedisServer::builder().append_only("everysec").start();
    let (fixture, server, probe) = (Fixture::on(&redis.url()), WebServer::start(), LagProbe::start());
    let fleet = [ServeInstance::start(&fixture, &["--ttl", "3s"]), ServeInstance::start(&fixture, &["--ttl", "3s"])];
    fleet[0].add(&server.url("/before"));
    wait_until("the session is polled", || !server.requests().is_empty());
    assert_eq!(fixture.code(&["run", "nightly", "--ttl", "24h", "--", "true"]), 0);
    assert_eq!(fixture.code(&["run", "hourly", "--", "true"]), 0, "with the default ttl");
    let mut killed = fixture.run("killed", &["--ttl", "6s"], &busy_script("log"));
    fixture.lines("log.begun", 1);
    killed.signal(rustix::process::Signal::KILL);
    killed.wait_exit();
    // Its lease expires, and its entry in the record of ttls lapses an eighth of its ttl later.
    std::thread::sleep(Duration::from_millis(6_000 + 1_000));

    // The longest pause between two connection attempts, a quarantine of one ttl, and the claims after it.
    let bound = Duration::from_secs(2) + TTL * 2;
    for (path, flush) in [("/restarted", false), ("/flushed", true)] {
        if flush {
            redis.command(&["FLUSHALL"]);
        } else {
            redis.kill();
            redis.restart();
        }
        let lost = Instant::now();
        let session = json!({"url": server.url(path), "interval": "500ms"}).to_string();
        let made = || fleet[0].ask("POST", "/v1/sessions", &session).0 == 201;
        wait_until("a session is created", made);
        wait_until("the session is polled", || server.requests().iter().any(|visit| visit.path == path));
        probe.assert_within(lost.elapsed(), bound, "a session is polled again");
    }
}

#[test]
fn an_operator_ends_a_quarantine_after_seeing_who_held_what() {
    let redis = RedisServer::builder().append_only("always").start();
    let fixture = Fixture::on(&redis.url());
    assert_eq!(fixture.code(&["reopen", "--yes"]), 0, "there is no quarantine");
    let mut holds =
        fixture.start(&["run", "role", "--name", "me", "--ttl", "60s", "--", "sh", "-c", &busy_script("log")]);
    fixture.lines("log.begun", 1);
    // The record of a term is written a moment later.
    wait_until("the term is recorded", || redis.command(&["XLEN", "tenure:terms"]).as_int() == 1);
    holds.signal(rustix::process::Signal::KILL);
    holds.wait_exit();
    redis.kill();
    redis.restart();
    assert_eq!(fixture.code(&["run", "other", "--no-wait", "--", "true"]), 69, "the server was restarted");

    let unconfirmed = fixture.output(&["reopen"]);
    assert_eq!(unconfirmed.status.code(), Some(64), "{unconfirmed:?}");
    let shown = String::from_utf8(unconfirmed.stdout).unwrap();
    assert!(shown.contains("the server was restarted"), "{shown}");
    assert!(shown.lines().any(|line| line.contains("leader:role  me-")), "the last known holder is shown: {shown}");
    assert_eq!(fixture.code(&["run", "other", "--no-wait", "--", "true"]), 69, "the quarantine continues");

    let output = fixture.output(&["reopen", "--yes", "--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &answer["reopened"]), (Some(0), &Value::Bool(true)), "{answer}");
    assert_eq!(answer["holders"][0]["lease"], "leader:role", "{answer}");
    assert!(answer["holders"][0]["holder"].as_str().unwrap().starts_with("me-"), "{answer}");
    assert_eq!(fixture.code(&["run", "other", "--no-wait", "--", "true"]), 0);
}
