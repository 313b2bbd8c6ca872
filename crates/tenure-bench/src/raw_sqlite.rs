//! The raw store: direct calls of similar statements on the thread that owns the file. An async program must use such a
//! thread, because SQLite blocks its caller.

use std::error::Error;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior, params};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify;

use crate::measure::REST_BEFORE_HAND_OVER;

type RawJob = Box<dyn FnOnce(&mut RawFile) + Send>;

/// The thread that owns the file.
pub struct RawSqlite(Sender<RawJob>);

impl RawSqlite {
    pub fn open(path: &Path) -> Result<Self, Box<dyn Error>> {
        Ok(Self::on_thread(RawFile::open(path)?))
    }

    fn on_thread(mut file: RawFile) -> Self {
        let (jobs, queue) = std::sync::mpsc::channel::<RawJob>();
        std::thread::spawn(move || {
            while let Ok(job) = queue.recv() {
                job(&mut file);
            }
        });
        Self(jobs)
    }

    /// Runs a job on the file, and waits for its result.
    pub async fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut RawFile) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Box<dyn Error>> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        self.0.send(Box::new(move |file| drop(answer.send(job(file)))))?;
        Ok(answered.await??)
    }
}

/// An open file with one table, as a simple program would use it.
pub struct RawFile(Connection);

impl RawFile {
    fn open(path: &Path) -> Result<Self, Box<dyn Error>> {
        let connection = Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
             CREATE TABLE namespace (only_row INTEGER PRIMARY KEY, generation INTEGER, floor INTEGER);
             INSERT INTO namespace VALUES (1, 1, 1);
             CREATE TABLE leases (
                 key TEXT PRIMARY KEY, holder TEXT, expires INTEGER, token INTEGER, nonce TEXT, since INTEGER,
                 ended TEXT, progress INTEGER, previous_token INTEGER, previous_holder TEXT
             ) WITHOUT ROWID;
             CREATE TABLE announcements (number INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL);",
        )?;
        Ok(Self(connection))
    }

    /// Grants a lease and returns its token.
    pub fn acquire(&mut self, key: &str) -> rusqlite::Result<i64> {
        let nonce = format!("{:032x}", fastrand::u128(..));
        let tx = self.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let floor: i64 =
            tx.prepare_cached("SELECT generation, floor FROM namespace")?.query_row([], |row| row.get(1))?;
        let _found = tx.prepare_cached("SELECT * FROM leases WHERE key = ?1")?.exists([key])?;
        tx.prepare_cached(
            "INSERT OR REPLACE INTO leases VALUES (?1, 'raw', ?2, ?3, ?4, ?2, 'silently', ?2, ?3, 'raw')",
        )?
        .execute(params![key, 1_794_000_000_000_000_i64, floor + 1, nonce])?;
        tx.prepare_cached("UPDATE namespace SET floor = ?1")?.execute([floor + 1])?;
        tx.commit()?;
        Ok(floor + 1)
    }

    pub fn release(&mut self, key: &str, token: i64) -> rusqlite::Result<()> {
        let tx = self.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.prepare_cached("SELECT generation, floor FROM namespace")?.query_row([], |row| row.get::<_, i64>(1))?;
        let nonce: String =
            tx.prepare_cached("SELECT * FROM leases WHERE key = ?1")?.query_row([key], |row| row.get("nonce"))?;
        tx.prepare_cached(
            "INSERT OR REPLACE INTO leases VALUES (?1, NULL, NULL, ?2, ?3, ?4, 'released', ?4, ?2, 'raw')",
        )?
        .execute(params![key, token, nonce, 1_794_000_000_000_000_i64])?;
        tx.prepare_cached("INSERT INTO announcements (text) VALUES (?1)")?
            .execute([format!("released {token} {key}")])?;
        tx.prepare_cached("DELETE FROM announcements WHERE number <= ?1")?.execute([tx.last_insert_rowid() - 4_096])?;
        tx.commit()
    }

    /// Waits with inotify until another connection has written the file, then acquires the lease.
    fn acquire_on_write(&mut self, key: &str, watch: &OwnedFd, watches: &Sender<()>) -> rusqlite::Result<i64> {
        let version = self.version()?;
        // The receiver may have been dropped.
        let _ = watches.send(());
        let mut polled = [PollFd::new(watch, PollFlags::IN)];
        // The result does not matter: the version decides.
        let _ = poll(&mut polled, None);
        let mut events = [0_u8; 4_096];
        let _ = rustix::io::read(watch, &mut events);
        // The log is written a moment before the change becomes visible.
        while self.version()? == version {
            std::thread::yield_now();
        }
        self.acquire(key)
    }

    fn version(&self) -> rusqlite::Result<i64> {
        self.0.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
    }

    pub fn insert_leases(&mut self, keys: &[String]) -> rusqlite::Result<()> {
        let tx = self.0.transaction()?;
        for key in keys {
            // As long as the rows of real leases.
            let nonce = format!("{:032x}", fastrand::u128(..));
            tx.prepare_cached(
                "INSERT OR REPLACE INTO leases VALUES (?1, 'renewing', ?2, ?2, ?3, ?2, 'silently', ?2, ?2, 'renewing')",
            )?
            .execute(params![key, 1_794_000_000_000_000_i64, nonce])?;
        }
        tx.commit()
    }

    /// Renews all of these leases in one transaction: reads the row and moves its expiry.
    pub fn renew(&mut self, keys: &[String]) -> rusqlite::Result<()> {
        let tx = self.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for key in keys {
            let select = "SELECT holder, expires, token, nonce, since, ended, progress FROM leases WHERE key = ?1";
            let expires: i64 = tx.prepare_cached(select)?.query_row([key], |row| row.get(1))?;
            tx.prepare_cached("UPDATE leases SET expires = ?2 WHERE key = ?1")?.execute(params![key, expires + 1])?;
        }
        tx.commit()
    }
}

/// Two connections that hand a lease over. Inotify wakes the waiter when the file is written.
pub struct FileHandOver {
    holder: RawSqlite,
    waiter: RawSqlite,
    watch: Arc<OwnedFd>,
}

impl FileHandOver {
    const LEASE: &str = "lease:raw-hand-over";

    /// Uses the file at this path, which the holder has open.
    pub fn new(holder: RawSqlite, path: &Path) -> Result<Self, Box<dyn Error>> {
        let waiter = RawSqlite::on_thread(RawFile(Connection::open(path)?));
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
        inotify::add_watch(&watch, format!("{}-wal", path.display()), inotify::WatchFlags::MODIFY)?;
        Ok(Self { holder, waiter, watch: Arc::new(watch) })
    }

    /// Measures the time from a release to the grant to the notified waiter.
    pub async fn measure_once(&mut self) -> Result<Duration, Box<dyn Error>> {
        let token = self.holder.call(|file| file.acquire(Self::LEASE)).await?;
        let mut events = [0_u8; 4_096];
        while rustix::io::read(&*self.watch, &mut events).is_ok() {}
        let (watches, watched) = std::sync::mpsc::channel();
        let watch = self.watch.clone();
        let takes = self.waiter.call(move |file| file.acquire_on_write(Self::LEASE, &watch, &watches));
        let taking = async {
            let taken = takes.await;
            (taken, Instant::now())
        };
        let releasing = async {
            while watched.try_recv().is_err() {
                tokio::time::sleep(REST_BEFORE_HAND_OVER).await;
            }
            tokio::time::sleep(REST_BEFORE_HAND_OVER).await;
            let start = Instant::now();
            self.holder.call(move |file| file.release(Self::LEASE, token)).await?;
            Ok::<_, Box<dyn Error>>(start)
        };
        let ((taken, now), start) = tokio::join!(taking, releasing);
        taken?;
        Ok(now - start?)
    }
}
