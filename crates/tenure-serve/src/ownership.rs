//! Holders of sessions and leaders of roles, read directly from the store.

use tenure::store::LeaseReport;
use tenure::{LeaseName, RequestError, Tenure};
use tokio::task::JoinSet;

use crate::keys::KeyPrefixes;

/// Number of leases to inspect at once.
const MAX_INSPECTIONS_IN_FLIGHT: usize = 200;

/// The report of a lease, or its key and the error of reading it.
pub type LeaseInspection = Result<LeaseReport, (String, RequestError)>;

/// Reads the leases of these sessions, in the order of their ids. Skips invalid ids.
///
/// # Errors
/// When a request to the store fails.
///
/// # Cancel safety
/// Safe.
pub async fn session_leases(
    tenure: &Tenure,
    keys: &KeyPrefixes,
    ids: &[String],
) -> Result<Vec<(String, LeaseInspection)>, RequestError> {
    let named = ids.iter().filter_map(|id| Some((id.clone(), keys.session(id).ok()?)));
    let mut found = inspect_all(tenure, named.collect()).await?;
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

/// Reads the leases of all roles that ever had a leader, in the order of their names.
///
/// # Errors
/// When a request to the store fails.
///
/// # Cancel safety
/// Safe.
pub async fn role_leases(tenure: &Tenure) -> Result<Vec<(LeaseName, LeaseInspection)>, RequestError> {
    let named = tenure.fleet().roles().await?.into_iter().map(|role| (role.clone(), role));
    let mut found = inspect_all(tenure, named.collect()).await?;
    found.sort_by(|(one, _), (other, _)| one.label().cmp(other.label()));
    Ok(found)
}

/// Inspects leases, a few at a time: there may be more than the queue of store calls accepts.
async fn inspect_all<N: Send + 'static>(
    tenure: &Tenure,
    leases: Vec<(N, LeaseName)>,
) -> Result<Vec<(N, LeaseInspection)>, RequestError> {
    let mut found = Vec::with_capacity(leases.len());
    let mut leases = leases.into_iter().peekable();
    while leases.peek().is_some() {
        let mut inspections = JoinSet::new();
        for (id, name) in leases.by_ref().take(MAX_INSPECTIONS_IN_FLIGHT) {
            let tenure = tenure.clone();
            inspections.spawn(async move {
                match tenure.admin().inspect(&name).await {
                    // A key that a foreign program has damaged concerns only its own lease.
                    Err(error) if !error.is_retryable() => Ok((id, Err((tenure.admin().lease_key(&name), error)))),
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
