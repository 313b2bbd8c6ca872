//! `--once-per`: when the command was last begun, and came to an end. By the store's clock alone.

use std::time::Duration;

use tenure::time::ServerTime;
use tenure::{Tenure, TermHandle};

use crate::duration::shown;
use crate::exit::Failure;

/// The record beside the lease.
const RECORD: &str = "once";

/// Whether somebody has done it within this time.
pub async fn was_done(tenure: &Tenure, term: &TermHandle, period: Duration) -> Result<bool, Failure> {
    let Some(now) = began(tenure, term).await? else { return Ok(false) };
    let record = tenure.read(term.name(), RECORD).await?;
    let last = record.and_then(|record| String::from_utf8(record.value).ok()?.parse::<u64>().ok());
    let since = last.map(|last| Duration::from_micros(now.as_micros().saturating_sub(last)));
    match since {
        Some(since) if since < period => {
            eprintln!("tenure: done {} ago, and once per {} is enough", shown(since), shown(period));
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Writes down that what was begun with this term has come to an end. When that cannot be done it may be done again, and that is
/// said; the command has ended all the same.
pub async fn write_down(tenure: &Tenure, term: &TermHandle) {
    let written = match began(tenure, term).await {
        Ok(Some(began)) => term.publish(RECORD, began.as_micros().to_string()).await.map_err(|error| error.to_string()),
        Ok(None) => Err("the lease is gone".to_owned()),
        Err(failure) => Err(failure.to_string()),
    };
    if let Err(why) = written {
        eprintln!("tenure: could not write down that it was done, so it may be done again: {why}");
    }
}

async fn began(tenure: &Tenure, term: &TermHandle) -> Result<Option<ServerTime>, Failure> {
    Ok(tenure.inspect(term.name()).await?.since)
}
