//! The server's clock is set.

use std::time::{Duration, Instant};

use tenure::Token;
use tenure::lease::{Ending, Loss};
use tenure_testbed::RedisServer;

use crate::stage::{Instance, Probe, Record, TTL};

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

#[tokio::test]
async fn set_ahead_it_ends_every_lease_and_nobody_works_twice() {
    let Some(server) = server() else { return };
    let probe = Probe::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let bob = Instance::connect(&server.url(), "bob", TTL).await;
    let record = Record::default();
    let job = record.candidate(&alice, "job", TTL);
    let token = record.works("alice", Token::ZERO).await;
    let _waits = record.candidate(&bob, "job", TTL);
    bob.sees("lease.acquire_failed").await;

    server.step_clock(HOUR, true);
    let stepped = Instant::now();

    // The key is gone for the server; alice learns that with her next renewal, or that somebody else has the lease.
    let ending = job.first_ending().await;
    assert!(matches!(ending, Ending::Lost(Loss::Missing | Loss::ClockStep | Loss::Taken { .. })), "{ending}");
    probe.within(stepped.elapsed(), TTL / 3 + TTL / 15, "work stops");
    record.works("", token).await;
    // Bob, who was granted it too early, waits until alice must have stopped.
    record.check();
}

#[tokio::test]
async fn set_back_it_ends_the_term_and_the_lease_can_be_had_again() {
    let Some(server) = server() else { return };
    let probe = Probe::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let bob = Instance::connect(&server.url(), "bob", TTL).await;
    let record = Record::default();
    let job = record.candidate(&alice, "job", TTL);
    let token = record.works("alice", Token::ZERO).await;
    let _waits = record.candidate(&bob, "job", TTL);
    bob.sees("lease.acquire_failed").await;

    server.step_clock(HOUR, false);
    let stepped = Instant::now();

    assert_eq!(job.first_ending().await, Ending::Lost(Loss::ClockStep));
    probe.within(stepped.elapsed(), TTL / 3 + TTL / 15, "work stops");
    let next = record.works("", token).await;
    assert!(next > token, "tokens grow although the clock went back");
    record.check();
}
