//! Errors of the API.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tenure::RequestError;
use tenure::store::StoreError;

use crate::session::InvalidSession;
use crate::session_repo::EditError;

/// An error response.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    pub(super) fn not_found(message: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(super) fn session_not_found() -> Self {
        Self::not_found("no such session")
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message)
    }

    pub(super) fn method_not_allowed() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "the route does not support this method")
    }
}

impl From<InvalidSession> for ApiError {
    fn from(error: InvalidSession) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", error.to_string())
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Name(error) => Self::invalid(error.to_string()),
            // The message says that the outcome is unknown.
            error => Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", error.to_string()),
        }
    }
}

impl From<EditError> for ApiError {
    fn from(error: EditError) -> Self {
        match error {
            EditError::NotFound => Self::session_not_found(),
            EditError::Invalid(error) => error.into(),
            EditError::Request(error) => error.into(),
            EditError::AlreadyExists | EditError::StillHeld | EditError::Contended => {
                Self::new(StatusCode::CONFLICT, "conflict", error.to_string())
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json!({"error": {"code": self.code, "message": self.message}});
        (self.status, Json(body)).into_response()
    }
}
