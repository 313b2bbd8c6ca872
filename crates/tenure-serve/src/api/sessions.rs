//! Sessions: create, list, change, delete; and their results.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use uuid::Uuid;

use super::error::ApiError;
use crate::result_settings::{MAX_RESULTS, ResultSettings};
use crate::results;
use crate::service::Service;
use crate::session::{InvalidSession, Session};
use crate::session_repo;

/// Default and largest number of sessions per page.
const DEFAULT_PAGE_SIZE: usize = 100;
const MAX_PAGE_SIZE: usize = 1_000;

type Parameters = Query<HashMap<String, String>>;

pub(super) async fn list(State(service): State<Service>, Query(query): Parameters) -> Result<Json<Value>, ApiError> {
    let limit = parse_limit(&query, DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)?;
    // A stale cache would look like an answer.
    if !service.tenure().stats().connected || !service.session_cache().is_loaded() {
        let message = "cannot list sessions: the store is unreachable; try again when /readyz answers 200";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", message));
    }
    let cursor = query.get("cursor").map(String::as_str);
    let sessions = service.session_cache().page(cursor, limit + 1);
    let more = sessions.len() > limit;
    let shown: Vec<Value> = sessions.iter().take(limit).map(|session| session.to_json()).collect();
    let next = sessions.get(limit.saturating_sub(1)).filter(|_| more).map(|last| last.id.to_string());
    Ok(Json(json!({"sessions": shown, "nextCursor": next})))
}

pub(super) async fn create(State(service): State<Service>, body: Bytes) -> Result<(StatusCode, Json<Value>), ApiError> {
    let session = Session::create(parse_object(&body)?, Timestamp::now())?;
    service.address_policy().check(&session.url).map_err(InvalidSession::from)?;
    session_repo::create(service.tenure(), service.keys(), &session).await?;
    service.session_cache().update(&session.id.to_string(), Some(&session.to_bytes()));
    Ok((StatusCode::CREATED, Json(session.to_json())))
}

pub(super) async fn show(State(service): State<Service>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let id = parse_id(&id)?;
    let stored = session_repo::read(service.tenure(), &id).await?.ok_or_else(ApiError::session_not_found)?;
    Ok(Json(Session::read(&id, &stored)?.to_json()))
}

pub(super) async fn change(
    State(service): State<Service>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let (id, request) = (parse_id(&id)?, parse_object(&body)?);
    let moves = request.contains_key("url");
    let change = |session: &Session| {
        let changed = session.change(request.clone())?;
        // A session whose address is forbidden here can still be paused.
        if moves {
            service.address_policy().check(&changed.url)?;
        }
        Ok(changed)
    };
    let changed = session_repo::change(service.tenure(), &id, change).await?;
    service.session_cache().update(&id, Some(&changed.to_bytes()));
    Ok(Json(changed.to_json()))
}

pub(super) async fn delete(State(service): State<Service>, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    let id = parse_id(&id)?;
    session_repo::delete(service.tenure(), &id).await?;
    service.session_cache().update(&id, None);
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn state(State(service): State<Service>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let id = existing_id(&service, &id).await?;
    let Ok(name) = service.keys().session(&id) else { return Err(ApiError::session_not_found()) };
    match results::last(service.tenure(), &name).await? {
        Some(last) => Ok(Json(last)),
        None => Err(ApiError::not_found("this session has not been polled yet")),
    }
}

pub(super) async fn history(
    State(service): State<Service>,
    Path(id): Path<String>,
    Query(query): Parameters,
) -> Result<Json<Value>, ApiError> {
    let limit = parse_limit(&query, ResultSettings::default().keep_results, MAX_RESULTS)?;
    let id = existing_id(&service, &id).await?;
    let Ok(name) = service.keys().session(&id) else { return Err(ApiError::session_not_found()) };
    Ok(Json(json!({"results": results::latest(service.tenure(), &name, limit).await?})))
}

/// Returns the id as stored. A text that is not a UUID names no session.
pub(super) fn parse_id(id: &str) -> Result<String, ApiError> {
    Uuid::parse_str(id).map(|id| id.to_string()).map_err(|_| ApiError::session_not_found())
}

/// Returns the id of an existing session.
async fn existing_id(service: &Service, id: &str) -> Result<String, ApiError> {
    let id = parse_id(id)?;
    if session_repo::read(service.tenure(), &id).await?.is_some() { Ok(id) } else { Err(ApiError::session_not_found()) }
}

pub(super) fn parse_object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(ApiError::bad_request("the body must be a JSON object")),
        Err(error) => Err(ApiError::bad_request(format!("the body is not valid JSON: {error}"))),
    }
}

pub(super) fn parse_limit(query: &HashMap<String, String>, usual: usize, most: usize) -> Result<usize, ApiError> {
    let Some(text) = query.get("limit") else { return Ok(usual) };
    let limit: usize = text.parse().map_err(|_| ApiError::bad_request("`limit` must be a number"))?;
    if (1..=most).contains(&limit) {
        Ok(limit)
    } else {
        Err(ApiError::bad_request(format!("`limit` must be between 1 and {most}")))
    }
}
