//! Cache of all sessions of the store: updated when they change, and periodically.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tenure::RequestError;
use tenure::Tenure;
use tenure::fleet::Announcements;
use tenure::store::{Announcement, SubscriptionItem};
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;

use crate::events::ServeEvent;
use crate::session::Session;
use crate::session_repo::{COLLECTION, documents};

/// Number of sessions per read.
const SESSIONS_PER_READ: usize = 500;

/// Delay of reading changes, so that many are read together.
const CHANGE_BATCH_DELAY: Duration = Duration::from_millis(20);

/// Delay of a full read after a change that could not be read.
const FULL_READ_RETRY_DELAY: Duration = Duration::from_secs(1);

/// A session as last read.
#[derive(Clone, Debug)]
pub enum CachedSession {
    /// A session that can be polled.
    Readable(Arc<Session>),
    /// A session that cannot be polled, and why.
    Unreadable(String),
}

/// Cache of all sessions.
#[derive(Clone, Debug, Default)]
pub struct SessionCache {
    all: Arc<RwLock<BTreeMap<String, CachedSession>>>,
    /// Whether a full read has completed.
    is_loaded: Arc<AtomicBool>,
    /// Notifies the worker of a session on this instance of changes.
    watchers: Arc<Mutex<HashMap<String, Arc<Notify>>>>,
}

impl SessionCache {
    /// Returns a session.
    pub fn get(&self, id: &str) -> Option<CachedSession> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// Returns a session, if it can be polled.
    pub fn session(&self, id: &str) -> Option<Arc<Session>> {
        match self.get(id)? {
            CachedSession::Readable(session) => Some(session),
            CachedSession::Unreadable(_) => None,
        }
    }

    /// Returns the sessions that can be polled, in the order of their ids, after this id.
    pub fn page(&self, after: Option<&str>, limit: usize) -> Vec<Arc<Session>> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let sessions = all.iter().filter(|(id, _)| after.is_none_or(|after| id.as_str() > after));
        let readable = sessions.filter_map(|(_, known)| match known {
            CachedSession::Readable(session) => Some(session.clone()),
            CachedSession::Unreadable(_) => None,
        });
        readable.take(limit).collect()
    }

    /// Returns the ids of sessions that cannot be polled, and why.
    pub fn unreadable(&self) -> BTreeMap<String, String> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let why = |(id, known): (&String, &CachedSession)| match known {
            CachedSession::Readable(_) => None,
            CachedSession::Unreadable(why) => Some((id.clone(), why.clone())),
        };
        all.iter().filter_map(why).collect()
    }

    /// Updates a session from its stored text.
    pub fn update(&self, id: &str, stored: Option<&[u8]>) {
        // Most sessions have not changed.
        if stored.is_some_and(|stored| self.session(id).is_some_and(|session| session.is_stored_as(stored))) {
            return;
        }
        let known = stored.map(|stored| match Session::read(id, stored) {
            Ok(session) => CachedSession::Readable(Arc::new(session)),
            Err(error) => CachedSession::Unreadable(error.to_string()),
        });
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        match known {
            Some(known) => drop(all.insert(id.to_owned(), known)),
            None => drop(all.remove(id)),
        }
        drop(all);
        if let Some(watcher) = self.watchers.lock().unwrap_or_else(PoisonError::into_inner).get(id) {
            watcher.notify_one();
        }
    }

    /// Notifies the worker of a session of every change. A session has one worker at a time.
    pub(crate) fn watch(&self, id: &str) -> SessionWatch {
        let changed = Arc::new(Notify::new());
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), changed.clone());
        SessionWatch { session_cache: self.clone(), id: id.to_owned(), changed }
    }

    fn active(&self) -> BTreeSet<String> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let active = |(id, known): (&String, &CachedSession)| match known {
            CachedSession::Readable(session) if !session.is_paused => Some(id.clone()),
            _ => None,
        };
        all.iter().filter_map(active).collect()
    }

    /// Reads all sessions.
    ///
    /// # Errors
    /// When a request to the store fails.
    ///
    /// # Cancel safety
    /// Some sessions may have been read.
    pub async fn read_all(&self, tenure: &Tenure) -> Result<(), RequestError> {
        let ids = documents(tenure).ids().await?;
        let listed: BTreeSet<&String> = ids.iter().collect();
        self.all.write().unwrap_or_else(PoisonError::into_inner).retain(|id, _| listed.contains(id));
        for some in ids.chunks(SESSIONS_PER_READ) {
            self.read(tenure, some).await?;
        }
        self.is_loaded.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns whether a full read has completed. Before that it is not known which sessions exist.
    pub fn is_loaded(&self) -> bool {
        self.is_loaded.load(Ordering::Acquire)
    }

    async fn read(&self, tenure: &Tenure, ids: &[String]) -> Result<(), RequestError> {
        let sessions = documents(tenure).read(ids.to_vec()).await?;
        for (id, stored) in ids.iter().zip(sessions) {
            self.update(id, stored.as_deref());
        }
        Ok(())
    }

    /// Keeps the cache up to date while the returned stream lives. The stream yields the ids of all sessions to poll.
    pub fn follow(&self, tenure: Tenure, every: Duration) -> ReceiverStream<BTreeSet<String>> {
        let (send, targets) = mpsc::channel(1);
        let (session_cache, announcements) = (self.clone(), tenure.fleet().announcements());
        tokio::spawn(async move { session_cache.sync(&tenure, announcements, every, send).await });
        ReceiverStream::new(targets)
    }

    async fn sync(
        &self,
        tenure: &Tenure,
        mut announcements: Announcements,
        every: Duration,
        targets: mpsc::Sender<BTreeSet<String>>,
    ) {
        let (mut change, mut reported, mut sent) = (SessionChange::All, BTreeMap::new(), None);
        let mut next_all = tokio::time::Instant::now();
        loop {
            let read = match &change {
                SessionChange::All => {
                    next_all = tokio::time::Instant::now() + every;
                    self.read_all(tenure).await
                }
                SessionChange::Ids(ids) => self.read(tenure, &ids.iter().cloned().collect::<Vec<_>>()).await,
            };
            // Report each error once, not after every read.
            let unreadable = self.unreadable();
            for (id, error) in unreadable.iter().filter(|(id, error)| reported.get(*id) != Some(*error)) {
                tenure.emit(ServeEvent::SessionUnreadable { id: id.clone(), error: error.clone() });
            }
            reported = unreadable;
            if read.is_err() && matches!(change, SessionChange::Ids(_)) {
                next_all = next_all.min(tokio::time::Instant::now() + FULL_READ_RETRY_DELAY);
            }
            // A failed read does not mean that sessions are gone. The cache may also have been updated elsewhere.
            let active = read.is_ok().then(|| self.active());
            if let Some(active) = active.filter(|active| sent.as_ref() != Some(active)) {
                sent = Some(active.clone());
                if targets.send(active).await.is_err() {
                    return;
                }
            }
            change = tokio::select! {
                change = next_change(&mut announcements) => change,
                // Read all sessions in time, however many changes are announced.
                () = tokio::time::sleep_until(next_all) => SessionChange::All,
                () = targets.closed() => return,
            };
        }
    }
}

/// Subscription of a worker to the changes of a session.
#[derive(Debug)]
pub(crate) struct SessionWatch {
    session_cache: SessionCache,
    id: String,
    changed: Arc<Notify>,
}

impl SessionWatch {
    /// Waits for a change.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Drop for SessionWatch {
    fn drop(&mut self) {
        let mut all = self.session_cache.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        // Unless a newer worker has subscribed.
        if all.get(&self.id).is_some_and(|other| Arc::ptr_eq(other, &self.changed)) {
            all.remove(&self.id);
        }
    }
}

/// Sessions that may have changed.
enum SessionChange {
    All,
    Ids(BTreeSet<String>),
}

/// Waits for a change, and collects further changes for a moment.
async fn next_change(announcements: &mut Announcements) -> SessionChange {
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
            () = gathered => return SessionChange::Ids(ids),
        };
        match heard {
            SubscriptionItem::Announced(Announcement::DocumentChanged { document })
                if document.collection == COLLECTION =>
            {
                until.get_or_insert(tokio::time::Instant::now() + CHANGE_BATCH_DELAY);
                ids.insert(document.id);
            }
            SubscriptionItem::Announced(Announcement::IndexChanged { index }) if index == COLLECTION => {
                return SessionChange::All;
            }
            SubscriptionItem::Gap => return SessionChange::All,
            SubscriptionItem::Closed => std::future::pending().await,
            SubscriptionItem::Announced(_) => {}
        }
    }
}
