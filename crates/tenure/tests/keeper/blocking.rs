//! User code cannot delay the keeper.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tenure_testbed::RedisServer;

use crate::harness::{Bystander, Instance, TTL, builder};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_blocks_every_thread_of_the_runtime_does_not_stop_renewals() {
    let server = RedisServer::start();
    let alice = Instance::connect(&server.url(), "alice", TTL).await;
    let term = alice.acquire("job", TTL).await;
    let blocked: Vec<_> = (0..8).map(|_| tokio::spawn(async { std::thread::sleep(TTL * 2) })).collect();
    // Block this thread, too: no task of the program's own runtime runs now.
    std::thread::sleep(TTL * 2);
    assert!(term.is_valid(), "the term must be renewed meanwhile");
    for task in blocked {
        task.await.unwrap();
    }
    assert!(term.is_valid() && !alice.has_event("lease.lost"), "{:?}", alice.event_names());
}

#[tokio::test]
async fn a_blocking_listener_delays_nothing() {
    let server = RedisServer::start();
    let bystander = Bystander::at(&server.url()).await;
    let (shut, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let builder = builder(&server.url(), "alice", TTL).on_event(move |_| {
        // Blocks until the sender is dropped.
        let _ = gate.lock().unwrap().recv();
    });
    let tenure = builder.connect().await.unwrap();
    let term = tenure.lease("job").ttl(TTL).acquire().await.unwrap();
    let start = Instant::now();
    while start.elapsed() < TTL * 2 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(term.is_valid());
    }
    term.release().await.unwrap();
    bystander.assert_untouched().await;
    drop(shut);
}
