//! `--once-per`: when the command was last begun, and came to an end. By the store's clock alone.

use std::time::Duration;

use tenure::time::ServerTime;
use tenure::{Tenure, Term};

use crate::exit::Failure;

/// The record beside the lease.
const RECORD: &str = "once";

/// Whether somebody has done it within this time.
pub async fn was_done(tenure: &Tenure, term: &Term, period: Duration) -> Result<bool, Failure> {
    let Some(now) = began(tenure, term).await? else { return Ok(false) };
    let record = tenure.read(term.name(), RECORD).await?;
    let last = record.and_then(|record| String::from_utf8(record.value).ok()?.parse::<u64>().ok());
    let since = last.map(|last| Duration::from_micros(now.as_micros().saturating_sub(last)));
    match since {
        Some(since) if since < period => {
            eprintln!(
                "tenure: done {} ago, and once per {} is enough",
                crate::store::shown(since),
                crate::store::shown(period)
            );
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Writes down that what was begun with this term has come to an end. Refused when the term is over: then it may be done
/// again.
pub async fn write_down(tenure: &Tenure, term: &Term) -> Result<(), Failure> {
    if let Some(began) = began(tenure, term).await? {
        // A term that is over has written nothing, and somebody else begins anew.
        let _ = term.publish(RECORD, began.as_micros().to_string()).await;
    }
    Ok(())
}

async fn began(tenure: &Tenure, term: &Term) -> Result<Option<ServerTime>, Failure> {
    Ok(tenure.inspect(term.name()).await?.since)
}
