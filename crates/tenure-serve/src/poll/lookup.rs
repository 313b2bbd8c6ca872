//! Looking names up. The system may take its time over a name and cannot be stopped, and there are only so many threads for it: so each name is looked up once at a
//! time, however many ask and give up meanwhile.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

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
    under_way: Arc<Mutex<HashMap<String, watch::Receiver<Option<Answer>>>>>,
}

impl LookUps {
    pub(super) fn new(look_up: LookUp) -> Self {
        Self { look_up, under_way: Arc::default() }
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
        let mut all = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = all.get(name) {
            return answer.clone();
        }
        let (tell, answer) = watch::channel(None);
        all.insert(name.to_owned(), answer.clone());
        let (found, lookups, name) = ((self.look_up)(name.to_owned()), self.clone(), name.to_owned());
        tokio::spawn(async move {
            let found = found.await.map_err(|error| NotFound(Arc::new(error)));
            // Whoever asks from now on wants to know how it is then.
            lookups.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
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
}
