//! The guardian: whatever happens to `tenure run`, no process of an old term is alive when the command of the next
//! starts.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure_testbed::{Proxy, RedisServer};

use crate::harness::{Fixture, Program, assert_no_overlap, busy_script, is_alive, state, wait_until};

const TTL: &str = "1500ms";

/// Returns the pids of the started commands.
fn wait_for_commands(fixture: &Fixture, count: usize) -> Vec<u32> {
    let pid = |line: &String| line.split_whitespace().nth(1).unwrap().parse().unwrap();
    fixture.lines("log.begun", count).iter().map(pid).collect()
}

/// Starts a leader and a waiting candidate.
fn start_two(fixture: &Fixture, script: &str) -> (Program, Program) {
    let first = fixture.run("role", &["--ttl", TTL], script);
    wait_for_commands(fixture, 1);
    (first, fixture.run("role", &["--ttl", TTL], script))
}

fn stop(pid: u32) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::STOP).unwrap();
}

/// Asserts what must hold when the second command has started.
fn assert_handover(fixture: &Fixture) {
    let pids = wait_for_commands(fixture, 2);
    assert!(!is_alive(pids[0]), "the first command is still running");
    std::thread::sleep(Duration::from_millis(100));
    assert_no_overlap(&fixture.path("log"));
}

fn guardian_of(program: &Program) -> u32 {
    let mut found = None;
    wait_until("the guardian has started", || {
        let path = format!("/proc/{0}/task/{0}/children", program.pid());
        // Any thread may have started it.
        let all = std::fs::read_dir(format!("/proc/{}/task", program.pid())).unwrap().flatten();
        let lists = all.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
        found = lists
            .chain([std::fs::read_to_string(path).unwrap_or_default()])
            .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
            .find(|pid| is_guardian(*pid));
        found.is_some()
    });
    found.unwrap()
}

/// Returns whether a child of a wrapper is its guardian. Between fork and exec it is a copy of its parent, which waits
/// for the exec.
fn is_guardian(pid: u32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).contains("__guard")
}

#[test]
fn killing_the_wrapper_ends_its_command() {
    let fixture = Fixture::new();
    let (first, _second) = start_two(&fixture, &busy_script("log"));
    let killed = Instant::now();
    first.signal(Signal::KILL);
    let pid = wait_for_commands(&fixture, 1)[0];
    wait_until("the command has ended", || !is_alive(pid));
    println!("gone after {:?}", killed.elapsed());
    assert_handover(&fixture);
}

#[test]
fn stopping_the_wrapper_past_its_lease_ends_its_command() {
    for signal in [Signal::STOP, Signal::TSTP] {
        let fixture = Fixture::new();
        let (mut first, _second) = start_two(&fixture, &busy_script("log"));
        first.signal(signal);
        assert_handover(&fixture);
        first.signal(Signal::CONT);
        assert_eq!(first.wait_exit(), 76, "{signal:?}");
    }
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_in_time() {
    let fixture = Fixture::new();
    let stubborn = format!("trap '' TERM; {}", busy_script("log"));
    let (first, _second) = start_two(&fixture, &stubborn);
    first.signal(Signal::STOP);
    assert_handover(&fixture);
}

#[test]
fn grandchildren_end_too_even_in_their_own_session() {
    let fixture = Fixture::new();
    // One in the background, one in its own session, and one without its parent.
    let script = format!(
        r#"sleep 600 & echo $! >> "$FIXTURE/pids"
           setsid sh -c 'echo $$ >> "$FIXTURE/pids"; trap "" TERM; while :; do sleep 0.05; done' &
           sh -c 'setsid sleep 600 & echo $! >> "$FIXTURE/pids"' &
           {}"#,
        busy_script("log")
    );
    let first = fixture.run("role", &["--ttl", TTL], &script);
    let pids: Vec<u32> = fixture.lines("pids", 3).iter().map(|line| line.parse().unwrap()).collect();
    wait_for_commands(&fixture, 1);
    let _second = fixture.run("role", &["--ttl", TTL], &busy_script("log"));
    first.signal(Signal::KILL);
    assert_handover(&fixture);
    for pid in pids {
        assert!(!is_alive(pid), "a grandchild is still running");
    }
}

/// Processes that each start the next and exit, faster than a list of them can be made, and ignore SIGTERM.
fn fork_chain(fixture: &Fixture, leaves_its_group: bool) -> String {
    // With job control every job has its own group.
    let leave = if leaves_its_group { "set -m" } else { "" };
    let link = format!(
        r#"trap "" TERM; {leave}
           echo "${{EPOCHREALTIME/./}}000 $TENURE_TOKEN" >> "$FIXTURE/log"
           bash "$FIXTURE/chain" &"#
    );
    std::fs::write(fixture.path("chain"), link).unwrap();
    r#"echo "$TENURE_TOKEN $$" >> "$FIXTURE/log.begun"; exec bash "$FIXTURE/chain""#.to_owned()
}

#[test]
fn a_chain_of_forks_is_gone_before_the_lease_is_released() {
    for leaves_its_group in [false, true] {
        for has_cgroups in [true, false] {
            let fixture = Fixture::new();
            let start = |script: &str| match has_cgroups {
                true => fixture.run("role", &["--ttl", TTL], script),
                false => fixture.run_without_cgroups("role", &["--ttl", TTL], script),
            };
            // The started process exits at once with status 0; its descendants continue.
            let mut first = start(&fork_chain(&fixture, leaves_its_group));
            wait_for_commands(&fixture, 1);
            let _second = start(&busy_script("log"));
            assert_eq!(first.wait_exit(), 0);
            wait_for_commands(&fixture, 2);
            std::thread::sleep(Duration::from_millis(100));
            assert_no_overlap(&fixture.path("log"));
        }
    }
}

#[test]
fn a_chain_of_forks_does_not_survive_the_wrapper() {
    for leaves_its_group in [false, true] {
        let fixture = Fixture::new();
        let first = fixture.run_without_cgroups("role", &["--ttl", TTL], &fork_chain(&fixture, leaves_its_group));
        wait_for_commands(&fixture, 1);
        let _second = fixture.run("role", &["--ttl", TTL], &busy_script("log"));
        first.signal(Signal::KILL);
        wait_for_commands(&fixture, 2);
        std::thread::sleep(Duration::from_millis(100));
        assert_no_overlap(&fixture.path("log"));
    }
}

/// An unprivileged process cannot kill a process of another user.
#[test]
fn a_lease_is_not_released_while_something_of_the_command_cannot_be_killed() {
    if !rustix::process::geteuid().is_root() {
        let _ = std::io::stderr().write_all(b"NOT TESTED: a process of another user needs root\n");
        return;
    }
    let fixture = Fixture::new();
    let script = r#"echo "$TENURE_TOKEN $$" >> "$FIXTURE/log.begun"
                    setpriv --reuid 65534 sleep 60 & echo $! > "$FIXTURE/pid"
                    until [ "$(stat -c %u /proc/$!)" = 65534 ]; do sleep 0.01; done"#;
    let plain = fixture.tenure(&["run", "role", "--ttl", TTL, "--", "sh", "-c", script]);
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "sh",
        "-c",
        r#"umount -a -t cgroup2; exec setpriv --bounding-set=-kill --inh-caps=-kill "$@""#,
        "sh",
    ]);
    command.arg(plain.get_program()).args(plain.get_args());
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    // To a file: remaining processes of the command would keep a pipe open.
    let status = command.stderr(File::create(fixture.path("said")).unwrap()).status().unwrap();
    let (said, pid) = (fixture.read("said"), fixture.read("pid").trim().to_owned());
    assert_eq!(status.code(), Some(76), "{said}");
    assert!(said.contains(&format!("processes still running: {pid};")) && said.contains("not released"), "{said}");
    // The lease expires: until then `leader` shows the holder.
    let output = fixture.output(&["leader", "role", "--json"]);
    assert!(output.status.success(), "the lease was released: {output:?}");
    assert!(is_alive(pid.parse().unwrap()));
    kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
}

/// Starts a guardian whose wrapper is this test.
fn start_guardian(fixture: &Fixture, socket: UnixStream, script: &str) -> Child {
    let mut command = fixture.plain(&["__guard", "--cgroup", "tenure-run-test", "--", "sh", "-c", script]);
    command.stdin(Stdio::from(OwnedFd::from(socket))).spawn().unwrap()
}

/// Returns the order that lets the command run for this many seconds.
fn deadline_in(seconds: f64) -> String {
    let at = |seconds: f64| (boot_time() as f64 + seconds * 1e9) as u64;
    format!("deadline {} {} {}\n", at(seconds), at(seconds + 1.0), at(seconds + 1.1))
}

/// `tenure run` may be stopped before it has sent the first deadline, for long enough that another instance leads.
#[test]
fn a_command_starts_only_within_a_known_deadline() {
    let fixture = Fixture::new();
    let guardian = || {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let child = start_guardian(&fixture, theirs, r#"echo x >> "$FIXTURE/started""#);
        (&ours).write_all(b"!").unwrap();
        (ours, child)
    };

    let (silent, mut child) = guardian();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(fixture.read("started"), "", "no deadline was sent");
    drop(silent);
    assert!(child.wait().unwrap().success());
    assert_eq!(fixture.read("started"), "", "no deadline will be sent");

    let (mut late, mut child) = guardian();
    late.write_all(deadline_in(-0.1).as_bytes()).unwrap();
    let mut said = String::new();
    late.read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    assert_eq!((said.as_str(), fixture.read("started").as_str()), ("too-late\n", ""), "the deadline has passed");

    let (mut in_time, mut child) = guardian();
    in_time.write_all(deadline_in(60.0).as_bytes()).unwrap();
    let mut said = String::new();
    in_time.read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    assert_eq!((said.as_str(), fixture.read("started").as_str()), ("heard\nended 0 1\ngone\n", "x\n"));
}

/// The wrapper is killed after it has sent the first deadline and before the guardian has read it.
#[test]
fn a_command_is_not_started_after_its_wrapper_died() {
    let fixture = Fixture::new();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.write_all(format!("!{}", deadline_in(60.0)).as_bytes()).unwrap();
    drop(ours);
    let mut child = start_guardian(&fixture, theirs, r#"echo $$ >> "$FIXTURE/started"; exec sleep 60"#);
    assert!(child.wait().unwrap().success());
    assert_eq!(fixture.read("started"), "", "the guardian left the command running");
}

/// The wrapper is killed as soon as the guardian has read the first deadline, while it starts the command.
#[test]
fn a_command_ends_when_its_wrapper_dies_during_its_start() {
    let fixture = Fixture::new();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut child = start_guardian(&fixture, theirs, r#"echo $$ >> "$FIXTURE/started"; exec sleep 60"#);
    ours.write_all(format!("!{}", deadline_in(60.0)).as_bytes()).unwrap();
    let mut said = [0; 6];
    ours.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"heard\n");
    drop(ours);
    assert!(child.wait().unwrap().success());
    for pid in fixture.read("started").lines() {
        assert!(!is_alive(pid.parse().unwrap()), "the guardian left the command running");
    }
}

fn boot_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

#[test]
fn a_stopped_guardian_is_ended_by_the_wrapper_when_the_lease_is_lost() {
    for ignores_term in [false, true] {
        let fixture = Fixture::new();
        let script = if ignores_term { format!("trap '' TERM; {}", busy_script("log")) } else { busy_script("log") };
        let (mut first, _second) = start_two(&fixture, &script);
        let guardian = guardian_of(&first);
        stop(guardian);
        assert_eq!(fixture.code(&["revoke", "role"]), 0);
        assert_eq!(first.wait_exit(), 76);
        assert_handover(&fixture);
        assert!(!is_alive(guardian), "the guardian is still running");
    }
}

/// The wrapper cannot renew the lease and loses it, and the guardian does not act.
#[test]
fn a_stopped_guardian_is_ended_by_the_wrapper_before_the_lease_expires() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let (behind, direct) = (Fixture::on(&proxy.url()), Fixture::on(&server.url()));
    let mut first = behind.run("role", &["--ttl", TTL], &busy_script("log"));
    let pid = wait_for_commands(&behind, 1)[0];
    let guardian = guardian_of(&first);
    stop(guardian);
    proxy.blackhole();
    // The next holder's command checks whether the first command is running.
    let script = format!(r#"kill -0 {pid} && exit 9; exit 0"#);
    let mut second = direct.run("role", &["--ttl", TTL], &script);
    assert_eq!(second.wait_exit(), 0, "the first command was still running");
    assert_eq!(first.wait_exit(), 76);
}

/// A stopped guardian does not read its orders, which must not block the wrapper.
#[test]
fn a_stopped_guardian_is_resumed_before_its_command_ends() {
    let fixture = Fixture::new();
    let mut first = fixture.run("role", &["--ttl", TTL], "sleep 2");
    stop(guardian_of(&first));
    assert_eq!(first.wait_exit(), 0);
    assert_eq!(fixture.code(&["run", "role", "--no-wait", "--", "true"]), 0, "the lease was released");
}

/// The time between fork and exec is about a millisecond, so an attempt may come too late. It then stops a running
/// guardian, which is resumed, too.
#[test]
fn a_guardian_stopped_before_its_exec_is_resumed() {
    for _ in 0..50 {
        let fixture = Fixture::new();
        let script = r#"until [ -e "$FIXTURE/end" ]; do sleep 0.01; done; exit 5"#;
        let mut first = fixture.run("role", &["--ttl", TTL], script);
        // The first thread of the wrapper starts the guardian.
        let children = format!("/proc/{0}/task/{0}/children", first.pid());
        let child: u32 = loop {
            let list = std::fs::read_to_string(&children).unwrap();
            if let Some(pid) = list.split_whitespace().next() {
                break pid.parse().unwrap();
            }
        };
        stop(child);
        let mut is_copy = false;
        wait_until("it is stopped, or a guardian", || {
            is_copy = state(child) == Some('T') && !is_guardian(child);
            is_copy || is_guardian(child)
        });
        std::fs::write(fixture.path("end"), "").unwrap();
        assert_eq!(first.wait_exit(), 5);
        if is_copy {
            return;
        }
    }
    let _ = std::io::stderr().write_all(b"NOT TESTED: every attempt came too late\n");
}

/// In a container, as root: elsewhere the kernel continues a stopped group when its parent process ends.
#[test]
fn a_stopped_guardian_resumes_when_the_wrapper_is_killed() {
    let fixture = Fixture::new();
    let script = busy_script("log");
    let plain = fixture.tenure(&["run", "role", "--ttl", TTL, "--", "sh", "-c", &script]);
    let mut container = Command::new("unshare");
    container.args(["--pid", "--fork", "--mount-proc", "sh", "-c"]);
    container.arg(r#""$@" & run=$!; sleep 1; kill -STOP $(pgrep -P $run); kill -9 $run; sleep 60"#).arg("sh");
    container.arg(plain.get_program()).args(plain.get_args());
    container.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let _container = Program::spawn(container);
    wait_for_commands(&fixture, 1);
    let _second = fixture.run("role", &["--ttl", TTL], &script);
    wait_for_commands(&fixture, 2);
    std::thread::sleep(Duration::from_millis(500));
    assert_no_overlap(&fixture.path("log"));
}

#[test]
fn replacing_the_binary_does_not_stop_a_waiting_run() {
    let fixture = Fixture::new();
    let program = fixture.path("tenure");
    std::fs::copy(env!("CARGO_BIN_EXE_tenure"), &program).unwrap();
    let first = fixture.run("role", &["--ttl", TTL], &busy_script("log"));
    wait_for_commands(&fixture, 1);
    let plain = fixture.tenure(&["run", "role", "--ttl", TTL, "--", "true"]);
    let mut waits = Command::new(&program);
    waits.args(plain.get_args()).envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut waits = Program::spawn(waits);
    std::thread::sleep(Duration::from_millis(500));
    std::fs::remove_file(&program).unwrap();
    first.signal(Signal::TERM);
    assert_eq!(waits.wait_exit(), 0);
}

#[test]
fn leftover_processes_end_before_the_next_command_starts() {
    let fixture = Fixture::new();
    let leaves = r#"setsid sleep 600 & echo $! >> "$FIXTURE/pids"; exit 0"#;
    let mut first = fixture.run("role", &["--ttl", TTL], leaves);
    let pid: u32 = fixture.lines("pids", 1)[0].parse().unwrap();
    let mut second = fixture.run("role", &["--ttl", TTL], r#"kill -0 "$(cat "$FIXTURE/pids")" && exit 9; exit 0"#);
    assert_eq!(first.wait_exit(), 0);
    assert_eq!(second.wait_exit(), 0, "the descendant was still running");
    assert!(!is_alive(pid));
}

#[test]
fn killing_the_guardian_leaves_no_processes() {
    let fixture = Fixture::new();
    let (mut first, _second) = start_two(&fixture, &busy_script("log"));
    let guardian = guardian_of(&first);
    kill_process(Pid::from_raw(i32::try_from(guardian).unwrap()).unwrap(), Signal::KILL).unwrap();
    assert_eq!(first.wait_exit(), 76);
    assert_handover(&fixture);
}

#[test]
fn a_guardian_ignores_signals_meant_for_the_command() {
    let fixture = Fixture::new();
    let first = fixture.run("role", &["--ttl", TTL], &busy_script("log"));
    let pid = wait_for_commands(&fixture, 1)[0];
    let guardian = guardian_of(&first);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::TSTP] {
        kill_process(Pid::from_raw(i32::try_from(guardian).unwrap()).unwrap(), signal).unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
    assert!(is_alive(guardian) && is_alive(pid));
}
