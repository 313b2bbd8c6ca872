//! Measures the scheduling lag of this machine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The largest delay that this machine's scheduler has caused since the probe started. Tests widen their bounds by it.
#[derive(Debug)]
pub struct LagProbe {
    delays: Arc<Mutex<Vec<Duration>>>,
    stop: Arc<AtomicBool>,
}

/// Shorter delays are not counted.
const MIN_COUNTED_DELAY: Duration = Duration::from_millis(2);

impl LagProbe {
    /// Starts measuring.
    pub fn start() -> Self {
        let delays: Arc<Mutex<Vec<Duration>>> = Arc::default();
        let stop: Arc<AtomicBool> = Arc::default();
        let (seen, stopped) = (delays.clone(), stop.clone());
        std::thread::spawn(move || {
            let nap = Duration::from_millis(2);
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                std::thread::sleep(nap);
                let late = start.elapsed().saturating_sub(nap);
                if late >= MIN_COUNTED_DELAY {
                    seen.lock().unwrap_or_else(PoisonError::into_inner).push(late);
                }
            }
        });
        Self { delays, stop }
    }

    /// The largest delay so far.
    pub fn lag(&self) -> Duration {
        self.delays.lock().unwrap_or_else(PoisonError::into_inner).iter().max().copied().unwrap_or_default()
    }

    /// Total time that the machine stood still, counting delays of at least `least`. This bounds what it may have
    /// missed meanwhile.
    pub fn total_stall(&self, least: Duration) -> Duration {
        let delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
        delays.iter().filter(|delay| **delay >= least).sum()
    }

    /// Asserts that `took` is within `bound`, widened by several times the lag of the machine, because the measured
    /// path passes through several threads and processes.
    ///
    /// # Panics
    /// If it took longer.
    pub fn assert_within(&self, took: Duration, bound: Duration, what: &str) {
        let lag = self.lag();
        println!("{what}: {took:?} (bound {bound:?}, largest lag of the machine {lag:?})");
        let allowed = bound + lag * 8 + Duration::from_millis(100);
        assert!(
            took <= allowed,
            "{what} took {took:?}: the bound is {bound:?}, and the lag of the machine was {lag:?}"
        );
    }
}

impl Drop for LagProbe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
