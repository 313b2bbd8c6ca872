//! Who holds which session and leads which role, straight from the store.

use tenure::store::{LeaseReport, StoreError};
use tenure::{LeaseName, Tenure};
use tokio::task::JoinSet;

use crate::keys::KeyPrefixes;

/// How many leases are looked at in one go.
const MAX_INSPECTIONS_IN_FLIGHT: usize = 200;

/// A lease, or its key and why it cannot be read.
pub type LeaseInspection = Result<LeaseReport, (String, StoreError)>;

/// What is known about the leases of these sessions, in the order of their ids. What cannot be a session has none.
///
/// # Errors
/// When the store cannot be asked.
///
/// # Cancel safety
/// Safe.
pub async fn session_leases(
    tenure: &Tenure,
    keys: &KeyPrefixes,
    ids: &[String],
) -> Result<Vec<(String, LeaseInspection)>, StoreError> {
    let named = ids.iter().filter_map(|id| Some((id.clone(), keys.session(id).ok()?)));
    let mut found = inspect_all(tenure, named.collect()).await?;
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

/// What is known about the leases of all roles that were ever led, in the order of their names.
///
/// # Errors
/// When the store cannot be asked.
///
/// # Cancel safety
/// Safe.
pub async fn role_leases(tenure: &Tenure) -> Result<Vec<(LeaseName, LeaseInspection)>, StoreError> {
    let named = tenure.roles().await?.into_iter().map(|role| (role.clone(), role));
    let mut found = inspect_all(tenure, named.collect()).await?;
    found.sort_by(|(one, _), (other, _)| one.label().cmp(other.label()));
    Ok(found)
}

/// Looks at leases, a few at a time: there may be more of them than may wait to be asked about.
async fn inspect_all<N: Send + 'static>(
    tenure: &Tenure,
    leases: Vec<(N, LeaseName)>,
) -> Result<Vec<(N, LeaseInspection)>, StoreError> {
    let mut found = Vec::with_capacity(leases.len());
    let mut leases = leases.into_iter().peekable();
    while leases.peek().is_some() {
        let mut inspections = JoinSet::new();
        for (id, name) in leases.by_ref().take(MAX_INSPECTIONS_IN_FLIGHT) {
            let tenure = tenure.clone();
            inspections.spawn(async move {
                match tenure.inspect(&name).await {
                    // What an outsider has spoilt is that one's trouble alone.
                    Err(error) if !error.is_retryable() => Ok((id, Err((tenure.lease_key(&name), error)))),
                    inspection => inspection.map(|report| (id, Ok(report))),
                }
            });
        }
        while let Some(inspected) = inspections.join_next().await {
            if let Ok(inspected) = inspected {
                found.push(inspected?);
            }
        }
    }
    Ok(found)
}
