//! Roles and their leaders.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use tenure::LeaseName;
use tenure::store::LeaseReport;

use super::error::ApiError;
use super::nodes::Accepted;
use super::sessions::parse_object;
use crate::instances::resolve_candidate;
use crate::ownership;
use crate::service::Service;

pub(super) async fn list(State(service): State<Service>) -> Result<Json<Value>, ApiError> {
    // There may be thousands of roles.
    let _permit = service.fleet_scans().acquire().await;
    let roles = ownership::role_leases(service.tenure()).await?;
    Ok(Json(roles.iter().map(|(role, inspection)| role_json(role, inspection.as_ref().ok())).collect()))
}

pub(super) async fn show(State(service): State<Service>, Path(role): Path<String>) -> Result<Json<Value>, ApiError> {
    let known = service.tenure().fleet().roles().await?;
    let name = service.keys().role(&role).ok().filter(|name| known.contains(name));
    let name = name.or_else(|| known.into_iter().find(|name| name.label() == role));
    match name {
        Some(name) => match service.tenure().admin().inspect(&name).await {
            Err(error) if !error.is_retryable() => Ok(Json(role_json(&name, None))),
            inspection => Ok(Json(role_json(&name, Some(&inspection?)))),
        },
        None => Err(ApiError::not_found("no such role: it never had a leader")),
    }
}

pub(super) async fn am_i_leader(
    State(service): State<Service>,
    Path(role): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let leads = match service.housekeeping().is_leader(&role) {
        // This instance knows by its own clock.
        Some(leads) => leads,
        None => match service.keys().role(&role) {
            Ok(name) => {
                let leader = service.tenure().fleet().leader_of(&name).await?;
                leader.is_some_and(|leader| leader.instance == *service.tenure().instance())
            }
            Err(_) => false,
        },
    };
    if leads {
        return Ok(Json(json!({"role": role, "leader": service.tenure().instance().as_str()})));
    }
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_leader", "this instance does not lead the role"))
}

/// Asks the leader of a role to hand over, to a given candidate or to any.
pub(super) async fn step_down(
    State(service): State<Service>,
    Path(role): Path<String>,
    body: Bytes,
) -> Result<Accepted, ApiError> {
    let request = if body.is_empty() { Map::new() } else { parse_object(&body)? };
    let to = match request.get("to") {
        None | Some(Value::Null) => None,
        Some(Value::String(to)) => Some(to),
        Some(_) => return Err(ApiError::bad_request("`to` must be an instance id")),
    };
    if let Some(other) = request.keys().find(|field| *field != "to") {
        return Err(ApiError::bad_request(format!("unknown field `{other}`; only `to` is allowed")));
    }
    let name = service.keys().role(&role).map_err(|error| ApiError::bad_request(error.to_string()))?;
    let to = match to {
        Some(wanted) => {
            let candidate = resolve_candidate(service.tenure(), service.keys(), &role, wanted).await?;
            Some(candidate.map_err(|why| ApiError::invalid(format!("`to`: {why}")))?)
        }
        None => None,
    };
    match service.tenure().admin().step_down(&name, to.as_ref()).await? {
        Some(token) => Ok((StatusCode::ACCEPTED, Json(json!({"role": role, "token": token.get()})))),
        None => Err(ApiError::new(StatusCode::CONFLICT, "conflict", "the role has no leader that can step down")),
    }
}

/// Returns the JSON of a role and its leader. The leader is unknown if a foreign program has damaged the record.
fn role_json(role: &LeaseName, report: Option<&LeaseReport>) -> Value {
    let held = report.and_then(|report| report.held.as_ref());
    json!({
        "role": role.label(),
        "leader": held.map(|held| held.holder.as_str()),
        "token": held.and_then(|held| held.token).map(|token| token.get()),
        "remainingMs": held.and_then(|held| held.remaining).map(|left| left.as_millis() as u64),
        "revoked": report.is_some_and(LeaseReport::is_revoked),
    })
}
