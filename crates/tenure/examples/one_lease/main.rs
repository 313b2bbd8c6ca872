//! One lease, three instances, and a store that fails: acquire, work, release, loss, and a late result that is refused.
//!
//! ```text
//! cargo run -p tenure --example one_lease
//! ```

mod instance;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use instance::Instance;
use tenure::lease::{LeaseSettings, ReleaseReason};
use tenure::store::memory::{MemoryStore, Survival};
use tenure::store::{Refusal, Reply};
use tenure::{InstanceId, LeaseName};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = MemoryStore::default();
    let name = LeaseName::lease("nightly-report")?;
    let settings = Arc::new(LeaseSettings::builder().ttl(Duration::from_secs(3)).build()?);
    let start = |who: &str| -> Result<Instance, Box<dyn Error>> {
        let id = InstanceId::new(who)?;
        Ok(Instance::start(store.clone(), name.clone(), id, settings.clone()))
    };

    say("Anna asks for the lease and works.");
    let mut anna = start("anna")?;
    let first = anna.works().await?;

    say("Ben asks, too, and waits.");
    let mut ben = start("ben")?;
    tokio::time::sleep(Duration::from_millis(700)).await;

    say("Anna is done: her work ends, then she lets go, and Ben is told.");
    anna.release(ReleaseReason::Voluntary).await?;
    let second = ben.works().await?;

    say("The store goes down. Ben's renewals fail; his work stops before the lease can be anybody else's.");
    store.faults().stop();
    ben.stopped().await?;

    say("The store is back with all its data. It was restarted, so nothing is granted for one ttl.");
    store.faults().restart(Survival::All);
    let mut carl = start("carl")?;
    let third = carl.works().await?;

    say("Ben wakes up with a result from his old term, and is refused.");
    match ben.publish(second, b"an old report").await? {
        Reply::Refused(Refusal::Taken { by }) => println!("        (refused: the lease is {by}'s)"),
        other => return Err(format!("a late result must be refused, but: {other:?}").into()),
    }
    if !(first < second && second < third) {
        return Err(format!("tokens must grow: {first}, {second}, {third}").into());
    }
    carl.release(ReleaseReason::Shutdown).await?;
    say("Every token was larger than the one before. Done.");
    Ok(())
}

fn say(text: &str) {
    println!("\n{text}");
}
