//! The server's clock is set.

use std::time::{Duration, Instant};

use tenure::lease::{Ending, Loss};
use tenure_testbed::RedisServer;

use crate::harness::{MAX_RENEWAL_DELAY, Scenario, ScenarioBuilder, TTL};

const HOUR: Duration = Duration::from_secs(3_600);

fn server() -> Option<RedisServer> {
    if RedisServer::can_fake_time() {
        return Some(RedisServer::builder().own_clock().start());
    }
    use std::io::Write;
    // Past the capture of the test harness.
    let _ = std::io::stderr().write_all(b"NOT TESTED: libfaketime is not here; `cargo xtask test` gets it\n");
    None
}

/// The clock concerns every lease, so nobody is uninvolved.
async fn scenario(server: &RedisServer) -> Scenario {
    ScenarioBuilder::at(&server.url()).without_bystander().start().await
}

#[tokio::test]
async fn a_server_clock_set_ahead_ends_every_lease_without_overlap() {
    let Some(server) = server() else { return };
    let scenario = scenario(&server).await;

    server.step_clock(HOUR, true);
    let stepped = Instant::now();

    // The key is gone for the server; alice learns that with her next renewal, or that somebody else has the lease.
    let ending = scenario.wait_until_stopped(stepped, MAX_RENEWAL_DELAY).await;
    assert!(matches!(ending, Ending::Lost(Loss::Missing | Loss::ClockStep | Loss::Taken { .. })), "{ending}");
    // Bob, who was granted it too early, waits until alice must have stopped.
    scenario.wait_for_next_work(stepped, TTL * 2).await;
    scenario.finish().await;
}

#[tokio::test]
async fn a_server_clock_set_back_ends_the_term_and_the_lease_can_be_acquired_again() {
    let Some(server) = server() else { return };
    let scenario = scenario(&server).await;

    server.step_clock(HOUR, false);
    let stepped = Instant::now();

    assert_eq!(scenario.wait_until_stopped(stepped, MAX_RENEWAL_DELAY).await, Ending::Lost(Loss::ClockStep));
    // Under a larger token, although the clock went back.
    scenario.wait_for_next_work(stepped, TTL * 2).await;
    scenario.finish().await;
}
