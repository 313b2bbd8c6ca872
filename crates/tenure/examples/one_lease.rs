//! One lease, three instances, and a store that fails: acquire, work, release, loss, and a late result that is refused.
//!
//! ```text
//! cargo run -p tenure --example one_lease
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tenure::store::memory::{MemoryStore, Survival};
use tenure::{InstanceId, PublishError, RunError, Tenure, Term};

const TTL: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = MemoryStore::default();

    say("Anna acquires the lease and works.");
    let anna = start(&store, "anna").await?;
    let term = acquire(&anna).await?;
    let first = term.token();
    let report = term.run_infallible(build_report()).await?;
    term.publish("report", report).await?;

    say("Ben waits for the lease, too.");
    let ben = start(&store, "ben").await?;
    let waiting = tokio::spawn({
        let ben = ben.clone();
        async move { ben.lease("nightly-report").ttl(TTL).acquire().await }
    });
    tokio::time::sleep(Duration::from_millis(700)).await;

    say("Anna is done: she releases the lease, and Ben acquires it.");
    term.release().await?;
    let term = waiting.await??;
    let (second, late) = (term.token(), (*term).clone());

    say("The store goes down. Ben's renewals fail; his work stops before another instance can acquire the lease.");
    store.faults().stop();
    match term.run_infallible(std::future::pending::<()>()).await {
        Err(RunError::Lost(lost)) => println!("        ({lost})"),
        other => return Err(format!("a term without a store must be lost, got {other:?}").into()),
    }
    drop(term);

    say("The store is back with all its data. It was restarted, so nothing is granted for one ttl.");
    store.faults().restart(Survival::All);
    let carl = start(&store, "carl").await?;
    let term = acquire(&carl).await?;
    let third = term.token();

    say("Ben publishes a result under his old term, and the store refuses it.");
    match late.publish("report", "an old report").await {
        Err(PublishError::Refused(why)) => println!("        (refused: {why})"),
        other => return Err(format!("a late result must be refused, got {other:?}").into()),
    }
    if !(first < second && second < third) {
        return Err(format!("tokens must increase: {first}, {second}, {third}").into());
    }
    term.release().await?;
    say("Every token was larger than the one before. Done.");
    Ok(())
}

/// Starts an instance of a service that prints its events.
async fn start(store: &MemoryStore, name: &str) -> Result<Tenure, Box<dyn Error>> {
    let tenure = Tenure::with_store(Arc::new(store.clone()))
        .instance(InstanceId::new(name)?)
        .longest_ttl(TTL)
        .on_event(|event| println!("        {event}"))
        .connect();
    Ok(tenure.await?)
}

async fn acquire(tenure: &Tenure) -> Result<Term, Box<dyn Error>> {
    Ok(tenure.lease("nightly-report").ttl(TTL).acquire().await?)
}

async fn build_report() -> String {
    tokio::time::sleep(Duration::from_millis(300)).await;
    "a report".to_owned()
}

fn say(text: &str) {
    println!("\n{text}");
}
