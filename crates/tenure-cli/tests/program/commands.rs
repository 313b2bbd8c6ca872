//! `leader`, `step-down` and `revoke`, on a store that other programs use.

use tenure_testbed::RedisServer;

use crate::harness::{Fixture, busy_script, wait_until};

#[test]
fn leader_prints_text_and_json() {
    let fixture = Fixture::new();
    assert_eq!(fixture.code(&["leader", "role"]), 1);
    let output = fixture.output(&["leader", "role", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(answer["leader"].is_null() && answer["role"] == "role", "{answer}");

    let _leads = fixture.start(&["run", "role", "--name", "me", "--", "sh", "-c", &busy_script("log")]);
    fixture.lines("log", 1);
    let output = fixture.output(&["leader", "role"]);
    assert!(output.status.success());
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("me-"));
    let output = fixture.output(&["leader", "role", "--json"]);
    let leader: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let token = fixture.read("log.begun").split_whitespace().next().unwrap().to_owned();
    assert_eq!(leader["token"].to_string(), token);
    assert!(leader["remainingMs"].as_u64().unwrap() <= 30_000, "{leader}");
    assert_eq!(leader["candidates"], serde_json::json!([leader["leader"]]), "{leader}");

    let _waits = fixture.start(&["run", "role", "--name", "you", "--", "true"]);
    let candidates = || {
        let output = fixture.output(&["leader", "role", "--json"]);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["candidates"].clone()
    };
    wait_until("both are listed", || candidates().as_array().unwrap().len() == 2);
    let output = fixture.output(&["leader", "role"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("waiting: you-"), "{said}");
}

#[test]
fn a_leader_steps_down_on_request() {
    let fixture = Fixture::new();
    assert_eq!(fixture.code(&["step-down", "role"]), 1, "the role has no leader");
    let mut first = fixture.run("role", &["--ttl", "3s"], &busy_script("log"));
    fixture.lines("log.begun", 1);
    let _second = fixture.run("role", &["--ttl", "3s"], &busy_script("log"));
    wait_until("the role has a leader", || fixture.output(&["leader", "role"]).status.success());
    assert_eq!(fixture.code(&["step-down", "role"]), 0);
    assert_eq!(first.wait_exit(), 76);
    fixture.lines("log.begun", 2);
}

#[test]
fn a_revoked_term_ends_the_command() {
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    assert_eq!(fixture.code(&["revoke", "role"]), 1, "the role is unheld");
    let mut first = fixture.run("role", &["--ttl", "3s"], &busy_script("log"));
    fixture.lines("log.begun", 1);
    let output = fixture.output(&["revoke", "leader:role"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(first.wait_exit(), 76);
}

#[test]
fn watch_shows_the_events_of_every_instance() {
    use std::io::{BufRead, BufReader};
    let fixture = Fixture::new();
    let mut command = fixture.tenure(&["watch", "--json"]);
    let mut watches = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watches.stdout.take().unwrap()).lines();
    let (told, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.by_ref().map_while(Result::ok) {
            let _ = told.send(serde_json::from_str::<serde_json::Value>(&line).unwrap());
        }
    });
    // Run terms until `watch` has subscribed and printed all events of one.
    let expected = [
        "election.state_changed",
        "lease.acquired",
        "election.leadership_acquired",
        "lease.released",
        "election.leadership_lost",
    ];
    let mut seen: Vec<serde_json::Value> = Vec::new();
    wait_until("all events of a term are seen", || {
        assert_eq!(fixture.code(&["run", "role", "--name", "me", "--", "true"]), 0);
        while let Ok(event) = heard.recv_timeout(std::time::Duration::from_millis(300)) {
            seen.push(event);
        }
        expected.iter().all(|name| seen.iter().any(|event| event["event"] == *name))
    });
    let _ = watches.kill();
    let _ = watches.wait();
    let of_role = seen.iter().filter(|event| !event["event"].as_str().unwrap().starts_with("fleet."));
    for event in of_role {
        assert!(event["role"] == "role" && event["instance_id"].as_str().unwrap().starts_with("me-"), "{event}");
        assert!(event["timestamp"].is_string() && event["level"].is_string(), "{event}");
        if event["event"] == "lease.released" {
            assert!(event["reason"] == "voluntary" && event["token"].is_u64(), "{event}");
        }
    }
    // `--all` prints recorded terms afterwards.
    let mut command = fixture.tenure(&["watch", "--json", "--all"]);
    let mut watches = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watches.stdout.take().unwrap()).lines();
    let first: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    let _ = watches.kill();
    let _ = watches.wait();
    assert_eq!((&first["event"], &first["role"]), (&"lease.acquired".into(), &"role".into()), "{first}");
}

#[test]
fn an_unreachable_store_exits_69() {
    let fixture = Fixture::on("redis://127.0.0.1:1");
    for arguments in [&["leader", "role"][..], &["step-down", "role"], &["revoke", "role"]] {
        let output = fixture.output(arguments);
        assert_eq!(output.status.code(), Some(69), "{output:?}");
    }
}

#[test]
fn step_down_refuses_an_unknown_candidate_and_waits_for_a_known_one() {
    let fixture = Fixture::new();
    let mut first =
        fixture.start(&["run", "role", "--name", "first", "--ttl", "3s", "--", "sh", "-c", &busy_script("log")]);
    fixture.lines("log.begun", 1);
    let _second =
        fixture.start(&["run", "role", "--name", "second", "--ttl", "3s", "--", "sh", "-c", &busy_script("log")]);
    let _third =
        fixture.start(&["run", "role", "--name", "third", "--ttl", "3s", "--", "sh", "-c", &busy_script("log")]);
    let waiting = || String::from_utf8(fixture.output(&["leader", "role"]).stderr).unwrap();
    wait_until("both candidates wait", || waiting().contains("second-") && waiting().contains("third-"));
    let output = fixture.output(&["step-down", "role", "--to", "bogus"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1)
            && said.contains(r#"no candidate matches \"bogus\""#)
            && said.contains("third-"),
        "{said}"
    );
    assert_eq!(fixture.read("log.begun").lines().count(), 1, "the leader keeps working");
    let output = fixture.output(&["step-down", "role", "--to", "third"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.starts_with("third-"), "{said}");
    assert_eq!(first.wait_exit(), 76);
}

#[test]
fn foreign_holders_are_reported() {
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    server.command(&["SET", "leader:role", "elsewhere", "PX", "30000"]);
    server.command(&["SET", "my-app:leader", "elsewhere", "PX", "30000"]);
    for (arguments, expected) in [
        (&["step-down", "role"][..], "cannot ask the leader"),
        (&["revoke", "role"], "cannot revoke"),
        (&["revoke", "my-app:leader"], "cannot revoke"),
    ] {
        let output = fixture.output(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains("elsewhere") && said.contains(expected), "{said}");
    }
    let output = fixture.output(&["leader", "my-app:leader"]);
    assert!(output.status.success() && output.stdout.starts_with(b"elsewhere"), "{output:?}");
    let output = fixture.output(&["run", "role", "--wait", "50ms", "--", "true"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(75) && said.contains("held by elsewhere"), "{said}");
}

#[test]
fn waiting_during_a_quarantine_is_explained() {
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    let output = fixture.plain(&["run", "role", "--wait", "300ms", "--", "true"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    // The server may be a second old by now.
    let explained = said.contains("quarantine: ") && said.contains(" s left, because there is no namespace record");
    assert!(output.status.code() == Some(69) && explained, "{said}");
}
