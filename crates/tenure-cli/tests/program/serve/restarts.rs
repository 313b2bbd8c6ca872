//! Deploys: instances are stopped and restarted with the same name, one after the other.

use super::*;

pub(super) const SESSIONS: usize = 30;

/// Returns the number of moves of each session, as seen by its target.
pub(super) fn moves(server: &WebServer) -> BTreeMap<String, usize> {
    let count = |visits: &Vec<ReceivedRequest>| {
        let pairs = visits.windows(2);
        pairs.filter(|pair| pair[0].headers["tenure-instance"] != pair[1].headers["tenure-instance"]).count()
    };
    by_session(server.requests()).iter().map(|(session, visits)| (session.clone(), count(visits))).collect()
}

/// Waits until each instance polls its quota.
pub(super) fn wait_until_balanced(server: &WebServer, instances: usize) {
    wait_until("all instances have their quota", || {
        let pollers = pollers(server, Duration::from_millis(INTERVAL_MS * 3));
        let mut held: BTreeMap<&String, usize> = BTreeMap::new();
        pollers.values().for_each(|instance| *held.entry(instance).or_default() += 1);
        pollers.len() == SESSIONS
            && held.len() == instances
            && held.values().all(|count| *count == SESSIONS / instances)
    });
}

#[test]
fn a_rolling_restart_of_three_moves_no_session_more_than_twice_and_misses_no_slot() {
    let (_redis, server, fixture) = on_redis();
    let (probe, names) = (LagProbe::start(), ["one", "two", "three"]);
    let start = |name: &str| ServeInstance::start(&fixture, &["--name", name]);
    let mut fleet: Vec<ServeInstance> = names.iter().map(|name| start(name)).collect();
    for n in 0..SESSIONS {
        fleet[0].add(&server.url(&format!("/{n}")));
    }
    wait_until_balanced(&server, 3);
    // Do not count earlier moves.
    std::thread::sleep(Duration::from_secs(2));
    let (before, begun) = (moves(&server), Instant::now());
    for (n, name) in names.iter().enumerate() {
        fleet[n].signal(Signal::TERM);
        assert_eq!(fleet[n].wait_exit(), Some(0));
        fleet[n] = start(name);
        wait_until_balanced(&server, 3);
    }
    let moved: BTreeMap<String, usize> =
        moves(&server).into_iter().map(|(session, count)| (session.clone(), count - before[&session])).collect();
    assert!(moved.values().all(|count| *count <= 2), "{moved:?}");
    // A stalled machine may miss as many slots of each session as its stall covers.
    let stalled = probe.total_stall(Duration::from_millis(INTERVAL_MS / 10));
    let allowed = if stalled.is_zero() { 0 } else { stalled.as_millis() as u64 / INTERVAL_MS + 2 };
    let missed_slots = missed_slots(server.requests(), begun);
    let most = allowed * SESSIONS as u64;
    assert!(missed_slots <= most, "{missed_slots} slots missed, and the machine stalled for {stalled:?}");
    assert_polled_once(server.requests());
}

#[test]
fn without_hand_back_a_session_moves_only_when_its_holder_stops() {
    let (_redis, server, fixture) = on_redis();
    let names = ["one", "two", "three"];
    let start = |name: &str| ServeInstance::start(&fixture, &["--name", name, "--hand-back", "off"]);
    let mut fleet: Vec<ServeInstance> = names.iter().map(|name| start(name)).collect();
    for n in 0..SESSIONS {
        fleet[0].add(&server.url(&format!("/{n}")));
    }
    wait_until_balanced(&server, 3);
    std::thread::sleep(Duration::from_secs(2));
    let before: usize = moves(&server).values().sum();
    for (n, name) in names.iter().enumerate() {
        fleet[n].signal(Signal::TERM);
        assert_eq!(fleet[n].wait_exit(), Some(0));
        fleet[n] = start(name);
        // Long enough for every move that would happen.
        std::thread::sleep(TTL * 2);
    }
    let moved = moves(&server).values().sum::<usize>() - before;
    // The ten of the first, then those of two of three instances: fifteen each.
    assert!(moved <= 10 + 15 + 15, "{moved} moves");
    assert_polled_once(server.requests());
}
