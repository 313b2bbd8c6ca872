//! Results as they come, for whoever reads them on this instance: each session is looked at once for all of its readers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tenure::store::{EntryId, LogEntry, StoreError};
use tenure::{LeaseName, Tenure};
use tokio::sync::broadcast;

use crate::catalogue::Catalogue;
use crate::keeping::MOST_RESULTS;
use crate::poll::poller::{RESULTS, STATE};
use crate::poll::result::is_same_poll;

/// A reader may be behind by this part of a session's interval, but not by less or more than this.
const PART: u32 = 10;
const LEAST: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_secs(1);

/// A reader that is further behind reads what it missed from the store.
const BACKLOG: usize = 32;

/// A result that was kept.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) id: EntryId,
    /// The document, as it was kept.
    pub(crate) line: String,
}

/// The latest results of a session, the last first. Bodies are cut.
///
/// # Errors
/// When the store cannot be asked.
pub async fn latest(tenure: &Tenure, lease: &LeaseName, limit: usize) -> Result<Vec<Value>, StoreError> {
    let entries = tenure.recent(lease, RESULTS, None, limit).await?;
    // What is not a document is not Tenure's.
    let read = |entry: &LogEntry| serde_json::from_slice(&entry.value).ok().filter(Value::is_object);
    Ok(entries.iter().rev().filter_map(read).collect())
}

/// The last result of a session, whole.
///
/// # Errors
/// When the store cannot be asked.
pub async fn last(tenure: &Tenure, lease: &LeaseName) -> Result<Option<Value>, StoreError> {
    let Some(last) = latest(tenure, lease, 1).await?.pop() else { return Ok(None) };
    if last["truncated"] != true {
        return Ok(Some(last));
    }
    let record = tenure.read(lease, STATE).await?;
    let whole = record.and_then(|record| serde_json::from_slice(&record.value).ok());
    Ok(Some(whole.filter(|whole| is_same_poll(whole, &last)).unwrap_or(last)))
}

/// All sessions whose results somebody reads here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Results(Arc<Mutex<HashMap<LeaseName, broadcast::Sender<Arc<Kept>>>>>);

impl Results {
    /// The results of a session that come after this one, or from now on.
    pub(crate) async fn after(
        tenure: &Tenure,
        lease: &LeaseName,
        seen: Option<EntryId>,
        limit: usize,
    ) -> Result<Vec<Kept>, StoreError> {
        let entries = tenure.recent(lease, RESULTS, seen, limit).await?;
        let kept = |entry: LogEntry| Some(Kept { id: entry.id, line: String::from_utf8(entry.value).ok()? });
        // What is no document on one line is not Tenure's.
        let is_document = |kept: &Kept| kept.line.starts_with('{') && !kept.line.contains(['\n', '\r']);
        Ok(entries.into_iter().filter_map(kept).filter(is_document).collect())
    }

    /// Whatever is new, for as long as anybody reads it. Whoever falls behind misses some, and can read them from the store.
    pub(crate) fn follow(
        &self,
        tenure: &Tenure,
        catalogue: &Catalogue,
        lease: &LeaseName,
        interval: Duration,
    ) -> broadcast::Receiver<Arc<Kept>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(followed) = all.get(lease) {
            return followed.subscribe();
        }
        let (sender, receiver) = broadcast::channel(BACKLOG);
        all.insert(lease.clone(), sender.clone());
        let (results, tenure, catalogue, lease) = (self.clone(), tenure.clone(), catalogue.clone(), lease.clone());
        tokio::spawn(async move {
            let mut last = None;
            // What is deleted has no more results, and its readers are told so.
            let exists = || catalogue.get(lease.label()).is_some();
            while !results.is_over(&lease, exists(), &sender) {
                let seen = last.unwrap_or(EntryId { millis: 0, number: 0 });
                for kept in Self::after(&tenure, &lease, Some(seen), MOST_RESULTS).await.unwrap_or_default() {
                    last = Some(kept.id);
                    let _ = sender.send(Arc::new(kept));
                }
                tokio::time::sleep((interval / PART).clamp(LEAST, MOST)).await;
            }
        });
        receiver
    }

    /// Whether nobody reads this any more, or there is nothing to be read. Then it is forgotten.
    fn is_over(&self, lease: &LeaseName, exists: bool, sender: &broadcast::Sender<Arc<Kept>>) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let over = !exists || sender.receiver_count() == 0;
        if over {
            all.remove(lease);
        }
        over
    }
}
