//! The embedded store.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, params};
use tempfile::TempDir;
use tenure::LeaseName;
use tenure::store::sqlite::SqliteStore;
use tenure::store::{ServerInfo, ServerRun, Store};
use tenure::time::ServerTime;

use crate::compare;
use crate::fixture::{DifferentialFixture, keyspace};

const FILE_COUNT: usize = 24;

struct SqliteFixture {
    folder: TempDir,
}

impl SqliteFixture {
    /// The file of a namespace. A few namespaces share a file, because they must not affect each other; not all do,
    /// because every write to a file wakes all of its subscribers.
    fn path(&self, namespace: &str) -> String {
        let file = namespace.bytes().map(usize::from).sum::<usize>() % FILE_COUNT;
        self.folder.path().join(format!("{file}.db")).to_str().unwrap().to_owned()
    }

    /// Opens the file like a foreign program.
    fn outsider(&self, namespace: &str) -> Connection {
        let connection = Connection::open(self.path(namespace)).unwrap();
        connection.busy_timeout(Duration::from_secs(60)).unwrap();
        connection
    }
}

impl DifferentialFixture for SqliteFixture {
    fn store(&self, namespace: &str) -> Arc<dyn Store> {
        Arc::new(SqliteStore::open(&self.path(namespace), &keyspace(namespace)).unwrap())
    }

    /// A file has no server with an uptime, and its subscribers cannot be counted.
    fn server_info(&self, _subscribers: usize, _was_attached: bool, has_terms: bool) -> ServerInfo {
        let (now, run) = (ServerTime::from_micros(0), ServerRun(1));
        ServerInfo { now, run, uptime: Duration::MAX, subscribers: 0, has_served: has_terms }
    }

    fn flush(&self, namespace: &str) {
        let outsider = self.outsider(namespace);
        let tx = outsider.unchecked_transaction().unwrap();
        for table in ["namespaces", "ttls", "leases", "records", "members", "entries", "notes"] {
            tx.execute(&format!("DELETE FROM {table} WHERE namespace = ?1"), [format!("{namespace}:")]).unwrap();
        }
        tx.commit().unwrap();
    }

    fn write_foreign(&self, namespace: &str, name: &LeaseName, holder: &str, ttl: Option<Duration>) {
        let outsider = self.outsider(namespace);
        let epoch: i64 = outsider.query_row("SELECT epoch FROM host", [], |row| row.get(0)).unwrap();
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let now = epoch + boot.tv_sec * 1_000_000 + boot.tv_nsec / 1_000;
        let expires = ttl.map(|ttl| now + i64::try_from(ttl.as_micros()).unwrap());
        let write = "INSERT INTO leases (namespace, key, holder, expires) VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT DO UPDATE SET holder = excluded.holder, expires = excluded.expires";
        outsider.execute(write, params![format!("{namespace}:"), name.key(), holder, expires]).unwrap();
    }

    fn delete_foreign(&self, namespace: &str, name: &LeaseName) {
        let write = "UPDATE leases SET holder = NULL, expires = NULL WHERE namespace = ?1 AND key = ?2";
        self.outsider(namespace).execute(write, [format!("{namespace}:"), name.key().to_owned()]).unwrap();
    }
}

#[test]
fn sqlite_answers_as_the_ledger_does() {
    compare(Arc::new(SqliteFixture { folder: tempfile::tempdir().unwrap() }));
}
