//! Whether this instance lives and is ready, and what it counts.

use std::fmt::Write;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};

use super::failure::Failure;
use crate::service::Service;

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
    let stands = service.tenure().how_it_stands();
    let (ok, failed, refused) = service.counts().read();
    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, kind: &str, rows: &[(&str, f64)]| {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in rows {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    gauge("tenure_leases_held", "Leases that this instance holds.", "gauge", &[("", stands.held as f64)]);
    gauge(
        "tenure_fleet_instances",
        "Instances that count as alive.",
        "gauge",
        &[("", service.pool().live_instances().len() as f64)],
    );
    gauge(
        "tenure_polls_total",
        "Polls of this instance, by how they went.",
        "counter",
        &[("{outcome=\"ok\"}", ok as f64), ("{outcome=\"failed\"}", failed as f64)],
    );
    gauge(
        "tenure_publish_refused_total",
        "Results that were refused because their term was over.",
        "counter",
        &[("", refused as f64)],
    );
    gauge(
        "tenure_keeper_lag_seconds",
        "The longest that leases were looked after too late.",
        "gauge",
        &[("", stands.worst_lag.as_secs_f64())],
    );
    gauge(
        "tenure_events_dropped_total",
        "Events that nobody took in time.",
        "counter",
        &[("", stands.events_dropped as f64)],
    );
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
