//! `--once-per`: when the command was last started and completed. By the store's clock alone.

use std::time::Duration;

use tenure::store::StoreError;
use tenure::time::ServerTime;
use tenure::{LeaseName, Tenure, TermHandle};

use crate::duration::format_duration;
use crate::exit::CliError;
use crate::notice::{note, warning};

/// The record beside the lease.
const ONCE_RECORD: &str = "once";

/// How long the command is not to be run, because it was within this period; `None` when it is due. Asked by the holder.
pub async fn time_left(tenure: &Tenure, term: &TermHandle, period: Duration) -> Result<Option<Duration>, CliError> {
    let Some(now) = term_start(tenure, term).await? else { return Ok(None) };
    let Some(last) = last_start(tenure, term.name()).await? else { return Ok(None) };
    let Some(since) = now.as_micros().checked_sub(last).map(Duration::from_micros) else {
        // The store's clock was ahead then. Counted from now the period ends, and no run is repeated for it.
        write(term, now).await;
        note!("skipped: the last start is in the future of the store's clock; counted from now");
        return Ok(Some(period));
    };
    Ok(remaining_period(period, since))
}

/// The same before the lease is acquired: a run that is not due does not wait for the holder. `None` also when only the holder
/// can tell.
pub async fn time_left_without_lease(
    tenure: &Tenure,
    name: &LeaseName,
    period: Duration,
) -> Result<Option<Duration>, StoreError> {
    tenure.ready().await?;
    let Some(last) = last_start(tenure, name).await? else { return Ok(None) };
    let now = tenure.inspect_namespace().await?.server;
    let since = now.as_micros().checked_sub(last).map(Duration::from_micros);
    Ok(since.and_then(|since| remaining_period(period, since)))
}

/// The start of the last run that has completed, in microseconds of the store's clock.
async fn last_start(tenure: &Tenure, name: &LeaseName) -> Result<Option<u64>, StoreError> {
    let record = tenure.read(name, ONCE_RECORD).await?;
    Ok(record.and_then(|record| String::from_utf8(record.value).ok()?.parse().ok()))
}

/// What is left of the period, if anything is.
fn remaining_period(period: Duration, since: Duration) -> Option<Duration> {
    let left = period.saturating_sub(since);
    if left.is_zero() {
        return None;
    }
    note!("skipped: started {} ago and completed; next in {}", format_duration(since), format_duration(left));
    Some(left)
}

/// Writes down that what was started with this term has completed. When that cannot be done it may be run again, and that
/// is said; the command has ended all the same.
pub async fn record_completion(tenure: &Tenure, term: &TermHandle) {
    match term_start(tenure, term).await {
        Ok(Some(began)) => write(term, began).await,
        Ok(None) => warn("the lease is gone"),
        Err(failure) => warn(&failure.to_string()),
    }
}

async fn write(term: &TermHandle, started: ServerTime) {
    if let Err(error) = term.publish(ONCE_RECORD, started.as_micros().to_string()).await {
        warn(&error.to_string());
    }
}

fn warn(why: &str) {
    warning!("cannot record the run, so it may be repeated: {why}");
}

async fn term_start(tenure: &Tenure, term: &TermHandle) -> Result<Option<ServerTime>, CliError> {
    Ok(tenure.inspect(term.name()).await?.since)
}
