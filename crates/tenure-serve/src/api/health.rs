//! Liveness, readiness, metrics and totals.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};
use tenure::store::{NamespaceReport, Quarantine};

use super::error::ApiError;
use crate::poll::ability::Ability;
use crate::service::Service;
use crate::{housekeeping, metrics};

pub(super) async fn alive() -> Json<Value> {
    Json(json!({"status": "up"}))
}

pub(super) async fn ready(State(service): State<Service>) -> (StatusCode, Json<Value>) {
    let not_ready = |reason: &str| {
        let error = json!({"code": "not_ready", "message": reason});
        (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "not_ready", "error": error})))
    };
    let stats = service.tenure().stats();
    if !stats.connected {
        let why = service.tenure().admin().store_error().map_or_else(String::new, |error| format!(": {error}"));
        return not_ready(&format!("the store is unreachable{why}"));
    }
    if !service.has_joined() {
        return not_ready("this instance has not joined the fleet yet");
    }
    if stats.heartbeats_refused {
        return not_ready("the store refuses the heartbeats of this instance; its log says why (store.refused)");
    }
    match service.tenure().admin().namespace().await {
        Ok(NamespaceReport { quarantine, .. }) => {
            let mut body = json!({"status": "ready"});
            if let Some(quarantine) = &quarantine {
                body["quarantine"] = quarantine_json(quarantine);
            }
            if service.ability() == Ability::Unable {
                body["unable"] = json!(
                    "this instance cannot poll at present: it hands over its sessions to instances that can, if there are any"
                );
            }
            (StatusCode::OK, Json(body))
        }
        Err(error) => not_ready(&format!("the store is unreachable: {error}")),
    }
}

/// Returns the JSON of a quarantine for the API and the program.
pub fn quarantine_json(quarantine: &Quarantine) -> Value {
    json!({
        "remainingMs": u64::try_from(quarantine.remaining.as_millis()).unwrap_or(u64::MAX),
        "reason": format!("{}; {}", quarantine.reason, quarantine.advice()),
        "code": quarantine.reason.as_str(),
    })
}

pub(super) async fn metrics(State(service): State<Service>) -> impl IntoResponse {
    let text = metrics::MetricsSnapshot::take(&service).await.into_text();
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}

pub(super) async fn stats(State(service): State<Service>) -> Result<Json<Value>, ApiError> {
    match housekeeping::totals(service.tenure(), service.keys()).await? {
        Some(totals) => Ok(Json(totals.to_json())),
        None => Err(ApiError::not_found("no totals yet; try again after the next aggregation")),
    }
}

pub(super) async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("openapi.json"))
}
