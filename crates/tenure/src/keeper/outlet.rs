//! Where events go: out of the keeper through a bounded queue, to a thread that may be held up by anybody.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use tokio::sync::broadcast;

use super::Gauges;
use crate::event::Event;

/// How many turns of the keeper may wait to be told.
const TURNS_WAITING: usize = 1_024;

/// How many events a slow stream may fall behind.
const BACKLOG: usize = 4_096;

/// Whoever is called for every event.
pub(crate) type Listener = Box<dyn Fn(&Event) + Send + Sync>;

/// The keeper's end of the queue.
pub(crate) struct Outlet {
    queue: SyncSender<Vec<Event>>,
    has_listeners: bool,
    gauges: Arc<Gauges>,
}

impl Outlet {
    /// Starts the thread that tells everybody.
    pub(crate) fn open(
        listeners: Vec<Listener>,
        stream: broadcast::Sender<Event>,
        gauges: Arc<Gauges>,
    ) -> std::io::Result<Self> {
        let (queue, events) = sync_channel(TURNS_WAITING);
        let has_listeners = !listeners.is_empty();
        std::thread::Builder::new()
            .name("tenure-events".to_owned())
            .spawn(move || tell_everybody(&events, &listeners, &stream))?;
        Ok(Self { queue, has_listeners, gauges })
    }

    /// Passes events on, or drops and counts them. Never waits.
    pub(crate) fn pass(&self, events: Vec<Event>) {
        if !self.is_wanted() {
            return;
        }
        if let Err(TrySendError::Full(events) | TrySendError::Disconnected(events)) = self.queue.try_send(events) {
            self.gauges.events_dropped.fetch_add(events.len() as u64, Ordering::Relaxed);
        }
    }

    /// Whether anybody would hear of anything. Waking a thread to tell nobody costs as much as a renewal.
    fn is_wanted(&self) -> bool {
        #[cfg(feature = "tracing")]
        let traced = tracing::level_filters::LevelFilter::current() > tracing::level_filters::LevelFilter::OFF;
        #[cfg(not(feature = "tracing"))]
        let traced = false;
        traced || self.has_listeners || self.gauges.streams.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn stream() -> broadcast::Sender<Event> {
        broadcast::Sender::new(BACKLOG)
    }
}

fn tell_everybody(queue: &Receiver<Vec<Event>>, listeners: &[Listener], stream: &broadcast::Sender<Event>) {
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
            let _ = stream.send(event);
        }
    }
}
