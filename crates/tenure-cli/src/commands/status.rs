//! `tenure status`: who is there and who holds what, straight from the store, whether an instance runs or not.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tenure::InstanceId;
use tenure::fleet::InstanceRecord;
use tenure_serve::catalogue::Catalogue;
use tenure_serve::{holdings, shown_quarantine};

use crate::arguments::{Status, StoreArguments};
use crate::exit::{DONE, Failure};
use crate::output::say;

pub async fn print(store: &StoreArguments, status: Status) -> Result<u8, Failure> {
    let tenure = store.look().await?;
    let quarantine = tenure.inspect_namespace().await?.quarantine;
    let catalogue = Catalogue::default();
    catalogue.read_all(&tenure).await?;
    let members = tenure.fleet().await?;
    let ids: Vec<String> = catalogue.page(None, usize::MAX).iter().map(|session| session.id.to_string()).collect();
    let mut held: BTreeMap<InstanceId, Vec<String>> = BTreeMap::new();
    let mut unheld = Vec::new();
    let sessions = catalogue.unreadable().into_iter().map(|(id, error)| (tenure.session_key(&id), error));
    let mut unreadable: BTreeMap<String, String> = sessions.collect();
    for (id, report) in holdings::read(&tenure, &store.keys(), &ids).await? {
        let held_by = match report {
            Ok(report) => report.held,
            Err((key, error)) => {
                unreadable.insert(key, error.to_string());
                continue;
            }
        };
        match held_by {
            Some(lease) => held.entry(lease.by).or_default().push(id),
            None if catalogue.session(&id).is_some_and(|session| !session.is_paused) => unheld.push(id),
            None => {}
        }
    }
    let mut leaders = BTreeMap::new();
    for (role, looked) in holdings::roles(&tenure).await? {
        let leader = match looked {
            Ok(report) => report.held.map(|held| held.by.to_string()),
            Err((key, error)) => {
                unreadable.insert(key, error.to_string());
                None
            }
        };
        leaders.insert(role.label().to_owned(), leader);
    }
    let mut instances = Vec::new();
    for member in &members {
        let record = InstanceRecord::decode(&member.record);
        let status = record.as_ref().map_or("foreign", |record| record.status.word());
        instances.push((member.instance.clone(), status, held.remove(&member.instance).unwrap_or_default()));
    }
    // Whoever is gone may hold leases that have not run out yet.
    instances.extend(held.into_iter().map(|(instance, sessions)| (instance, "gone", sessions)));
    if status.json {
        let instance = |(instance, status, sessions): &(InstanceId, &str, Vec<String>)| json!({"instanceId": instance.as_str(), "status": status, "sessions": sessions});
        let listed = |(key, error): (&String, &String)| json!({"key": key, "error": error});
        let whole = json!({
            "instances": instances.iter().map(instance).collect::<Vec<Value>>(),
            "unheld": unheld,
            "unreadable": unreadable.iter().map(listed).collect::<Vec<Value>>(),
            "leaders": leaders,
            "quarantine": quarantine.as_ref().map(shown_quarantine),
        });
        say(&whole.to_string())?;
    } else {
        if let Some(quarantine) = &quarantine {
            say(&quarantine.to_string())?;
        }
        if instances.is_empty() {
            say("no instance is there")?;
        }
        for (instance, status, sessions) in &instances {
            let sessions_are = if sessions.len() == 1 { "session" } else { "sessions" };
            say(&format!("{instance} {status} {} {sessions_are}", sessions.len()))?;
            for id in sessions {
                say(&format!("  {id}"))?;
            }
        }
        for id in &unheld {
            say(&format!("unheld {id}"))?;
        }
        for (key, error) in &unreadable {
            say(&format!("unreadable {key}: {error}"))?;
        }
        for (role, leader) in &leaders {
            say(&format!("leader of {role}: {}", leader.as_deref().unwrap_or("nobody")))?;
        }
    }
    tenure.shutdown().await;
    Ok(DONE)
}
