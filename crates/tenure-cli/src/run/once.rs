//! `--once-per`: records when the last completed run was started. Uses only the store's clock.

use std::time::Duration;

use tenure::time::ServerTime;
use tenure::{LeaseName, RequestError, Tenure, TermHandle};

use crate::duration::format_duration;
use crate::exit::CliError;
use crate::notice::{note, warning};

/// Name of the record beside the lease.
const ONCE_RECORD: &str = "once";

/// Returns how long the command is not due, because it ran within this period, or `None` when it is due. Called by the
/// holder.
pub async fn time_left(tenure: &Tenure, term: &TermHandle, period: Duration) -> Result<Option<Duration>, CliError> {
    let Some(now) = term_start(tenure, term).await? else { return Ok(None) };
    let Some(last) = last_start(tenure, term.name()).await? else { return Ok(None) };
    let Some(since) = now.as_micros().checked_sub(last).map(Duration::from_micros) else {
        // The store's clock was ahead then. Counting from now ends the period, and no run is repeated because of it.
        write(term, now).await;
        note!("skipped: the last start is in the future of the store's clock; counted from now");
        return Ok(Some(period));
    };
    Ok(remaining_period(period, since))
}

/// Does the same without the lease, so that a run that is not due does not wait for the holder. Returns `None` also
/// when only the holder can decide.
pub async fn time_left_without_lease(
    tenure: &Tenure,
    name: &LeaseName,
    period: Duration,
) -> Result<Option<Duration>, RequestError> {
    tenure.ready().await?;
    let Some(last) = last_start(tenure, name).await? else { return Ok(None) };
    let now = tenure.admin().namespace().await?.server;
    let since = now.as_micros().checked_sub(last).map(Duration::from_micros);
    Ok(since.and_then(|since| remaining_period(period, since)))
}

/// Returns the start of the last completed run, in microseconds of the store's clock.
async fn last_start(tenure: &Tenure, name: &LeaseName) -> Result<Option<u64>, RequestError> {
    let record = tenure.read(name, ONCE_RECORD).await?;
    Ok(record.and_then(|record| String::from_utf8(record.value).ok()?.parse().ok()))
}

/// Returns the rest of the period, if any.
fn remaining_period(period: Duration, since: Duration) -> Option<Duration> {
    let left = period.saturating_sub(since);
    if left.is_zero() {
        return None;
    }
    note!("skipped: started {} ago and completed; next in {}", format_duration(since), format_duration(left));
    Some(left)
}

/// Records that the run started in this term has completed. If that fails, the run may be repeated, and a warning says
/// so; the exit status of the command is not affected.
pub async fn record_completion(tenure: &Tenure, term: &TermHandle) {
    match term_start(tenure, term).await {
        Ok(Some(began)) => write(term, began).await,
        Ok(None) => warn("the lease is lost"),
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
    Ok(tenure.admin().inspect(term.name()).await?.since)
}
