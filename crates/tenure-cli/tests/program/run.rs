//! `tenure run`: a command that runs only while its machine leads.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tenure_testbed::{Proxy, RedisServer};

use crate::harness::{Fixture, Program, assert_no_overlap, busy_script, is_alive, state, wait_until, with_input};

#[test]
fn run_exits_with_the_status_of_the_command() {
    let fixture = Fixture::new();
    for (script, code) in [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -15 $$", 143)] {
        assert_eq!(fixture.code(&["run", "role", "--", "sh", "-c", script]), code, "{script}");
    }
    assert_eq!(fixture.code(&["run", "role", "--", "no-such-command"]), 127);
    assert_eq!(fixture.code(&["run", "role", "--", "/"]), 126);
}

#[test]
fn the_command_gets_its_environment_stdin_and_stdout() {
    let fixture = Fixture::new();
    let script = r#"echo "$TENURE_ROLE $TENURE_INSTANCE $TENURE_TOKEN"; cat"#;
    let command = fixture.tenure(&["run", "role", "--name", "me", "--", "sh", "-c", script]);
    let output = with_input(command, "from outside");
    let said = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = said.split_whitespace().collect();
    assert_eq!((words[0], &words[3..]), ("role", &["from", "outside"][..]), "{said}");
    assert!(words[1].starts_with("me-") && words[2].parse::<u64>().is_ok(), "{said}");
}

/// A terminal stops a background process group that reads from it.
#[test]
fn a_command_does_not_read_from_a_terminal() {
    let fixture = Fixture::new();
    let reads = r#"cat >> "$FIXTURE/read"; [ -t 0 ] && exit 9; echo done >> "$FIXTURE/log""#;
    let plain = fixture.plain(&[]);
    // `script` gives it its own terminal, and passes on the exit status.
    let mut command = Command::new("script");
    command.args([
        "--quiet",
        "--return",
        "--command",
        r#""$TENURE" --bootstrap run role -- sh -c "$READS""#,
        "/dev/null",
    ]);
    command.env("TENURE", plain.get_program()).env("READS", reads);
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::piped());
    let mut program = Program::spawn(command);
    assert_eq!(program.wait_exit(), 0);
    assert_eq!((fixture.read("read").as_str(), fixture.read("log").as_str()), ("", "done\n"));
}

#[test]
fn election_events_are_logged_in_order() {
    let fixture = Fixture::new();
    let mut command = fixture.plain(&["--bootstrap", "--log", "json", "run", "role", "--", "true"]);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let events: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = events.iter().filter(|event| event["event"].as_str().unwrap().starts_with("election."));
    let words: Vec<String> = told
        .map(|event| {
            assert_eq!(event["role"], "role");
            let (name, to) = (event["event"].as_str().unwrap(), event["to"].as_str());
            to.map_or_else(|| name.to_owned(), |to| format!("{name} {to}"))
        })
        .collect();
    assert_eq!(
        words,
        [
            "election.state_changed candidate",
            "election.state_changed leader",
            "election.leadership_acquired",
            "election.state_changed follower",
            "election.leadership_lost"
        ]
    );
}

#[test]
fn one_command_runs_at_a_time() {
    let fixture = Fixture::new();
    let script = r#"echo begin >> "$FIXTURE/log"; sleep 0.05; echo end >> "$FIXTURE/log""#;
    let mut programs: Vec<_> = (0..6).map(|_| fixture.run("role", &[], script)).collect();
    for program in &mut programs {
        assert_eq!(program.wait_exit(), 0);
    }
    assert_eq!(fixture.read("log"), "begin\nend\n".repeat(6));
}

#[test]
fn no_wait_exits_75_while_another_leads() {
    let fixture = Fixture::new();
    let _leads = fixture.run("role", &[], &busy_script("log"));
    fixture.lines("log", 1);
    for flags in [&["--no-wait"][..], &["--wait", "100ms"]] {
        let arguments = [&["run", "role"][..], flags, &["--", "true"]].concat();
        let output = fixture.output(&arguments);
        assert_eq!(output.status.code(), Some(75), "{output:?}");
    }
    assert_eq!(fixture.code(&["run", "another", "--no-wait", "--", "true"]), 0);
}

#[test]
fn run_waits_for_a_store_that_is_down_unless_limited() {
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    server.kill();
    for flags in [&["--no-wait"][..], &["--wait", "200ms"]] {
        let arguments = [&["run", "role"][..], flags, &["--", "true"]].concat();
        let output = fixture.output(&arguments);
        assert_eq!(output.status.code(), Some(69), "{output:?}");
    }
    let mut waits = fixture.run("role", &[], "exit 5");
    std::thread::sleep(Duration::from_millis(300));
    server.restart();
    assert_eq!(waits.wait_exit(), 5);
}

#[test]
fn a_store_that_does_not_answer_is_not_another_leader() {
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    let holder = fixture.run("held", &["--ttl", "60s"], &busy_script("log"));
    fixture.lines("log", 1);
    server.stop();
    for (role, flags) in [
        ("free", &["--no-wait"][..]),
        ("held", &["--no-wait"]),
        ("held", &["--wait", "200ms"]),
        ("held", &["--wait", "1s"]),
        ("held", &["--once-per", "1h", "--wait", "1s"]),
    ] {
        let output = fixture.output(&[&["run", role][..], flags, &["--", "true"]].concat());
        assert_eq!(output.status.code(), Some(69), "{role} {flags:?}: {output:?}");
    }
    server.cont();
    drop(holder);
}

#[test]
fn a_quarantine_is_not_reported_as_another_leader() {
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    // Without `--bootstrap` the server is too young to rule out earlier leases.
    let mut command = fixture.plain(&["run", "role", "--no-wait", "--", "true"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("bootstrap"), "{output:?}");
}

#[test]
fn a_lost_lease_ends_the_command_and_exits_76() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let (cut_off, fixture) = (Fixture::on(&proxy.url()), Fixture::on(&server.url()));
    let record = fixture.path("log");
    let script = busy_script("log").replace("$FIXTURE", &fixture.path("").display().to_string());
    let mut first = cut_off.run("role", &["--ttl", "1500ms"], &script);
    fixture.lines("log", 1);
    let _second = fixture.run("role", &["--ttl", "1500ms"], &script);
    proxy.blackhole();
    assert_eq!(first.wait_exit(), 76);
    fixture.lines("log.begun", 2);
    std::thread::sleep(Duration::from_millis(100));
    assert_no_overlap(&record);
}

#[test]
fn a_lease_that_is_found_lost_at_its_release_exits_76() {
    for loss in [&["FLUSHALL"][..], &["DEL", "leader:role"], &["SET", "leader:role", "another"]] {
        let server = RedisServer::start();
        let fixture = Fixture::on(&server.url());
        let script = r#"echo begun >> "$FIXTURE/log"; while [ ! -e "$FIXTURE/end" ]; do sleep 0.01; done"#;
        // No renewal is due meanwhile.
        let mut program = fixture.run("role", &["--ttl", "10m"], script);
        fixture.lines("log", 1);
        server.command(loss);
        std::fs::write(fixture.path("end"), "").unwrap();
        assert_eq!(program.wait_exit(), 76, "{loss:?}");
    }
}

#[test]
fn a_command_that_ended_in_time_keeps_its_status_although_the_wrapper_was_stopped() {
    let fixture = Fixture::new();
    let mut program = fixture.run("role", &["--ttl", "2s"], r#"echo begun >> "$FIXTURE/log"; sleep 0.5; exit 9"#);
    fixture.lines("log", 1);
    program.signal(Signal::STOP);
    // The command ends, and then the lease expires.
    std::thread::sleep(Duration::from_secs(3));
    program.signal(Signal::CONT);
    assert_eq!(program.wait_exit(), 9);
}

#[test]
fn the_log_has_the_release_when_run_exits() {
    let fixture = Fixture::new();
    for _ in 0..40 {
        let output = fixture.output(&["run", "role", "--log", "json", "--", "true"]);
        let log = String::from_utf8(output.stderr).unwrap();
        assert!(log.contains("\"lease.released\""), "{log}");
    }
}

#[test]
fn a_hangup_that_is_ignored_stays_ignored() {
    let fixture = Fixture::new();
    let script =
        r#"grep SigIgn /proc/self/status >> "$FIXTURE/log"; while [ ! -e "$FIXTURE/end" ]; do sleep 0.01; done"#;
    let tenure = fixture.tenure(&["run", "role", "--", "sh", "-c", script]);
    let mut command = Command::new("sh");
    command.args(["-c", r#"trap "" HUP; exec "$@""#, "sh"]).arg(tenure.get_program()).args(tenure.get_args());
    command.envs(tenure.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    let mut program = Program::spawn(command);
    let mask = fixture.lines("log", 1).remove(0);
    let mask = u64::from_str_radix(mask.trim_start_matches("SigIgn:").trim(), 16).unwrap();
    assert_eq!(mask & 1, 1, "the command ignores it, too: {mask:x}");
    program.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(200));
    std::fs::write(fixture.path("end"), "").unwrap();
    assert_eq!(program.wait_exit(), 0);
}

#[test]
fn signals_are_forwarded() {
    let fixture = Fixture::new();
    let script = r#"trap 'echo usr1 >> "$FIXTURE/log"' USR1; trap 'echo term >> "$FIXTURE/log"; exit 4' TERM
                    echo ready >> "$FIXTURE/log"; while :; do sleep 0.01; done"#;
    let mut program = fixture.run("role", &[], script);
    fixture.lines("log", 1);
    program.signal(Signal::USR1);
    fixture.lines("log", 2);
    program.signal(Signal::TERM);
    assert_eq!(program.wait_exit(), 4);
    assert_eq!(fixture.read("log"), "ready\nusr1\nterm\n");
}

#[test]
fn a_stopped_command_ends_on_a_signal() {
    for signal in [Some(Signal::TERM), Some(Signal::INT), None] {
        let fixture = Fixture::new();
        // No fork after the pid is written: a shell that is stopped while it waits for a vfork is in state `D`, not `T`.
        let script = r#"trap 'echo told >> "$FIXTURE/log"; kill "$!"; exit 4' TERM INT
                        sleep 1000 & echo $$ >> "$FIXTURE/pid"; wait"#;
        let mut program = fixture.run("role", &["--ttl", "60s"], script);
        let pid: u32 = fixture.lines("pid", 1)[0].parse().unwrap();
        // The whole group, as a terminal does.
        let group = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        kill_process_group(group, Signal::STOP).unwrap();
        wait_until("the command is stopped", || state(pid) == Some('T'));
        match signal {
            Some(signal) => program.signal(signal),
            None => assert_eq!(fixture.code(&["revoke", "role"]), 0),
        }
        assert_eq!(program.wait_exit(), if signal.is_some() { 4 } else { 76 }, "{signal:?}");
        assert_eq!(fixture.read("log"), "told\n", "{signal:?}");
    }
}

#[test]
fn a_signal_ends_a_waiting_run() {
    let fixture = Fixture::new();
    let _leads = fixture.run("role", &[], &busy_script("log"));
    fixture.lines("log", 1);
    let mut waits = fixture.run("role", &[], "true");
    std::thread::sleep(Duration::from_millis(200));
    waits.signal(Signal::TERM);
    assert_eq!(waits.wait_exit(), 143);
}

#[test]
fn restart_repeats_the_command_until_a_signal() {
    let fixture = Fixture::new();
    let mut program = fixture.run("role", &["--restart"], r#"echo "$TENURE_TOKEN" >> "$FIXTURE/log""#);
    let tokens: Vec<u64> = fixture.lines("log", 3).iter().map(|line| line.parse().unwrap()).collect();
    assert!(tokens.is_sorted() && tokens[0] < tokens[2], "{tokens:?}");
    program.signal(Signal::TERM);
    assert!([0, 143].contains(&program.wait_exit()));
}

#[test]
fn once_per_holds_across_the_fleet() {
    let fixture = Fixture::new();
    let script = r#"echo run >> "$FIXTURE/log"; sleep 0.05"#;
    let mut programs: Vec<_> = (0..4).map(|_| fixture.run("daily", &["--once-per", "1h"], script)).collect();
    for program in &mut programs {
        assert_eq!(program.wait_exit(), 0);
    }
    assert_eq!(fixture.read("log"), "run\n");
    // After the period the command runs again.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(fixture.run("daily", &["--once-per", "200ms"], script).wait_exit(), 0);
    assert_eq!(fixture.read("log"), "run\nrun\n");
}

#[test]
fn a_run_that_is_not_due_does_not_wait_for_the_holder() {
    let server = RedisServer::start();
    for fixture in [Fixture::new(), Fixture::on(&server.url())] {
        assert_eq!(fixture.run("daily", &["--once-per", "1h"], "exit 0").wait_exit(), 0);
        let holder = fixture.run("daily", &["--ttl", "60s"], &busy_script("log"));
        fixture.lines("log", 1);
        for flags in
            [&["--once-per", "1h"][..], &["--once-per", "1h", "--no-wait"], &["--once-per", "1h", "--wait", "1h"]]
        {
            let mut skips = fixture.run("daily", flags, r#"echo x >> "$FIXTURE/again"; exit 9"#);
            assert_eq!(skips.wait_exit(), 0, "{flags:?}");
        }
        assert_eq!(fixture.read("again"), "");
        // A run that is due finds the holder.
        assert_eq!(fixture.code(&["run", "daily", "--once-per", "1ms", "--no-wait", "--", "true"]), 75);
        assert!(is_alive(holder.pid()));
    }
}

#[test]
fn an_incomplete_run_is_repeated() {
    let fixture = Fixture::new();
    let flags = ["--once-per", "1h", "--ttl", "1s"];
    let program = fixture.run("daily", &flags, r#"echo begun >> "$FIXTURE/log"; sleep 60"#);
    fixture.lines("log", 1);
    program.signal(Signal::KILL);
    let mut second = fixture.run("daily", &flags, r#"echo done >> "$FIXTURE/log""#);
    assert_eq!(second.wait_exit(), 0);
    assert_eq!(fixture.read("log"), "begun\ndone\n");
}

/// While the store is down the lease cannot be released, and the program waits until it expires.
#[test]
fn a_second_signal_ends_run_even_when_the_store_is_down() {
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    let script =
        r#"echo x >> "$FIXTURE/begun"; while [ ! -e "$FIXTURE/end" ]; do sleep 0.01; done; echo x >> "$FIXTURE/ended""#;
    let mut program = fixture.run("role", &["--ttl", "60s"], script);
    fixture.lines("begun", 1);
    server.stop();
    std::fs::write(fixture.path("end"), "").unwrap();
    fixture.lines("ended", 1);
    std::thread::sleep(Duration::from_millis(200));
    program.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_alive(program.pid()), "the first signal is handled after the release");
    let second = Instant::now();
    program.signal(Signal::TERM);
    assert_eq!(program.wait_exit(), 128 + 15);
    assert!(second.elapsed() < Duration::from_secs(5), "the second signal ends the program: {:?}", second.elapsed());
    server.cont();
}

#[test]
fn a_start_time_in_the_future_skips_at_most_one_period() {
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    let script = r#"echo x >> "$FIXTURE/runs""#;
    let run = |period: &str| assert_eq!(fixture.run("daily", &["--once-per", period], script).wait_exit(), 0);
    run("1h");
    fixture.lines("runs", 1);
    // The record that a store's clock leaves when it was a day ahead and is set back.
    let tomorrow = (server.time() + Duration::from_secs(24 * 3_600)).as_micros();
    let key = "tenure:records:{leader:daily}";
    server.command(&["HSET", key, "once", &format!("1 1 {tomorrow}")]);
    run("1s");
    assert_eq!(fixture.read("runs"), "x\n", "the run is not repeated because a clock was set back");
    std::thread::sleep(Duration::from_millis(1_100));
    run("1s");
    assert_eq!(fixture.read("runs"), "x\nx\n", "the run is not skipped for a day");
}

#[test]
fn restart_with_once_per_runs_once_per_period_in_the_fleet() {
    let fixture = Fixture::new();
    let script = r#"date +%s%N >> "$FIXTURE/runs""#;
    let flags = ["--restart", "--once-per", "1s", "--ttl", "2s"];
    let mut fleet = [fixture.run("daily", &flags, script), fixture.run("daily", &flags, script)];
    let runs: Vec<u64> = fixture.lines("runs", 4).iter().map(|line| line.parse().unwrap()).collect();
    for pair in runs.windows(2) {
        // The period runs from grant to grant; the command starts a moment later.
        assert!(pair[1] - pair[0] >= 800_000_000, "{runs:?}");
    }
    // Between two runs.
    std::thread::sleep(Duration::from_millis(400));
    for program in &mut fleet {
        program.signal(Signal::TERM);
        assert_eq!(program.wait_exit(), 128 + 15);
    }
}

#[test]
fn the_store_password_is_hidden_unless_pass_store() {
    let server = RedisServer::builder().password("secret").start();
    let fixture = Fixture::on(&server.url_as("default", "secret"));
    let script = r#"echo "store=$TENURE_STORE" >> "$FIXTURE/seen""#;
    assert_eq!(fixture.run("role", &[], script).wait_exit(), 0);
    assert_eq!(fixture.run("role", &["--pass-store"], script).wait_exit(), 0);
    let seen = fixture.lines("seen", 2);
    assert_eq!(seen[0], "store=");
    assert!(seen[1].contains("secret"), "{seen:?}");
}

#[test]
fn a_leader_whose_command_makes_no_progress_is_replaced() {
    let fixture = Fixture::new();
    // The command makes progress for a second, and then hangs.
    let hangs =
        r#"for n in 1 2 3 4 5; do touch "$TENURE_PROGRESS"; sleep 0.2; done; echo hangs >> "$FIXTURE/log"; sleep 60"#;
    let mut first = fixture.run("role", &["--ttl", "2s", "--stall-after", "1s"], hangs);
    fixture.lines("log", 1);
    let next = fixture.run("role", &["--ttl", "2s"], r#"echo next >> "$FIXTURE/log"; sleep 60"#);
    assert_eq!(first.wait_exit(), 76, "the lease is lost");
    assert_eq!(fixture.lines("log", 2), ["hangs", "next"]);
    drop(next);
}

#[test]
fn a_command_that_makes_progress_is_left_alone() {
    let fixture = Fixture::new();
    let works = r#"for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do touch "$TENURE_PROGRESS"; sleep 0.2; done"#;
    assert_eq!(fixture.run("role", &["--ttl", "2s", "--stall-after", "1s"], works).wait_exit(), 0);
}

#[test]
fn a_short_wait_is_as_long_as_it_says() {
    let server = RedisServer::start();
    let fixture = Fixture::on(&server.url());
    let took = |wait: &str| {
        let start = Instant::now();
        let output = fixture.plain(&["run", "role", "--wait", wait, "--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        start.elapsed()
    };
    // A young server is quarantined for 30 s.
    assert!(took("600ms") >= Duration::from_millis(600), "the wait ended early");
    server.kill();
    assert!(took("600ms") >= Duration::from_millis(600), "the wait ended early");
}

/// Rotating a password takes a moment; a fleet whose waiters exit then has no leader afterwards.
#[test]
fn a_waiter_outlasts_a_password_that_is_replaced() {
    let server = RedisServer::builder().acl_users(&["user carol on >old ~* &* +@all"]).start();
    let holder = Fixture::on(&server.url());
    let waiter = Fixture::on(&server.url_as("carol", "old"));
    let leads = Program::spawn(holder.tenure(&["run", "role", "--ttl", "2s", "--", "sleep", "1000"]));
    wait_until("the holder leads", || holder.code(&["leader", "role"]) == 0);
    let command = waiter.tenure(&["run", "role", "--ttl", "2s", "--", "sh", "-c", "echo done > $FIXTURE/done"]);
    let waits = Program::spawn(command);
    let connections = || server.command(&["CLIENT", "LIST"]).as_text().matches("user=carol").count();
    wait_until("the waiter is connected", || connections() >= 2);
    server.command(&["ACL", "SETUSER", "carol", "resetpass", ">new"]);
    server.command(&["CLIENT", "KILL", "USER", "carol"]);
    std::thread::sleep(Duration::from_secs(3));
    assert!(is_alive(waits.pid()), "a waiter waits");
    server.command(&["ACL", "SETUSER", "carol", ">old"]);
    leads.signal(Signal::TERM);
    wait_until("the waiter has led", || waiter.read("done") == "done\n");
}
