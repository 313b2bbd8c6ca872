//! Following a log: its entries, as holders append them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Tenure;
use crate::keeper::Command;
use crate::name::{LeaseName, LeaseRef, NameError};
use crate::store::{EntryId, LogEntry, LogRequest};

/// For how long a request to announce entries holds, and how often it is repeated. Also how long a missed announcement
/// delays an entry.
const WATCH_TTL: Duration = Duration::from_secs(30);
const WATCH_EVERY: Duration = Duration::from_secs(10);

/// The delay before another attempt after an error.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Number of entries per read.
const ENTRIES_PER_READ: usize = 100;

/// A reader of a log: [`Tenure::follow`] returns it.
///
/// ```
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("thermometer").acquire().await?;
/// let mut degrees = tenure.follow("thermometer", "degrees", None)?;
/// lease.append("degrees", "20", 100).await?;
/// let entry = degrees.next().await;
/// assert_eq!(entry.text(), Some("20"));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LogFollower {
    tenure: Tenure,
    name: LeaseName,
    log: String,
    last: EntryId,
    read: VecDeque<LogEntry>,
    /// Notified when something about the lease is announced, or announcements may have been missed.
    changed: Arc<Notify>,
    /// When to ask again that entries are announced.
    watch_at: Option<Instant>,
    /// Whether there may be entries that were not read yet.
    is_behind: bool,
}

impl Tenure {
    /// Follows a log beside a lease: the entries after `after`, or all that are kept, and then each as it is appended.
    /// The holder announces them while there is a follower, so nothing is polled.
    ///
    /// # Errors
    /// When the name is not valid.
    pub fn follow(
        &self,
        lease: impl Into<LeaseRef>,
        log: &str,
        after: Option<EntryId>,
    ) -> Result<LogFollower, NameError> {
        let name = lease.into().lease()?;
        let changed = Arc::new(Notify::new());
        self.keeper().send(Command::Observe(name.clone(), Arc::downgrade(&changed)));
        Ok(LogFollower {
            tenure: self.clone(),
            name,
            log: log.to_owned(),
            last: after.unwrap_or(EntryId { millis: 0, number: 0 }),
            read: VecDeque::new(),
            changed,
            watch_at: None,
            is_behind: true,
        })
    }
}

impl LogFollower {
    /// Waits for the next entry. Entries that are trimmed before they are read are missed. While the store cannot be
    /// reached it retries.
    ///
    /// # Cancel safety
    /// Safe: no entry is lost.
    pub async fn next(&mut self) -> LogEntry {
        loop {
            if let Some(entry) = self.read.pop_front() {
                return entry;
            }
            if self.watch_at.is_none_or(|at| at <= Instant::now()) {
                self.watch().await;
            }
            if self.is_behind {
                self.read_more().await;
                continue;
            }
            let watch_at = self.watch_at.unwrap_or_else(Instant::now);
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep_until(watch_at) => {}
            }
            self.is_behind = true;
        }
    }

    /// Asks that entries are announced. If that fails, the next one is found when it is repeated.
    async fn watch(&mut self) {
        let watch = LogRequest::Watch { name: self.name.clone(), ttl: WATCH_TTL };
        let delay = if self.tenure.write(watch).await.is_ok() { WATCH_EVERY } else { RETRY_DELAY };
        self.watch_at = Some(Instant::now() + delay);
        // Entries from before were not announced.
        self.is_behind = true;
    }

    async fn read_more(&mut self) {
        match self.tenure.recent(&self.name, &self.log, Some(self.last), ENTRIES_PER_READ).await {
            Ok(entries) => {
                self.is_behind = entries.len() == ENTRIES_PER_READ;
                self.last = entries.last().map_or(self.last, |entry| entry.id);
                self.read.extend(entries);
            }
            Err(_) => tokio::time::sleep(RETRY_DELAY).await,
        }
    }
}

impl fmt::Debug for LogFollower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogFollower({} of {}, after {})", self.log, self.name, self.last)
    }
}
