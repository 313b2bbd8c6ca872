//! `tenure status`: who is there and who holds what, straight from the store, whether an instance runs or not.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tenure::InstanceId;
use tenure::fleet::InstanceRecord;
use tenure_serve::catalogue::Catalogue;
use tenure_serve::{POOL, holdings};

use crate::arguments::{Status, StoreArguments};
use crate::exit::{DONE, Failure};
use crate::output::say;

pub async fn print(store: &StoreArguments, status: Status) -> Result<u8, Failure> {
    let tenure = store.connect().await?;
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
    let scout = store.role(&format!("{POOL}-scout"))?;
    let leader = tenure.leader_of(&scout).await?.map(|leader| leader.instance.to_string());
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
            "leaders": {scout.label(): leader},
        });
        say(&whole.to_string())?;
    } else {
        for (instance, status, sessions) in &instances {
            say(&format!("{instance} {status} {} sessions", sessions.len()))?;
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
        say(&format!("leader of {}: {}", scout.label(), leader.as_deref().unwrap_or("nobody")))?;
    }
    tenure.shutdown().await;
    Ok(DONE)
}
