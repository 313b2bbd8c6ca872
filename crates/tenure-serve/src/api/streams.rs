//! Results as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive};
use axum::response::{IntoResponse, Sse};
use tenure::store::EntryId;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::failure::Failure;
use super::sessions::{identity, shown};
use crate::holdings;
use crate::poll::poller::{KEPT, RESULTS};
use crate::service::Service;

/// How often is looked for new results. Whoever reads is behind by no more than that.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The results of a session from now on, or from the one that was last seen: what is kept of them.
pub(super) async fn results(
    State(service): State<Service>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Failure> {
    let id = identity(&id)?;
    let (Some(name), Some(_)) = (holdings::lease(&id), service.catalogue().get(&id)) else {
        return Err(Failure::no_session());
    };
    let seen = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let seen: Option<EntryId> =
        seen.map(str::parse).transpose().map_err(|error| Failure::bad(format!("Last-Event-ID: {error}")))?;
    let last = match seen {
        Some(seen) => Some(seen),
        None => service.tenure().recent(&name, RESULTS, None, 1).await?.last().map(|entry| entry.id),
    };
    // Whoever reads slowly is waited for here, and holds up nobody; what is not kept any more by then it misses.
    let (send, events) = mpsc::channel::<Result<Event, Infallible>>(1);
    tokio::spawn(async move {
        let mut last = last.unwrap_or(EntryId { millis: 0, number: 0 });
        loop {
            let entries = service.tenure().recent(&name, RESULTS, Some(last), KEPT).await.unwrap_or_default();
            for entry in entries {
                last = entry.id;
                let Some(result) = shown(&entry) else { continue };
                let event = Event::default().event("result").id(entry.id.to_string()).data(result.to_string());
                if send.send(Ok(event)).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = send.closed() => return,
                () = service.ended() => return,
            }
        }
    });
    Ok(Sse::new(ReceiverStream::new(events)).keep_alive(KeepAlive::default()))
}
