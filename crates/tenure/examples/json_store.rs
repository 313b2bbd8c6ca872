//! A store of your own: one JSON file that the processes of a host share. `docs/writing-a-store.md` explains it.
//!
//!     cargo run --example json_store            # in two terminals: one waits for the other

use std::fs::File;
use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tenure::Tenure;
use tenure::store::{
    Announcement, AttachRequest, Attached, BoxFuture, Connection, ErrorKind, Ledger, Outcome, Request, ServerInfo,
    ServerRun, Store, StoreError, Subscription, SubscriptionItem,
};
use tenure::time::ServerTime;

/// How often a subscriber looks for announcements, and how many of them are kept for it.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const KEPT_ANNOUNCEMENTS: usize = 1_000;

/// What is in the file.
#[derive(Default, Serialize, Deserialize)]
struct Contents {
    ledger: Ledger,
    /// When the file was created, to tell it from another one in its place.
    created: u64,
    /// The store's clock never goes back, whatever the host's does.
    time: u64,
    /// The latest announcements, and how many there were before them.
    announcements: Vec<String>,
    forgotten: u64,
}

/// A store in a JSON file.
#[derive(Clone, Debug)]
pub struct JsonStore {
    path: PathBuf,
    location: String,
}

impl JsonStore {
    /// The store in this file, which the first process creates.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), location: format!("json:{}", path.display()) }
    }

    /// Reads the file, lets `change` decide, and replaces the file by what that leaves. One process at a time: the lock
    /// makes each change atomic, and the rename makes it whole.
    fn with_contents<T>(&self, change: impl FnOnce(ServerTime, &mut Contents) -> T) -> std::io::Result<T> {
        let beside = |end: &str| PathBuf::from(format!("{}.{end}", self.path.display()));
        let lock = File::options().create(true).append(true).open(beside("lock"))?;
        lock.lock()?;
        let mut contents = match std::fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes)?,
            Err(error) if error.kind() == NotFound => Contents::default(),
            Err(error) => return Err(error),
        };
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        contents.time = contents.time.max(u64::try_from(wall.as_micros()).unwrap_or(u64::MAX));
        if contents.created == 0 {
            contents.created = contents.time;
        }
        let done = change(ServerTime::from_micros(contents.time), &mut contents);
        std::fs::write(beside("new"), serde_json::to_vec(&contents)?)?;
        std::fs::rename(beside("new"), &self.path)?;
        Ok(done)
    }

    /// The same on a thread that may block, with the errors of a store.
    async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(ServerTime, &mut Contents) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        let done = tokio::task::spawn_blocking(move || store.with_contents(change)).await;
        let failed = |why: String| StoreError::new(ErrorKind::Unavailable, format!("{}: {why}", self.location));
        done.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
    }
}

impl Contents {
    /// Keeps what the ledger announces, for subscribers.
    fn announce(&mut self, announcements: &[Announcement]) {
        self.announcements.extend(announcements.iter().map(Announcement::encode));
        let excess = self.announcements.len().saturating_sub(KEPT_ANNOUNCEMENTS);
        self.announcements.drain(..excess);
        self.forgotten += excess as u64;
    }

    /// The file, and the number of announcements ever made in it.
    fn position(&self) -> (u64, u64) {
        (self.created, self.forgotten + self.announcements.len() as u64)
    }
}

impl Store for JsonStore {
    fn attach(&self, request: AttachRequest) -> BoxFuture<'_, Result<Arc<dyn Connection>, StoreError>> {
        Box::pin(async move {
            let attach = move |now, contents: &mut Contents| {
                // A file has no server that restarts; but after a crash of the host the last writes may be missing.
                let server =
                    ServerInfo { now, run: boot_of_host(), uptime: Duration::MAX, subscribers: 0, has_served: false };
                let mut announcements = Vec::new();
                let attached = contents.ledger.attach(&server, &request, &mut announcements);
                contents.announce(&announcements);
                attached
            };
            let attached = self.change(attach).await?;
            Ok(Arc::new(JsonConnection { store: self.clone(), attached }) as Arc<dyn Connection>)
        })
    }

    fn subscribe(&self) -> BoxFuture<'_, Result<Box<dyn Subscription>, StoreError>> {
        Box::pin(async move {
            let position = self.change(|_, contents| contents.position()).await?;
            Ok(Box::new(JsonSubscription { store: self.clone(), position }) as Box<dyn Subscription>)
        })
    }

    fn location(&self) -> &str {
        &self.location
    }
}

/// The id of the host's boot.
fn boot_of_host() -> ServerRun {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    ServerRun(u128::from_str_radix(&id.trim().replace('-', ""), 16).unwrap_or(0))
}

#[derive(Debug)]
struct JsonConnection {
    store: JsonStore,
    attached: Attached,
}

impl Connection for JsonConnection {
    fn attached(&self) -> &Attached {
        &self.attached
    }

    fn submit(&self, batch: Vec<Request>, timeout: Duration) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let (count, generation) = (batch.len(), self.attached.generation);
            let apply = move |now, contents: &mut Contents| {
                let mut announcements = Vec::new();
                let replies = batch.iter().map(|request| {
                    Outcome::Answered(contents.ledger.apply(now, generation, request, &mut announcements))
                });
                let outcomes = replies.collect();
                contents.announce(&announcements);
                outcomes
            };
            match tokio::time::timeout(timeout, self.store.change(apply)).await {
                Ok(Ok(outcomes)) => outcomes,
                // The file was not replaced.
                Ok(Err(error)) => vec![Outcome::Failed(error); count],
                // The thread goes on, and may replace the file later.
                Err(_) => {
                    let why = format!("{}: no answer within {timeout:?}", self.store.location);
                    vec![Outcome::Unknown(StoreError::new(ErrorKind::Unreachable, why)); count]
                }
            }
        })
    }

    fn closed(&self) -> BoxFuture<'_, ()> {
        // A file does not hang up.
        Box::pin(std::future::pending())
    }
}

#[derive(Debug)]
struct JsonSubscription {
    store: JsonStore,
    /// The file, and the number of announcements seen.
    position: (u64, u64),
}

impl Subscription for JsonSubscription {
    fn next(&mut self) -> BoxFuture<'_, SubscriptionItem> {
        Box::pin(async move {
            loop {
                let (file, seen) = self.position;
                let look = self.store.change(move |_, contents| {
                    let (present, announced) = contents.position();
                    // Another file, older contents, or more announcements than are kept.
                    let is_gap = present != file || seen > announced || seen < contents.forgotten;
                    let next = usize::try_from(seen.saturating_sub(contents.forgotten)).unwrap_or(usize::MAX);
                    if is_gap {
                        Err((present, contents.forgotten))
                    } else {
                        Ok(contents.announcements.get(next).cloned())
                    }
                });
                match look.await {
                    Ok(Ok(None)) => tokio::time::sleep(LOOK_EVERY).await,
                    Ok(Ok(Some(next))) => {
                        self.position.1 += 1;
                        if let Some(announcement) = Announcement::decode(&next) {
                            return SubscriptionItem::Announced(announcement);
                        }
                    }
                    Ok(Err(position)) => {
                        self.position = position;
                        return SubscriptionItem::Gap;
                    }
                    Err(_) => return SubscriptionItem::Closed,
                }
            }
        })
    }
}

#[allow(dead_code, reason = "the conformance test includes this file as a module")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = JsonStore::new(&std::env::temp_dir().join("leases.json"));
    let tenure = Tenure::with_store(Arc::new(store)).connect().await?;
    let lease = tenure.lease("report").acquire().await?;
    println!("{} holds the lease under token {}", tenure.instance(), lease.token());
    lease.run_infallible(tokio::time::sleep(Duration::from_secs(3))).await?;
    lease.release().await?;
    tenure.shutdown().await;
    Ok(())
}
