//! `tenure revoke NAME`

use serde_json::json;

use crate::arguments::{RevokeArguments, StoreArguments};
use crate::exit::{CliError, DONE, NO};
use crate::notice::failure;
use crate::output::print_line;

pub async fn revoke(store: &StoreArguments, arguments: RevokeArguments, json: bool) -> Result<u8, CliError> {
    let tenure = store.connect_existing().await?;
    let mut revoked = None;
    let mut foreign = None;
    for name in store.resolve_leases(&tenure, &arguments.lease).await? {
        if let Some(holder) = tenure.admin().revoke(&name).await? {
            revoked = Some((tenure.admin().lease_key(&name), holder));
            break;
        }
        let held = tenure.admin().inspect(&name).await?.held;
        foreign = foreign.or(held.map(|held| (tenure.admin().lease_key(&name), held.holder)));
    }
    if json {
        let (key, holder) = revoked.as_ref().or(foreign.as_ref()).map(|(key, holder)| (key, holder.as_str())).unzip();
        print_line(
            &json!({"name": arguments.lease, "key": key, "holder": holder, "revoked": revoked.is_some()}).to_string(),
        )?;
    }
    match (&revoked, &foreign) {
        (Some((key, holder)), _) if !json => {
            print_line(&format!("{key} revoked; it was held by {holder}"))?;
        }
        (None, Some((key, holder))) => {
            failure!(
                "cannot revoke {key}: its holder {holder} is not a tenure instance; delete the key if no program relies on it"
            );
        }
        (None, None) => failure!("{} is not held", arguments.lease),
        _ => {}
    }
    tenure.shutdown().await;
    Ok(if revoked.is_some() { DONE } else { NO })
}
