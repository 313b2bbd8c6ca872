//! The HTTP API: what can be asked of any instance, about all of them.

mod access;
mod failure;
mod health;
mod nodes;
mod sessions;
mod streams;

use axum::extract::DefaultBodyLimit;
use axum::routing::get;
use axum::{Router, middleware};

pub use access::ApiToken;
use failure::Failure;

use crate::service::Service;

/// No request is larger than this.
const LARGEST_REQUEST: usize = 64 * 1024;

/// All routes.
pub(crate) fn router(service: Service) -> Router {
    let guarded = Router::new()
        .route("/v1/sessions", get(sessions::list).post(sessions::create))
        .route("/v1/sessions/{id}", get(sessions::show).patch(sessions::change).delete(sessions::delete))
        .route("/v1/sessions/{id}/state", get(sessions::state))
        .route("/v1/sessions/{id}/history", get(sessions::history))
        .route("/v1/sessions/{id}/events", get(streams::results))
        .route("/v1/nodes", get(nodes::list))
        .route("/metrics", get(health::metrics))
        .layer(middleware::from_fn_with_state(service.clone(), access::guard));
    Router::new()
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .merge(guarded)
        .fallback(async || Failure::not_found("there is nothing here"))
        .method_not_allowed_fallback(async || Failure::method())
        .layer(DefaultBodyLimit::max(LARGEST_REQUEST))
        .with_state(service)
}
