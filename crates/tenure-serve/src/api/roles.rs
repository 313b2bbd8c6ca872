//! Who leads which role.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json};
use tenure::LeaseName;
use tenure::store::LeaseReport;

use super::failure::Failure;
use crate::holdings;
use crate::service::Service;

pub(super) async fn list(State(service): State<Service>) -> Result<Json<Value>, Failure> {
    // There may be thousands of them.
    let _turn = service.surveys().acquire().await;
    let roles = holdings::roles(service.tenure()).await?;
    Ok(Json(roles.iter().map(|(role, looked)| shown(role, looked.as_ref().ok())).collect()))
}

pub(super) async fn show(State(service): State<Service>, Path(role): Path<String>) -> Result<Json<Value>, Failure> {
    let known = service.tenure().roles().await?;
    let name = service.keys().role(&role).ok().filter(|name| known.contains(name));
    let name = name.or_else(|| known.into_iter().find(|name| name.label() == role));
    match name {
        Some(name) => match service.tenure().inspect(&name).await {
            Err(error) if !error.is_retryable() => Ok(Json(shown(&name, None))),
            looked => Ok(Json(shown(&name, Some(&looked?)))),
        },
        None => Err(Failure::not_found("nobody has ever led such a role")),
    }
}

pub(super) async fn am_i_leader(
    State(service): State<Service>,
    Path(role): Path<String>,
) -> Result<Json<Value>, Failure> {
    let leads = match service.housekeeping().leads(&role) {
        // What this instance knows by its own clock.
        Some(leads) => leads,
        None => match service.keys().role(&role) {
            Ok(name) => {
                let leader = service.tenure().leader_of(&name).await?;
                leader.is_some_and(|leader| leader.instance == *service.tenure().instance())
            }
            Err(_) => false,
        },
    };
    if leads {
        return Ok(Json(json!({"role": role, "leader": service.tenure().instance().as_str()})));
    }
    Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "not_leader", "this instance does not lead that role"))
}

/// A role and its leader. Who leads one whose record an outsider has spoilt cannot be told.
fn shown(role: &LeaseName, report: Option<&LeaseReport>) -> Value {
    let held = report.and_then(|report| report.held.as_ref());
    json!({
        "role": role.label(),
        "leader": held.map(|held| held.by.as_str()),
        "token": held.and_then(|held| held.token).map(|token| token.get()),
        "remainingMs": held.and_then(|held| held.remaining).map(|left| left.as_millis() as u64),
    })
}
