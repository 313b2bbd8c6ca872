//! The program's listeners. All of a `Tenure` share one thread, which starts with the first of them.
//!
//! A listener may block: that delays the other listeners, but no lease, no log line and no event stream.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Gauges;
use crate::event::Event;

/// Number of events that may wait for slow listeners. Beyond it, events are dropped and counted.
const MAX_QUEUED_EVENTS: usize = 4_096;

/// A callback for events.
pub(crate) type Callback = Box<dyn Fn(&Event) + Send + Sync>;

/// Identifies one listener. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListenerId(u64);

/// All listeners of one keeper.
pub(crate) struct Listeners {
    registry: Arc<Registry>,
    /// The queue to the thread, which ends when it has called the listeners for all that is queued.
    queue: Mutex<Option<SyncSender<ListenerItem>>>,
}

struct Registry {
    next_id: AtomicU64,
    /// Cloned before the calls, so that a listener may register another one.
    entries: Mutex<Vec<(ListenerId, Arc<Callback>)>>,
    gauges: Arc<Gauges>,
}

enum ListenerItem {
    Event(Event),
    /// Comes after every event that the listener should still get.
    Remove(ListenerId),
}

impl Listeners {
    pub(crate) fn new(gauges: Arc<Gauges>) -> Arc<Self> {
        let registry = Registry { next_id: AtomicU64::new(0), entries: Mutex::default(), gauges };
        Arc::new(Self { registry: Arc::new(registry), queue: Mutex::default() })
    }

    /// Adds a listener for every event from now on.
    pub(crate) fn add(&self, callback: Callback) -> io::Result<ListenerId> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.is_none() {
            let (sender, items) = sync_channel(MAX_QUEUED_EVENTS);
            let registry = self.registry.clone();
            std::thread::Builder::new()
                .name("tenure-listeners".to_owned())
                .spawn(move || call_listeners(&registry, &items))?;
            *queue = Some(sender);
        }
        Ok(self.registry.add(callback))
    }

    /// Queues an event for all listeners, or drops and counts it. Never waits.
    pub(crate) fn dispatch(&self, event: &Event) {
        if let Some(queue) = self.queue()
            && queue.try_send(ListenerItem::Event(event.clone())).is_err()
        {
            self.registry.gauges.events_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes a listener after the events that are queued by now.
    pub(crate) fn remove(&self, id: ListenerId) {
        if self.queue().is_none_or(|queue| queue.try_send(ListenerItem::Remove(id)).is_err()) {
            self.registry.remove(id);
        }
    }

    fn queue(&self) -> Option<SyncSender<ListenerItem>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Registry {
    fn add(&self, callback: Callback) -> ListenerId {
        let id = ListenerId(self.next_id.fetch_add(1, Ordering::Relaxed));
        self.lock().push((id, Arc::new(callback)));
        self.gauges.all_listeners.fetch_add(1, Ordering::Relaxed);
        id
    }

    fn remove(&self, id: ListenerId) {
        let mut entries = self.lock();
        if let Some(at) = entries.iter().position(|(other, _)| *other == id) {
            entries.remove(at);
            self.gauges.all_listeners.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(ListenerId, Arc<Callback>)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The loop of the thread. It ends when the keeper and its last handle have ended.
fn call_listeners(registry: &Registry, items: &Receiver<ListenerItem>) {
    while let Ok(item) = items.recv() {
        match item {
            ListenerItem::Remove(id) => registry.remove(id),
            ListenerItem::Event(event) => {
                let entries = registry.lock().clone();
                for (_, callback) in entries {
                    // A listener that panics affects no other one, and is called again for the next event.
                    let _ = catch_unwind(AssertUnwindSafe(|| callback(&event)));
                }
            }
        }
    }
}
