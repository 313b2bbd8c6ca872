//! Flags, environment and file; exit codes; `--json`.

use std::process::Command;

use serde_json::Value;
use tenure_testbed::RedisServer;

use crate::harness::{Fixture, busy_script};

/// Every command, and its flags besides the global ones.
const FLAGS: &[(&[&str], &[&str])] = &[
    (
        &["serve"],
        &[
            "--listen",
            "--ttl",
            "--renew-every",
            "--heartbeat-ttl",
            "--heartbeat-every",
            "--discover-every",
            "--settle",
            "--drain-timeout",
            "--hand-back",
            "--stall-after",
            "--name",
            "--weight",
            "--api-token-file",
            "--insecure",
            "--allow-targets",
            "--max-body",
            "--keep-results",
            "--backoff",
        ],
    ),
    (
        &["run"],
        &["--ttl", "--wait", "--no-wait", "--restart", "--once-per", "--stop-timeout", "--stall-after", "--name"],
    ),
    (&["leader"], &[]),
    (&["step-down"], &["--to", "--wait"]),
    (&["drain"], &["--wait"]),
    (&["undrain"], &["--wait"]),
    (&["revoke"], &[]),
    (
        &["session", "add"],
        &["--url", "--name", "--interval", "--timeout", "--header", "--max-body", "--keep-results", "--backoff"],
    ),
    (&["session", "ls"], &[]),
    (&["session", "result"], &["--history"]),
    (&["session", "pause"], &[]),
    (&["session", "resume"], &[]),
    (&["session", "rm"], &[]),
    (&["session", "export"], &["--output"]),
    (&["session", "import"], &[]),
    (&["status"], &[]),
    (&["watch"], &["--all"]),
    (&["reopen"], &["--yes"]),
    (&["role", "ls"], &[]),
    (&["role", "rm"], &[]),
];

const GLOBAL: &[&str] =
    &["--store", "--namespace", "--log", "--log-level", "--config", "--json", "--bootstrap", "--durable"];

/// Returns the variable of a flag.
fn variable(command: &[&str], flag: &str) -> String {
    match (command, flag) {
        // The name of a session is not that of an instance.
        (["session", "add"], "--name") => "TENURE_SESSION_NAME".to_owned(),
        (["session", "add"], "--header") => "TENURE_HEADERS".to_owned(),
        _ => format!("TENURE_{}", flag.trim_start_matches('-').replace('-', "_").to_uppercase()),
    }
}

#[test]
fn every_flag_is_there_and_has_its_variable() {
    let fixture = Fixture::new();
    for (command, flags) in FLAGS {
        let output = fixture.output(&[command, &["--help"][..]].concat());
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{command:?}");
        for flag in flags.iter().chain(GLOBAL) {
            assert!(
                help.contains(&format!("{flag} ")) || help.contains(&format!("{flag}\n")),
                "{command:?} {flag}: {help}"
            );
            let variable = variable(command, flag);
            assert!(help.contains(&variable), "{command:?} {flag} has no {variable}: {help}");
        }
    }
}

/// Returns the stored session that was added with settings from a given source.
fn added(fixture: &Fixture, set: impl FnOnce(&mut Command), arguments: &[&str]) -> Value {
    let mut command = fixture.tenure(arguments);
    set(&mut command);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_flag_beats_the_environment_beats_the_file_for_every_kind_of_value() {
    let fixture = Fixture::new();
    let file = fixture.path("tenure.toml");
    let config = file.display().to_string();
    // Text, a decimal, an integer, a boolean, a list, a table.
    let text = "interval = \"7s\"\nweight = 1.5\nkeep-results = 7\njson = true\nallow-targets = [\"10.0.0.0/8\", \"fd00::/8\"]\n[keys]\nsession = \"app:session:\"\n";
    std::fs::write(&file, text).unwrap();
    let add = ["session", "add", "--url", "http://127.0.0.1:1/"];
    let from_file = added(&fixture, |_| {}, &[&["--config", &config][..], &add].concat());
    assert_eq!((&from_file["interval"], &from_file["keepResults"]), (&"7s".into(), &7.into()), "{from_file}");
    let set = |command: &mut Command| {
        command.env("TENURE_CONFIG", &file).env("TENURE_INTERVAL", "8s").env("TENURE_SESSION_NAME", "by environment");
    };
    let from_environment = added(&fixture, set, &add);
    assert_eq!((&from_environment["interval"], &from_environment["name"]), (&"8s".into(), &"by environment".into()));
    let from_flag = added(&fixture, set, &[&add[..], &["--interval", "9s"]].concat());
    assert_eq!(from_flag["interval"], "9s");
    // Booleans in the environment.
    for (value, is_json) in [("1", true), ("true", true), ("yes", true), ("0", false), ("false", false), ("no", false)]
    {
        let output = fixture.tenure(&["status"]).env("TENURE_JSON", value).output().unwrap();
        assert_eq!(output.stdout.starts_with(b"{"), is_json, "TENURE_JSON={value}: {output:?}");
    }
    std::fs::write(&file, "weight = {a = 1}\n").unwrap();
    assert_eq!(fixture.code(&["--config", &config, "status"]), 64);
}

#[test]
fn every_command_that_prints_a_result_prints_json() {
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    let _leads = fixture.run("role", &["--ttl", "3s"], &busy_script("log"));
    fixture.lines("log.begun", 1);
    let add = fixture.output(&["session", "add", "--url", "http://127.0.0.1:1/", "--json"]);
    let id = serde_json::from_slice::<Value>(&add.stdout).unwrap()["id"].as_str().unwrap().to_owned();
    for (arguments, field) in [
        (&["leader", "role"][..], "remainingMs"),
        (&["status"], "instances"),
        (&["session", "pause", &id], "isPaused"),
        (&["session", "resume", &id], "isPaused"),
        (&["session", "rm", &id], "removed"),
        (&["revoke", "role"], "revoked"),
        (&["role", "rm", "nothing"], "removed"),
        (&["step-down", "nothing"], "steppedDown"),
        (&["reopen"], "reopened"),
    ] {
        let output = fixture.output(&[arguments, &["--json"]].concat());
        let printed: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{arguments:?} does not print JSON: {error}: {output:?}"));
        assert!(printed.get(field).is_some(), "{arguments:?}: {printed}");
    }
    let sessions = fixture.output(&["session", "ls", "--json"]);
    assert!(serde_json::from_slice::<Value>(&sessions.stdout).unwrap().is_array());
}

#[test]
fn exit_codes_are_those_of_the_contract() {
    let (fixture, server) = (Fixture::new(), RedisServer::start());
    let nowhere = Fixture::on("redis://127.0.0.1:1");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let on_redis = Fixture::on(&server.url());
    let _leads = on_redis.run("role", &["--ttl", "10s"], &busy_script("log"));
    on_redis.lines("log.begun", 1);
    for (fixture, arguments, code) in [
        (&fixture, &["run", "free", "--", "true"][..], 0),
        (&fixture, &["run", "free", "--wait", "0", "--", "true"], 0),
        (&fixture, &["run", "free", "--", "sh", "-c", "exit 3"], 3),
        (&fixture, &["run", "free", "--", "sh", "-c", "kill -9 $$"], 137),
        (&fixture, &["run", "free", "--", "/no/such/command"], 127),
        (&fixture, &["leader", "nothing"], 1),
        (&fixture, &["revoke", "nothing"], 1),
        (&fixture, &["session", "rm", "0192f0c1-2e4e-7f00-8000-000000000001"], 1),
        (&fixture, &["leader"], 64),
        (&fixture, &["run", "role", "--ttl", "30", "--", "true"], 64),
        (&fixture, &["--store", "ftp://host", "status"], 64),
        (&fixture, &["serve", "--allow-targets", "10.0.0.0"], 64),
        (&fixture, &["serve", "--listen", "127.0.0.1"], 64),
        (&fixture, &["serve", "--listen", &address], 71),
        (&nowhere, &["status"], 69),
        (&nowhere, &["run", "role", "--no-wait", "--", "true"], 69),
        (&nowhere, &["run", "role", "--wait", "100ms", "--", "true"], 69),
        (&on_redis, &["run", "role", "--no-wait", "--", "true"], 75),
        (&on_redis, &["run", "role", "--wait", "0", "--", "true"], 75),
        (&on_redis, &["run", "role", "--wait", "50ms", "--", "true"], 75),
        (&on_redis, &["leader", "role"], 0),
    ] {
        assert_eq!(fixture.code(arguments), code, "{arguments:?}");
    }
    let help = String::from_utf8(fixture.output(&["--help"]).stdout).unwrap();
    for code in ["0 done", "1 the answer is no", "64 ", "69 ", "71 ", "73 ", "75 ", "76 "] {
        assert!(help.contains(code), "{code}: {help}");
    }
}

#[test]
fn errors_name_the_missing_part() {
    let fixture = Fixture::new();
    for (arguments, says) in [
        (&["run", "role", "--ttl", "30", "--", "true"][..], "the unit is missing"),
        (&["serve", "--allow-targets", "10.0.0.0"], "the length of the prefix is missing"),
        (&["serve", "--listen", "127.0.0.1"], "the port is missing"),
        (&["session", "add", "--url", "x", "--header", "secret"], "Name: value"),
        (&["session", "add", "--url", "http://a", "--backoff", "often"], "on, off or the longest pause"),
    ] {
        let output = fixture.output(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(64) && said.contains(says), "{arguments:?}: {said}");
    }
}
