//! The conformance suite on SQLite: a file in a separate folder for each case.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, params};
use tempfile::TempDir;
use tenure::store::sqlite::SqliteStore;
use tenure::store::{BoxFuture, Keyspace, Store};
use tenure::testing::{FaultInjection, StoreFault, StoreFixture};

/// All tables except the one that identifies the host.
const TABLES: [&str; 7] = ["namespaces", "ttls", "leases", "records", "members", "entries", "announcements"];

struct SqliteFixture {
    folder: TempDir,
    store: SqliteStore,
}

async fn sqlite() -> SqliteFixture {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let keyspace = Keyspace::default().namespace("suite").unwrap();
    SqliteFixture { store: SqliteStore::open(path.to_str().unwrap(), &keyspace).unwrap(), folder }
}

impl SqliteFixture {
    fn copy(&self) -> PathBuf {
        self.folder.path().join("copy.db")
    }

    /// Opens the file like a foreign program.
    fn outsider(&self) -> Connection {
        let connection = Connection::open(self.folder.path().join("leases.db")).unwrap();
        connection.busy_timeout(Duration::from_secs(60)).unwrap();
        connection
    }

    /// A time on the store's clock in microseconds, this far from now.
    fn after(connection: &Connection, span: Duration) -> i64 {
        let epoch: i64 = connection.query_row("SELECT epoch FROM host", [], |row| row.get(0)).unwrap();
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        epoch + boot.tv_sec * 1_000_000 + boot.tv_nsec / 1_000 + i64::try_from(span.as_micros()).unwrap()
    }
}

impl StoreFixture for SqliteFixture {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    fn advance_time(&self, span: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(span))
    }

    fn inject(&self, fault: StoreFault) -> BoxFuture<'_, FaultInjection> {
        let outsider = self.outsider();
        match fault {
            StoreFault::Flush => {
                let all: String = TABLES.iter().map(|table| format!("DELETE FROM {table};")).collect();
                outsider.execute_batch(&format!("BEGIN IMMEDIATE; {all} COMMIT")).unwrap();
            }
            StoreFault::TakeSnapshot => {
                let _ = std::fs::remove_file(self.copy());
                outsider.execute("VACUUM INTO ?1", [self.copy().to_str().unwrap()]).unwrap();
            }
            StoreFault::RestoreSnapshot => {
                outsider.execute("ATTACH ?1 AS copy", [self.copy().to_str().unwrap()]).unwrap();
                let restore =
                    |table: &&str| format!("DELETE FROM {table}; INSERT INTO {table} SELECT * FROM copy.{table};");
                let all: String = TABLES.iter().map(restore).collect();
                outsider.execute_batch(&format!("BEGIN IMMEDIATE; {all} COMMIT")).unwrap();
            }
            StoreFault::WriteForeignLease { name, holder, ttl } => {
                let expires = ttl.map(|ttl| Self::after(&outsider, ttl));
                let write = "INSERT INTO leases (namespace, key, holder, expires) VALUES ('suite:', ?1, ?2, ?3)
                             ON CONFLICT DO UPDATE SET holder = excluded.holder, expires = excluded.expires";
                outsider.execute(write, params![name.key(), holder, expires]).unwrap();
            }
            StoreFault::DeleteLease { name } => {
                let write = "UPDATE leases SET holder = NULL, expires = NULL WHERE namespace = 'suite:' AND key = ?1";
                outsider.execute(write, [name.key()]).unwrap();
            }
            StoreFault::CorruptToken { name, token } => {
                let write = "UPDATE leases SET token = ?2 WHERE namespace = 'suite:' AND key = ?1";
                outsider.execute(write, params![name.key(), token.get().cast_signed()]).unwrap();
            }
            // A file has no server with an uptime.
            StoreFault::AgeServer(_) => {}
            _ => return Box::pin(std::future::ready(FaultInjection::Unsupported)),
        }
        Box::pin(std::future::ready(FaultInjection::Injected))
    }

    /// The open handles of a file cannot be counted.
    fn can_count_subscribers(&self) -> bool {
        false
    }

    /// All of its knowledge is in the file.
    fn remembers_served_namespaces(&self) -> bool {
        false
    }
}

tenure::conformance_tests!(sqlite);
