//! Sessions: made, listed, changed, deleted; and what was last seen of them.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use uuid::Uuid;

use super::failure::Failure;
use crate::editing;
use crate::keeping::{Defaults, MOST_RESULTS};
use crate::results;
use crate::service::Service;
use crate::session::{Invalid, Session};

/// How many sessions are listed at once, if nobody says, and at most.
const PAGE: usize = 100;
const LARGEST_PAGE: usize = 1_000;

type Parameters = Query<HashMap<String, String>>;

pub(super) async fn list(State(service): State<Service>, Query(asked): Parameters) -> Result<Json<Value>, Failure> {
    let limit = limit(&asked, PAGE, LARGEST_PAGE)?;
    // What was known before may be out of date, and would look like an answer.
    if !service.tenure().how_it_stands().connected || !service.catalogue().is_known() {
        let message = "cannot list sessions: the store is not reachable; try again when /readyz answers 200";
        return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", message));
    }
    let cursor = asked.get("cursor").map(String::as_str);
    let sessions = service.catalogue().page(cursor, limit + 1);
    let more = sessions.len() > limit;
    let shown: Vec<Value> = sessions.iter().take(limit).map(|session| session.shown()).collect();
    let next = sessions.get(limit.saturating_sub(1)).filter(|_| more).map(|last| last.id.to_string());
    Ok(Json(json!({"sessions": shown, "nextCursor": next})))
}

pub(super) async fn create(State(service): State<Service>, body: Bytes) -> Result<(StatusCode, Json<Value>), Failure> {
    let session = Session::create(object(&body)?, Timestamp::now())?;
    service.allowed().check(&session.url).map_err(Invalid::from)?;
    editing::create(service.tenure(), service.keys(), &session).await?;
    service.catalogue().learn(&session.id.to_string(), Some(&session.stored()));
    Ok((StatusCode::CREATED, Json(session.shown())))
}

pub(super) async fn show(State(service): State<Service>, Path(id): Path<String>) -> Result<Json<Value>, Failure> {
    let id = identity(&id)?;
    let stored = editing::stored(service.tenure(), &id).await?.ok_or_else(Failure::no_session)?;
    Ok(Json(Session::read(&id, &stored)?.shown()))
}

pub(super) async fn change(
    State(service): State<Service>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Failure> {
    let (id, request) = (identity(&id)?, object(&body)?);
    let moves = request.contains_key("url");
    let change = |session: &Session| {
        let changed = session.change(request.clone())?;
        // One that may not be polled from here can still be paused.
        if moves {
            service.allowed().check(&changed.url)?;
        }
        Ok(changed)
    };
    let changed = editing::change(service.tenure(), &id, change).await?;
    service.catalogue().learn(&id, Some(&changed.stored()));
    Ok(Json(changed.shown()))
}

pub(super) async fn delete(State(service): State<Service>, Path(id): Path<String>) -> Result<StatusCode, Failure> {
    let id = identity(&id)?;
    editing::delete(service.tenure(), &id).await?;
    service.catalogue().learn(&id, None);
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn state(State(service): State<Service>, Path(id): Path<String>) -> Result<Json<Value>, Failure> {
    let id = existing(&service, &id).await?;
    let Ok(name) = service.keys().session(&id) else { return Err(Failure::no_session()) };
    match results::last(service.tenure(), &name).await? {
        Some(last) => Ok(Json(last)),
        None => Err(Failure::not_found("this session has not been polled yet")),
    }
}

pub(super) async fn history(
    State(service): State<Service>,
    Path(id): Path<String>,
    Query(asked): Parameters,
) -> Result<Json<Value>, Failure> {
    let limit = limit(&asked, Defaults::default().keep_results, MOST_RESULTS)?;
    let id = existing(&service, &id).await?;
    let Ok(name) = service.keys().session(&id) else { return Err(Failure::no_session()) };
    Ok(Json(json!({"results": results::latest(service.tenure(), &name, limit).await?})))
}

/// The id as it stands in the store. What is none names no session.
pub(super) fn identity(id: &str) -> Result<String, Failure> {
    Uuid::parse_str(id).map(|id| id.to_string()).map_err(|_| Failure::no_session())
}

/// The id of a session that is there.
async fn existing(service: &Service, id: &str) -> Result<String, Failure> {
    let id = identity(id)?;
    if editing::stored(service.tenure(), &id).await?.is_some() { Ok(id) } else { Err(Failure::no_session()) }
}

pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, Failure> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Failure::bad("the body must be a JSON object")),
        Err(error) => Err(Failure::bad(format!("the body is no JSON: {error}"))),
    }
}

pub(super) fn limit(asked: &HashMap<String, String>, usual: usize, most: usize) -> Result<usize, Failure> {
    let Some(text) = asked.get("limit") else { return Ok(usual) };
    let limit: usize = text.parse().map_err(|_| Failure::bad("`limit` must be a number"))?;
    if (1..=most).contains(&limit) {
        Ok(limit)
    } else {
        Err(Failure::bad(format!("`limit` must be between 1 and {most}")))
    }
}
