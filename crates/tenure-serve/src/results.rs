//! Streams of new results on this instance: each session is read once for all of its clients.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tenure::RequestError;
use tenure::store::{EntryId, LogEntry};
use tenure::{LeaseName, Tenure};
use tokio::sync::broadcast;

use crate::poll::poller::{RESULTS_LOG, STATE_RECORD};
use crate::poll::result::is_same_poll;
use crate::session_cache::SessionCache;

/// How often a stream without new results checks whether it still has clients.
const CHECK_CLIENTS_EVERY: Duration = Duration::from_secs(1);

/// A client that is further behind reads missed results from the store.
const MAX_BUFFERED_RESULTS: usize = 32;

/// A stored result.
#[derive(Debug)]
pub(crate) struct LoggedResult {
    pub(crate) id: EntryId,
    /// The document, as stored.
    pub(crate) line: String,
}

impl LoggedResult {
    /// Reads an entry. One that is not a document on one line is not from Tenure.
    fn read(entry: LogEntry) -> Option<Self> {
        let line = String::from_utf8(entry.value).ok()?;
        (line.starts_with('{') && !line.contains(['\n', '\r'])).then_some(Self { id: entry.id, line })
    }
}

/// Reads the latest results of a session, newest first. Bodies are truncated.
///
/// # Errors
/// When a request to the store fails.
pub async fn latest(tenure: &Tenure, lease: &LeaseName, limit: usize) -> Result<Vec<Value>, RequestError> {
    let entries = tenure.recent(lease, RESULTS_LOG, None, limit).await?;
    // An entry that is not a document is not from Tenure.
    let read = |entry: &LogEntry| serde_json::from_slice(&entry.value).ok().filter(Value::is_object);
    Ok(entries.iter().rev().filter_map(read).collect())
}

/// Reads the last result of a session, whole.
///
/// # Errors
/// When a request to the store fails.
pub async fn last(tenure: &Tenure, lease: &LeaseName) -> Result<Option<Value>, RequestError> {
    let Some(last) = latest(tenure, lease, 1).await?.pop() else { return Ok(None) };
    if last["truncated"] != true {
        return Ok(Some(last));
    }
    let record = tenure.read(lease, STATE_RECORD).await?;
    let whole = record.and_then(|record| serde_json::from_slice(&record.value).ok());
    Ok(Some(whole.filter(|whole| is_same_poll(whole, &last)).unwrap_or(last)))
}

/// All sessions with result streams on this instance.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResultStreams(Arc<Mutex<HashMap<LeaseName, broadcast::Sender<Arc<LoggedResult>>>>>);

impl ResultStreams {
    /// Reads the results of a session after this one, or the latest.
    pub(crate) async fn read_after(
        tenure: &Tenure,
        lease: &LeaseName,
        seen: Option<EntryId>,
        limit: usize,
    ) -> Result<Vec<LoggedResult>, RequestError> {
        let entries = tenure.recent(lease, RESULTS_LOG, seen, limit).await?;
        Ok(entries.into_iter().filter_map(LoggedResult::read).collect())
    }

    /// Streams new results while there is a client. A client that falls behind misses some, and can read them from the
    /// store.
    pub(crate) fn follow(
        &self,
        tenure: &Tenure,
        session_cache: &SessionCache,
        lease: &LeaseName,
    ) -> broadcast::Receiver<Arc<LoggedResult>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(followed) = all.get(lease) {
            return followed.subscribe();
        }
        let (sender, receiver) = broadcast::channel(MAX_BUFFERED_RESULTS);
        all.insert(lease.clone(), sender.clone());
        let (results, tenure, session_cache, lease) =
            (self.clone(), tenure.clone(), session_cache.clone(), lease.clone());
        tokio::spawn(async move {
            let Ok(mut entries) = tenure.follow(&lease, RESULTS_LOG, None) else { return };
            // The stream of a deleted session ends.
            let exists = || session_cache.get(lease.label()).is_some();
            while !results.remove_if_unused(&lease, exists(), &sender) {
                if let Ok(entry) = tokio::time::timeout(CHECK_CLIENTS_EVERY, entries.next()).await
                    && let Some(result) = LoggedResult::read(entry)
                {
                    let _ = sender.send(Arc::new(result));
                }
            }
        });
        receiver
    }

    /// Removes the stream if it has no clients or its session is deleted. Returns whether it did.
    fn remove_if_unused(&self, lease: &LeaseName, exists: bool, sender: &broadcast::Sender<Arc<LoggedResult>>) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let over = !exists || sender.receiver_count() == 0;
        if over {
            all.remove(lease);
        }
        over
    }
}
