//! A log without a reader. In a separate test program, because a tracing subscriber is global to the process.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::io::{PipeReader, Write};
use std::time::Duration;

use tenure::log::{EventLayer, Format};
use tenure::{LeaseName, Tenure};
use tenure_testbed::RedisServer;
use tracing_subscriber::layer::SubscriberExt;

const TTL: Duration = Duration::from_millis(1_500);

/// A full pipe without a reader, as the stderr of a program can be.
fn full_pipe() -> (PipeReader, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut filler = writer.try_clone().unwrap();
    std::thread::spawn(move || {
        // Blocks when the pipe is full, until the reader is dropped.
        let _ = filler.write_all(&[b'x'; 1 << 20]);
    });
    (reader, writer)
}

#[tokio::test]
async fn an_unread_log_delays_nothing_and_dropped_events_are_counted() {
    let (reader, writer) = full_pipe();
    // Global to this process: another thread emits the events.
    let subscriber = tracing_subscriber::registry().with(EventLayer::new(Format::Json, writer));
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let server = RedisServer::start();
    let tenure = Tenure::builder(&server.url()).longest_ttl(TTL).bootstrap().connect().await.unwrap();
    let term = tenure.lease("job").ttl(TTL).acquire().await.unwrap();
    // Far more than the queue holds.
    for round in 0..1_500 {
        let name = LeaseName::lease(&format!("round-{round}")).unwrap();
        tenure.lease(name).ttl(TTL).acquire().await.unwrap().release().await.unwrap();
    }
    assert!(term.is_valid());
    let stats = tenure.stats();
    assert!(stats.events_dropped > 0, "{stats:?}");
    term.release().await.unwrap();
    drop(reader);
}
