//! `tenure leader ROLE`

use serde_json::json;
use tenure::Group;

use crate::arguments::{Leader, StoreArguments};
use crate::duration::shown;
use crate::exit::{DONE, Failure, NO};
use crate::notice::note;

pub async fn print(store: &StoreArguments, arguments: Leader) -> Result<u8, Failure> {
    let names = store.roles(&arguments.role)?;
    let tenure = store.look().await?;
    let group = Group::candidates(&store.keys().heartbeats(&arguments.role));
    let group = group.map_err(|error| Failure::Usage(error.to_string()))?;
    let (mut leader, mut name) = (None, arguments.role.clone());
    for candidate in &names {
        if leader.is_none() {
            leader = tenure.leader_of(candidate).await?;
            name = candidate.to_string();
        }
    }
    let candidates = tenure.candidates(&group).await?;
    if arguments.json {
        let field = leader.as_ref();
        let line = json!({
            "role": arguments.role,
            "leader": field.map(|leader| leader.instance.as_str()),
            "token": field.and_then(|leader| leader.token).map(tenure::Token::get),
            "remainingMs": field.and_then(|leader| leader.remaining).map(|left| left.as_millis() as u64),
            "metadata": field.and_then(|leader| leader.metadata.as_deref()).map(String::from_utf8_lossy),
            "candidates": candidates.iter().map(|candidate| candidate.instance.as_str()).collect::<Vec<_>>(),
        });
        println!("{line}");
    } else if let Some(leader) = &leader {
        println!("{}", leader.instance);
        match (leader.token, leader.remaining) {
            (Some(token), Some(left)) => note!("term {token}, for {} without renewal", shown(left)),
            (None, Some(left)) => note!("a program that is not tenure, for {}", shown(left)),
            (_, None) => note!("the lease has no end; delete its key {name} if nobody holds it"),
        }
    } else {
        note!("nobody leads {}", arguments.role);
    }
    let others = candidates.iter().filter(|one| leader.as_ref().is_none_or(|leader| leader.instance != one.instance));
    let others: Vec<&str> = others.map(|candidate| candidate.instance.as_str()).collect();
    if !arguments.json && !others.is_empty() {
        note!("waiting: {}", others.join(", "));
    }
    tenure.shutdown().await;
    Ok(if leader.is_some() { DONE } else { NO })
}
