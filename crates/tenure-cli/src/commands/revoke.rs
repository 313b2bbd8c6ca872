//! `tenure revoke NAME`

use serde_json::json;

use crate::arguments::{Revoke, StoreArguments};
use crate::exit::{DONE, Failure, NO};
use crate::notice::failure;
use crate::output::say;

pub async fn revoke(store: &StoreArguments, arguments: Revoke, json: bool) -> Result<u8, Failure> {
    let tenure = store.look().await?;
    let mut revoked = None;
    let mut foreign = None;
    for name in store.leases(&tenure, &arguments.lease).await? {
        if let Some(holder) = tenure.revoke(&name).await? {
            revoked = Some((tenure.lease_key(&name), holder));
            break;
        }
        let held = tenure.inspect(&name).await?.held;
        foreign = foreign.or(held.map(|held| (tenure.lease_key(&name), held.by)));
    }
    if json {
        let (key, holder) = revoked.as_ref().or(foreign.as_ref()).map(|(key, holder)| (key, holder.as_str())).unzip();
        say(&json!({"name": arguments.lease, "key": key, "holder": holder, "revoked": revoked.is_some()}).to_string())?;
    }
    match (&revoked, &foreign) {
        (Some((key, holder)), _) if !json => {
            say(&format!("{key} revoked; it was held by {holder}"))?;
        }
        (None, Some((key, holder))) => {
            failure!(
                "{key} is held by {holder}, a program that is not tenure, so it cannot be revoked; delete the key if no program relies on it"
            );
        }
        (None, None) => failure!("{} is not held", arguments.lease),
        _ => {}
    }
    tenure.shutdown().await;
    Ok(if revoked.is_some() { DONE } else { NO })
}
