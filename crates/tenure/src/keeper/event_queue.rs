//! The way of events out of the keeper: a bounded queue to a thread that writes the log and feeds streams and listeners.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "tracing")]
use std::sync::mpsc::RecvTimeoutError;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tokio::sync::broadcast;

use super::Gauges;
use super::listeners::{ListenerId, Listeners};
#[cfg(feature = "tracing")]
use super::log_folding::LogFolding;
use crate::event::{Event, EventKind, Level};

/// Number of batches, one per keeper round, that may wait for dispatch.
const MAX_QUEUED_BATCHES: usize = 1_024;

/// Number of events that a slow stream may fall behind.
const STREAM_CAPACITY: usize = 4_096;

/// The keeper's end of the queue.
pub(crate) struct EventQueue {
    queue: SyncSender<QueueItem>,
    listeners: Arc<Listeners>,
    gauges: Arc<Gauges>,
}

enum QueueItem {
    Events(Vec<Event>),
    RemoveListener(ListenerId),
}

/// The sources of event streams: one of all events, one of all but routine events.
#[derive(Clone)]
pub(crate) struct EventStreams {
    pub(crate) all: broadcast::Sender<Event>,
    pub(crate) notable: broadcast::Sender<Event>,
}

impl EventStreams {
    pub(crate) fn open() -> Self {
        Self { all: broadcast::Sender::new(STREAM_CAPACITY), notable: broadcast::Sender::new(STREAM_CAPACITY) }
    }
}

impl EventQueue {
    /// Starts the thread that dispatches events.
    pub(crate) fn open(listeners: Arc<Listeners>, streams: EventStreams, gauges: Arc<Gauges>) -> std::io::Result<Self> {
        let (queue, items) = sync_channel(MAX_QUEUED_BATCHES);
        let (is_logged, served) = (!gauges.unlogged.load(Ordering::Relaxed), listeners.clone());
        std::thread::Builder::new()
            .name("tenure-events".to_owned())
            .spawn(move || dispatch_events(&items, &served, &streams, is_logged))?;
        Ok(Self { queue, listeners, gauges })
    }

    /// Queues events, or drops and counts them. Never waits.
    pub(crate) fn push(&self, mut events: Vec<Event>) {
        // Waking a thread without any listener costs as much as a renewal.
        events.retain(|event| self.gauges.has_listener_for(&event.kind));
        if events.is_empty() {
            return;
        }
        let count = events.len() as u64;
        if self.queue.try_send(QueueItem::Events(events)).is_err() {
            self.gauges.events_dropped.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Removes a listener after the events that are queued by now.
    pub(crate) fn remove_listener(&self, id: ListenerId) {
        if self.queue.try_send(QueueItem::RemoveListener(id)).is_err() {
            self.listeners.remove(id);
        }
    }
}

impl Gauges {
    /// Whether any listener receives this event.
    pub(crate) fn has_listener_for(&self, kind: &EventKind) -> bool {
        let has_any = |count: &AtomicU64| count.load(Ordering::Relaxed) > 0;
        let is_logged = !self.unlogged.load(Ordering::Relaxed) && is_traced(kind.level());
        is_logged || has_any(&self.all_listeners) || has_any(&self.notable_listeners) && !kind.is_routine()
    }
}

#[cfg(feature = "tracing")]
fn is_traced(level: Level) -> bool {
    use tracing::level_filters::LevelFilter;
    let level = match level {
        Level::Debug => LevelFilter::DEBUG,
        Level::Info => LevelFilter::INFO,
        Level::Warn => LevelFilter::WARN,
    };
    LevelFilter::current() >= level
}

#[cfg(not(feature = "tracing"))]
fn is_traced(_: Level) -> bool {
    false
}

fn dispatch_events(queue: &Receiver<QueueItem>, listeners: &Listeners, streams: &EventStreams, is_logged: bool) {
    let mut log = Log::new();
    while let Some(item) = log.next(queue) {
        let events = match item {
            QueueItem::Events(events) => events,
            QueueItem::RemoveListener(id) => {
                listeners.remove(id);
                continue;
            }
        };
        for event in events {
            if is_logged {
                log.write(&event);
            }
            listeners.dispatch(&event);
            // A stream without receivers is not an error.
            if !event.kind.is_routine() {
                let _ = streams.notable.send(event.clone());
            }
            let _ = streams.all.send(event);
        }
    }
    listeners.finish_dispatch();
}

/// Writes a line. A subscriber of `tracing` that panics ends nothing here.
#[cfg(feature = "tracing")]
fn write_line(event: &Event) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| crate::log::emit(event)));
}

/// The log, which folds many failures at once into one line.
#[cfg(feature = "tracing")]
struct Log {
    folding: LogFolding,
    start: std::time::Instant,
}

#[cfg(feature = "tracing")]
impl Log {
    fn new() -> Self {
        Self { folding: LogFolding::default(), start: std::time::Instant::now() }
    }

    /// Waits for the next events, and writes the folded lines that are due meanwhile. `None` when the queue is closed.
    fn next(&mut self, queue: &Receiver<QueueItem>) -> Option<QueueItem> {
        loop {
            let due = self.folding.next_due().map(|due| due.saturating_sub(self.start.elapsed()));
            let received = match due {
                Some(wait) => queue.recv_timeout(wait),
                None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let ended = matches!(received, Err(RecvTimeoutError::Disconnected));
            let now = if ended { std::time::Duration::MAX } else { self.start.elapsed() };
            for line in self.folding.take_due(now) {
                write_line(&line);
            }
            match received {
                Ok(item) => return Some(item),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn write(&mut self, event: &Event) {
        // At debug level every event has its own line.
        if is_traced(Level::Debug) || self.folding.has_own_line(self.start.elapsed(), event) {
            write_line(event);
        }
    }
}

#[cfg(not(feature = "tracing"))]
struct Log;

#[cfg(not(feature = "tracing"))]
impl Log {
    fn new() -> Self {
        Self
    }

    fn next(&mut self, queue: &Receiver<QueueItem>) -> Option<QueueItem> {
        queue.recv().ok()
    }

    fn write(&mut self, _: &Event) {}
}
