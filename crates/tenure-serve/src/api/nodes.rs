//! Instances and the sessions they hold.

use std::time::SystemTime;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json};
use tenure::InstanceId;
use tenure::fleet::InstanceRecord;
use tenure::lease::LeaseState;

use super::error::ApiError;
use crate::poll::result::format_time;
use crate::service::Service;
use crate::status::{FleetStatus, HeldSession, InstanceStatus};

/// Response to a request that an instance will act on soon.
pub(super) type Accepted = (StatusCode, Json<Value>);

pub(super) async fn list(State(service): State<Service>) -> Result<Json<Value>, ApiError> {
    // Scans read the whole fleet, so only a few run at a time.
    let _permit = service.fleet_scans().acquire().await;
    let me = service.tenure().instance();
    let status = FleetStatus::read(service.tenure(), service.keys(), service.session_cache()).await?;
    let targets = service.pool().target_statuses().await;
    let owned = |instance: &InstanceStatus| -> Vec<Value> {
        let preferred = |held: &HeldSession| targets.get(held.session.id.to_string().as_str())?.preferred.clone();
        instance.sessions.iter().map(|held| owned_session_json(&service, held, preferred(held).as_ref())).collect()
    };
    let unowned = status.unheld.iter().map(|session| {
        let id = session.id.to_string();
        let since = targets.get(id.as_str()).and_then(|status| status.unheld_for).unwrap_or_default();
        json!({"sessionId": id, "sinceMs": since.as_millis() as u64})
    });
    let (gone, live): (Vec<_>, Vec<_>) = status.instances.iter().partition(|instance| instance.is_gone);
    let live = live.into_iter().map(|instance| node_json(instance, me, owned(instance)));
    let gone = gone.into_iter().map(|gone| json!({"instanceId": gone.id.as_str(), "ownedSessions": owned(gone)}));
    let unreadable = status.unreadable.iter().map(|(key, error)| json!({"key": key, "error": error}));
    Ok(Json(json!({
        "thisInstanceId": me.as_str(),
        "timestamp": format_time(SystemTime::now()),
        "liveNodes": live.collect::<Vec<_>>(),
        "goneNodes": gone.collect::<Vec<_>>(),
        "unowned": unowned.collect::<Vec<_>>(),
        "unreadable": unreadable.collect::<Vec<_>>(),
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

fn node_json(instance: &InstanceStatus, me: &InstanceId, owned: Vec<Value>) -> Value {
    // An instance of another program has no readable record.
    let record = instance.record.as_ref();
    json!({
        "instanceId": instance.id.as_str(),
        "isThisInstance": instance.id == *me,
        "status": record.map_or("online", |record| record.status.as_str()),
        "weight": instance.weight().unwrap_or(1.0),
        "startedAt": record.map(|record| format_time(record.started_at)),
        "version": record.map(|record| record.version.as_str()),
        "ownedSessions": owned,
        "note": instance.note,
    })
}

fn owned_session_json(service: &Service, session: &HeldSession, preferred: Option<&InstanceId>) -> Value {
    let (id, held) = (session.session.id.to_string(), &session.held);
    let info = service.pool().lease(&id).map(|term| term.info());
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
