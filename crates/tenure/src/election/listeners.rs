//! The listeners of an election. Each runs on its own thread or task and gets the events in order, however slow it is.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::mpsc;

use super::ElectionEvent;

/// All listeners of one election.
#[derive(Clone, Default)]
pub(super) struct Listeners(Arc<Mutex<Registry>>);

#[derive(Default)]
struct Registry {
    next: u64,
    queues: BTreeMap<u64, mpsc::UnboundedSender<ElectionEvent>>,
}

impl Listeners {
    /// Adds a listener that is called on its own thread, so that it may block.
    pub(super) fn add(&self, listener: impl Fn(&ElectionEvent) + Send + 'static) -> std::io::Result<Registration> {
        let (queue, mut events) = mpsc::unbounded_channel::<ElectionEvent>();
        std::thread::Builder::new().name("tenure-listener".to_owned()).spawn(move || {
            while let Some(event) = events.blocking_recv() {
                // A listener that panics is called again for the next event.
                let _ = catch_unwind(AssertUnwindSafe(|| listener(&event)));
            }
        })?;
        Ok(self.register(queue))
    }

    /// Adds a listener whose futures run one after the other in their own task.
    pub(super) fn add_async<F, Fut>(&self, listener: F) -> Registration
    where
        F: Fn(ElectionEvent) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let (queue, mut events) = mpsc::unbounded_channel::<ElectionEvent>();
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                // Created outside the task below, where a panic would end this loop.
                let Ok(future) = catch_unwind(AssertUnwindSafe(|| listener(event))) else { continue };
                // Runs in its own task, so that a panic ends only that task. It ends before the next begins.
                let _ = tokio::spawn(future).await;
            }
        });
        self.register(queue)
    }

    /// Queues an event for every listener, without waiting.
    pub(super) fn emit(&self, event: &ElectionEvent) {
        self.lock().queues.retain(|_, queue| queue.send(event.clone()).is_ok());
    }

    fn register(&self, queue: mpsc::UnboundedSender<ElectionEvent>) -> Registration {
        let mut registry = self.lock();
        registry.next += 1;
        let number = registry.next;
        registry.queues.insert(number, queue);
        Registration { number, listeners: Arc::downgrade(&self.0) }
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registered listener. Dropping this changes nothing: the listener gets events until it is [removed](Self::remove)
/// or the election is gone.
pub struct Registration {
    number: u64,
    listeners: Weak<Mutex<Registry>>,
}

impl Registration {
    /// Removes the listener. It gets no further events, but may still be handling earlier ones.
    pub fn remove(self) {
        if let Some(listeners) = self.listeners.upgrade() {
            listeners.lock().unwrap_or_else(PoisonError::into_inner).queues.remove(&self.number);
        }
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({})", self.number)
    }
}
