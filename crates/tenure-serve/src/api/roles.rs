//! Who leads which role.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json};
use tenure::LeaseName;
use tokio::task::JoinSet;

use super::failure::Failure;
use crate::service::Service;

pub(super) async fn list(State(service): State<Service>) -> Result<Json<Value>, Failure> {
    let mut looks = JoinSet::new();
    for role in service.tenure().roles().await? {
        let service = service.clone();
        looks.spawn(async move { leader(&service, &role).await.map(|shown| (role.label().to_owned(), shown)) });
    }
    let mut roles = Vec::new();
    while let Some(look) = looks.join_next().await {
        if let Ok(look) = look {
            roles.push(look?);
        }
    }
    roles.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(Json(roles.into_iter().map(|(_, shown)| shown).collect()))
}

pub(super) async fn show(State(service): State<Service>, Path(role): Path<String>) -> Result<Json<Value>, Failure> {
    let known = service.tenure().roles().await?;
    let name = service.keys().role(&role).ok().filter(|name| known.contains(name));
    let name = name.or_else(|| known.into_iter().find(|name| name.label() == role));
    match name {
        Some(name) => Ok(Json(leader(&service, &name).await?)),
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

async fn leader(service: &Service, role: &LeaseName) -> Result<Value, Failure> {
    let leader = match service.tenure().leader_of(role).await {
        // What an outsider has spoilt is that one's trouble alone: nobody can tell who leads it.
        Err(error) if !error.is_retryable() => None,
        leader => leader?,
    };
    Ok(json!({
        "role": role.label(),
        "leader": leader.as_ref().map(|leader| leader.instance.as_str()),
        "token": leader.as_ref().and_then(|leader| leader.token).map(|token| token.get()),
        "remainingMs": leader.as_ref().and_then(|leader| leader.remaining).map(|left| left.as_millis() as u64),
    }))
}
