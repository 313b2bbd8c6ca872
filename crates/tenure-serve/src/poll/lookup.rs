//! Looking names up. The system may take its time over a name and cannot be stopped, and there are only so many threads for it. So each name is looked up once at a
//! time, however many ask and give up meanwhile; and names that take long, or are not known yet, leave room for those that were found quickly before.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

/// A name that is found within this was found quickly.
const QUICK: Duration = Duration::from_secs(1);

/// How many such names are remembered.
const REMEMBERED: usize = 20_000;

/// How many of the others are looked up at a time: a quarter of the threads there are.
const SLOW_AT_ONCE: usize = 128;

/// The addresses behind a name, when they are found.
pub type Found = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// How names are looked up.
pub type LookUp = Arc<dyn Fn(String) -> Found + Send + Sync>;

/// As the system does it.
pub fn by_system() -> LookUp {
    Arc::new(|name| Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.collect()) }))
}

type Answer = Result<Vec<SocketAddr>, NotFound>;

/// Names that are being looked up.
#[derive(Clone)]
pub(super) struct LookUps {
    look_up: LookUp,
    names: Arc<Mutex<Names>>,
    /// Places for names that may take long.
    places: Arc<Semaphore>,
}

#[derive(Default)]
struct Names {
    under_way: HashMap<String, watch::Receiver<Option<Answer>>>,
    /// Those that were last found quickly.
    quick: HashSet<String>,
}

impl LookUps {
    pub(super) fn new(look_up: LookUp) -> Self {
        Self { look_up, names: Arc::default(), places: Arc::new(Semaphore::new(SLOW_AT_ONCE)) }
    }

    /// The addresses behind a name.
    ///
    /// # Errors
    /// When it is not found.
    ///
    /// # Cancel safety
    /// It goes on being looked up, for whoever asks next.
    pub(super) async fn find(&self, name: &str) -> Answer {
        let mut answer = self.under_way(name);
        match answer.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(answer)) => answer.clone(),
            _ => Err(NotFound(Arc::new(io::Error::other("looking the name up came to nothing")))),
        }
    }

    fn under_way(&self, name: &str) -> watch::Receiver<Option<Answer>> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = names.under_way.get(name) {
            return answer.clone();
        }
        let (tell, answer) = watch::channel(None);
        names.under_way.insert(name.to_owned(), answer.clone());
        let (is_quick, lookups, name) = (names.quick.contains(name), self.clone(), name.to_owned());
        tokio::spawn(async move {
            let place = if is_quick { None } else { lookups.places.acquire().await.ok() };
            let begun = Instant::now();
            let found = (lookups.look_up)(name.clone()).await.map_err(|error| NotFound(Arc::new(error)));
            drop(place);
            let mut names = lookups.names.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever asks from now on wants to know how it is then.
            names.under_way.remove(&name);
            if found.is_ok() && begun.elapsed() < QUICK {
                // Targets may send us to as many names as they like.
                if names.quick.len() >= REMEMBERED {
                    names.quick.clear();
                }
                names.quick.insert(name);
            } else {
                names.quick.remove(&name);
            }
            drop(names);
            tell.send_replace(Some(found));
        });
        answer
    }
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

    #[tokio::test(start_paused = true)]
    async fn a_name_is_looked_up_once_at_a_time_whoever_gives_up() {
        let looks = Arc::new(AtomicUsize::new(0));
        let counted = looks.clone();
        let lookups = LookUps::new(Arc::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Box::pin(async {
                tokio::time::sleep(Duration::from_secs(25)).await;
                Ok(vec![SocketAddr::from(([192, 0, 2, 1], 0))])
            })
        }));
        for _ in 0..20 {
            let impatient = tokio::time::timeout(Duration::from_secs(1), lookups.find("slow.example")).await;
            assert!(impatient.is_err());
        }
        let (one, other) = tokio::join!(lookups.find("slow.example"), lookups.find("slow.example"));
        assert_eq!((one.unwrap().len(), other.unwrap().len()), (1, 1));
        assert_eq!(looks.load(Ordering::Relaxed), 1);
        lookups.find("slow.example").await.unwrap();
        assert_eq!(looks.load(Ordering::Relaxed), 2, "an answer is not kept");
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_take_long_leave_room_for_the_others() {
        let most = Arc::new(AtomicUsize::new(0));
        let (now, highest) = (Arc::new(AtomicUsize::new(0)), most.clone());
        let lookups = LookUps::new(Arc::new(move |name| {
            let (now, highest) = (now.clone(), highest.clone());
            Box::pin(async move {
                highest.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                let takes = if name.starts_with("slow") { Duration::from_secs(25) } else { Duration::from_millis(5) };
                tokio::time::sleep(takes).await;
                now.fetch_sub(1, Ordering::Relaxed);
                Ok(vec![SocketAddr::from(([192, 0, 2, 1], 0))])
            })
        }));
        lookups.find("quick.example").await.unwrap();
        let slow: Vec<_> = (0..700)
            .map(|n| {
                let lookups = lookups.clone();
                tokio::spawn(async move { lookups.find(&format!("slow-{n}.example")).await })
            })
            .collect();
        tokio::time::sleep(QUICK).await;
        let begun = Instant::now();
        lookups.find("quick.example").await.unwrap();
        assert!(begun.elapsed() < QUICK, "{:?}", begun.elapsed());
        assert_eq!(most.load(Ordering::Relaxed), SLOW_AT_ONCE + 1);
        slow.into_iter().for_each(|task| task.abort());
    }
}
