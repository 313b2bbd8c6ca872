//! Server-sent events: the results of a session, and the events of the fleet.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive};
use axum::response::{IntoResponse, Response, Sse};
use tenure::LeaseName;
use tenure::store::EntryId;
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::error::ApiError;
use super::sessions::parse_id;
use crate::result_settings::MAX_RESULTS;
use crate::results::{LoggedResult, ResultStreams};
use crate::service::Service;
use crate::session_cache::CachedSession;

/// Delay before reading results again after an error.
const READ_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Streams new results of a session, or those after the last seen one, as far as they are kept.
pub(super) async fn results(
    State(service): State<Service>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id = parse_id(&id)?;
    let (Ok(lease), Some(known)) = (service.keys().session(&id), service.session_cache().get(&id)) else {
        return Err(ApiError::session_not_found());
    };
    let CachedSession::Readable(_) = known else { return Err(ApiError::session_not_found()) };
    let seen = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let seen: Option<EntryId> =
        seen.map(str::parse).transpose().map_err(|error| ApiError::bad_request(format!("Last-Event-ID: {error}")))?;
    let permit = stream_permit(&service)?;
    let last = match seen {
        Some(seen) => Some(seen),
        None => ResultStreams::read_after(service.tenure(), &lease, None, 1).await?.last().map(|kept| kept.id),
    };
    let mut reader = ResultReader {
        fresh: service.result_streams().follow(service.tenure(), service.session_cache(), &lease),
        last: last.unwrap_or(EntryId { millis: 0, number: 0 }),
        lease,
        service: service.clone(),
    };
    Ok(stream_response(&service, permit, |send| async move { reader.read(&send).await }))
}

/// A client that reads the results of a session.
struct ResultReader {
    service: Service,
    lease: LeaseName,
    fresh: broadcast::Receiver<Arc<LoggedResult>>,
    last: EntryId,
}

impl ResultReader {
    async fn read(&mut self, send: &mpsc::Sender<Event>) -> Option<()> {
        loop {
            // A slow client blocks only its own stream. It misses results that are trimmed before it reads them.
            let Ok(missed) =
                ResultStreams::read_after(self.service.tenure(), &self.lease, Some(self.last), MAX_RESULTS).await
            else {
                tokio::time::sleep(READ_RETRY_DELAY).await;
                continue;
            };
            for kept in missed {
                self.forward(send, &kept).await?;
            }
            loop {
                match self.fresh.recv().await {
                    Ok(kept) => self.forward(send, &kept).await?,
                    Err(broadcast::error::RecvError::Lagged(_)) => break,
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        }
    }

    async fn forward(&mut self, send: &mpsc::Sender<Event>, kept: &LoggedResult) -> Option<()> {
        if kept.id > self.last {
            self.last = kept.id;
            let event = Event::default().event("result").id(kept.id.to_string()).data(&kept.line);
            send.send(event).await.ok()?;
        }
        Some(())
    }
}

/// Streams new lease and election events of the whole fleet. Fails while the store is unreachable, because no event
/// would arrive.
pub(super) async fn events(State(service): State<Service>) -> Result<Response, ApiError> {
    service.tenure().admin().namespace().await?;
    let (permit, mut events) = (stream_permit(&service)?, service.events().follow());
    Ok(stream_response(&service, permit, |send| async move {
        loop {
            match events.recv().await {
                Ok(event) => send.send(Event::default().event(&event.name).data(&event.line)).await.ok()?,
                // Report the gap, so that the client does not take the stream for complete.
                Err(broadcast::error::RecvError::Lagged(count)) => {
                    send.send(Event::default().comment(format!("{count} events missed"))).await.ok()?;
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }))
}

/// Acquires a permit for a stream.
fn stream_permit(service: &Service) -> Result<OwnedSemaphorePermit, ApiError> {
    service.streams().try_acquire_owned().map_err(|_| {
        let message = "too many open streams on this instance; use another instance, or close some";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_streams", message)
    })
}

/// Returns a stream that is fed until its client disconnects or the service stops.
fn stream_response<F>(
    service: &Service,
    permit: OwnedSemaphorePermit,
    feed: impl FnOnce(mpsc::Sender<Event>) -> F,
) -> Response
where
    F: Future<Output = Option<()>> + Send + 'static,
{
    let (send, events) = mpsc::channel::<Event>(1);
    let (service, closed) = (service.clone(), send.clone());
    let feeding = feed(send);
    tokio::spawn(async move {
        tokio::select! {
            _ = feeding => {}
            () = closed.closed() => {}
            () = service.wait_stopped() => {}
        }
        drop(permit);
    });
    Sse::new(ReceiverStream::new(events).map(Ok::<_, Infallible>)).keep_alive(KeepAlive::default()).into_response()
}
