//! Functions that only the leader runs, and what followers get instead.
//!
//! ```sh
//! cargo run -p tenure --example leader_only
//! cargo run -p tenure --example leader_only     # in a second terminal, at the same time
//! ```

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context;
use tenure::election::LeaderOnlyError;
use tenure::{Tenure, leader_only};

/// Uses its parameter `tenure`. `main` starts an election of this role, which decides who runs it.
#[leader_only("aggregation")]
async fn aggregate(tenure: &Tenure, numbers: &[u32]) -> u32 {
    println!("  {} aggregates", tenure.instance());
    numbers.iter().sum()
}

struct Service {
    tenure: Tenure,
    runs: AtomicU32,
}

impl Service {
    /// Has no election: each call acquires the leadership while it runs. `error` tells followers the reason.
    #[leader_only("clean-up", tenure = self.tenure, error)]
    async fn clean_up(&self) -> anyhow::Result<u32> {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let run = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
        anyhow::ensure!(!run.is_multiple_of(3), "every third run fails");
        Ok(run)
    }
}

/// Uses the `Tenure` that `main` has installed.
#[leader_only("report")]
async fn send_report(round: u32) -> String {
    tokio::time::sleep(Duration::from_millis(500)).await;
    format!("report of round {round}")
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = std::env::var("TENURE_STORE").unwrap_or_else(|_| "redis://localhost".to_owned());
    let tenure = Tenure::connect(&store).await.context("cannot connect to the store")?;
    println!("{}", tenure.instance());
    tenure::install(tenure.clone());
    let service = Service { tenure: tenure.clone(), runs: AtomicU32::new(0) };

    let election = tenure.election("aggregation").ttl(Duration::from_secs(3)).build()?;
    election.start();

    for round in 1..=6 {
        println!("round {round}");
        match aggregate(&tenure, &[1, 2, 3]).await {
            Some(total) => println!("  total: {total}"),
            None => println!("  no total: another instance leads, or the leader is not known"),
        }
        match service.clean_up().await {
            Ok(Ok(run)) => println!("  clean-up {run} done"),
            Ok(Err(error)) => println!("  clean-up failed by itself: {error:#}"),
            Err(LeaderOnlyError::NotLeader { leader }) => {
                println!(
                    "  clean-up not begun: {} does it",
                    leader.as_ref().map_or("another instance", |id| id.as_str())
                );
            }
            Err(error @ (LeaderOnlyError::Lost(_) | LeaderOnlyError::Released(_))) => {
                println!("  clean-up may be incomplete: {error}");
            }
            Err(error) => println!("  clean-up not begun: {error}"),
        }
        match send_report(round).await {
            Some(report) => println!("  sent the {report}"),
            None => println!("  no report: another instance sends one"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    election.stop().await;
    tenure.shutdown().await;
    Ok(())
}
