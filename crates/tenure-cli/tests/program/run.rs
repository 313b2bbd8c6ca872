//! `tenure run`: a command that runs only while its machine leads.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tenure_testbed::{Proxy, RedisServer};

use crate::stage::{Place, Program, busy, is_alive, nobody_worked_twice, state, until, with_input};

#[test]
fn it_ends_as_the_command_does() {
    let place = Place::new();
    for (script, code) in [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -15 $$", 143)] {
        assert_eq!(place.code(&["run", "role", "--", "sh", "-c", script]), code, "{script}");
    }
    assert_eq!(place.code(&["run", "role", "--", "no-such-command"]), 127);
    assert_eq!(place.code(&["run", "role", "--", "/"]), 126);
}

#[test]
fn the_command_knows_for_whom_it_works_and_reads_and_writes_as_usual() {
    let place = Place::new();
    let script = r#"echo "$TENURE_ROLE $TENURE_INSTANCE $TENURE_TOKEN"; cat"#;
    let command = place.tenure(&["run", "role", "--name", "me", "--", "sh", "-c", script]);
    let output = with_input(command, "from outside");
    let said = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = said.split_whitespace().collect();
    assert_eq!((words[0], &words[3..]), ("role", &["from", "outside"][..]), "{said}");
    assert!(words[1].starts_with("me-") && words[2].parse::<u64>().is_ok(), "{said}");
}

/// A terminal stops a process group in the background that reads from it.
#[test]
fn a_command_does_not_read_from_a_terminal() {
    let place = Place::new();
    let reads = r#"cat >> "$PLACE/read"; [ -t 0 ] && exit 9; echo done >> "$PLACE/log""#;
    let plain = place.plain(&[]);
    // `script` gives it a terminal of its own, and passes on the exit status.
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
    assert_eq!(program.ends(), 0);
    assert_eq!((place.read("read").as_str(), place.read("log").as_str()), ("", "done\n"));
}

#[test]
fn it_tells_its_election_in_order() {
    let place = Place::new();
    let mut command = place.plain(&["--bootstrap", "--log", "json", "run", "role", "--", "true"]);
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
fn one_runs_at_a_time_and_the_next_begins_when_it_is_done() {
    let place = Place::new();
    let script = r#"echo begin >> "$PLACE/log"; sleep 0.05; echo end >> "$PLACE/log""#;
    let mut programs: Vec<_> = (0..6).map(|_| place.run("role", &[], script)).collect();
    for program in &mut programs {
        assert_eq!(program.ends(), 0);
    }
    assert_eq!(place.read("log"), "begin\nend\n".repeat(6));
}

#[test]
fn whoever_does_not_want_to_wait_is_told_who_leads() {
    let place = Place::new();
    let _leads = place.run("role", &[], &busy("log"));
    place.lines("log", 1);
    for flags in [&["--no-wait"][..], &["--wait", "100ms"]] {
        let arguments = [&["run", "role"][..], flags, &["--", "true"]].concat();
        let output = place.output(&arguments);
        assert_eq!(output.status.code(), Some(75), "{output:?}");
    }
    assert_eq!(place.code(&["run", "another", "--no-wait", "--", "true"]), 0);
}

#[test]
fn a_store_that_is_down_is_waited_for_unless_told_otherwise() {
    let server = RedisServer::start();
    let place = Place::on(&server.url());
    server.kill();
    for flags in [&["--no-wait"][..], &["--wait", "200ms"]] {
        let arguments = [&["run", "role"][..], flags, &["--", "true"]].concat();
        let output = place.output(&arguments);
        assert_eq!(output.status.code(), Some(69), "{output:?}");
    }
    let mut waits = place.run("role", &[], "exit 5");
    std::thread::sleep(Duration::from_millis(300));
    server.start_again();
    assert_eq!(waits.ends(), 5);
}

#[test]
fn a_store_that_does_not_answer_is_not_another_leader() {
    let server = RedisServer::start();
    let place = Place::on(&server.url());
    let holder = place.run("held", &["--ttl", "60s"], &busy("log"));
    place.lines("log", 1);
    server.stop();
    for (role, flags) in [
        ("free", &["--no-wait"][..]),
        ("held", &["--no-wait"]),
        ("held", &["--wait", "200ms"]),
        ("held", &["--wait", "1s"]),
        ("held", &["--once-per", "1h", "--wait", "1s"]),
    ] {
        let output = place.output(&[&["run", role][..], flags, &["--", "true"]].concat());
        assert_eq!(output.status.code(), Some(69), "{role} {flags:?}: {output:?}");
    }
    server.cont();
    drop(holder);
}

#[test]
fn a_store_that_grants_nothing_yet_is_not_somebody_who_leads() {
    let server = RedisServer::start();
    let place = Place::on(&server.url());
    // Without the word that nobody holds anything: it is too young to tell.
    let mut command = place.plain(&["run", "role", "--no-wait", "--", "true"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("bootstrap"), "{output:?}");
}

#[test]
fn a_lease_that_is_lost_ends_the_command_and_is_said() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let (cut_off, place) = (Place::on(&proxy.url()), Place::on(&server.url()));
    let record = place.path("log");
    let script = busy("log").replace("$PLACE", &place.path("").display().to_string());
    let mut first = cut_off.run("role", &["--ttl", "1500ms"], &script);
    place.lines("log", 1);
    let _second = place.run("role", &["--ttl", "1500ms"], &script);
    proxy.swallow();
    assert_eq!(first.ends(), 76);
    place.lines("log.begun", 2);
    std::thread::sleep(Duration::from_millis(100));
    nobody_worked_twice(&record);
}

#[test]
fn signals_are_passed_on() {
    let place = Place::new();
    let script = r#"trap 'echo usr1 >> "$PLACE/log"' USR1; trap 'echo term >> "$PLACE/log"; exit 4' TERM
                    echo ready >> "$PLACE/log"; while :; do sleep 0.01; done"#;
    let mut program = place.run("role", &[], script);
    place.lines("log", 1);
    program.signal(Signal::USR1);
    place.lines("log", 2);
    program.signal(Signal::TERM);
    assert_eq!(program.ends(), 4);
    assert_eq!(place.read("log"), "ready\nusr1\nterm\n");
}

#[test]
fn a_command_that_is_stopped_ends_when_it_is_told_to() {
    for signal in [Some(Signal::TERM), Some(Signal::INT), None] {
        let place = Place::new();
        let script = r#"trap 'echo told >> "$PLACE/log"; exit 4' TERM INT; echo $$ >> "$PLACE/pid"
                        while :; do sleep 0.01; done"#;
        let mut program = place.run("role", &["--ttl", "60s"], script);
        let pid: u32 = place.lines("pid", 1)[0].parse().unwrap();
        // Its whole group, as a terminal does.
        let group = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        kill_process_group(group, Signal::STOP).unwrap();
        until("it is stopped", || state(pid) == Some('T'));
        match signal {
            Some(signal) => program.signal(signal),
            None => assert_eq!(place.code(&["revoke", "role"]), 0),
        }
        assert_eq!(program.ends(), if signal.is_some() { 4 } else { 76 }, "{signal:?}");
        assert_eq!(place.read("log"), "told\n", "{signal:?}");
    }
}

#[test]
fn told_to_end_while_it_waits_it_ends() {
    let place = Place::new();
    let _leads = place.run("role", &[], &busy("log"));
    place.lines("log", 1);
    let mut waits = place.run("role", &[], "true");
    std::thread::sleep(Duration::from_millis(200));
    waits.signal(Signal::TERM);
    assert_eq!(waits.ends(), 143);
}

#[test]
fn with_restart_it_runs_again_and_again_until_told_to_end() {
    let place = Place::new();
    let mut program = place.run("role", &["--restart"], r#"echo "$TENURE_TOKEN" >> "$PLACE/log""#);
    let tokens: Vec<u64> = place.lines("log", 3).iter().map(|line| line.parse().unwrap()).collect();
    assert!(tokens.is_sorted() && tokens[0] < tokens[2], "{tokens:?}");
    program.signal(Signal::TERM);
    assert!([0, 143].contains(&program.ends()));
}

#[test]
fn once_per_period_and_by_anybody() {
    let place = Place::new();
    let script = r#"echo run >> "$PLACE/log"; sleep 0.05"#;
    let mut programs: Vec<_> = (0..4).map(|_| place.run("daily", &["--once-per", "1h"], script)).collect();
    for program in &mut programs {
        assert_eq!(program.ends(), 0);
    }
    assert_eq!(place.read("log"), "run\n");
    // When the period is over, again.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(place.run("daily", &["--once-per", "200ms"], script).ends(), 0);
    assert_eq!(place.read("log"), "run\nrun\n");
}

#[test]
fn a_run_that_is_not_due_does_not_wait_for_the_holder() {
    let server = RedisServer::start();
    for place in [Place::new(), Place::on(&server.url())] {
        assert_eq!(place.run("daily", &["--once-per", "1h"], "exit 0").ends(), 0);
        let holder = place.run("daily", &["--ttl", "60s"], &busy("log"));
        place.lines("log", 1);
        for flags in
            [&["--once-per", "1h"][..], &["--once-per", "1h", "--no-wait"], &["--once-per", "1h", "--wait", "1h"]]
        {
            let mut skips = place.run("daily", flags, r#"echo x >> "$PLACE/again"; exit 9"#);
            assert_eq!(skips.ends(), 0, "{flags:?}");
        }
        assert_eq!(place.read("again"), "");
        // One that is due finds the holder.
        assert_eq!(place.code(&["run", "daily", "--once-per", "1ms", "--no-wait", "--", "true"]), 75);
        assert!(is_alive(holder.pid()));
    }
}

#[test]
fn a_run_that_did_not_come_to_its_end_is_run_again() {
    let place = Place::new();
    let flags = ["--once-per", "1h", "--ttl", "1s"];
    let program = place.run("daily", &flags, r#"echo begun >> "$PLACE/log"; sleep 60"#);
    place.lines("log", 1);
    program.signal(Signal::KILL);
    let mut second = place.run("daily", &flags, r#"echo done >> "$PLACE/log""#);
    assert_eq!(second.ends(), 0);
    assert_eq!(place.read("log"), "begun\ndone\n");
}

/// While the store is down the lease cannot be released, and the program waits for that until it expires.
#[test]
fn the_second_signal_ends_it_also_when_the_store_is_down() {
    let server = RedisServer::start();
    let place = Place::on(&server.url());
    let script =
        r#"echo x >> "$PLACE/begun"; while [ ! -e "$PLACE/end" ]; do sleep 0.01; done; echo x >> "$PLACE/ended""#;
    let mut program = place.run("role", &["--ttl", "60s"], script);
    place.lines("begun", 1);
    server.stop();
    std::fs::write(place.path("end"), "").unwrap();
    place.lines("ended", 1);
    std::thread::sleep(Duration::from_millis(200));
    program.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_alive(program.pid()), "the first one is heeded when everything is done");
    let second = Instant::now();
    program.signal(Signal::TERM);
    assert_eq!(program.ends(), 128 + 15);
    assert!(second.elapsed() < Duration::from_secs(5), "the second one ends it: {:?}", second.elapsed());
    server.cont();
}

#[test]
fn a_mark_from_the_future_skips_one_period_at_most() {
    let server = RedisServer::start();
    let place = Place::on(&server.url());
    let script = r#"echo x >> "$PLACE/runs""#;
    let run = |period: &str| assert_eq!(place.run("daily", &["--once-per", period], script).ends(), 0);
    run("1h");
    place.lines("runs", 1);
    // As a store's clock leaves it that was a day ahead and is set back.
    let tomorrow = (server.time() + Duration::from_secs(24 * 3_600)).as_micros();
    let key = "tenure:records:{leader:daily}";
    server.command(&["HSET", key, "once", &format!("1 1 {tomorrow}")]);
    run("1s");
    assert_eq!(place.read("runs"), "x\n", "it is not repeated because a clock was set back");
    std::thread::sleep(Duration::from_millis(1_100));
    run("1s");
    assert_eq!(place.read("runs"), "x\nx\n", "and not skipped for a day");
}

#[test]
fn restarted_once_per_period_it_runs_once_per_period_in_the_whole_fleet() {
    let place = Place::new();
    let script = r#"date +%s%N >> "$PLACE/runs""#;
    let flags = ["--restart", "--once-per", "1s", "--ttl", "2s"];
    let mut fleet = [place.run("daily", &flags, script), place.run("daily", &flags, script)];
    let runs: Vec<u64> = place.lines("runs", 4).iter().map(|line| line.parse().unwrap()).collect();
    for pair in runs.windows(2) {
        // Counted from the grant to the grant; the command begins a moment later.
        assert!(pair[1] - pair[0] >= 800_000_000, "{runs:?}");
    }
    // Between two runs.
    std::thread::sleep(Duration::from_millis(400));
    for program in &mut fleet {
        program.signal(Signal::TERM);
        assert_eq!(program.ends(), 128 + 15);
    }
}

#[test]
fn a_password_in_the_stores_url_is_not_the_commands_unless_asked_for() {
    let server = RedisServer::builder().password("secret").start();
    let place = Place::on(&server.url_as("default", "secret"));
    let script = r#"echo "store=$TENURE_STORE" >> "$PLACE/seen""#;
    assert_eq!(place.run("role", &[], script).ends(), 0);
    assert_eq!(place.run("role", &["--pass-store"], script).ends(), 0);
    let seen = place.lines("seen", 2);
    assert_eq!(seen[0], "store=");
    assert!(seen[1].contains("secret"), "{seen:?}");
}

#[test]
fn a_leader_whose_command_makes_no_progress_is_replaced() {
    let place = Place::new();
    // It gets on for a second, and hangs then.
    let hangs =
        r#"for n in 1 2 3 4 5; do touch "$TENURE_PROGRESS"; sleep 0.2; done; echo hangs >> "$PLACE/log"; sleep 60"#;
    let mut first = place.run("role", &["--ttl", "2s", "--stall-after", "1s"], hangs);
    place.lines("log", 1);
    let next = place.run("role", &["--ttl", "2s"], r#"echo next >> "$PLACE/log"; sleep 60"#);
    assert_eq!(first.ends(), 76, "its lease ends");
    assert_eq!(place.lines("log", 2), ["hangs", "next"]);
    drop(next);
}

#[test]
fn a_command_that_makes_progress_is_left_alone() {
    let place = Place::new();
    let works = r#"for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do touch "$TENURE_PROGRESS"; sleep 0.2; done"#;
    assert_eq!(place.run("role", &["--ttl", "2s", "--stall-after", "1s"], works).ends(), 0);
}
