//! Where events go: out of the keeper through a bounded queue, to a thread that may be held up by anybody.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "tracing")]
use std::sync::mpsc::RecvTimeoutError;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use tokio::sync::broadcast;

use super::Gauges;
#[cfg(feature = "tracing")]
use super::log_folding::LogFolding;
use crate::event::{Event, Happening, Level};

/// How many turns of the keeper may wait to be told.
const TURNS_WAITING: usize = 1_024;

/// How many events a slow stream may fall behind.
const BACKLOG: usize = 4_096;

/// Whoever is called for every event.
pub(crate) type Listener = Box<dyn Fn(&Event) + Send + Sync>;

/// The keeper's end of the queue.
pub(crate) struct Outlet {
    queue: SyncSender<Vec<Event>>,
    gauges: Arc<Gauges>,
}

/// Where streams of events begin: one has everything, the other all but the routine.
#[derive(Clone)]
pub(crate) struct Streams {
    pub(crate) all: broadcast::Sender<Event>,
    pub(crate) news: broadcast::Sender<Event>,
}

impl Streams {
    pub(crate) fn open() -> Self {
        Self { all: broadcast::Sender::new(BACKLOG), news: broadcast::Sender::new(BACKLOG) }
    }
}

impl Outlet {
    /// Starts the thread that tells everybody.
    pub(crate) fn open(listeners: Vec<Listener>, streams: Streams, gauges: Arc<Gauges>) -> std::io::Result<Self> {
        let (queue, events) = sync_channel(TURNS_WAITING);
        let is_logged = !gauges.unlogged.load(Ordering::Relaxed);
        gauges.hears_all.fetch_add(listeners.len() as u64, Ordering::Relaxed);
        std::thread::Builder::new()
            .name("tenure-events".to_owned())
            .spawn(move || tell_everybody(&events, &listeners, &streams, is_logged))?;
        Ok(Self { queue, gauges })
    }

    /// Passes events on, or drops and counts them. Never waits.
    pub(crate) fn pass(&self, mut events: Vec<Event>) {
        // Waking a thread to tell nobody costs as much as a renewal.
        events.retain(|event| self.gauges.wants(&event.what));
        if events.is_empty() {
            return;
        }
        if let Err(TrySendError::Full(events) | TrySendError::Disconnected(events)) = self.queue.try_send(events) {
            self.gauges.events_dropped.fetch_add(events.len() as u64, Ordering::Relaxed);
        }
    }
}

impl Gauges {
    /// Whether anybody would hear of this.
    pub(crate) fn wants(&self, what: &Happening) -> bool {
        let somebody = |count: &AtomicU64| count.load(Ordering::Relaxed) > 0;
        let is_logged = !self.unlogged.load(Ordering::Relaxed) && is_traced(what.level());
        is_logged || somebody(&self.hears_all) || somebody(&self.hears_news) && !what.is_routine()
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

fn tell_everybody(queue: &Receiver<Vec<Event>>, listeners: &[Listener], streams: &Streams, is_logged: bool) {
    let mut log = Log::new();
    while let Some(events) = log.next(queue) {
        for event in events {
            if is_logged {
                log.write(&event);
            }
            listeners.iter().for_each(|listener| call(listener, &event));
            // Nobody listening is not an error.
            if !event.what.is_routine() {
                let _ = streams.news.send(event.clone());
            }
            let _ = streams.all.send(event);
        }
    }
}

/// A listener that panics hurts no other, and is called again next time.
fn call(listener: &dyn Fn(&Event), event: &Event) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| listener(event)));
}

/// The log, in which many failures at once are one line.
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

    /// Waits for the next events, and writes the lines that are due meanwhile. `None` when no more will come.
    fn next(&mut self, queue: &Receiver<Vec<Event>>) -> Option<Vec<Event>> {
        loop {
            let due = self.folding.next_due().map(|due| due.saturating_sub(self.start.elapsed()));
            let received = match due {
                Some(wait) => queue.recv_timeout(wait),
                None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let ended = received == Err(RecvTimeoutError::Disconnected);
            let now = if ended { std::time::Duration::MAX } else { self.start.elapsed() };
            for line in self.folding.take_due(now) {
                call(&crate::log::emit, &line);
            }
            match received {
                Ok(events) => return Some(events),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn write(&mut self, event: &Event) {
        // A reader of the debug log wants all of them.
        if is_traced(Level::Debug) || self.folding.has_own_line(self.start.elapsed(), event) {
            call(&crate::log::emit, event);
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

    fn next(&mut self, queue: &Receiver<Vec<Event>>) -> Option<Vec<Event>> {
        queue.recv().ok()
    }

    fn write(&mut self, _: &Event) {}
}
