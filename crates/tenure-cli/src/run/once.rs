//! `--once-per`: when the command was last started and completed. By the store's clock alone.

use std::time::Duration;

use tenure::time::ServerTime;
use tenure::{Tenure, TermHandle};

use crate::duration::shown;
use crate::exit::Failure;
use crate::notice::{note, warning};

/// The record beside the lease.
const RECORD: &str = "once";

/// How long the command is not to be run, because it was within this period; `None` when it is due.
pub async fn time_left(tenure: &Tenure, term: &TermHandle, period: Duration) -> Result<Option<Duration>, Failure> {
    let Some(now) = began(tenure, term).await? else { return Ok(None) };
    let record = tenure.read(term.name(), RECORD).await?;
    let last = record.and_then(|record| String::from_utf8(record.value).ok()?.parse::<u64>().ok());
    let Some(last) = last else { return Ok(None) };
    let Some(since) = now.as_micros().checked_sub(last).map(Duration::from_micros) else {
        // The store's clock was ahead then. Counted from now the period ends, and no run is repeated for it.
        write(term, now).await;
        note!("skipped: the last start is in the future of the store's clock; counted from now");
        return Ok(Some(period));
    };
    let left = period.saturating_sub(since);
    if left.is_zero() {
        return Ok(None);
    }
    note!("skipped: started {} ago and completed; next in {}", shown(since), shown(left));
    Ok(Some(left))
}

/// Writes down that what was started with this term has completed. When that cannot be done it may be run again, and that
/// is said; the command has ended all the same.
pub async fn write_down(tenure: &Tenure, term: &TermHandle) {
    match began(tenure, term).await {
        Ok(Some(began)) => write(term, began).await,
        Ok(None) => warn("the lease is gone"),
        Err(failure) => warn(&failure.to_string()),
    }
}

async fn write(term: &TermHandle, started: ServerTime) {
    if let Err(error) = term.publish(RECORD, started.as_micros().to_string()).await {
        warn(&error.to_string());
    }
}

fn warn(why: &str) {
    warning!("cannot record the run, so it may be repeated: {why}");
}

async fn began(tenure: &Tenure, term: &TermHandle) -> Result<Option<ServerTime>, Failure> {
    Ok(tenure.inspect(term.name()).await?.since)
}
