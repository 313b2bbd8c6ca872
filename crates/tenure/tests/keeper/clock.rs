//! The server's clock is stepped.

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
    // Written directly to stderr, past the capture of test output.
    let _ = std::io::stderr().write_all(b"NOT TESTED: cannot find libfaketime; run `cargo xtask test`\n");
    None
}

/// The clock affects every lease, so there is no bystander.
async fn scenario(server: &RedisServer) -> Scenario {
    ScenarioBuilder::at(&server.url()).without_bystander().start().await
}

#[tokio::test]
async fn a_server_clock_set_ahead_ends_every_lease_without_overlap() {
    let Some(server) = server() else { return };
    let scenario = scenario(&server).await;

    server.step_clock(HOUR, true);
    let stepped = Instant::now();

    // The key has expired for the server. Alice's next renewal finds it missing, or finds another holder.
    let ending = scenario.wait_until_stopped(stepped, MAX_RENEWAL_DELAY).await;
    assert!(matches!(ending, Ending::Lost(Loss::Missing | Loss::ClockStep | Loss::Taken { .. })), "{ending}");
    // Bob, whose grant came too early, waits until alice must have stopped.
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
    // With a larger token, although the clock went back.
    scenario.wait_for_next_work(stepped, TTL * 2).await;
    scenario.finish().await;
}
