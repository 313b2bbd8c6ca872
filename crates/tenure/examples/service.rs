//! A replica of a service. The replica with the lease works, the others wait. Ctrl-C releases it at once.
//!
//! Start it in several terminals: `cargo run -p tenure --example service -- sqlite:/tmp/service.db` (or a `redis://`
//! URL), stop one, kill another with `kill -9`, and watch which one takes over, and when.

use std::error::Error;
use std::time::Duration;

use tenure::{Tenure, TermHandle};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "sqlite:service.db".to_owned());
    // This also works while the store is down: it keeps trying.
    let tenure = Tenure::builder(&url).on_event(|event| println!("{event}")).start()?;
    tokio::select! {
        ended = serve(&tenure) => ended?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    // Stops the work and releases the lease: the next replica need not wait for the ttl.
    tenure.shutdown().await;
    Ok(())
}

async fn serve(tenure: &Tenure) -> Result<(), Box<dyn Error>> {
    loop {
        let lease = tenure.lease("cleanup").ttl(Duration::from_secs(10)).acquire().await?;
        match lease.run(clean_up(&lease)).await {
            Ok(()) => lease.release().await?,
            // The work was dropped before another replica could acquire the lease.
            Err(lost) => println!("stopped: {lost}"),
        }
    }
}

async fn clean_up(lease: &TermHandle) {
    for round in 1..=60 {
        println!("term {}: cleaning up, round {round}", lease.token());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
