//! The HTTP API: what can be asked of any instance, about all of them.

mod access;
mod failure;
mod health;
mod nodes;
mod roles;
mod sessions;
mod streams;

use std::time::Duration;

use axum::extract::DefaultBodyLimit;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, middleware};

pub use access::ApiToken;
use failure::Failure;
pub use health::shown_quarantine;

use crate::service::Service;

/// No request is larger than this.
const LARGEST_REQUEST: usize = 64 * 1024;

/// How long an answer may take to begin, with all that is asked of the store for it, and whoever asks taking its time.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

/// All routes.
pub(crate) fn router(service: Service) -> Router {
    let guarded = Router::new()
        .route("/v1/sessions", get(sessions::list).post(sessions::create))
        .route("/v1/sessions/{id}", get(sessions::show).patch(sessions::change).delete(sessions::delete))
        .route("/v1/sessions/{id}/state", get(sessions::state))
        .route("/v1/sessions/{id}/history", get(sessions::history))
        .route("/v1/sessions/{id}/events", get(streams::results))
        .route("/v1/nodes", get(nodes::list))
        .route("/v1/roles", get(roles::list))
        .route("/v1/roles/{role}", get(roles::show))
        .route("/v1/roles/{role}/am-i-leader", get(roles::am_i_leader))
        .route("/v1/stats", get(health::stats))
        .route("/v1/events", get(streams::events))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(health::description))
        .layer(middleware::from_fn_with_state(service.clone(), access::guard));
    Router::new()
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .merge(guarded)
        .fallback(async || Failure::not_found("there is nothing here"))
        .method_not_allowed_fallback(async || Failure::method())
        .layer(DefaultBodyLimit::max(LARGEST_REQUEST))
        .layer(middleware::from_fn(in_time))
        .with_state(service)
}

/// What the framework refuses by itself is said as we say everything.
fn in_our_words(response: Response) -> Response {
    let status = response.status();
    let is_ours = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if is_ours || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (code, message) = match status {
        StatusCode::PAYLOAD_TOO_LARGE => ("too_large", "a request has 64 KiB at most"),
        _ => ("bad_request", "this cannot be understood"),
    };
    Failure::new(status, code, message).into_response()
}

async fn in_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(ANSWERED_WITHIN, next.run(request)).await {
        Ok(response) => in_our_words(response),
        Err(_) => Failure::new(StatusCode::REQUEST_TIMEOUT, "timeout", "this took too long").into_response(),
    }
}
