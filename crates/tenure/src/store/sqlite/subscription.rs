//! Hearing announcements: a thread that is woken by the kernel when the file's log is written.
//!
//! The log is written a moment before the change can be seen, so after a wake-up the file is looked at a few times.
//! Without such wake-ups, or when one is missed, it is looked at now and then; a look that finds nothing new costs
//! microseconds.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use tokio::sync::mpsc;

use super::{Place, failure};
use crate::store::{Announcement, BoxFuture, ErrorKind, Heard, StoreError, Subscription};

/// How long opening waits for others that are writing.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often the file is looked at when nothing wakes us.
const BACKSTOP: Duration = Duration::from_millis(100);

/// How often it is looked at where the kernel does not tell.
const UNTOLD: Duration = Duration::from_millis(10);

/// After a wake-up the change may not be there yet: the first and the last pause between looks, each twice the one before.
const FIRST_GLANCE: Duration = Duration::from_micros(30);
const LAST_GLANCE: Duration = Duration::from_millis(4);

/// How many announcements may wait for a slow reader before the thread waits, too.
const BACKLOG: usize = 1_024;

pub(super) struct SqliteSubscription {
    location: String,
    heard: mpsc::Receiver<Heard>,
}

impl SqliteSubscription {
    pub(super) async fn open(place: Place) -> Result<Self, StoreError> {
        let location = place.location.clone();
        let (report, reported) = tokio::sync::oneshot::channel();
        let (sender, heard) = mpsc::channel(BACKLOG);
        std::thread::Builder::new()
            .name("tenure-sqlite-ear".to_owned())
            .spawn(move || match Ear::open(&place) {
                Ok(mut ear) => {
                    let _ = report.send(Ok(()));
                    ear.listen(&sender);
                }
                Err(error) => {
                    let _ = report.send(Err(error));
                }
            })
            .map_err(|error| StoreError::new(ErrorKind::Unavailable, format!("{location}: no thread: {error}")))?;
        let ended = |_| StoreError::new(ErrorKind::Unreachable, format!("{location}: the store's thread has ended"));
        reported.await.map_err(ended)??;
        Ok(Self { location, heard })
    }
}

impl Subscription for SqliteSubscription {
    fn next(&mut self) -> BoxFuture<'_, Heard> {
        Box::pin(async move { self.heard.recv().await.unwrap_or(Heard::Closed) })
    }
}

impl fmt::Debug for SqliteSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqliteSubscription({})", self.location)
    }
}

struct Ear {
    file: super::file::File,
    namespace: String,
    watch: Option<OwnedFd>,
    /// The last announcement heard.
    last: i64,
    /// Changes whenever somebody else has written the file.
    version: i64,
}

impl Ear {
    fn open(place: &Place) -> Result<Self, StoreError> {
        let failed = |error: rusqlite::Error| failure::from_sqlite(&place.path, &error);
        let file = place.open_to_listen(Instant::now() + PATIENCE)?;
        // The log exists now and, while we have the file open, stays.
        let watch = watch(&place.path);
        let last = file
            .connection
            .query_row("SELECT coalesce(max(number), 0) FROM announcements", [], |row| row.get(0))
            .map_err(failed)?;
        let version = data_version(&file.connection).map_err(failed)?;
        Ok(Self { file, namespace: place.namespace.clone(), watch, last, version })
    }

    fn listen(&mut self, sender: &mpsc::Sender<Heard>) {
        let mut pause = BACKSTOP;
        while !sender.is_closed() && self.file.is_in_place() {
            match self.hear() {
                Ok(heard) => {
                    for heard in heard {
                        if sender.blocking_send(heard).is_err() {
                            return;
                        }
                    }
                }
                // Whoever listens subscribes again, and hears then what is wrong.
                Err(_) => return,
            }
            let written = self.wait(pause);
            pause = match pause {
                _ if written => FIRST_GLANCE,
                glance if glance < LAST_GLANCE => glance * 2,
                _ => BACKSTOP,
            };
        }
    }

    /// Waits until the log is written, but not longer than that. Returns whether it was.
    fn wait(&self, limit: Duration) -> bool {
        let Some(watch) = &self.watch else {
            std::thread::sleep(UNTOLD);
            return false;
        };
        let mut fds = [PollFd::new(watch, PollFlags::IN)];
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        if !matches!(poll(&mut fds, Some(&limit)), Ok(1)) {
            return false;
        }
        // What the events say does not matter, only that there were some.
        let mut buffer = [0_u8; 4_096];
        while rustix::io::read(watch, &mut buffer).is_ok_and(|read| read == buffer.len()) {}
        true
    }

    fn hear(&mut self) -> rusqlite::Result<Vec<Heard>> {
        let version = data_version(&self.file.connection)?;
        if version == self.version {
            return Ok(Vec::new());
        }
        self.version = version;
        let mut heard = Vec::new();
        let mut statement = self
            .file
            .connection
            .prepare_cached("SELECT number, namespace, text FROM announcements WHERE number > ?1 ORDER BY number")?;
        let mut found = statement.query(params![self.last])?;
        while let Some(row) = found.next()? {
            let number: i64 = row.get(0)?;
            if number > self.last + 1 {
                heard.push(Heard::Gap);
            }
            self.last = number;
            if row.get::<_, String>(1)? == self.namespace {
                heard.extend(Announcement::decode(&row.get::<_, String>(2)?).map(Heard::Announced));
            }
        }
        Ok(heard)
    }
}

fn data_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
}

/// Asks the kernel to tell when the log is written. `None` where it does not.
fn watch(path: &Path) -> Option<OwnedFd> {
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).ok()?;
    inotify::add_watch(&watch, format!("{}-wal", path.display()), inotify::WatchFlags::MODIFY).ok()?;
    Some(watch)
}
