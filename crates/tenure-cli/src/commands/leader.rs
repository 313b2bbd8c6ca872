//! `tenure leader ROLE`

use serde_json::json;
use tenure::RequestError;

use crate::arguments::{LeaderArguments, StoreArguments};
use crate::duration::format_duration;
use crate::exit::{CliError, DONE, NO};
use crate::notice::{failure, note};
use crate::output::print_line;

pub async fn print(store: &StoreArguments, arguments: LeaderArguments, json: bool) -> Result<u8, CliError> {
    let tenure = store.connect_existing().await?;
    let names = store.resolve_leases(&tenure, &arguments.role).await?;
    let (mut leader, mut name) = (None, arguments.role.clone());
    for candidate in &names {
        if leader.is_none() {
            leader = tenure.fleet().leader_of(candidate).await?;
            name = tenure.admin().lease_key(candidate);
        }
    }
    // A lease that is not a role has no candidates.
    let candidates = match tenure.fleet().candidates_under(&store.keys().heartbeats(&arguments.role)).await {
        Err(RequestError::Name(_)) => Vec::new(),
        candidates => candidates?,
    };
    if json {
        let field = leader.as_ref();
        let line = json!({
            "role": arguments.role,
            "leader": field.map(|leader| leader.instance.as_str()),
            "token": field.and_then(|leader| leader.token).map(tenure::Token::get),
            "remainingMs": field.and_then(|leader| leader.remaining).map(|left| left.as_millis() as u64),
            "revoked": field.is_some_and(|leader| leader.is_revoked),
            "key": field.map(|_| &name),
            "metadata": field.and_then(|leader| leader.metadata.as_deref()),
            "candidates": candidates.iter().map(|candidate| candidate.instance.as_str()).collect::<Vec<_>>(),
        });
        print_line(&line.to_string())?;
    } else if let Some(leader) = &leader {
        print_line(leader.instance.as_str())?;
        match (leader.token, leader.remaining) {
            (Some(token), Some(left)) if leader.is_revoked => {
                note!(
                    "revoked: term {token} was ended by force; {name} is unheld once its holder has released it, in {} at most",
                    format_duration(left)
                );
            }
            (Some(token), Some(left)) => {
                note!("term {token} of {name}; expires in {} without renewal", format_duration(left))
            }
            (None, Some(left)) => {
                note!("the holder of {name} is not a tenure instance; expires in {}", format_duration(left))
            }
            (_, None) => note!("{name} does not expire; delete the key if no program holds it"),
        }
    } else {
        let quarantine = tenure.admin().namespace().await?.quarantine;
        let why = quarantine.map_or_else(String::new, |quarantine| format!("; {quarantine}"));
        failure!("{} has no leader or holder{why}", arguments.role);
    }
    let others = candidates.iter().filter(|one| leader.as_ref().is_none_or(|leader| leader.instance != one.instance));
    let others: Vec<&str> = others.map(|candidate| candidate.instance.as_str()).collect();
    if !json && !others.is_empty() {
        note!("waiting: {}", others.join(", "));
    }
    tenure.shutdown().await;
    Ok(if leader.is_some() { DONE } else { NO })
}
