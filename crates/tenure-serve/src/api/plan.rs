//! Which instance should hold what, what would move, and what has moved.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::{Query, State};
use serde_json::{Value, json};
use tenure::placement::{FULL_WEIGHT, Held, Move, plan};
use tenure::store::StoreError;
use tenure::time::ServerTime;
use tokio::task::JoinSet;

use super::failure::Failure;
use super::sessions::limit;
use crate::holdings;
use crate::poll::result::instant;
use crate::service::Service;

/// How many moves are listed, if no number is asked for, and at most.
const MOVES: usize = 100;
const MOST_MOVES: usize = 1_000;

/// How many records are read in one go.
const READS_AT_ONCE: usize = 200;

pub(super) async fn show(State(service): State<Service>) -> Result<Json<Value>, Failure> {
    // It looks at everything: a few at a time are enough.
    let _turn = service.surveys().acquire().await;
    let sessions = service.catalogue().page(None, usize::MAX);
    let active: Vec<String> =
        sessions.iter().filter(|session| !session.is_paused).map(|session| session.id.to_string()).collect();
    let held = |(id, looked): (String, holdings::Looked)| {
        let holder = looked.ok().and_then(|report| report.held).map(|held| held.by);
        Held { target: id, holder }
    };
    let held: Vec<Held> =
        holdings::read(service.tenure(), service.keys(), &active).await?.into_iter().map(held).collect();
    let Some(overview) = service.pool().overview().await else {
        return Err(Failure::not_found("this instance is stopping"));
    };
    let plan = plan(&overview.peers, &held);
    let instance = |peer: &tenure::placement::Peer| {
        json!({
            "instanceId": peer.instance.as_str(),
            "weight": f64::from(peer.weight) / f64::from(FULL_WEIGHT),
            "held": held.iter().filter(|held| held.holder.as_ref() == Some(&peer.instance)).count(),
            "quota": plan.shares.get(&peer.instance),
        })
    };
    let session = |held: &Held| {
        json!({
            "sessionId": held.target,
            "ownerId": held.holder.as_ref().map(|holder| holder.as_str()),
            "preferredOwnerId": plan.owner(&held.target).map(|owner| owner.as_str()),
        })
    };
    Ok(Json(json!({
        "instances": overview.peers.iter().map(instance).collect::<Vec<Value>>(),
        "sessions": held.iter().map(session).collect::<Vec<Value>>(),
        "moves": plan.moves.iter().map(moved).collect::<Vec<Value>>(),
    })))
}

pub(super) async fn moves(
    State(service): State<Service>,
    Query(asked): Query<HashMap<String, String>>,
) -> Result<Json<Value>, Failure> {
    let limit = limit(&asked, MOVES, MOST_MOVES)?;
    let _turn = service.surveys().acquire().await;
    let mut found = read_moves(&service).await?;
    found.sort_by_key(|(_, at)| std::cmp::Reverse(*at));
    let shown = found.iter().take(limit).map(|(made, at)| {
        let mut shown = moved(made);
        shown["at"] = instant(moment(*at)).into();
        shown
    });
    Ok(Json(json!({"moves": shown.collect::<Vec<Value>>()})))
}

/// The last move of each session that has ever moved.
async fn read_moves(service: &Service) -> Result<Vec<(Move, ServerTime)>, StoreError> {
    let sessions = service.catalogue().page(None, usize::MAX);
    let mut found = Vec::new();
    for chunk in sessions.chunks(READS_AT_ONCE) {
        let mut reads = JoinSet::new();
        for session in chunk {
            let (pool, id) = (service.pool().clone(), session.id.to_string());
            reads.spawn(async move { pool.last_move(&id).await });
        }
        while let Some(read) = reads.join_next().await {
            match read {
                // What an outsider has spoilt is left out.
                Ok(Err(error)) if !error.is_retryable() => {}
                Ok(read) => found.extend(read?),
                Err(_) => {}
            }
        }
    }
    Ok(found)
}

fn moved(made: &Move) -> Value {
    json!({
        "sessionId": made.target,
        "from": made.from.as_ref().map(|from| from.as_str()),
        "to": made.to.as_str(),
        "reason": made.reason.word(),
        "message": made.reason.to_string(),
    })
}

fn moment(at: ServerTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(at.as_micros())
}
