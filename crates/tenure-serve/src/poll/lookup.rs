//! Name lookups: one at a time per name, however many polls wait for it, and no more at once than there are files for.
//! Slow and unknown names leave permits to names that were resolved quickly before. Names that targets redirect to have
//! their own permits, so that no target can delay another.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;

/// A lookup shorter than this is quick.
const FAST_LOOKUP: Duration = Duration::from_secs(1);

/// Number of quick names to remember.
const MAX_FAST_NAMES: usize = 100_000;

/// Resolves a name to addresses. Dropping the future cancels the lookup.
pub type LookupFuture = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Function that resolves names.
pub type LookupFn = Arc<dyn Fn(String) -> LookupFuture + Send + Sync>;

type LookupResult = Result<Vec<SocketAddr>, LookupError>;

/// Origin of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LookupKind {
    /// The name of a target itself.
    Target,
    /// A name that a target redirects to, which may be a new one every time.
    Redirect,
}

type LookupsInFlight = HashMap<(LookupKind, String), Weak<OnceCell<LookupResult>>>;

/// Lookups in flight. Clones share state.
#[derive(Clone)]
pub(super) struct Lookups(Arc<LookupShared>);

struct LookupShared {
    look_up: LookupFn,
    in_flight: Mutex<LookupsInFlight>,
    /// Names of targets whose last lookup was quick.
    quick: Mutex<HashSet<String>>,
    quick_permits: Semaphore,
    slow_permits: Semaphore,
    redirect_permits: Semaphore,
}

impl Lookups {
    /// Allows `max_in_flight` lookups at once, half of them for names that were quick before.
    pub(super) fn new(look_up: LookupFn, max_in_flight: usize) -> Self {
        let permits = |part: usize| Semaphore::new((max_in_flight / part).max(1));
        Self(Arc::new(LookupShared {
            look_up,
            in_flight: Mutex::default(),
            quick: Mutex::default(),
            quick_permits: permits(2),
            slow_permits: permits(4),
            redirect_permits: permits(4),
        }))
    }

    /// Resolves a name to addresses.
    ///
    /// # Errors
    /// When the name is not found.
    ///
    /// # Cancel safety
    /// Safe. The lookup continues for as long as any poll waits for it.
    pub(super) async fn resolve(&self, lookup_kind: LookupKind, name: &str) -> LookupResult {
        let waiter = self.0.join(lookup_kind, name);
        waiter.cell.get_or_init(|| self.0.look_up(lookup_kind, name)).await.clone()
    }
}

impl LookupShared {
    fn join(&self, lookup_kind: LookupKind, name: &str) -> LookupWaiter<'_> {
        let key = (lookup_kind, name.to_owned());
        let mut in_flight = lock(&self.in_flight);
        let cell = match in_flight.get(&key).and_then(Weak::upgrade) {
            Some(cell) => cell,
            None => {
                let cell = Arc::new(OnceCell::new());
                in_flight.insert(key.clone(), Arc::downgrade(&cell));
                cell
            }
        };
        LookupWaiter { shared: self, key, cell }
    }

    async fn look_up(&self, lookup_kind: LookupKind, name: &str) -> LookupResult {
        let is_quick = lookup_kind == LookupKind::Target && lock(&self.quick).contains(name);
        let permits = match lookup_kind {
            LookupKind::Redirect => &self.redirect_permits,
            LookupKind::Target if is_quick => &self.quick_permits,
            LookupKind::Target => &self.slow_permits,
        };
        // The semaphore is never closed.
        let permit = permits.acquire().await;
        let begun = Instant::now();
        let found = (self.look_up)(name.to_owned()).await.map_err(|error| LookupError(Arc::new(error)));
        drop(permit);
        if lookup_kind == LookupKind::Target {
            let mut quick = lock(&self.quick);
            if found.is_err() || begun.elapsed() >= FAST_LOOKUP {
                quick.remove(name);
            } else if !quick.contains(name) {
                if quick.len() >= MAX_FAST_NAMES
                    && let Some(any) = quick.iter().next().cloned()
                {
                    quick.remove(&any);
                }
                quick.insert(name.to_owned());
            }
        }
        found
    }
}

/// A poll that waits for a name.
struct LookupWaiter<'a> {
    shared: &'a LookupShared,
    key: (LookupKind, String),
    cell: Arc<OnceCell<LookupResult>>,
}

impl Drop for LookupWaiter<'_> {
    fn drop(&mut self) {
        let mut in_flight = lock(&self.shared.in_flight);
        // A poll that starts after the reply starts a new lookup.
        let is_over = self.cell.initialized() || Arc::strong_count(&self.cell) == 1;
        let is_ours = in_flight.get(&self.key).is_some_and(|cell| std::ptr::eq(cell.as_ptr(), Arc::as_ptr(&self.cell)));
        if is_over && is_ours {
            in_flight.remove(&self.key);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a name was not found, shared by all waiters.
#[derive(Clone, Debug)]
pub(super) struct LookupError(Arc<io::Error>);

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for LookupError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// Creates slow lookups with counters: started, in flight, and most in flight at once.
    fn slow(slow_for: Duration) -> (Lookups, Arc<[AtomicUsize; 3]>) {
        let counts: Arc<[AtomicUsize; 3]> = Arc::default();
        let counted = counts.clone();
        let look_up: LookupFn = Arc::new(move |name| {
            let counts = counted.clone();
            Box::pin(async move {
                struct Counted(Arc<[AtomicUsize; 3]>);
                impl Drop for Counted {
                    fn drop(&mut self) {
                        self.0[1].fetch_sub(1, Ordering::Relaxed);
                    }
                }
                counts[0].fetch_add(1, Ordering::Relaxed);
                counts[2].fetch_max(counts[1].fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                let _counted = Counted(counts.clone());
                let takes = if name.starts_with("slow") { slow_for } else { Duration::from_millis(5) };
                tokio::time::sleep(takes).await;
                Ok(vec![SocketAddr::from(([192, 0, 2, 1], 0))])
            })
        });
        (Lookups::new(look_up, 512), counts)
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_looked_up_once_at_a_time_and_only_while_it_is_waited_for() {
        let (lookups, counts) = slow(Duration::from_secs(25));
        let find = || lookups.resolve(LookupKind::Target, "slow.example");
        let (one, other) = tokio::join!(find(), find());
        assert_eq!((one.unwrap().len(), other.unwrap().len()), (1, 1));
        assert_eq!(counts[0].load(Ordering::Relaxed), 1);
        find().await.unwrap();
        assert_eq!(counts[0].load(Ordering::Relaxed), 2, "a finished lookup is not reused");
        // A waiter continues the lookup when the poll that started it gives up.
        let impatient = tokio::time::timeout(Duration::from_secs(1), find());
        let (gave_up, found) = tokio::join!(impatient, find());
        assert!(gave_up.is_err() && found.is_ok());
        assert!(tokio::time::timeout(Duration::from_secs(1), find()).await.is_err());
        assert_eq!(counts[1].load(Ordering::Relaxed), 0, "lookups without a waiter are cancelled");
        assert!(lock(&lookups.0.in_flight).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_names_do_not_delay_fast_names_and_redirects_delay_neither() {
        let (lookups, counts) = slow(Duration::from_secs(25));
        lookups.resolve(LookupKind::Target, "quick.example").await.unwrap();
        let many = |lookup_kind, kind: &'static str| {
            let lookups = lookups.clone();
            (0..700).map(move |n| {
                let lookups = lookups.clone();
                tokio::spawn(async move { lookups.resolve(lookup_kind, &format!("slow-{kind}-{n}.example")).await })
            })
        };
        let slow: Vec<_> = many(LookupKind::Redirect, "redirect").chain(many(LookupKind::Target, "target")).collect();
        tokio::time::sleep(FAST_LOOKUP).await;
        let begun = Instant::now();
        lookups.resolve(LookupKind::Target, "quick.example").await.unwrap();
        assert!(begun.elapsed() < FAST_LOOKUP, "{:?}", begun.elapsed());
        assert_eq!(counts[2].load(Ordering::Relaxed), 128 + 128 + 1);
        slow.into_iter().for_each(|task| task.abort());
    }

    #[tokio::test(start_paused = true)]
    async fn redirects_to_new_names_do_not_slow_targets() {
        let (lookups, _) = slow(Duration::from_secs(25));
        lookups.resolve(LookupKind::Target, "quick.example").await.unwrap();
        for n in 0..1_000 {
            lookups.resolve(LookupKind::Redirect, &format!("new-{n}.example")).await.unwrap();
        }
        assert_eq!(lock(&lookups.0.quick).len(), 1);
    }
}
