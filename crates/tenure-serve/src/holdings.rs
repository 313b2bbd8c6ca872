//! Who holds which session, straight from the store.

use tenure::Tenure;
use tenure::store::{LeaseReport, StoreError};
use tokio::task::JoinSet;

use crate::keys::Keys;

/// How many leases are looked at in one go.
const AT_ONCE: usize = 200;

/// A lease, or its key and why it cannot be read.
pub type Looked = Result<LeaseReport, (String, StoreError)>;

/// What is known about the leases of these sessions, in the order of their ids. What cannot be a session has none.
///
/// # Errors
/// When the store cannot be asked.
///
/// # Cancel safety
/// Safe.
pub async fn read(tenure: &Tenure, keys: &Keys, ids: &[String]) -> Result<Vec<(String, Looked)>, StoreError> {
    let mut found = Vec::with_capacity(ids.len());
    for some in ids.chunks(AT_ONCE) {
        let mut looks = JoinSet::new();
        for (id, name) in some.iter().filter_map(|id| Some((id.clone(), keys.session(id).ok()?))) {
            let tenure = tenure.clone();
            looks.spawn(async move {
                match tenure.inspect(&name).await {
                    // What an outsider has spoilt is that one's trouble alone.
                    Err(error) if !error.is_retryable() => Ok((id, Err((tenure.lease_key(&name), error)))),
                    looked => looked.map(|report| (id, Ok(report))),
                }
            });
        }
        while let Some(look) = looks.join_next().await {
            if let Ok(look) = look {
                found.push(look?);
            }
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}
