//! Whether it lives, whether it is ready, what it counts, and what the fleet has done.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};

use super::failure::Failure;
use crate::service::Service;
use crate::{housekeeping, metrics};

pub(super) async fn alive() -> Json<Value> {
    Json(json!({"status": "up"}))
}

pub(super) async fn ready(State(service): State<Service>) -> Result<Json<Value>, Failure> {
    if service.is_ready() {
        return Ok(Json(json!({"status": "ready"})));
    }
    let message = "the store cannot be reached, or this instance has not joined the fleet yet";
    Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", message))
}

pub(super) async fn metrics(State(service): State<Service>) -> impl IntoResponse {
    let text = metrics::Reading::take(&service).await.written();
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}

pub(super) async fn stats(State(service): State<Service>) -> Result<Json<Value>, Failure> {
    match housekeeping::totals(service.tenure(), service.keys()).await? {
        Some(totals) => Ok(Json(totals.shown())),
        None => Err(Failure::not_found("nothing was added up yet")),
    }
}

pub(super) async fn description() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("openapi.json"))
}
