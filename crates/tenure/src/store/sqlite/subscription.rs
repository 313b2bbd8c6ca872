//! Announcements: a thread that the kernel wakes when the WAL is written.
//!
//! The WAL is written a moment before the change becomes visible, so the thread checks the file a few times after a
//! wake-up. In case wake-ups are not available or one is missed, it also checks periodically. A check that finds
//! nothing new costs microseconds.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use tokio::sync::mpsc;

use super::{FileConfig, failure};
use crate::store::{Announcement, BoxFuture, ErrorKind, StoreError, Subscription, SubscriptionItem};

/// How long opening waits for other writers.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval between checks when nothing wakes the thread.
const POLL_EVERY: Duration = Duration::from_millis(100);

/// Interval between checks without inotify.
const POLL_EVERY_WITHOUT_INOTIFY: Duration = Duration::from_millis(10);

/// After a wake-up the change may not be visible yet: the first and the last pause between checks, each twice the one
/// before.
const MIN_RECHECK_PAUSE: Duration = Duration::from_micros(30);
const MAX_RECHECK_PAUSE: Duration = Duration::from_millis(4);

/// How many announcements may wait for a slow subscriber before the thread waits, too.
const MAX_UNREAD_ANNOUNCEMENTS: usize = 1_024;

pub(super) struct SqliteSubscription {
    location: String,
    items: mpsc::Receiver<SubscriptionItem>,
}

impl SqliteSubscription {
    pub(super) async fn open(config: FileConfig) -> Result<Self, StoreError> {
        let location = config.location.clone();
        let (report, reported) = tokio::sync::oneshot::channel();
        let (sender, items) = mpsc::channel(MAX_UNREAD_ANNOUNCEMENTS);
        std::thread::Builder::new()
            .name("tenure-sqlite-subscriber".to_owned())
            .spawn(move || match AnnouncementReader::open(&config) {
                Ok(mut reader) => {
                    let _ = report.send(Ok(()));
                    reader.listen(&sender);
                }
                Err(error) => {
                    let _ = report.send(Err(error));
                }
            })
            .map_err(|error| StoreError::new(ErrorKind::Unavailable, format!("{location}: no thread: {error}")))?;
        let ended = |_| StoreError::new(ErrorKind::Unreachable, format!("{location}: the store's thread has ended"));
        reported.await.map_err(ended)??;
        Ok(Self { location, items })
    }
}

impl Subscription for SqliteSubscription {
    fn next(&mut self) -> BoxFuture<'_, SubscriptionItem> {
        Box::pin(async move { self.items.recv().await.unwrap_or(SubscriptionItem::Closed) })
    }
}

impl fmt::Debug for SqliteSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqliteSubscription({})", self.location)
    }
}

struct AnnouncementReader {
    file: super::file::DatabaseFile,
    namespace: String,
    watch: Option<OwnedFd>,
    /// The number of the last announcement read.
    last: i64,
    /// Changes whenever another connection has written the file.
    version: i64,
}

impl AnnouncementReader {
    fn open(config: &FileConfig) -> Result<Self, StoreError> {
        let failed = |error: rusqlite::Error| failure::from_sqlite(&config.path, &error);
        let file = config.open_for_subscription(Instant::now() + OPEN_TIMEOUT)?;
        // The WAL exists now and stays while we have the file open.
        let watch = watch(&file.wal());
        let last = file
            .connection
            .query_row("SELECT coalesce(max(number), 0) FROM announcements", [], |row| row.get(0))
            .map_err(failed)?;
        let version = data_version(&file.connection).map_err(failed)?;
        Ok(Self { file, namespace: config.namespace.clone(), watch, last, version })
    }

    fn listen(&mut self, sender: &mpsc::Sender<SubscriptionItem>) {
        let mut pause = POLL_EVERY;
        while !sender.is_closed() && self.file.is_in_place() {
            match self.read_new() {
                Ok(items) => {
                    for item in items {
                        if sender.blocking_send(item).is_err() {
                            return;
                        }
                    }
                }
                // The subscriber subscribes again, and gets the error then.
                Err(_) => return,
            }
            let written = self.wait(pause);
            pause = match pause {
                _ if written => MIN_RECHECK_PAUSE,
                glance if glance < MAX_RECHECK_PAUSE => glance * 2,
                _ => POLL_EVERY,
            };
        }
    }

    /// Waits until the WAL is written, at most for the timeout. Returns whether it was written.
    fn wait(&self, timeout: Duration) -> bool {
        let Some(watch) = &self.watch else {
            std::thread::sleep(POLL_EVERY_WITHOUT_INOTIFY);
            return false;
        };
        let mut fds = [PollFd::new(watch, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(timeout.subsec_nanos()) };
        if !matches!(poll(&mut fds, Some(&timeout)), Ok(1)) {
            return false;
        }
        // The contents of the events do not matter, only that there were some.
        let mut buffer = [0_u8; 4_096];
        while rustix::io::read(watch, &mut buffer).is_ok_and(|read| read == buffer.len()) {}
        true
    }

    fn read_new(&mut self) -> rusqlite::Result<Vec<SubscriptionItem>> {
        let version = data_version(&self.file.connection)?;
        if version == self.version {
            return Ok(Vec::new());
        }
        self.version = version;
        let mut items = Vec::new();
        let mut statement = self
            .file
            .connection
            .prepare_cached("SELECT number, namespace, text FROM announcements WHERE number > ?1 ORDER BY number")?;
        let mut found = statement.query(params![self.last])?;
        while let Some(row) = found.next()? {
            let number: i64 = row.get(0)?;
            if number > self.last + 1 {
                items.push(SubscriptionItem::Gap);
            }
            self.last = number;
            if row.get::<_, String>(1)? == self.namespace {
                items.extend(Announcement::decode(&row.get::<_, String>(2)?).map(SubscriptionItem::Announced));
            }
        }
        Ok(items)
    }
}

fn data_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
}

/// Asks the kernel to report writes to the WAL. `None` if it cannot.
fn watch(wal: &Path) -> Option<OwnedFd> {
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).ok()?;
    inotify::add_watch(&watch, wal, inotify::WatchFlags::MODIFY).ok()?;
    Some(watch)
}
