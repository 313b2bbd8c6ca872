//! How late this machine is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The largest delay that this machine's scheduler has caused since it was made: what bounds are widened by.
#[derive(Debug)]
pub struct Probe {
    worst: Arc<Mutex<Duration>>,
    stop: Arc<AtomicBool>,
}

impl Probe {
    /// Begins to measure.
    pub fn start() -> Self {
        let worst: Arc<Mutex<Duration>> = Arc::default();
        let stop: Arc<AtomicBool> = Arc::default();
        let (seen, stopped) = (worst.clone(), stop.clone());
        std::thread::spawn(move || {
            let nap = Duration::from_millis(2);
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                std::thread::sleep(nap);
                let late = start.elapsed().saturating_sub(nap);
                let mut worst = seen.lock().unwrap_or_else(PoisonError::into_inner);
                *worst = late.max(*worst);
            }
        });
        Self { worst, stop }
    }

    /// The largest delay so far.
    pub fn lag(&self) -> Duration {
        *self.worst.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something took this long; it may have taken so much, and what the machine was late by, several times over: it
    /// passes through several threads and processes.
    ///
    /// # Panics
    /// When it took longer.
    pub fn within(&self, took: Duration, bound: Duration, what: &str) {
        let lag = self.lag();
        println!("{what}: {took:?} (bound {bound:?}, worst lag of the machine {lag:?})");
        let allowed = bound + lag * 8 + Duration::from_millis(100);
        assert!(took <= allowed, "{what} took {took:?}; {bound:?} is the bound, and the machine was late by {lag:?}");
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
