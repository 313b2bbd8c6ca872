//! The program's listeners. All of a `Tenure` share one thread, which starts with the first of them.
//!
//! A listener may block: that delays the other listeners, but no lease, no log line and no event stream.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

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
    /// What comes after the keeper has ended, while its last events are still dispatched. `None` when they are.
    late: Mutex<Option<Vec<ListenerItem>>>,
    /// Whether the last event of the keeper was dispatched.
    is_finished: watch::Sender<bool>,
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
        Arc::new(Self {
            registry: Arc::new(registry),
            queue: Mutex::default(),
            late: Mutex::new(Some(Vec::new())),
            is_finished: watch::Sender::new(false),
        })
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
        // Without a listener there is no need to clone it.
        if self.queue().is_some() {
            self.send(ListenerItem::Event(event.clone()));
        }
    }

    /// Removes a listener after the events that are queued by now.
    pub(crate) fn remove(&self, id: ListenerId) {
        self.send(ListenerItem::Remove(id));
    }

    /// Dispatches an event that was emitted after the keeper has ended: after all events before.
    pub(crate) fn dispatch_late(&self, event: Event) {
        self.send_late(ListenerItem::Event(event));
    }

    /// Removes a listener after the keeper has ended: after all events before.
    pub(crate) fn remove_late(&self, id: ListenerId) {
        self.send_late(ListenerItem::Remove(id));
    }

    /// Called when the last event of the keeper was dispatched.
    pub(crate) fn finish_dispatch(&self) {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner).take();
        late.into_iter().flatten().for_each(|item| self.send(item));
        self.is_finished.send_replace(true);
    }

    /// Waits until the last event of the keeper was dispatched, also to the log and to streams.
    pub(crate) async fn finished(&self) {
        let _ = self.is_finished.subscribe().wait_for(|is_finished| *is_finished).await;
    }

    fn send_late(&self, item: ListenerItem) {
        match &mut *self.late.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(late) => late.push(item),
            None => self.send(item),
        }
    }

    fn send(&self, item: ListenerItem) {
        let unsent = match self.queue() {
            Some(queue) => match queue.try_send(item) {
                Ok(()) => return,
                Err(TrySendError::Full(item) | TrySendError::Disconnected(item)) => item,
            },
            None => item,
        };
        match unsent {
            ListenerItem::Event(_) => drop(self.registry.gauges.events_dropped.fetch_add(1, Ordering::Relaxed)),
            ListenerItem::Remove(id) => self.registry.remove(id),
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
        let Some(at) = entries.iter().position(|(other, _)| *other == id) else { return };
        let removed = entries.remove(at);
        // What the callback captures may do anything when it is dropped: register a listener, or panic.
        drop(entries);
        self.gauges.all_listeners.fetch_sub(1, Ordering::Relaxed);
        let _ = catch_unwind(AssertUnwindSafe(|| drop(removed)));
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
                    // A listener that panics affects no other one, and is called again for the next event. The callback
                    // is dropped inside: this may be the last reference to it.
                    let _ = catch_unwind(AssertUnwindSafe(|| {
                        callback(&event);
                        drop(callback);
                    }));
                }
            }
        }
    }
}
