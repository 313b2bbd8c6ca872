//! A rolling upgrade from the previous release: both versions share a fleet for a while.

use super::*;

use super::restarts::{SESSIONS, moves, wait_until_balanced};

/// The binary of the previous release; `cargo xtask upgrade` builds it.
const PREVIOUS_ENV: &str = "TENURE_PREVIOUS_BINARY";

#[test]
#[ignore = "needs the binary of the previous release: cargo xtask upgrade REVISION"]
fn an_upgrade_of_one_instance_after_the_other_moves_no_session_more_than_twice() {
    let previous = std::env::var(PREVIOUS_ENV).expect("cargo xtask upgrade REVISION sets the path of the binary");
    let (_redis, server, fixture) = on_redis();
    let start = |binary: &str, name: &str| {
        let new = ServeInstance::command(&fixture, &["--name", name]);
        let mut command = Command::new(binary);
        command.args(new.get_args()).envs(new.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let instance = ServeInstance::of(command.stdin(Stdio::null()));
        wait_until("the instance is ready", || instance.get("/readyz").0 == 200);
        instance
    };
    let names = ["one", "two", "three"];
    let mut fleet: Vec<ServeInstance> = names.iter().map(|name| start(&previous, name)).collect();
    for n in 0..SESSIONS {
        fleet[0].add(&server.url(&format!("/{n}")));
    }
    wait_until_balanced(&server, 3);
    std::thread::sleep(Duration::from_secs(2));
    let before = moves(&server);
    for (n, name) in names.iter().enumerate() {
        fleet[n].signal(Signal::TERM);
        assert_eq!(fleet[n].wait_exit(), Some(0));
        fleet[n] = start(env!("CARGO_BIN_EXE_tenure"), name);
        wait_until_balanced(&server, 3);
    }
    let moved = moves(&server).into_iter().map(|(session, count)| (session.clone(), count - before[&session]));
    let moved: BTreeMap<String, usize> = moved.collect();
    assert!(moved.values().all(|count| *count <= 2), "{moved:?}");
    assert_polled_once(server.requests());
    // A session and a result of the previous release are read by the new one, and its tokens go on.
    let (status, sessions) = fleet[0].get("/v1/sessions?limit=100");
    assert_eq!((status, sessions["sessions"].as_array().map(Vec::len)), (200, Some(SESSIONS)), "{sessions}");
}
