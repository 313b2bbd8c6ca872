//! Where events go: out of the keeper through a bounded queue, to a thread that may be held up by anybody.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use tokio::sync::broadcast;

use super::Gauges;
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
        gauges.hears_all.fetch_add(listeners.len() as u64, Ordering::Relaxed);
        std::thread::Builder::new()
            .name("tenure-events".to_owned())
            .spawn(move || tell_everybody(&events, &listeners, &streams))?;
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
        is_traced(what.level()) || somebody(&self.hears_all) || somebody(&self.hears_news) && !what.is_routine()
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

fn tell_everybody(queue: &Receiver<Vec<Event>>, listeners: &[Listener], streams: &Streams) {
    while let Ok(events) = queue.recv() {
        for event in events {
            // One that panics hurts nobody else, and is called again next time.
            let call = |listener: &dyn Fn(&Event)| {
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| listener(&event)));
            };
            #[cfg(feature = "tracing")]
            call(&crate::log::emit);
            listeners.iter().for_each(|listener| call(listener));
            // Nobody listening is not an error.
            if !event.what.is_routine() {
                let _ = streams.news.send(event.clone());
            }
            let _ = streams.all.send(event);
        }
    }
}
