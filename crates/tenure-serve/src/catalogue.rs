//! All sessions of the store, as this instance knows them: read when they change, and now and then.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tenure::fleet::Announcements;
use tenure::store::{Announcement, Heard, SESSIONS, StoreError};
use tenure::{Happening, Tenure};
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;

use crate::session::Session;

/// How many sessions are read in one go.
const AT_ONCE: usize = 500;

/// How much later what has changed is read, so that many changes are read together.
const GATHER: Duration = Duration::from_millis(20);

/// How long after a change that could not be read everything is.
const AGAIN: Duration = Duration::from_secs(1);

/// A session as it was last read.
#[derive(Clone, Debug)]
pub enum Known {
    /// One that can be polled.
    Readable(Arc<Session>),
    /// One that cannot, and why.
    Unreadable(String),
}

/// All sessions.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    all: Arc<RwLock<BTreeMap<String, Known>>>,
    /// Whether all were ever read.
    is_known: Arc<AtomicBool>,
    /// Who works on a session here, and hears when it changes.
    attended: Arc<Mutex<HashMap<String, Arc<Notify>>>>,
}

impl Catalogue {
    /// One of them.
    pub fn get(&self, id: &str) -> Option<Known> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// One that can be polled.
    pub fn session(&self, id: &str) -> Option<Arc<Session>> {
        match self.get(id)? {
            Known::Readable(session) => Some(session),
            Known::Unreadable(_) => None,
        }
    }

    /// Those that can be polled, in the order of their ids, after this one.
    pub fn page(&self, after: Option<&str>, limit: usize) -> Vec<Arc<Session>> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let sessions = all.iter().filter(|(id, _)| after.is_none_or(|after| id.as_str() > after));
        let readable = sessions.filter_map(|(_, known)| match known {
            Known::Readable(session) => Some(session.clone()),
            Known::Unreadable(_) => None,
        });
        readable.take(limit).collect()
    }

    /// The ids of those that cannot be polled, and why.
    pub fn unreadable(&self) -> BTreeMap<String, String> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let why = |(id, known): (&String, &Known)| match known {
            Known::Readable(_) => None,
            Known::Unreadable(why) => Some((id.clone(), why.clone())),
        };
        all.iter().filter_map(why).collect()
    }

    /// Takes in how a session is now.
    pub fn learn(&self, id: &str, stored: Option<&[u8]>) {
        // Most are what they were.
        if stored.is_some_and(|stored| self.session(id).is_some_and(|session| session.is(stored))) {
            return;
        }
        let known = stored.map(|stored| match Session::read(id, stored) {
            Ok(session) => Known::Readable(Arc::new(session)),
            Err(error) => Known::Unreadable(error.to_string()),
        });
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        match known {
            Some(known) => drop(all.insert(id.to_owned(), known)),
            None => drop(all.remove(id)),
        }
        drop(all);
        if let Some(waits) = self.attended.lock().unwrap_or_else(PoisonError::into_inner).get(id) {
            waits.notify_one();
        }
    }

    /// Tells one who works on a session whenever that has changed. There is one at a time.
    pub(crate) fn attend(&self, id: &str) -> Attendance {
        let changed = Arc::new(Notify::new());
        self.attended.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), changed.clone());
        Attendance { catalogue: self.clone(), id: id.to_owned(), changed }
    }

    fn active(&self) -> BTreeSet<String> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let active = |(id, known): (&String, &Known)| match known {
            Known::Readable(session) if !session.is_paused => Some(id.clone()),
            _ => None,
        };
        all.iter().filter_map(active).collect()
    }

    /// Reads all of them as they are now.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// Some may have been read.
    pub async fn read_all(&self, tenure: &Tenure) -> Result<(), StoreError> {
        let ids = tenure.session_ids().await?;
        let listed: BTreeSet<&String> = ids.iter().collect();
        self.all.write().unwrap_or_else(PoisonError::into_inner).retain(|id, _| listed.contains(id));
        for some in ids.chunks(AT_ONCE) {
            self.read(tenure, some).await?;
        }
        self.is_known.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether all were ever read: before that nobody knows which there are.
    pub fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }

    async fn read(&self, tenure: &Tenure, ids: &[String]) -> Result<(), StoreError> {
        let sessions = tenure.read_sessions(ids.to_vec()).await?;
        for (id, stored) in ids.iter().zip(sessions) {
            self.learn(id, stored.as_deref());
        }
        Ok(())
    }

    /// Keeps all sessions as they are in the store, for as long as the targets that it gives are wanted: the ids of those that are to be polled.
    pub fn follow(&self, tenure: Tenure, every: Duration) -> ReceiverStream<BTreeSet<String>> {
        let (send, targets) = mpsc::channel(1);
        let (catalogue, announcements) = (self.clone(), tenure.announcements());
        tokio::spawn(async move { catalogue.keep(&tenure, announcements, every, send).await });
        ReceiverStream::new(targets)
    }

    async fn keep(
        &self,
        tenure: &Tenure,
        mut announcements: Announcements,
        every: Duration,
        targets: mpsc::Sender<BTreeSet<String>>,
    ) {
        let (mut news, mut told, mut sent) = (News::Anything, BTreeMap::new(), None);
        let mut next_all = tokio::time::Instant::now();
        loop {
            let read = match &news {
                News::Anything => {
                    next_all = tokio::time::Instant::now() + every;
                    self.read_all(tenure).await
                }
                News::Of(ids) => self.read(tenure, &ids.iter().cloned().collect::<Vec<_>>()).await,
            };
            // Once, and not whenever they are read.
            let unreadable = self.unreadable();
            for (id, error) in unreadable.iter().filter(|(id, error)| told.get(*id) != Some(*error)) {
                tenure.tell(Happening::SessionUnreadable { id: id.clone(), error: error.clone() });
            }
            told = unreadable;
            if read.is_err() && matches!(news, News::Of(_)) {
                next_all = next_all.min(tokio::time::Instant::now() + AGAIN);
            }
            // What could not be read is not gone. Sessions may have been learned of elsewhere, too.
            let active = read.is_ok().then(|| self.active());
            if let Some(active) = active.filter(|active| sent.as_ref() != Some(active)) {
                sent = Some(active.clone());
                if targets.send(active).await.is_err() {
                    return;
                }
            }
            news = tokio::select! {
                news = next(&mut announcements) => news,
                // However much is heard meanwhile.
                () = tokio::time::sleep_until(next_all) => News::Anything,
                () = targets.closed() => return,
            };
        }
    }
}

/// Somebody who works on a session, and hears when it changes.
#[derive(Debug)]
pub(crate) struct Attendance {
    catalogue: Catalogue,
    id: String,
    changed: Arc<Notify>,
}

impl Attendance {
    /// It has changed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        let mut all = self.catalogue.attended.lock().unwrap_or_else(PoisonError::into_inner);
        // Unless somebody else has come since.
        if all.get(&self.id).is_some_and(|other| Arc::ptr_eq(other, &self.changed)) {
            all.remove(&self.id);
        }
    }
}

/// What may have changed.
enum News {
    Anything,
    Of(BTreeSet<String>),
}

/// Waits until something has changed, and gathers what else changes in the moment after.
async fn next(announcements: &mut Announcements) -> News {
    let (mut ids, mut until) = (BTreeSet::new(), None);
    loop {
        let gathered = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let heard = tokio::select! {
            heard = announcements.next() => heard,
            () = gathered => return News::Of(ids),
        };
        match heard {
            Heard::Announced(Announcement::SessionChanged { id }) => {
                until.get_or_insert(tokio::time::Instant::now() + GATHER);
                ids.insert(id);
            }
            Heard::Announced(Announcement::IndexChanged { index }) if index == SESSIONS => return News::Anything,
            Heard::Gap => return News::Anything,
            Heard::Closed => std::future::pending().await,
            Heard::Announced(_) => {}
        }
    }
}
