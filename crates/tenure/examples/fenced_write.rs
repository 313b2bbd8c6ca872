//! A critical section: adds up sales, writes the total to a database that compares tokens, and publishes it.
//!
//! ```sh
//! cargo run -p tenure --example fenced_write -- total.txt
//! ```
//!
//! Stop Redis meanwhile (`kill -STOP`) to see the other outcomes.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use tenure::{AcquireError, PublishError, ReleaseError, RunError, Tenure, Term, Token};

const LEASE: &str = "daily-total";
const TTL: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let path = std::env::args().nth(1).context("usage: fenced_write FILE")?;
    let store = std::env::var("TENURE_STORE").unwrap_or_else(|_| "redis://localhost".to_owned());
    let tenure = Tenure::connect(&store).await.context("nothing was written: cannot connect to the store")?;
    let outcome = update_total(&tenure, &path).await;
    // Error paths drop the lease: wait until it is released, but not for ever.
    if tokio::time::timeout(TTL, tenure.shutdown()).await.is_err() {
        println!("the lease may be held until its ttl has ended: the store does not reply");
    }
    outcome
}

async fn update_total(tenure: &Tenure, path: &str) -> anyhow::Result<()> {
    let lease = match tenure.lease(LEASE).ttl(TTL).timeout(Duration::from_secs(5)).acquire().await {
        Ok(lease) => lease,
        Err(AcquireError::TimedOut { holder: Some(holder), waited, .. }) => {
            println!("nothing was written: lease not acquired within {waited:.1?}, held by {holder}");
            return Ok(());
        }
        Err(error) => return Err(error).context("nothing was written: cannot acquire the lease"),
    };
    let token = lease.token();
    println!("{} acquired the lease, token {token}", tenure.instance());

    // First the token, then the read: from here on a late write of an earlier term is refused.
    let old = write_fenced(path, token, None)?;
    let total = match lease.run(add_sales(&old)).await {
        Ok(total) => total.to_string(),
        Err(RunError::Work(error)) => return Err(error.context("the database has the old total: cannot add the sales")),
        Err(stopped) => bail!("the database has the old total, or that of the next holder: {stopped}"),
    };

    // Begins when the lease is certain: after a short outage, too. It does not yield, so it is never half done.
    match lease.run(async { write_fenced(path, token, Some(&total)) }).await {
        Ok(_) => println!("the database has the total {total}"),
        Err(RunError::Work(error)) => return Err(error),
        Err(stopped) => bail!("the database has the old total, or that of the next holder: {stopped}"),
    }

    publish(tenure, &lease, &total).await?;
    match lease.release().await {
        Ok(()) => println!("released"),
        Err(ReleaseError::Lost(lost)) => println!("all is written; the lease ended before its release: {lost}"),
        Err(error) => println!("all is written; the lease is free now or when its ttl has ended: {error}"),
    }
    Ok(())
}

/// Publishes the total. Repeats the same value while the outcome is unknown, as long as the term lasts.
async fn publish(tenure: &Tenure, lease: &Term, total: &str) -> anyhow::Result<()> {
    let mut may_be_written = false;
    loop {
        match lease.publish("total", total).await {
            Ok(()) => {
                println!("published the total {total}");
                return Ok(());
            }
            Err(PublishError::Refused(loss)) if !may_be_written => bail!("the total is in the database only: {loss}"),
            Err(PublishError::Refused(_)) => break, // this attempt was refused, but an earlier one may be carried out
            Err(PublishError::Unknown(error)) => {
                may_be_written = true;
                println!("not known whether the total is published: {error}; trying again");
            }
            Err(PublishError::Store(error)) if error.is_retryable() => println!("not published: {error}; trying again"),
            Err(error) => return Err(error).context("the total is in the database, and perhaps not published"),
        }
        if !lease.wait(Duration::from_millis(500)).await {
            break;
        }
    }
    // A late request can be carried out until the lease has expired in the store. After that, what is there stays.
    tokio::time::sleep(TTL).await;
    match tenure.read(LEASE, "total").await {
        Ok(Some(record)) if record.token == lease.token() => println!("published after all: the term ended meanwhile"),
        Ok(Some(record)) if record.token > lease.token() => println!("a later term, {}, has published", record.token),
        Ok(_) => bail!("the total is in the database and not published: the term ended"),
        Err(error) => bail!("the total is in the database; not known whether it is published: {error}"),
    }
    Ok(())
}

/// Takes some seconds, and can fail.
async fn add_sales(old: &str) -> anyhow::Result<u64> {
    let mut total = if old.is_empty() { 0 } else { old.parse().with_context(|| format!("not a total: {old:?}"))? };
    for sale in [1, 2, 3, 4] {
        tokio::time::sleep(Duration::from_secs(1)).await;
        total += sale;
    }
    Ok(total)
}

/// The database: one row in a file, with the largest token seen. Refuses smaller tokens. Returns the value before.
fn write_fenced(path: &str, token: Token, value: Option<&str>) -> anyhow::Result<String> {
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    file.lock()?; // compare and write are one step
    let mut row = String::new();
    file.read_to_string(&mut row)?;
    let (seen, old) = row.split_once(' ').unwrap_or(("0", ""));
    if seen.parse::<u64>()? > token.get() {
        bail!("refused, nothing was written: term {seen} was here before term {token}");
    }
    file.set_len(0)?;
    file.rewind()?;
    write!(file, "{token} {}", value.unwrap_or(old)).context("the row may be incomplete")?;
    Ok(old.to_owned())
}
