//! Server-sent events: the results of a session, and what happens in the fleet.

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

use super::failure::Failure;
use super::sessions::identity;
use crate::catalogue::Known;
use crate::keeping::MOST_RESULTS;
use crate::results::{Kept, Results};
use crate::service::Service;

/// How long after results that could not be read they are asked for again.
const PAUSE: Duration = Duration::from_secs(1);

/// The results of a session from now on, or from the one that was last seen: what is kept of them.
pub(super) async fn results(
    State(service): State<Service>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let id = identity(&id)?;
    let (Ok(lease), Some(known)) = (service.keys().session(&id), service.catalogue().get(&id)) else {
        return Err(Failure::no_session());
    };
    let Known::Readable(session) = known else { return Err(Failure::no_session()) };
    let seen = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let seen: Option<EntryId> =
        seen.map(str::parse).transpose().map_err(|error| Failure::bad(format!("Last-Event-ID: {error}")))?;
    let place = place(&service)?;
    let last = match seen {
        Some(seen) => Some(seen),
        None => Results::after(service.tenure(), &lease, None, 1).await?.last().map(|kept| kept.id),
    };
    let mut reader = Reader {
        fresh: service.results().follow(service.tenure(), service.catalogue(), &lease, session.interval),
        last: last.unwrap_or(EntryId { millis: 0, number: 0 }),
        lease,
        service: service.clone(),
    };
    Ok(streamed(&service, place, |send| async move { reader.read(&send).await }))
}

/// Somebody who reads the results of a session.
struct Reader {
    service: Service,
    lease: LeaseName,
    fresh: broadcast::Receiver<Arc<Kept>>,
    last: EntryId,
}

impl Reader {
    async fn read(&mut self, send: &mpsc::Sender<Event>) -> Option<()> {
        loop {
            // Whoever reads slowly is waited for here, and holds up nobody; what is not kept any more by then it misses.
            let Ok(missed) = Results::after(self.service.tenure(), &self.lease, Some(self.last), MOST_RESULTS).await
            else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            for kept in missed {
                self.pass_on(send, &kept).await?;
            }
            loop {
                match self.fresh.recv().await {
                    Ok(kept) => self.pass_on(send, &kept).await?,
                    Err(broadcast::error::RecvError::Lagged(_)) => break,
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        }
    }

    async fn pass_on(&mut self, send: &mpsc::Sender<Event>, kept: &Kept) -> Option<()> {
        if kept.id > self.last {
            self.last = kept.id;
            let event = Event::default().event("result").id(kept.id.to_string()).data(&kept.line);
            send.send(event).await.ok()?;
        }
        Some(())
    }
}

/// What happens to leases and in elections of the whole fleet, from now on. While the store is down nothing would come.
pub(super) async fn events(State(service): State<Service>) -> Result<Response, Failure> {
    service.tenure().inspect_namespace().await?;
    let (place, mut events) = (place(&service)?, service.events().follow());
    Ok(streamed(&service, place, |send| async move {
        loop {
            match events.recv().await {
                Ok(told) => send.send(Event::default().event(&told.name).data(&told.line)).await.ok()?,
                // Said, so that nobody takes what it sees for everything.
                Err(broadcast::error::RecvError::Lagged(count)) => {
                    send.send(Event::default().comment(format!("{count} were missed"))).await.ok()?;
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }))
}

/// A place among those who read streams.
fn place(service: &Service) -> Result<OwnedSemaphorePermit, Failure> {
    service.streams().try_acquire_owned().map_err(|_| {
        let message = "too many read streams from this instance; ask another, or close some";
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_streams", message)
    })
}

/// A stream that is fed until its reader has had enough, or everything ends.
fn streamed<F>(service: &Service, place: OwnedSemaphorePermit, feed: impl FnOnce(mpsc::Sender<Event>) -> F) -> Response
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
            () = service.ended() => {}
        }
        drop(place);
    });
    Sse::new(ReceiverStream::new(events).map(Ok::<_, Infallible>)).keep_alive(KeepAlive::default()).into_response()
}
