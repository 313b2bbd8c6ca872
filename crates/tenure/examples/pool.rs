//! A replica of a poller. All running replicas share the targets, and each polls its own. Ctrl-C hands them over.
//!
//! Start it in several terminals: `cargo run -p tenure --example pool -- sqlite:/tmp/pool.db` (or a `redis://` URL),
//! stop one, kill another with `kill -9`, and watch where the targets move.

use std::error::Error;
use std::time::Duration;

use tenure::Tenure;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "sqlite:pool.db".to_owned());
    // This also works while the store is down: it keeps trying.
    let tenure = Tenure::builder(&url).longest_ttl(Duration::from_secs(10)).start()?;
    let pool = tenure
        .pool("poll")
        .targets((1..=9).map(|n| format!("endpoint-{n}")))
        .ttl(Duration::from_secs(10))
        .run(async |target, lease| {
            let mut ticks = lease.every(Duration::from_secs(2)); // keeps its phase across holders
            while let Some(tick) = ticks.next().await {
                println!("{target}: due at {}, polled under token {}", tick.due_millis(), lease.token());
            }
        })
        .start()?;
    let mut events = pool.events();
    let told = async {
        while let Some(event) = events.next().await {
            println!("{event}");
        }
    };
    tokio::select! {
        () = told => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    // Each target is handed over when it has just been polled; no tick is skipped.
    pool.stop().await;
    tenure.shutdown().await;
    Ok(())
}
