//! The planned placement, the moves towards it, and past moves.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::{Query, State};
use serde_json::{Value, json};
use tenure::placement::{Assignment, FULL_WEIGHT, Move, plan};
use tenure::store::StoreError;
use tenure::time::ServerTime;
use tokio::task::JoinSet;

use super::error::ApiError;
use super::sessions::parse_limit;
use crate::ownership;
use crate::poll::result::format_time;
use crate::service::Service;

/// Default and largest number of moves to list.
const DEFAULT_MOVES: usize = 100;
const MAX_MOVES: usize = 1_000;

/// Number of records to read at once.
const MAX_READS_IN_FLIGHT: usize = 200;

pub(super) async fn show(State(service): State<Service>) -> Result<Json<Value>, ApiError> {
    // Scans read the whole fleet, so only a few run at a time.
    let _permit = service.fleet_scans().acquire().await;
    let sessions = service.session_cache().page(None, usize::MAX);
    let active: Vec<String> =
        sessions.iter().filter(|session| !session.is_paused).map(|session| session.id.to_string()).collect();
    let held = |(id, inspection): (String, ownership::LeaseInspection)| {
        let holder = inspection.ok().and_then(|report| report.held).map(|held| held.holder);
        Assignment { target: id, holder }
    };
    let held: Vec<Assignment> =
        ownership::session_leases(service.tenure(), service.keys(), &active).await?.into_iter().map(held).collect();
    let Some(overview) = service.pool().status().await else {
        return Err(ApiError::not_found("this instance is stopping"));
    };
    let plan = plan(&overview.loads, &held);
    let instance = |peer: &tenure::placement::InstanceLoad| {
        json!({
            "instanceId": peer.instance.as_str(),
            "weight": f64::from(peer.weight) / f64::from(FULL_WEIGHT),
            "held": held.iter().filter(|held| held.holder.as_ref() == Some(&peer.instance)).count(),
            "quota": plan.quotas.get(&peer.instance),
        })
    };
    let session = |held: &Assignment| {
        json!({
            "sessionId": held.target,
            "ownerId": held.holder.as_ref().map(|holder| holder.as_str()),
            "preferredOwnerId": plan.holder(&held.target).map(|owner| owner.as_str()),
        })
    };
    Ok(Json(json!({
        "instances": overview.loads.iter().map(instance).collect::<Vec<Value>>(),
        "sessions": held.iter().map(session).collect::<Vec<Value>>(),
        "moves": plan.moves.iter().map(move_json).collect::<Vec<Value>>(),
    })))
}

pub(super) async fn moves(
    State(service): State<Service>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<Value>, ApiError> {
    let limit = parse_limit(&query, DEFAULT_MOVES, MAX_MOVES)?;
    let _permit = service.fleet_scans().acquire().await;
    let mut found = read_moves(&service).await?;
    found.sort_by_key(|(_, at)| std::cmp::Reverse(*at));
    let shown = found.iter().take(limit).map(|(made, at)| {
        let mut shown = move_json(made);
        shown["at"] = format_time(system_time(*at)).into();
        shown
    });
    Ok(Json(json!({"moves": shown.collect::<Vec<Value>>()})))
}

/// Reads the last move of each session that has ever moved.
async fn read_moves(service: &Service) -> Result<Vec<(Move, ServerTime)>, StoreError> {
    let sessions = service.session_cache().page(None, usize::MAX);
    let mut found = Vec::new();
    for chunk in sessions.chunks(MAX_READS_IN_FLIGHT) {
        let mut reads = JoinSet::new();
        for session in chunk {
            let (pool, id) = (service.pool().clone(), session.id.to_string());
            reads.spawn(async move { pool.last_move(&id).await });
        }
        while let Some(read) = reads.join_next().await {
            match read {
                // Leave out a record that a foreign program has damaged.
                Ok(Err(error)) if !error.is_retryable() => {}
                Ok(read) => found.extend(read?),
                Err(_) => {}
            }
        }
    }
    Ok(found)
}

fn move_json(made: &Move) -> Value {
    json!({
        "sessionId": made.target,
        "from": made.from.as_ref().map(|from| from.as_str()),
        "to": made.to.as_str(),
        "reason": made.reason.as_str(),
        "message": made.reason.to_string(),
    })
}

fn system_time(at: ServerTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(at.as_micros())
}
