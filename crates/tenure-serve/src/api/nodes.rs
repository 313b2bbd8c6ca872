//! Who is there, and who holds what.

use std::collections::BTreeMap;
use std::time::SystemTime;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use tenure::InstanceId;
use tenure::fleet::InstanceRecord;
use tenure::lease::LeaseState;
use tenure::store::LeaseReport;
use tokio::task::JoinSet;

use super::failure::Failure;
use crate::poll::result::instant;
use crate::service::Service;

/// How many leases are looked at in one go.
const AT_ONCE: usize = 200;

pub(super) async fn list(State(service): State<Service>) -> Result<Json<Value>, Failure> {
    let me = service.tenure().instance().clone();
    let members = service.tenure().fleet().await?;
    let mut owned: BTreeMap<InstanceId, Vec<Value>> = BTreeMap::new();
    let mut unowned = Vec::new();
    let targets: Vec<String> =
        service.catalogue().page(None, usize::MAX).iter().map(|session| session.id.to_string()).collect();
    for some in targets.chunks(AT_ONCE) {
        let mut looks = JoinSet::new();
        for id in some {
            let (service, id) = (service.clone(), id.clone());
            looks.spawn(async move {
                let name = service.lease(&id)?;
                let report = service.tenure().inspect(&name).await;
                let preferred = service.pool().preferred_owner(&id).await;
                let unheld_for = service.pool().unheld_for(&id).await.unwrap_or_default();
                Some((id, report, preferred, unheld_for))
            });
        }
        while let Some(look) = looks.join_next().await {
            let Ok(Some((id, report, preferred, unheld_for))) = look else { continue };
            let report = report?;
            match &report.held {
                Some(held) => {
                    owned.entry(held.by.clone()).or_default().push(held_by(&service, &id, &report, preferred))
                }
                // One that is paused is nobody's, and should be.
                None if service.catalogue().session(&id).is_some_and(|session| !session.is_paused) => {
                    unowned.push(json!({"sessionId": id, "sinceMs": unheld_for.as_millis() as u64}));
                }
                None => {}
            }
        }
    }
    let nodes: Vec<Value> = members
        .iter()
        .map(|member| {
            let record = InstanceRecord::decode(&member.record);
            let mut sessions = owned.remove(&member.instance).unwrap_or_default();
            sessions.sort_by_key(|session| session["sessionId"].as_str().map(str::to_owned));
            json!({
                "instanceId": member.instance.as_str(),
                "isThisInstance": member.instance == me,
                "status": record.as_ref().map_or("online", |record| record.status.word()),
                "weight": record.as_ref().map_or(1.0, |record| f64::from(record.weight) / f64::from(tenure::placement::FULL_WEIGHT)),
                "startedAt": record.as_ref().map(|record| instant(record.started_at)),
                "ownedSessions": sessions,
            })
        })
        .collect();
    let unreadable: Vec<Value> = service
        .catalogue()
        .unreadable()
        .into_iter()
        .map(|(id, error)| json!({"key": format!("session:{id}"), "error": error}))
        .collect();
    Ok(Json(json!({
        "thisInstanceId": me.as_str(),
        "timestamp": instant(SystemTime::now()),
        "liveNodes": nodes,
        "unowned": unowned,
        "unreadable": unreadable,
    })))
}

fn held_by(service: &Service, id: &str, report: &LeaseReport, preferred: Option<InstanceId>) -> Value {
    let owner = report.held.as_ref().map(|held| held.by.to_string());
    let token = report.held.as_ref().and_then(|held| held.token).map(|token| token.get());
    let info = service.pool().lease_info(id);
    let state = match info.as_ref().map(|info| info.state) {
        Some(LeaseState::Owned) => "owned",
        Some(LeaseState::Uncertain) => "uncertain",
        Some(_) => "unknown",
        None => "other",
    };
    json!({
        "sessionId": id,
        "ownerId": owner,
        "preferredOwnerId": preferred.map(|preferred| preferred.to_string()),
        "state": state,
        "token": token,
        "acquiredAt": info.as_ref().map(|info| instant(info.acquired_at)),
        "lastRenewedAt": info.as_ref().map(|info| instant(info.last_renewed_at)),
    })
}
