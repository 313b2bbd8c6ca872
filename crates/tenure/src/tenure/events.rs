//! Streams of events.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_util::StreamExt;
use tokio::sync::broadcast;

use crate::event::Event;
use crate::keeper::{EventStreams, Gauges};
use crate::name::LeaseRef;

/// Events of this process, in order: of everything, of one [election](crate::Election::events), or of one
/// [pool](crate::pool::Pool::events). A reader that falls behind by more than 4 096 events misses the oldest.
///
/// It is a [`Stream`]; [`next`](Self::next) needs no other crate.
///
/// ```
/// use tenure::{EventKind, Tenure};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let mut losses = tenure.events().filter(|event| matches!(event.kind, EventKind::Lost(_)));
/// let mut changes = tenure.events().notable().lease("report"); // without renewals and polls
/// let lease = tenure.lease("report").acquire().await?;
/// assert!(matches!(changes.next().await.map(|event| event.kind), Some(EventKind::Acquired { .. })));
/// lease.release().await?;
/// tenure.shutdown().await;
/// assert!(losses.next().await.is_none()); // the stream ends with the `Tenure`
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a stream does nothing until it is read"]
pub struct EventStream {
    events: Pin<Box<dyn Stream<Item = Event> + Send>>,
    /// The sources, which end with the keeper.
    sources: WeakEventStreams,
    reader_count: ReaderCount,
    filters: Filters,
}

/// The predicates that an event has to meet.
type Filters = Vec<Arc<dyn Fn(&Event) -> bool + Send + Sync>>;

/// The sources of event streams. They end with the keeper.
#[derive(Clone)]
pub(super) struct WeakEventStreams {
    all: broadcast::WeakSender<Event>,
    notable: broadcast::WeakSender<Event>,
}

impl WeakEventStreams {
    pub(super) fn of(streams: &EventStreams) -> Self {
        Self { all: streams.all.downgrade(), notable: streams.notable.downgrade() }
    }
}

/// Counts a reader: events without one cost almost nothing.
struct ReaderCount {
    gauges: Arc<Gauges>,
    counter: fn(&Gauges) -> &AtomicU64,
}

impl ReaderCount {
    fn new(gauges: Arc<Gauges>, counter: fn(&Gauges) -> &AtomicU64) -> Self {
        counter(&gauges).fetch_add(1, Ordering::Relaxed);
        Self { gauges, counter }
    }
}

impl Drop for ReaderCount {
    fn drop(&mut self) {
        (self.counter)(&self.gauges).fetch_sub(1, Ordering::Relaxed);
    }
}

impl EventStream {
    pub(super) fn open(sources: WeakEventStreams, gauges: Arc<Gauges>) -> Self {
        let events = follow(sources.all.upgrade());
        Self {
            events,
            sources,
            reader_count: ReaderCount::new(gauges, |gauges| &gauges.all_listeners),
            filters: Vec::new(),
        }
    }

    /// Leaves out [routine](crate::EventKind::is_routine) events: renewals and polls. They cost almost nothing when no
    /// stream or listener wants them.
    pub fn notable(mut self) -> Self {
        self.events = follow(self.sources.notable.upgrade());
        let gauges = self.reader_count.gauges.clone();
        self.reader_count = ReaderCount::new(gauges, |gauges| &gauges.notable_listeners);
        self
    }

    /// Leaves out events that do not meet a condition.
    pub fn filter(mut self, condition: impl Fn(&Event) -> bool + Send + Sync + 'static) -> Self {
        self.filters.push(Arc::new(condition));
        self
    }

    /// Leaves out events of other leases. A label is that of a plain lease; see [`LeaseRef`]. A stream of a lease whose
    /// name is not valid has no events.
    pub fn lease(self, lease: impl Into<LeaseRef>) -> Self {
        let name = lease.into().lease().ok();
        self.filter(move |event| name.is_some() && event.lease == name)
    }

    /// Returns the next event, or `None` when there will be no more.
    ///
    /// # Cancel safety
    /// Safe: no event is lost.
    pub async fn next(&mut self) -> Option<Event> {
        StreamExt::next(self).await
    }
}

/// The events of a source from now on; none when it has ended.
fn follow(source: Option<broadcast::Sender<Event>>) -> Pin<Box<dyn Stream<Item = Event> + Send>> {
    let Some(source) = source else { return Box::pin(futures_util::stream::empty()) };
    let events = futures_util::stream::unfold(source.subscribe(), |mut events| async move {
        loop {
            match events.recv().await {
                Ok(event) => return Some((event, events)),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    });
    // May be polled after its end, as in a `select!` in a loop.
    Box::pin(events.fuse())
}

impl Stream for EventStream {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        loop {
            match self.events.as_mut().poll_next(context) {
                Poll::Ready(Some(event)) if !self.filters.iter().all(|meets| meets(&event)) => {}
                polled => return polled,
            }
        }
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventStream({} filters)", self.filters.len())
    }
}
