//! The server's clock is set.

use std::time::{Duration, Instant};

use tenure::lease::{Ending, Loss};
use tenure_testbed::RedisServer;

use crate::stage::{NEXT_RENEWAL, Scene, Setup, TTL};

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
async fn scene(server: &RedisServer) -> Scene {
    Setup::at(&server.url()).for_all().scene().await
}

#[tokio::test]
async fn set_ahead_it_ends_every_lease_and_nobody_works_twice() {
    let Some(server) = server() else { return };
    let scene = scene(&server).await;

    server.step_clock(HOUR, true);
    let stepped = Instant::now();

    // The key is gone for the server; alice learns that with her next renewal, or that somebody else has the lease.
    let ending = scene.stops(stepped, NEXT_RENEWAL).await;
    assert!(matches!(ending, Ending::Lost(Loss::Missing | Loss::ClockStep | Loss::Taken { .. })), "{ending}");
    // Bob, who was granted it too early, waits until alice must have stopped.
    scene.goes_on_with(stepped, TTL * 2).await;
    scene.ends().await;
}

#[tokio::test]
async fn set_back_it_ends_the_term_and_the_lease_can_be_had_again() {
    let Some(server) = server() else { return };
    let scene = scene(&server).await;

    server.step_clock(HOUR, false);
    let stepped = Instant::now();

    assert_eq!(scene.stops(stepped, NEXT_RENEWAL).await, Ending::Lost(Loss::ClockStep));
    // Under a larger token, although the clock went back.
    scene.goes_on_with(stepped, TTL * 2).await;
    scene.ends().await;
}
