//! Looking names up: each once at a time however many polls ask for it, and no more at once than there are files for. Names
//! that take long, or are not known yet, leave room for those that were found quickly before; and the names that targets
//! redirect to have places of their own, so that no target can be in the way of another.

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

/// A name that is found within this was found quickly.
const QUICK: Duration = Duration::from_secs(1);

/// How many such names are remembered.
const REMEMBERED: usize = 100_000;

/// The addresses behind a name, when they are found. Dropped, it is not looked up any more.
pub type Found = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// How names are looked up.
pub type LookUp = Arc<dyn Fn(String) -> Found + Send + Sync>;

type Answer = Result<Vec<SocketAddr>, NotFound>;

/// Whose name it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Whose {
    /// A target's own.
    Target,
    /// One that a target redirects to: it may be a new one every time.
    Redirect,
}

type UnderWay = HashMap<(Whose, String), Weak<OnceCell<Answer>>>;

/// Names that are being looked up. Clones are the same.
#[derive(Clone)]
pub(super) struct LookUps(Arc<Shared>);

struct Shared {
    look_up: LookUp,
    under_way: Mutex<UnderWay>,
    /// Names of targets that were last found quickly.
    quick: Mutex<HashSet<String>>,
    quick_places: Semaphore,
    slow_places: Semaphore,
    redirect_places: Semaphore,
}

impl LookUps {
    /// So many at once: half of them for names that were found quickly before.
    pub(super) fn new(look_up: LookUp, at_once: usize) -> Self {
        let places = |part: usize| Semaphore::new((at_once / part).max(1));
        Self(Arc::new(Shared {
            look_up,
            under_way: Mutex::default(),
            quick: Mutex::default(),
            quick_places: places(2),
            slow_places: places(4),
            redirect_places: places(4),
        }))
    }

    /// The addresses behind a name.
    ///
    /// # Errors
    /// When it is not found.
    ///
    /// # Cancel safety
    /// Safe. It is looked up for as long as any poll waits for it.
    pub(super) async fn find(&self, whose: Whose, name: &str) -> Answer {
        let waiting = self.0.wait(whose, name);
        waiting.cell.get_or_init(|| self.0.look_up(whose, name)).await.clone()
    }
}

impl Shared {
    fn wait(&self, whose: Whose, name: &str) -> Waiting<'_> {
        let key = (whose, name.to_owned());
        let mut under_way = lock(&self.under_way);
        let cell = match under_way.get(&key).and_then(Weak::upgrade) {
            Some(cell) => cell,
            None => {
                let cell = Arc::new(OnceCell::new());
                under_way.insert(key.clone(), Arc::downgrade(&cell));
                cell
            }
        };
        Waiting { shared: self, key, cell }
    }

    async fn look_up(&self, whose: Whose, name: &str) -> Answer {
        let is_quick = whose == Whose::Target && lock(&self.quick).contains(name);
        let places = match whose {
            Whose::Redirect => &self.redirect_places,
            Whose::Target if is_quick => &self.quick_places,
            Whose::Target => &self.slow_places,
        };
        // It is never closed.
        let place = places.acquire().await;
        let begun = Instant::now();
        let found = (self.look_up)(name.to_owned()).await.map_err(|error| NotFound(Arc::new(error)));
        drop(place);
        if whose == Whose::Target {
            let mut quick = lock(&self.quick);
            if found.is_err() || begun.elapsed() >= QUICK {
                quick.remove(name);
            } else if !quick.contains(name) {
                if quick.len() >= REMEMBERED
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

/// One poll that waits for a name.
struct Waiting<'a> {
    shared: &'a Shared,
    key: (Whose, String),
    cell: Arc<OnceCell<Answer>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut under_way = lock(&self.shared.under_way);
        // A poll that asks after an answer wants to know how it is then.
        let is_over = self.cell.initialized() || Arc::strong_count(&self.cell) == 1;
        let is_ours = under_way.get(&self.key).is_some_and(|cell| std::ptr::eq(cell.as_ptr(), Arc::as_ptr(&self.cell)));
        if is_over && is_ours {
            under_way.remove(&self.key);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a name was not found, for all who asked.
#[derive(Clone, Debug)]
pub(super) struct NotFound(Arc<io::Error>);

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for NotFound {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// Look-ups that take their time, and how many there are: begun, under way, and at most at once.
    fn slow(slow_for: Duration) -> (LookUps, Arc<[AtomicUsize; 3]>) {
        let counts: Arc<[AtomicUsize; 3]> = Arc::default();
        let counted = counts.clone();
        let look_up: LookUp = Arc::new(move |name| {
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
        (LookUps::new(look_up, 512), counts)
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_looked_up_once_at_a_time_and_only_while_it_is_waited_for() {
        let (lookups, counts) = slow(Duration::from_secs(25));
        let find = || lookups.find(Whose::Target, "slow.example");
        let (one, other) = tokio::join!(find(), find());
        assert_eq!((one.unwrap().len(), other.unwrap().len()), (1, 1));
        assert_eq!(counts[0].load(Ordering::Relaxed), 1);
        find().await.unwrap();
        assert_eq!(counts[0].load(Ordering::Relaxed), 2, "an answer is not kept");
        // The one that waits goes on when the one that began gives up.
        let impatient = tokio::time::timeout(Duration::from_secs(1), find());
        let (gave_up, found) = tokio::join!(impatient, find());
        assert!(gave_up.is_err() && found.is_ok());
        assert!(tokio::time::timeout(Duration::from_secs(1), find()).await.is_err());
        assert_eq!(counts[1].load(Ordering::Relaxed), 0, "nothing goes on that nothing waits for");
        assert!(lock(&lookups.0.under_way).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_take_long_leave_room_for_the_others_and_redirects_for_both() {
        let (lookups, counts) = slow(Duration::from_secs(25));
        lookups.find(Whose::Target, "quick.example").await.unwrap();
        let many = |whose, kind: &'static str| {
            let lookups = lookups.clone();
            (0..700).map(move |n| {
                let lookups = lookups.clone();
                tokio::spawn(async move { lookups.find(whose, &format!("slow-{kind}-{n}.example")).await })
            })
        };
        let slow: Vec<_> = many(Whose::Redirect, "redirect").chain(many(Whose::Target, "target")).collect();
        tokio::time::sleep(QUICK).await;
        let begun = Instant::now();
        lookups.find(Whose::Target, "quick.example").await.unwrap();
        assert!(begun.elapsed() < QUICK, "{:?}", begun.elapsed());
        assert_eq!(counts[2].load(Ordering::Relaxed), 128 + 128 + 1);
        slow.into_iter().for_each(|task| task.abort());
    }

    #[tokio::test(start_paused = true)]
    async fn redirects_to_ever_new_names_make_no_target_slow() {
        let (lookups, _) = slow(Duration::from_secs(25));
        lookups.find(Whose::Target, "quick.example").await.unwrap();
        for n in 0..1_000 {
            lookups.find(Whose::Redirect, &format!("new-{n}.example")).await.unwrap();
        }
        assert_eq!(lock(&lookups.0.quick).len(), 1);
    }
}
