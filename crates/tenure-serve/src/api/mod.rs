//! The HTTP API. Any instance answers for the whole fleet.

mod access;
mod error;
mod health;
mod nodes;
mod plan;
mod roles;
mod sessions;
mod streams;

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::DefaultBodyLimit;
use axum::extract::Request;
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, middleware};

pub use access::ApiToken;
use error::ApiError;
pub use health::quarantine_json;

use crate::service::Service;

/// Largest request.
const MAX_REQUEST_BYTES: usize = 64 * 1024;

/// Timeout of receiving a request body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

const TOO_LARGE_MESSAGE: &str = "the request exceeds 64 KiB";

/// Timeout from a request to the start of its response, including calls to the store and a slow client.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the router of all routes.
pub(crate) fn router(service: Service) -> Router {
    let authorized = Router::new()
        .route("/v1/sessions", get(sessions::list).post(sessions::create))
        .route("/v1/sessions/{id}", get(sessions::show).patch(sessions::change).delete(sessions::delete))
        .route("/v1/sessions/{id}/state", get(sessions::state))
        .route("/v1/sessions/{id}/history", get(sessions::history))
        .route("/v1/sessions/{id}/events", get(streams::results))
        .route("/v1/nodes", get(nodes::list))
        .route("/v1/nodes/{id}/drain", post(nodes::drain))
        .route("/v1/nodes/{id}/undrain", post(nodes::undrain))
        .route("/v1/roles", get(roles::list))
        .route("/v1/roles/{role}", get(roles::show))
        .route("/v1/roles/{role}/am-i-leader", get(roles::am_i_leader))
        .route("/v1/roles/{role}/step-down", post(roles::step_down))
        .route("/v1/plan", get(plan::show))
        .route("/v1/moves", get(plan::moves))
        .route("/v1/stats", get(health::stats))
        .route("/v1/events", get(streams::events))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(health::openapi))
        .fallback(no_such_route)
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        // Read no body before the client is authorized.
        .layer(middleware::from_fn(read_body))
        .layer(middleware::from_fn_with_state(service.clone(), access::authorize));
    Router::new()
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .merge(authorized)
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer(DefaultBodyLimit::max(MAX_REQUEST_BYTES))
        .layer(middleware::from_fn(with_timeout))
        .with_state(service)
}

async fn no_such_route(method: Method, uri: Uri) -> ApiError {
    ApiError::not_found(&format!("no such route: {method} {}; see /openapi.json", uri.path()))
}

/// Rewrites errors of the framework in the format of the API.
fn normalize_error(response: Response) -> Response {
    let status = response.status();
    let is_ours = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if is_ours || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (code, message) = match status {
        StatusCode::PAYLOAD_TOO_LARGE => ("too_large", TOO_LARGE_MESSAGE),
        _ => ("bad_request", "the request is not valid"),
    };
    ApiError::new(status, code, message).into_response()
}

/// Reads the whole request body first: a body that arrives byte by byte would hold a permit for as long.
async fn read_body(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MAX_REQUEST_BYTES)).await {
        Ok(Ok(bytes)) => next.run(Request::from_parts(parts, Body::from(bytes))).await,
        Ok(Err(_)) => ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", TOO_LARGE_MESSAGE).into_response(),
        Err(_) => {
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the request did not arrive in time").into_response()
        }
    }
}

async fn with_timeout(request: Request, next: Next) -> Response {
    match tokio::time::timeout(RESPONSE_TIMEOUT, next.run(request)).await {
        Ok(response) => with_newline(normalize_error(response)).await,
        Err(_) => {
            let failure = ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the request took too long");
            with_newline(failure.into_response()).await
        }
    }
}

/// Ends a JSON document with a newline, so that it does not run into a terminal's prompt.
async fn with_newline(response: Response) -> Response {
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if !is_json {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // The body is in memory already.
    let Ok(bytes) = to_bytes(body, usize::MAX).await else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    let mut bytes = Vec::from(bytes);
    if bytes.last() != Some(&b'\n') {
        bytes.push(b'\n');
    }
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(bytes))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::Instant;

    use super::*;

    /// With paused time, timeouts pass at once when nothing else runs.
    #[tokio::test(start_paused = true)]
    async fn a_slow_request_body_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(async |body: String| body).layer(middleware::from_fn(read_body));
        tokio::spawn(crate::listener::serve(listener, router, std::future::pending()));
        let (mut answers, mut asks) = TcpStream::connect(address).await.unwrap().into_split();
        let begun = Instant::now();
        asks.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n").await.unwrap();
        tokio::spawn(async move {
            while asks.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let mut answer = [0; 12];
        answers.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 408");
        assert!(begun.elapsed() >= BODY_TIMEOUT && begun.elapsed() < BODY_TIMEOUT * 2, "{:?}", begun.elapsed());
    }
}
