//! The guardian: whatever becomes of `tenure run`, nothing of an old term is alive when the next one's command starts.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::stage::{Place, Program, busy, is_alive, nobody_worked_twice, until};

const TTL: &str = "1500ms";

/// The pids of the commands that have begun.
fn begun(place: &Place, count: usize) -> Vec<u32> {
    let pid = |line: &String| line.split_whitespace().nth(1).unwrap().parse().unwrap();
    place.lines("log.begun", count).iter().map(pid).collect()
}

/// One that works and one that waits.
fn two(place: &Place, script: &str) -> (Program, Program) {
    let first = place.run("role", &["--ttl", TTL], script);
    begun(place, 1);
    (first, place.run("role", &["--ttl", TTL], script))
}

/// What must be so when the second has begun.
fn check(place: &Place) {
    let pids = begun(place, 2);
    assert!(!is_alive(pids[0]), "the first is still there");
    std::thread::sleep(Duration::from_millis(100));
    nobody_worked_twice(&place.path("log"));
}

fn guardian_of(program: &Program) -> u32 {
    let mut found = None;
    until("there is a guardian", || {
        let path = format!("/proc/{0}/task/{0}/children", program.pid());
        // Whichever thread has started it.
        let all = std::fs::read_dir(format!("/proc/{}/task", program.pid())).unwrap().flatten();
        let lists = all.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
        found = lists
            .chain([std::fs::read_to_string(path).unwrap_or_default()])
            .find_map(|list| list.split_whitespace().next().and_then(|pid| pid.parse().ok()));
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn killed_the_wrapper_takes_its_command_along() {
    let place = Place::new();
    let (first, _second) = two(&place, &busy("log"));
    let killed = Instant::now();
    first.signal(Signal::KILL);
    let pid = begun(&place, 1)[0];
    until("the command is gone", || !is_alive(pid));
    println!("gone after {:?}", killed.elapsed());
    check(&place);
}

#[test]
fn stopped_for_longer_than_the_lease_the_wrapper_loses_its_command() {
    for signal in [Signal::STOP, Signal::TSTP] {
        let place = Place::new();
        let (mut first, _second) = two(&place, &busy("log"));
        first.signal(signal);
        check(&place);
        first.signal(Signal::CONT);
        assert_eq!(first.ends(), 76, "{signal:?}");
    }
}

#[test]
fn a_command_that_does_not_heed_sigterm_is_killed_in_time() {
    let place = Place::new();
    let stubborn = format!("trap '' TERM; {}", busy("log"));
    let (first, _second) = two(&place, &stubborn);
    first.signal(Signal::STOP);
    check(&place);
}

#[test]
fn grandchildren_end_too_also_those_that_got_away() {
    let place = Place::new();
    // One in the background, one in a session of its own, and one whose parent is gone.
    let script = format!(
        r#"sleep 600 & echo $! >> "$PLACE/pids"
           setsid sh -c 'echo $$ >> "$PLACE/pids"; trap "" TERM; while :; do sleep 0.05; done' &
           sh -c 'setsid sleep 600 & echo $! >> "$PLACE/pids"' &
           {}"#,
        busy("log")
    );
    let first = place.run("role", &["--ttl", TTL], &script);
    let pids: Vec<u32> = place.lines("pids", 3).iter().map(|line| line.parse().unwrap()).collect();
    begun(&place, 1);
    let _second = place.run("role", &["--ttl", TTL], &busy("log"));
    first.signal(Signal::KILL);
    check(&place);
    for pid in pids {
        assert!(!is_alive(pid), "a grandchild is still there");
    }
}

#[test]
fn what_a_command_leaves_behind_ends_before_the_next_begins() {
    let place = Place::new();
    let leaves = r#"setsid sleep 600 & echo $! >> "$PLACE/pids"; exit 0"#;
    let mut first = place.run("role", &["--ttl", TTL], leaves);
    let pid: u32 = place.lines("pids", 1)[0].parse().unwrap();
    let mut second = place.run("role", &["--ttl", TTL], r#"kill -0 "$(cat "$PLACE/pids")" && exit 9; exit 0"#);
    assert_eq!(first.ends(), 0);
    assert_eq!(second.ends(), 0, "it was still there");
    assert!(!is_alive(pid));
}

#[test]
fn a_guardian_that_is_killed_leaves_nothing_behind() {
    let place = Place::new();
    let (mut first, _second) = two(&place, &busy("log"));
    let guardian = guardian_of(&first);
    kill_process(Pid::from_raw(i32::try_from(guardian).unwrap()).unwrap(), Signal::KILL).unwrap();
    assert_eq!(first.ends(), 76);
    check(&place);
}

#[test]
fn a_guardian_heeds_no_signal_that_is_meant_for_others() {
    let place = Place::new();
    let first = place.run("role", &["--ttl", TTL], &busy("log"));
    let pid = begun(&place, 1)[0];
    let guardian = guardian_of(&first);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::TSTP] {
        kill_process(Pid::from_raw(i32::try_from(guardian).unwrap()).unwrap(), signal).unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
    assert!(is_alive(guardian) && is_alive(pid));
}
