//! The raw store: like statements, called by hand on the thread that owns the file. An async program has to ask such a
//! thread, since SQLite blocks whoever calls it.

use std::error::Error;
use std::path::Path;

use rusqlite::{Connection, TransactionBehavior, params};

type Job = Box<dyn FnOnce(&mut RawFile) + Send>;

/// The thread that owns the file.
pub struct RawSqlite(std::sync::mpsc::Sender<Job>);

impl RawSqlite {
    pub fn open(path: &Path) -> Result<Self, Box<dyn Error>> {
        let mut file = RawFile::open(path)?;
        let (jobs, queue) = std::sync::mpsc::channel::<Job>();
        std::thread::spawn(move || {
            while let Ok(job) = queue.recv() {
                job(&mut file);
            }
        });
        Ok(Self(jobs))
    }

    /// Has something done to the file, and waits for it.
    pub async fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut RawFile) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Box<dyn Error>> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        self.0.send(Box::new(move |file| drop(answer.send(job(file)))))?;
        Ok(answered.await??)
    }
}

/// An open file with one table, as plain programs have it.
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

    /// Waits until somebody else has written the file, and takes the lease. It looks in a tight loop: nothing can be told
    /// sooner.
    pub fn take_when_written(&mut self, key: &str, watches: &std::sync::mpsc::Sender<()>) -> rusqlite::Result<i64> {
        let version = self.version()?;
        // Whoever is told this may have gone.
        let _ = watches.send(());
        while self.version()? == version {
            std::thread::yield_now();
        }
        self.acquire(key)
    }

    /// Another connection to the same file.
    pub fn again(path: &Path) -> Result<Self, Box<dyn Error>> {
        Ok(Self(Connection::open(path)?))
    }

    fn version(&self) -> rusqlite::Result<i64> {
        self.0.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
    }

    pub fn fill(&mut self, keys: &[String]) -> rusqlite::Result<()> {
        let tx = self.0.transaction()?;
        for key in keys {
            tx.prepare_cached(
                "INSERT OR REPLACE INTO leases VALUES (?1, 'raw', 1, 1, 'nonce', 1, 'silently', 1, 1, '')",
            )?
            .execute([key])?;
        }
        tx.commit()
    }

    /// Renews all of these in one transaction: look at the row, move its end.
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
