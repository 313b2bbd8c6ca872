//! Instances and the sessions they hold.

use std::collections::BTreeMap;
use std::time::SystemTime;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json};
use tenure::InstanceId;
use tenure::fleet::{CrashBackoff, InstanceRecord};
use tenure::lease::LeaseState;
use tenure::placement::FULL_WEIGHT;
use tenure::store::{Held, LiveInstance};

use super::error::ApiError;
use crate::ownership;
use crate::poll::result::format_time;
use crate::service::{POOL, Service};
use crate::session_repo::documents;

/// Response to a request that an instance will act on soon.
pub(super) type Accepted = (StatusCode, Json<Value>);

pub(super) async fn list(State(service): State<Service>) -> Result<Json<Value>, ApiError> {
    // Scans read the whole fleet, so only a few run at a time.
    let _permit = service.fleet_scans().acquire().await;
    let me = service.tenure().instance().clone();
    let members = service.tenure().fleet().instances().await?;
    let sessions = service.session_cache().page(None, usize::MAX);
    let ids: Vec<String> = sessions.iter().map(|session| session.id.to_string()).collect();
    let statuses = service.pool().target_statuses().await;
    let (mut owned, mut unowned): (BTreeMap<InstanceId, Vec<Value>>, Vec<Value>) = Default::default();
    let mut unreadable: Vec<Value> = Vec::new();
    for (id, report) in ownership::session_leases(service.tenure(), service.keys(), &ids).await? {
        let status = statuses.get(id.as_str());
        let held = match &report {
            Ok(report) => report.held.as_ref(),
            Err((key, error)) => {
                unreadable.push(json!({"key": key, "error": error.to_string()}));
                continue;
            }
        };
        match held {
            Some(held) => {
                let preferred = status.and_then(|status| status.preferred.as_ref());
                owned.entry(held.holder.clone()).or_default().push(owned_session_json(&service, &id, held, preferred));
            }
            // A paused session is unheld on purpose.
            None if service.session_cache().session(&id).is_some_and(|session| !session.is_paused) => {
                let since = status.and_then(|status| status.unheld_for).unwrap_or_default();
                unowned.push(json!({"sessionId": id, "sinceMs": since.as_millis() as u64}));
            }
            None => {}
        }
    }
    let records: Vec<InstanceRecord> =
        members.iter().filter_map(|member| InstanceRecord::decode(&member.record)).collect();
    let waiting = CrashBackoff::from_records(&records);
    let shown = |member: &LiveInstance| {
        let mut shown = node_json(member, &me, owned.remove(&member.instance).unwrap_or_default());
        shown["note"] = waiting.get(&member.instance).and_then(|held| held.note(SystemTime::now())).into();
        shown
    };
    let nodes: Vec<Value> = members.iter().map(shown).collect();
    // An instance without a heartbeat may hold leases that have not expired yet.
    let gone: Vec<Value> = owned
        .into_iter()
        .map(|(instance, owned)| json!({"instanceId": instance.as_str(), "ownedSessions": owned}))
        .collect();
    let sessions = service.session_cache().unreadable().into_iter();
    unreadable.extend(sessions.map(|(id, error)| json!({"key": documents(service.tenure()).key(&id), "error": error})));
    Ok(Json(json!({
        "thisInstanceId": me.as_str(),
        "timestamp": format_time(SystemTime::now()),
        "liveNodes": nodes,
        "goneNodes": gone,
        "unowned": unowned,
        "unreadable": unreadable,
    })))
}

/// Takes an instance out of placement, or puts it back.
pub(super) async fn drain(State(service): State<Service>, Path(id): Path<String>) -> Result<Accepted, ApiError> {
    let instance = find_instance(&service, &id).await?;
    service.tenure().admin().drain(&instance).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({"instanceId": instance.as_str()}))))
}

pub(super) async fn undrain(State(service): State<Service>, Path(id): Path<String>) -> Result<Accepted, ApiError> {
    let instance = find_instance(&service, &id).await?;
    service.tenure().admin().undrain(&instance).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({"instanceId": instance.as_str()}))))
}

/// Returns the live instance with this id, if it is a Tenure instance.
async fn find_instance(service: &Service, id: &str) -> Result<InstanceId, ApiError> {
    let members = service.tenure().fleet().instances().await?;
    let Some(member) = members.into_iter().find(|member| member.instance.as_str() == id) else {
        return Err(ApiError::not_found("no such instance; see /v1/nodes"));
    };
    if InstanceRecord::decode(&member.record).is_none() {
        let message = "cannot drain or undrain this instance: it is not a tenure instance";
        return Err(ApiError::new(StatusCode::CONFLICT, "conflict", message));
    }
    Ok(member.instance)
}

fn node_json(member: &LiveInstance, me: &InstanceId, owned: Vec<Value>) -> Value {
    // An instance of another program has no readable record.
    let record = InstanceRecord::decode(&member.record);
    let weight = record.as_ref().map_or(FULL_WEIGHT, |record| record.weight_in(POOL));
    json!({
        "instanceId": member.instance.as_str(),
        "isThisInstance": member.instance == *me,
        "status": record.as_ref().map_or("online", |record| record.status.as_str()),
        "weight": f64::from(weight) / f64::from(FULL_WEIGHT),
        "startedAt": record.as_ref().map(|record| format_time(record.started_at)),
        "version": record.as_ref().map(|record| record.version.as_str()),
        "ownedSessions": owned,
    })
}

fn owned_session_json(service: &Service, id: &str, held: &Held, preferred: Option<&InstanceId>) -> Value {
    let info = service.pool().lease(id).map(|term| term.info());
    let state = match info.as_ref().map(|info| info.state) {
        Some(LeaseState::Owned) => "owned",
        Some(LeaseState::Uncertain) => "uncertain",
        Some(_) => "unknown",
        None => "other",
    };
    json!({
        "sessionId": id,
        "ownerId": held.holder.as_str(),
        "preferredOwnerId": preferred.map(InstanceId::as_str),
        "state": state,
        "token": held.token.map(|token| token.get()),
        "acquiredAt": info.as_ref().map(|info| format_time(info.acquired_at)),
        "lastRenewedAt": info.as_ref().map(|info| format_time(info.last_renewed_at)),
    })
}
